// Arrays of torch and NumPy as the version chain sees them, and the results that it hands out.
//
// Tensors are seen through DLPack's C exchange API, where torch has it, else through a function of Python's. Results lie
// in one piece of memory, which each of their arrays keeps alive.
#pragma once
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "python.h"

namespace frb {
namespace dlpack {

// What is used of DLPack 1, whose layout in memory is its interface.
struct Version { uint32_t major, minor; };
struct Device { int32_t type, id; };
struct Dtype { uint8_t code, bits; uint16_t lanes; };
struct Tensor { void* data; Device device; int32_t ndim; Dtype dtype; int64_t* shape; int64_t* strides; uint64_t offset; };
struct Managed { Tensor tensor; void* context; void (*deleter)(Managed*); };
struct Versioned { Version version; void* context; void (*deleter)(Versioned*); uint64_t flags; Tensor tensor; };
struct Exchange {
  Version version;
  Exchange* previous;
  void* allocate;
  void* from_python;
  int (*to_python)(Versioned*, void**);
  int (*see)(void*, Tensor*);
};
constexpr int32_t CPU = 1;
inline bool operator==(const Device& a, const Device& b) { return a.type == b.type && a.id == b.id; }

}  // namespace dlpack

// Where arrays lie. On a GPU kernels for it are called, and NumPy's arrays cannot be there; tests emulate one on the CPU.
struct Where {
  dlpack::Device device;
  bool on_gpu;
};
inline bool operator==(const Where& a, const Where& b) { return a.device == b.device && a.on_gpu == b.on_gpu; }
constexpr Where ON_THE_HOST{{dlpack::CPU, 0}, false};

constexpr int MOST_AXES = 16;
constexpr int64_t LINE = 64;  // bytes of a line of the cache

inline int64_t whole_lines(int64_t bytes) { return (bytes + LINE - 1) / LINE * LINE; }

struct Dtype {
  uint8_t code, bits;
  bool operator==(const Dtype& other) const { return code == other.code && bits == other.bits; }
};
constexpr Dtype INT32{0, 32}, INT64{0, 64}, FLOAT32{2, 32}, FLOAT64{2, 64}, BFLOAT16{4, 16}, BOOL{6, 8};
constexpr uint8_t COMPLEX = 5;

// An array in the memory of some device, for as long as this and the array live.
class Seen {
 public:
  Seen() = default;
  ~Seen() { if (held_) PyBuffer_Release(&view_); }
  Seen(const Seen&) = delete;
  Seen& operator=(const Seen&) = delete;

  char* data = nullptr;
  int ndim = 0;
  const int64_t* shape = nullptr;
  Dtype dtype{};
  dlpack::Device device = ON_THE_HOST.device;

  // Whether elements lie one behind the other; where there are none, strides say nothing.
  bool contiguous() const {
    int64_t stride = 1;
    bool follow = true;
    for (int k = ndim - 1; k >= 0; --k) {
      if (shape[k] == 0) return true;
      follow = follow && (!strides_ || shape[k] == 1 || strides_[k] == stride * unit_);
      stride *= shape[k];
    }
    return follow;
  }

  // Whether there is memory for the elements: torch has tensors without, whose elements are zero, or were given up.
  bool there() const {
    if (data) return true;
    for (int k = 0; k < ndim; ++k)
      if (shape[k] == 0) return true;
    return false;
  }

  // A tensor, of class torch.Tensor itself; false, without an error, if it is not an ordinary one.
  bool take_tensor(PyObject* tensor, const dlpack::Exchange* exchange, PyObject* look) {
    dlpack::Tensor seen{};
    if (!exchange) return look_at(tensor, look);
    if (exchange->see(tensor, &seen)) return forget_error(), false;
    if (seen.dtype.lanes != 1) return false;
    device = seen.device;
    data = static_cast<char*>(seen.data) + seen.offset;
    ndim = seen.ndim, shape = seen.shape, strides_ = seen.strides, dtype = {seen.dtype.code, seen.dtype.bits};
    return true;
  }

