#include "file.h"

#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace tfr {

namespace {

// Linux moves at most 2 GiB less a page in one call and macOS refuses more than 2 GiB, so larger reads go in pieces.
constexpr int64_t kMaxRead = int64_t{1} << 30;

}  // namespace

File::~File() { ::close(fd_); }

int64_t File::read(int64_t offset, uint8_t* out, int64_t size) const {
  int64_t done = 0;
  while (done < size) {
    const auto piece = static_cast<size_t>(std::min(size - done, kMaxRead));
    const ssize_t got = ::pread(fd_, out + done, piece, static_cast<off_t>(offset + done));
    if (got == 0) break;
    if (got > 0) {
      done += got;
    } else if (errno != EINTR) {
      return -errno;
    }
  }
  return done;
}

int64_t File::size() const {
  struct stat status;
  if (::fstat(fd_, &status) != 0) return -errno;
  return status.st_size;
}

}  // namespace tfr
