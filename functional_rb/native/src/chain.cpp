#include "chain.h"

#include <pthread.h>

#include "batch.h"

// The states, versions and memories are Python's (`functional_rb.versions`), so that what is unusual finds them as it left
// them: "not here" is `NotImplemented`, and the plain engine does it. Everything that may fail comes before the first
// change, so that an error, or an interrupt, leaves all states as they were.
namespace frb {
namespace {

BufferKernels kernels;

// What a chain is given by its library, in this order.
enum Given {
  STATE, VERSION, SAVED, SAMPLE, HISTORY, TENSOR, NDARRAY, LOOK, FROM_CAPSULE, IS_NEG, IS_CONJ, NUMPY_INT32, NUMPY_FLOAT32,
  PLACE_OF, KNOWN_OF, OWN, COPY, MAKE_ROOM, PART, APART, TOGETHER, FORGET_DEAD, GIVEN
};

struct Chain {
  PyObject_HEAD
  PyObject* given[GIVEN];
  ArrayLibrary arrays;
  bool on, is_numpy;  // whether kernels do the work, and whether the library is NumPy

  PyTypeObject* type(Given which) const { return reinterpret_cast<PyTypeObject*>(given[which]); }
};

constexpr int64_t LARGE = 65536;  // bytes of a batch from which on other threads may go on meanwhile
constexpr int64_t LEAST = 16384;  // as `versions.memory.LEAST`

// One call on a state, which holds the lock of its lineage.
class Turn {
 public:
  Turn(Chain* chain, PyObject* state) : chain_(chain), state_(state) {}
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

  Chain* chain() const { return chain_; }
  PyObject* state() const { return state_; }
  PyObject* lock() const { return lock_.get(); }
  Place* place() const { return reinterpret_cast<Place*>(place_.get()); }
  const KnownBuffer* known() const { return reinterpret_cast<const KnownBuffer*>(known_.get()); }

  Ref version, spec, memory;
  bool pinned = false;

 private:
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

