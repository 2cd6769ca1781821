// The launches of `launches.h` as XLA calls them, on arrays that lie on a GPU.
//
// Operands and results are those of `functional_rb/native/kernels.py`, but for the records: they are attributes, which the
// host can read. Behind the results there is memory for the time of the call, int32, which all calls of a frame take turns
// with.
#include <string>
#include <vector>

#include "launches.h"
#include "xla_frame.h"

FRB_BEGIN
namespace gpu {
namespace {

// A call of XLA's, and of it what launches are told.
struct Asked {
  const frb::Call& frame;
  BufferCall call{};
  std::vector<int64_t> storage, items, beside;
  int64_t taken = 0;

  explicit Asked(const frb::Call& frame) : frame(frame) {
    call.plan = record(0);
    call.scratches = {take, this};
  }
  // The first attribute is the batch. Null for one that is not told.
  const int32_t* record(int64_t k) const {
    const xla::Attributes& told = frame.frame->attributes;
    return 1 + k < told.size ? reinterpret_cast<const int32_t*>(told.at[1 + k]->data) : nullptr;
  }
  Plan plan() const { return Plan{{reinterpret_cast<const BufferRecord*>(call.plan)}}; }
  template <class T> const T* in(int64_t k) const { return frame.in<T>(k); }
  template <class T> T* out(int64_t k) const { return frame.out<T>(k); }

  template <class At> void set_storage(At at) {
    for (int64_t k = 0; k < plan()->leaves; ++k) call.row_bytes += plan().leaf(k).bytes;
    set_arrays(at, 1 + plan()->wide);
  }
  template <class At> void set_arrays(At at, int64_t count) {
    for (int64_t k = 0; k < count; ++k) storage.push_back(reinterpret_cast<int64_t>(at(k)));
    call.storage = storage.data(), call.arrays = int64_t(storage.size());
  }
  template <class At> void set_leaves(At at, int64_t count = -1) {
    for (int64_t k = 0; k < (count < 0 ? plan()->leaves : count); ++k) items.push_back(reinterpret_cast<int64_t>(at(k)));
    call.items = items.data(), call.given = call.item_count = int64_t(items.size());
  }
  // Rows of another layout beside the items, if there are any; how many arrays they are.
  template <class At> int64_t set_frames(At at) {
    if (!record(3)[0]) return 0;
    call.frames = record(3), call.beside_plan = record(4);
    const int64_t arrays = 1 + Plan{{reinterpret_cast<const BufferRecord*>(call.beside_plan)}}->wide;
    for (int64_t k = 0; k < arrays; ++k) beside.push_back(reinterpret_cast<int64_t>(at(k)));
    call.beside = beside.data();
    return arrays;
  }

