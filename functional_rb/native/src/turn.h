// A call on a state: the chain of its library, the lineage's lock, and what values are made of.
#pragma once
#include <algorithm>

#include "batch.h"

namespace frb {

// What a chain is given by its library, in this order.
enum Given {
  STATE, SHARED_STATE, VERSION, SAVED, SAMPLE, MASKED_SAMPLE, SLICE_SAMPLE, TENSOR, NDARRAY, LOOK, FROM_CAPSULE, IS_NEG, IS_CONJ, READY,
  NUMPY_INT32, NUMPY_FLOAT32, NUMPY_BOOL, PROTOTYPE, LIKE, LIKE_OF_STATE, IS_INFERENCE, STREAM, CROSS, PLACE_OF, KNOWN_OF, OWN, COPY,
  MAKE_ROOM, PART, APART, TOGETHER, GIVEN
};

struct VersionChain {
  PyObject_HEAD
  PyObject* given[GIVEN];
  ArrayLibrary arrays;
  bool on, is_numpy;  // whether kernels do the work, and whether the library is NumPy

  PyTypeObject* type(Given which) const { return reinterpret_cast<PyTypeObject*>(given[which]); }
};

// Bytes from which on other threads may go on while a batch is written; while one is drawn, from fewer on, as several may
// be at the same time, and each way down a tree counts as some.
constexpr int64_t LARGE = 65536, LARGE_DRAW = 16384, DOWN_THE_TREE = 128;
constexpr int64_t LEAST = 16384;  // as `versions.memory.LEAST`

inline BufferKernels kernels;

// Do some work, without the GIL if it takes long.
template <class Work> auto apart_if(bool takes_long, Work work) {
  if (!takes_long) return work();
  decltype(work()) outcome;
  Py_BEGIN_ALLOW_THREADS outcome = work(); Py_END_ALLOW_THREADS
  return outcome;
}
// What a kernel for GPUs came to, as an error of Python's; none if it was launched.
inline int told(int outcome) {
  if (outcome < 0) PyErr_Format(PyExc_RuntimeError, "functional_rb: CUDA refused a launch: %s (%d)", gpu::problem(outcome), -outcome);
  return outcome;
}
inline int run(int (*kernel)(const BufferCall&), const BufferCall& call, bool takes_long) {
  return apart_if(takes_long, [&] { return kernel(call); });
}
// Whether it takes long to copy so many rows, or to draw them.
inline bool is_large(const BufferCall& call, int64_t rows) { return rows * call.row_bytes > LARGE; }
inline bool is_large_draw(const BufferCall& call, int64_t rows) {
  return rows * call.row_bytes + (call.tree ? call.batch * DOWN_THE_TREE : 0) > LARGE_DRAW;
}

// One call on a state, which holds the lock of its lineage.
class Turn {
 public:
  Turn(VersionChain* chain, PyObject* state) : chain_(chain), state_(state) {}
  ~Turn() { unlock(); }

  Found begin() {
    if (!chain_->on || Py_TYPE(state_) != chain_->type(STATE)) return Found::ELSEWHERE;
    version = attribute(state_, names._version);
    if (!version) return Found::FAILED;
    if (version.is(Py_None)) return Found::ELSEWHERE;
    Ref lock = attribute(version.get(), names.lock);
    if (!lock || !called_method(lock.get(), names.acquire)) return Found::FAILED;
    lock_ = std::move(lock);
    const Ref now = attribute(state_, names._version);  // another thread may have consumed the state
    spec = attribute(state_, names.spec);
    memory = attribute(version.get(), names.memory);
    if (!now || !spec || !memory) return Found::FAILED;
    if (!now.is(version.get())) return Found::ELSEWHERE;
    if (memory.is(Py_None)) memory = called(chain_->given[OWN], version.get());
    return memory ? find_place() : Found::FAILED;
  }

  // The place of the memory that is written to: its own, or a copy's where somebody else may hold its arrays.
  Found find_target() {
    if (!pinned) return quiet(place()) ? Found::READY : Found::FAILED;
    memory = called(chain_->given[COPY], memory.get());
    return memory ? find_place() : Found::FAILED;
  }

  // Whether the memory is still the state's, and nobody else's: what Python has done since may have come back here.
  bool unchanged() const {
    const Ref named = attribute(state_, names._version), now = attribute(version.get(), names.memory),
              held = attribute(memory.get(), names.pinned);
    return named.is(version.get()) && now.is(memory.get()) && held.is(Py_False);
  }

  void unlock() {
    if (!lock_) return;
    const KeptError kept;
    if (!called_method(lock_.get(), names.release)) PyErr_WriteUnraisable(lock_.get());
    lock_ = Ref();
  }

