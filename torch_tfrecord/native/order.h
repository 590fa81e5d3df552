// Orders of record numbers: permutations, and TF1's shuffle queue. The same key gives the same order on every machine.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

namespace tfr {

constexpr int64_t kMaxOrder = int64_t{1} << 62;  // numbers of an order

// Finaliser of splitmix64: 64 bits that look random where neighbouring ones go in.
inline uint64_t mix64(uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

// splitmix64.
class Random {
 public:
  explicit Random(uint64_t key) : state_(key) {}

  // A number in [0, bound), each with the same probability. The high half of bound x 64 random bits would favour some by
  // one part in 2^64 / bound; the few products that are to blame are known by their low half, and drawn again.
  uint64_t below(uint64_t bound) {
    Product product = Product{next()} * bound;
    if (static_cast<uint64_t>(product) < bound) {
      const uint64_t too_many = -bound % bound;  // 2^64 mod bound
      while (static_cast<uint64_t>(product) < too_many) product = Product{next()} * bound;
    }
    return static_cast<uint64_t>(product >> 64);
  }

 private:
  __extension__ using Product = unsigned __int128;

  uint64_t next() { return mix64(state_ += 0x9E3779B97F4A7C15u); }

  uint64_t state_;
};

// Fisher-Yates: a random permutation of 0 .. size-1.
void permute(int64_t size, uint64_t key, int64_t* out);

// A permutation of 0 .. size-1 that is computed point by point: an alternating Feistel network on the fewest bits that
// hold size numbers, applied again until the result is one of them (at most twice, on average).
class Bijection {
 public:
  Bijection(int64_t size, std::vector<uint64_t> keys);

  int64_t size() const { return static_cast<int64_t>(size_); }

  // Position to number and back. False where a number is not in [0, size): `outside` is it, and `out` has no meaning.
  bool ids(const int64_t* in, int64_t count, int64_t* out, int64_t& outside) const;
  bool positions(const int64_t* in, int64_t count, int64_t* out, int64_t& outside) const;

 private:
  template <bool kForward>
  void rounds(uint64_t* numbers, int64_t count) const;
  template <bool kForward>
  bool map(const int64_t* in, int64_t count, int64_t* out, int64_t& outside) const;

  uint64_t size_;
  std::vector<uint64_t> keys_;
  int low_bits_;
  uint64_t low_mask_, high_mask_;
};

// A buffer of `capacity` numbers, through which 0 .. size-1 pass in sequence, and leave it in random order: before each
// draw it holds `capacity` of them, or all that remain.
class ShuffleQueue {
 public:
  // Memory is bounded by the size.
  ShuffleQueue(int64_t size, int64_t capacity, uint64_t key);

  int64_t size() const { return size_; }
  int64_t position() const { return position_; }  // drawn so far

  // Draws, at most size - position.
  void take(int64_t count, int64_t* out);
  void skip(int64_t count);  // draws without a look

  std::atomic<bool> busy{false};  // for callers from several threads: whether one is at work

 private:
  template <bool kKeep>
  void draw(int64_t count, int64_t* out);

  const int64_t size_;
  int64_t position_ = 0;
  Random random_;
  std::vector<int64_t> buffer_;  // its size is the number of ids in it
};

}  // namespace tfr
