// The extension module `functional_rb._native`: the kernels for the instructions that this processor has.
//
// CPython's limited API of 3.11, so that one file serves all Pythons since.
#include "exports.h"

#include <cstdlib>
#include <cstring>

extern "C" {
const frb::Exports* frb_exports_baseline();
#if defined(FRB_X86)
const frb::Exports* frb_exports_v3();
const frb::Exports* frb_exports_v4();
#endif
}

namespace {

struct Choice {
  const char* name;
  const frb::Exports* exports;
};

// The newest instructions that this processor has, or those that the environment names.
Choice chosen() {
#if defined(FRB_X86)
  const char* forced = getenv("FUNCTIONAL_RB_INSTRUCTIONS");
  const bool any = !forced || !*forced;
  __builtin_cpu_init();
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                  __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
  if (v4 && (any || !strcmp(forced, "v4"))) return {"v4", frb_exports_v4()};
  if (v3 && (any || !strcmp(forced, "v3"))) return {"v3", frb_exports_v3()};
#endif
  return {"baseline", frb_exports_baseline()};
}

// Put a new reference into a module; false if it could not be made or put there.
bool put(PyObject* module, const char* name, PyObject* value) {
  const bool done = value && PyModule_AddObjectRef(module, name, value) == 0;
  Py_XDECREF(value);
  return done;
}

// {name: capsule} of the handlers.
PyObject* handlers_of(const frb::Exports* exports) {
  PyObject* found = PyDict_New();
  for (const frb::Handler* handler = exports->handlers; found && handler->name; ++handler) {
    PyObject* capsule = PyCapsule_New(handler->function, nullptr, nullptr);
    if (!capsule || PyDict_SetItemString(found, handler->name, capsule)) Py_CLEAR(found);
    Py_XDECREF(capsule);
  }
  return found;
}

// {name: fields, as they are declared} of the records.
PyObject* records_of(const frb::Exports* exports) {
  PyObject* found = PyDict_New();
  for (const frb::RecordFields* record = exports->records; found && record->name; ++record) {
    PyObject* fields = PyUnicode_FromString(record->fields);
    if (!fields || PyDict_SetItemString(found, record->name, fields)) Py_CLEAR(found);
    Py_XDECREF(fields);
  }
  return found;
}

int fill(PyObject* module) {
  const Choice choice = chosen();
  const bool done = PyModule_AddFunctions(module, choice.exports->methods) == 0 &&
                    put(module, "INSTRUCTIONS", PyUnicode_FromString(choice.name)) &&
                    put(module, "RECORDS", records_of(choice.exports)) &&
                    put(module, "HANDLERS", handlers_of(choice.exports));
  return done ? 0 : -1;
}

PyModuleDef_Slot slots[] = {{Py_mod_exec, reinterpret_cast<void*>(fill)}, {0, nullptr}};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", nullptr, 0, nullptr, slots, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
