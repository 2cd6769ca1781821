// How the frame of a custom call of XLA is read, and how one call serves a whole batch.
//
// XLA's C interface for foreign functions (version 0.1) is a stable one: XLA serves handlers of an older version, and
// refuses at the first call those of a newer one. So this is the version of the oldest JAX that is supported. The structs
// name the fields that are read here, in their places; what XLA has added since lies behind them.
#pragma once
#include <tuple>
#include <type_traits>

#include "ring.h"

#if !defined(FRB_SOURCES)
#define FRB_SOURCES 0
#endif

namespace frb {
namespace xla {

struct Extension { size_t struct_size; int32_t type; Extension* next; };
struct Version { size_t struct_size; Extension* extensions; int32_t major, minor; };
struct Metadata { size_t struct_size; Version version; uint32_t traits; };
struct MetadataExtension { Extension base; Metadata* metadata; };
constexpr int32_t METADATA = 1;

struct Buffer { size_t struct_size; Extension* extensions; int32_t dtype; char* data; int64_t rank; const int64_t* dims; };
struct Buffers { size_t struct_size; Extension* extensions; int64_t size; const int32_t* types; Buffer** at; };
struct Vector { int32_t dtype; size_t size; const int64_t* data; };
struct Attributes {
  size_t struct_size; Extension* extensions; int64_t size; const int32_t* types; void** names; Vector** at;
};
struct Failure { size_t struct_size; Extension* extensions; const char* message; int32_t code; };
struct Stream { size_t struct_size; Extension* extensions; void* context; void* stream; };
struct Api {
  size_t struct_size; Extension* extensions; Version version; const void* internal;
  void* (*fail)(Failure*);
  const void *message_of_failure, *free_failure, *register_handler;
  void* (*find_stream)(Stream*);
};
struct Frame {
  size_t struct_size; Extension* extensions; const Api* api; void* context; int32_t stage;
  Buffers arguments, results;
  Attributes attributes;
};
constexpr int32_t INVALID_ARGUMENT = 3, RESOURCE_EXHAUSTED = 8, INTERNAL = 13;
constexpr uint32_t COMMAND_BUFFERS = 1;  // what is launched depends on attributes and shapes alone
constexpr int32_t ARRAY = 1;             // the type of an attribute
constexpr int32_t INT32 = 4, INT64 = 5;  // dtypes
// How many bytes an element has, by its dtype; those behind these have one.
constexpr uint8_t BYTES[] = {0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 0, 0, 8, 2, 0, 16};

// A custom call may stand for many, as `jax.vmap` makes them: then arrays have axes in front, and the first attribute of the
// frame, int64, says behind its seal where in them each call has its part: how many calls there are, how many axes, the size
// of each; then, if there are axes, for each operand and result how many it has in front, and its stride in bytes along each.
// Behind it come the records, int32.
struct Batch {
  const int64_t* at;
  int64_t calls() const { return at[1]; }
  int64_t axes() const { return at[2]; }
  int64_t size(int64_t axis) const { return at[3 + axis]; }
  const int64_t* entry(int64_t k) const { return at + 3 + axes() + k * (1 + axes()); }
};

}  // namespace xla
}  // namespace frb

FRB_BEGIN

// An operand or a result as one call sees it. XLA's calls are typed; of Python's, `dtype` is minus the size of an element.
struct Operand {
  int32_t dtype;
  char* data;
  const int64_t* dims;
  int64_t rank;
  FRB_INLINE int64_t length() const {
    int64_t elements = 1;
    for (int64_t k = 0; k < rank; ++k) elements *= dims[k];
    return elements;
  }
  FRB_INLINE int64_t rows() const { return rank ? dims[0] : 1; }
  FRB_INLINE int64_t columns() const { return length() / most<int64_t>(rows(), 1); }
};

// An element has another size than the kernel takes.
struct Misread {};

// One of the calls that a frame stands for. An empty array stands for one that is not given: its address is null.
struct Call {
  const xla::Frame* frame;
  int64_t number;