  // An array of NumPy's, of class numpy.ndarray itself; of any dtype where only its size is asked for.
  bool take_ndarray(PyObject* array, bool any_dtype = false, bool writes = false) {
    const int flags = PyBUF_STRIDED_RO | (any_dtype ? 0 : PyBUF_FORMAT) | (writes ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(array, &view_, flags)) return PyErr_Clear(), false;
    held_ = true;
    if (!(any_dtype || known(view_.format)) || view_.ndim > MOST_AXES) return false;
    static_assert(sizeof(Py_ssize_t) == sizeof(int64_t), "as sizes are read");
    data = static_cast<char*>(view_.buf), ndim = view_.ndim, unit_ = view_.itemsize;
    shape = reinterpret_cast<const int64_t*>(view_.shape), strides_ = reinterpret_cast<const int64_t*>(view_.strides);
    dtype.bits = uint8_t(8 * view_.itemsize);
    return true;
  }

 private:
  // What `look` of Python tells: (address, shape, strides, code, bits, type and number of the device), or None.
  bool look_at(PyObject* tensor, PyObject* look) {
    const Ref described = called(look, tensor);
    long long address;
    PyObject *sizes, *steps;
    int code, bits;
    if (!described || described.is(Py_None) ||
        !PyArg_ParseTuple(described.get(), "LOOiiii", &address, &sizes, &steps, &code, &bits, &device.type, &device.id))
      return forget_error(), false;
    ndim = int(PyTuple_Size(sizes));
    if (ndim > MOST_AXES) return false;
    for (int k = 0; k < ndim; ++k) {
      own_[k] = PyLong_AsLongLong(PyTuple_GetItem(sizes, k));
      own_[MOST_AXES + k] = PyLong_AsLongLong(PyTuple_GetItem(steps, k));
    }
    data = reinterpret_cast<char*>(address), shape = own_, strides_ = own_ + MOST_AXES;
    dtype = {uint8_t(code), uint8_t(bits)};
    return true;
  }
  // The kind of a format of one native element.
  bool known(const char* format) {
    if (format && format[0] == '=') ++format;  // which says the same here: how large it is, the buffer tells beside
    if (!format || !format[0] || format[1]) return false;
    if (strchr("bhilq", format[0])) dtype.code = INT32.code;
    else if (strchr("BHILQ", format[0])) dtype.code = 1;
    else if (strchr("efd", format[0])) dtype.code = FLOAT32.code;
    else if (format[0] == '?') dtype.code = BOOL.code;
    else return false;
    return true;
  }

  const int64_t* strides_ = nullptr;
  int64_t unit_ = 1;  // in which strides are counted: elements, or bytes where they are that
  Py_buffer view_{};
  bool held_ = false;
  int64_t own_[2 * MOST_AXES];
};

// A piece of memory with several arrays, each of which has a count of it; freed with the last.
struct Piece {
  std::atomic<int64_t> count{1};

