// Native threads, kept between calls and shared by all of them.
#pragma once

#include <cstdint>
#include <functional>

namespace tfr {

// Calls body(0) .. body(tasks - 1), each once, on up to `threads` threads, the caller among them, and returns when all
// are done. What a body throws is thrown here, once. Works after a fork: the child starts threads of its own.
void parallel_for(int64_t tasks, int threads, const std::function<void(int64_t)>& body);

}  // namespace tfr
