#include "block.h"

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

namespace tfr {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kMaxKept = int64_t{64} << 20;  // bytes in the free list
constexpr size_t kMaxBlocks = 256;               // blocks in it, since they are searched one by one

// Sizes are rounded up to one of eight steps between powers of two, so that batches of nearly the same size share
// blocks and no more than an eighth is wasted.
int64_t round_up(int64_t size) {
  int64_t step = 512;
  while (size > step * 16) step *= 2;
  return (size + step - 1) / step * step;
}

class FreeList {
 public:
  FreeList() { kept_.reserve(kMaxBlocks + 1); }

  uint8_t* take(int64_t capacity) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto it = kept_.rbegin(); it != kept_.rend(); ++it) {  // the last one in is the warmest
      if (it->capacity != capacity) continue;
      uint8_t* data = it->data;
      kept_.erase(std::next(it).base());
      bytes_ -= capacity;
      return data;
    }
    return nullptr;
  }

  void give(uint8_t* data, int64_t capacity) {
    if (capacity > kMaxKept) return std::free(data);
    std::lock_guard<std::mutex> lock(mutex_);
    kept_.push_back({data, capacity});
    bytes_ += capacity;
    size_t oldest = 0;
    for (; bytes_ > kMaxKept || kept_.size() - oldest > kMaxBlocks; ++oldest) {
      bytes_ -= kept_[oldest].capacity;
      std::free(kept_[oldest].data);
    }
    kept_.erase(kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(oldest));
  }

 private:
  struct Kept {
    uint8_t* data;
    int64_t capacity;
  };
  std::mutex mutex_;
  std::vector<Kept> kept_;
  int64_t bytes_ = 0;
};

// A forked child forgets the list: its mutex may have been held by a thread that the child does not have.
std::atomic<FreeList*> the_list{nullptr};
[[maybe_unused]] const int forgets = pthread_atfork(nullptr, nullptr, [] { the_list.store(nullptr); });

FreeList& free_list() {
  FreeList* current = the_list.load();
  if (current != nullptr) return *current;
  auto* fresh = new FreeList;
  if (the_list.compare_exchange_strong(current, fresh)) return *fresh;
  delete fresh;
  return *current;
}

}  // namespace

Block::Block(int64_t size) : data_(nullptr), size_(size), capacity_(0) {
  if (size < 0 || size > (int64_t{1} << 62)) throw std::bad_alloc();
  capacity_ = round_up(size > 0 ? size : 1);
  data_ = free_list().take(capacity_);
  if (data_ != nullptr) return;
  void* fresh = nullptr;
  if (posix_memalign(&fresh, kAlignment, static_cast<size_t>(capacity_)) != 0) throw std::bad_alloc();
  data_ = static_cast<uint8_t*>(fresh);
}

Block::~Block() {
  if (data_ != nullptr) free_list().give(data_, capacity_);
}

}  // namespace tfr
