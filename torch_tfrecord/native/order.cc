#include "order.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace tfr {

void permute(int64_t size, uint64_t key, int64_t* out) {
  std::iota(out, out + size, int64_t{0});
  Random random(key);
  for (int64_t last = size - 1; last > 0; --last) {
    std::swap(out[last], out[random.below(static_cast<uint64_t>(last) + 1)]);
  }
}

// --- Bijection ---

Bijection::Bijection(int64_t size, std::vector<uint64_t> keys)
    : size_(static_cast<uint64_t>(size)), keys_(std::move(keys)) {
  int bits = 0;
  while (uint64_t{1} << bits < size_) ++bits;
  low_bits_ = bits / 2;
  low_mask_ = (uint64_t{1} << low_bits_) - 1;
  high_mask_ = (uint64_t{1} << (bits - low_bits_)) - 1;
}

// Round by round over all numbers, so that their long chains of multiplications overlap.
template <bool kForward>
void Bijection::rounds(uint64_t* numbers, int64_t count) const {
  const int low_bits = low_bits_;
  const uint64_t low_mask = low_mask_, high_mask = high_mask_;
  for (size_t i = 0; i < keys_.size(); ++i) {
    const size_t round = kForward ? i : keys_.size() - 1 - i;
    const uint64_t key = keys_[round];
    if (round % 2 == 0) {
      for (int64_t n = 0; n < count; ++n) numbers[n] ^= (mix64((numbers[n] & low_mask) + key) & high_mask) << low_bits;
    } else {
      for (int64_t n = 0; n < count; ++n) numbers[n] ^= mix64((numbers[n] >> low_bits) + key) & low_mask;
    }
  }
}

template <bool kForward>
bool Bijection::map(const int64_t* in, int64_t count, int64_t* out, int64_t& outside) const {
  constexpr int64_t kTogether = 256;
  uint64_t numbers[kTogether];
  int64_t places[kTogether];
  for (int64_t begin = 0; begin < count; begin += kTogether) {
    int64_t left = std::min(kTogether, count - begin);
    for (int64_t n = 0; n < left; ++n) {
      numbers[n] = static_cast<uint64_t>(in[begin + n]);
      places[n] = begin + n;
      if (numbers[n] >= size_) {
        outside = static_cast<int64_t>(numbers[n]);
        return false;
      }
    }
    while (left > 0) {  // those that are out of range walk on
      rounds<kForward>(numbers, left);
      int64_t kept = 0;
      for (int64_t n = 0; n < left; ++n) {
        out[places[n]] = static_cast<int64_t>(numbers[n]);
        places[kept] = places[n];
        const uint64_t number = numbers[n];
        numbers[kept] = number;
        kept += number >= size_;
      }
      left = kept;
    }
  }
  return true;
}

bool Bijection::ids(const int64_t* in, int64_t count, int64_t* out, int64_t& outside) const {
  return map<true>(in, count, out, outside);
}

bool Bijection::positions(const int64_t* in, int64_t count, int64_t* out, int64_t& outside) const {
  return map<false>(in, count, out, outside);
}

// --- ShuffleQueue ---

ShuffleQueue::ShuffleQueue(int64_t size, int64_t capacity, uint64_t key)
    : size_(size), random_(key), buffer_(static_cast<size_t>(std::min(size, capacity))) {
  std::iota(buffer_.begin(), buffer_.end(), int64_t{0});
}

template <bool kKeep>
void ShuffleQueue::draw(int64_t count, int64_t* out) {
  constexpr int64_t kTogether = 32;
  int64_t* const buffer = buffer_.data();
  int64_t held = static_cast<int64_t>(buffer_.size());
  Random random = random_;
  int64_t next = position_ + held;  // the first id that is still outside
  position_ += count;
  // While there is something to refill the buffer with, draws do not depend on what was drawn: where they fall is known
  // ahead, and is fetched from memory meanwhile.
  while (count > 0 && next < size_) {
    const int64_t together = std::min({kTogether, count, size_ - next});
    uint64_t places[kTogether];
    for (int64_t n = 0; n < together; ++n) {
      places[n] = random.below(static_cast<uint64_t>(held));
      __builtin_prefetch(buffer + places[n], 1);
    }
    for (int64_t n = 0; n < together; ++n) {
      if (kKeep) *out++ = buffer[places[n]];
      buffer[places[n]] = next++;
    }
    count -= together;
  }
  for (; count > 0; --count) {
    const uint64_t place = random.below(static_cast<uint64_t>(held));
    if (kKeep) *out++ = buffer[place];
    buffer[place] = buffer[--held];
  }
  buffer_.resize(static_cast<size_t>(held));
  random_ = random;
}

void ShuffleQueue::take(int64_t count, int64_t* out) { draw<true>(count, out); }

void ShuffleQueue::skip(int64_t count) { draw<false>(count, nullptr); }

}  // namespace tfr
