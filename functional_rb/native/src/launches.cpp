#include "launches.h"

#include <algorithm>

FRB_BEGIN
namespace gpu {
namespace {

Driver driver;
constexpr long long MOST_DEVICES = 64;
Device devices[MOST_DEVICES];  // never moved: XLA's threads read them while others are told of
int64_t most_blocks = 1024;  // of a launch: enough for any GPU, which has up to 150 multiprocessors
constexpr int64_t MOST_OWNERS = 64;  // blocks of an update, each of which reads all handles
int64_t share = 4096;        // rows of an update that one block has; of more several blocks
constexpr int64_t BYTES_A_ROW = 4;  // of an item, beside a row of an update

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
  void* arguments[] = {&call};
  const Within context(call.device);
  const int status = driver.launch(device.kernels[which], unsigned(columns), unsigned(lines), 1, unsigned(threads), 1, 1, 0,
                                   call.stream, arguments, nullptr);
  return status ? -status : DONE;
}

// How many blocks share the bytes of each item, of which each has as many as would be `rows` of an update.
int64_t lines_of(const Plan& plan, int64_t rows) {
  int64_t widest = 0;
  for (int64_t k = 0; k < plan->leaves; ++k) widest = std::max<int64_t>(widest, plan.leaf(k).bytes);
  return std::max<int64_t>(1, std::min<int64_t>(parts(widest, BYTES_A_ROW * rows), 64));
}

// All that there was room for is saved, also what a mask leaves as it is; but nothing where nothing was launched.
int saved(const BufferCall& c, int outcome, int64_t rows, int64_t leaves = 0, int64_t moves = 0) {
  if (outcome == DONE && c.saved_count) c.saved_count[0] = rows, c.saved_count[1] = leaves, c.saved_count[2] = moves;
  return outcome;
}

int add(const BufferCall& c) {
  Call call = record_of(c);
  const Plan plan = plan_of(call);
  const int64_t places = std::min<int64_t>(c.batch, plan->capacity);
  call.tile = parts(places, most_blocks), call.scratch_size = places;
  if (c.mask) {
    if (!take_scratch(call, places + 1)) return NO_MEMORY;
    if (const int failed = launch(call, rank_kernel, THREADS_OF_ONE, 1)) return failed;
  }
  return saved(c, launch(call, add_kernel, THREADS, 1 + parts(places, call.tile), lines_of(plan, share)), places);
}

int add_to_rings(const BufferCall& c) {
  Call call = record_of(c);
  const Ring ring = ring_of(call);
  const int64_t each = std::min<int64_t>(c.batch / ring->lanes, ring->length);
  if (ring->window_length) call.range_count = distances(ring, each, call.ranges);
  const Addition of(call);
  const int64_t numbers = of.end - call.scratch;
  if (numbers && !take_scratch(call, numbers)) return NO_MEMORY;
  if (c.mask) {
    call.tile = std::max(parts(of.lanes, most_blocks), parts(share, of.steps));
    const int64_t blocks = parts(of.lanes, call.tile);
    if (const int failed = launch(call, rank_in_rings_kernel, THREADS_OF_ONE, blocks)) return failed;
  }
  const int64_t large = share * THREADS_OF_ONE / THREADS;  // as these blocks are
  call.tile = std::max(parts(of.places, most_blocks), large / std::max<int64_t>(c.row_bytes, 1));
  const int64_t columns = 1 + parts(of.places, call.tile);
  const int outcome = launch(call, add_to_rings_kernel, THREADS_OF_ONE, columns, lines_of(of.plan, large));
  return saved(c, outcome, of.places, c.order ? 0 : of.entries, c.deck_room);
}

int update_by(const BufferCall& c, bool in_rings) {
  Call call = record_of(c);
  call.in_rings = in_rings;
  call.owners = std::min<int64_t>(parts(c.batch, share), std::min<int64_t>(most_blocks, MOST_OWNERS));
  call.tile = parts(c.batch, most_blocks);
  if (!take_scratch(call, numbers_of_update(c.batch, call.owners))) return NO_MEMORY;
  int outcome = launch(call, update_kernel, THREADS_OF_ONE, call.owners);
  const int64_t several = call.owners > 1, copies = c.given ? parts(c.batch, call.tile) : 0;
  if (outcome == DONE && several + copies > 0)
    outcome = launch(call, finish_update_kernel, THREADS, several + copies,
                     copies ? lines_of(plan_of(call), share) : 1);
  return saved(c, outcome, c.batch);
}
int update(const BufferCall& c) { return update_by(c, false); }
int update_priorities(const BufferCall& c) { return update_by(c, true); }

int sample(const BufferCall& c) {
  Call call = record_of(c);
  call.tile = std::min<int64_t>(parts(c.batch, most_blocks), MOST_DRAWS);
  return launch(call, sample_kernel, THREADS, parts(c.batch, call.tile), lines_of(plan_of(call), share));
}

int draw_slices(const BufferCall& c) {
  Call call = record_of(c);
  call.tile = std::min<int64_t>(parts(c.batch, most_blocks), MOST_DRAWS);
  return launch(call, draw_slices_kernel, THREADS, parts(c.batch, call.tile), lines_of(plan_of(call), share));
}

int draw_epoch(const BufferCall& c) {
  Call call = record_of(c);
  call.scratch_size = 2;
  while (call.scratch_size < 2 * c.batch) call.scratch_size *= 2;
  if (!take_scratch(call, numbers_of_epoch(c.batch, call.scratch_size))) return NO_MEMORY;
  if (const int failed = launch(call, draw_epoch_kernel, THREADS_OF_ONE, 1)) return failed;
  call.tile = std::min<int64_t>(parts(c.batch, most_blocks), MOST_DRAWS);
  const int64_t columns = parts(c.batch, call.tile);
  const int outcome = launch(call, read_epoch_kernel, THREADS, columns, lines_of(plan_of(call), share));
  return saved(c, outcome, 0, 0, c.deck_room);
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
  if (number < 0 || number >= MOST_DEVICES)
    return PyErr_Format(PyExc_ValueError, "expected a device below %lld, got %lld", MOST_DEVICES, number);
  devices[size_t(number)].context = PyLong_AsVoidPtr(context);
  for (Py_ssize_t k = 0; k < KERNELS && !PyErr_Occurred(); ++k) devices[size_t(number)].kernels[k] = pointer(kernels, k);
  return PyErr_Occurred() ? nullptr : Py_NewRef(Py_None);
}

PyMethodDef methods[] = {{"gpu_driver", take_driver, METH_VARARGS, nullptr},
                         {"gpu_device", take_device, METH_VARARGS, nullptr}, {}};

}  // namespace

const BufferKernels buffers{add, add_to_rings, update, update_priorities, sample, draw_slices, draw_epoch, nullptr};

const char* problem(int outcome) {
  const char* text = nullptr;
  if (driver.words) driver.words(-outcome, &text);
  return text ? text : "unknown";
}

Within::Within(int64_t device) {
  void *own = devices[size_t(device)].context, *before = own;
  if (driver.current) driver.current(&before);
  elsewhere_ = before != own;
  if (elsewhere_) driver.push(own);
}
Within::~Within() {
  void* left;
  if (elsewhere_) driver.pop(&left);
}

bool has_streams() { return driver.current; }

int64_t device_here() {
  void* context = nullptr;
  if (driver.current) driver.current(&context);
  for (int64_t k = 0; k < MOST_DEVICES; ++k)
    if (devices[k].kernels[0] && devices[k].context == context) return k;
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
