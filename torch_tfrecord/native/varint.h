// Packed runs of varints: count them, decode them. Both work on words of 8 bytes and may read kSlack bytes past the end.
#pragma once

#include <cstdint>

#include "wire.h"

namespace tfr {

constexpr uint64_t kHighBits = 0x8080808080808080u;

// Values in a packed run, or -1 where some varint is longer than 10 bytes or the last one is cut short.
int64_t count_varints(const uint8_t* p, int64_t size);

// Whether `size` bytes, 1 to 10, are exactly one varint: all but the last continue.
inline bool is_one_varint(const uint8_t* p, int64_t size) {
  const uint64_t high = load64(p) & kHighBits;
  if (size > 8) return high == kHighBits && (size == 9 ? p[8] < 0x80 : p[8] >= 0x80 && p[9] < 0x80);
  return high << (64 - 8 * size) == (kHighBits >> 8 & ~uint64_t{0} << (64 - 8 * size));
}

// Decodes a whole run of `count` values that count_varints accepted, by the fastest way that this CPU has. Writes nothing
// beyond out[count - 1].
void decode_varints(const uint8_t* p, int64_t size, int64_t count, int64_t* out);

// The same by plain C++, one value after another.
void decode_varints_plain(const uint8_t* p, int64_t size, int64_t* out);

using VarintDecoder = void (*)(const uint8_t* p, int64_t size, int64_t count, int64_t* out);

// A faster one, or nullptr where this CPU has none.
VarintDecoder fast_varint_decoder();

// Joins the low 7 bits of each of the 8 bytes of `word`, lowest first.
inline uint64_t join_sevens(uint64_t word) {
  word &= ~kHighBits;
  word = (word & 0x007F007F007F007Fu) | ((word & 0x7F007F007F007F00u) >> 1);
  word = (word & 0x00003FFF00003FFFu) | ((word & 0x3FFF00003FFF0000u) >> 2);
  return (word & 0x000000000FFFFFFFu) | ((word & 0x0FFFFFFF00000000u) >> 4);
}

// The one varint that fills `size` bytes, 1 to 10, known to be well formed.
inline uint64_t decode_varint(const uint8_t* p, int64_t size) {
  const uint64_t word = load64(p);
  if (size <= 8) return join_sevens(word & (~uint64_t{0} >> (64 - 8 * size)));
  uint64_t value = join_sevens(word) | (uint64_t{p[8]} & 0x7F) << 56;
  if (size == 10) value |= uint64_t{p[9]} << 63;
  return value;
}

// Bytes of the well-formed varint at `p`.
inline int64_t varint_size(const uint8_t* p) {
  const uint64_t ends = ~load64(p) & kHighBits;
  if (ends != 0) return (__builtin_ctzll(ends) >> 3) + 1;
  return p[8] < 0x80 ? 9 : 10;
}

}  // namespace tfr
