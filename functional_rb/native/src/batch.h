// What a user gives to `add` and `update`, checked where it is what is usual, and as kernels take it.
#pragma once
#include <cmath>

#include "lineage.h"

namespace frb {

enum class Found { READY, ELSEWHERE, FAILED };  // FAILED: with an error of Python's

// A Python number as the only element of a scalar leaf, if it is of its kind and in its range; see `dtypes.check_scalar`.
inline bool number_of(PyObject* number, Dtype dtype, char* to) {
  if (PyBool_Check(number)) return dtype == BOOL && (*to = number == Py_True, true);
  if (PyFloat_CheckExact(number)) {
    const double value = PyFloat_AsDouble(number);
    const float narrow = float(value);
    if (dtype == FLOAT64) return memcpy(to, &value, 8), true;
    if (!(dtype == FLOAT32) || (std::isinf(narrow) && !std::isinf(value))) return false;
    return memcpy(to, &narrow, 4), true;
  }
  if (!PyLong_CheckExact(number) || !(dtype == INT32 || dtype == INT64)) return false;
  int overflow;
  const int64_t value = PyLong_AsLongLongAndOverflow(number, &overflow);
  if (overflow || (dtype == INT32 && value != int32_t(value))) return false;
  return memcpy(to, &value, dtype.bits / 8), true;  // the first bytes are the lowest
}
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "as number_of takes them");

// The arrays of one call, seen, with addresses for kernels. Users' batches have an axis of so many lanes, if there are any.
class Batch {
 public:
  Batch(const KnownBuffer* known, const ArrayLibrary& library, const Where& where, int64_t lanes = 0)
      : known_(known), library_(library), where_(where), lanes_(lanes) {}

  int64_t rows = -1;
  int64_t items[2 * MOST_LEAVES + 1] = {};  // addresses of leaves, and behind them those of saved rows
  int64_t given = 0;                        // how many of them are leaves
  const uint8_t* mask = nullptr;
  const int32_t* priorities = nullptr;
  const int32_t* handles = nullptr;
  PyObject* given_handles = nullptr;

  // All leaves, each of one item, or of one step of all lanes, or each with an axis of as many rows.
  bool take_leaf(int k, PyObject* array) {
    const Leaf& leaf = known_->added[size_t(k)];
    const int axes = int(leaf.shape.size());
    Seen& seen = leaves_[k];
    held_[k] = Ref::to(array);  // a nest may be changed while a kernel reads what was in it
    if (!library_.see(array, seen, where_) && !(leaf.dtype == BFLOAT16 && !where_.on_gpu && library_.see_untold(array, seen, leaf.numpy, leaf.dtype)))
      return !where_.on_gpu && axes == 0 && take_number(k, array);
    const int lead = seen.ndim - axes, least = lanes_ ? 1 : 0;
    if (!(seen.dtype == leaf.dtype) || lead < least || lead > least + 1 || !seen.contiguous()) return false;
    if (lanes_ && seen.shape[lead - 1] != lanes_) return false;
    for (int j = 0; j < axes; ++j)
      if (seen.shape[lead + j] != leaf.shape[size_t(j)]) return false;
    items[k] = reinterpret_cast<int64_t>(seen.data);
    return agrees(seen.shape, lead);
  }
  bool take_mask(PyObject* array) {
    if (array == Py_None) return true;
    if (!take_vector(array, mask_, BOOL, false)) return false;
    mask = reinterpret_cast<const uint8_t*>(mask_.data);
    return true;
  }
  bool take_priorities(PyObject* array) {
    if (array == Py_None) return true;
    if (!known_->prioritized || !take_vector(array, priorities_, FLOAT32, true)) return false;
    priorities = reinterpret_cast<const int32_t*>(priorities_.data);
    return true;
  }
  bool take_handles(PyObject* array) {
    if (!library_.see(array, handles_, where_) || !(handles_.dtype == INT32) || handles_.ndim != 1 || !handles_.contiguous())
      return false;
    rows = handles_.shape[0], given_handles = array;
    handles = reinterpret_cast<const int32_t*>(handles_.data);
    return true;
  }

 private:
  // Whether the axes in front are those of the other leaves.
  bool agrees(const int64_t* shape, int lead) {
    const int64_t first = lead ? shape[0] : 1, size = lead == 2 ? first * lanes_ : first;
    if (rows < 0) rows = size, lead_ = lead;
    return rows == size && lead_ == lead;
  }
  bool take_number(int k, PyObject* number) {
    items[k] = reinterpret_cast<int64_t>(numbers_ + k);
    return number_of(number, known_->added[size_t(k)].dtype, reinterpret_cast<char*>(numbers_ + k)) &&
           !lanes_ && agrees(nullptr, 0);
  }
  // As many elements as there are rows, with the axes of these; of priorities also one column, as critics give them.
  bool take_vector(PyObject* array, Seen& seen, Dtype dtype, bool column) {
    if (!lead_ || !library_.see(array, seen, where_) || !(seen.dtype == dtype) || !seen.contiguous()) return false;
    if (seen.ndim != lead_ && !(column && seen.ndim == lead_ + 1 && seen.shape[lead_] == 1)) return false;
    return lead_ == 1 ? seen.shape[0] == rows : seen.shape[0] == rows / lanes_ && seen.shape[1] == lanes_;
  }

  const KnownBuffer* known_;
  const ArrayLibrary& library_;
  const Where where_;
  const int64_t lanes_;
  int lead_ = 1;  // how many axes of the leaves count items
  Ref held_[MOST_LEAVES];
  Seen leaves_[MOST_LEAVES], mask_, priorities_, handles_;
  int64_t numbers_[MOST_LEAVES];
};

}  // namespace frb
