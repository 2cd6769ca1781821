// Writes by kernels: what is overwritten is saved, the next version takes the memory over, or the state is consumed.
#pragma once
#include "turn.h"

namespace frb {

// --- older versions -------------------------------------------------------------------------------------------------

inline bool add_to_number(PyObject* of, PyObject* name, int64_t more) {
  const Ref old = attribute(of, name);
  const int64_t before = old ? PyLong_AsLongLong(old.get()) : -1;
  const Ref now(old ? PyLong_FromLongLong(before + more) : nullptr);
  return now && set(of, name, now.get());
}

// Drop the versions at the old end of a history that nobody holds any more, or that have memory of their own.
inline bool forget_dead(PyObject* memory, PyObject* history) {
  while (PyObject_Size(history) > 0) {
    const Ref oldest(PySequence_GetItem(history, 0));
    if (!oldest) return false;
    const Ref version = Ref::to(PyWeakref_GetObject(PyTuple_GetItem(oldest.get(), 0)));
    if (!version.is(Py_None)) {
      const Ref memory = attribute(version.get(), names.memory);
      if (!memory) return false;
      if (memory.is(Py_None)) return true;
    }
    const int64_t bytes = PyLong_AsLongLong(PyTuple_GetItem(oldest.get(), 1));
    if (!called_method(history, names.popleft) || !add_to_number(memory, names.retained, -bytes)) return false;
  }
  return !PyErr_Occurred();
}

// The next version takes the memory over, and the older one is found from what is saved: `Version.succeed`.
inline bool succeed(Turn& turn, PyObject* following, Saved* saved) {
  PyObject *memory = turn.memory.get(), *version = turn.version.get();
  const Ref history = attribute(memory, names.history);
  const int64_t bytes = saved->bytes + int64_t(sizeof(Saved));
  const Ref reference(PyWeakref_NewRef(version, nullptr)), size(PyLong_FromLongLong(bytes));
  if (!history || !reference || !size) return false;
  const Ref entry(PyTuple_Pack(2, reference.get(), size.get()));
  if (!entry || !set(version, names.saved, reinterpret_cast<PyObject*>(saved)) || !set(version, names.next, following) ||
      !set(version, names.memory, Py_None))
    return false;
  if (!called_method(history.get(), names.append, entry.get()) || !add_to_number(memory, names.retained, bytes) ||
      !forget_dead(memory, history.get()))
    return false;
  const Ref retained = attribute(memory, names.retained);
  if (!retained) return false;
  if (PyObject_Size(history.get()) <= 1 && PyLong_AsLongLong(retained.get()) <= LEAST) return true;
  return bool(called(turn.chain()->given[PART], version, memory));
}

// --- writes ---------------------------------------------------------------------------------------------------------

// The next state of a buffer, by a kernel that writes. `rows` says how many rows are given, or rewritten if handles name them.
class Write {
 public:
  Write(Turn& turn, bool in_place, int64_t rows = 0, PyObject* handles = nullptr)
      : turn_(turn), in_place_(in_place), rows_(rows), handles_(handles) {}
  ~Write() { Py_XDECREF(reinterpret_cast<PyObject*>(saved_)); }

  // Whether the state alone owns its memory, as an in-place write needs it.
  Found check_owner() {
    if (!in_place_) return Found::READY;
    if (turn_.pinned) return Found::ELSEWHERE;
    const Ref history = attribute(turn_.memory.get(), names.history);
    if (!history || !forget_dead(turn_.memory.get(), history.get())) return Found::FAILED;
    return PyObject_Size(history.get()) > 0 ? Found::ELSEWHERE : Found::READY;
  }

  // Make room, and everything else that may fail.
  Found prepare(const Overwritten& what) {
    const bool saves = !turn_.pinned && !in_place_;
    const Found outcome = turn_.find_target();
    if (outcome != Found::READY) return outcome;
    counters_ = attribute(turn_.state(), names._counters);
    if (!counters_) return Found::FAILED;
    if (!see_counters(turn_, counters_, old_)) return Found::ELSEWHERE;
    if (!have_room()) return Found::FAILED;
    if (turn_.on_gpu() && !turn_.find_stream()) return Found::FAILED;
    if (saves && !(saved_ = saved_room(turn_.chain()->type(SAVED), turn_.known(), what, [this](Saved* of) { return hold(of); })))
      return PyErr_Occurred() ? Found::FAILED : Found::ELSEWHERE;
    after_ = next_counters(turn_, old_, &new_);
    if (!after_ && !PyErr_Occurred()) return Found::ELSEWHERE;
    if (!after_ || !(following_ = in_place_ ? Ref::to(turn_.version.get()) : new_version(turn_, turn_.memory.get())))
      return Found::FAILED;
    const Ref past = history_after();  // of what is added the engine may know how full it makes the lanes
    const Ref fullest = rows_ && !handles_ ? Ref::to(Py_None) : attribute(turn_.state(), names._fullest);
    made_ = past && fullest ? new_state(turn_, following_.get(), after_.get(), past.get(), fullest.get()) : Ref();
    return made_ ? Found::READY : Found::FAILED;
  }
  const Seen& counters() const { return old_; }
  PyObject* made() const { return made_.get(); }

