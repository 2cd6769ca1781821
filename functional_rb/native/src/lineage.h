// What the version chain knows of a buffer: its known, where its arrays lie, and what a write has overwritten.
#pragma once
#include <sched.h>

#include <algorithm>
#include <vector>

#include "arrays.h"
#include "launches.h"
#include "records.h"

namespace frb {

struct Leaf {
  PyObject* name;
  PyObject* numpy;  // NumPy's dtype
  Dtype dtype;
  std::vector<int64_t> shape;
  int64_t bytes;
};

// What a sample tells of returns over n steps: a leaf that is stored beside the items, or that is made as these are read.
struct Extra {
  PyObject* name;
  int leaf;
};

// A buffer's spec as far as kernels know it: `KnownBuffer(spec, beta, records, leaves, added, told, given, names, extras)`,
// of which the records are this one's own, the plan's, and those of the vectors below.
struct KnownObject {
  PyObject_HEAD
};
struct KnownBuffer : KnownObject, KnownRecord {
  PyObject* spec;
  std::vector<int32_t> numbers;      // of the plan's record
  std::vector<int32_t> ring, epoch;  // of theirs, if the sampler has such
  std::vector<int32_t> queue, frames, beside;  // of what is made of added items, and the layout that this has beside them
  std::vector<int32_t> returns;  // of what is made as items are read, on the host
  std::vector<Leaf> leaves;      // in the order in which they are stored
  std::vector<Leaf> added;       // those of items that are given
  std::vector<Leaf> drawn;       // what is read: items, with frames that they share, and behind them what is told as they are read
  PyObject* names;               // of the arrays beside
  std::vector<int> given;        // the order in which a dict of them comes back; empty if the items are no flat dict
  std::vector<Extra> extras;     // the last of what is read, as many of it
  int64_t row_bytes;             // of all leaves
  double beta;

  Plan plan() const { return record_of<Plan>(numbers.data()); }
  int64_t arrays() const { return 1 + plan()->wide; }
  int64_t arrays_beside() const { return PyTuple_Size(names); }
  const QueueRecord* waits() const { return queue.empty() ? nullptr : reinterpret_cast<const QueueRecord*>(queue.data()); }
  const ChainRecord* chain() const { return frames.empty() ? nullptr : reinterpret_cast<const ChainRecord*>(frames.data()); }
  // Of items that share frames, which of the leaves that are given are stored as they are.
  const int32_t* stored() const { return frames.data() + (frames.size() - leaves.size()); }
  // How many steps wait at most.
  int64_t waiting() const { return waits() ? int64_t(waits()->lanes) * (waits()->n - 1) : 0; }
  // How many items a batch may take out, and how many rows beside it may write, with so many steps in each lane.
  // With these the oldest of each lane may change too.
  int64_t most_lost(int64_t steps) const {
    return chain() ? rings()->lanes * (most_frames(chain(), steps, chain()->length) + 2) : 0;
  }
  int64_t most_beside(int64_t steps) const {
    if (rings()->chooses == BEST) return least<int64_t>(steps, plan()->capacity) * levels_of(plan()->capacity);
    return chain() ? rings()->lanes * most_frames(chain(), steps, chain()->room) : waiting();
  }
  // What is read of items that are drawn: with those leaves that are stored as frames, or without.
  const std::vector<Leaf>& leaves_drawn(bool frames) const { return frames || !chain() ? drawn : leaves; }
  bool slices() const { return draws == SLICES || draws == EPOCH_OF_SLICES || draws == FRESH_SLICES; }
  bool reads_now(bool on_gpu) const { return reads && !(on_gpu && later); }
  bool tells_slots(bool on_gpu) const { return slices() || (masked && (!reads || chain())) || (on_gpu && later); }  // to who reads elsewhere
  const RingRecord* rings() const { return reinterpret_cast<const RingRecord*>(ring.data()); }
};

// What samplers keep beside the storage and the tree.
enum Beside { ORDER, PLACES, IN_EPISODE, KEPT, FRAME_AT, TIMES, CURRENT, BESIDE };

// What arrays are made of on a GPU: numbers, masks, bytes, and each leaf.
enum Maker { INT32S, FLOAT32S, BOOLS, BYTES, LEAVES };

// An array of a shape, with hardly any memory, like which torch makes others in half the time that it takes by their shape.
struct Prototype {
  int maker;
  std::vector<int64_t> shape;
  Ref array;
};
constexpr size_t MOST_PROTOTYPES = 128;

// Where the arrays of a memory lie. Whoever has it keeps these alive.
struct Place {
  PyObject_HEAD
  KnownBuffer* known;
  int64_t storage[1 + MOST_LEAVES], rows_beside[1 + MOST_LEAVES];
  float* tree;
  int64_t others[BESIDE];
  int64_t readers;     // how many draws read the arrays without the lineage's lock; guarded by the GIL
  uint64_t generation;  // of the process that made this: in its forks there are none, and they make places of their own
  Where where;
  PyObject* makers;  // on a GPU: with which dtypes and device arrays are made there, see `Maker`; else null
  std::vector<Prototype> prototypes;

