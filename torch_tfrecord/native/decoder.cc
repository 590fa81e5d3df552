#include "decoder.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "varint.h"

namespace tfr {
namespace {

constexpr int64_t kMinChunk = 16 << 10;   // bytes of frames a task: enough to outweigh handing it out,
constexpr int64_t kMaxChunk = 256 << 10;  // and small enough to stay in a core's cache between its passes

}  // namespace

// The work of one thread on one chunk of rows.
class Job::Task {
 public:
  explicit Task(Job& job)
      : job_(job), schema_(*job.schema_), arena_(job.arena_), placements_(job.placements_), walker_(schema_.names) {
    if (arena_ == nullptr) return;
    for (size_t c = 0; c < schema_.columns.size(); ++c) {
      const Column& column = schema_.columns[c];
      const int64_t values = placements_[c].values;
      if (column.is_scalar() && values >= 0) {
        scalars_.push_back({column.slot, column.kind, arena_ + values});
      } else {
        others_.push_back(c);
      }
    }
  }

  // Read, walk and check; then note the slots (measure) or write the values (arena given).
  void decode(Chunk chunk) {
    const uint8_t* base;
    if (job_.in_memory_) {
      base = job_.raw_->data() + job_.raw_offsets_[at(chunk.begin)];
    } else {
      uint8_t* buffer;
      if (job_.raw_ != nullptr) {
        buffer = job_.raw_->data() + job_.raw_offsets_[at(chunk.begin)] + chunk.shift;
      } else {
        buffer = scratch(job_.raw_offsets_[at(chunk.end)] - job_.raw_offsets_[at(chunk.begin)] + kSlack);
      }
      Fault fault;
      chunk.end = fetch(job_.files_, job_.places_, chunk.begin, chunk.end, job_.verify_, buffer, fault);
      if (fault) job_.report(fault);  // the rows before it may hold an earlier one
      base = buffer;
    }
    own_slots_.resize(at(schema_.names.size()));
    for (int64_t row = chunk.begin; row < chunk.end; ++row) {
      if (!decode_row(row, payload(row, base, chunk.begin))) return;
    }
    flush_counters();
  }

  // Write the values of rows that were measured.
  void write(Chunk chunk) {
    for (int64_t row = chunk.begin; row < chunk.end; ++row) {
      for (size_t c = 0; c < schema_.columns.size(); ++c) {
        const Column& column = schema_.columns[c];
        const Placement& placement = placements_[c];
        if (placement.values < 0) continue;
        const Slot& slot = job_.slot(row, c);
        if (column.sized()) {
          write_sized(column, slot, arena_ + placement.values + row * column.row_bytes());
        } else {
          write_unsized(column, slot, placement, job_.value_starts_[c][at(row)], job_.byte_starts_[c][at(row)], arena_);
        }
      }
    }
  }

 private:
  struct Scalar {
    int32_t slot;
    Kind kind;
    uint8_t* out;
  };

  static size_t at(int64_t i) { return static_cast<size_t>(i); }

  // A buffer of this thread, whose cache it stays in from chunk to chunk. One that a long row needed is not kept.
  static uint8_t* scratch(int64_t size) {
    thread_local std::unique_ptr<Block> kept;
    if (kept == nullptr || kept->size() < size || kept->size() > 2 * kMaxChunk) {
      kept.reset();
      kept = std::make_unique<Block>(std::max(size, kMaxChunk + kSlack));
    }
    return kept->data();
  }

  Range payload(int64_t row, const uint8_t* base, int64_t first) const {
    const uint8_t* begin = base + (job_.raw_offsets_[at(row)] - job_.raw_offsets_[at(first)]);
    if (job_.in_memory_) return {begin, begin + (job_.raw_offsets_[at(row + 1)] - job_.raw_offsets_[at(row)])};
    return {begin + kHeaderBytes, begin + kHeaderBytes + job_.places_[at(row)].length};
  }