  Chain* chain_;
  PyObject* state_;
  Ref lock_, place_, known_;
};

#define FRB_TRY(found)                                                                     \
  do {                                                                                     \
    const Found outcome = (found);                                                         \
    if (outcome != Found::READY) return outcome == Found::FAILED ? nullptr : not_here();   \
  } while (0)

// --- what is read and made ------------------------------------------------------------------------------------------

// The counters of a state, seen.
bool see_counters(Turn& turn, const Ref& counters, Seen& seen) {
  return turn.chain()->arrays.see(counters.get(), seen) && seen.dtype == INT32 && seen.ndim == 1 &&
         seen.shape[0] >= COUNTERS && seen.contiguous();
}

// A vector of results, in the library's arrays.
Ref handed(Turn& turn, Sheet& sheet, char* data, Dtype dtype, const int64_t* size) {
  const Chain* chain = turn.chain();
  PyObject* numpy = chain->is_numpy ? chain->given[dtype == INT32 ? NUMPY_INT32 : NUMPY_FLOAT32] : nullptr;
  return chain->arrays.handed(sheet, data, dtype, 1, size, numpy);
}

// New counters, which begin as the old ones.
Ref copied_counters(Turn& turn, const Seen& old, int32_t** at) {
  Sheet sheet(old.shape[0] * 4);
  if (!sheet) return Ref(PyErr_NoMemory());
  *at = sheet.take<int32_t>(old.shape[0] * 4);
  memcpy(*at, old.data, size_t(old.shape[0]) * 4);
  return handed(turn, sheet, reinterpret_cast<char*>(*at), INT32, old.shape);
}

Ref new_version(Turn& turn, PyObject* memory) {
  Ref made(PyType_GenericAlloc(turn.chain()->type(VERSION), 0));
  const Ref capacity = attribute(turn.version.get(), names.capacity);
  if (!made || !capacity) return Ref();
  const bool done = set(made.get(), names.memory, memory) && set(made.get(), names.capacity, capacity.get()) &&
                    set(made.get(), names.lock, turn.lock()) && set(made.get(), names.saved, Py_None) &&
                    set(made.get(), names.next, Py_None);
  return done ? std::move(made) : Ref();
}

Ref new_state(Turn& turn, PyObject* version, PyObject* counters, PyObject* save_history) {
  Ref made(PyType_GenericAlloc(turn.chain()->type(STATE), 0));
  const Ref target = attribute(turn.state(), names._target);
  if (!made || !target) return Ref();
  const bool done = set(made.get(), names.spec, turn.spec.get()) && set(made.get(), names._version, version) &&
                    set(made.get(), names._counters, counters) && set(made.get(), names._save_history, save_history) &&
                    set(made.get(), names._target, target.get()) && set(made.get(), names._exported, Py_None);
  return done ? std::move(made) : Ref();
}

// --- older versions -------------------------------------------------------------------------------------------------

bool add_to_number(PyObject* of, PyObject* name, int64_t more) {
  const Ref old = attribute(of, name);
  const int64_t before = old ? PyLong_AsLongLong(old.get()) : -1;
  const Ref now(old ? PyLong_FromLongLong(before + more) : nullptr);
  return now && set(of, name, now.get());
}

// Drop the versions at the old end of a history that nobody holds any more, or that have memory of their own.
bool forget_dead(PyObject* memory, PyObject* history) {
  while (PyObject_Size(history) > 0) {
    const Ref oldest(PySequence_GetItem(history, 0));
    if (!oldest) return false;
    const Ref version = Ref::to(PyWeakref_GetObject(PyTuple_GetItem(oldest.get(), 0)));
    if (!version.is(Py_None)) {
      const Ref own = attribute(version.get(), names.memory);
      if (!own) return false;
      if (own.is(Py_None)) return true;
    }
    const int64_t bytes = PyLong_AsLongLong(PyTuple_GetItem(oldest.get(), 1));
    if (!called_method(history, names.popleft) || !add_to_number(memory, names.retained, -bytes)) return false;
  }
  return !PyErr_Occurred();
}

// The next version takes the memory over, and the older one is found from what is saved: `Version.succeed`.
bool succeed(Turn& turn, PyObject* following, Saved* saved) {
  PyObject *memory = turn.memory.get(), *version = turn.version.get();
  Ref history = attribute(memory, names.history);
  if (history && history.is(Py_None)) {
    history = called(turn.chain()->given[HISTORY]);
    if (history && !set(memory, names.history, history.get())) return false;
  }
  const int64_t bytes = saved->bytes + int64_t(sizeof(Saved));
  const Ref reference(PyWeakref_NewRef(version, nullptr)), size(PyLong_FromLongLong(bytes));
  if (!history || !reference || !size) return false;
  const Ref entry(PyTuple_Pack(2, reference.get(), size.get()));
  if (!entry || !set(version, names.saved, reinterpret_cast<PyObject*>(saved)) || !set(version, names.next, following) ||
      !set(version, names.memory, Py_None))
    return false;
  if (!called_method(history.get(), names.append, entry.get()) || !add_to_number(memory, names.retained, bytes) ||
      !set(memory, names.shared, Py_True) || !forget_dead(memory, history.get()))
    return false;
  const Ref retained = attribute(memory, names.retained);
  if (!retained) return false;
  if (PyObject_Size(history.get()) <= 1 && PyLong_AsLongLong(retained.get()) <= LEAST) return true;
  return bool(called(turn.chain()->given[PART], version, memory));
}

// Take back what `succeed` did, and all that was written since; the error stays.
PyObject* rolled_back(Turn& turn) {
  const KeptError kept;
  if (!called_method(turn.version.get(), names.roll_back)) PyErr_WriteUnraisable(turn.version.get());
  return nullptr;
}

// --- writes ---------------------------------------------------------------------------------------------------------

// A write of a batch that has been taken: the next state, by a kernel.
class Write {
 public:
  Write(Turn& turn, Batch& batch, bool in_place) : turn_(turn), batch_(batch), in_place_(in_place) {}