 private:
  static int32_t* take(void* of, int64_t count) {
    Asked& asked = *static_cast<Asked*>(of);
    const int64_t last = asked.frame.frame->results.size - 1, first = asked.taken;
    asked.taken += count;
    return asked.taken <= asked.frame.result(last).length() ? asked.out<int32_t>(last) + first : nullptr;
  }
};

// plan, batch; rows, *wide, tree, counters, mask, priorities, *leaves -> rows, *wide, tree, counters.
int add(Asked& asked) {
  BufferCall& call = asked.call;
  const int64_t wide = asked.plan()->wide;
  asked.set_storage([&](int64_t k) { return asked.out<char>(k); });
  asked.set_leaves([&](int64_t k) { return asked.in<char>(5 + wide + k); });
  call.batch = asked.record(1)[0];
  call.tree = asked.out<float>(1 + wide), call.new_counters = asked.out<int32_t>(2 + wide);
  call.counters = asked.in<int32_t>(2 + wide), call.mask = asked.in<uint8_t>(3 + wide);
  call.priorities = asked.in<int32_t>(4 + wide);
  return buffers.add(call);
}

// plan, rings, of a key also words; rows, *wide, tree, counters, key or draws, beta, wanted -> *leaves, handles, weights,
// probabilities; by a key of JAX's also counters.
template <bool OF_KEY> int draw(Asked& asked) {
  BufferCall& call = asked.call;
  const int64_t wide = asked.plan()->wide, last = asked.plan()->leaves;
  asked.set_storage([&](int64_t k) { return asked.in<char>(k); });
  asked.set_leaves([&](int64_t k) { return asked.out<char>(k); });
  call.batch = asked.frame.result(last).length(), call.ring = asked.record(1);
  call.tree = const_cast<float*>(asked.in<float>(1 + wide)), call.counters = asked.in<int32_t>(2 + wide);
  call.beta_at = asked.in<float>(4 + wide), call.wanted_at = asked.in<int32_t>(5 + wide);
  call.handles = asked.out<int32_t>(last), call.weights = asked.out<float>(last + 1);
  call.probabilities = asked.out<float>(last + 2);
  if (OF_KEY) {
    call.words = asked.record(2)[0], call.threefry_at = asked.in<uint32_t>(3 + wide);
    call.new_counters = asked.out<int32_t>(last + 3);
  } else {
    call.words = asked.frame.operand(3 + wide).length() / call.batch, call.draws = asked.in<int32_t>(3 + wide);
  }
  return buffers.sample(call);
}

// plan, rings; tree, kept, counters, handles, priorities, in_episode -> tree, kept, counters.
int update_priorities(Asked& asked) {
  BufferCall& call = asked.call;
  call.ring = asked.record(1), call.batch = asked.frame.operand(3).length();
  call.tree = asked.out<float>(0), call.kept = asked.out<float>(1), call.new_counters = asked.out<int32_t>(2);
  call.counters = asked.in<int32_t>(2), call.given_handles = asked.in<int32_t>(3);
  call.priorities = asked.in<int32_t>(4), call.in_episode = const_cast<int32_t*>(asked.in<int32_t>(5));
  return buffers.update_priorities(call);
}

// plan; tree, counters, handles, priorities, rows, *wide, *leaves (empty for those that stay) -> tree, counters, rows, *wide.
int rewrite(Asked& asked) {
  BufferCall& call = asked.call;
  const int64_t wide = asked.plan()->wide;
  asked.set_storage([&](int64_t k) { return asked.out<char>(2 + k); });
  asked.set_leaves([&](int64_t k) { return asked.in<char>(5 + wide + k); });
  call.batch = asked.frame.operand(2).length();
  call.tree = asked.out<float>(0), call.new_counters = asked.out<int32_t>(1);
  call.counters = asked.in<int32_t>(1), call.given_handles = asked.in<int32_t>(2), call.priorities = asked.in<int32_t>(3);
  return buffers.update(call);
}

// plan, rings, batch, of epochs also these; rows, *wide, tree, order, place, in_episode, kept, counters, mask, priorities,
// *leaves -> rows, *wide, tree, order, place, in_episode, kept, counters.
int added(Asked& asked, int64_t leaves, int64_t count) {
  BufferCall& call = asked.call;
  const int64_t beside = 1 + asked.plan()->wide;
  asked.set_storage([&](int64_t k) { return asked.out<char>(k); });
  asked.set_leaves([&](int64_t k) { return asked.in<char>(leaves + k); }, count);
  call.ring = asked.record(1), call.batch = asked.record(2)[0];
  call.tree = asked.out<float>(beside), call.kept = asked.out<float>(beside + 4);
  call.order = asked.out<int32_t>(beside + 1), call.place = asked.out<int32_t>(beside + 2);
  call.in_episode = asked.out<int32_t>(beside + 3);
  call.counters = asked.in<int32_t>(beside + 5), call.new_counters = asked.out<int32_t>(beside + 5);
  call.mask = asked.in<uint8_t>(beside + 6), call.priorities = asked.in<int32_t>(beside + 7);
  return buffers.add_to_rings(call);
}
int add_to_rings(Asked& asked) {
  asked.call.epoch = asked.record(3);
  return added(asked, 1 + asked.plan()->wide + 8, asked.plan()->leaves);
}

// plan, rings, words, of epochs also these; rows, *wide, tree, order, place, in_episode, kept, counters, key of JAX's,
// draws (one of the two is empty), beta, wanted -> *leaves, slots, handles, weights, probabilities, mask, is_first, is_last,
// truncated, order, place, counters. Leaves and slots may be empty, and what other samplers tell.
int draw_from_rings(Asked& asked) {
  BufferCall& call = asked.call;
  const int64_t beside = 1 + asked.plan()->wide, told = asked.plan()->leaves;
  asked.set_storage([&](int64_t k) { return asked.in<char>(k); });
  asked.set_leaves([&](int64_t k) { return asked.out<char>(k); });
  call.ring = asked.record(1), call.words = asked.record(2)[0], call.epoch = asked.record(3);
  call.batch = asked.frame.result(told + 2).length();
  call.tree = const_cast<float*>(asked.in<float>(beside)), call.kept = const_cast<float*>(asked.in<float>(beside + 4));
  call.in_episode = const_cast<int32_t*>(asked.in<int32_t>(beside + 3)), call.counters = asked.in<int32_t>(beside + 5);
  call.threefry_at = asked.in<uint32_t>(beside + 6), call.draws = asked.in<int32_t>(beside + 7);
  call.beta_at = asked.in<float>(beside + 8), call.wanted_at = asked.in<int32_t>(beside + 9);
  call.slots = asked.out<int32_t>(told), call.handles = asked.out<int32_t>(told + 1);
  call.weights = asked.out<float>(told + 2), call.probabilities = asked.out<float>(told + 3);
  call.drawn = asked.out<uint8_t>(told + 4), call.is_first = asked.out<uint8_t>(told + 5);
  call.is_last = asked.out<uint8_t>(told + 6), call.truncated = asked.out<uint8_t>(told + 7);
  call.order = asked.out<int32_t>(told + 8), call.place = asked.out<int32_t>(told + 9);
  call.new_counters = asked.out<int32_t>(told + 10);
  return call.epoch ? buffers.draw_epoch(call) : record_of<Ring>(call.ring)->window_length ? buffers.draw_slices(call) : buffers.sample(call);
}

// plan, rings, batch, frames, their layout, of epochs also these; as `add_to_rings`, but frame_at and *frames before the leaves,
// all of which are given, and behind the results.
int add_with_frames(Asked& asked) {
  BufferCall& call = asked.call;
  const int64_t beside = 1 + asked.plan()->wide;
  const int64_t leaves = beside + 9 + asked.set_frames([&](int64_t k) { return asked.out<char>(beside + 7 + k); });
  call.frame_at = asked.out<int32_t>(beside + 6), call.epoch = asked.record(5);
  return added(asked, leaves, asked.frame.frame->arguments.size - leaves);
}

// plan, rings, batch, queue, its layout, of epochs also these; rows, *wide, tree, order, place, counters, *queue, mask, *leaves
// -> rows, *wide, tree, order, place, counters, *queue.
int add_waiting(Asked& asked) {
  BufferCall& call = asked.call;
  const int64_t beside = 1 + asked.plan()->wide;
  asked.set_storage([&](int64_t k) { return asked.out<char>(k); });
  call.queue = asked.record(3), call.beside_plan = asked.record(4), call.epoch = asked.record(5);
  const Plan packed{{reinterpret_cast<const BufferRecord*>(call.beside_plan)}};
  const int64_t arrays = reinterpret_cast<const QueueRecord*>(call.queue)->n > 1 ? 1 + packed->wide : 0, after = beside + 4 + arrays;
  for (int64_t k = 0; k < arrays; ++k) asked.beside.push_back(reinterpret_cast<int64_t>(asked.out<char>(beside + 4 + k)));
  call.beside = asked.beside.data();
  asked.set_leaves([&](int64_t k) { return asked.in<char>(after + 1 + k); }, packed->leaves);
  call.ring = asked.record(1), call.batch = asked.record(2)[0], call.tree = asked.out<float>(beside);
  call.order = asked.out<int32_t>(beside + 1), call.place = asked.out<int32_t>(beside + 2);
  call.counters = asked.in<int32_t>(beside + 3), call.new_counters = asked.out<int32_t>(beside + 3);
  call.mask = asked.in<uint8_t>(after);
  return buffers.add_to_rings(call);
}

// plan, rings, words, frames, their layout; rows, *wide, tree, counters, key of JAX's, beta, frame_at, *frames -> handles,
// weights, probabilities, counters, *all leaves.
int sample_frames(Asked& asked) {
  BufferCall& call = asked.call;
  const int64_t wide = asked.plan()->wide;
  asked.set_storage([&](int64_t k) { return asked.in<char>(k); });
  asked.set_frames([&](int64_t k) { return asked.in<char>(6 + wide + k); });
  asked.set_leaves([&](int64_t k) { return asked.out<char>(4 + k); }, asked.frame.frame->results.size - 5);
  call.batch = asked.frame.result(0).length(), call.ring = asked.record(1), call.words = asked.record(2)[0];
  call.tree = const_cast<float*>(asked.in<float>(1 + wide)), call.counters = asked.in<int32_t>(2 + wide);
  call.threefry_at = asked.in<uint32_t>(3 + wide), call.beta_at = asked.in<float>(4 + wide);
  call.frame_at = const_cast<int32_t*>(asked.in<int32_t>(5 + wide));
  call.handles = asked.out<int32_t>(0), call.weights = asked.out<float>(1), call.probabilities = asked.out<float>(2);
  call.new_counters = asked.out<int32_t>(3);
  return buffers.sample(call);
}

// plan, rings, returns, frames, their layout (of 0 where there are none); rows, *wide, counters, in_episode, slots, frame_at,
// *frames -> *all leaves, and what is told of returns.
int read(Asked& asked) {
  BufferCall& call = asked.call;
  const int64_t beside = 1 + asked.plan()->wide;
  asked.set_storage([&](int64_t k) { return asked.in<char>(k); });
  if (asked.record(2)[0]) call.returns = asked.record(2);
  asked.set_frames([&](int64_t k) { return asked.in<char>(beside + 4 + k); });
  asked.set_leaves([&](int64_t k) { return asked.out<char>(k); }, asked.frame.frame->results.size - 1);
  call.batch = asked.frame.operand(beside + 2).length(), call.ring = asked.record(1);
  call.counters = asked.in<int32_t>(beside), call.in_episode = const_cast<int32_t*>(asked.in<int32_t>(beside + 1));
  call.slots = const_cast<int32_t*>(asked.in<int32_t>(beside + 2));
  call.frame_at = const_cast<int32_t*>(asked.in<int32_t>(beside + 3));
  return read_drawn(call);
}

constexpr int64_t OF_A_MAP = 4;  // arrays

// map; table, keys, counts, counters, rows -> ids.
int map_lookup(Asked& asked) {
  asked.set_arrays([&](int64_t k) { return asked.in<char>(k); }, OF_A_MAP);
  asked.set_leaves([&](int64_t k) { return k ? asked.out<char>(0) : asked.in<char>(OF_A_MAP); }, 2);
  asked.call.batch = asked.frame.operand(OF_A_MAP).rows();
  return look_up(asked.call);
}

// map; table, keys, counts, counters, rows, mask -> table, keys, counts, counters, ids, which are new.
int map_insert(Asked& asked) {
  asked.set_arrays([&](int64_t k) { return asked.out<char>(k); }, OF_A_MAP);
  asked.set_leaves([&](int64_t k) { return k ? asked.out<char>(OF_A_MAP + k - 1) : asked.in<char>(OF_A_MAP); }, 3);
  asked.call.batch = asked.frame.operand(OF_A_MAP).rows(), asked.call.mask = asked.in<uint8_t>(OF_A_MAP + 1);
  return insert(asked.call);
}

// A mixture, and of each buffer how many words its plan, the rings and a draw have, and the first two; key of JAX's, shares
// (empty where they stand in the record), beta (empty for no weights), of each buffer rows, *wide, tree, in_episode, kept,
// counters -> *leaves, handles of two columns, weights, probabilities, mask, is_first, is_last, truncated (empty but of slices), of
// each buffer counters.
int sample_mixed(Asked& asked) {
  MixtureRecord mixture;
  memcpy(&mixture, asked.record(0), sizeof mixture);
  const int32_t* told = asked.record(0) + sizeof mixture / sizeof(int32_t);
  const float* const shares = reinterpret_cast<const float*>(told);
  told += mixture.buffers;
  const int32_t* const sizes = told;
  told += 3 * mixture.buffers;
  const int64_t leaves = record_of<Plan>(told)->leaves, batch = asked.frame.result(leaves + 1).length();
  asked.set_leaves([&](int64_t k) { return asked.out<char>(k); }, leaves);
  std::vector<std::vector<int64_t>> storage;
  std::vector<BufferCall> calls;
  for (int64_t k = 0, at = 3; k < mixture.buffers; ++k) {
    BufferCall& call = calls.emplace_back(asked.call);
    call.plan = told, call.ring = told + sizes[3 * k], call.words = sizes[3 * k + 2], call.batch = batch;
    told = call.ring + sizes[3 * k + 1];
    std::vector<int64_t>& arrays = storage.emplace_back();
    for (int64_t j = 0; j <= record_of<Plan>(call.plan)->wide; ++j)
      arrays.push_back(reinterpret_cast<int64_t>(asked.in<char>(at++)));
    call.storage = arrays.data(), call.arrays = int64_t(arrays.size());
    call.tree = const_cast<float*>(asked.in<float>(at++)), call.in_episode = const_cast<int32_t*>(asked.in<int32_t>(at++));
    call.kept = const_cast<float*>(asked.in<float>(at++)), call.counters = asked.in<int32_t>(at++);
    call.threefry_at = asked.in<uint32_t>(0), call.beta_at = asked.in<float>(2);
    call.handles = asked.out<int32_t>(leaves), call.weights = asked.out<float>(leaves + 1);
    call.probabilities = asked.out<float>(leaves + 2), call.drawn = asked.out<uint8_t>(leaves + 3);
    call.is_first = asked.out<uint8_t>(leaves + 4), call.is_last = asked.out<uint8_t>(leaves + 5);
    call.truncated = asked.out<uint8_t>(leaves + 6), call.new_counters = asked.out<int32_t>(leaves + 7 + k);
  }
  return sample_mixture(mixture, shares, asked.in<float>(1), calls.data());
}

// The layout of rows, how each leaf is stored; *leaves -> rows.
int keys_packed(Asked& asked) {
  const int64_t leaves = asked.plan()->leaves;
  asked.set_leaves([&](int64_t k) { return k < leaves ? asked.in<char>(k) : asked.out<char>(0); }, leaves + 1);
  asked.call.batch = asked.frame.result(0).rows();
  return pack_keys(asked.call, asked.record(1));
}

// paths; handles int32 [B, columns] -> of each buffer int32 [B].
int handles_apart(Asked& asked) {
  const int64_t buffers = record_of<Paths>(asked.call.plan)->buffers;
  asked.set_leaves([&](int64_t k) { return k ? asked.out<char>(k - 1) : asked.in<char>(0); }, 1 + buffers);
  asked.call.batch = asked.frame.operand(0).rows();
  return apart(asked.call);
}

template <int (*F)(Asked&)> void* handle_on_gpu(xla::Frame* frame) {
  if (is_asked(frame, xla::COMMAND_BUFFERS)) return nullptr;
  xla::Stream stream{sizeof(xla::Stream), nullptr, frame->context, nullptr};
  if (has_streams())
    if (void* none = frame->api->find_stream(&stream)) return none;
  const int64_t device = device_here(), calls = xla::Batch{frame->attributes.at[0]->data}.calls();
  if (device < 0) return failed(frame, "functional_rb: no kernels were loaded for this device", xla::INTERNAL);
  try {
    for (int64_t number = 0; number < calls; ++number) {
      const frb::Call one{frame, number};
      Asked asked(one);
      asked.call.stream = stream.stream, asked.call.device = device;
      const int outcome = F(asked);
      if (outcome == NO_MEMORY) throw std::bad_alloc();
      if (outcome < 0) {
        const std::string message = std::string("functional_rb: CUDA refused a launch: ") + problem(outcome);
        return failed(frame, message.c_str(), xla::INTERNAL);
      }
    }
    return nullptr;
  } catch (const std::bad_alloc&) {
    return failed(frame, "functional_rb: no memory for a launch", xla::RESOURCE_EXHAUSTED);
  } catch (const Misread&) {
    return misread(frame);
  }
}

const Handler handlers[] = {{"add", reinterpret_cast<void*>(&handle_on_gpu<&add>)},
                            {"sample", reinterpret_cast<void*>(&handle_on_gpu<&draw<true>>)},
                            {"draw", reinterpret_cast<void*>(&handle_on_gpu<&draw<false>>)},
                            {"update_priorities", reinterpret_cast<void*>(&handle_on_gpu<&update_priorities>)},
                            {"rewrite", reinterpret_cast<void*>(&handle_on_gpu<&rewrite>)},
                            {"add_to_rings", reinterpret_cast<void*>(&handle_on_gpu<&add_to_rings>)},
                            {"add_with_frames", reinterpret_cast<void*>(&handle_on_gpu<&add_with_frames>)},
                            {"add_waiting", reinterpret_cast<void*>(&handle_on_gpu<&add_waiting>)},
                            {"sample_frames", reinterpret_cast<void*>(&handle_on_gpu<&sample_frames>)},
                            {"draw_items", reinterpret_cast<void*>(&handle_on_gpu<&draw_from_rings>)},
                            {"read_drawn", reinterpret_cast<void*>(&handle_on_gpu<&read>)},
                            {"draw_slices", reinterpret_cast<void*>(&handle_on_gpu<&draw_from_rings>)},
                            {"draw_epoch", reinterpret_cast<void*>(&handle_on_gpu<&draw_from_rings>)},
                            {"map_lookup", reinterpret_cast<void*>(&handle_on_gpu<&map_lookup>)},
                            {"map_insert", reinterpret_cast<void*>(&handle_on_gpu<&map_insert>)},
                            {"sample_mixture", reinterpret_cast<void*>(&handle_on_gpu<&sample_mixed>)},
                            {"apart", reinterpret_cast<void*>(&handle_on_gpu<&handles_apart>)},
                            {"pack_keys", reinterpret_cast<void*>(&handle_on_gpu<&keys_packed>)}, {}};

// What a handler launches.
int (*launch_of(const std::string& name))(const BufferCall&) {
  return name == "map_lookup" ? look_up : name == "map_insert" ? insert
         : name == "add" ? buffers.add : name.rfind("add_", 0) == 0 ? buffers.add_to_rings
         : name == "update_priorities" ? buffers.update_priorities : name == "rewrite" ? buffers.update
         : name == "draw_epoch" ? buffers.draw_epoch : name == "draw_slices" ? buffers.draw_slices : buffers.sample;
}

// The records of a call as Python has them, held meanwhile; null for what is a number.
class Records {
 public:
  ~Records() {
    for (Py_buffer& view : views_)
      if (view.obj) PyBuffer_Release(&view);
  }
  bool take(PyObject* records) {
    for (Py_ssize_t k = 0; k < least<Py_ssize_t>(PyTuple_Size(records), MOST_RECORDS); ++k) {
      PyObject* record = PyTuple_GetItem(records, k);
      if (!PyLong_Check(record) && PyObject_GetBuffer(record, &views_[k], PyBUF_SIMPLE)) return false;
    }
    return true;
  }
  const int32_t* operator[](int64_t k) const { return static_cast<const int32_t*>(views_[k].buf); }

