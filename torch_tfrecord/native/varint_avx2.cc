// Packed varints eight bytes at a time, by AVX2. Tokens, ids and counts are mostly varints of one to four bytes; which
// ones end where in eight bytes is one of 256 patterns, and for each a table says how to deal the bytes to lanes.
#include "varint.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <array>

namespace tfr {
namespace {

constexpr int kLaneBytes = 4;  // longer varints are left to the plain decoder
constexpr uint8_t kNothing = 0x80;  // pshufb writes zero for it

struct Pattern {
  alignas(32) uint8_t shuffle[32];  // byte of the word for each byte of eight lanes
  uint8_t varints;                  // that end in the word before a longer one begins
  uint8_t bytes;                    // that they take
};

// Pattern of a word in whose byte i a varint ends if bit i of `ends` is set.
constexpr Pattern make_pattern(unsigned ends) {
  Pattern pattern{};
  for (uint8_t& byte : pattern.shuffle) byte = kNothing;
  unsigned begin = 0;
  for (unsigned i = 0; i < 8; ++i) {
    if ((ends >> i & 1) == 0) continue;
    if (i - begin >= kLaneBytes) break;
    // The high half of the register is shuffled from its own copy of the word.
    for (unsigned j = begin; j <= i; ++j) {
      pattern.shuffle[pattern.varints * kLaneBytes + (j - begin)] = static_cast<uint8_t>(j);
    }
    ++pattern.varints;
    begin = i + 1;
  }
  pattern.bytes = static_cast<uint8_t>(begin);
  return pattern;
}

constexpr std::array<Pattern, 256> make_patterns() {
  std::array<Pattern, 256> patterns{};
  for (unsigned ends = 0; ends < 256; ++ends) patterns[ends] = make_pattern(ends);
  return patterns;
}

constexpr std::array<Pattern, 256> kPatterns = make_patterns();

__attribute__((target("avx2"))) void decode(const uint8_t* p, int64_t size, int64_t count, int64_t* out) {
  const uint8_t* const end = p + size;
  const __m256i sevens = _mm256_set1_epi8(0x7F);
  const __m256i join_bytes = _mm256_set1_epi16(128 << 8 | 1);     // low byte + 2^7 x high byte
  const __m256i join_words = _mm256_set1_epi32(1 << 30 | 1);      // low word + 2^14 x high word
  int64_t* const last = out + count - 8;  // each round writes eight values, and later ones overwrite what is too much
  while (end - p >= 8 && out <= last) {
    const __m128i word = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    const Pattern& pattern = kPatterns[~_mm_movemask_epi8(word) & 0xFF];
    if (pattern.varints == 0) {
      const int64_t length = varint_size(p);
      *out++ = static_cast<int64_t>(decode_varint(p, length));
      p += length;
      continue;
    }
    const __m256i shuffle = _mm256_load_si256(reinterpret_cast<const __m256i*>(pattern.shuffle));
    __m256i lanes = _mm256_shuffle_epi8(_mm256_broadcastq_epi64(word), shuffle);
    lanes = _mm256_and_si256(lanes, sevens);
    lanes = _mm256_maddubs_epi16(join_bytes, lanes);
    lanes = _mm256_madd_epi16(lanes, join_words);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_cvtepu32_epi64(_mm256_castsi256_si128(lanes)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 4), _mm256_cvtepu32_epi64(_mm256_extracti128_si256(lanes, 1)));
    out += pattern.varints;
    p += pattern.bytes;
  }
  decode_varints_plain(p, end - p, out);
}

}  // namespace

VarintDecoder fast_varint_decoder() { return __builtin_cpu_supports("avx2") ? decode : nullptr; }

}  // namespace tfr

#else

namespace tfr {
VarintDecoder fast_varint_decoder() { return nullptr; }
}  // namespace tfr

#endif
