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
  int64_t tail_at;  // where the last 8 bytes begin; 0 of a name of less, whose head and tail are the same
  uint64_t mask;    // of the bytes that a word has of the name
  uint64_t head, tail;

  Name(const uint8_t* name, int64_t length)
      : data(name),
        size(length),
        tail_at(length < 8 ? 0 : length - 8),
        mask(length < 8 ? (uint64_t{1} << 8 * length) - 1 : ~uint64_t{0}),
        head(load64(name) & mask),
        tail(load64(name + tail_at) & mask) {}

  // Whether `length` bytes at `name`, with slack after them, are this name.
  bool is(const uint8_t* name, int64_t length) const {
    return size == length && head == (load64(name) & mask) && tail == (load64(name + tail_at) & mask) &&
           (size <= 16 || same_bytes(data + 8, name + 8, size - 16));
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

  // The slot of a name on the wire, or kUnwanted. `name` has slack after its end.
  int32_t find(const uint8_t* name, int64_t length) const {
    for (uint64_t at = Name(name, length).hash() & mask_; table_[at] != kUnwanted; at = (at + 1) & mask_) {
      if (is(table_[at], name, length)) return table_[at];
    }
    return kUnwanted;
  }

  bool is(int32_t slot, const uint8_t* name, int64_t length) const {
    return names_[static_cast<size_t>(slot)].is(name, length);
  }
  int32_t size() const { return static_cast<int32_t>(names_.size()); }

 private:
  void insert(int32_t slot);

  std::vector<std::vector<uint8_t>> storage_;  // what names_ point to
  std::vector<Name> names_;
  std::vector<int32_t> table_ = std::vector<int32_t>(16, kUnwanted);  // open addressing, at most a quarter full
  uint64_t mask_ = 15;
};

}  // namespace tfr
