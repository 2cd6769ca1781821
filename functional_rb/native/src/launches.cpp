#include "launches.h"

#include <algorithm>
#include <vector>

FRB_BEGIN
namespace gpu {
namespace {

Driver driver;
std::vector<Device> devices;
int64_t most_blocks = 1024;  // of a launch: enough for any GPU, which has up to 150 multiprocessors
int64_t share = 4096;        // bytes of an item that the threads of one block read together; of more several blocks

int64_t parts(int64_t size, int64_t part) { return (size + part - 1) / part; }

// What a kernel is called with, so far.
Call record_of(const BufferCall& c) {
  Call call{};
  static_cast<BufferCall&>(call) = c;
  const Plan plan{{reinterpret_cast<const BufferRecord*>(c.plan)}};
  const int64_t numbers = plan.behind() + 1 + plan->wide + 5 * plan->levels + 3 * plan->leaves - c.plan;
  std::copy_n(c.plan, numbers, call.plan);
  if (c.ring) {
    const Ring ring{reinterpret_cast<const RingRecord*>(c.ring)};
    std::copy_n(c.ring, ring.behind() - c.ring + ring->ends, call.ring);
  }
  if (c.epoch) std::copy_n(c.epoch, EPOCHS, call.epoch);
  for (int64_t k = 0; k < c.arrays; ++k) call.storage[k] = reinterpret_cast<char*>(c.storage[k]);
  for (int64_t k = 0; k < c.item_count; ++k) call.items[k] = reinterpret_cast<char*>(c.items[k]);
  return call;
}

// Have device memory for a call; false if there is none.
bool take_scratch(Call& call, int64_t count) {
  call.scratch = call.scratches.take(call.scratches.of, count);
  return call.scratch;
}

int launch(Call& call, Kernel which, int threads, int64_t columns, int64_t lines = 1) {
  if (call.device < 0) return DONE;
  const Device& device = devices[size_t(call.device)];
  void *before = device.context, *arguments[] = {&call};
  if (driver.current) driver.current(&before);
  const bool elsewhere = before != device.context;  // a new thread has no context, and several devices take turns
  if (elsewhere) driver.push(device.context);
  const int status = driver.launch(device.kernels[which], unsigned(columns), unsigned(lines), 1, unsigned(threads), 1, 1, 0,
                                   call.stream, arguments, nullptr);
  if (elsewhere) driver.pop(&before);
  return status ? -status : DONE;
}

// All that there was room for is saved, also what a mask leaves as it is; but nothing where nothing was launched.
int saved(const BufferCall& c, int64_t count, int outcome) {
  if (c.saved_count) c.saved_count[0] = outcome == DONE ? count : 0;
  return outcome;
}

int add(const BufferCall& c) {
  Call call = record_of(c);
  const int64_t capacity = plan_of(call)->capacity, places = std::min(c.batch, capacity);
  call.tile = parts(places, most_blocks), call.scratch_size = places;
  if (c.mask) {
    if (!take_scratch(call, places + 1)) return NO_MEMORY;
    if (const int failed = launch(call, rank_kernel, THREADS_OF_ONE, 1)) return failed;
  }
  return saved(c, places, launch(call, add_kernel, THREADS, 1 + parts(places, call.tile)));
}

int update(const BufferCall& c) {
  Call call = record_of(c);
  int64_t size = 1;
  while (size <= 2 * c.batch) size *= 2;
  call.scratch_size = size;
  if (!take_scratch(call, 2 * c.batch + 2 * size)) return NO_MEMORY;
  return saved(c, c.batch, launch(call, update_kernel, THREADS_OF_ONE, 1));
}

int sample(const BufferCall& c) {
  Call call = record_of(c);
  const Plan plan = plan_of(call);
  int64_t widest = 0;
  for (int64_t k = 0; k < plan->leaves; ++k) widest = std::max<int64_t>(widest, plan.leaf(k).bytes);
  call.tile = std::min<int64_t>(parts(c.batch, most_blocks), MOST_DRAWS);
  const int64_t lines = std::max<int64_t>(1, std::min<int64_t>(parts(widest, share), 64));
  return launch(call, sample_kernel, THREADS, parts(c.batch, call.tile), lines);
}

// --- for Python -----------------------------------------------------------------------------------------------------

void* pointer(PyObject* of, Py_ssize_t k) { return PyLong_AsVoidPtr(PyTuple_GetItem(of, k)); }

// gpu_driver((launch, current context, push, pop, words), most blocks, share): addresses of CUDA's functions, 0 for none.
PyObject* take_driver(PyObject*, PyObject* args) {
  PyObject* functions;
  long long blocks, bytes;
  if (!PyArg_ParseTuple(args, "O!LL", &PyTuple_Type, &functions, &blocks, &bytes)) return nullptr;
  driver = {reinterpret_cast<decltype(driver.launch)>(pointer(functions, 0)),
            reinterpret_cast<decltype(driver.current)>(pointer(functions, 1)),
            reinterpret_cast<decltype(driver.push)>(pointer(functions, 2)),
            reinterpret_cast<decltype(driver.pop)>(pointer(functions, 3)),
            reinterpret_cast<decltype(driver.words)>(pointer(functions, 4))};
  most_blocks = blocks, share = bytes;
  return PyErr_Occurred() ? nullptr : Py_NewRef(Py_None);
}

// gpu_device(number, context, kernels): what was loaded for a device, kernels in the order of GPU_KERNELS.
PyObject* take_device(PyObject*, PyObject* args) {
  long long number;
  PyObject *context, *kernels;
  if (!PyArg_ParseTuple(args, "LOO!", &number, &context, &PyTuple_Type, &kernels)) return nullptr;
  if (size_t(number) >= devices.size()) devices.resize(size_t(number) + 1);
  devices[size_t(number)].context = PyLong_AsVoidPtr(context);
  for (Py_ssize_t k = 0; k < KERNELS && !PyErr_Occurred(); ++k) devices[size_t(number)].kernels[k] = pointer(kernels, k);
  return PyErr_Occurred() ? nullptr : Py_NewRef(Py_None);
}

PyMethodDef methods[] = {{"gpu_driver", take_driver, METH_VARARGS, nullptr},
                         {"gpu_device", take_device, METH_VARARGS, nullptr}, {}};

}  // namespace

const BufferKernels buffers{add, nullptr, update, nullptr, sample, nullptr, nullptr, nullptr};

const char* problem(int outcome) {
  const char* text = nullptr;
  if (driver.words) driver.words(-outcome, &text);
  return text ? text : "unknown";
}

bool has_streams() { return driver.current; }

int64_t device_here() {
  void* context = nullptr;
  if (driver.current) driver.current(&context);
  for (size_t k = 0; k < devices.size(); ++k)
    if (devices[k].context == context) return int64_t(k);
  return -1;
}


bool add_launches(PyObject* module) {
#define FRB_NAME(name, threads) #name,
  const char* const names[] = {FRB_GPU_KERNELS(FRB_NAME)};
#undef FRB_NAME
  PyObject* told = PyTuple_New(KERNELS);
  for (int k = 0; told && k < KERNELS; ++k) PyTuple_SetItem(told, k, PyUnicode_FromString(names[k]));
  return PyModule_AddFunctions(module, methods) == 0 && put(module, "GPU_KERNELS", told);
}

}  // namespace gpu
FRB_END