  VersionChain* chain() const { return chain_; }
  PyObject* state() const { return state_; }
  PyObject* lock() const { return lock_.get(); }
  Place* place() const { return reinterpret_cast<Place*>(place_.get()); }
  const KnownBuffer* known() const { return reinterpret_cast<const KnownBuffer*>(known_.get()); }

  // Those of the host, or of the GPU that the arrays lie on.
  const BufferKernels& kernels() const { return on_gpu() ? gpu::buffers : frb::kernels; }
  bool on_gpu() const { return place()->where.on_gpu; }

  // An array on the GPU, and where it begins; null if there is none, with an error or, where one of torch's modes makes
  // others, without. Of a state's no mode may know, as states outlive it.
  Ref array(int maker, int ndim, const int64_t* shape, char** at, bool of_state = false) const {
    PyObject* like = prototype(maker, ndim, shape);
    const Ref in_mode(of_state ? called(chain_->given[IS_INFERENCE]) : Ref::to(Py_False));
    if (!like || !in_mode) return Ref();
    Ref array = called(chain_->given[in_mode.is(Py_True) ? LIKE_OF_STATE : LIKE], like);
    Seen seen;
    if (!array || !chain_->arrays.see(array.get(), seen, place()->where) || !seen.contiguous()) return Ref();
    *at = seen.data;
    return array;
  }

  // Have the GPU's stream that torch uses now wait for the one that worked on the arrays, or read them by torch's operations,
  // before; false with an error.
  bool find_stream() {
    if (place()->where.device.type == dlpack::CPU) return true;  // which emulates a GPU
    const Ref number(PyLong_FromLong(place()->where.device.id));
    const Ref stream = number ? called(chain_->given[STREAM], number.get()) : Ref();
    if (!stream) return false;
    stream_ = PyLong_AsVoidPtr(stream.get());
    const Ref before = attribute(memory.get(), names.stream), counters = attribute(state_, names._counters);
    if (!before || !counters) return false;
    if (before.is(Py_None) || PyLong_AsVoidPtr(before.get()) != stream_)
      if (!called(chain_->given[CROSS], memory.get(), counters.get(), stream.get())) return false;
    return !PyErr_Occurred();
  }
  void* stream() const { return stream_; }

  // Memory for kernels, as long as this lives.
  Scratches scratches() { return {take_scratch, this}; }

  Ref version, spec, memory;
  bool pinned = false;

 private:
  // One of the place's; null with an error.
  PyObject* prototype(int maker, int ndim, const int64_t* shape) const {
    std::vector<Prototype>& known = place()->prototypes;
    for (const Prototype& each : known)
      if (each.maker == maker && each.shape.size() == size_t(ndim) && std::equal(shape, shape + ndim, each.shape.begin()))
        return each.array.get();
    const Ref sizes(PyTuple_New(ndim));
    for (int k = 0; sizes && k < ndim; ++k)
      if (PyTuple_SetItem(sizes.get(), k, PyLong_FromLongLong(shape[k]))) return nullptr;
    Ref prototype = sizes ? called(chain_->given[PROTOTYPE], PyTuple_GetItem(place()->makers, maker), sizes.get()) : Ref();
    if (!prototype) return nullptr;
    if (known.size() >= MOST_PROTOTYPES) known.clear();
    known.push_back({maker, {shape, shape + ndim}, std::move(prototype)});
    return known.back().array.get();
  }
  static int32_t* take_scratch(void* of, int64_t count) {
    char* at = nullptr;
    auto& taken = static_cast<Turn*>(of)->scratch_;
    taken.push_back(static_cast<Turn*>(of)->array(INT32S, 1, &count, &at));
    return reinterpret_cast<int32_t*>(at);
  }

  Found find_place() {
    const Ref held = attribute(memory.get(), names.pinned), files = attribute(memory.get(), names.files);
    if (!held || !files) return Found::FAILED;
    // Those of another process may not be used here.
    if (!files.is(Py_None) && !called_method(files.get(), names.check_process)) return Found::FAILED;
    pinned = held.is(Py_True);
    if (!pinned) place_ = attribute(memory.get(), names.place);
    // Of arrays that others hold the addresses may change: torch moves those that it shares between processes.
    if (pinned || place_.is(Py_None) || place()->generation != generation)
      place_ = called(chain_->given[PLACE_OF], spec.get(), memory.get());
    if (!place_) return Found::FAILED;
    if (place_.is(Py_None)) return Found::ELSEWHERE;
    if (place()->known->spec != spec.get()) {
      const Ref known = called(chain_->given[KNOWN_OF], spec.get());
      if (!known) return Found::FAILED;
      if (known.is(Py_None)) return Found::ELSEWHERE;
      place()->use(reinterpret_cast<KnownBuffer*>(known.get()));
    }
    known_ = Ref::to(reinterpret_cast<PyObject*>(place()->known));
    return Found::READY;
  }

