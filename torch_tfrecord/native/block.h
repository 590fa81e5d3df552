// Memory for batches: aligned, reused, bounded.
#pragma once

#include <cstdint>

namespace tfr {

// A piece of memory at a multiple of 64 bytes. Its bytes are not initialised. When it dies, a bounded free list keeps
// it for the next of its size: pages that were touched before cost nothing, while fresh ones are dear.
class Block {
 public:
  // Throws std::bad_alloc. `size` may be 0.
  explicit Block(int64_t size);
  ~Block();
  Block(Block&& other) noexcept : data_(other.data_), size_(other.size_), capacity_(other.capacity_) {
    other.data_ = nullptr;
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  uint8_t* data() const { return data_; }
  int64_t size() const { return size_; }

 private:
  uint8_t* data_;
  int64_t size_;
  int64_t capacity_;
};

}  // namespace tfr
