#include "launches.h"

#include <algorithm>
#include <cstring>

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
constexpr int64_t LEAST_ROWS = 32;  // of a block that has little to do for each

// How many leaves are stored as frames, and how many numbers tell of them.
int64_t stacks_of(const BufferCall& c) {
  return reinterpret_cast<const FramesRecord*>(record_of<Chain>(c.frames).behind())->stacks;
}
int64_t numbers_of_frames(int64_t stacks) {
  return int64_t(sizeof(ChainRecord) + sizeof(FramesRecord) + sizeof(StackRecord) * size_t(stacks)) / 4;
}

int64_t numbers_of_returns(const int32_t* record) { return Returns{*record_of<Queue>(record).at}.end() - record; }

// Copy a plan's numbers; how many arrays it has.
int64_t take_layout(const int32_t* from, int32_t* to) {
  const Plan plan{{reinterpret_cast<const BufferRecord*>(from)}};
  std::copy_n(from, plan.behind() + 1 + plan->wide + 5 * plan->levels + 3 * plan->leaves - from, to);
  return 1 + plan->wide;
}

// What a kernel is called with but for its records.
Call bare_call(const BufferCall& c) {
  Call call{};
  static_cast<BufferCall&>(call) = c;
  for (int64_t k = 0; k < c.arrays; ++k) call.storage[k] = reinterpret_cast<char*>(c.storage[k]);
  for (int64_t k = 0; k < c.item_count; ++k) call.items[k] = reinterpret_cast<char*>(c.items[k]);
  return call;
}

// The same with those of a buffer.
Call call_of(const BufferCall& c) {
  Call call = bare_call(c);
  take_layout(c.plan, call.plan);
  if (c.ring) {
    const Ring ring{reinterpret_cast<const RingRecord*>(c.ring)};
    std::copy_n(c.ring, ring.behind() - c.ring + ring->ends, call.ring);
  }
  if (c.epoch) std::copy_n(c.epoch, EPOCHS, call.epoch);
  if (c.frames) std::copy_n(c.frames, numbers_of_frames(stacks_of(c)), call.beside);
  if (c.queue) std::copy_n(c.queue, numbers_of_returns(c.queue), call.beside);
  if (c.beside_plan) {
    const int64_t arrays = take_layout(c.beside_plan, call.beside_plan);
    const bool there = !c.queue || record_of<Queue>(c.queue)->n > 1;
    for (int64_t k = 0; there && k < arrays; ++k) call.rows_beside[k] = reinterpret_cast<char*>(c.beside[k]);
  }
  if (c.returns) {  // behind the frames
    call.returns_at = c.frames ? numbers_of_frames(stacks_of(c)) : 0;
    std::copy_n(c.returns, numbers_of_returns(c.returns), call.beside + call.returns_at);
  }
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

// Launch what reads rows, of which a block has so many that its threads share their slots.
int launch_reading(Call& call, Kernel which, int64_t rows, int64_t lines) {
  call.tile = std::min<int64_t>(parts(rows, most_blocks), MOST_DRAWS);
  return launch(call, which, THREADS, parts(rows, call.tile), lines);
}
// Launch what has little to do for each row.
int launch_for_each(Call& call, Kernel which) {
  call.tile = std::max<int64_t>(parts(call.batch, most_blocks), LEAST_ROWS);
  return launch(call, which, THREADS, parts(call.batch, call.tile));
}

// How many blocks share so many bytes, of which each has as many as would be `rows` of an update; and those of an item.
int64_t lines_for(int64_t bytes, int64_t rows) { return std::max<int64_t>(1, std::min<int64_t>(parts(bytes, BYTES_A_ROW * rows), 64)); }
int64_t lines_of(const Plan& plan, int64_t rows) {
  int64_t widest = 0;
  for (int64_t k = 0; k < plan->leaves; ++k) widest = std::max<int64_t>(widest, plan.leaf(k).bytes);
  return lines_for(widest, rows);
}

// All that there was room for is saved, also what a mask leaves as it is; but nothing where nothing was launched.
int saved(const BufferCall& c, int outcome, int64_t rows, int64_t leaves = 0, int64_t moves = 0, int64_t beside = 0) {
  if (outcome == DONE && c.saved_count)
    c.saved_count[0] = rows, c.saved_count[1] = leaves, c.saved_count[2] = moves, c.saved_count[3] = beside;
  return outcome;
}

}  // namespace

