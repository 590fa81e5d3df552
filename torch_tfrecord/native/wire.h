// The protobuf wire: varints, tags, lengths and how to step over a field. Everything is checked against the end of the
// enclosing message. Failures are recorded in a Fault whose position counts from the start of the record.
#pragma once

#include <cstdint>
#include <cstring>

#include "fault.h"

namespace tfr {

constexpr int kMaxGroupDepth = 100;  // protobuf's own bound on nesting
constexpr int64_t kInt64Max = INT64_MAX;

// Every buffer that is walked has this many readable bytes after its end, so that words can be loaded without a branch.
constexpr int64_t kSlack = 64;

inline uint64_t load64(const uint8_t* p) {
  uint64_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

inline uint32_t load32(const uint8_t* p) {
  uint32_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

inline void store64(uint8_t* p, uint64_t word) { std::memcpy(p, &word, sizeof word); }

// A half-open range of bytes.
struct Range {
  const uint8_t* begin = nullptr;
  const uint8_t* end = nullptr;
  int64_t size() const { return end - begin; }
};

// Reads fields of one record. Each method returns false after it has recorded a fault; then nothing more may be read.
class Wire {
 public:
  Wire(const uint8_t* record, Fault& fault) : record_(record), fault_(fault) {}

  bool fail(const char* code, const uint8_t* at, int64_t expected = 0, int64_t found = 0) {
    fault_.code = code;
    fault_.position = at - record_;
    fault_.expected = expected;
    fault_.found = found;
    return false;
  }

  // A varint of up to 10 bytes; bits beyond 64 are dropped, as protobuf does.
  bool varint(const uint8_t*& p, const uint8_t* end, uint64_t& value) {
    if (p < end && *p < 0x80) {
      value = *p++;
      return true;
    }
    return long_varint(p, end, value);
  }

  // A tag: its field number is not 0, its wire type one of 0 to 5, and it takes at most 5 bytes and 32 bits.
  bool tag(const uint8_t*& p, const uint8_t* end, uint32_t& tag) {
    const uint8_t* at = p;
    uint64_t value;
    if (!varint(p, end, value)) return false;
    if (value >> 32 || p - at > 5 || value < 8 || (value & 7) > 5) return fail("bad_tag", at);
    tag = static_cast<uint32_t>(value);
    return true;
  }

  // A length and the bytes that it counts.
  bool bytes(const uint8_t*& p, const uint8_t* end, Range& range) {
    const uint8_t* at = p;
    uint64_t length;
    if (!varint(p, end, length)) return false;
    if (length > static_cast<uint64_t>(end - p)) {
      return fail("bad_length", at, length > uint64_t{kInt64Max} ? kInt64Max : static_cast<int64_t>(length), end - p);
    }
    range = {p, p + length};
    p += length;
    return true;
  }

  // Steps over the field whose tag was just read; `at` is where that tag begins.
  bool skip(const uint8_t*& p, const uint8_t* end, uint32_t tag, const uint8_t* at);

 private:
  bool long_varint(const uint8_t*& p, const uint8_t* end, uint64_t& value);
  bool skip_plain(const uint8_t*& p, const uint8_t* end, uint32_t wire_type);

  const uint8_t* const record_;
  Fault& fault_;
};

}  // namespace tfr
