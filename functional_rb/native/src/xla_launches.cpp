// The launches of `launches.h` as XLA calls them, on arrays that lie on a GPU.
//
// Behind the results of `functional_rb/native/kernels.py` there is memory for the time of the call, int32, which all calls of
// a frame take turns with.
#include <algorithm>
#include <string>
#include <vector>

#include "buffer_frame.h"
#include "launches.h"

FRB_BEGIN
namespace gpu {
namespace {

// Gives memory of a call's last result, one piece behind the other.
class Room {
 public:
  explicit Room(const frb::Call& call) : last_(call.result(call.frame->results.size - 1)) {}
  Scratches scratches() {
    return {[](void* of, int64_t count) {
              Room& room = *static_cast<Room*>(of);
              int32_t* at = reinterpret_cast<int32_t*>(room.last_.data) + room.taken_;
              room.taken_ += count;
              return room.taken_ <= room.last_.length() ? at : nullptr;
            }, this};
  }

 private:
  const Operand last_;
  int64_t taken_ = 0;
};

int carried_out(int (*launch)(const BufferCall&), const frb::Call& call, void* stream, int64_t device) {
  Told launching(call);
  Room room(call);
  launching.scratches = room.scratches(), launching.stream = stream, launching.device = device;
  return launch(launching);
}

int sample_mixed(const frb::Call& call, void* stream, int64_t device) {
  ToldMixture told(call);
  for (BufferCall& one : told.calls) one.stream = stream, one.device = device;
  return sample_mixture(told.record, told.shares, told.calls.data());
}
// A mixture with its shares, and the size of the batch with two words of a key. Operands are how many rows count, an array of
// shares, a key in place of the words, and three for each buffer, see `OfBuffer`; results as `Sharing` has them.
int share_by_call(const frb::Call& call, void* stream, int64_t device) {
  gpu::Call one{};
  one.stream = stream, one.device = device;
  const Span<const int32_t> mixture = call.record_words<int32_t>(0), numbers = call.record_words<int32_t>(1);
  if (mixture.size > RECORD_BESIDE || call.operands() > 3 + 3 * MOST_MIXED) throw Misread();
  std::copy_n(mixture.at, mixture.size, one.beside);
  one.batch = numbers.at[0], one.key = int64_t(uint64_t(uint32_t(numbers.at[1])) << 32 | uint32_t(numbers.at[2]));
  one.wanted_at = call.in<int32_t>(0), one.key_at = call.in<int64_t>(2);
  for (int64_t k = 3; k < call.operands(); ++k) one.items[MOST + k - 3] = const_cast<char*>(call.in<char>(k));
  one.items[MOST + call.operands() - 3] = reinterpret_cast<char*>(const_cast<float*>(call.in<float>(1)));
  for (int64_t k = STATUS_OUT; k <= COUNTS_OUT; ++k) one.items[k] = call.out<char>(k);
  return share_rows(one);
}

// Places, and the size of the batch with the bits of beta. Operands are those that `Placing` has first, an array of beta, and
// arrays that are taken as they are; results are the others of `Placing`, and where these arrays go.
int place_by_call(const frb::Call& call, void* stream, int64_t device) {
  gpu::Call one{};
  one.stream = stream, one.device = device;
  const Span<const int32_t> places = call.record_words<int32_t>(0), numbers = call.record_words<int32_t>(1);
  const int64_t arrays = record_of<Places>(places.at)->arrays;
  if (places.size > RECORD_BESIDE || arrays > MOST || call.operands() != ALL_HANDLES + 1 + arrays) throw Misread();
  std::copy_n(places.at, places.size, one.beside);
  one.batch = numbers.at[0], one.beta = float_of(numbers.at[1]), one.beta_at = call.in<float>(ALL_HANDLES);
  for (int64_t k = 0; k < ALL_HANDLES; ++k) one.storage[k] = const_cast<char*>(call.in<char>(k));
  for (int64_t k = ALL_HANDLES; k <= ALL_WEIGHTS; ++k) one.storage[k] = call.out<char>(k - ALL_HANDLES);
  for (int64_t k = 0; k < arrays; ++k) {
    one.items[k] = const_cast<char*>(call.in<char>(ALL_HANDLES + 1 + k));
    one.items[MOST + k] = call.out<char>(ALL_WEIGHTS - ALL_HANDLES + 1 + k);
  }
  return place_rows(one);
}
int carried_out(int (*launch)(const frb::Call&, void*, int64_t), const frb::Call& call, void* stream, int64_t device) {
  return launch(call, stream, device);
}

template <auto F> void* handle_on_gpu(xla::Frame* frame) {
  if (is_asked(frame, xla::COMMAND_BUFFERS)) return nullptr;
  if (!is_sealed(frame)) return unsealed(frame);
  xla::Stream stream{sizeof(xla::Stream), nullptr, frame->context, nullptr};
  if (has_streams())
    if (void* none = frame->api->find_stream(&stream)) return none;
  const int64_t device = device_here(), calls = xla::Batch{frame->attributes.at[0]->data}.calls();
  if (device < 0) return failed(frame, "functional_rb: no kernels were loaded for this device", xla::INTERNAL);
  try {
    for (int64_t number = 0; number < calls; ++number) {
      const int outcome = carried_out(F, frb::Call{frame, number}, stream.stream, device);
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

#define FRB_LAUNCHES(X)                                                                                              \
  X(add) X(add_to_rings) X(update) X(update_priorities) X(draw) X(read_drawn) X(map_lookup) X(map_insert)            \
  X(apart) X(pack_keys) X(find_goals)
#define FRB_HANDLED(name) {#name, reinterpret_cast<void*>(&handle_on_gpu<static_cast<int (*)(const BufferCall&)>(&name)>)},
const Handler handlers[] = {FRB_LAUNCHES(FRB_HANDLED) {"sample_mixture", reinterpret_cast<void*>(&handle_on_gpu<&sample_mixed>)},
                            {"share_rows", reinterpret_cast<void*>(&handle_on_gpu<&share_by_call>)},
                            {"place_rows", reinterpret_cast<void*>(&handle_on_gpu<&place_by_call>)}, {}};

// What a handler launches.
int (*launch_of(const std::string& handler))(const BufferCall&) {
#define FRB_LAUNCHED(name) if (handler == #name) return name;
  FRB_LAUNCHES(FRB_LAUNCHED)
  return nullptr;
}

// gpu_scratch(handler, records): how many numbers of int32 a call wants for its time, as its form and other records tell.
PyObject* tell_scratch(PyObject*, PyObject* args) {
  const char* name;
  PyObject* records;
  if (!PyArg_ParseTuple(args, "sO!", &name, &PyTuple_Type, &records)) return nullptr;
  const auto launch = launch_of(name);
  long long wanted = 0;
  if (!launch) return PyLong_FromLongLong(wanted);
  std::vector<Py_buffer> views(size_t(PyTuple_Size(records)));
  bool taken = true;
  for (size_t k = 0; k < views.size() && taken; ++k)
    taken = PyObject_GetBuffer(PyTuple_GetItem(records, Py_ssize_t(k)), &views[k], PyBUF_SIMPLE) == 0;
  if (taken) {
    char any;
    const Span<const int32_t> form{static_cast<const int32_t*>(views[0].buf), int64_t(views[0].len) / 4};
    Told launching(form, int64_t(views.size()) - 1, [&](int64_t k) { return static_cast<const int32_t*>(views[size_t(k) + 1].buf); },
              [&](int64_t, size_t) { return &any; });
    launching.device = -1;
    launching.scratches = {[](void* of, int64_t count) {
                        *static_cast<long long*>(of) += count;
                        return reinterpret_cast<int32_t*>(of);
                      }, &wanted};
    launch(launching);
  }
  for (Py_buffer& view : views)
    if (view.obj) PyBuffer_Release(&view);
  return taken ? PyLong_FromLongLong(wanted) : nullptr;
}

// The names of the fields that forms name by their numbers.
PyObject* fields_of_calls() {
  PyObject* names = PyTuple_New(std::size(CALL_FIELDS));
  for (size_t k = 0; names && k < std::size(CALL_FIELDS); ++k)
    PyTuple_SetItem(names, Py_ssize_t(k), PyUnicode_FromString(CALL_FIELDS[k].name));
  return names;
}

PyMethodDef methods[] = {{"gpu_scratch", tell_scratch, METH_VARARGS, nullptr}, {}};

}  // namespace

bool add_xla_launches(PyObject* module) {
  return PyModule_AddFunctions(module, methods) == 0 && put(module, "GPU_HANDLERS", handlers_of(handlers)) &&
         put(module, "CALL_FIELDS", fields_of_calls()) &&
         put(module, "GPU_MIXED", PyLong_FromLong(MOST_MIXED)) &&
         put(module, "GPU_LANES_OF_GOALS", PyLong_FromLong(MOST_LANES_OF_GOALS)) &&
         put(module, "GPU_ROOM", Py_BuildValue("(iiiiii)", MOST, PLAN, RINGS, RECORD_BESIDE, PLAN_BESIDE, MOST_BESIDE));
}

}  // namespace gpu
FRB_END
