// Kernels as Python calls them: the handlers that XLA calls, on arrays of a library, each call as one frame.
#pragma once
#include <deque>
#include <memory>
#include <vector>

#include "arrays.h"
#include "xla_frame.h"

namespace frb {

// The arrays of a frame, in their order, which live until it has been served.
class Frame {
 public:
  Frame(const ArrayLibrary& library, PyObject* ready) : library_(library), ready_(ready) {}

  // Take arrays; None stands for one that is not given. What is only read may lie otherwise than kernels read it: then a
  // copy of Python's stands in for it. False with an error.
  bool take(PyObject* arrays, bool writes) {
    const Ref each(PySequence_Tuple(arrays));
    for (Py_ssize_t k = 0; each && k < PyTuple_Size(each.get()); ++k) {
      PyObject* array = PyTuple_GetItem(each.get(), k);
      if (array != Py_None && !see(array, writes)) {
        if (PyErr_Occurred()) return false;
        Ref made = called(ready_, array, writes ? Py_True : Py_False);
        if (!made) return false;
        if (!see(made.get(), writes)) return refused(array);
        held_.push_back(std::move(made));
      }
      if (array == Py_None) buffers_.push_back({sizeof(xla::Buffer), nullptr, 0, nullptr, 1, &NONE});
    }
    if (each) held_.push_back(Ref::to(each.get()));
    return bool(each);
  }

  // Serve the frame, of which the first buffers are operands; false with an error.
  bool serve(void* handler, size_t operands) {
    std::vector<xla::Buffer*> at;
    for (xla::Buffer& buffer : buffers_) at.push_back(&buffer);
    xla::Api api{};
    api.fail = [](xla::Failure* failure) -> void* { return new xla::Failure(*failure); };
    xla::Frame frame{};
    frame.api = &api;
    frame.arguments.size = int64_t(operands), frame.arguments.at = at.data();
    frame.results.size = int64_t(at.size() - operands), frame.results.at = at.data() + operands;
    void* failed;
    Py_BEGIN_ALLOW_THREADS
    failed = reinterpret_cast<void* (*)(xla::Frame*)>(handler)(&frame);
    Py_END_ALLOW_THREADS
    if (!failed) return true;
    const std::unique_ptr<xla::Failure> failure(static_cast<xla::Failure*>(failed));
    PyErr_SetString(failure->code == xla::RESOURCE_EXHAUSTED ? PyExc_MemoryError : PyExc_TypeError, failure->message);
    return false;
  }
  size_t size() const { return buffers_.size(); }

 private:
  bool see(PyObject* array, bool writes) {
    Seen& seen = seen_.emplace_back();
    if (!library_.see_bytes(array, seen, writes) || !seen.contiguous()) return seen_.pop_back(), false;
    const int32_t bytes = seen.dtype.bits / 8;
    buffers_.push_back({sizeof(xla::Buffer), nullptr, -bytes, seen.data, seen.ndim, seen.shape});
    return true;
  }
  static bool refused(PyObject* array) {
    PyErr_Format(PyExc_TypeError, "a kernel: expected an array of the library in the host's memory, got %R", Py_TYPE(array));
    return false;
  }

  static constexpr int64_t NONE = 0;
  const ArrayLibrary& library_;
  PyObject* ready_;
  std::deque<Seen> seen_;
  std::deque<xla::Buffer> buffers_;
  std::vector<Ref> held_;
};

// call(handler, records, operands, results)
inline PyObject* call_kernel(const ArrayLibrary& library, PyObject* ready, PyObject* const* args, Py_ssize_t count) {
  if (count != 4) return PyErr_Format(PyExc_TypeError, "expected 4 arguments, got %zd", count);
  void* handler = PyCapsule_GetPointer(args[0], nullptr);
  Frame frame(library, ready);
  if (!handler || !frame.take(args[1], false) || !frame.take(args[2], false)) return nullptr;
  const size_t operands = frame.size();
  if (!frame.take(args[3], true) || !frame.serve(handler, operands)) return nullptr;
  Py_RETURN_NONE;
}

}  // namespace frb
