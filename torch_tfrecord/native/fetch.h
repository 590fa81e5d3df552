// Frames whose places are known, from an index: read from their files and checked.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "fault.h"
#include "file.h"
#include "frame.h"

namespace tfr {

// Where a row's frame lies.
struct Place {
  int32_t file;
  int64_t offset;  // of the frame in its file
  int64_t length;  // of the payload

  int64_t frame_bytes() const { return kFrameBytes + length; }
};

using Files = std::vector<std::shared_ptr<File>>;

// Reads rows [begin, end) into `buffer`, which has room for all their frames, end to end: adjacent ones by one read.
// Returns the end of the rows that are good; `fault` says what is wrong with the next one, if that is not `end`.
int64_t fetch(const Files& files, const std::vector<Place>& places, int64_t begin, int64_t end, int verify,
              uint8_t* buffer, Fault& fault);

// Compares rows with the sizes of their files, before memory is taken for a row of which only an index says that it is
// long. Returns the end of the rows that may be fetched, with the fault of the next one.
int64_t screen(const Files& files, const std::vector<Place>& places, int verify, Fault& fault);

}  // namespace tfr
