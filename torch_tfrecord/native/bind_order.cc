// permutation, Bijection and ShuffleQueue for Python.
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "order.h"
#include "python_values.h"

namespace py = pybind11;

namespace tfr {
namespace {

// Exactly what is asked for, or what numpy converts to it without loss.
using Int64s = py::array_t<int64_t, py::array::c_style>;

// Below this, work takes less time than handing over the GIL and getting it back may.
constexpr int64_t kReleaseNumbers = 4096;
constexpr size_t kLeastKeys = 8;
constexpr int64_t kMaxArray = PTRDIFF_MAX / 8;  // numbers that memory has addresses for

template <typename Work>
void without_gil(int64_t numbers, Work work) {
  if (numbers < kReleaseNumbers) return work();
  const WithoutGil release;
  work();
}

int64_t checked_size(int64_t size) {
  if (size >= 0 && size <= kMaxOrder) return size;
  throw py::value_error("size must be 0 to 2**62, but is " + std::to_string(size));
}

Int64s new_array(int64_t size) {
  if (size > kMaxArray) throw std::bad_alloc();
  return Int64s(size);
}

Int64s permutation(int64_t size, uint64_t key) {
  Int64s out = new_array(checked_size(size));
  int64_t* ids = out.mutable_data();
  without_gil(size, [&] { permute(size, key, ids); });
  return out;
}

std::unique_ptr<Bijection> make_bijection(int64_t size, std::vector<uint64_t> keys) {
  if (keys.size() < kLeastKeys) {
    throw py::value_error("a bijection needs 8 keys or more, not " + std::to_string(keys.size()));
  }
  return std::make_unique<Bijection>(checked_size(size), std::move(keys));
}

using Map = bool (Bijection::*)(const int64_t*, int64_t, int64_t*, int64_t&) const;

template <Map kMap>
Int64s apply(const Bijection& bijection, const Int64s& in) {
  if (in.ndim() != 1) throw py::value_error("expected one dimension, not " + std::to_string(in.ndim()));
  Int64s out = new_array(in.size());
  const int64_t* from = in.data();
  int64_t* to = out.mutable_data();
  int64_t outside = 0;
  bool inside = true;
  without_gil(in.size(), [&] { inside = (bijection.*kMap)(from, in.size(), to, outside); });
  if (!inside) {
    throw py::index_error(std::to_string(outside) + " is outside a bijection of " + std::to_string(bijection.size()));
  }
  return out;
}

std::unique_ptr<ShuffleQueue> make_queue(int64_t size, int64_t capacity, uint64_t key) {
  checked_size(size);
  if (capacity < 1) throw py::value_error("capacity must be at least 1, but is " + std::to_string(capacity));
  if (std::min(size, capacity) > kMaxArray) throw std::bad_alloc();
  std::unique_ptr<ShuffleQueue> queue;
  without_gil(std::min(size, capacity), [&] { queue = std::make_unique<ShuffleQueue>(size, capacity, key); });
  return queue;
}

// One call at a time: a queue is not for several threads. Made under the GIL.
class Busy {
 public:
  explicit Busy(ShuffleQueue& queue) : queue_(queue) {
    if (queue.busy.exchange(true)) throw py::value_error("this queue is at work in another thread");
  }
  ~Busy() { queue_.busy = false; }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  ShuffleQueue& queue_;
};

void check_count(const ShuffleQueue& queue, int64_t count) {
  const int64_t left = queue.size() - queue.position();
  if (count >= 0 && count <= left) return;
  throw py::value_error("count must be 0 to the " + std::to_string(left) + " that are left of " +
                        std::to_string(queue.size()) + ", but is " + std::to_string(count));
}

Int64s take(ShuffleQueue& queue, int64_t count) {
  const Busy busy(queue);
  check_count(queue, count);
  Int64s out = new_array(count);
  int64_t* ids = out.mutable_data();
  without_gil(count, [&] { queue.take(count, ids); });
  return out;
}

void skip(ShuffleQueue& queue, int64_t count) {
  const Busy busy(queue);
  check_count(queue, count);
  without_gil(count, [&] { queue.skip(count); });
}

int64_t position(ShuffleQueue& queue) {
  const Busy busy(queue);
  return queue.position();
}

}  // namespace

void bind_order(py::module_& module) {
  using py::arg;
  module.def("permutation", &permutation, arg("size"), arg("key"));

  py::class_<Bijection>(module, "Bijection", py::is_final())
      .def(py::init(&make_bijection), arg("size"), arg("keys"))
      .def("ids", &apply<&Bijection::ids>, arg("positions"))
      .def("positions", &apply<&Bijection::positions>, arg("ids"));

  py::class_<ShuffleQueue>(module, "ShuffleQueue", py::is_final())
      .def(py::init(&make_queue), arg("size"), arg("capacity"), arg("key"))
      .def_property_readonly("position", &position)
      .def("take", &take, arg("count"))
      .def("skip", &skip, arg("count"));
}

}  // namespace tfr
