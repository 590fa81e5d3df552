// Columns of values to serialised Examples, one a row.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "example.h"

namespace tfr {

// One feature of every row. Value i of kind kBytes is the bytes value_offsets[i] .. value_offsets[i + 1]; row r holds
// the values row_offsets[r] .. row_offsets[r + 1], or `count` values a row where there are no row_offsets.
struct EncodeColumn {
  std::string key;
  Kind kind = kNone;
  const uint8_t* values = nullptr;
  int64_t size = 0;  // of `values`: bytes of kBytes, items of numbers
  int64_t count = 0;
  std::vector<int64_t> row_offsets;    // empty: none
  std::vector<int64_t> value_offsets;  // kBytes only
};

// Sorts columns by key, checks them and returns where each row's Example, or the frame round it, begins in the output:
// rows + 1 byte offsets. Throws std::invalid_argument, whose text says what is wrong.
std::vector<int64_t> plan_examples(std::vector<EncodeColumn>& columns, int64_t rows, bool framed);

// Writes the rows that were planned. Throws std::invalid_argument if values have changed in between.
void write_examples(const std::vector<EncodeColumn>& columns, const std::vector<int64_t>& offsets, bool framed,
                    uint8_t* out);

}  // namespace tfr
