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
  std::vector<int64_t> storage, items;
  int64_t taken = 0;

  explicit Asked(const frb::Call& frame) : frame(frame) {
    call.plan = record(0);
    call.scratches = {take, this};
  }
  // The first attribute is the batch.
  const int32_t* record(int64_t k) const {
    return reinterpret_cast<const int32_t*>(frame.frame->attributes.at[1 + k]->data);
  }
  Plan plan() const { return Plan{{reinterpret_cast<const BufferRecord*>(call.plan)}}; }
  template <class T> const T* in(int64_t k) const { return frame.in<T>(k); }
  template <class T> T* out(int64_t k) const { return frame.out<T>(k); }

  template <class At> void set_storage(At at) {
    for (int64_t k = 0; k <= plan()->wide; ++k) storage.push_back(reinterpret_cast<int64_t>(at(k)));
    call.storage = storage.data(), call.arrays = int64_t(storage.size());
  }
  template <class At> void set_leaves(At at) {
    for (int64_t k = 0; k < plan()->leaves; ++k) items.push_back(reinterpret_cast<int64_t>(at(k)));
    call.items = items.data(), call.given = call.item_count = plan()->leaves;
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
  }
}

const Handler handlers[] = {{"add", reinterpret_cast<void*>(&handle_on_gpu<&add>)},
                            {"sample", reinterpret_cast<void*>(&handle_on_gpu<&draw<true>>)},
                            {"draw", reinterpret_cast<void*>(&handle_on_gpu<&draw<false>>)},
                            {"update_priorities", reinterpret_cast<void*>(&handle_on_gpu<&update_priorities>)},
                            {"rewrite", reinterpret_cast<void*>(&handle_on_gpu<&rewrite>)}, {}};

// gpu_scratch(handler, plan, batch, masked): how many numbers of int32 a call wants for its time.
PyObject* tell_scratch(PyObject*, PyObject* args) {
  const char* name;
  Py_buffer plan;
  long long batch, wanted = 0;
  int masked;
  if (!PyArg_ParseTuple(args, "sy*Lp", &name, &plan, &batch, &masked)) return nullptr;
  BufferCall call{};
  const uint8_t mask = 0;
  call.plan = static_cast<const int32_t*>(plan.buf), call.batch = batch, call.device = -1, call.mask = masked ? &mask : nullptr;
  call.scratches = {[](void* of, int64_t count) {
                      *static_cast<long long*>(of) += count;
                      return reinterpret_cast<int32_t*>(of);
                    }, &wanted};
  const std::string which = name;
  (which == "add" ? buffers.add : which == "sample" || which == "draw" ? buffers.sample : buffers.update)(call);
  PyBuffer_Release(&plan);
  return PyLong_FromLongLong(wanted);
}

PyMethodDef methods[] = {{"gpu_scratch", tell_scratch, METH_VARARGS, nullptr}, {}};

}  // namespace

bool add_xla_launches(PyObject* module) {
  return PyModule_AddFunctions(module, methods) == 0 && put(module, "GPU_HANDLERS", handlers_of(handlers)) &&
         put(module, "GPU_ROOM", Py_BuildValue("(iii)", MOST, PLAN, RINGS));
}

}  // namespace gpu
FRB_END
