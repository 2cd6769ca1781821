// What one set of instructions offers to Python and to XLA.
#pragma once
#include <cstddef>
#include <cstdint>

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "buffer_call.h"

namespace frb {

struct Handler {
  const char* name;
  void* function;
};
struct RecordFields {
  const char* name;
  const char* fields;
};
struct Exports {
  PyMethodDef* methods;          // ends with an empty one
  const Handler* handlers;       // ends with an empty one
  const RecordFields* records;   // ends with an empty one
  BufferKernels buffers;
};

}  // namespace frb
