// CRC-32C by the CPU's own instruction. The instruction takes 8 bytes a cycle but answers only three cycles later, so
// three parts of the input run side by side and are joined at the end. The functions are compiled for the instructions
// that they use, whatever the rest is compiled for, and run only where the CPU says that it has them.
#include "crc32c_impl.h"

#if defined(__x86_64__)

#include <nmmintrin.h>
#include <wmmintrin.h>
#define TFR_TARGET __attribute__((target("sse4.2,pclmul")))
#define TFR_NAME "sse42"

#elif defined(__aarch64__)

#include <arm_acle.h>
#include <arm_neon.h>
#define TFR_NAME "arm64"
#if defined(__APPLE__)
#define TFR_TARGET  // every 64-bit Apple CPU has both extensions, and the compiler knows it
#elif defined(__clang__)
#define TFR_TARGET __attribute__((target("crc,aes")))
#else
#define TFR_TARGET __attribute__((target("+crc+crypto")))
#endif
#if defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#endif

#ifdef TFR_NAME

#include <algorithm>
#include <array>
#include <cstring>

namespace tfr {

namespace {

#if defined(__x86_64__)

bool runs_here() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
}

TFR_TARGET inline uint32_t step(uint32_t state, uint64_t word) {
  return static_cast<uint32_t>(_mm_crc32_u64(state, word));
}
TFR_TARGET inline uint32_t step(uint32_t state, uint32_t word) { return _mm_crc32_u32(state, word); }
TFR_TARGET inline uint32_t step(uint32_t state, uint16_t word) { return _mm_crc32_u16(state, word); }
TFR_TARGET inline uint32_t step(uint32_t state, uint8_t word) { return _mm_crc32_u8(state, word); }

TFR_TARGET inline uint64_t multiply(uint32_t a, uint32_t b) {
  const __m128i product = _mm_clmulepi64_si128(_mm_cvtsi32_si128(static_cast<int>(a)),
                                               _mm_cvtsi32_si128(static_cast<int>(b)), 0);
  return static_cast<uint64_t>(_mm_cvtsi128_si64(product));
}

#else

bool runs_here() {
#if defined(__APPLE__)
  return true;
#elif defined(__linux__)
  const unsigned long has = getauxval(AT_HWCAP);
  return (has & HWCAP_CRC32) && (has & HWCAP_PMULL);
#else
  return false;
#endif
}

TFR_TARGET inline uint32_t step(uint32_t state, uint64_t word) { return __crc32cd(state, word); }
TFR_TARGET inline uint32_t step(uint32_t state, uint32_t word) { return __crc32cw(state, word); }
TFR_TARGET inline uint32_t step(uint32_t state, uint16_t word) { return __crc32ch(state, word); }
TFR_TARGET inline uint32_t step(uint32_t state, uint8_t word) { return __crc32cb(state, word); }

TFR_TARGET inline uint64_t multiply(uint32_t a, uint32_t b) {
  return static_cast<uint64_t>(vmull_p64(a, b));
}

#endif

template <typename Word>
inline Word load(const uint8_t* data) {
  Word word;
  std::memcpy(&word, data, sizeof word);
  return word;
}

constexpr size_t kMaxWords = 512;  // in each of the three parts: 12 KiB at once
constexpr size_t kMinWords = 3;    // below, joining costs more than it saves

// kShift[n], multiplied without carries and stepped through the CRC once, moves a state past n words of 8 bytes: a
// multiplication by x^(64 n). The product of two reversed 32-bit polynomials comes out one bit low in its 64 bits, and
// the step multiplies by x^32, so the factor to store is x^(64 n - 33) modulo the CRC polynomial.
constexpr std::array<uint32_t, 2 * kMaxWords + 1> make_shift() {
  std::array<uint32_t, 2 * kMaxWords + 1> shift{};
  uint32_t power = 1;  // x^31, the factor for one word
  for (size_t n = 1; n < shift.size(); ++n) {
    shift[n] = power;
    for (int bit = 0; bit < 64; ++bit) power = (power >> 1) ^ ((power & 1) ? kCrc32cPolynomial : 0);
  }
  return shift;
}
constexpr std::array<uint32_t, 2 * kMaxWords + 1> kShift = make_shift();

TFR_TARGET uint32_t extend(const uint8_t* data, size_t size, uint32_t crc) {
  uint32_t state = ~crc;
  while (size >= kMinWords * 24) {
    const size_t words = std::min(size / 24, kMaxWords);
    const uint8_t* second = data + words * 8;
    const uint8_t* third = second + words * 8;
    uint32_t b = 0, c = 0;
    for (size_t at = 0; at < words * 8; at += 8) {
      state = step(state, load<uint64_t>(data + at));
      b = step(b, load<uint64_t>(second + at));
      c = step(c, load<uint64_t>(third + at));
    }
    state = step(0, multiply(state, kShift[2 * words]) ^ multiply(b, kShift[words])) ^ c;
    data += words * 24;
    size -= words * 24;
  }
  for (; size >= 8; size -= 8, data += 8) state = step(state, load<uint64_t>(data));
  if (size & 4) {
    state = step(state, load<uint32_t>(data));
    data += 4;
  }
  if (size & 2) {
    state = step(state, load<uint16_t>(data));
    data += 2;
  }
  if (size & 1) state = step(state, *data);
  return ~state;
}

constexpr Crc32cImplementation kHardware = {TFR_NAME, extend};

}  // namespace

const Crc32cImplementation* hardware_crc32c() { return runs_here() ? &kHardware : nullptr; }

}  // namespace tfr

#else  // no such instruction is known

namespace tfr {
const Crc32cImplementation* hardware_crc32c() { return nullptr; }
}  // namespace tfr

#endif
