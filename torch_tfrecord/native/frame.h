// TFRecord frames: 8 bytes of payload length, 4 of its masked CRC, the payload, 4 of the payload's masked CRC.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "crc32c.h"
#include "fault.h"
#include "file.h"
#include "wire.h"

namespace tfr {

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kHeaderBytes = 12;
constexpr int64_t kFooterBytes = 4;
constexpr int64_t kFrameBytes = kHeaderBytes + kFooterBytes;

enum Verify { kVerifyNothing = 0, kVerifyLength = 1, kVerifyAll = 2 };

inline Fault make_fault(const char* code, int64_t expected, int64_t found) {
  Fault fault;
  fault.code = code;
  fault.expected = expected;
  fault.found = found;
  return fault;
}

// The functions below give faults without a row and a position; who calls them knows those.

inline Fault check_length_crc(const uint8_t* header) {
  const uint32_t stored = load32(header + kLengthBytes);
  const uint32_t computed = masked_crc32c(header, kLengthBytes);
  return stored == computed ? Fault() : make_fault("length_crc", stored, computed);
}

inline Fault check_data_crc(const uint8_t* footer, uint32_t crc) {
  const uint32_t stored = load32(footer);
  const uint32_t computed = mask_crc(crc);
  return stored == computed ? Fault() : make_fault("data_crc", stored, computed);
}

// Whether a frame that claims `length` bytes of payload ends within the `left` bytes from its first one on.
inline bool frame_fits(uint64_t length, int64_t left) {
  return left >= kFrameBytes && length <= static_cast<uint64_t>(left - kFrameBytes);
}

inline Fault truncated_payload(uint64_t length, int64_t found) {
  constexpr uint64_t kMost = INT64_MAX - kFooterBytes;
  return make_fault("truncated_payload", static_cast<int64_t>(length < kMost ? length : kMost) + kFooterBytes, found);
}

// Frames that lie end to end.
struct Frames {
  std::vector<int64_t> offsets;  // of the frames
  std::vector<int64_t> lengths;  // of their payloads
  int64_t end = 0;               // where the next frame begins
  Fault fault;                   // what is wrong with that next frame

  void add(int64_t length) {
    offsets.push_back(end);
    lengths.push_back(length);
    end += kFrameBytes + length;
  }

  // Says where the fault is, if there is one.
  Frames&& done() {
    fault.row = static_cast<int64_t>(offsets.size());
    fault.position = end;
    return std::move(*this);
  }
};

// Whole frames at the start of `data`; `limit` counts the bytes from there to the end of the file, -1: not known.
Frames split_frames(const uint8_t* data, int64_t size, int verify, int64_t limit);

// Frames of a file from `offset` until `max_bytes` are passed, the file ends or a frame is bad.
Frames scan_frames(const File& file, int64_t offset, int64_t max_bytes, int verify);

// Whole size of the frame that a header announces, unchecked and at most 2^63 - 1.
int64_t frame_size(const uint8_t* header);

// Writes header and footer round a payload that already stands at frame + 12.
void seal_frame(uint8_t* frame, int64_t length);

}  // namespace tfr
