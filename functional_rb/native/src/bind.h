// A kernel as a function of Python: its C++ signature is all that is declared.
//
// A pointer comes as an object with a buffer (None: not given), as do a record, a span or an array; addresses come as a
// tuple or list of such, numbers as numbers. Kernels run without the GIL.
#pragma once
#include <deque>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "exports.h"
#include "records.h"
#include "rows.h"

FRB_BEGIN

// A buffer of Python's for the time of a call.
class Held {
 public:
  ~Held() { if (held_) PyBuffer_Release(&view_); }
  bool take(PyObject* object, bool writes, Py_ssize_t itemsize, int axes) {
    const int flags = PyBUF_C_CONTIGUOUS | PyBUF_ND | (writes ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object, &view_, flags)) return false;
    held_ = true;
    if ((itemsize == ANY || view_.itemsize == itemsize) && (axes == 0 || view_.ndim == axes)) return true;
    if (axes == 0) {
      PyErr_Format(PyExc_TypeError, "expected elements of %zd bytes, got %zd bytes", itemsize, view_.itemsize);
      return false;
    }
    PyErr_Format(PyExc_TypeError, "expected an array of %d axes with elements of %zd bytes, got %d axes and %zd bytes",
                 axes, itemsize, view_.ndim, view_.itemsize);
    return false;
  }
  const Py_buffer& view() const { return view_; }
  static constexpr Py_ssize_t ANY = 0;

 private:
  Py_buffer view_{};
  bool held_ = false;
};

// How an argument of each type is taken; `get` gives it to the kernel once all have been taken.
template <class T, class = void> struct Argument;
template <class T> struct Argument<T*> {
  Held held;
  bool take(PyObject* object) {
    const Py_ssize_t itemsize = std::is_same<std::remove_const_t<T>, char>::value ? Held::ANY : Py_ssize_t(sizeof(T));
    return object == Py_None || held.take(object, !std::is_const<T>::value, itemsize, 0);
  }
  T* get() const { return static_cast<T*>(held.view().buf); }
};
template <class T> struct Argument<T, std::enable_if_t<std::is_same<T, int64_t>::value>> {
  int64_t value;
  bool take(PyObject* object) {
    value = PyLong_AsLongLong(object);
    return value != -1 || !PyErr_Occurred();
  }
  int64_t get() const { return value; }
};
template <> struct Argument<bool> {
  int value;
  bool take(PyObject* object) { return (value = PyObject_IsTrue(object)) >= 0; }
  bool get() const { return value; }
};
template <> struct Argument<float> {
  double value;
  bool take(PyObject* object) {
    value = PyFloat_AsDouble(object);
    return value != -1.0 || !PyErr_Occurred();
  }
  float get() const { return float(value); }
};
template <class T> struct Argument<Span<T>> {
  Held held;
  bool take(PyObject* object) { return held.take(object, !std::is_const<T>::value, sizeof(T), 0); }
  Span<T> get() const { return {static_cast<T*>(held.view().buf), held.view().len / Py_ssize_t(sizeof(T))}; }
};
template <> struct Argument<Addresses> {
  std::deque<Held> held;
  std::vector<int64_t> at;
  bool take(PyObject* objects) {
    PyObject* each = PySequence_Tuple(objects);
    bool taken = each;
    for (Py_ssize_t k = 0; taken && k < PyTuple_Size(each); ++k) {
      PyObject* object = PyTuple_GetItem(each, k);
      taken = object == Py_None || held.emplace_back().take(object, false, Held::ANY, 0);
      at.push_back(object == Py_None ? 0 : taken ? reinterpret_cast<int64_t>(held.back().view().buf) : 0);
    }
    Py_XDECREF(each);  // a buffer keeps its object
    return taken;
  }
  Addresses get() const { return {at.data(), int64_t(at.size())}; }
};
template <class T, int N> struct Argument<Array<T, N>> {
  Held held;
  bool take(PyObject* object) { return held.take(object, !std::is_const<T>::value, sizeof(T), N); }
  Array<T, N> get() const {
    Array<T, N> array;
    array.at = static_cast<T*>(held.view().buf);
    for (int k = 0; k < N; ++k) array.shape[k] = held.view().shape[k];
    return array;
  }
};
template <class R> struct Argument<R, std::enable_if_t<std::is_class<R>::value && sizeof(R) == sizeof(void*)>> {
  using Fields = std::remove_cv_t<std::remove_pointer_t<decltype(R::at)>>;
  Held held;
  bool take(PyObject* object) {
    if (!held.take(object, false, sizeof(int32_t), 1)) return false;
    if (held.view().len >= Py_ssize_t(sizeof(Fields))) return true;
    PyErr_Format(PyExc_ValueError, "expected a %s, got %zd bytes", Fields::NAME, held.view().len);
    return false;
  }
  R get() const {
    R record;
    record.at = static_cast<const Fields*>(held.view().buf);
    return record;
  }
};

inline PyObject* told(bool value) { return PyBool_FromLong(value); }
inline PyObject* told(int64_t value) { return PyLong_FromLongLong(value); }

template <class F> struct Bound;
template <class R, class... Args> struct Bound<R (*)(Args...)> {
  template <R (*F)(Args...)> static PyObject* call(PyObject*, PyObject* const* objects, Py_ssize_t count) {
    return called<F>(objects, count, std::index_sequence_for<Args...>());
  }

 private:
  template <R (*F)(Args...), size_t... K>
  static PyObject* called(PyObject* const* objects, Py_ssize_t count, std::index_sequence<K...>) {
    if (count != Py_ssize_t(sizeof...(Args))) {
      PyErr_Format(PyExc_TypeError, "expected %zd arguments, got %zd", Py_ssize_t(sizeof...(Args)), count);
      return nullptr;
    }
    std::tuple<Argument<Args>...> taken;
    if (!(std::get<K>(taken).take(objects[K]) && ...)) return nullptr;
    bool failed = false;
    if constexpr (std::is_void<R>::value) {
      Py_BEGIN_ALLOW_THREADS
      try { F(std::get<K>(taken).get()...); } catch (const std::bad_alloc&) { failed = true; }
      Py_END_ALLOW_THREADS
      if (failed) return PyErr_NoMemory();
      Py_RETURN_NONE;
    } else {
      R result{};
      Py_BEGIN_ALLOW_THREADS
      try { result = F(std::get<K>(taken).get()...); } catch (const std::bad_alloc&) { failed = true; }
      Py_END_ALLOW_THREADS
      return failed ? PyErr_NoMemory() : told(result);
    }
  }
};

FRB_END

#define FRB_METHOD(name, function)                                                                                  \
  {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&frb::Bound<decltype(&function)>::call<&function>)), \
   METH_FASTCALL, nullptr}