  template <class T> T* beside(Beside which) const { return reinterpret_cast<T*>(others[which]); }
  // Take another known, of a spec with the same arrays.
  void use(KnownBuffer* other) {
    Py_INCREF(reinterpret_cast<PyObject*>(other));
    Py_DECREF(reinterpret_cast<PyObject*>(std::exchange(known, other)));
  }
};

// What a write overwrites at most: of so many slots the rows, the priorities, the steps in episodes, how often they were
// drawn and their handles, kept beside these, and the tree's leaves, of those also `more`; what so many writes to a sparse set do, see `Deck`;
// and so many rows beside.
struct Overwritten {
  int64_t room, more, deck;
  bool rows, values, kept, steps, times, current;
  int64_t beside;
};

// What was there before a write, in one piece of memory.
struct Saved {
  PyObject_HEAD
  char* piece;
  PyObject* holder;  // on a GPU the array that all of it lies in
  int64_t bytes, room, deck_room;
  int64_t counts[4];                       // how many of them are filled in, as `BufferCall.saved_count`; a kernel writes it
  int64_t slots, values, kept, steps, times, current, deck, at, places;  // where they begin, or -1
  int64_t copies[1 + MOST_LEAVES], arrays;   // likewise, and how many
  int64_t copies_beside[1 + MOST_LEAVES], arrays_beside;
  PyObject* names;                         // of these
};

inline PyTypeObject *known_type, *place_type, *saved_type;
// How many forks lie between this process and the first: the child of one has none of the other threads.
inline uint64_t generation = 0;


// --- known buffers -------------------------------------------------------------------------------------------------------

inline bool add_leaf(std::vector<Leaf>& leaves, PyObject* described) {
  PyObject *name, *numpy, *shape;
  int code, bits;
  if (!PyArg_ParseTuple(described, "UOiiO!", &name, &numpy, &code, &bits, &PyTuple_Type, &shape)) return false;
  Leaf leaf{nullptr, nullptr, {uint8_t(code), uint8_t(bits)}, {}, bits / 8};
  for (Py_ssize_t k = 0; k < PyTuple_Size(shape); ++k) {
    leaf.shape.push_back(PyLong_AsLongLong(PyTuple_GetItem(shape, k)));
    leaf.bytes *= leaf.shape.back();
  }
  if (PyErr_Occurred()) return false;
  Py_INCREF(name);
  PyUnicode_InternInPlace(&name);
  leaf.name = name, leaf.numpy = Py_NewRef(numpy);
  leaves.push_back(leaf);
  return true;
}

// Nothing where there is an error already.
inline void add_leaves(std::vector<Leaf>& leaves, PyObject* described) {
  for (Py_ssize_t k = 0; k < PyTuple_Size(described) && !PyErr_Occurred(); ++k) add_leaf(leaves, PyTuple_GetItem(described, k));
}

inline void take_record(std::vector<int32_t>& record, const Py_buffer& bytes) {
  const int32_t* numbers = static_cast<const int32_t*>(bytes.buf);
  new (&record) std::vector<int32_t>(numbers, numbers + bytes.len / Py_ssize_t(sizeof(int32_t)));
}

inline PyObject* new_known(PyTypeObject* type, PyObject* args, PyObject*) {
  Py_buffer record, plan, ring, epoch, beside, queue, frames, returns;
  PyObject *of, *leaves, *added, *told, *given, *names, *extras;
  double beta;
  if (!PyArg_ParseTuple(args, "Od(y*y*y*y*y*y*y*y*)O!O!O!O!O!O!", &of, &beta, &record, &plan, &ring, &epoch, &beside, &queue, &frames,
                        &returns, &PyTuple_Type, &leaves, &PyTuple_Type, &added, &PyTuple_Type, &told, &PyTuple_Type, &given,
                        &PyTuple_Type, &names, &PyTuple_Type, &extras))
    return nullptr;
  const Py_ssize_t bytes = sizeof(KnownRecord);
  if (record.len != bytes) PyErr_Format(PyExc_ValueError, "KnownBuffer: expected a record of %zd bytes, got %zd", bytes, record.len);
  KnownBuffer* known = record.len == bytes ? allocated<KnownBuffer>(type) : nullptr;
  if (known) {
    memcpy(static_cast<KnownRecord*>(known), record.buf, sizeof(KnownRecord));
    take_record(known->numbers, plan), take_record(known->ring, ring), take_record(known->epoch, epoch);
    take_record(known->beside, beside), take_record(known->queue, queue), take_record(known->frames, frames);
    take_record(known->returns, returns);
    new (&known->leaves) std::vector<Leaf>();
    new (&known->added) std::vector<Leaf>();
    new (&known->drawn) std::vector<Leaf>();
    new (&known->given) std::vector<int>();
    new (&known->extras) std::vector<Extra>();
    known->spec = Py_NewRef(of), known->names = Py_NewRef(names), known->beta = beta;
    add_leaves(known->leaves, leaves), add_leaves(known->added, added);
    add_leaves(known->drawn, known->chain() ? added : leaves), add_leaves(known->drawn, told);
    for (const Leaf& leaf : known->leaves) known->row_bytes += leaf.bytes;
    for (Py_ssize_t k = 0; k < PyTuple_Size(given); ++k) known->given.push_back(int(PyLong_AsLong(PyTuple_GetItem(given, k))));
    for (Py_ssize_t k = 0; k < PyTuple_Size(extras) && !PyErr_Occurred(); ++k) {
      Extra extra;
      if (!PyArg_ParseTuple(PyTuple_GetItem(extras, k), "Ui", &extra.name, &extra.leaf)) break;
      Py_INCREF(extra.name);
      known->extras.push_back(extra);
    }
  }
  for (Py_buffer* each : {&record, &plan, &ring, &epoch, &beside, &queue, &frames, &returns}) PyBuffer_Release(each);
  if (PyErr_Occurred()) Py_CLEAR(known);
  return reinterpret_cast<PyObject*>(known);
}

// The names of the arrays beside the items.
inline PyObject* known_names(PyObject* self, void*) { return Py_NewRef(reinterpret_cast<KnownBuffer*>(self)->names); }

inline void free_known(PyObject* self) {
  KnownBuffer* known = reinterpret_cast<KnownBuffer*>(self);
  Py_DECREF(known->spec);
  for (const std::vector<Leaf>* leaves : {&known->leaves, &known->added, &known->drawn})
    for (const Leaf& leaf : *leaves) Py_DECREF(leaf.name), Py_DECREF(leaf.numpy);
  for (const Extra& extra : known->extras) Py_DECREF(extra.name);
  Py_DECREF(known->names);
  for (std::vector<int32_t>* each : {&known->numbers, &known->ring, &known->epoch, &known->beside, &known->queue, &known->frames,
                                     &known->returns})
    each->~vector();
  known->leaves.~vector(), known->added.~vector(), known->drawn.~vector(), known->given.~vector(), known->extras.~vector();
  released(self);
}

// --- places ---------------------------------------------------------------------------------------------------------

// Whether all that a kernel for GPUs is told of a buffer has room in its record.
inline bool fits_on_gpu(const KnownBuffer* known) {
  const int64_t leaves = std::max<int64_t>(known->plan()->leaves, int64_t(known->added.size()));
  return gpu::fits(leaves, known->arrays(), int64_t(known->numbers.size()), int64_t(known->ring.size())) &&
         gpu::fits_beside(known->arrays_beside(), int64_t(known->beside.size()), int64_t(std::max(known->frames.size(), known->queue.size())));
}

// A place for arrays of a library: the rows and wide arrays, the tree, and what lies beside; None is not there. None itself
// if kernels cannot read and write all of them. Whoever has the place keeps the arrays. On a GPU there are `makers`.
inline PyObject* made_place(const ArrayLibrary& library, PyObject* args) {
  PyObject *known, *storage, *tree, *makers, *beside, *rows_beside;
  if (!PyArg_ParseTuple(args, "O!O!OO!OO!", known_type, &known, &PyTuple_Type, &storage, &tree, &PyTuple_Type, &beside,
                        &makers, &PyTuple_Type, &rows_beside))
    return nullptr;
  Place* new_place = allocated<Place>(place_type);
  if (!new_place) return nullptr;
  const Ref place(reinterpret_cast<PyObject*>(new_place));
  new_place->known = reinterpret_cast<KnownBuffer*>(Py_NewRef(known)), new_place->generation = generation;
  new_place->where = ON_THE_HOST;
  new (&new_place->prototypes) std::vector<Prototype>();
  const int64_t more = new_place->known->arrays_beside();
  bool fits = PyTuple_Size(storage) == new_place->known->arrays() && PyTuple_Size(rows_beside) == more && PyTuple_Size(beside) == BESIDE;
  if (fits && makers != Py_None) {
    Seen rows;
    fits = fits_on_gpu(new_place->known) && library.see_anywhere(PyTuple_GetItem(storage, 0), rows);
    new_place->where = {rows.device, true}, new_place->makers = Py_NewRef(makers);
  }
  auto address = [&](PyObject* array) {
    Seen seen;
    if (array == Py_None || !fits) return int64_t(0);
    fits = library.see_bytes(array, seen, true, new_place->where) && seen.contiguous();
    return reinterpret_cast<int64_t>(seen.data);
  };
  new_place->tree = reinterpret_cast<float*>(address(tree));
  for (int k = 0; fits && k < BESIDE; ++k) new_place->others[k] = address(PyTuple_GetItem(beside, k));
  for (int64_t k = 0; fits && k < new_place->known->arrays(); ++k) new_place->storage[k] = address(PyTuple_GetItem(storage, k));
  for (int64_t k = 0; fits && k < more; ++k) new_place->rows_beside[k] = address(PyTuple_GetItem(rows_beside, k));
  return PyErr_Occurred() ? nullptr : Py_NewRef(fits ? place.get() : Py_None);
}

inline void free_place(PyObject* self) {
  Py_XDECREF(reinterpret_cast<PyObject*>(reinterpret_cast<Place*>(self)->known));
  Py_XDECREF(reinterpret_cast<Place*>(self)->makers);
  reinterpret_cast<Place*>(self)->prototypes.~vector();
  released(self);
}

// Wait until no draw reads the arrays any more; whoever is about to write holds the lineage's lock, so that none begins.
inline bool quiet(Place* place) {
  while (place->generation == generation && place->readers) {
    Py_BEGIN_ALLOW_THREADS
    sched_yield();
    Py_END_ALLOW_THREADS
    if (PyErr_CheckSignals()) return false;
  }
  return true;
}

inline PyObject* wait_for_readers(PyObject* self, PyObject*) {
  if (!quiet(reinterpret_cast<Place*>(self))) return nullptr;
  Py_RETURN_NONE;
}

// A draw that goes on after it has let go of the lineage's lock.
class Reading {
 public:
  explicit Reading(Place* place) : place_(place) { ++place->readers; }
  ~Reading() { --place_->readers; }