  // Saved rows are to be found behind the addresses of the leaves that are given.
  Found carry_out(int (*kernel)(const BufferCall&), BufferCall& call, int64_t* items) {
    if ((saved_ || in_place_) && !turn_.unchanged()) return Found::ELSEWHERE;
    if (saved_ && !succeed(turn_, following_.get(), saved_)) return take_back(), Found::FAILED;
    if (in_place_ && !set(turn_.state(), names._version, Py_None)) return Found::FAILED;
    tell_of_saved(call, items);
    const int outcome = turn_.on_gpu() ? told(kernel(call)) : run(kernel, call, is_large(call, call.batch));
    if (outcome == DONE) return Found::READY;
    if (outcome == NO_MEMORY && !PyErr_Occurred()) PyErr_NoMemory();  // kernels ask for memory before they write
    if (in_place_) set(turn_.state(), names._version, turn_.version.get());
    take_back();
    return PyErr_Occurred() ? Found::FAILED : Found::ELSEWHERE;
  }

 private:
  bool hold(Saved* of) {
    if (!turn_.on_gpu()) return held_by_the_host(of);
    const int64_t bytes = most<int64_t>(of->bytes, 1);  // what a queue gives overwrites nothing
    of->holder = turn_.array(BYTES, 1, &bytes, &of->piece, true).give();
    return of->holder;
  }
  // Have room in the memory's files, if it lies in any, for the rows that are written.
  bool have_room() {
    const Ref files = attribute(turn_.memory.get(), names.files);
    if (!files) return false;
    if (files.is(Py_None) || !rows_) return true;
    const Ref size(PyLong_FromLongLong(rows_));
    return size && called(turn_.chain()->given[MAKE_ROOM], turn_.memory.get(), turn_.spec.get(), counters_.get(),
                          size.get(), handles_ ? handles_ : Py_None);
  }
  // The saves that the next state succeeds.
  Ref history_after() {
    Ref past = attribute(turn_.state(), names._save_history);
    if (!past || past.is(Py_None) || !rows_) return past;
    if (handles_) return Ref::to(Py_None);
    const Ref size(PyLong_FromLongLong(rows_ + turn_.known()->waiting()));
    return size ? called_method(past.get(), names.after, size.get()) : Ref();
  }
  void tell_of_saved(BufferCall& call, int64_t* items) {
    call.new_counters = new_, call.saved_count = saved_ ? saved_->counts : nowhere_, call.item_count = call.given;
    if (!saved_) return;
    const auto at = [this](int64_t begin) { return begin < 0 ? nullptr : saved_->piece + begin; };
    call.room = saved_->room, call.saved_slots = reinterpret_cast<int32_t*>(at(saved_->slots));
    call.saved_values = reinterpret_cast<float*>(at(saved_->values));
    call.saved_kept = reinterpret_cast<float*>(at(saved_->kept));
    call.saved_steps = reinterpret_cast<int32_t*>(at(saved_->steps));
    call.saved_times = reinterpret_cast<int32_t*>(at(saved_->times));
    call.saved_current = reinterpret_cast<int32_t*>(at(saved_->current));
    call.deck_room = saved_->deck_room, call.saved_deck = reinterpret_cast<int32_t*>(at(saved_->deck));
    call.saved_at = reinterpret_cast<int32_t*>(at(saved_->at)), call.saved_places = reinterpret_cast<int32_t*>(at(saved_->places));
    for (int64_t k = 0; k < saved_->arrays_beside; ++k) beside_[k] = reinterpret_cast<int64_t>(at(saved_->copies_beside[k]));
    call.saved_beside = beside_;
    for (int64_t k = 0; k < saved_->arrays; ++k) items[call.item_count++] = reinterpret_cast<int64_t>(at(saved_->copies[k]));
  }
  // Take back what `succeed` did, and all that was written since; an error stays.
  void take_back() {
    const KeptError kept;
    if (saved_ && !called_method(turn_.version.get(), names.roll_back, following_.get()))
      PyErr_WriteUnraisable(turn_.version.get());
  }

  Turn& turn_;
  const bool in_place_;
  const int64_t rows_;
  PyObject* handles_;
  Seen old_;
  Ref counters_, after_, following_, made_;
  Saved* saved_ = nullptr;
  int32_t* new_ = nullptr;
  int64_t nowhere_[4] = {}, beside_[1 + MOST_LEAVES];
};

}  // namespace frb
