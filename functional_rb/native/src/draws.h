// What is drawn, and how it is told.
#pragma once
#include "writes.h"

namespace frb {

// How many draws there are in a batch of some size, and with which exponent of the weights; false for what is not usual.
inline bool take_size(const KnownBuffer* known, PyObject* size_asked, int64_t* draws) {
  int overflow = 0;
  if (size_asked != Py_None && !PyLong_CheckExact(size_asked)) return false;
  const int64_t size = size_asked == Py_None ? known->batch_size : PyLong_AsLongLongAndOverflow(size_asked, &overflow);
  *draws = size / known->unit;
  return !overflow && 0 < size && size % known->unit == 0 && *draws <= INT32_MOST / known->length;
}
inline bool take_beta(const KnownBuffer* known, PyObject* beta_asked, float* beta) {
  double value = known->beta;
  if (beta_asked != Py_None) {
    if (!known->prioritized || !(PyFloat_CheckExact(beta_asked) || PyLong_CheckExact(beta_asked))) return false;
    value = PyFloat_AsDouble(beta_asked);
    if (PyErr_Occurred()) return PyErr_Clear(), false;
  }
  *beta = float(value);
  return 0 <= value && value <= 100;
}

// A batch that is being drawn: the selection in one piece of memory, the items in another, as one may outlive the other, or in
// arrays that are given for them. On a GPU each array has memory of its own, as torch records for whole ones which streams
// read them.
class Drawn {
 public:
  // Of a mixture handles are of two numbers, and no slots are told.
  Drawn(Turn& turn, int64_t draws, PyObject* given = Py_None, bool mixed = false, bool frames = true)
      : Drawn(turn.known(), draws, turn.place()->where, turn.chain(), given, mixed, frames) {
    if (where_.on_gpu) take_on_gpu(turn);
  }
  Drawn(const KnownBuffer* known, int64_t draws, const Where& where = ON_THE_HOST, const VersionChain* chain = nullptr,
        PyObject* given = Py_None, bool mixed = false, bool frames = true)
      : known_(known), where_(where), frames_(where.on_gpu || (known->reads_frames && (frames || !known->extras.empty()))), read_(known->leaves_drawn(frames_)), mixed_(mixed), draws_(draws), steps_(draws * known->length),
        given_(given != Py_None && take_given(chain, given) ? Ref::to(given) : Ref()), told_(where.on_gpu ? 0 : bytes_told()),
        items_(where.on_gpu || given_ ? 0 : bytes_of_items()) {
    if (where.on_gpu || !told_ || !items_) return;
    for (int k = 0; k < columns(); ++k) columns_[k] = told_.take<char>(bytes(k));
    if (tells_slots()) slots_ = told_.take<int32_t>(4 * steps_);
    for (size_t k = 0; !given_ && k < leaves(); ++k)
      leaves_[k] = reinterpret_cast<int64_t>(items_.take<char>(read_[k].bytes * steps_));
  }
  bool has_room() const { return told_ && items_ && !lacks_; }
  bool is_given() const { return bool(given_); }
  // The reference would take even more memory.
  PyObject* no_room() const {
    if (where_.on_gpu) return not_here();
    return PyErr_Format(PyExc_MemoryError, "sample: expected memory for %lld items of %lld bytes, got none; draw fewer at once",
                        static_cast<long long>(steps_), static_cast<long long>(row_bytes()));
  }

  // What draws it.
  BufferCall described(Turn& turn, const Seen& counters) { return described(call_on(turn, counters)); }
  BufferCall described(BufferCall call) {
    call.items = leaves_, call.item_count = call.given = int64_t(leaves()), call.row_bytes = row_bytes();
    if (!frames_) call.frames = nullptr;
    call.batch = draws_, call.slots = slots_, call.handles = column<int32_t>(HANDLES);
    call.weights = column<float>(WEIGHTS), call.probabilities = column<float>(PROBABILITIES);
    call.drawn = column<uint8_t>(MASK), call.is_first = column<uint8_t>(IS_FIRST);
    call.is_last = column<uint8_t>(IS_LAST), call.truncated = column<uint8_t>(TRUNCATED);
    return call;
  }

  // (state, leaves, slots, extras, indices, weights, probabilities and, if there are such, masks); None for what is not there.
  Ref as_parts(const VersionChain* chain, PyObject* state) {
    const Ref items = as_leaves(chain);
    Ref parts(PyTuple_New(4 + columns()));
    Ref extras = known_->extras.empty() || !leaves() ? Ref::to(Py_None) : extras_told(chain);
    Ref slots = where_.on_gpu && slots_ ? Ref::to(on_gpu_[SLOTS].get())
                : slots_                ? handed(chain, told_, reinterpret_cast<char*>(slots_), INT32, 1, &steps_)
                                        : Ref::to(Py_None);
    if (!items || !parts || !slots || !extras || PyTuple_SetItem(parts.get(), 0, Py_NewRef(state)) ||
        PyTuple_SetItem(parts.get(), 1, Py_NewRef(items.get())) || PyTuple_SetItem(parts.get(), 2, slots.give()) ||
        PyTuple_SetItem(parts.get(), 3, extras.give()))
      return Ref();
    return put_columns(chain, parts, 4) ? std::move(parts) : Ref();
  }

