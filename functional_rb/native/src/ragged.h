// Texts of any length, padded to one: `structures.ragged`, which reads tokens by their address.
#pragma once
#include "base.h"

FRB_BEGIN

FRB_ENTRY int64_t longest(Array<const int32_t, 2> lengths) {
  int32_t longest = 1;
  for (int64_t k = 0; k < lengths.shape[0] * lengths.shape[1]; ++k) longest = most(longest, lengths.at[k]);
  return longest;
}

template <class Token> FRB_INLINE void copy_tokens(int32_t* to, const char* tokens, int64_t first, int64_t count) {
  const Token* from = reinterpret_cast<const Token*>(tokens) + first;
  for (int64_t i = 0; i < count; ++i) to[i] = from[i];
}

// Pad texts to the length of ids, int32 [texts, rows, length], with mask uint8 of the same shape. There are `size` tokens,
// uint16 if narrow and int32 if not; starts are int32 [rows, 2], in halves of 31 bits; the texts of a row have `shared`
// tokens in common. Returns the first row that does not fit, or -1.
FRB_ENTRY int64_t pad_rows(const char* tokens, int64_t size, bool narrow, Array<const int32_t, 2> starts,
                        Span<const int32_t> shared, Array<const int32_t, 2> lengths, int64_t pad, bool left,
                        Array<int32_t, 3> ids, Array<uint8_t, 3> mask) {
  const int64_t rows = lengths.shape[0], texts = lengths.shape[1], length = ids.shape[2];
  const auto copied = narrow ? copy_tokens<uint16_t> : copy_tokens<int32_t>;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t start = int64_t(starts.at[2 * row]) * (int64_t(1) << 31) + starts.at[2 * row + 1];
    int64_t own_start = start, common = 0;
    for (int64_t k = 0; k < texts; ++k) {
      const int64_t count = lengths.at[row * texts + k], last = most(start + common, own_start + count - common);
      if (!(0 <= common && common <= count && count <= length && own_start >= 0 && last <= size)) return row;
      int32_t* to = ids.at + (k * rows + row) * length;
      uint8_t* real = mask.at + (k * rows + row) * length;
      const int64_t first = left ? length - count : 0, end = first + count;
      for (int64_t i = 0; i < length; ++i) real[i] = first <= i && i < end;
      for (int64_t i = 0; i < first; ++i) to[i] = int32_t(pad);
      for (int64_t i = end; i < length; ++i) to[i] = int32_t(pad);
      copied(to + first, tokens, start, common);
      copied(to + first + common, tokens, own_start, count - common);
      own_start += count - common;
      if (texts > 1) common = shared[row];
    }
  }
  return -1;
}

FRB_END
