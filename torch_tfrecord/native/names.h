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

// A name with its first and last 8 bytes in registers. Of a name of up to 16 bytes they are all there is, so most names
// are hashed and compared without a loop, whose length no branch predictor could guess where the order is random.
struct Name {
  const uint8_t* data;  // with slack after its end
  int64_t size;
  uint64_t head, tail;

  Name(const uint8_t* name, int64_t length) : data(name), size(length) {
    const uint64_t mask = length < 8 ? (uint64_t{1} << 8 * length) - 1 : ~uint64_t{0};
    head = load64(name) & mask;
    tail = load64(name + (length < 8 ? 0 : length - 8)) & mask;
  }

  bool operator==(const Name& other) const {
    return head == other.head && tail == other.tail && size == other.size &&
           (size <= 16 || same_bytes(data + 8, other.data + 8, size - 16));
  }

  // Names that differ only in the middle collide; then they are compared one by one. They come from the user's schema:
  // a hostile record can only make its own look-ups miss.
  uint64_t hash() const {
    const uint64_t mixed = (head ^ (tail << 23 | tail >> 41) ^ static_cast<uint64_t>(size)) * 0x9E3779B97F4A7C15u;
    return mixed ^ mixed >> 32;
  }
};

class Names {
 public:
  static constexpr int32_t kUnwanted = -1;

  // Adds a name, or finds it: returns its slot, 0 .. size() - 1.
  int32_t add(const std::string& name);

  // The slot of a name on the wire, or kUnwanted.
  int32_t find(const Name& name) const {
    for (uint64_t at = name.hash() & mask_; table_[at] != kUnwanted; at = (at + 1) & mask_) {
      if (is(table_[at], name)) return table_[at];
    }
    return kUnwanted;
  }

  bool is(int32_t slot, const Name& name) const { return names_[static_cast<size_t>(slot)] == name; }
  int32_t size() const { return static_cast<int32_t>(names_.size()); }

 private:
  void insert(int32_t slot);

  std::vector<std::vector<uint8_t>> storage_;  // what names_ point to
  std::vector<Name> names_;
  std::vector<int32_t> table_ = std::vector<int32_t>(16, kUnwanted);  // open addressing, at most a quarter full
  uint64_t mask_ = 15;
};

}  // namespace tfr