  // `Sample(items, indices, weights, probabilities, extras)`, or of another class with masks before the extras.
  Ref as_sample(const VersionChain* chain) {
    const Ref items = as_items(chain), arguments(PyTuple_New(2 + columns()));
    Ref extras = extras_told(chain);
    if (!items || !arguments || !extras || PyTuple_SetItem(arguments.get(), 0, Py_NewRef(items.get())) ||
        !put_columns(chain, arguments, 1) || PyTuple_SetItem(arguments.get(), 1 + columns(), extras.give()))
      return Ref();
    const Given kind = known_->slices() ? SLICE_SAMPLE : known_->masked ? MASKED_SAMPLE : SAMPLE;
    return Ref(PyObject_CallObject(chain->given[kind], arguments.get()));
  }

 private:
  enum Column { HANDLES, WEIGHTS, PROBABILITIES, MASK, IS_FIRST, IS_LAST, TRUNCATED, MOST_COLUMNS, SLOTS = MOST_COLUMNS, FIRST_LEAF };

  bool tells_slots() const { return !mixed_ && known_->tells_slots(where_.on_gpu); }
  int columns() const { return known_->slices() ? MOST_COLUMNS : known_->masked ? MASK + 1 : MASK; }
  size_t leaves() const { return known_->reads_now(where_.on_gpu) ? read_.size() : 0; }
  static bool of_draws(int k) { return k == WEIGHTS || k == PROBABILITIES; }
  int64_t bytes(int k) const { return of_draws(k) ? 4 * draws_ : k == HANDLES ? (mixed_ ? 8 : 4) * steps_ : steps_; }
  int64_t bytes_told() const {
    int64_t sum = tells_slots() ? whole_lines(4 * steps_) : 0;
    for (int k = 0; k < columns(); ++k) sum += whole_lines(bytes(k));
    return sum;
  }
  int64_t row_bytes() const {
    int64_t sum = 0;
    for (const Leaf& leaf : read_) sum += leaf.bytes;
    return sum;
  }
  int64_t bytes_of_items() const {
    int64_t sum = 0;
    for (size_t k = 0; k < leaves(); ++k) sum += whole_lines(read_[k].bytes * steps_);
    return sum;
  }
  template <class T> T* column(Column k) const { return reinterpret_cast<T*>(columns_[k]); }