  // Whether the state alone owns its memory, as an in-place write needs it.
  Found check_owner() {
    if (!in_place_) return Found::READY;
    if (turn_.pinned) return Found::ELSEWHERE;
    Ref shared = attribute(turn_.memory.get(), names.shared);
    if (shared.is(Py_True) && called(turn_.chain()->given[FORGET_DEAD], turn_.memory.get()))
      shared = attribute(turn_.memory.get(), names.shared);
    if (!shared || PyErr_Occurred()) return Found::FAILED;
    return shared.is(Py_True) ? Found::ELSEWHERE : Found::READY;
  }

  // Make room for `n` slots, and everything else that may fail; `rows` and `values` say what is overwritten in them.
  Found prepare(int64_t n, bool rows, bool values) {
    const bool saves = !turn_.pinned && !in_place_;
    const Found found = turn_.find_target();
    if (found != Found::READY) return found;
    counters_ = attribute(turn_.state(), names._counters);
    if (!counters_) return Found::FAILED;
    if (!see_counters(turn_, counters_, old_)) return Found::ELSEWHERE;
    if (!have_room(rows)) return Found::FAILED;
    if (saves && !(saved_ = saved_room(turn_.chain()->type(SAVED), turn_.known(), n, rows, values))) return Found::FAILED;
    after_ = copied_counters(turn_, old_, &new_);
    if (!after_ || !(following_ = in_place_ ? Ref::to(turn_.version.get()) : new_version(turn_, turn_.memory.get())))
      return Found::FAILED;
    const Ref past = history_after(rows);
    made_ = past ? new_state(turn_, following_.get(), after_.get(), past.get()) : Ref();
    return made_ ? Found::READY : Found::FAILED;
  }
  ~Write() { Py_XDECREF(reinterpret_cast<PyObject*>(saved_)); }

  PyObject* carry_out(int (*kernel)(const BufferCall&)) {
    if ((saved_ || in_place_) && !turn_.unchanged()) return not_here();
    if (saved_ && !succeed(turn_, following_.get(), saved_)) return rolled_back(turn_);
    if (in_place_ && !set(turn_.state(), names._version, Py_None)) return nullptr;
    set(turn_.memory.get(), names.written, Py_True);
    const BufferCall call = described();
    int failed = 0;
    if (batch_.rows * call.row_bytes > LARGE) {
      Py_BEGIN_ALLOW_THREADS failed = kernel(call); Py_END_ALLOW_THREADS
    } else {
      failed = kernel(call);
    }
    if (!failed) return made_.give();
    PyErr_NoMemory();  // kernels ask for memory before they write
    if (in_place_) set(turn_.state(), names._version, turn_.version.get());
    return saved_ ? rolled_back(turn_) : nullptr;
  }

 private:
  // Have room in the memory's files, if it lies in any, for the rows that are written.
  bool have_room(bool rows) {
    const Ref files = attribute(turn_.memory.get(), names.files);
    if (!files) return false;
    if (files.is(Py_None) || !rows) return true;
    const Ref size(PyLong_FromLongLong(batch_.rows));
    PyObject* handles = batch_.given_handles ? batch_.given_handles : Py_None;
    return size && called(turn_.chain()->given[MAKE_ROOM], turn_.memory.get(), turn_.spec.get(), counters_.get(),
                          size.get(), handles);
  }
  // The saves that the next state succeeds.
  Ref history_after(bool rows) {
    Ref past = attribute(turn_.state(), names._save_history);
    if (!past || past.is(Py_None) || !rows) return past;
    if (batch_.handles) return Ref::to(Py_None);
    const Ref size(PyLong_FromLongLong(batch_.rows));
    return size ? called_method(past.get(), names.after, size.get()) : Ref();
  }
  BufferCall described() {
    const Place* place = turn_.place();
    const KnownBuffer* known = turn_.known();
    BufferCall call{};
    call.plan = known->numbers.data(), call.storage = place->storage, call.arrays = known->arrays();
    call.tree = place->tree, call.counters = reinterpret_cast<const int32_t*>(old_.data), call.new_counters = new_;
    call.batch = batch_.rows, call.row_bytes = known->row_bytes;
    call.mask = batch_.mask, call.priorities = batch_.priorities, call.given_handles = batch_.handles;
    if (saved_) {
      call.saved_slots = reinterpret_cast<int32_t*>(saved_->piece + saved_->slots), call.room = saved_->room;
      if (saved_->values >= 0) call.saved_values = reinterpret_cast<float*>(saved_->piece + saved_->values);
      for (int64_t k = 0; k < saved_->arrays; ++k)
        batch_.items[batch_.given + k] = reinterpret_cast<int64_t>(saved_->piece + saved_->copies[k]);
    }
    call.saved_count = saved_ ? &saved_->count : &nowhere_;
    call.items = batch_.items, call.given = batch_.given, call.item_count = batch_.given + (saved_ ? saved_->arrays : 0);
    return call;
  }