  FRB_INLINE int64_t operands() const { return frame->arguments.size; }
  FRB_INLINE Operand operand(int64_t k) const { return part(frame->arguments.at[k], k); }
  FRB_INLINE Operand result(int64_t k) const { return part(frame->results.at[k], operands() + k); }
  template <class T> FRB_INLINE const T* in(int64_t k) const { return address<const T>(operand(k)); }
  template <class T> FRB_INLINE T* out(int64_t k) const { return address<T>(result(k)); }
  // An operand, or behind them a result, of elements of so many bytes, or of any for 0.
  FRB_INLINE char* array(int64_t k, size_t bytes) const {
    return address(k < operands() ? operand(k) : result(k - operands()), bytes);
  }
  FRB_INLINE int64_t records() const { return frame->attributes.size - 1; }
  template <class T> FRB_INLINE Span<const T> record_words(int64_t k) const {
    const xla::Vector* words = frame->attributes.at[1 + k];
    return {reinterpret_cast<const T*>(words->data), int64_t(words->size * sizeof(int32_t) / sizeof(T))};
  }

 private:
  static FRB_INLINE char* address(const Operand& of, size_t bytes) {
    if (of.dtype < 0 && bytes && bytes != size_t(-of.dtype)) throw Misread();
    return of.length() ? of.data : nullptr;
  }
  template <class T> static FRB_INLINE T* address(const Operand& of) {
    return reinterpret_cast<T*>(address(of, std::is_same<std::remove_const_t<T>, char>::value ? 0 : sizeof(T)));
  }
  FRB_INLINE Operand part(const xla::Buffer* buffer, int64_t k) const {
    const xla::Batch batch{frame->attributes.at[0]->data};
    if (batch.axes() == 0) return {buffer->dtype, buffer->data, buffer->dims, buffer->rank};
    const int64_t* entry = batch.entry(k);
    int64_t skipped = 0, rest = number;
    for (int64_t axis = batch.axes() - 1; axis >= 0; --axis) {
      skipped += rest % batch.size(axis) * entry[1 + axis];
      rest /= batch.size(axis);
    }
    return {buffer->dtype, buffer->data + skipped, buffer->dims + entry[0], buffer->rank - entry[0]};
  }
};

// Takes the parameters of a kernel from a call by their types, one after the other: what is only read from the operands,
// what is written from the results, and the others from the records.
class Taking {
 public:
  explicit Taking(const Call& call) : call_(call) {}
  template <class P> struct Of {};

  template <class R> R take(Of<R>) { return record_of<R>(call_.record_words<int32_t>(records_++).at); }
  int64_t take(Of<int64_t>) { return *call_.record_words<int32_t>(records_++).at; }
  template <class T> Numbers<T> take(Of<Numbers<T>>) { return {call_.record_words<T>(records_++)}; }
  Lanes take(Of<Lanes>) { return {call_.in<int32_t>(in_++), call_.in<int32_t>(in_++)}; }
  template <class T> const T* take(Of<const T*>) { return call_.in<T>(in_++); }
  template <class T> T* take(Of<T*>) { return call_.out<T>(out_++); }
  template <class T> Changed<T> take(Of<Changed<T>>) { return ++in_, Changed<T>{call_.out<T>(out_++)}; }
  template <class T> Span<T> take(Of<Span<T>>) {
    const Operand of = next<T>();
    return {next_at<T>(), of.length()};
  }
  template <class T> Matrix<T> take(Of<Matrix<T>>) {
    const Operand of = next<T>();
    return {next_at<T>(), of.rows(), of.columns()};
  }
  template <class T, int N> Array<T, N> take(Of<Array<T, N>>) {
    Array<T, N> array;
    memcpy(array.shape, next<T>().dims, sizeof array.shape);
    array.at = next_at<T>();
    return array;
  }

 private:
  template <class T> Operand next() const { return std::is_const<T>::value ? call_.operand(in_) : call_.result(out_); }
  template <class T> T* next_at() { return take(Of<T*>()); }

  const Call& call_;
  int64_t records_ = 0, in_ = 0, out_ = 0;
};

// Carry a kernel out on one call.
template <auto F, class... P> void carry_out(const Call& call, void (*)(P...)) {
  Taking taking(call);
  const std::tuple<P...> arguments{taking.take(Taking::Of<P>())...};  // in their order
  std::apply(F, arguments);
}

// Whether a frame only asks what handler this is; it has been told then.
inline bool is_asked(xla::Frame* frame, uint32_t traits) {
  if (!frame->extensions || frame->extensions->type != xla::METADATA) return false;
  xla::Metadata* metadata = reinterpret_cast<xla::MetadataExtension*>(frame->extensions)->metadata;
  metadata->version.major = 0, metadata->version.minor = 1, metadata->traits = traits;
  return true;
}

