// The extension module `functional_rb._native`: the kernels for the instructions that this processor has.
//
// CPython's limited API of 3.11, so that one file serves all Pythons since.
#include "chain.h"
#include "launches.h"
#include "setting.h"
#include "tables.h"
#include "xla_frame.h"

#include <cstdlib>
#include <cstring>
#include <initializer_list>
#if defined(FRB_X86)
#include <cpuid.h>
#endif

extern "C" {
const frb::Exports* frb_exports_baseline();
#if defined(FRB_X86)
const frb::Exports* frb_exports_v3();
const frb::Exports* frb_exports_v4();
#endif
}

namespace {

using frb::put;

struct Choice {
  const char* name;
  const frb::Exports* exports;
};

#if defined(FRB_X86)
// What the processor says of itself, and which registers the system saves: not every compiler's library tells it.
struct Processor {
  unsigned features = 0, more = 0, registers = 0;
  Processor() {
    unsigned a, b, c, d;
    if (__get_cpuid(1, &a, &b, &c, &d)) features = c;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) more = b;
    if (features >> 27 & 1) __asm__("xgetbv" : "=a"(registers), "=d"(d) : "c"(0));
  }
  static bool all(unsigned word, std::initializer_list<int> bits) {
    for (int bit : bits)
      if (!(word >> bit & 1)) return false;
    return true;
  }
  // FMA, MOVBE, AVX, F16C; BMI1, AVX2, BMI2; registers of 256 bits.
  bool has_v3() const { return all(features, {12, 22, 28, 29}) && all(more, {3, 5, 8}) && all(registers, {1, 2}); }
  // AVX-512 F, DQ, CD, BW, VL; registers of 512 bits.
  bool has_v4() const { return has_v3() && all(more, {16, 17, 28, 30, 31}) && all(registers, {5, 6, 7}); }
};
#endif

// The newest instructions that this processor has, or those that the environment names.
Choice chosen() {
#if defined(FRB_X86)
  const char* forced = getenv("FUNCTIONAL_RB_INSTRUCTIONS");
  const bool any = !forced || !*forced;
  const Processor processor;
  const bool v3 = processor.has_v3(), v4 = processor.has_v4();
  if (v4 && (any || !strcmp(forced, "v4"))) return {"v4", frb_exports_v4()};
  if (v3 && (any || !strcmp(forced, "v3"))) return {"v3", frb_exports_v3()};
#endif
  return {"baseline", frb_exports_baseline()};
}

// {name: fields, as they are declared} of the records.
PyObject* records_of(const frb::Exports* exports) {
  PyObject* by_name = PyDict_New();
  for (const frb::RecordFields* record = exports->records; by_name && record->name; ++record) {
    PyObject* fields = PyUnicode_FromString(record->fields);
    if (!fields || PyDict_SetItemString(by_name, record->name, fields)) Py_CLEAR(by_name);
    Py_XDECREF(fields);
  }
  return by_name;
}

// seal(batch, arrays, records): what `Seal` makes of the words of a call: of its first attribute behind the seal, int64; of
// its operands and of its results how many there are, and of each the bytes of an element, the axes and the shape, int64; and
// of its records, int32.
PyObject* seal(PyObject*, PyObject* args) {
  PyObject* records;
  Py_buffer batch, arrays, record;
  if (!PyArg_ParseTuple(args, "y*y*O!", &batch, &arrays, &PyTuple_Type, &records)) return nullptr;
  frb::Seal seal;
  const int64_t *words = static_cast<const int64_t*>(batch.buf), *array = static_cast<const int64_t*>(arrays.buf);
  for (Py_ssize_t k = 0; k < batch.len / 8; ++k) seal.take(words[k]);
  for (int group = 0; group < 2; ++group) {  // operands, and results
    int64_t left = *array++;
    for (seal.take(left); left > 0; --left, array += 2 + array[1]) seal.take_array(array[0], array[1], array + 2);
  }
  PyBuffer_Release(&batch), PyBuffer_Release(&arrays);
  for (Py_ssize_t k = 0; k < PyTuple_Size(records); ++k) {
    if (PyObject_GetBuffer(PyTuple_GetItem(records, k), &record, PyBUF_SIMPLE)) return nullptr;
    seal.take_record(static_cast<const int32_t*>(record.buf), int64_t(record.len) / 4);
    PyBuffer_Release(&record);
  }
  return PyLong_FromLongLong(seal.value());
}
PyMethodDef methods[] = {{"seal", seal, METH_VARARGS, nullptr}, {}};

constexpr Py_ssize_t LENGTH = sizeof(frb::Points);

int fill(PyObject* module) {
  if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) {
    PyErr_SetString(PyExc_ImportError, "functional_rb: expected the main interpreter of the process; in others go on "
                                       "without kernels, by FUNCTIONAL_RB_NATIVE=0");
    return -1;
  }
  const Choice choice = chosen();
  const bool done = PyModule_AddFunctions(module, choice.exports->methods) == 0 && PyModule_AddFunctions(module, methods) == 0 &&
                    frb::add_chain(module, choice.exports->buffers) && frb::add_setting(module) &&
                    frb::gpu::add_launches(module) && frb::gpu::add_xla_launches(module) &&
                    put(module, "INSTRUCTIONS", PyUnicode_FromString(choice.name)) &&
                    put(module, "SOURCES", PyLong_FromUnsignedLongLong(FRB_SOURCES)) &&
                    put(module, "RECORDS", records_of(choice.exports)) &&
                    put(module, "TABLES", Py_BuildValue("{sy#sy#sy#}", "log", &frb::LOG, LENGTH, "inverse", &frb::INVERSE,
                                                        LENGTH, "exp", &frb::EXP, LENGTH)) &&
                    put(module, "HANDLERS", frb::handlers_of(choice.exports->handlers));
  return done ? 0 : -1;
}

PyModuleDef_Slot slots[] = {{Py_mod_exec, reinterpret_cast<void*>(fill)}, {0, nullptr}};
#define FRB_TEXT_OF(x) #x
#define FRB_TEXT(x) FRB_TEXT_OF(x)
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", "The kernels of the sources " FRB_TEXT(FRB_SOURCES), 0, nullptr,
                          slots, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
