#include "wire.h"

namespace tfr {

bool Wire::long_varint(const uint8_t*& p, const uint8_t* end, uint64_t& value) {
  const uint8_t* at = p;
  value = 0;
  for (int shift = 0; shift < 70; shift += 7) {
    if (p == end) return fail("bad_varint", at);
    const uint64_t byte = *p++;
    value |= (byte & 0x7F) << shift;  // shift 63 drops the bits beyond 64
    if (byte < 0x80) return true;
  }
  return fail("bad_varint", at);
}

bool Wire::skip_plain(const uint8_t*& p, const uint8_t* end, uint32_t wire_type) {
  if (wire_type == 0) {
    uint64_t ignored;
    return varint(p, end, ignored);
  }
  if (wire_type == 2) {
    Range ignored;
    return bytes(p, end, ignored);
  }
  const int64_t size = wire_type == 1 ? 8 : 4;
  if (end - p < size) return fail("bad_length", p, size, end - p);
  p += size;
  return true;
}

bool Wire::skip(const uint8_t*& p, const uint8_t* end, uint32_t tag, const uint8_t* at) {
  uint32_t open[kMaxGroupDepth];  // field numbers of the groups that we are inside; a stack, not recursion
  int depth = 0;
  while (true) {
    const uint32_t wire_type = tag & 7;
    if (wire_type == 3) {
      if (depth == kMaxGroupDepth) return fail("bad_group", at);
      open[depth++] = tag >> 3;
    } else if (wire_type == 4) {
      if (depth == 0 || open[depth - 1] != tag >> 3) return fail("bad_tag", at);
      --depth;
    } else if (!skip_plain(p, end, wire_type)) {
      return false;
    }
    if (depth == 0) return true;
    if (p == end) return fail("bad_group", end);
    at = p;
    if (!this->tag(p, end, tag)) return false;
  }
}

}  // namespace tfr