int add(const BufferCall& c) {
  Call call = call_of(c);
  const Plan plan = plan_of(call);
  const int64_t places = std::min<int64_t>(c.batch, plan->capacity);
  call.tile = parts(places, most_blocks), call.scratch_size = places;
  if (c.mask) {
    if (!take_scratch(call, places + 1)) return NO_MEMORY;
    if (const int failed = launch(call, rank_kernel, THREADS_OF_ONE, 1)) return failed;
  }
  return saved(c, launch(call, add_kernel, THREADS, 1 + parts(places, call.tile), lines_of(plan, share)), places);
}

// Have memory for what the parts of an addition tell each other; false if there is none.
static bool take_numbers(Call& call) {
  const Ring ring = ring_of(call);
  const int64_t each = std::min<int64_t>(call.batch / ring->lanes, ring->length);
  if (ring->window_length) call.range_count = distances(ring, each, call.ranges);
  const Addition of(call);
  const int64_t numbers = (ring->chooses ? ChoiceRoom(of).end : of.end) - call.scratch;
  if (call.mask) call.ranked = std::max(parts(of.lanes, most_blocks), parts(share, of.steps));
  return !numbers || take_scratch(call, numbers);
}

// Write rows, and what is kept beside them, of which blocks may rank those that are marked.
static int write_to_rings(Call& call, Kernel kernel) {
  const Addition of(call);
  const int64_t large = share * THREADS_OF_ONE / THREADS;  // as these blocks are
  int64_t bytes = 0;
  for (int64_t k = 0; k < of.plan->leaves; ++k) bytes += of.plan.leaf(k).bytes;
  call.tile = std::max(parts(of.places, most_blocks), large / std::max<int64_t>(bytes, 1));
  const int64_t columns = 1 + parts(of.places, call.tile);
  return launch(call, kernel, THREADS_OF_ONE, columns, lines_of(of.plan, large));
}

// Name arrays, if an older version wants them, where as many that lie beside the rows are saved.
static void save_beside(const BufferCall& c, Call& call, int64_t arrays) {
  for (int64_t k = 0; c.saved_places && k < arrays; ++k) call.items[MOST + k] = reinterpret_cast<char*>(c.saved_beside[k]);
}

// Which of the leaves that are given are stored as they are, in their order: behind the stacks.
static const int32_t* stored_leaves(const BufferCall& c) {
  return c.frames + numbers_of_frames(stacks_of(c));
}

// Name so many leaves behind those of them that are stored as they are.
static void name_leaves(const BufferCall& c, Call& call, int64_t all) {
  for (int64_t k = 0; k < all; ++k) call.items[MOST + k] = reinterpret_cast<char*>(c.items[k]);
  for (int64_t k = 0; k < plan_of(call)->leaves; ++k) call.items[k] = call.others()[stored_leaves(c)[k]];
}

// How many blocks share the bytes of a frame.
static int64_t lines_of_frames(const Call& call) {
  const Plan layout{{reinterpret_cast<const BufferRecord*>(call.beside_plan)}};
  const StackRecord* stacks = reinterpret_cast<const StackRecord*>(call.beside + numbers_of_frames(0));
  int64_t widest = 0;
  for (int64_t k = 0; k < layout->leaves; ++k)
    widest = std::max<int64_t>(widest, int64_t(stacks[k].depth) * stacks[k].outer * stacks[k].bytes);
  return lines_for(widest, share);
}

