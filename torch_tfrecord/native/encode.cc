#include "encode.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "frame.h"

namespace tfr {

namespace {

// Fields of a message that has a length. Those of Example are all numbered 1 to 3, so a tag takes one byte.
constexpr int kLengthDelimited = 2;
constexpr int64_t kMaxMessageBytes = INT32_MAX;  // protobuf's own bound, which its parsers enforce

[[noreturn]] void refuse(const EncodeColumn& column, const std::string& what) {
  std::string name;
  for (const char c : column.key) {
    name += c >= ' ' && c <= '~' ? c : '?';  // keys are bytes, the text of an error must be UTF-8
  }
  throw std::invalid_argument("feature '" + name + "': " + what);
}

[[noreturn]] void refuse_changed(const EncodeColumn& column) {
  refuse(column, "values were changed by another thread while they were encoded");
}

// --- sizes ---

int64_t varint_size(uint64_t value) {
  const int bits = 64 - __builtin_clzll(value | 1);
  return (bits * 9 + 64) / 64;  // ceil(bits / 7) for 1 to 64 bits
}

int64_t delimited_size(int64_t content) { return 1 + varint_size(static_cast<uint64_t>(content)) + content; }

struct Span {
  int64_t begin, end;
};

Span values_of(const EncodeColumn& column, int64_t row) {
  if (column.row_offsets.empty()) return {row * column.count, (row + 1) * column.count};
  const auto at = static_cast<size_t>(row);
  return {column.row_offsets[at], column.row_offsets[at + 1]};
}

int64_t varints_size(const uint8_t* values, Span span) {
  int64_t size = 0;
  for (int64_t i = span.begin; i < span.end; ++i) size += varint_size(load64(values + i * 8));
  return size;
}

int64_t fields_size(const std::vector<int64_t>& offsets, Span span) {
  int64_t size = 0;
  for (auto i = static_cast<size_t>(span.begin); i < static_cast<size_t>(span.end); ++i) {
    size += delimited_size(offsets[i + 1] - offsets[i]);
  }
  return size;
}

// Bytes of a row's values: the packed run of numbers, or the fields of all bytes values.
int64_t content_size(const EncodeColumn& column, Span span) {
  if (column.kind == kFloat) return (span.end - span.begin) * 4;
  return column.kind == kInt64 ? varints_size(column.values, span) : fields_size(column.value_offsets, span);
}

// A list message: the values' fields themselves, or a packed field, which protobuf leaves out when it is empty.
int64_t list_size(const EncodeColumn& column, int64_t content) {
  return column.kind == kBytes || content == 0 ? content : delimited_size(content);
}

int64_t entry_size(const EncodeColumn& column, int64_t content) {
  const int64_t feature = delimited_size(list_size(column, content));
  return delimited_size(static_cast<int64_t>(column.key.size())) + delimited_size(feature);
}

// Size of a row's Features message. contents[i] becomes what content_size says of column i.
int64_t measure_row(const std::vector<EncodeColumn>& columns, int64_t row, std::vector<int64_t>& contents) {
  int64_t features = 0;
  for (size_t i = 0; i < columns.size(); ++i) {
    contents[i] = content_size(columns[i], values_of(columns[i], row));
    features += delimited_size(entry_size(columns[i], contents[i]));
    if (features > kMaxMessageBytes - 6) {
      refuse(columns[i], "with it, the Example of row " + std::to_string(row) + " would take more than " +
                             std::to_string(kMaxMessageBytes) + " bytes, which no protobuf parser reads");
    }
  }
  return features;
}

// --- checks ---

// Offsets must hold size + 1 numbers that climb from 0 to `end`: then each lies inside and nothing is left over.
void check_offsets(const EncodeColumn& column, const char* name, const std::vector<int64_t>& offsets, int64_t size,
                   int64_t end) {
  const auto found = static_cast<int64_t>(offsets.size());
  if (found - 1 != size) {
    refuse(column, std::string(name) + " must hold " + std::to_string(size) + " + 1 numbers, not " +
                       std::to_string(found));
  }
  if (offsets.front() != 0 || offsets.back() != end || !std::is_sorted(offsets.begin(), offsets.end())) {
    refuse(column, std::string(name) + " must climb from 0 to " + std::to_string(end));
  }
}

void check_column(const EncodeColumn& column, int64_t rows) {
  int64_t num_values = column.size;
  if ((column.kind == kBytes) != !column.value_offsets.empty()) {
    refuse(column, "bytes have value_offsets, numbers have none");
  }
  if (column.kind == kBytes) {
    num_values = static_cast<int64_t>(column.value_offsets.size()) - 1;
    check_offsets(column, "value_offsets", column.value_offsets, num_values, column.size);
  }
  int64_t wanted = 0;
  if (!column.row_offsets.empty()) {
    check_offsets(column, "row_offsets", column.row_offsets, rows, num_values);
  } else if (column.count < 0 || __builtin_mul_overflow(rows, column.count, &wanted) || wanted != num_values) {
    refuse(column, std::to_string(rows) + " rows of " + std::to_string(column.count) + " values are not " +
                       std::to_string(num_values) + " values");
  }
}

// --- writing ---

uint8_t* put_varint(uint8_t* out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) *out++ = static_cast<uint8_t>(value | 0x80);
  *out++ = static_cast<uint8_t>(value);
  return out;
}

// The tag and the length of a field; its content follows.
uint8_t* put_head(uint8_t* out, int field, int64_t content) {
  *out++ = static_cast<uint8_t>(field << 3 | kLengthDelimited);
  return put_varint(out, static_cast<uint64_t>(content));
}

uint8_t* put_bytes(uint8_t* out, const uint8_t* bytes, int64_t size) {
  if (size > 0) std::memcpy(out, bytes, static_cast<size_t>(size));
  return out + size;
}

// Fills exactly out .. end, as measured before; were it not so, another thread changed a value since.
uint8_t* put_int64s(uint8_t* out, const uint8_t* end, const EncodeColumn& column, Span span) {
  for (int64_t i = span.begin; i < span.end; ++i) {
    const uint64_t value = load64(column.values + i * 8);
    if (end - out < 10 && end - out < varint_size(value)) refuse_changed(column);
    out = put_varint(out, value);
  }
  if (out != end) refuse_changed(column);
  return out;
}

uint8_t* put_values(uint8_t* out, const EncodeColumn& column, Span span, int64_t content) {
  if (column.kind == kBytes) {
    for (auto i = static_cast<size_t>(span.begin); i < static_cast<size_t>(span.end); ++i) {
      const int64_t size = column.value_offsets[i + 1] - column.value_offsets[i];
      out = put_head(out, 1, size);
      out = put_bytes(out, column.values + column.value_offsets[i], size);
    }
    return out;
  }
  if (content == 0) return out;
  out = put_head(out, 1, content);
  if (column.kind == kInt64) return put_int64s(out, out + content, column, span);
  return put_bytes(out, column.values + span.begin * 4, content);
}

uint8_t* put_entry(uint8_t* out, const EncodeColumn& column, Span span, int64_t content) {
  const auto key_bytes = static_cast<int64_t>(column.key.size());
  const int64_t list = list_size(column, content);
  out = put_head(out, 1, entry_size(column, content));
  out = put_head(out, 1, key_bytes);
  out = put_bytes(out, reinterpret_cast<const uint8_t*>(column.key.data()), key_bytes);
  out = put_head(out, 2, delimited_size(list));
  out = put_head(out, column.kind, list);
  return put_values(out, column, span, content);
}

}  // namespace