  // The leading axes of a batch.
  int lead(int64_t* shape) const {
    shape[0] = known_->divided ? draws_ : steps_;
    if (known_->divided) shape[1] = known_->length;
    return 1 + known_->divided;
  }
  int shape_of(const Leaf& leaf, int64_t* shape) const {
    int axes = lead(shape);
    for (const int64_t size : leaf.shape) shape[axes++] = size;
    return axes;
  }
  void take_on_gpu(Turn& turn) {
    int64_t shape[MOST_AXES];
    char* at = nullptr;
    auto take = [&](size_t k, int maker, int axes, const int64_t* sizes) {
      if (!lacks_) on_gpu_[k] = turn.array(maker, axes, sizes, &at);
      lacks_ = lacks_ || !on_gpu_[k];
      return at;
    };
    const int axes = lead(shape);
    shape[axes] = 2;
    if (mixed_) columns_[HANDLES] = take(HANDLES, INT32S, axes + 1, shape);
    for (int k = mixed_ ? HANDLES + 1 : HANDLES; k < columns(); ++k)
      columns_[k] = take(size_t(k), of_draws(k) ? FLOAT32S : k == HANDLES ? INT32S : BOOLS, of_draws(k) ? 1 : axes,
                         of_draws(k) ? &draws_ : shape);
    if (tells_slots()) slots_ = reinterpret_cast<int32_t*>(take(SLOTS, INT32S, 1, &steps_));
    for (size_t k = 0; k < leaves(); ++k) {
      const int axes = shape_of(read_[k], shape);
      leaves_[k] = reinterpret_cast<int64_t>(take(FIRST_LEAF + k, LEAVES + int(k), axes, shape));
    }
  }
  // Whether what is given are arrays on the host, for each leaf one of as many rows as are drawn.
  bool take_given(const VersionChain* chain, PyObject* given) {
    bool fits = !where_.on_gpu && PyList_Check(given) && size_t(PyList_Size(given)) == leaves();
    for (size_t k = 0; fits && k < leaves(); ++k) {
      int64_t shape[MOST_AXES];
      const int axes = shape_of(read_[k], shape);
      Seen seen;
      fits = chain->arrays.see(PyList_GetItem(given, Py_ssize_t(k)), seen, ON_THE_HOST) && seen.contiguous() &&
             seen.dtype == read_[k].dtype && seen.ndim == axes && std::equal(shape, shape + axes, seen.shape);
      leaves_[k] = reinterpret_cast<int64_t>(seen.data);
    }
    return fits;
  }
  bool put_columns(const VersionChain* chain, const Ref& tuple, int first) {
    int64_t shape[3];
    const int axes = lead(shape);
    shape[axes] = 2;
    for (int k = 0; where_.on_gpu && k < columns(); ++k)
      if (PyTuple_SetItem(tuple.get(), first + k, Py_NewRef(on_gpu_[k].get()))) return false;
    for (int k = 0; !where_.on_gpu && k < columns(); ++k) {
      const Dtype dtype = of_draws(k) ? FLOAT32 : k == HANDLES ? INT32 : BOOL;
      Ref array = handed(chain, told_, columns_[k], dtype, of_draws(k) ? 1 : axes + (mixed_ && k == HANDLES), of_draws(k) ? &draws_ : shape);
      if (!array || PyTuple_SetItem(tuple.get(), first + k, array.give())) return false;
    }
    return true;
  }
  Ref extras_told(const VersionChain* chain) {
    Ref by_name(PyDict_New());
    for (const Extra& extra : known_->extras) {
      const Ref array = by_name ? leaf(chain, size_t(extra.leaf)) : Ref();
      if (!array || PyDict_SetItem(by_name.get(), extra.name, array.get())) return Ref();
    }
    return by_name;
  }
  Ref leaf(const VersionChain* chain, size_t k) {
    if (where_.on_gpu) return Ref::to(on_gpu_[FIRST_LEAF + k].get());
    const Leaf& leaf = read_[k];
    int64_t shape[MOST_AXES];
    const int axes = shape_of(leaf, shape);
    char* data = reinterpret_cast<char*>(leaves_[k]);
    PyObject* numpy = chain->is_numpy || known_->in_numpy ? leaf.numpy : nullptr;
    return chain->arrays.handed(items_, data, leaf.dtype, axes, shape, numpy);
  }
  // Those of the items.
  Ref as_leaves(const VersionChain* chain) {
    if (is_given()) return Ref::to(given_.get());
    Ref list(PyList_New(0));
    for (size_t k = 0; k + known_->extras.size() < leaves(); ++k) {
      const Ref array = list ? leaf(chain, k) : Ref();
      if (!array || PyList_Append(list.get(), array.get())) return Ref();
    }
    return list;
  }
  Ref as_items(const VersionChain* chain) {
    if (!known_->given.empty()) {
      Ref items(PyDict_New());
      for (const int k : known_->given) {
        const Ref array = items ? leaf(chain, size_t(k)) : Ref();
        if (!array || PyDict_SetItem(items.get(), read_[size_t(k)].name, array.get())) return Ref();
      }
      return items;
    }
    int64_t shape[2] = {};
    const bool divided = lead(shape) > 1;
    const Ref leaves = as_leaves(chain), sizes(divided ? Py_BuildValue("(LL)", shape[0], shape[1]) : Py_BuildValue("(L)", shape[0]));
    return leaves && sizes ? called(chain->given[TOGETHER], known_->spec, leaves.get(), sizes.get()) : Ref();
  }

  const KnownBuffer* known_;
  const Where where_;
  const bool frames_;  // whether these are read
  const std::vector<Leaf>& read_;
  const bool mixed_;
  int64_t draws_, steps_;
  int64_t leaves_[MOST_LEAVES] = {};
  const Ref given_;
  Sheet told_, items_;
  bool lacks_ = false;
  Ref on_gpu_[FIRST_LEAF + gpu::MOST];
  char* columns_[MOST_COLUMNS] = {};
  int32_t* slots_ = nullptr;
};

// A key, or random bits int32 [rows, words] that were made of one; without words a key alone.
struct Random {
  Seen seen;
  int64_t key = 0;
  const int64_t* key_at = nullptr;  // of a key on the GPU
  const int32_t* bits = nullptr;

  bool take(const VersionChain* chain, const KnownBuffer* known, const Where& where, PyObject* given, int64_t draws,
            bool may_be_bits = false) {
    return take(chain, where, given, draws + (known->draws == ARRIVALS), may_be_bits ? known->words : -1);
  }
  bool take(const VersionChain* chain, const Where& where, PyObject* given, int64_t rows, int64_t words) {
    if (!chain->arrays.see(given, seen, ON_THE_HOST)) {
      // Not with an error, as an interrupt is, while looking: another call of Python's would lose it.
      if (!where.on_gpu || PyErr_Occurred() || !chain->arrays.see(given, seen, where)) return false;
      key_at = reinterpret_cast<const int64_t*>(seen.data);
      return seen.dtype == INT64 && seen.ndim == 0;
    }
    if (seen.dtype == INT64 && seen.ndim == 0 && !chain->is_numpy) return memcpy(&key, seen.data, sizeof key), true;
    bits = reinterpret_cast<const int32_t*>(seen.data);
    return seen.dtype == INT32 && seen.ndim == 2 && seen.shape[0] == rows && seen.shape[1] == words && seen.contiguous();
  }
};

}  // namespace frb