  VersionChain* chain_;
  PyObject* state_;
  Ref lock_, place_, known_;
  std::vector<Ref> scratch_;
  void* stream_ = nullptr;
};

#define FRB_TRY(found)                                                                     \
  do {                                                                                     \
    const Found outcome = (found);                                                         \
    if (outcome != Found::READY) return outcome == Found::FAILED ? nullptr : not_here();   \
  } while (0)

// --- what is read and made ------------------------------------------------------------------------------------------

// The counters of a state, seen; false also of a vector that a user has shortened.
inline bool see_counters(Turn& turn, const Ref& counters, Seen& seen) {
  return turn.chain()->arrays.see(counters.get(), seen, turn.place()->where) && seen.dtype == INT32 && seen.ndim == 1 &&
         seen.shape[0] >= turn.known()->rings()->counters && seen.contiguous();
}

// What is told beside items, in the library's arrays.
inline Ref handed(const VersionChain* chain, Sheet& sheet, char* data, Dtype dtype, int ndim, const int64_t* shape) {
  PyObject* numpy = chain->given[dtype == INT32 ? NUMPY_INT32 : dtype == BOOL ? NUMPY_BOOL : NUMPY_FLOAT32];
  return chain->arrays.handed(sheet, data, dtype, ndim, shape, chain->is_numpy ? numpy : nullptr);
}

// New counters; on the host they begin as the old ones.
inline Ref next_counters(Turn& turn, const Seen& old, int32_t** at) {
  char* begin = nullptr;
  if (turn.on_gpu()) {
    Ref array = turn.array(INT32S, 1, old.shape, &begin, true);
    *at = reinterpret_cast<int32_t*>(begin);
    return array;
  }
  Sheet sheet(old.shape[0] * 4);
  if (!sheet) return Ref(PyErr_NoMemory());
  *at = sheet.take<int32_t>(old.shape[0] * 4);
  memcpy(*at, old.data, size_t(old.shape[0]) * 4);
  return handed(turn.chain(), sheet, reinterpret_cast<char*>(*at), INT32, 1, old.shape);
}

inline Ref new_version(Turn& turn, PyObject* memory) {
  Ref object(PyType_GenericAlloc(turn.chain()->type(VERSION), 0));
  if (!object) return Ref();
  const bool done = set(object.get(), names.memory, memory) && set(object.get(), names.lock, turn.lock()) &&
                    set(object.get(), names.saved, Py_None) && set(object.get(), names.next, Py_None);
  return done ? std::move(object) : Ref();
}

inline Ref new_state(Turn& turn, PyObject* version, PyObject* counters, PyObject* save_history, PyObject* fullest) {
  Ref object(PyType_GenericAlloc(turn.chain()->type(STATE), 0));
  const Ref target = attribute(turn.state(), names._target);
  if (!object || !target) return Ref();
  const bool done = set(object.get(), names.spec, turn.spec.get()) && set(object.get(), names._version, version) &&
                    set(object.get(), names._counters, counters) && set(object.get(), names._save_history, save_history) &&
                    set(object.get(), names._target, target.get()) && set(object.get(), names._exported, Py_None) &&
                    set(object.get(), names._fullest, fullest);
  return done ? std::move(object) : Ref();
}

// What kernels are told of a state, whatever they do with it.
inline BufferCall call_on(Turn& turn, const Seen& counters) {
  const Place* place = turn.place();
  const KnownBuffer* known = turn.known();
  const auto record = [](const std::vector<int32_t>& numbers) { return numbers.empty() ? nullptr : numbers.data(); };
  BufferCall call{};
  call.plan = record(known->numbers), call.ring = record(known->ring), call.epoch = record(known->epoch);
  call.storage = place->storage, call.arrays = known->arrays(), call.tree = place->tree;
  call.row_bytes = known->row_bytes, call.words = known->words;
  call.order = place->beside<int32_t>(ORDER), call.place = place->beside<int32_t>(PLACES);
  call.times = place->beside<int32_t>(TIMES), call.current = place->beside<int32_t>(CURRENT);
  call.in_episode = place->beside<int32_t>(IN_EPISODE), call.kept = place->beside<float>(KEPT);
  call.queue = record(known->queue), call.frames = record(known->frames), call.beside_plan = record(known->beside);
  call.returns = turn.on_gpu() ? nullptr : record(known->returns);
  call.beside = place->rows_beside, call.frame_at = place->beside<int32_t>(FRAME_AT);
  call.counters = reinterpret_cast<const int32_t*>(counters.data);
  call.scratches = turn.scratches(), call.stream = turn.stream(), call.device = place->where.device.id;
  return call;
}

}  // namespace frb
