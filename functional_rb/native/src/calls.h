// Kernels as Python calls them: the handlers that XLA calls, on arrays of a library, each call as one frame.
#pragma once
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arrays.h"
#include "launches.h"
#include "xla_frame.h"

namespace frb {

// The arrays of a frame, in their order, which live until it has been served.
class Frame {
 public:
  Frame(const ArrayLibrary& library, PyObject* ready, const Where& where = ON_THE_HOST)
      : library_(library), ready_(ready), where_(where) {}

  // Take arrays that are only read; None stands for one that is not given. False with an error.
  bool take(PyObject* arrays) {
    const Ref each(PySequence_Tuple(arrays));
    for (Py_ssize_t k = 0; each && k < PyTuple_Size(each.get()); ++k)
      if (!take_one(PyTuple_GetItem(each.get(), k), false)) return false;
    if (each) held_.push_back(Ref::to(each.get()));
    return bool(each);
  }

  // Take results: arrays that are written to, None, and (shape, kind, bits, NumPy's dtype or None) for arrays that are
  // made, all on one sheet. Returns the arrays as a list; null with an error.
  Ref take_results(PyObject* results) {
    const Ref each(PySequence_Tuple(results));
    if (!each) return Ref();
    const Py_ssize_t count = PyTuple_Size(each.get());
    int64_t bytes = 0;
    for (Py_ssize_t k = 0; k < count; ++k) {
      PyObject* result = PyTuple_GetItem(each.get(), k);
      if (!PyTuple_Check(result)) continue;
      if (!told_.emplace_back().take(result)) return Ref();
      bytes += whole_lines(told_.back().bytes);
    }
    Sheet sheet(bytes);
    if (!sheet) return Ref(PyErr_NoMemory());
    Ref arrays(PyList_New(count));
    auto outline = told_.begin();
    for (Py_ssize_t k = 0; arrays && k < count; ++k) {
      PyObject* result = PyTuple_GetItem(each.get(), k);
      Ref array = PyTuple_Check(result) ? made(sheet, *outline++) : take_one(result, true) ? Ref::to(result) : Ref();
      if (!array || PyList_SetItem(arrays.get(), k, array.give())) return Ref();
    }
    return arrays;
  }

  // Take records as attributes, behind that of a single call; false with an error.
  bool take_records(PyObject* records) {
    const Ref each(PySequence_Tuple(records));
    vectors_.push_back({0, 3, single_});
    for (Py_ssize_t k = 0; each && k < PyTuple_Size(each.get()); ++k) {
      Py_buffer* view = &views_.emplace_back();
      if (PyObject_GetBuffer(PyTuple_GetItem(each.get(), k), view, PyBUF_C_CONTIGUOUS)) return views_.pop_back(), false;
      vectors_.push_back({0, size_t(view->len) / sizeof(int32_t), static_cast<const int64_t*>(view->buf)});
    }
    return bool(each);
  }
  ~Frame() {
    for (Py_buffer& view : views_) PyBuffer_Release(&view);
  }
  void use(void* stream) { stream_ = stream; }

  // Serve the frame, of which the first buffers are operands; false with an error.
  bool serve(void* handler, size_t operands) {
    std::vector<xla::Buffer*> at;
    for (xla::Buffer& buffer : buffers_) at.push_back(&buffer);
    xla::Api api{};
    api.fail = [](xla::Failure* failure) -> void* { return new Failed(failure); };
    api.find_stream = [](xla::Stream* stream) -> void* { return stream->stream = stream->context, nullptr; };
    xla::Frame frame{};
    frame.api = &api, frame.context = stream_;
    std::vector<xla::Vector*> attributes;
    for (xla::Vector& vector : vectors_) attributes.push_back(&vector);
    frame.attributes.size = int64_t(attributes.size()), frame.attributes.at = attributes.data();
    frame.arguments.size = int64_t(operands), frame.arguments.at = at.data();
    frame.results.size = int64_t(at.size() - operands), frame.results.at = at.data() + operands;
    void* failed;
    Py_BEGIN_ALLOW_THREADS
    failed = reinterpret_cast<void* (*)(xla::Frame*)>(handler)(&frame);
    Py_END_ALLOW_THREADS
    if (!failed) return true;
    const std::unique_ptr<Failed> failure(static_cast<Failed*>(failed));
    PyErr_SetString(failure->code == xla::RESOURCE_EXHAUSTED ? PyExc_MemoryError
                    : failure->code == xla::INTERNAL         ? PyExc_RuntimeError
                                                             : PyExc_TypeError,
                    failure->message.c_str());
    return false;
  }
  size_t size() const { return buffers_.size(); }

