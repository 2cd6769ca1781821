// Writes to buffers that processes share, each whole, under their lock; `shared.h` has the steps.
#pragma once
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "bind.h"
#include "draws.h"
#include "shared.h"

namespace frb {

// --- the lock -------------------------------------------------------------------------------------------------------

// `functional_rb.shared.lock.FileLock`, as far as it is held: `flock`, behind a lock for the threads of this process.
struct Lock {
  PyObject_HEAD
  PyThread_type_lock threads;
  unsigned long holder;  // the thread that has both, or 0
  int fd;
};

// Has the lock for as long as this lives, if it could be taken. Who waits does so without the GIL, and hears signals.
class Holding {
 public:
  ~Holding() {
    if (!lock_) return;
    flock(lock_->fd, LOCK_UN);
    lock_->holder = 0;
    PyThread_release_lock(threads_);
  }
  bool take(Lock* lock) {
    if (FRB_FAULT(UNLOCKED)) return true;
    if (lock->fd < 0 || lock->holder == PyThread_get_thread_ident())
      return called_method(reinterpret_cast<PyObject*>(lock), names.refuse), false;  // with an error
    threads_ = lock->threads;  // the child of a fork has another one
    for (bool got = PyThread_acquire_lock(threads_, NOWAIT_LOCK); !got;) {
      Py_BEGIN_ALLOW_THREADS
      got = PyThread_acquire_lock_timed(threads_, -1, 1) == PY_LOCK_ACQUIRED;
      Py_END_ALLOW_THREADS
      if (!got && PyErr_CheckSignals()) return false;
    }
    int error = flock(lock->fd, LOCK_EX | LOCK_NB) ? errno : 0;
    while (error == EWOULDBLOCK || error == EINTR) {
      Py_BEGIN_ALLOW_THREADS
      error = flock(lock->fd, LOCK_EX) ? errno : 0;
      Py_END_ALLOW_THREADS
      if (error == EINTR && PyErr_CheckSignals()) break;
    }
    if (!error) return lock->holder = PyThread_get_thread_ident(), lock_ = lock, true;
    PyThread_release_lock(threads_);
    if (!PyErr_Occurred()) errno = error, PyErr_SetFromErrno(PyExc_OSError);
    return false;
  }

 private:
  Lock* lock_ = nullptr;
  PyThread_type_lock threads_ = nullptr;
};

// hold(work, finish): what the first returns, called under the lock, and then the second, even if that raised.
inline PyObject* hold(PyObject* self, PyObject* args) {
  PyObject *work, *finish;
  Holding holding;
  if (!PyArg_ParseTuple(args, "OO", &work, &finish) || !holding.take(reinterpret_cast<Lock*>(self))) return nullptr;
  Ref result = called(work);
  if (result) return called(finish) ? result.give() : nullptr;
  const KeptError kept;
  called(finish);
  return nullptr;
}

// reset(fd): lock another descriptor, which its owner closes; no thread of this process has it.
inline PyObject* reset(PyObject* self, PyObject* fd) {
  Lock* lock = reinterpret_cast<Lock*>(self);
  const long new_fd = PyLong_AsLong(fd);
  const PyThread_type_lock threads = PyErr_Occurred() ? nullptr : PyThread_allocate_lock();
  if (!threads) return PyErr_Occurred() ? nullptr : PyErr_NoMemory();
  // One that is held is let go of by its holder, or by nobody, in the child of a fork.
  if (lock->threads && PyThread_acquire_lock(lock->threads, NOWAIT_LOCK)) PyThread_free_lock(lock->threads);
  lock->threads = threads, lock->holder = 0;
  lock->fd = int(new_fd);
  Py_RETURN_NONE;
}

inline PyObject* fd_of(PyObject* self, void*) { return PyLong_FromLong(reinterpret_cast<Lock*>(self)->fd); }
inline PyObject* new_lock(PyTypeObject* type, PyObject*, PyObject*) {
  Lock* lock = allocated<Lock>(type);
  if (lock) lock->fd = -1;
  return reinterpret_cast<PyObject*>(lock);
}
inline void free_lock(PyObject* self) {
  Lock* lock = reinterpret_cast<Lock*>(self);
  if (lock->threads) PyThread_free_lock(lock->threads);
  released(self);
}

// --- writes ---------------------------------------------------------------------------------------------------------

// What `functional_rb.shared.buffer.SharedBuffer` is of: its attributes, for as long as it lives.
struct SharedParts {
  Ref lock, files, known;
  Argument<int64_t*> control;
  Argument<Plan> plan;
  Argument<Addresses> storage, journal;
  Argument<Span<float>> tree;
  Argument<const int64_t*> room;
  int64_t item_bytes = 0;
};
struct Shared {
  PyObject_HEAD
  SharedParts* parts;

