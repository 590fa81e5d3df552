#include "varint.h"

namespace tfr {
namespace {

// The plain rule, byte by byte: used where a run might hold a varint of more than 10 bytes.
int64_t count_slowly(const uint8_t* p, int64_t size) {
  int64_t count = 0, length = 0;
  for (int64_t i = 0; i < size; ++i) {
    if (++length > 10) return -1;
    if (p[i] < 0x80) {
      ++count;
      length = 0;
    }
  }
  return length == 0 ? count : -1;
}

// Whether ten bytes that continue might span two words: then at least 3 lie at the end of one and 3 at the start of the
// other. (Or they fill a word, which the caller looks for.)
inline bool joins_ten(uint64_t before, uint64_t high) { return (high & (before >> 40) & 0x808080u) == 0x808080u; }

}  // namespace

int64_t count_varints(const uint8_t* p, int64_t size) {
  if (size == 0) return 0;
  if (p[size - 1] >= 0x80) return -1;
  // Count the bytes that continue. Each byte lane of `lanes` counts for itself, up to 255 words, before lanes are summed.
  int64_t continued = 0;
  uint64_t before = 0, suspicious = 0;
  int64_t i = 0;
  while (size - i >= 8) {
    const int64_t words = (size - i) / 8 < 255 ? (size - i) / 8 : 255;
    uint64_t lanes = 0;
    for (int64_t w = 0; w < words; ++w, i += 8) {
      const uint64_t high = load64(p + i) & kHighBits;
      lanes += high >> 7;
      suspicious |= static_cast<uint64_t>(joins_ten(before, high) || high == kHighBits);
      before = high;
    }
    const uint64_t pairs = (lanes & 0x00FF00FF00FF00FFu) + ((lanes >> 8) & 0x00FF00FF00FF00FFu);
    continued += static_cast<int64_t>((pairs * 0x0001000100010001u) >> 48);
  }
  if (i < size) {
    const uint64_t high = load64(p + i) & kHighBits & (~uint64_t{0} >> (64 - 8 * (size - i)));
    continued += static_cast<int64_t>(((high >> 7) * 0x0101010101010101u) >> 56);
    suspicious |= static_cast<uint64_t>(joins_ten(before, high));
  }
  return suspicious ? count_slowly(p, size) : size - continued;
}

void decode_varints_plain(const uint8_t* p, int64_t size, int64_t* out) {
  const uint8_t* const end = p + size;
  while (p < end) {
    if (end - p >= 8 && (load64(p) & kHighBits) == 0) {
      for (int i = 0; i < 8; ++i) *out++ = p[i];
      p += 8;
      continue;
    }
    const int64_t length = varint_size(p);
    *out++ = static_cast<int64_t>(decode_varint(p, length));
    p += length;
  }
}

void decode_varints(const uint8_t* p, int64_t size, int64_t count, int64_t* out) {
  static const VarintDecoder fast = fast_varint_decoder();
  if (fast == nullptr || count < 8) return decode_varints_plain(p, size, out);
  fast(p, size, count, out);
}

}  // namespace tfr
