// A setting of another library's for the time of a `with` statement. In C, as Python may raise an interrupt at the
// first line of an `__exit__` that is written in Python, and the setting would stay.
#pragma once
#include "python.h"

namespace frb {

struct Setting {
  PyObject_HEAD
  PyObject *read, *write, *value, *before;
};

inline PyObject* new_setting(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *read, *write, *value;
  if (!PyArg_ParseTuple(args, "OOO", &read, &write, &value)) return nullptr;
  Setting* setting = allocated<Setting>(type);
  if (setting) setting->read = Py_NewRef(read), setting->write = Py_NewRef(write), setting->value = Py_NewRef(value);
  return reinterpret_cast<PyObject*>(setting);
}
inline void free_setting(PyObject* self) {
  Setting* setting = reinterpret_cast<Setting*>(self);
  for (PyObject* each : {setting->read, setting->write, setting->value, setting->before}) Py_XDECREF(each);
  released(self);
}
inline PyObject* enter_setting(PyObject* self, PyObject*) {
  Setting* setting = reinterpret_cast<Setting*>(self);
  Ref before = called(setting->read);
  if (!before) return nullptr;
  Ref(std::exchange(setting->before, before.give()));
  return called(setting->write, setting->value).give();
}
inline PyObject* exit_setting(PyObject* self, PyObject*) {
  Setting* setting = reinterpret_cast<Setting*>(self);
  return called(setting->write, setting->before).give();
}

// Add the type to the module; false with an error.
inline bool add_setting(PyObject* module) {
  static PyMethodDef methods[] = {{"__enter__", enter_setting, METH_NOARGS, nullptr},
                                  {"__exit__", exit_setting, METH_VARARGS, nullptr}, {}};
  static PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(new_setting)},
                                {Py_tp_dealloc, reinterpret_cast<void*>(free_setting)},
                                {Py_tp_methods, methods}, {0, nullptr}};
  static PyType_Spec spec = {"functional_rb._native.Setting", sizeof(Setting), 0, Py_TPFLAGS_DEFAULT, slots};
  return put(module, "Setting", PyType_FromSpec(&spec));
}

}  // namespace frb