  PyObject* self() { return reinterpret_cast<PyObject*>(this); }
  Control control() const { return parts->control.get(); }
  Plan plan() const { return parts->plan.get(); }
  const KnownBuffer* known() const {  // null if the version chain knows no such
    return parts->known.is(Py_None) ? nullptr : reinterpret_cast<const KnownBuffer*>(parts->known.get());
  }
  BufferCall call() const {
    BufferCall call{};
    const Addresses storage = parts->storage.get();
    call.plan = reinterpret_cast<const int32_t*>(plan().at), call.storage = storage.at, call.arrays = storage.size;
    call.control = control(), call.tree = parts->tree.get().at, call.row_bytes = parts->item_bytes;
    return call;
  }
};

// Begin a turn under the lock, on a buffer that is repaired if somebody has died in a write: SOUND, or what is damaged, or
// FAILED with an error.
constexpr int64_t FAILED = -1;
inline int64_t enter(Shared* of, Holding& holding) {
  if (!holding.take(reinterpret_cast<Lock*>(of->parts->lock.get()))) return FAILED;
  if (word(of->control(), SEQUENCE) & 1 && !called_method(of->self(), names._repair)) return FAILED;
  return shared_problem_of_control(of->control(), of->plan());
}

// Have room on the disk, and note in the journal what will be written.
inline bool noted(Shared* of, const BufferCall& call, int64_t marked) {
  const int64_t capacity = of->plan()->capacity;
  if (call.given_handles) {
    apart_if(call.given, [&] {
      return shared_note_update(call.control, of->plan(), of->parts->storage.get(), {call.tree, 0}, of->parts->journal.get(),
                                {call.given_handles, call.batch}, call.given > 0);
    });
    return true;
  }
  const Ref end(PyLong_FromLongLong(least(call.counters[CURSOR] % capacity + marked, capacity)));
  return end && called_method(of->parts->files.get(), names.reserve, end.get()) &&
         (shared_note_add(call.control, of->plan(), marked), true);
}

// A whole write: handles are of items to be updated, else rows are added. Returns as `enter`; one that is cut short is
// taken back.
inline int64_t written(Shared* of, BufferCall call) {
  int64_t saved[3], marked = call.mask ? 0 : call.batch;
  for (int64_t row = 0; call.mask && row < call.batch; ++row) marked += call.mask[row] != 0;
  Holding holding;
  if (!marked) return SOUND;
  const int64_t problem = enter(of, holding);
  if (problem != SOUND) return problem;
  const int64_t sequence = word(call.control, SEQUENCE);
  call.counters = counters_at(call.control, sequence), call.new_counters = counters_at(call.control, sequence + 2);
  call.saved_count = saved, call.item_count = call.given;
  if (noted(of, call, marked)) {
    shared_begin(call.control);
    const int outcome = run(call.given_handles ? kernels.update : kernels.add, call, is_large(call, call.batch));
    if (outcome == DONE) return shared_commit(call.control, 0), SOUND;
    PyErr_NoMemory();
  }
  const KeptError kept;
  called_method(of->self(), names._repair);
  return FAILED;
}

// share(): take the parts, once they are attributes.
inline PyObject* share(PyObject* self, PyObject*) {
  auto parts = std::make_unique<SharedParts>();
  const auto field = [self](const char* name) { return Ref(PyObject_GetAttrString(self, name)); };
  const auto take = [&field](auto& argument, const char* name) {
    const Ref value = field(name);
    return value && argument.take(value.get());
  };
  parts->lock = field("_lock"), parts->files = field("files"), parts->known = field("_known");
  if (!parts->lock || !parts->files || !parts->known || !take(parts->control, "_control") || !take(parts->plan, "_plan") ||
      !take(parts->storage, "_storage") || !take(parts->tree, "_tree") || !take(parts->journal, "_journal") ||
      !take(parts->room, "_room"))
    return nullptr;
  for (int64_t k = 0; k <= parts->plan.get()->wide; ++k) parts->item_bytes += parts->plan.get().stored_bytes(k);
  delete std::exchange(reinterpret_cast<Shared*>(self)->parts, parts.release());
  Py_RETURN_NONE;
}

// write(size, mask, handles, priorities, leaves): add so many rows, or update as many items as the journal has room for, by
// arrays of NumPy's in a row.
inline PyObject* write_shared(PyObject* self, PyObject* args) {
  Shared* of = reinterpret_cast<Shared*>(self);
  PyObject *marks, *selects, *values, *items;
  long long size;
  Argument<Addresses> leaves;
  Argument<const uint8_t*> mask;
  Argument<const int32_t*> handles, priorities;
  if (!of->parts) return PyErr_SetString(PyExc_RuntimeError, "write: the buffer was not opened; make it by open"), nullptr;
  if (!PyArg_ParseTuple(args, "LOOOO", &size, &marks, &selects, &values, &items) || !mask.take(marks) ||
      !handles.take(selects) || !priorities.take(values) || !leaves.take(items))
    return nullptr;
  BufferCall call = of->call();
  call.batch = size, call.items = leaves.get().at, call.given = leaves.get().size;
  call.mask = mask.get(), call.given_handles = handles.get(), call.priorities = priorities.get();
  const int64_t problem = written(of, call);
  return problem == FAILED ? nullptr : PyLong_FromLongLong(problem);
}

inline void free_shared(PyObject* self) {
  delete reinterpret_cast<Shared*>(self)->parts;
  released(self);
}

inline PyTypeObject* shared_type;
inline bool add_shared_types(PyObject* module) {
  static PyMethodDef of_lock[] = {{"hold", hold, METH_VARARGS, nullptr}, {"reset", reset, METH_O, nullptr}, {}};
  static PyGetSetDef fields[] = {{"fd", fd_of, nullptr, nullptr, nullptr}, {}};
  static PyType_Slot lock[] = {{Py_tp_new, reinterpret_cast<void*>(new_lock)},
                               {Py_tp_dealloc, reinterpret_cast<void*>(free_lock)},
                               {Py_tp_getset, fields}, {Py_tp_methods, of_lock}, {0, nullptr}};
  static PyMethodDef of_shared[] = {{"share", share, METH_NOARGS, nullptr}, {"write", write_shared, METH_VARARGS, nullptr}, {}};
  static PyType_Slot shared[] = {{Py_tp_dealloc, reinterpret_cast<void*>(free_shared)},
                                 {Py_tp_methods, of_shared}, {0, nullptr}};
  const unsigned flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE;
  static PyType_Spec lock_spec = {"functional_rb._native.Lock", sizeof(Lock), 0, flags, lock};
  static PyType_Spec shared_spec = {"functional_rb._native.Shared", sizeof(Shared), 0, flags, shared};
  return made_type(module, "Lock", lock_spec) && (shared_type = made_type(module, "Shared", shared_spec));
}

}  // namespace frb
