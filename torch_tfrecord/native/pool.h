// Native threads, kept between calls and shared by all work of the process.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>

namespace tfr {

class Pool;

// What threads do together: `begin` comes first and returns the number of tasks; `task` is called once for each of
// them, by several threads at once; `end` comes last. What one of them throws ends the work.
struct Steps {
  std::function<int64_t()> begin;
  std::function<void(int64_t)> task;
  std::function<void()> end;
};

// Some work, and how far it is. It is done by those who wait for it and, as soon as it has begun, by threads of the
// pool; after `submit` these begin it, too. Its owner must see it done, or cancel it, before what the steps use goes.
class Work : public std::enable_shared_from_this<Work> {
 public:
  using Clock = std::chrono::steady_clock;

  // `threads`: how many work on it at most, the one that begins it among them; those who wait are not counted later.
  Work(Steps steps, int threads);
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  void submit();
  // Works on it, and waits for others that do, up to a time. Returns whether it is done. For any number of threads.
  bool wait(Clock::duration limit);
  // Drops the tasks that nobody has begun, and waits for the others. `end` may be left out.
  void cancel();
  bool done() const { return done_ || foreign(); }
  // Whether a process began it of which this one is a fork. Its threads are not here, so it stays as it is for ever.
  bool foreign() const;

  // When it is done:
  void rethrow() const;                                // what a step threw first
  double finished_at() const { return finished_at_; }  // seconds, of Python's time.monotonic; 0 before

 private:
  friend class Pool;
  using Lock = std::unique_lock<std::mutex>;  // of the pool's mutex

  bool joinable() const { return !begun_ || next_ < tasks_; }
  bool exhausted() const { return begun_ && tasks_ >= 0 && next_ >= tasks_; }
  void help(Lock& lock, Clock::time_point until);
  void open(int64_t tasks);
  void stop(std::exception_ptr error);
  void finish();

  Pool& pool_;
  const int64_t process_;
  const Steps steps_;
  const int threads_;
  std::atomic<int64_t> next_{0};    // task that nobody has begun
  std::atomic<int64_t> tasks_{-1};  // -1: not known yet
  std::atomic<bool> done_{false};
  // Guarded by the pool's mutex, until it is done:
  bool begun_ = false;
  int wanted_ = 0;   // threads of the pool that are to come
  int at_work_ = 0;  // threads in `help`
  bool stopped_ = false;
  std::exception_ptr error_;
  std::atomic<double> finished_at_{0};
  std::condition_variable changed_;
};

}  // namespace tfr
