// The names of wanted features, compiled: which slot a name on the wire belongs to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "wire.h"

namespace tfr {

// Compares `size` bytes word by word; both sides have slack after their end.
inline bool same_bytes(const uint8_t* a, const uint8_t* b, int64_t size) {
  for (; size >= 8; size -= 8, a += 8, b += 8) {
    if (load64(a) != load64(b)) return false;
  }
  return size == 0 || (load64(a) ^ load64(b)) << (64 - 8 * size) == 0;
}

class Names {
 public:
  static constexpr int32_t kUnwanted = -1;

  // Adds a name, or finds it: returns its slot, 0 .. size() - 1.
  int32_t add(const std::string& name);

  // The slot of a name on the wire, or kUnwanted. `name` has slack after its end.
  int32_t find(const uint8_t* name, int64_t size) const {
    if (table_.empty()) return kUnwanted;
    for (uint64_t at = hash(name, size) & mask_; table_[at] != kUnwanted; at = (at + 1) & mask_) {
      const Name& candidate = names_[static_cast<size_t>(table_[at])];
      if (candidate.size == size && same_bytes(candidate.padded.data(), name, size)) return table_[at];
    }
    return kUnwanted;
  }

  int32_t size() const { return static_cast<int32_t>(names_.size()); }

 private:
  struct Name {
    int64_t size;
    std::vector<uint8_t> padded;
  };

  // Mixes whole words. Names come from the user's schema, so a hostile record can only make its own look-ups miss.
  static uint64_t hash(const uint8_t* name, int64_t size) {
    uint64_t h = static_cast<uint64_t>(size) * 0x9E3779B97F4A7C15u;
    for (; size >= 8; size -= 8, name += 8) h = mix(h ^ load64(name));
    if (size > 0) h = mix(h ^ load64(name) << (64 - 8 * size));
    return h ^ h >> 32;
  }
  static uint64_t mix(uint64_t h) {
    h *= 0xD6E8FEB86659FD93u;
    return h ^ h >> 29;
  }
  void rebuild();
  void insert(int32_t slot);

  std::vector<Name> names_;
  std::vector<int32_t> table_;  // open addressing, at most a quarter full
  uint64_t mask_ = 0;
};

}  // namespace tfr