  Turn& turn_;
  Batch& batch_;
  const bool in_place_;
  Seen old_;
  Ref counters_, after_, following_, made_;
  Saved* saved_ = nullptr;
  int32_t* new_ = nullptr;
  int64_t nowhere_ = 0;
};

// The leaves of items, in a flat dict or however else.
Found take_items(Turn& turn, PyObject* items, Batch& batch) {
  const KnownBuffer* known = turn.known();
  const int count = int(known->leaves.size());
  batch.given = count;
  if (!known->given.empty() && PyDict_CheckExact(items) && PyDict_Size(items) == count) {
    for (int k = 0; k < count; ++k) {
      PyObject* leaf = PyDict_GetItemWithError(items, known->leaves[size_t(k)].name);
      if (!leaf) return PyErr_Occurred() ? Found::FAILED : Found::ELSEWHERE;
      if (!batch.take_leaf(k, leaf)) return Found::ELSEWHERE;
    }
    return Found::READY;
  }
  // Mappings of the user's may do anything: read this state, wait for another thread that does, write to it.
  const Ref kept = Ref::to(reinterpret_cast<PyObject*>(turn.place()->known));
  turn.unlock();
  const Ref leaves = called(turn.chain()->given[APART], turn.spec.get(), items);
  if (!leaves) return Found::FAILED;
  const Found again = turn.begin();
  if (again != Found::READY) return again;
  if (turn.known() != known) return Found::ELSEWHERE;
  for (int k = 0; k < count; ++k)
    if (!batch.take_leaf(k, PyList_GetItem(leaves.get(), k))) return Found::ELSEWHERE;  // the batch is used while they live
  return Found::READY;
}

// Leaves in the order in which they are stored, all of them or, for what is rewritten, some.
Found take_leaves(Turn& turn, PyObject* leaves, Batch& batch) {
  batch.given = int64_t(turn.known()->leaves.size());
  if (PyList_Size(leaves) != batch.given) return Found::ELSEWHERE;
  for (int k = 0; k < batch.given; ++k) {
    PyObject* leaf = PyList_GetItem(leaves, k);
    if (!(leaf == Py_None && batch.handles) && !batch.take_leaf(k, leaf)) return Found::ELSEWHERE;
  }
  return Found::READY;
}

// Add a batch whose leaves have been taken.
template <bool IN_PLACE> PyObject* added(Turn& turn, Batch& batch, PyObject* mask, PyObject* priorities) {
  if (batch.rows <= 0 || !batch.take_mask(mask) || !batch.take_priorities(priorities)) return not_here();
  Write write(turn, batch, IN_PLACE);
  FRB_TRY(write.check_owner());
  const int64_t capacity = turn.known()->plan()->capacity;
  FRB_TRY(write.prepare(batch.rows < capacity ? batch.rows : capacity, true, turn.place()->tree != nullptr));
  return write.carry_out(kernels.add);
}

// add(state, items, mask, priorities, key, validate, time_major, to)
template <bool IN_PLACE> PyObject* add(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 8 || args[4] != Py_None || args[5] != Py_False || args[6] != Py_True || args[7] != Py_None) return not_here();
  Turn turn(reinterpret_cast<Chain*>(self), args[0]);
  FRB_TRY(turn.begin());
  if (!turn.known()->adds) return not_here();
  Batch batch(turn.known(), turn.chain()->arrays);
  FRB_TRY(take_items(turn, args[1], batch));
  return added<IN_PLACE>(turn, batch, args[2], args[3]);
}

// write(state, leaves, mask, priorities): `add` of what the engine has checked, leaves in the order in which they are stored
template <bool IN_PLACE> PyObject* write(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 4 || !PyList_Check(args[1])) return not_here();
  Turn turn(reinterpret_cast<Chain*>(self), args[0]);
  FRB_TRY(turn.begin());
  if (!turn.known()->writes) return not_here();
  Batch batch(turn.known(), turn.chain()->arrays);
  FRB_TRY(take_leaves(turn, args[1], batch));
  return added<IN_PLACE>(turn, batch, args[2], args[3]);
}

