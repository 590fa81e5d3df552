// One batch: rows from files or memory, through the walk, into an arena.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "block.h"
#include "columns.h"
#include "fault.h"
#include "fetch.h"
#include "pool.h"

namespace tfr {

// Decodes one batch. Where every column is sized, a fill does all in one pass through cache-sized buffers. Otherwise a
// measure reads all rows into one block and notes where their values lie, and a fill copies them out of there.
//
// Both are work for threads: `start_...` makes it, the caller submits it or waits for it, `finish` takes its result.
class Job {
 public:
  Job(std::shared_ptr<const Schema> schema, Files files, std::vector<Place> places, int verify);
  // Payloads in memory, end to end in `block`: row i lies at [offsets[i], offsets[i + 1]); kSlack bytes follow the last.
  Job(std::shared_ptr<const Schema> schema, Block block, std::vector<int64_t> offsets);
  ~Job();  // what is at work is cancelled
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  int64_t rows() const { return rows_; }
  bool sized() const { return sized_; }
  bool measured() const { return measured_; }
  const Schema& schema() const { return *schema_; }

  // Each at most once. The arena must stay until the work is done or cancelled.
  void start_measure(int threads);
  void start_fill(uint8_t* arena, std::vector<Placement> placements, int threads);
  void check_fill() const;  // throws where start_fill would
  // What was started last, or null.
  const std::shared_ptr<Work>& work() const { return work_; }
  // When that is done: the fault of the first bad row, if there is one. Also a second time.
  Fault finish();
  // Whether something was started and not finished.
  bool at_work() const { return stage_ == Stage::kMeasuring || stage_ == Stage::kFilling; }

  int64_t num_values(size_t column) const;
  int64_t num_bytes(size_t column) const;
  // After measure.
  std::vector<Range> values(size_t column) const;

  int64_t num_defaulted() const { return num_defaulted_; }
  int64_t num_duplicates() const { return num_duplicates_; }

 private:
  struct Chunk {
    int64_t begin, end;  // rows
    int64_t shift;       // bytes between chunks that stand in raw_ before it: a walk reads into the slack of its own
  };
  enum class Stage { kNew, kMeasuring, kMeasured, kFilling, kFilled, kFailed };
  class Task;

  template <class Body>
  void start(Stage stage, int threads, std::function<void(int64_t)> prepare, Body body, std::function<void()> end);
  int64_t fetchable();
  std::vector<Chunk> chunks(int64_t rows, int threads) const;
  void make_room(int64_t rows);
  void write_offsets();
  const Slot& slot(int64_t row, size_t column) const;
  void report(const Fault& fault);
  void add_up();

  const std::shared_ptr<const Schema> schema_;
  const Files files_;
  const std::vector<Place> places_;
  const int verify_ = kVerifyNothing;
  const int64_t rows_;
  const bool in_memory_;
  const bool sized_;
  Stage stage_ = Stage::kNew;
  bool measured_ = false;
  std::shared_ptr<Work> work_;
  uint8_t* arena_ = nullptr;  // where a fill writes
  std::vector<Placement> placements_;
  std::vector<Chunk> chunks_;  // tasks of the work

  std::unique_ptr<Block> raw_;          // frames, or payloads, that stay until the job dies
  std::vector<int64_t> raw_offsets_;    // rows + 1
  std::vector<Slot> slots_;             // rows x names, if measured
  std::vector<Slot> payload_slots_;     // rows, if measured and some column is of kind 0
  std::vector<std::vector<int64_t>> value_starts_, byte_starts_;  // by column, rows + 1, for unsized columns

  std::mutex mutex_;
  Fault fault_;                               // of the lowest row so far; guarded by mutex_
  std::atomic<int64_t> first_bad_{INT64_MAX};  // its row
  std::atomic<int64_t> num_defaulted_{0}, num_duplicates_{0};
};

}  // namespace tfr