  bool decode_row(int64_t row, Range record) {
    const bool keep = arena_ == nullptr;
    Slot* slots = own_slots_.data();
    if (keep && schema_.names.size() > 0) slots = &job_.slots_[at(row * schema_.names.size())];
    Fault fault;
    if (schema_.names.size() > 0 && !walker_.walk(record, slots, duplicates_, fault)) {
      fault.column = schema_.column_of(static_cast<int32_t>(fault.column));
      return stop(row, fault);
    }
    Slot whole;
    whole.data = record;
    whole.count = 1;
    whole.num_bytes = record.size();
    whole.kind = kBytes;
    if (keep && !job_.payload_slots_.empty()) job_.payload_slots_[at(row)] = whole;
    if (!keep && write_scalars(row, slots)) return write_others(row, slots, whole);
    return check_all(row, slots, whole);
  }

  // The commonest columns by far, one number a record, in as few steps as possible. False: some is not that simple.
  bool write_scalars(int64_t row, const Slot* slots) {
    for (const Scalar& scalar : scalars_) {
      const Slot& slot = slots[scalar.slot];
      if (slot.scalar != scalar.kind) return false;
      if (scalar.kind == kInt64) {
        store64(scalar.out + row * 8, decode_varint(slot.data.begin, slot.data.size()));
      } else {
        std::memcpy(scalar.out + row * 4, slot.data.begin, 4);
      }
    }
    return true;
  }

  // Checks all columns in order, and writes those that go to the arena now.
  bool check_all(int64_t row, const Slot* slots, const Slot& whole) {
    for (size_t c = 0; c < schema_.columns.size(); ++c) {
      if (!check_one(row, c, slots, whole)) return false;
    }
    return true;
  }

  bool write_others(int64_t row, const Slot* slots, const Slot& whole) {
    for (const size_t c : others_) {
      if (!check_one(row, c, slots, whole)) return false;
    }
    return true;
  }

  bool check_one(int64_t row, size_t c, const Slot* slots, const Slot& whole) {
    const Column& column = schema_.columns[c];
    const Slot& slot = column.slot == Names::kUnwanted ? whole : slots[column.slot];
    Fault fault;
    const int defaulted = check_column(column, slot, fault);
    if (defaulted < 0) {
      fault.column = static_cast<int64_t>(c);
      return stop(row, fault);
    }
    defaulted_ += defaulted;
    if (arena_ != nullptr && placements_[c].values >= 0) {
      write_sized(column, slot, arena_ + placements_[c].values + row * column.row_bytes());
    }
    return true;
  }

  bool stop(int64_t row, Fault fault) {
    fault.row = row;
    job_.report(fault);
    flush_counters();
    return false;
  }

  void flush_counters() {
    job_.num_defaulted_ += defaulted_;
    job_.num_duplicates_ += duplicates_;
    defaulted_ = duplicates_ = 0;
  }

