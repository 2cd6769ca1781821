// The version chain of a library: `add`, `sample` and `update` of the usual case, all of it, on Python's own states.
#pragma once
#include "python.h"

namespace frb {

// Add the types to the module; false with an error.
bool add_chain(PyObject* module, const BufferKernels& kernels);

}  // namespace frb