inline void* failed(xla::Frame* frame, const char* message, int32_t code) {
  xla::Failure failure{sizeof(xla::Failure), nullptr, message, code};
  return frame->api->fail(&failure);
}

inline void* misread(xla::Frame* frame) {
  return failed(frame, "a kernel: an array has elements of another size than it takes", xla::INVALID_ARGUMENT);
}

// A number of all that a program tells a handler beside what lies in its arrays, and of the sources that read it
// (`tools/native_build.py`): the first word of the first attribute. JAX keeps programs, and users may, in files too
// (`jax.export`); where they come to another version of the library, records and operands may mean something else.
class Seal {
 public:
  FRB_INLINE void take(int64_t word) {
    const uint64_t place = ++count_ * 0x9E3779B97F4A7C15u;
    value_ += (uint64_t(word) ^ place) * ((place ^ place >> 32) | 1);
  }
  // A record, by so many numbers, several at once: it is made at each call.
  FRB_INLINE void take_record(const int32_t* numbers, int64_t count) {
    uint32_t sum = uint32_t(count);
    for (uint32_t k = 0; k < uint32_t(count); ++k) sum += uint32_t(numbers[k]) * (k * 2654435769u | 1u);
    take(sum);
  }
  // An array of elements of so many bytes.
  FRB_INLINE void take_array(int64_t bytes, int64_t rank, const int64_t* dims) {
    uint64_t shape = uint64_t(bytes) << 8 | uint64_t(rank);
    for (int64_t k = 0; k < rank; ++k) shape = shape * 0x9E3779B1u + uint64_t(dims[k]);
    take(int64_t(shape));
  }
  FRB_INLINE void take_arrays(const xla::Buffers& arrays) {
    take(arrays.size);
    for (int64_t k = 0; k < arrays.size; ++k) {
      const xla::Buffer& array = *arrays.at[k];
      take_array(size_t(array.dtype) < sizeof xla::BYTES ? xla::BYTES[array.dtype] : 1, array.rank, array.dims);
    }
  }
  int64_t value() const { return int64_t(value_); }

 private:
  uint64_t count_ = 0, value_ = FRB_SOURCES;
};

// Whether a frame is of a program that was compiled for this build of the kernels, with these records and shapes. Python's own
// frames (`calls.h`) are of no program.
inline bool is_sealed(const xla::Frame* frame) {
  if (!frame->struct_size) return true;
  const xla::Attributes& attributes = frame->attributes;
  for (int64_t k = 0; k < attributes.size; ++k)
    if (attributes.types[k] != xla::ARRAY || attributes.at[k]->dtype != (k ? xla::INT32 : xla::INT64)) return false;
  if (!attributes.size || attributes.at[0]->size < 3) return false;
  const xla::Vector& first = *attributes.at[0];
  Seal seal;
  for (size_t k = 1; k < first.size; ++k) seal.take(first.data[k]);
  seal.take_arrays(frame->arguments), seal.take_arrays(frame->results);
  for (int64_t k = 1; k < attributes.size; ++k)
    seal.take_record(reinterpret_cast<const int32_t*>(attributes.at[k]->data), int64_t(attributes.at[k]->size));
  return seal.value() == first.data[0];
}

inline void* unsealed(xla::Frame* frame) {
  return failed(frame, "functional_rb: this program was compiled by another version of functional_rb, or for arrays of other "
                       "shapes; trace it again", xla::INVALID_ARGUMENT);
}

// Results are operands in the same memory, and there may be more operands to wait for: XLA's reads come before its writes.
inline void barrier() {}

// A kernel as XLA calls it: it does all calls of a frame and returns null, which is no error.
template <auto F> void* handle(xla::Frame* frame) {
  if (is_asked(frame, 0)) return nullptr;
  const bool reads = !std::is_same<decltype(F), void (*)()>::value;
  if (reads && !is_sealed(frame)) return unsealed(frame);
  const int64_t calls = xla::Batch{frame->attributes.at[0]->data}.calls();
  try {
    for (int64_t number = 0; number < calls; ++number) carry_out<F>(Call{frame, number}, F);
    return nullptr;
  } catch (const std::bad_alloc&) {
    return failed(frame, "functional_rb: no memory for a kernel", xla::RESOURCE_EXHAUSTED);
  } catch (const Misread&) {
    return misread(frame);
  }
}

FRB_END