// Add items that share frames: those of a batch are compared, then rows and what is kept beside them are written, then frames.
static int add_frames(const BufferCall& c) {
  Call call = call_of(c);
  call.lines = lines_of_frames(call);
  if (!take_numbers(call)) return NO_MEMORY;
  call.tile = std::min<int64_t>(parts(c.batch, most_blocks), MOST_DRAWS);
  const Addition of(call);
  const int64_t ranking = c.mask ? parts(of.lanes, call.ranked) : 0;
  if (const int failed = launch(call, compare_frames_kernel, THREADS, ranking + parts(c.batch, call.tile), call.lines))
    return failed;
  Call rows = call;
  rows.given = of.plan->leaves, rows.item_count = rows.given + call.saved_arrays();
  for (int64_t k = 0; k < rows.given; ++k) rows.items[k] = call.items[stored_leaves(c)[k]];
  std::copy_n(call.saved(), call.saved_arrays(), rows.items + rows.given);
  if (const int failed = write_to_rings(rows, add_with_frames_kernel)) return failed;
  save_beside(c, call, 1 + record_of<Plan>(c.beside_plan)->wide);
  const int outcome = launch_reading(call, store_frames_kernel, of.frame_places, call.lines);
  return saved(c, outcome, of.places, c.order ? 0 : of.entries + of.lost_entries, c.deck_room, of.frame_places);
}

// Add steps that wait for others: they are lined up, then those that are complete are written, then the others wait.
static int add_waiting(const BufferCall& c) {
  Call call = call_of(c);
  const Queue queue = record_of<Queue>(c.queue);
  const int64_t before = queue->lanes * (queue->n - 1);
  call.batch += before;
  const Addition of(call);
  const int64_t numbers = Queued(call, const_cast<int32_t*>(of.end)).end - call.scratch;
  if (!take_scratch(call, numbers)) return NO_MEMORY;
  call.ranked = std::max(parts(of.lanes, most_blocks), parts(share, of.steps));
  const int64_t columns = parts(of.lanes, call.ranked);
  if (const int failed = launch(call, line_up_kernel, THREADS_OF_ONE, columns)) return failed;
  if (const int failed = write_to_rings(call, add_waiting_kernel)) return failed;
  int outcome = DONE;
  if (before) {
    const Plan packed = record_of<Plan>(c.beside_plan);
    save_beside(c, call, 1 + packed->wide);
    outcome = launch(call, keep_waiting_kernel, THREADS, columns, lines_of(packed, share));
  }
  return saved(c, outcome, of.places, 0, c.deck_room, before);
}

int add_to_rings(const BufferCall& c) {
  if (c.queue) return add_waiting(c);
  if (c.frames) return add_frames(c);
  Call call = call_of(c);
  if (!take_numbers(call)) return NO_MEMORY;
  const Addition of(call);
  const bool ranks = of.ring->chooses == BEST;
  if (of.ring->chooses) {
    Call choice = call;
    save_beside(c, choice, ranks);
    if (const int failed = launch(choice, choose_kernel, THREADS_OF_ONE, 1)) return failed;
  } else if (c.mask) {
    if (const int failed = launch(call, rank_in_rings_kernel, THREADS_OF_ONE, parts(of.lanes, call.ranked))) return failed;
  }
  return saved(c, write_to_rings(call, add_to_rings_kernel), of.places, c.order ? 0 : of.entries, c.deck_room,
               ranks ? of.places * levels_of(of.plan->capacity) : 0);
}