 private:
  struct Failed {
    explicit Failed(const xla::Failure* failure) : code(failure->code), message(failure->message) {}
    int32_t code;
    std::string message;  // the handler's own is gone when it returns
  };

  // What is told of an array that is made.
  struct Told {
    int64_t shape[MOST_AXES], bytes;
    int ndim;
    Dtype dtype;
    PyObject* numpy;

    bool take(PyObject* outline) {
      PyObject *sizes, *numpy_dtype;
      int kind, bits;
      if (!PyArg_ParseTuple(outline, "O!iiO", &PyTuple_Type, &sizes, &kind, &bits, &numpy_dtype)) return false;
      ndim = int(PyTuple_Size(sizes)), dtype = {uint8_t(kind), uint8_t(bits)}, bytes = bits / 8;
      numpy = numpy_dtype == Py_None ? nullptr : numpy_dtype;
      if (ndim > MOST_AXES) return PyErr_Format(PyExc_ValueError, "expected %d axes at most, got %d", MOST_AXES, ndim), false;
      for (int k = 0; k < ndim; ++k) bytes *= shape[k] = PyLong_AsLongLong(PyTuple_GetItem(sizes, k));
      return !PyErr_Occurred();
    }
  };

  Ref made(Sheet& sheet, const Told& outline) {
    char* data = sheet.take<char>(outline.bytes);
    buffers_.push_back({sizeof(xla::Buffer), nullptr, -outline.dtype.bits / 8, data, outline.ndim, outline.shape});
    return library_.handed(sheet, data, outline.dtype, outline.ndim, outline.shape, outline.numpy);
  }
  // What is only read may lie otherwise than kernels read it: then a copy of Python's stands in for it.
  bool take_one(PyObject* array, bool writes) {
    if (array == Py_None) return buffers_.push_back({sizeof(xla::Buffer), nullptr, 0, nullptr, 1, &NONE}), true;
    if (see(array, writes)) return true;
    if (PyErr_Occurred()) return false;
    Ref ready = called(ready_, array, writes ? Py_True : Py_False);
    if (!ready || !see(ready.get(), writes)) return ready && refused(array);
    held_.push_back(std::move(ready));
    return true;
  }
  bool see(PyObject* array, bool writes) {
    Seen& seen = seen_.emplace_back();
    if (!library_.see_bytes(array, seen, writes, where_) || !seen.contiguous()) return seen_.pop_back(), false;
    const int32_t bytes = seen.dtype.bits / 8;
    buffers_.push_back({sizeof(xla::Buffer), nullptr, -bytes, seen.data, seen.ndim, seen.shape});
    return true;
  }
  static bool refused(PyObject* array) {
    PyErr_Format(PyExc_TypeError, "a kernel: expected an array of the library in the host's memory, got %R", Py_TYPE(array));
    return false;
  }

  static constexpr int64_t NONE = 0;
  const int64_t single_[3] = {0, 1, 0};  // no seal; one call, of no axes
  const ArrayLibrary& library_;
  PyObject* ready_;
  const Where where_;
  void* stream_ = nullptr;
  std::deque<xla::Vector> vectors_;
  std::deque<Py_buffer> views_;
  std::deque<Seen> seen_;
  std::deque<xla::Buffer> buffers_;
  std::deque<Told> told_;
  std::vector<Ref> held_;
};

// call(handler, records, operands, results), which returns these, those that are made among them; and for arrays that lie on a
// GPU, behind these (device's type, number) and its stream.
inline PyObject* call_kernel(const ArrayLibrary& library, PyObject* ready, PyObject* const* args, Py_ssize_t count) {
  if (count != 4 && count != 6) return PyErr_Format(PyExc_TypeError, "expected 4 arguments, or 6 for a GPU, got %zd", count);
  Where where = ON_THE_HOST;
  std::optional<gpu::Within> device;
  void* stream = nullptr;
  if (count == 6) {
    where.on_gpu = true, stream = PyLong_AsVoidPtr(args[5]);
    if (!PyArg_ParseTuple(args[4], "ii", &where.device.type, &where.device.id)) return nullptr;
    device.emplace(where.device.id);
  }
  void* handler = PyErr_Occurred() ? nullptr : PyCapsule_GetPointer(args[0], nullptr);
  Frame frame(library, ready, where);
  if (!handler || !frame.take_records(args[1]) || !frame.take(args[2])) return nullptr;
  const size_t operands = frame.size();
  frame.use(stream);
  Ref results = frame.take_results(args[3]);
  return results && frame.serve(handler, operands) ? results.give() : nullptr;
}

}  // namespace frb
