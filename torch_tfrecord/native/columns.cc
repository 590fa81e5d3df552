#include "columns.h"

#include <cstring>
#include <stdexcept>

namespace tfr {
namespace {

constexpr int64_t kMaxRowBytes = int64_t{1} << 40;  // keeps products of rows and sizes inside 64 bits

void check_default(const Column& column) {
  if (column.layout == Layout::kRagged || column.kind == kNone) {
    throw std::invalid_argument("only FIXED columns of a feature may have a default");
  }
  const auto size = static_cast<int64_t>(column.default_bytes.size());
  const auto offsets = static_cast<int64_t>(column.default_offsets.size());
  const bool fits = column.is_text() ? offsets == column.count + 1 : size == column.row_bytes() && offsets == 0;
  if (!fits) throw std::invalid_argument("a default does not have the size of its column");
}

void copy(const std::vector<uint8_t>& bytes, uint8_t* out) {
  if (!bytes.empty()) std::memcpy(out, bytes.data(), bytes.size());
}

}  // namespace

void Schema::add(const std::string& key, Column column) {
  if (column.kind > kInt64) throw std::invalid_argument("a column's kind is not 0, 1, 2 or 3");
  if (column.layout != Layout::kFixed && column.layout != Layout::kRagged) {
    throw std::invalid_argument("a column's layout is not FIXED or RAGGED");
  }
  if (column.kind == kNone && (column.layout != Layout::kFixed || column.count != 1 || column.nbytes >= 0)) {
    throw std::invalid_argument("a column of kind 0 is FIXED with count 1 and nbytes -1");
  }
  if (column.nbytes >= 0 && (column.kind != kBytes || column.layout != Layout::kFixed)) {
    throw std::invalid_argument("nbytes is for FIXED columns of kind 1");
  }
  if (column.nbytes < -1) throw std::invalid_argument("nbytes is -1 or a size");
  if (column.layout == Layout::kRagged && column.count != 0) {
    throw std::invalid_argument("the count of a RAGGED column is 0");
  }
  if (column.count < 0 || column.count > kMaxRowBytes || column.nbytes > kMaxRowBytes ||
      (column.item_size() > 0 && column.count > kMaxRowBytes / column.item_size())) {
    throw std::invalid_argument("a column's count or nbytes is negative, or a row of it is over 2**40 bytes");
  }
  if (column.has_default) check_default(column);
  if (column.kind != kNone) column.slot = names.add(key);
  columns.push_back(std::move(column));
}

bool Schema::sized() const {
  for (const Column& column : columns) {
    if (!column.sized()) return false;
  }
  return true;
}

int64_t Schema::column_of(int32_t slot) const {
  for (size_t i = 0; i < columns.size(); ++i) {
    if (columns[i].slot == slot && slot != Names::kUnwanted) return static_cast<int64_t>(i);
  }
  return -1;
}

int check_column(const Column& column, const Slot& slot, Fault& fault) {
  if (column.kind == kNone) return 0;
  if (slot.kind == kNone) {
    if (column.layout == Layout::kRagged) return 0;  // zero values
    if (column.has_default) return 1;
    fault.code = "missing";
    return -1;
  }
  if (slot.kind != column.kind) {
    fault.code = "kind";
    fault.expected = column.kind;
    fault.found = slot.kind;
    return -1;
  }
  if (column.layout == Layout::kFixed && slot.count != column.count) {
    fault.code = "count";
    fault.expected = column.count;
    fault.found = slot.count;
    return -1;
  }
  if (column.nbytes < 0) return 0;
  if (slot.form == Form::kPacked && slot.num_bytes == column.nbytes) return 0;
  std::vector<Range> values;
  list_bytes(slot, values);
  for (const Range& value : values) {
    if (value.size() == column.nbytes) continue;
    fault.code = "nbytes";
    fault.expected = column.nbytes;
    fault.found = value.size();
    return -1;
  }
  return 0;
}

void write_sized(const Column& column, const Slot& slot, uint8_t* out) {
  if (slot.kind == kNone) {
    copy(column.default_bytes, out);
  } else if (column.kind == kInt64) {
    copy_int64s(slot, reinterpret_cast<int64_t*>(out));
  } else if (column.kind == kFloat) {
    copy_floats(slot, out);
  } else if (slot.form == Form::kPacked) {
    if (slot.data.size() > 0) std::memcpy(out, slot.data.begin, static_cast<size_t>(slot.data.size()));
  } else {
    std::vector<Range> values;
    list_bytes(slot, values);
    for (const Range& value : values) {
      if (value.size() > 0) std::memcpy(out, value.begin, static_cast<size_t>(value.size()));
      out += value.size();
    }
  }
}

void write_unsized(const Column& column, const Slot& slot, const Placement& at, int64_t value, int64_t byte,
                   uint8_t* arena) {
  if (column.kind == kInt64) {
    if (slot.count > 0) copy_int64s(slot, reinterpret_cast<int64_t*>(arena + at.values) + value);
    return;
  }
  if (column.kind == kFloat) {
    if (slot.count > 0) copy_floats(slot, arena + at.values + value * 4);
    return;
  }
  auto* offsets = reinterpret_cast<int64_t*>(arena + at.value_offsets) + value;
  uint8_t* out = arena + at.values + byte;
  if (slot.kind == kNone) {
    for (int64_t i = 0; column.has_default && i < column.count; ++i) {
      offsets[i] = byte + column.default_offsets[static_cast<size_t>(i)];
    }
    copy(column.default_bytes, out);
    return;
  }
  std::vector<Range> values;
  list_bytes(slot, values);
  for (const Range& range : values) {
    *offsets++ = byte;
    if (range.size() > 0) std::memcpy(out, range.begin, static_cast<size_t>(range.size()));
    out += range.size();
    byte += range.size();
  }
}

}  // namespace tfr