static int update_by(const BufferCall& c, bool in_rings) {
  Call call = call_of(c);
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

static int sample(const BufferCall& c) {
  Call call = call_of(c);
  if (c.frames && c.given) {  // the leaves are all of them, in the order in which they are given
    name_leaves(c, call, c.given);
    return launch_reading(call, sample_frames_kernel, c.batch, std::max(lines_of(plan_of(call), share), lines_of_frames(call)));
  }
  return launch_reading(call, sample_kernel, c.batch, lines_of(plan_of(call), share));
}

// What is drawn of single items one block counts then, if there is a limit; without replacement by priority, and from an end, it
// also draws.
static int draw_limited(const BufferCall& c) {
  const Plan plan = record_of<Plan>(c.plan);
  const bool races = plan->draws == ARRIVALS, in_order = plan->draws == FROM_AN_END;
  const int64_t numbers = std::max<int64_t>(races ? RaceRoom(nullptr, c.batch + 1).end - static_cast<int32_t*>(nullptr) : 0,
                                            plan->limit ? cells_of_draws(c.batch) : 0);
  int32_t* const room = c.scratches.take(c.scratches.of, numbers + c.batch);
  if (!room) return NO_MEMORY;
  BufferCall whole = c;
  if (!c.slots) whole.slots = room + numbers;
  Call call = call_of(whole);
  call.scratch = room;
  const bool reads = std::any_of(c.items, c.items + c.given, [](int64_t leaf) { return leaf != 0; });  // else another launch does
  int outcome = races ? launch(call, arrive_kernel, THREADS_OF_ONE, 1) : in_order ? DONE : sample(whole);
  if (outcome == DONE && plan->limit) outcome = launch(call, spend_kernel, THREADS_OF_ONE, 1);
  if (outcome == DONE && (races || in_order) && reads) outcome = read_drawn(whole);
  return saved(c, outcome, plan->limit ? c.batch : 0);
}

static int draw_slices(const BufferCall& c) {
  Call call = call_of(c);
  return launch_reading(call, draw_slices_kernel, c.batch, lines_of(plan_of(call), share));
}

static int draw_epoch(const BufferCall& c) {
  Call call = call_of(c);
  call.scratch_size = 2;
  while (call.scratch_size < 2 * c.batch) call.scratch_size *= 2;
  if (!take_scratch(call, numbers_of_epoch(c.batch, call.scratch_size))) return NO_MEMORY;
  if (const int failed = launch(call, draw_epoch_kernel, THREADS_OF_ONE, 1)) return failed;
  return saved(c, launch_reading(call, read_epoch_kernel, c.batch, lines_of(plan_of(call), share)), 0, 0, c.deck_room);
}

// The oldest items, or windows, which are taken out, items from an end, or those of an epoch in order.
static int draw_in_turn(const BufferCall& c) {
  Call call = call_of(c);
  const Plan plan = plan_of(call);
  const Kernel kernel = plan->draws == IN_TURN ? draw_in_order_kernel : draw_in_turn_kernel;
  return launch_reading(call, kernel, c.batch * plan->length, lines_of(plan, share));
}

int draw(const BufferCall& c) {
  const Plan plan = record_of<Plan>(c.plan);
  switch (plan->draws) {
    case SLICES: return draw_slices(c);
    case EPOCH: case EPOCH_OF_SLICES: return draw_epoch(c);
    case ARRIVALS: case LIMITED: return draw_limited(c);
    case IN_TURN: case QUEUE: return draw_in_turn(c);
    case FROM_AN_END: return plan->limit ? draw_limited(c) : draw_in_turn(c);
    default: return sample(c);
  }
}

int read_drawn(const BufferCall& c) {
  Call call = call_of(c);
  const Plan plan = plan_of(call);
  int64_t lines = lines_of(plan, share);
  if (c.frames) {  // leaves that are given, and what there is behind them, go where the kernel reads them
    const int64_t all = c.given - (c.returns ? Returns{*record_of<Queue>(c.returns).at}.told_beside() : 0);
    name_leaves(c, call, all);
    for (int64_t k = all; k < c.given; ++k) call.items[plan->leaves + k - all] = reinterpret_cast<char*>(c.items[k]);
    lines = std::max(lines, lines_of_frames(call));
  }
  return launch_reading(call, read_drawn_kernel, c.batch, lines);
}

// A call on a hash map, whose record stands in place of a plan; behind it the layout of keys, if they come as leaves.
static Call call_of_map(const BufferCall& c) {
  Call call = bare_call(c);
  std::copy_n(c.plan, sizeof(MapRecord) / sizeof(int32_t), call.plan);
  if (c.stored) {
    take_layout(c.beside_plan, call.plan + LEAVES_AT);
    std::copy_n(c.stored, record_of<Plan>(c.beside_plan)->leaves, call.beside);
  }
  return call;
}

int map_lookup(const BufferCall& c) {
  Call call = call_of_map(c);
  return launch_for_each(call, find_keys_kernel);
}

// Keys are packed and looked for, then new ones get their places; where they are many or long, a third launch copies them.
int map_insert(const BufferCall& c) {
  Call call = call_of_map(c);
  if (!take_scratch(call, 4 * c.batch)) return NO_MEMORY;
  call.lines = c.batch * record_of<Map>(c.plan)->words > share * THREADS_OF_ONE / THREADS;
  if (const int failed = launch_for_each(call, find_keys_kernel)) return failed;
  const int outcome = launch(call, enter_keys_kernel, THREADS_OF_ONE, 1);
  return outcome || !call.lines ? outcome : launch_for_each(call, keep_keys_kernel);
}

int sample_mixture(const int32_t* record, const float* array, const BufferCall* calls) {
  const Mixture mixture = record_of<Mixture>(record);
  for (int64_t k = 0; k < mixture->buffers; ++k) {
    Call call = call_of(calls[k]);
    tell_mixture(mixture, k, array, calls, call);
    const Kernel kernel = ring_of(call)->window_length ? sample_mixed_slices_kernel : sample_mixture_kernel;
    if (const int failed = launch_reading(call, kernel, call.batch, lines_of(plan_of(call), share))) return failed;
  }
  return DONE;
}

int share_rows(Call& call) { return launch(call, share_rows_kernel, THREADS_OF_ONE, 1); }

int place_rows(Call& call) {
  const Places places = record_of<Places>(call.beside);
  int64_t widest = 0;
  for (int64_t k = 0; k < places->arrays; ++k) widest = std::max<int64_t>(widest, places.behind()[k]);
  return launch_reading(call, place_rows_kernel, call.batch, lines_for(widest, share));
}

int apart(const BufferCall& c) {
  Call call = bare_call(c);
  const Paths paths = record_of<Paths>(c.plan);
  std::copy_n(c.plan, paths.behind() - c.plan + int64_t(paths->buffers) * (paths->columns - 1), call.plan);
  return launch_for_each(call, apart_kernel);
}

int find_goals(const BufferCall& c) {
  Call call = bare_call(c);
  std::copy_n(c.ring, sizeof(RingRecord) / sizeof(int32_t), call.ring);
  std::copy_n(c.plan, sizeof(GoalsRecord) / sizeof(int32_t), call.beside);
  return launch_for_each(call, find_goals_kernel);
}

int pack_keys(const BufferCall& c) {
  Call call = call_of(c);
  std::copy_n(c.stored, plan_of(call)->leaves, call.beside);
  return launch_for_each(call, pack_keys_kernel);
}

const BufferKernels buffers{add, add_to_rings, update, update_priorities, draw, sample_mixture, nullptr};

const char* problem(int outcome) {
  const char* text = nullptr;
  if (driver.words) driver.words(-outcome, &text);
  return text ? text : "unknown";
}

Within::Within(int64_t device) {
  void *context = devices[size_t(device)].context, *before = context;
  if (driver.current) driver.current(&before);
  elsewhere_ = before != context;
  if (elsewhere_) driver.push(context);
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

// --- for Python -----------------------------------------------------------------------------------------------------

static void* pointer(PyObject* of, Py_ssize_t k) { return PyLong_AsVoidPtr(PyTuple_GetItem(of, k)); }

// gpu_driver((launch, current context, push, pop, words), most blocks, share): addresses of CUDA's functions, 0 for none.
static PyObject* take_driver(PyObject*, PyObject* args) {
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
static PyObject* take_device(PyObject*, PyObject* args) {
  long long number;
  PyObject *context, *kernels;
  if (!PyArg_ParseTuple(args, "LOO!", &number, &context, &PyTuple_Type, &kernels)) return nullptr;
  if (number < 0 || number >= MOST_DEVICES)
    return PyErr_Format(PyExc_ValueError, "expected a device below %lld, got %lld", MOST_DEVICES, number);
  devices[size_t(number)].context = PyLong_AsVoidPtr(context);
  for (Py_ssize_t k = 0; k < KERNELS && !PyErr_Occurred(); ++k) devices[size_t(number)].kernels[k] = pointer(kernels, k);
  return PyErr_Occurred() ? nullptr : Py_NewRef(Py_None);
}

static PyMethodDef methods[] = {{"gpu_driver", take_driver, METH_VARARGS, nullptr},
                         {"gpu_device", take_device, METH_VARARGS, nullptr}, {}};

bool add_launches(PyObject* module) {
#define FRB_NAME(name, threads) #name,
  const char* const names[] = {FRB_GPU_KERNELS(FRB_NAME)};
#undef FRB_NAME
  PyObject* kernel_names = PyTuple_New(KERNELS);
  for (int k = 0; kernel_names && k < KERNELS; ++k) PyTuple_SetItem(kernel_names, k, PyUnicode_FromString(names[k]));
  return PyModule_AddFunctions(module, methods) == 0 && put(module, "GPU_KERNELS", kernel_names);
}

}  // namespace gpu
FRB_END
