// An open file that is read by position. Safe to share between threads: it has no file pointer to move.
#pragma once

#include <cstdint>

namespace tfr {

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  // Reads up to `size` bytes at `offset` into `out`; fewer only at the end of the file. Returns the count, or -errno.
  int64_t read(int64_t offset, uint8_t* out, int64_t size) const;

  // Size in bytes now, or -errno.
  int64_t size() const;

 private:
  const int fd_;
};

}  // namespace tfr
