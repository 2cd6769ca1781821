// What one set of instructions offers to Python and to XLA.
#pragma once
#include <cstddef>
#include <cstdint>

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace frb {

struct Handler {
  const char* name;
  void* function;
};
struct RecordFields {
  const char* name;
  const char* fields;
};
// What the version chain tells the kernels of a buffer; what is not given is null.
struct BufferCall {
  const int32_t* plan;
  const int64_t* storage;
  float* tree;
  const int32_t* counters;
  int32_t* new_counters;
  const int64_t* items;  // addresses of leaves, and behind them those of rows to save in
  int64_t arrays, given, item_count, batch, row_bytes;
  const uint8_t* mask;
  const int32_t *priorities, *given_handles;
  int32_t* saved_slots;
  float* saved_values;
  int64_t room;
  int64_t* saved_count;
  int64_t key, words;
  const int32_t* draws;  // in place of the key
  float beta;
  int32_t* handles;
  float *weights, *probabilities;
};
enum Outcome { DONE, NONE_DRAWN, NO_MEMORY };
struct BufferKernels {
  int (*add)(const BufferCall&);
  int (*update)(const BufferCall&);
  int (*sample)(const BufferCall&);
};
struct Exports {
  PyMethodDef* methods;          // ends with an empty one
  const Handler* handlers;       // ends with an empty one
  const RecordFields* records;   // ends with an empty one
  BufferKernels buffers;
};

}  // namespace frb