  static Piece* of(int64_t bytes) {  // null if there is no memory
    void* at = aligned_alloc(size_t(LINE), size_t(LINE + whole_lines(bytes)));
    return at ? new (at) Piece : nullptr;
  }
  char* begin() { return reinterpret_cast<char*>(this) + LINE; }
  void drop() { if (--count == 0) free(this); }
};

// A piece of memory as an object with a buffer, of which NumPy makes arrays.
struct Holder {
  PyObject_HEAD
  Piece* piece;
  int64_t bytes;
};
inline PyTypeObject* holder_type;
inline void free_holder(PyObject* self) {
  if (reinterpret_cast<Holder*>(self)->piece) reinterpret_cast<Holder*>(self)->piece->drop();
  released(self);
}
inline int holder_buffer(PyObject* self, Py_buffer* view, int flags) {
  Holder* holder = reinterpret_cast<Holder*>(self);
  return PyBuffer_FillInfo(view, self, holder->piece->begin(), Py_ssize_t(holder->bytes), 0, flags);
}

// Arrays one after the other in a piece of memory.
class Sheet {
 public:
  explicit Sheet(int64_t bytes) : piece_(Piece::of(bytes)), next_(piece_ ? piece_->begin() : nullptr), bytes_(bytes) {}
  ~Sheet() { if (piece_) piece_->drop(); }
  Sheet(const Sheet&) = delete;
  Sheet& operator=(const Sheet&) = delete;
  explicit operator bool() const { return piece_; }
  Piece* piece() const { return piece_; }
  int64_t offset(const char* at) const { return at - piece_->begin(); }
  // The holder of the piece; null with an error.
  PyObject* holder() {
    if (holder_) return holder_.get();
    Holder* holder = allocated<Holder>(holder_type);
    if (holder) ++piece_->count, holder->piece = piece_, holder->bytes = whole_lines(bytes_);
    holder_ = Ref(reinterpret_cast<PyObject*>(holder));
    return holder_.get();
  }
  template <class T> T* take(int64_t bytes) {
    char* at = next_;
    next_ += whole_lines(bytes);
    return reinterpret_cast<T*>(at);
  }

 private:
  Piece* piece_;
  char* next_;
  int64_t bytes_;
  Ref holder_;
};

// What DLPack is told of one array.
struct Handed {
  dlpack::Versioned versioned;
  dlpack::Managed managed;
  int64_t numbers[2 * MOST_AXES];
  Piece* piece;

  static Handed* of(Piece* piece, char* data, Dtype dtype, int ndim, const int64_t* shape) {
    Handed* handed = static_cast<Handed*>(calloc(1, sizeof(Handed)));
    if (!handed) return nullptr;
    int64_t stride = 1;
    for (int k = ndim - 1; k >= 0; --k) {
      handed->numbers[k] = shape[k], handed->numbers[MOST_AXES + k] = stride;
      stride *= shape[k] ? shape[k] : 1;  // as torch has it
    }
    const dlpack::Tensor tensor{data, {dlpack::CPU, 0}, ndim, {dtype.code, dtype.bits, 1},
                                handed->numbers, handed->numbers + MOST_AXES, 0};
    handed->versioned = {{1, 1}, handed, free_versioned, 0, tensor};
    handed->managed = {tensor, handed, free_managed};
    handed->piece = piece;
    ++piece->count;
    return handed;
  }
  void drop() { piece->drop(), free(this); }

 private:
  static void free_versioned(dlpack::Versioned* of) { static_cast<Handed*>(of->context)->drop(); }
  static void free_managed(dlpack::Managed* of) { static_cast<Handed*>(of->context)->drop(); }
};

// Frees what nobody has taken out of a capsule.
inline void free_capsule(PyObject* capsule) {
  const char* name = PyCapsule_GetName(capsule);
  if (name && !strcmp(name, "dltensor"))
    static_cast<Handed*>(static_cast<dlpack::Managed*>(PyCapsule_GetPointer(capsule, name))->context)->drop();
}

// A library's arrays: how its own are seen, and how results become such.
class ArrayLibrary {
 public:
  // `look` and `from_capsule` serve where torch has no exchange API; None, where all arrays are buffers, as JAX's are.
  bool begin(PyObject* tensor, PyObject* ndarray, PyObject* look, PyObject* from_capsule, PyObject* is_neg,
             PyObject* is_conj) {
    tensor_ = tensor, ndarray_ = ndarray, look_ = look, from_capsule_ = from_capsule;
    is_neg_ = is_neg, is_conj_ = is_conj;
    const Ref capsule(PyObject_GetAttrString(tensor, "__dlpack_c_exchange_api__"));
    if (!capsule) return PyErr_Clear(), true;  // an older torch, or NumPy
    exchange_ = static_cast<const dlpack::Exchange*>(PyCapsule_GetPointer(capsule.get(), "dlpack_exchange_api"));
    if (exchange_ && exchange_->version.major != 1) exchange_ = nullptr;
    return !PyErr_Occurred();
  }
  void forget_exchange() { exchange_ = nullptr; }

