// Python's objects by the limited API: references that let go of themselves, and attributes by interned names.
#pragma once
#include <utility>

#include "exports.h"

namespace frb {

// A reference of our own, or null.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* taken) : at_(taken) {}
  Ref(Ref&& other) noexcept : at_(std::exchange(other.at_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(at_, other.at_);
    return *this;
  }
  ~Ref() { Py_XDECREF(at_); }
  static Ref to(PyObject* borrowed) { return Ref(Py_NewRef(borrowed)); }
  PyObject* get() const { return at_; }
  PyObject* give() { return std::exchange(at_, nullptr); }
  explicit operator bool() const { return at_; }
  bool is(PyObject* other) const { return at_ == other; }

 private:
  PyObject* at_ = nullptr;
};

// The names that are looked up, interned once.
#define FRB_NAMES(X)                                                                                               \
  X(_counters) X(_exported) X(_fullest) X(_repair) X(_save_history) X(_target) X(_version) X(acquire) X(after)    \
  X(append) X(buffer) X(device) X(dtype) X(files) X(history) X(lock) X(memory) X(next) X(pinned) X(place)                   \
  X(popleft) X(refuse) X(release) X(reserve) X(retained) X(roll_back) X(check_process) X(saved) X(spec) X(stream)  \
  X(undo)
struct Names {
#define FRB_NAME(name) PyObject* name = nullptr;
  FRB_NAMES(FRB_NAME)
#undef FRB_NAME
  bool intern() {
#define FRB_NAME(name) if (!(name = PyUnicode_InternFromString(#name))) return false;
    FRB_NAMES(FRB_NAME)
#undef FRB_NAME
    return true;
  }
};
inline Names names;

inline Ref attribute(PyObject* of, PyObject* name) { return Ref(PyObject_GetAttr(of, name)); }

// Set an attribute past `__setattr__`, which values refuse; false with an error.
inline bool set(PyObject* of, PyObject* name, PyObject* value) { return PyObject_GenericSetAttr(of, name, value) == 0; }

template <class... Args> Ref called(PyObject* function, Args... args) {
  return Ref(PyObject_CallFunctionObjArgs(function, args..., nullptr));
}
template <class... Args> Ref called_method(PyObject* of, PyObject* name, Args... args) {
  return Ref(PyObject_CallMethodObjArgs(of, name, args..., nullptr));
}

// An object of a type, all zeros; and the end of one whose own fields have been let go of.
template <class T> T* allocated(PyTypeObject* type) { return reinterpret_cast<T*>(PyType_GenericAlloc(type, 0)); }
inline void released(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

// Put a new reference into a module; false if it could not be made or put there.
inline bool put(PyObject* module, const char* name, PyObject* value) {
  const bool done = value && PyModule_AddObjectRef(module, name, value) == 0;
  Py_XDECREF(value);
  return done;
}

// {name: capsule} of handlers; null with an error.
inline PyObject* handlers_of(const Handler* handler) {
  PyObject* by_name = PyDict_New();
  for (; by_name && handler->name; ++handler) {
    PyObject* capsule = PyCapsule_New(handler->function, nullptr, nullptr);
    if (!capsule || PyDict_SetItemString(by_name, handler->name, capsule)) Py_CLEAR(by_name);
    Py_XDECREF(capsule);
  }
  return by_name;
}

// "Not here": the reference does it, and words the error if there is one. An error that is set is no matter of words.
inline PyObject* not_here() { return PyErr_Occurred() ? nullptr : Py_NewRef(Py_NotImplemented); }

// Let go of an error, which the reference will find too; not of an interrupt, which comes once.
inline void forget_error() {
  if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_Exception)) PyErr_Clear();
}

// Keeps the error that is set while something is tidied up.
class KeptError {
 public:
  KeptError() { PyErr_Fetch(&type_, &value_, &trace_); }
  ~KeptError() { PyErr_Restore(type_, value_, trace_); }

 private:
  PyObject *type_, *value_, *trace_;
};

}  // namespace frb
