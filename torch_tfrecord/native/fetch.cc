#include "fetch.h"

#include <algorithm>

namespace tfr {
namespace {

constexpr int64_t kTrusted = 1 << 20;  // bytes of payload that are worth a buffer without a look at the file's size

Fault at_row(Fault fault, int64_t row, const Place& place) {
  fault.row = row;
  fault.position = place.offset;
  return fault;
}

// Checks one frame of which `available` bytes are there, the header's and perhaps more of them in memory.
Fault check(const Place& place, const uint8_t* bytes, int64_t available, int verify) {
  if (available < kHeaderBytes) return make_fault("truncated_header", kHeaderBytes, available);
  if (verify >= kVerifyLength) {
    if (const Fault fault = check_length_crc(bytes)) return fault;
  }
  const uint64_t length = load64(bytes);
  if (length != static_cast<uint64_t>(place.length)) {
    const uint64_t most = INT64_MAX;
    return make_fault("length_mismatch", place.length, static_cast<int64_t>(std::min(length, most)));
  }
  if (available < place.frame_bytes()) return truncated_payload(length, available - kHeaderBytes);
  if (verify < kVerifyAll) return {};
  const uint8_t* payload = bytes + kHeaderBytes;
  return check_data_crc(payload + place.length, crc32c(payload, static_cast<size_t>(place.length)));
}

}  // namespace

int64_t fetch(const Files& files, const std::vector<Place>& places, int64_t begin, int64_t end, int verify,
              uint8_t* buffer, Fault& fault) {
  const auto place = [&places](int64_t row) -> const Place& { return places[static_cast<size_t>(row)]; };
  int64_t row = begin;
  while (row < end) {
    const Place& first = place(row);
    int64_t run_end = row, size = 0;
    while (run_end < end && place(run_end).file == first.file && place(run_end).offset - first.offset == size) {
      size += place(run_end++).frame_bytes();
    }
    int64_t left = files[static_cast<size_t>(first.file)]->read(first.offset, buffer, size);
    if (left < 0) {
      fault = at_row(make_fault("io", 0, -left), row, first);
      return row;
    }
    for (; row < run_end; ++row) {
      const int64_t bytes = place(row).frame_bytes();
      fault = check(place(row), buffer, std::clamp<int64_t>(left, 0, bytes), verify);
      if (fault) {
        fault = at_row(fault, row, place(row));
        return row;
      }
      left -= bytes;
      buffer += bytes;
    }
  }
  return row;
}

int64_t screen(const Files& files, const std::vector<Place>& places, int verify, Fault& fault) {
  const auto rows = static_cast<int64_t>(places.size());
  for (int64_t row = 0; row < rows; ++row) {
    const Place& place = places[static_cast<size_t>(row)];
    if (place.length <= kTrusted) continue;
    const File& file = *files[static_cast<size_t>(place.file)];
    const int64_t size = file.size();
    if (size >= 0 && place.frame_bytes() <= size - place.offset) continue;
    uint8_t header[kHeaderBytes] = {};
    const int64_t got = size < 0 ? size : file.read(place.offset, header, kHeaderBytes);
    // A file that grew since its size was asked for is cut short all the same: its size is what the answer rests on.
    const int64_t available = got < kHeaderBytes ? got : std::max(size - place.offset, kHeaderBytes);
    fault = got < 0 ? make_fault("io", 0, -got) : check(place, header, available, std::min<int>(verify, kVerifyLength));
    if (!fault) fault = truncated_payload(static_cast<uint64_t>(place.length), 0);
    fault = at_row(fault, row, place);
    return row;
  }
  return rows;
}

}  // namespace tfr
