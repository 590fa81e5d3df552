// The compiled schema: which columns to make of a record, and how one record's values are checked and written.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "example.h"
#include "fault.h"
#include "names.h"

namespace tfr {

enum class Layout : uint8_t { kFixed = 0, kRagged = 1 };

struct Column {
  int32_t slot = Names::kUnwanted;  // of its name; kUnwanted for kind 0: the whole payload
  Kind kind = kNone;
  Layout layout = Layout::kFixed;
  int64_t count = 0;   // values a record, if fixed
  int64_t nbytes = -1; // of each value, for bytes that are written densely; else -1
  bool has_default = false;
  std::vector<uint8_t> default_bytes;        // numbers and dense bytes: all values; other bytes: end to end
  std::vector<int64_t> default_offsets;      // other bytes: count + 1

  bool is_text() const { return kind <= kBytes && nbytes < 0; }  // bytes values of any size, with offsets
  bool is_scalar() const { return layout == Layout::kFixed && count == 1 && kind >= kFloat; }
  bool sized() const { return layout == Layout::kFixed && !is_text(); }
  int64_t item_size() const { return kind == kInt64 ? 8 : kind == kFloat ? 4 : nbytes < 0 ? 1 : nbytes; }
  int64_t row_bytes() const { return count * item_size(); }  // of a sized column

  // Values, and bytes of them, that a checked slot brings.
  int64_t count_of(const Slot& slot) const { return layout == Layout::kFixed ? count : slot.count; }
  int64_t bytes_of(const Slot& slot) const {
    if (!is_text()) return count_of(slot) * item_size();
    return slot.kind == kNone ? static_cast<int64_t>(default_bytes.size()) : slot.num_bytes;
  }
};

// What the caller's three numbers for a column say: byte offsets in the arena, -1 where there is no such part.
struct Placement {
  int64_t values, value_offsets, row_offsets;
};

struct Schema {
  Names names;
  std::vector<Column> columns;

  // Throws std::invalid_argument.
  void add(const std::string& key, Column column);
  bool sized() const;
  // The lowest column that reads a slot.
  int64_t column_of(int32_t slot) const;
};

// Checks one record's slot against a column. Returns 1 where the default takes the feature's place, 0 where its own
// values do, -1 with a fault.
int check_column(const Column& column, const Slot& slot, Fault& fault);

// Writes one record of a sized column.
void write_sized(const Column& column, const Slot& slot, uint8_t* out);

// Writes one record of any other column at `at`, where its first value goes; `value` and `byte` count the values and
// bytes of the records before it. The offset after the last value is the next record's to write.
void write_unsized(const Column& column, const Slot& slot, const Placement& at, int64_t value, int64_t byte,
                   uint8_t* arena);

}  // namespace tfr
