// Guesses which name comes next in a record from the order of names in the record before.
#pragma once

#include <cstdint>
#include <vector>

#include "names.h"

namespace tfr {

// Most files keep one order, so each name is first compared with the name that stood at its place; where orders are
// random, guessing is given up for a while.
class Predictor {
 public:
  void begin_record() {
    place_ = 0;
    misses_ = 0;
  }
  void end_record() {
    if (rest_ > 0) {
      --rest_;
    } else if (2 * misses_ > place_ && learned_) {
      rest_ = kRest;
      learned_ = false;
    } else {
      learned_ = true;
    }
  }

  int32_t find(const Names& names, const uint8_t* name, int64_t size) {
    if (rest_ > 0) return names.find(name, size);
    if (place_ == guesses_.size()) guesses_.push_back({nullptr, -1, Names::kUnwanted});
    Guess& guess = guesses_[place_++];
    if (guess.size == size && same_bytes(guess.name, name, size)) return guess.slot;
    ++misses_;
    guess = {name, size, names.find(name, size)};
    return guess.slot;
  }

 private:
  static constexpr int kRest = 15;  // records
  struct Guess {
    const uint8_t* name;  // in an earlier record, which its owner keeps as long as the predictor
    int64_t size;
    int32_t slot;
  };
  std::vector<Guess> guesses_;
  size_t place_ = 0;
  size_t misses_ = 0;
  int rest_ = 0;
  bool learned_ = false;  // whether guesses_ holds a whole record
};

}  // namespace tfr
