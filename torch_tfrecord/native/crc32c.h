// CRC-32C (Castagnoli) and the mask that TFRecord frames store it under.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tfr {

// Checksum of the bytes so far (`crc`, 0 at the start) extended by `size` more.
uint32_t crc32c(const uint8_t* data, size_t size, uint32_t crc = 0);

// Rotate right by 15 bits and add a constant, so that a checksum stored inside checked data does not degenerate.
inline uint32_t mask_crc(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u; }

inline uint32_t masked_crc32c(const uint8_t* data, size_t size) { return mask_crc(crc32c(data, size)); }

// Implementations that run on this CPU, fastest first; the one in use; choose one (false: no such name here).
std::vector<std::string> crc32c_implementations();
std::string crc32c_implementation();
bool set_crc32c_implementation(const std::string& name);

}  // namespace tfr