// Leaves to rewrite, some of a flat dict's or, from the engine, of a list, each with a row for every handle.
Found take_replacements(Turn& turn, PyObject* items, Batch& batch) {
  const KnownBuffer* known = turn.known();
  if (items == Py_None) return Found::READY;
  if (!known->writes || !known->rewrites) return Found::ELSEWHERE;
  if (PyList_Check(items)) return take_leaves(turn, items, batch);
  if (!known->adds || known->given.empty() || !PyDict_CheckExact(items)) return Found::ELSEWHERE;
  batch.given = int64_t(known->leaves.size());
  Py_ssize_t found = 0;
  for (int k = 0; k < batch.given; ++k) {
    PyObject* leaf = PyDict_GetItemWithError(items, known->leaves[size_t(k)].name);
    if (!leaf && PyErr_Occurred()) return Found::FAILED;
    if (leaf && (++found, !batch.take_leaf(k, leaf))) return Found::ELSEWHERE;
  }
  return found && found == PyDict_Size(items) ? Found::READY : Found::ELSEWHERE;
}

// update(state, indices, priorities, items); the engine gives the items as a list
template <bool IN_PLACE> PyObject* update(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 4 || (args[2] == Py_None && args[3] == Py_None)) return not_here();
  Turn turn(reinterpret_cast<Chain*>(self), args[0]);
  FRB_TRY(turn.begin());
  if (!turn.known()->writes) return not_here();
  Batch batch(turn.known(), turn.chain()->arrays);
  if (!batch.take_handles(args[1]) || batch.rows <= 0 || !batch.take_priorities(args[2])) return not_here();
  FRB_TRY(take_replacements(turn, args[3], batch));
  Write write(turn, batch, IN_PLACE);
  FRB_TRY(write.check_owner());
  FRB_TRY(write.prepare(batch.rows, args[3] != Py_None, args[2] != Py_None));
  return write.carry_out(kernels.update);
}

// --- draws ----------------------------------------------------------------------------------------------------------

// How many to draw, and with which exponent of the weights; false for what is not usual.
bool take_size(const KnownBuffer* known, PyObject* given, int64_t* size) {
  if (given == Py_None) return (*size = known->batch_size) > 0;
  int overflow;
  if (!PyLong_CheckExact(given)) return false;
  *size = PyLong_AsLongLongAndOverflow(given, &overflow);
  return !overflow && 0 < *size && *size <= INT32_MOST;
}
bool take_beta(const KnownBuffer* known, PyObject* given, float* beta) {
  double value = known->beta;
  if (given != Py_None) {
    if (!known->prioritized || !(PyFloat_CheckExact(given) || PyLong_CheckExact(given))) return false;
    value = PyFloat_AsDouble(given);
    if (PyErr_Occurred()) return PyErr_Clear(), false;
  }
  *beta = float(value);
  return 0 <= value && value <= 100;
}