std::vector<int64_t> plan_examples(std::vector<EncodeColumn>& columns, int64_t rows, bool framed) {
  std::sort(columns.begin(), columns.end(),
            [](const EncodeColumn& a, const EncodeColumn& b) { return a.key < b.key; });
  for (size_t i = 0; i < columns.size(); ++i) {
    if (i > 0 && columns[i].key == columns[i - 1].key) refuse(columns[i], "comes twice");
    check_column(columns[i], rows);
  }
  std::vector<int64_t> offsets{0};
  offsets.reserve(static_cast<size_t>(rows) + 1);
  std::vector<int64_t> contents(columns.size());
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t example = delimited_size(measure_row(columns, row, contents));
    offsets.push_back(offsets.back() + example + (framed ? kFrameBytes : 0));
  }
  return offsets;
}

void write_examples(const std::vector<EncodeColumn>& columns, const std::vector<int64_t>& offsets, bool framed,
                    uint8_t* out) {
  std::vector<int64_t> contents(columns.size());
  for (int64_t row = 0; row + 1 < static_cast<int64_t>(offsets.size()); ++row) {
    const auto at = static_cast<size_t>(row);
    const int64_t example = offsets[at + 1] - offsets[at] - (framed ? kFrameBytes : 0);
    const int64_t features = measure_row(columns, row, contents);
    if (delimited_size(features) != example) refuse_changed(columns[0]);

    uint8_t* frame = out + offsets[at];
    uint8_t* end = put_head(framed ? frame + kHeaderBytes : frame, 1, features);
    for (size_t i = 0; i < columns.size(); ++i) {
      end = put_entry(end, columns[i], values_of(columns[i], row), contents[i]);
    }
    if (framed) seal_frame(frame, example);
  }
}

}  // namespace tfr