  // An array of either kind that lies there; false, without an error, for anything else.
  bool see(PyObject* array, Seen& seen, const Where& where) const {
    PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(array));
    if (type == ndarray_ || (type == tensor_ && look_ == Py_None)) return !where.on_gpu && seen.take_ndarray(array);
    return see_anywhere(array, seen) && seen.device == where.device;
  }
  // A tensor, wherever it lies.
  bool see_anywhere(PyObject* array, Seen& seen) const {
    PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(array));
    if (type != tensor_ || !seen.take_tensor(array, exchange_, look_) || !seen.there()) return false;
    // Torch puts negation and conjugation off.
    const bool is_complex = seen.dtype.code == COMPLEX;
    return !(is_complex || seen.dtype.code == FLOAT32.code) || (no(is_neg_, array) && !(is_complex && !no(is_conj_, array)));
  }

  // An array of either kind that lies there, as bytes of some dtype.
  bool see_bytes(PyObject* array, Seen& seen, bool writes, const Where& where = ON_THE_HOST) const {
    return is_ndarray(array) ? !where.on_gpu && seen.take_ndarray(array, true, writes) : see(array, seen, where);
  }
  // An array of NumPy's, of class numpy.ndarray itself, that is handed out only to who does not ask for its dtype, as bfloat16 is.
  bool see_untold(PyObject* array, Seen& seen, PyObject* numpy, Dtype dtype) const {
    if (reinterpret_cast<PyObject*>(Py_TYPE(array)) != ndarray_) return false;
    const Ref numpy_dtype = attribute(array, names.dtype);
    return numpy_dtype.is(numpy) && seen.take_ndarray(array, true) && (seen.dtype = dtype, true);
  }
  bool is_ndarray(PyObject* array) const {
    return PyObject_TypeCheck(array, reinterpret_cast<PyTypeObject*>(ndarray_));
  }

  // A result as an array of the library's; `numpy` is NumPy's dtype where it is to be an array of NumPy's.
  Ref handed(Sheet& sheet, char* data, Dtype dtype, int ndim, const int64_t* shape, PyObject* numpy) const {
    if (numpy) return ndarray_of(sheet, data, ndim, shape, numpy);
    Handed* result = Handed::of(sheet.piece(), data, dtype, ndim, shape);
    if (!result) return Ref(PyErr_NoMemory());
    if (exchange_) {
      void* array = nullptr;
      if (exchange_->to_python(&result->versioned, &array)) return Ref();
      return Ref(static_cast<PyObject*>(array));
    }
    const Ref capsule(PyCapsule_New(&result->managed, "dltensor", free_capsule));
    if (!capsule) return result->drop(), Ref();
    return called(from_capsule_, capsule.get());
  }

 private:
  // numpy.ndarray(shape, dtype, buffer, offset)
  Ref ndarray_of(Sheet& sheet, char* data, int ndim, const int64_t* shape, PyObject* numpy) const {
    PyObject* holder = sheet.holder();
    const Ref sizes(PyTuple_New(ndim)), offset(PyLong_FromLongLong(sheet.offset(data)));
    if (!holder || !sizes || !offset) return Ref();
    for (int k = 0; k < ndim; ++k)
      if (PyTuple_SetItem(sizes.get(), k, PyLong_FromLongLong(shape[k]))) return Ref();
    return called(ndarray_, sizes.get(), numpy, holder, offset.get());
  }
  static bool no(PyObject* question, PyObject* array) {
    const Ref answer = called(question, array);
    if (!answer) forget_error();
    return answer.is(Py_False);
  }

  PyObject *tensor_ = nullptr, *ndarray_ = nullptr, *look_ = nullptr, *from_capsule_ = nullptr;
  PyObject *is_neg_ = nullptr, *is_conj_ = nullptr;
  const dlpack::Exchange* exchange_ = nullptr;
};

}  // namespace frb