// A batch that is being drawn: the selection in one piece of memory, the items in another, as one may outlive the other.
class Drawn {
 public:
  Drawn(const KnownBuffer* known, int64_t size)
      : known_(known), size_(size), told_(3 * whole_lines(4 * size)), items_(bytes_of(known, size)) {
    if (!told_ || !items_) return;
    for (char*& at : columns_) at = told_.take<char>(4 * size);
    for (size_t k = 0; k < known->leaves.size(); ++k)
      leaves_[k] = reinterpret_cast<int64_t>(items_.take<char>(known->leaves[k].bytes * size));
  }
  bool has_room() const { return told_ && items_; }

  // By a key, or by random bits if they are given.
  BufferCall described(const Place* place, const Seen& counters, int64_t key, const int32_t* draws, float beta) const {
    BufferCall call{};
    call.plan = known_->numbers.data(), call.storage = place->storage, call.arrays = known_->arrays();
    call.tree = place->tree, call.counters = reinterpret_cast<const int32_t*>(counters.data);
    call.items = leaves_, call.item_count = call.given = int64_t(known_->leaves.size());
    call.batch = size_, call.row_bytes = known_->row_bytes;
    call.key = key, call.draws = draws, call.words = known_->words, call.beta = beta;
    call.handles = reinterpret_cast<int32_t*>(columns_[0]);
    call.weights = reinterpret_cast<float*>(columns_[1]), call.probabilities = reinterpret_cast<float*>(columns_[2]);
    return call;
  }

  // (leaves, indices, weights, probabilities).
  Ref as_parts(Turn& turn) {
    const Ref leaves = as_leaves(turn), handles = vector(turn, 0, INT32), weights = vector(turn, 1, FLOAT32),
              probabilities = vector(turn, 2, FLOAT32);
    if (!leaves || !handles || !weights || !probabilities) return Ref();
    return Ref(PyTuple_Pack(4, leaves.get(), handles.get(), weights.get(), probabilities.get()));
  }

  // `Sample(items, indices, weights, probabilities, extras)`.
  Ref as_sample(Turn& turn) {
    const Ref items = as_items(turn), handles = vector(turn, 0, INT32), weights = vector(turn, 1, FLOAT32),
              probabilities = vector(turn, 2, FLOAT32), extras(PyDict_New());
    if (!items || !handles || !weights || !probabilities || !extras) return Ref();
    return called(turn.chain()->given[SAMPLE], items.get(), handles.get(), weights.get(), probabilities.get(), extras.get());
  }

 private:
  static int64_t bytes_of(const KnownBuffer* known, int64_t size) {
    int64_t bytes = 0;
    for (const Leaf& leaf : known->leaves) bytes += whole_lines(leaf.bytes * size);
    return bytes;
  }
  Ref vector(Turn& turn, int k, Dtype dtype) {
    return handed(turn, told_, columns_[k], dtype, &size_);
  }
  Ref leaf(Turn& turn, size_t k) {
    const Leaf& leaf = known_->leaves[k];
    int64_t shape[MOST_AXES] = {size_};
    for (size_t j = 0; j < leaf.shape.size(); ++j) shape[1 + j] = leaf.shape[j];
    char* data = reinterpret_cast<char*>(leaves_[k]);
    PyObject* numpy = turn.chain()->is_numpy || known_->in_numpy ? leaf.numpy : nullptr;
    return turn.chain()->arrays.handed(items_, data, leaf.dtype, 1 + int(leaf.shape.size()), shape, numpy);
  }
  Ref as_leaves(Turn& turn) {
    Ref leaves(PyList_New(0));
    for (size_t k = 0; k < known_->leaves.size(); ++k) {
      const Ref array = leaves ? leaf(turn, k) : Ref();
      if (!array || PyList_Append(leaves.get(), array.get())) return Ref();
    }
    return leaves;
  }
  Ref as_items(Turn& turn) {
    if (!known_->given.empty()) {
      Ref items(PyDict_New());
      for (const int k : known_->given) {
        const Ref array = items ? leaf(turn, size_t(k)) : Ref();
        if (!array || PyDict_SetItem(items.get(), known_->leaves[size_t(k)].name, array.get())) return Ref();
      }
      return items;
    }
    const Ref leaves = as_leaves(turn), size(PyLong_FromLongLong(size_));
    return leaves && size ? called(turn.chain()->given[TOGETHER], turn.spec.get(), leaves.get(), size.get()) : Ref();
  }