  Job& job_;
  const Schema& schema_;
  uint8_t* const arena_;
  const std::vector<Placement>& placements_;
  ExampleWalker walker_;
  std::vector<Slot> own_slots_;
  std::vector<Scalar> scalars_;  // columns of one number a record, and where they go
  std::vector<size_t> others_;   // all other columns
  int64_t defaulted_ = 0, duplicates_ = 0;
};

Job::Job(std::shared_ptr<const Schema> schema, Files files, std::vector<Place> places, int verify)
    : schema_(std::move(schema)),
      files_(std::move(files)),
      places_(std::move(places)),
      verify_(verify),
      rows_(static_cast<int64_t>(places_.size())),
      in_memory_(false),
      sized_(schema_->sized()) {
  raw_offsets_.reserve(places_.size() + 1);
  raw_offsets_.push_back(0);
  for (const Place& place : places_) {
    int64_t end;
    if (place.offset < 0 || place.length < 0 || place.length > kInt64Max - kFrameBytes || place.file < 0 ||
        place.file >= static_cast<int64_t>(files_.size()) ||
        __builtin_add_overflow(place.offset, place.frame_bytes(), &end) ||
        __builtin_add_overflow(raw_offsets_.back(), place.frame_bytes(), &end)) {
      throw std::invalid_argument("an offset, length or file of a row is out of range");
    }
    raw_offsets_.push_back(end);
  }
}

Job::Job(std::shared_ptr<const Schema> schema, Block block, std::vector<int64_t> offsets)
    : schema_(std::move(schema)),
      rows_(static_cast<int64_t>(offsets.size()) - 1),
      in_memory_(true),
      sized_(schema_->sized()),
      raw_(std::make_unique<Block>(std::move(block))),
      raw_offsets_(std::move(offsets)) {}

Job::~Job() {
  if (work_ != nullptr) work_->cancel();
}

const Slot& Job::slot(int64_t row, size_t column) const {
  const int32_t slot = schema_->columns[column].slot;
  if (slot == Names::kUnwanted) return payload_slots_[static_cast<size_t>(row)];
  return slots_[static_cast<size_t>(row * schema_->names.size() + slot)];
}

void Job::report(const Fault& fault) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (fault.row >= first_bad_) return;
  fault_ = fault;
  first_bad_ = fault.row;
}

int64_t Job::fetchable() {
  if (in_memory_) return rows_;
  Fault fault;
  const int64_t end = screen(files_, places_, verify_, fault);
  if (fault) report(fault);
  return end;
}

std::vector<Job::Chunk> Job::chunks(int64_t rows, int threads) const {
  const int64_t total = raw_offsets_[static_cast<size_t>(rows)];
  const int64_t budget = std::clamp(total / (4 * std::max(threads, 1)), kMinChunk, kMaxChunk);
  std::vector<Chunk> chunks;
  for (int64_t row = 0; row < rows;) {
    const int64_t begin = row, limit = raw_offsets_[static_cast<size_t>(begin)] + budget;
    do {
      ++row;
    } while (row < rows && raw_offsets_[static_cast<size_t>(row) + 1] <= limit);
    chunks.push_back({begin, row, static_cast<int64_t>(chunks.size()) * kSlack});
  }
  return chunks;
}

template <class Body>
void Job::start(Stage stage, int threads, std::function<void(int64_t)> prepare, Body body, std::function<void()> end) {
  const auto begin = [this, threads, prepare] {
    const int64_t rows = measured_ ? rows_ : fetchable();
    chunks_ = chunks(rows, threads);
    prepare(rows);
    return static_cast<int64_t>(chunks_.size());
  };
  const auto task = [this, body](int64_t i) {
    const Chunk& chunk = chunks_[static_cast<size_t>(i)];
    if (chunk.begin > first_bad_) return;  // the first bad row is what counts
    Task task(*this);
    body(task, chunk);
  };
  work_ = std::make_shared<Work>(Steps{begin, task, std::move(end)}, threads);
  stage_ = stage;
}

void Job::start_measure(int threads) {
  if (at_work()) throw std::invalid_argument("this job is at work: wait comes first");
  if (stage_ != Stage::kNew) throw std::invalid_argument("measure comes once, and before fill");
  const auto end = [this] {
    if (!fault_) add_up();
  };
  const auto decode = [](Task& task, const Chunk& chunk) { task.decode(chunk); };
  start(Stage::kMeasuring, threads, [this](int64_t rows) { make_room(rows); }, decode, end);
}

void Job::make_room(int64_t rows) {
  if (!in_memory_) {
    const auto slack = static_cast<int64_t>(chunks_.size()) * kSlack;
    raw_ = std::make_unique<Block>(raw_offsets_[static_cast<size_t>(rows)] + slack + kSlack);
  }
  slots_.resize(static_cast<size_t>(rows_ * schema_->names.size()));
  for (const Column& column : schema_->columns) {
    if (column.slot == Names::kUnwanted) payload_slots_.resize(static_cast<size_t>(rows_));
  }
}