 private:
  static constexpr Py_ssize_t MOST_RECORDS = 6;
  Py_buffer views_[MOST_RECORDS] = {};
};

// gpu_scratch(handler, records, batch, masked): how many numbers of int32 a call wants for its time.
PyObject* tell_scratch(PyObject*, PyObject* args) {
  const char* name;
  PyObject* given;
  long long batch, wanted = 0;
  int masked;
  Records records;
  if (!PyArg_ParseTuple(args, "sO!Lp", &name, &PyTuple_Type, &given, &batch, &masked) || !records.take(given)) return nullptr;
  const std::string which = name;
  if (which == "read_drawn" || which == "sample_mixture" || which == "apart" || which == "pack_keys") return PyLong_FromLong(0);
  BufferCall call{};
  const uint8_t mask = 0;
  int32_t any = 0;
  call.plan = records[0], call.batch = batch, call.device = -1, call.mask = masked ? &mask : nullptr;
  if (which == "add_to_rings" || which == "draw_epoch") call.ring = records[1], call.epoch = records[3];
  if (which == "add_with_frames") call.ring = records[1], call.frames = records[3], call.beside_plan = records[4], call.epoch = records[5];
  if (which == "add_waiting") call.ring = records[1], call.queue = records[3], call.beside_plan = records[4], call.epoch = records[5];
  const int64_t nowhere[MOST_BESIDE] = {};
  call.beside = nowhere;
  if (call.epoch) call.order = &any;
  call.scratches = {[](void* of, int64_t count) {
                      *static_cast<long long*>(of) += count;
                      return reinterpret_cast<int32_t*>(of);
                    }, &wanted};
  launch_of(which)(call);
  return PyLong_FromLongLong(wanted);
}

PyMethodDef methods[] = {{"gpu_scratch", tell_scratch, METH_VARARGS, nullptr}, {}};

}  // namespace

bool add_xla_launches(PyObject* module) {
  return PyModule_AddFunctions(module, methods) == 0 && put(module, "GPU_HANDLERS", handlers_of(handlers)) &&
         put(module, "GPU_MIXED", PyLong_FromLong(MOST_MIXED)) &&
         put(module, "GPU_ROOM", Py_BuildValue("(iiiiii)", MOST, PLAN, RINGS, RECORD_BESIDE, PLAN_BESIDE, MOST_BESIDE));
}

}  // namespace gpu
FRB_END