  const KnownBuffer* known_;
  int64_t size_;
  Sheet told_, items_;
  char* columns_[3] = {};
  int64_t leaves_[MOST_LEAVES] = {};
};

// A key, or random bits int32 [size, words] that were made of one.
struct Random {
  Seen seen;
  int64_t key = 0;
  const int32_t* bits = nullptr;

  bool take(Turn& turn, PyObject* given, int64_t size) {
    if (!turn.chain()->arrays.see(given, seen)) return false;
    if (seen.dtype == INT64 && seen.ndim == 0 && !turn.chain()->is_numpy) return memcpy(&key, seen.data, sizeof key), true;
    bits = reinterpret_cast<const int32_t*>(seen.data);
    return turn.chain()->is_numpy && seen.dtype == INT32 && seen.ndim == 2 && seen.shape[0] == size &&
           seen.shape[1] == turn.known()->words && seen.contiguous();
  }
};

// The reference would take even more memory.
PyObject* no_room(int64_t size, int64_t bytes) {
  return PyErr_Format(PyExc_MemoryError, "sample: expected memory for %lld items of %lld bytes, got none; draw fewer at once",
                      static_cast<long long>(size), static_cast<long long>(bytes));
}

// Draw what `random` says; what was drawn is handed on by `finish`.
template <class Finish> PyObject* draw_by(Turn& turn, const Random& random, int64_t size, float beta, Finish finish) {
  const Ref written = attribute(turn.memory.get(), names.written), counters = attribute(turn.state(), names._counters);
  if (!written || !counters) return nullptr;
  Seen numbers;
  if (!written.is(Py_True) || !see_counters(turn, counters, numbers)) return not_here();
  Drawn drawn(turn.known(), size);
  if (!drawn.has_room()) return no_room(size, turn.known()->row_bytes);
  const BufferCall call = drawn.described(turn.place(), numbers, random.key, random.bits, beta);
  int outcome;
  if (size * call.row_bytes > LARGE) {
    const Reading reading(turn.place());
    turn.unlock();
    Py_BEGIN_ALLOW_THREADS outcome = kernels.sample(call); Py_END_ALLOW_THREADS
  } else {
    outcome = kernels.sample(call);
  }
  if (outcome == NO_MEMORY) return no_room(size, turn.known()->row_bytes);
  if (outcome != DONE) return not_here();
  turn.unlock();  // items may be of a class of the user's
  return finish(drawn);
}

// The same value under another name, with the given state consumed.
Ref renamed(Turn& turn) {
  const Ref counters = attribute(turn.state(), names._counters), past = attribute(turn.state(), names._save_history);
  Ref made = counters && past ? new_state(turn, turn.version.get(), counters.get(), past.get()) : Ref();
  return made && set(turn.state(), names._version, Py_None) ? std::move(made) : Ref();
}

// sample(state, key, batch_size, beta, p)
template <bool IN_PLACE> PyObject* sample(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 5 || args[4] != Py_None) return not_here();
  Turn turn(reinterpret_cast<Chain*>(self), args[0]);
  FRB_TRY(turn.begin());
  const Ref target = attribute(turn.state(), names._target);
  if (!target) return nullptr;
  int64_t size;
  float beta;
  Random random;
  if (!turn.known()->samples || !target.is(Py_None) || !take_size(turn.known(), args[2], &size) ||
      !take_beta(turn.known(), args[3], &beta) || Py_TYPE(args[1]) != turn.chain()->type(TENSOR) ||
      !random.take(turn, args[1], size))
    return not_here();
  return draw_by(turn, random, size, beta, [&turn](Drawn& drawn) -> PyObject* {
    const Ref made = drawn.as_sample(turn);
    const Ref state = !made ? Ref() : IN_PLACE ? renamed(turn) : Ref::to(turn.state());
    return state ? PyTuple_Pack(2, state.get(), made.get()) : nullptr;
  });
}