void Job::add_up() {
  const size_t columns = schema_->columns.size();
  value_starts_.resize(columns);
  byte_starts_.resize(columns);
  for (size_t c = 0; c < columns; ++c) {
    const Column& column = schema_->columns[c];
    if (column.sized()) continue;
    auto& values = value_starts_[c];
    auto& bytes = byte_starts_[c];
    values.assign(1, 0);
    bytes.assign(1, 0);
    for (int64_t row = 0; row < rows_; ++row) {
      const Slot& slot = this->slot(row, c);
      values.push_back(values.back() + column.count_of(slot));
      bytes.push_back(bytes.back() + column.bytes_of(slot));
    }
  }
}

void Job::check_fill() const {
  if (at_work()) throw std::invalid_argument("this job is at work: wait comes first");
  if (stage_ == Stage::kFilled || stage_ == Stage::kFailed) {
    throw std::invalid_argument("fill comes once, and after a measure without a fault");
  }
  if (!sized_ && !measured_) throw std::invalid_argument("measure comes before fill");
}

void Job::start_fill(uint8_t* arena, std::vector<Placement> placements, int threads) {
  check_fill();
  arena_ = arena;
  placements_ = std::move(placements);
  const auto decode = [](Task& task, const Chunk& chunk) { task.decode(chunk); };
  const auto write = [](Task& task, const Chunk& chunk) { task.write(chunk); };
  if (measured_) {
    start(Stage::kFilling, threads, [this](int64_t) { write_offsets(); }, write, [] {});
  } else {
    start(Stage::kFilling, threads, [](int64_t) {}, decode, [] {});
  }
}

// Those that are known before the rows are written.
void Job::write_offsets() {
  for (size_t c = 0; c < placements_.size(); ++c) {
    const Column& column = schema_->columns[c];
    const Placement& at = placements_[c];
    if (column.sized() || at.values < 0) continue;
    const auto& values = value_starts_[c];
    if (column.layout == Layout::kRagged) std::memcpy(arena_ + at.row_offsets, values.data(), values.size() * 8);
    if (column.is_text()) {
      store64(arena_ + at.value_offsets + values.back() * 8, static_cast<uint64_t>(byte_starts_[c].back()));
    }
  }
}

Fault Job::finish() {
  if (work_ == nullptr) throw std::invalid_argument("nothing was started that could be waited for");
  if (!work_->done()) throw std::invalid_argument("another thread went on with this job");
  if (at_work()) {
    const bool measuring = stage_ == Stage::kMeasuring;
    stage_ = Stage::kFailed;  // also by what is thrown now
    work_->rethrow();
    if (!fault_) stage_ = measuring ? Stage::kMeasured : Stage::kFilled;
    measured_ = measured_ || stage_ == Stage::kMeasured;
  }
  work_->rethrow();
  return fault_;
}

int64_t Job::num_values(size_t column) const {
  const Column& c = schema_->columns[column];
  return c.layout == Layout::kFixed ? rows_ * c.count : value_starts_[column].back();
}

int64_t Job::num_bytes(size_t column) const {
  const Column& c = schema_->columns[column];
  return c.sized() ? rows_ * c.row_bytes() : byte_starts_[column].back();
}

std::vector<Range> Job::values(size_t column) const {
  const Column& c = schema_->columns[column];
  std::vector<Range> all, some;
  for (int64_t row = 0; row < rows_; ++row) {
    const Slot& slot = this->slot(row, column);
    some.clear();
    const uint8_t* defaults = c.default_bytes.data();
    if (slot.kind != kNone) {
      list_bytes(slot, some);
    } else if (c.is_text()) {
      for (size_t i = 1; i < c.default_offsets.size(); ++i) {
        some.push_back({defaults + c.default_offsets[i - 1], defaults + c.default_offsets[i]});
      }
    } else {
      for (int64_t i = 0; i < c.count; ++i) some.push_back({defaults + i * c.nbytes, defaults + (i + 1) * c.nbytes});
    }
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

}  // namespace tfr
