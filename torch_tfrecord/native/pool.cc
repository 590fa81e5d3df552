#include "pool.h"

#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <deque>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

namespace tfr {
namespace {

constexpr int kMaxThreads = 256;
constexpr int64_t kNoMore = INT64_MAX / 2;  // beyond all tasks

// A thread that waits spins for a while before it sleeps: to wake it takes tens of microseconds, on a virtual machine
// more, and batches of small records take little longer than that. After a batch, a thread so stays awake for the next.
// It lets others run meanwhile: what it waits for may be a thread that wants this very processor.
constexpr auto kSpin = std::chrono::microseconds(200);

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

template <class Ready>
void spin_until(Ready ready) {
  const auto end = Work::Clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; ++i) {
      if (ready()) return;
      relax();
    }
    std::this_thread::yield();
  } while (Work::Clock::now() < end);
}

double monotonic_seconds() {
#if defined(__APPLE__)
  return static_cast<double>(clock_gettime_nsec_np(CLOCK_UPTIME_RAW)) * 1e-9;
#else
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
#endif
}

}  // namespace

class Pool {
 public:
  using Lock = std::unique_lock<std::mutex>;

  std::mutex mutex;

  // Calls for threads. What was submitted first has the first of them.
  void call(Work& work, int threads) {
    {
      const Lock lock(mutex);
      if (work.exhausted()) return;
      if (std::none_of(queue_.begin(), queue_.end(), [&](const auto& other) { return other.get() == &work; })) {
        queue_.push_back(work.shared_from_this());
      }
      work.wanted_ += threads;
      num_wanted_ += threads;
      start(threads);
    }
    for (int i = 0; i < threads; ++i) called_.notify_one();
  }

  // Under the mutex: takes the calls back that nobody has heeded.
  void withdraw(Work& work) {
    num_wanted_ -= work.wanted_;
    work.wanted_ = 0;
    queue_.erase(std::remove_if(queue_.begin(), queue_.end(), [&](const auto& other) { return other.get() == &work; }),
                 queue_.end());
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
    Lock lock(mutex);
    while (true) {
      lock.unlock();
      spin_until([this] { return num_wanted_ > 0; });
      lock.lock();
      called_.wait(lock, [this] { return num_wanted_ > 0; });
      const auto first = std::find_if(queue_.begin(), queue_.end(), [](const auto& work) { return work->wanted_ > 0; });
      const std::shared_ptr<Work> work = *first;
      --work->wanted_;
      --num_wanted_;
      if (work->joinable()) {
        work->help(lock, Work::Clock::time_point::max());
      } else {
        withdraw(*work);
      }
    }
  }

  std::condition_variable called_;
  std::deque<std::shared_ptr<Work>> queue_;  // work whose tasks are not all begun, in the order of submission
  std::atomic<int> num_wanted_{0};           // threads that it wants, for those who spin
  int started_ = 0;
};

namespace {

// Never destroyed: its threads wait in it until the process ends. A forked child has no threads, and perhaps a mutex
// that was held when it was made, so it forgets its parent's pool, and leaves alone what that works on.
std::atomic<Pool*> the_pool{nullptr};
std::atomic<int64_t> the_process{0};  // how many forks lie between this one and the first
[[maybe_unused]] const int forgets = pthread_atfork(nullptr, nullptr, [] {
  the_pool.store(nullptr);
  ++the_process;
});

Pool& pool() {
  Pool* current = the_pool.load();
  if (current != nullptr) return *current;
  auto* fresh = new Pool;
  if (the_pool.compare_exchange_strong(current, fresh)) return *fresh;
  delete fresh;  // another thread was quicker; this one has started nothing
  return *current;
}

}  // namespace

Work::Work(Steps steps, int threads)
    : pool_(pool()),
      process_(the_process),
      steps_(std::move(steps)),
      threads_(std::clamp(threads, 1, kMaxThreads)) {}

bool Work::foreign() const { return process_ != the_process.load(std::memory_order_relaxed); }

void Work::submit() { pool_.call(*this, 1); }

bool Work::wait(Clock::duration limit) {
  if (foreign()) throw std::runtime_error("this job was started in another process, of which this one is a fork");
  if (done_) return true;
  const auto until = Clock::now() + limit;
  Lock lock(pool_.mutex);
  while (!done_) {
    if (joinable()) {
      help(lock, until);
      if (Clock::now() >= until) return done_;
      continue;
    }
    lock.unlock();
    spin_until([this] { return done_ || next_ < tasks_; });
    lock.lock();
    if (!changed_.wait_until(lock, until, [this] { return done_ || joinable(); })) return false;
  }
  return true;
}

void Work::cancel() {
  if (foreign() || done_) return;
  Lock lock(pool_.mutex);
  stop(nullptr);
  pool_.withdraw(*this);
  if (at_work_ == 0 && !done_) finish();
  lock.unlock();
  spin_until([this] { return done_.load(); });
  lock.lock();
  changed_.wait(lock, [this] { return done_.load(); });
}

void Work::rethrow() const {
  if (error_) std::rethrow_exception(error_);
}

// One thread's part of it. Called with the mutex held, and returns so.
void Work::help(Lock& lock, Clock::time_point until) {
  ++at_work_;
  const bool first = !begun_;
  begun_ = true;
  lock.unlock();
  try {
    if (first) open(steps_.begin());
    for (int64_t task; (task = next_.fetch_add(1, std::memory_order_relaxed)) < tasks_;) {
      steps_.task(task);
      if (Clock::now() >= until) break;
    }
    lock.lock();
    if (at_work_ == 1 && exhausted() && !stopped_) {  // the last one; nobody joins any more
      lock.unlock();
      steps_.end();
    }
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    stop(std::current_exception());
  }
  if (!lock.owns_lock()) lock.lock();
  --at_work_;
  if (!exhausted()) return;
  pool_.withdraw(*this);
  if (at_work_ == 0) finish();
}

// The tasks are known: others may come.
void Work::open(int64_t tasks) {
  {
    const Lock lock(pool_.mutex);
    tasks_ = tasks;
    changed_.notify_all();
  }
  const auto threads = static_cast<int>(std::min<int64_t>(threads_, tasks)) - 1;
  if (threads > 0) pool_.call(*this, threads);
}

// Under the mutex: nobody begins another task.
void Work::stop(std::exception_ptr error) {
  if (!error_) error_ = std::move(error);
  stopped_ = true;
  begun_ = true;
  next_ = kNoMore;
  if (at_work_ == 0 || tasks_ < 0) tasks_ = 0;
}

void Work::finish() {
  finished_at_ = monotonic_seconds();
  done_ = true;
  changed_.notify_all();
}

}  // namespace tfr