// draw(state, key or random bits, size, beta): (leaves, indices, weights, probabilities), for the engine.
PyObject* draw(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 4) return not_here();
  Turn turn(reinterpret_cast<Chain*>(self), args[0]);
  FRB_TRY(turn.begin());
  const int64_t size = PyLong_AsLongLong(args[2]);
  const float beta = float(PyFloat_AsDouble(args[3]));
  if (PyErr_Occurred()) return nullptr;
  Random random;
  if (size <= 0 || !random.take(turn, args[1], size)) return not_here();
  return draw_by(turn, random, size, beta, [&turn](Drawn& drawn) { return drawn.as_parts(turn).give(); });
}

// --- the type -------------------------------------------------------------------------------------------------------

// Chain(*given, has_exchange): what `Given` names, and whether torch's exchange API may be used. Of NumPy's states the
// array class is NumPy's own.
PyObject* new_chain(PyTypeObject* type, PyObject* args, PyObject*) {
  if (PyTuple_Size(args) != GIVEN + 1) {
    PyErr_Format(PyExc_TypeError, "expected %d arguments, got %zd", int(GIVEN) + 1, PyTuple_Size(args));
    return nullptr;
  }
  Chain* made = allocated<Chain>(type);
  if (!made) return nullptr;
  for (int k = 0; k < GIVEN; ++k) made->given[k] = Py_NewRef(PyTuple_GetItem(args, k));
  new (&made->arrays) ArrayLibrary();
  made->on = true, made->is_numpy = made->given[TENSOR] == made->given[NDARRAY];
  PyObject** given = made->given;
  if (!made->arrays.begin(given[TENSOR], given[NDARRAY], given[LOOK], given[FROM_CAPSULE], given[IS_NEG], given[IS_CONJ]))
    Py_CLEAR(made);
  if (made && !PyObject_IsTrue(PyTuple_GetItem(args, GIVEN))) made->arrays.forget_exchange();
  return reinterpret_cast<PyObject*>(made);
}
int visit_chain(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  for (PyObject* each : reinterpret_cast<Chain*>(self)->given) Py_VISIT(each);
  return 0;
}
int clear_chain(PyObject* self) {
  for (PyObject*& each : reinterpret_cast<Chain*>(self)->given) Py_CLEAR(each);
  return 0;
}
void free_chain(PyObject* self) {
  PyObject_GC_UnTrack(self);
  clear_chain(self);
  released(self);
}

// turn(on): whether kernels do the work.
PyObject* turn(PyObject* self, PyObject* on) {
  reinterpret_cast<Chain*>(self)->on = PyObject_IsTrue(on) == 1;
  Py_RETURN_NONE;
}

#define FRB_FAST(name, function) \
  {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function)), METH_FASTCALL, nullptr}
PyMethodDef methods[] = {FRB_FAST("add", add<false>), FRB_FAST("add_", add<true>), FRB_FAST("update", update<false>),
                         FRB_FAST("update_", update<true>), FRB_FAST("write", write<false>), FRB_FAST("write_", write<true>),
                         FRB_FAST("sample", sample<false>), FRB_FAST("sample_", sample<true>), FRB_FAST("draw", draw),
                         {"turn", turn, METH_O, nullptr}, {}};
PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(new_chain)},
                       {Py_tp_dealloc, reinterpret_cast<void*>(free_chain)},
                       {Py_tp_traverse, reinterpret_cast<void*>(visit_chain)},
                       {Py_tp_clear, reinterpret_cast<void*>(clear_chain)},
                       {Py_tp_methods, methods},
                       {0, nullptr}};
PyType_Spec spec = {"functional_rb._native.Chain", sizeof(Chain), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};

}  // namespace

bool add_chain(PyObject* module, const BufferKernels& of) {
  kernels = of;
  static const int registered = pthread_atfork(nullptr, nullptr, [] { ++generation; });
  return registered == 0 && names.intern() && add_lineage_types(module) && made_type(module, "Chain", spec);
}

}  // namespace frb
