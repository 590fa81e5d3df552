#include "crc32c.h"

#include <array>
#include <atomic>
#include <cstring>

#include "crc32c_impl.h"

namespace tfr {

namespace {

using Table = std::array<uint32_t, 256>;

// kTables[n][byte]: the state that `byte` leaves after n zero bytes more, so that 8 bytes take 8 independent look-ups.
constexpr std::array<Table, 8> make_tables() {
  std::array<Table, 8> tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t state = byte;
    for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ ((state & 1) ? kCrc32cPolynomial : 0);
    tables[0][byte] = state;
  }
  for (size_t n = 1; n < tables.size(); ++n) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[n - 1][byte];
      tables[n][byte] = (before >> 8) ^ tables[0][before & 0xFF];
    }
  }
  return tables;
}
constexpr std::array<Table, 8> kTables = make_tables();

uint32_t extend_portable(const uint8_t* data, size_t size, uint32_t crc) {
  uint32_t state = ~crc;
  for (; size >= 8; size -= 8, data += 8) {
    uint64_t word;
    std::memcpy(&word, data, sizeof word);
    word ^= state;
    state = 0;
    for (int n = 0; n < 8; ++n) state ^= kTables[7 - n][(word >> (8 * n)) & 0xFF];
  }
  for (; size > 0; --size, ++data) state = (state >> 8) ^ kTables[0][(state ^ *data) & 0xFF];
  return ~state;
}

constexpr Crc32cImplementation kPortable = {"portable", extend_portable};

std::vector<const Crc32cImplementation*> runnable() {
  std::vector<const Crc32cImplementation*> implementations;
  if (const Crc32cImplementation* hardware = hardware_crc32c()) implementations.push_back(hardware);
  implementations.push_back(&kPortable);
  return implementations;
}

// Threads may read it while a test sets it; each answer is right whichever they see.
std::atomic<const Crc32cImplementation*> chosen{runnable().front()};

}  // namespace

uint32_t crc32c(const uint8_t* data, size_t size, uint32_t crc) {
  return chosen.load(std::memory_order_relaxed)->extend(data, size, crc);
}

std::vector<std::string> crc32c_implementations() {
  std::vector<std::string> names;
  for (const Crc32cImplementation* implementation : runnable()) names.emplace_back(implementation->name);
  return names;
}

std::string crc32c_implementation() { return chosen.load(std::memory_order_relaxed)->name; }

bool set_crc32c_implementation(const std::string& name) {
  for (const Crc32cImplementation* implementation : runnable()) {
    if (name == implementation->name) {
      chosen.store(implementation, std::memory_order_relaxed);
      return true;
    }
  }
  return false;
}

}  // namespace tfr
