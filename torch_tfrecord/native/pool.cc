#include "pool.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

namespace tfr {
namespace {

constexpr int kMaxHelpers = 256;

// A thread that waits spins for a while before it sleeps: to wake it takes tens of microseconds, on a virtual machine
// more, and batches of small records take little longer than that. After a batch, a helper so stays awake for the next.
constexpr auto kSpin = std::chrono::microseconds(200);

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

template <class Ready>
bool spin_until(Ready ready) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; ++i) {
      if (ready()) return true;
      relax();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

// One call of parallel_for. It lives on the caller's stack: no helper touches it after `helpers` fell to 0.
struct Region {
  Region(int64_t tasks, const std::function<void(int64_t)>& body) : tasks(tasks), body(body) {}

  const int64_t tasks;
  const std::function<void(int64_t)>& body;
  std::atomic<int64_t> next{0};
  std::atomic<int> helpers{0};  // at work on it; changed under the pool's mutex
  std::exception_ptr error;     // the first; guarded by the pool's mutex

  void run(std::mutex& mutex) {
    try {
      for (int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) body(task);
    } catch (...) {
      next.store(tasks);  // the others stop early
      std::lock_guard<std::mutex> lock(mutex);
      if (!error) error = std::current_exception();
    }
  }
};

class Pool {
 public:
  void run(int64_t tasks, int helpers, const std::function<void(int64_t)>& body) {
    Region region(tasks, body);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      start(std::min(helpers, kMaxHelpers));
      wanted_.insert(wanted_.end(), static_cast<size_t>(helpers), &region);
      num_wanted_ = wanted_.size();
    }
    for (int i = 0; i < helpers; ++i) work_.notify_one();
    region.run(mutex_);
    std::unique_lock<std::mutex> lock(mutex_);
    // Calls for help that nobody has heeded yet are taken back, so a busy pool never delays a caller.
    wanted_.erase(std::remove(wanted_.begin(), wanted_.end(), &region), wanted_.end());
    num_wanted_ = wanted_.size();
    lock.unlock();
    const bool done = spin_until([&region] { return region.helpers == 0; });
    lock.lock();  // also after the spin: the last helper must have left the mutex before the region goes
    if (!done) done_.wait(lock, [&region] { return region.helpers == 0; });
    if (region.error) std::rethrow_exception(region.error);
  }

 private:
  // Under the mutex. A system that gives no more threads slows the work down, but does not stop it.
  void start(int threads) {
    try {
      for (; started_ < threads; ++started_) std::thread([this] { serve(); }).detach();
    } catch (const std::system_error&) {
    }
  }

  void serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      lock.unlock();
      spin_until([this] { return num_wanted_ > 0; });
      lock.lock();
      work_.wait(lock, [this] { return !wanted_.empty(); });
      Region* region = wanted_.front();
      wanted_.pop_front();
      num_wanted_ = wanted_.size();
      ++region->helpers;
      lock.unlock();
      region->run(mutex_);
      lock.lock();
      if (--region->helpers == 0) done_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable work_, done_;
  std::deque<Region*> wanted_;
  std::atomic<size_t> num_wanted_{0};  // its size, for those who spin
  int started_ = 0;
};

// Never destroyed: its threads wait in it until the process ends. A forked child has no threads, and perhaps a mutex
// that was held when it was made, so it forgets its parent's pool.
std::atomic<Pool*> the_pool{nullptr};
[[maybe_unused]] const int forgets = pthread_atfork(nullptr, nullptr, [] { the_pool.store(nullptr); });

Pool& pool() {
  Pool* current = the_pool.load();
  if (current != nullptr) return *current;
  auto* fresh = new Pool;
  if (the_pool.compare_exchange_strong(current, fresh)) return *fresh;
  delete fresh;  // another thread was quicker; this one has started nothing
  return *current;
}

}  // namespace

void parallel_for(int64_t tasks, int threads, const std::function<void(int64_t)>& body) {
  const int64_t helpers = std::min<int64_t>(threads, tasks) - 1;
  if (helpers <= 0) {
    for (int64_t task = 0; task < tasks; ++task) body(task);
    return;
  }
  pool().run(tasks, static_cast<int>(std::min<int64_t>(helpers, kMaxHelpers)), body);
}

}  // namespace tfr
