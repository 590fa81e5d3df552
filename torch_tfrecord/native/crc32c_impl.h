// What crc32c.cc chooses from.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tfr {

constexpr uint32_t kCrc32cPolynomial = 0x82F63B78u;  // Castagnoli, bits reversed: bit 31 is the coefficient of x^0

struct Crc32cImplementation {
  const char* name;
  uint32_t (*extend)(const uint8_t* data, size_t size, uint32_t crc);
};

// The implementation by the CPU's own CRC instruction; nullptr where this CPU has none.
const Crc32cImplementation* hardware_crc32c();

}  // namespace tfr
