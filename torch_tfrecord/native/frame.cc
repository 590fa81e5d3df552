#include "frame.h"

#include <algorithm>
#include <cstring>
#include <memory>

namespace tfr {

namespace {

constexpr int64_t kWindowBytes = 256 * 1024;  // stays in the second-level cache
constexpr int64_t kPeekBytes = 4096;

// A reused buffer over the part of a file that is looked at.
class Window {
 public:
  Window(const File& file, int64_t end) : file_(file), end_(end), buffer_(new uint8_t[kWindowBytes]) {}

  // Sees to it that `wanted` bytes at `offset` are at hand, reading up to `most` where they are not. Returns how many
  // there are: fewer than wanted only at the end of the file. -errno if reading failed.
  int64_t load(int64_t offset, int64_t wanted, int64_t most) {
    if (offset >= start_ && offset - start_ <= size_ - wanted) return size_ - (offset - start_);
    const int64_t left = std::max<int64_t>(end_ - offset, 0);
    const int64_t got = file_.read(offset, buffer_.get(), std::min(most, left));
    start_ = offset;
    size_ = std::max<int64_t>(got, 0);
    return got;
  }

  const uint8_t* at(int64_t offset) const { return buffer_.get() + (offset - start_); }

 private:
  const File& file_;
  const int64_t end_;  // of the file when the scan began; what was appended since is for the next scan
  const std::unique_ptr<uint8_t[]> buffer_;
  int64_t start_ = 0;
  int64_t size_ = 0;
};

// Reads a payload and its footer piece by piece, so that a large one takes no more memory than a small one.
Fault check_payload(Window& window, int64_t offset, int64_t length) {
  uint32_t crc = 0;
  for (int64_t done = 0; done < length;) {
    const int64_t got = window.load(offset + done, 1, kWindowBytes);
    if (got < 0) return make_fault("io", 0, -got);
    if (got == 0) return truncated_payload(static_cast<uint64_t>(length), done);  // the file shrank just now
    const int64_t piece = std::min(got, length - done);
    crc = crc32c(window.at(offset + done), static_cast<size_t>(piece), crc);
    done += piece;
  }
  const int64_t got = window.load(offset + length, kFooterBytes, kWindowBytes);
  if (got < 0) return make_fault("io", 0, -got);
  if (got < kFooterBytes) return truncated_payload(static_cast<uint64_t>(length), length + got);
  return check_data_crc(window.at(offset + length), crc);
}

}  // namespace

Frames split_frames(const uint8_t* data, int64_t size, int verify, int64_t limit) {
  Frames frames;
  while (true) {
    const int64_t here = size - frames.end;
    const int64_t left = limit - frames.end;  // in the file; means nothing where limit is -1
    if (limit >= 0 && 0 < left && left < kHeaderBytes) {
      frames.fault = make_fault("truncated_header", kHeaderBytes, left);
    }
    if (frames.fault || here < kHeaderBytes) break;

    const uint8_t* header = data + frames.end;
    if (verify >= kVerifyLength) frames.fault = check_length_crc(header);
    const uint64_t claimed = load64(header);
    if (!frames.fault && limit >= 0 && !frame_fits(claimed, left)) {
      frames.fault = truncated_payload(claimed, left - kHeaderBytes);
    }
    if (frames.fault || !frame_fits(claimed, here)) break;

    const uint8_t* payload = header + kHeaderBytes;
    if (verify >= kVerifyAll) frames.fault = check_data_crc(payload + claimed, crc32c(payload, claimed));
    if (frames.fault) break;
    frames.add(static_cast<int64_t>(claimed));
  }
  return frames.done();
}

Frames scan_frames(const File& file, int64_t offset, int64_t max_bytes, int verify) {
  Frames frames;
  frames.end = offset;
  const int64_t size = file.size();
  if (size < 0) frames.fault = make_fault("io", 0, -size);
  const int64_t pause = offset < size && max_bytes < size - offset ? offset + max_bytes : size;
  Window window(file, size);
  int64_t most = kWindowBytes;
  // An offset beyond the end goes in once too: the file has shrunk since it was walked that far, which is a fault.
  while (!frames.fault && (frames.end < pause || frames.end > size)) {
    const int64_t got = window.load(frames.end, kHeaderBytes, most);
    if (got < kHeaderBytes) {
      frames.fault = got < 0 ? make_fault("io", 0, -got) : make_fault("truncated_header", kHeaderBytes, got);
      break;
    }
    const uint8_t* header = window.at(frames.end);
    frames.fault = check_length_crc(header);
    if (frames.fault) break;
    const uint64_t claimed = load64(header);
    const int64_t left = size - frames.end;
    if (!frame_fits(claimed, left)) {
      frames.fault = truncated_payload(claimed, left - kHeaderBytes);
      break;
    }
    const auto length = static_cast<int64_t>(claimed);
    if (verify >= kVerifyAll) frames.fault = check_payload(window, frames.end + kHeaderBytes, length);
    if (frames.fault) break;
    frames.add(length);
    // After a payload that fills a window the next is likely as long: then read little more than its header.
    most = verify < kVerifyAll && length >= kWindowBytes ? kPeekBytes : kWindowBytes;
  }
  return frames.done();
}

int64_t frame_size(const uint8_t* header) {
  constexpr uint64_t kMost = INT64_MAX - kFrameBytes;
  return static_cast<int64_t>(std::min(load64(header), kMost)) + kFrameBytes;
}

void seal_frame(uint8_t* frame, int64_t length) {
  const auto stored_length = static_cast<uint64_t>(length);
  std::memcpy(frame, &stored_length, sizeof stored_length);
  const uint32_t length_crc = masked_crc32c(frame, kLengthBytes);
  std::memcpy(frame + kLengthBytes, &length_crc, sizeof length_crc);
  const uint32_t data_crc = masked_crc32c(frame + kHeaderBytes, static_cast<size_t>(length));
  std::memcpy(frame + kHeaderBytes + length, &data_crc, sizeof data_crc);
}

}  // namespace tfr