 private:
  Place* place_;
};

// --- saved slots ----------------------------------------------------------------------------------------------------

// `hold` makes memory of so many bytes in which it is to lie; false with an error.
template <class Hold>
Saved* saved_room(PyTypeObject* type, const KnownBuffer* known, const Overwritten& what, const Hold& hold) {
  Saved* saved = allocated<Saved>(type);
  if (!saved) return nullptr;
  const Plan plan = known->plan();
  int64_t bytes = 0;
  auto take = [&bytes](int64_t size) {
    const int64_t at = bytes;
    bytes += whole_lines(size);
    return at;
  };
  const int64_t n = saved->room = what.room, leaves = n + what.more;
  saved->slots = take(leaves * 4), saved->values = what.values ? take(leaves * 4) : -1;
  saved->kept = what.kept ? take(n * 4) : -1, saved->steps = what.steps ? take(n * 4) : -1;
  saved->times = what.times ? take(n * 4) : -1, saved->current = what.current ? take(n * 4) : -1;
  saved->deck_room = what.deck, saved->deck = what.deck ? take(4 * what.deck * 4) : -1;
  saved->arrays = what.rows ? known->arrays() : 0;
  for (int64_t k = 0; k < saved->arrays; ++k) saved->copies[k] = take(n * plan.stored_bytes(k));
  saved->names = Py_NewRef(known->names);
  saved->arrays_beside = what.beside ? known->arrays_beside() : 0;
  saved->at = what.beside && known->chain() ? take(n * 4) : -1, saved->places = what.beside ? take(what.beside * 4) : -1;
  for (int64_t k = 0; k < saved->arrays_beside; ++k)
    saved->copies_beside[k] = take(what.beside * record_of<Plan>(known->beside.data()).stored_bytes(k));
  saved->bytes = bytes;
  if (hold(saved)) return saved;
  Py_DECREF(reinterpret_cast<PyObject*>(saved));
  return nullptr;
}
inline bool held_by_the_host(Saved* saved) {
  saved->piece = static_cast<char*>(malloc(size_t(saved->bytes ? saved->bytes : 1)));
  return saved->piece || PyErr_NoMemory();
}

inline void free_saved(PyObject* self) {
  Saved* saved = reinterpret_cast<Saved*>(self);
  if (!saved->holder) free(saved->piece);
  Py_XDECREF(saved->holder);
  Py_XDECREF(saved->names);
  released(self);
}

inline int saved_buffer(PyObject* self, Py_buffer* view, int flags) {
  Saved* saved = reinterpret_cast<Saved*>(self);
  if (saved->holder) return PyErr_SetString(PyExc_BufferError, "what was saved lies on a GPU"), -1;
  return PyBuffer_FillInfo(view, self, saved->piece, Py_ssize_t(saved->bytes), 0, flags);
}

// The array that all of it lies in on a GPU, else None.
inline PyObject* saved_holder(PyObject* self, void*) {
  PyObject* holder = reinterpret_cast<Saved*>(self)->holder;
  return Py_NewRef(holder ? holder : Py_None);
}
inline PyObject* saved_nbytes(PyObject* self, void*) {
  return PyLong_FromLongLong(reinterpret_cast<Saved*>(self)->bytes + int64_t(sizeof(Saved)));
}
// Of how many slots rows were saved, of how many leaves of the tree, how many writes to a sparse set, and rows beside.
inline PyObject* saved_counts(PyObject* self, void*) {
  const int64_t* counts = reinterpret_cast<Saved*>(self)->counts;
  return Py_BuildValue("LLLL", counts[0], counts[0] + counts[1], counts[2], counts[3]);
}
// The names of the arrays beside the items.
inline PyObject* saved_names(PyObject* self, void*) { return Py_NewRef(reinterpret_cast<Saved*>(self)->names); }

inline Ref numbers_told(const int64_t* numbers, int64_t count) {
  Ref tuple(PyTuple_New(Py_ssize_t(count)));
  for (int64_t k = 0; tuple && k < count; ++k)
    if (PyTuple_SetItem(tuple.get(), Py_ssize_t(k), PyLong_FromLongLong(numbers[k]))) return Ref();
  return tuple;
}

// (slots, values, kept, steps, times, handles, deck, room of its columns, (copies of each array), frames' numbers, places of rows
// beside, (copies of each array of theirs)): where each begins in the buffer that this is, or -1.
inline PyObject* saved_offsets(PyObject* self, void*) {
  const Saved* saved = reinterpret_cast<Saved*>(self);
  Ref copies = numbers_told(saved->copies, saved->arrays), beside = numbers_told(saved->copies_beside, saved->arrays_beside);
  if (!copies || !beside) return nullptr;
  return Py_BuildValue("LLLLLLLLNLLN", saved->slots, saved->values, saved->kept, saved->steps, saved->times, saved->current,
                       saved->deck, saved->deck_room, copies.give(), saved->at, saved->places, beside.give());
}

// --- the types ------------------------------------------------------------------------------------------------------

inline PyTypeObject* made_type(PyObject* module, const char* name, PyType_Spec& spec) {
  PyObject* type = PyType_FromSpec(&spec);
  if (!type || PyModule_AddObjectRef(module, name, type)) Py_CLEAR(type);
  return reinterpret_cast<PyTypeObject*>(type);
}

inline bool add_lineage_types(PyObject* module) {
  static PyGetSetDef of_known[] = {{"names", known_names, nullptr, nullptr, nullptr}, {}};
  static PyType_Slot known[] = {{Py_tp_new, reinterpret_cast<void*>(new_known)}, {Py_tp_getset, of_known},
                                  {Py_tp_dealloc, reinterpret_cast<void*>(free_known)}, {0, nullptr}};
  static PyType_Spec known_spec = {"functional_rb._native.KnownBuffer", sizeof(KnownBuffer), 0, Py_TPFLAGS_DEFAULT, known};
  static PyMethodDef methods[] = {{"wait", wait_for_readers, METH_NOARGS, nullptr}, {}};
  static PyType_Slot place[] = {{Py_tp_dealloc, reinterpret_cast<void*>(free_place)},
                                {Py_tp_methods, methods}, {0, nullptr}};
  static PyType_Spec place_spec = {"functional_rb._native.Place", sizeof(Place), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, place};
  static PyGetSetDef fields[] = {{"nbytes", saved_nbytes, nullptr, nullptr, nullptr},
                                 {"counts", saved_counts, nullptr, nullptr, nullptr},
                                 {"names", saved_names, nullptr, nullptr, nullptr},
                                 {"offsets", saved_offsets, nullptr, nullptr, nullptr},
                                 {"holder", saved_holder, nullptr, nullptr, nullptr}, {}};
  static PyType_Slot holder[] = {{Py_tp_dealloc, reinterpret_cast<void*>(free_holder)},
                                 {Py_bf_getbuffer, reinterpret_cast<void*>(holder_buffer)}, {0, nullptr}};
  static PyType_Spec holder_spec = {"functional_rb._native.Holder", sizeof(Holder), 0,
                                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, holder};
  static PyType_Slot saved[] = {{Py_tp_dealloc, reinterpret_cast<void*>(free_saved)}, {Py_tp_getset, fields},
                                {Py_bf_getbuffer, reinterpret_cast<void*>(saved_buffer)}, {0, nullptr}};
  static PyType_Spec saved_spec = {"functional_rb._native.Saved", sizeof(Saved), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION, saved};
  return (known_type = made_type(module, "KnownBuffer", known_spec)) && (place_type = made_type(module, "Place", place_spec)) &&
         (holder_type = made_type(module, "Holder", holder_spec)) &&
         (saved_type = made_type(module, "Saved", saved_spec));
}

}  // namespace frb
