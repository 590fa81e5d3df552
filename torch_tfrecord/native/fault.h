// What is wrong with the first bad frame or row: plain data that crosses to Python as a tuple.
#pragma once

#include <cstdint>

namespace tfr {

struct Fault {
  const char* code = nullptr;  // one of the names listed in _core.pyi; nullptr: nothing is wrong
  int64_t row = -1;
  int64_t column = -1;
  int64_t position = 0;
  int64_t expected = 0;
  int64_t found = 0;

  explicit operator bool() const { return code != nullptr; }
};

}  // namespace tfr
