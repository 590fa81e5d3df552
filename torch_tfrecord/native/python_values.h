// What the binding files share: buffers from Python, faults and arrays to Python.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fault.h"

namespace tfr {

// Contiguous memory borrowed from a Python object for as long as this lives. Made and destroyed under the GIL.
class BufferView {
 public:
  explicit BufferView(pybind11::handle object, int flags = PyBUF_SIMPLE) {
    if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) throw pybind11::error_already_set();
  }
  ~BufferView() { PyBuffer_Release(&view_); }
  BufferView(const BufferView&) = delete;
  BufferView& operator=(const BufferView&) = delete;

  const uint8_t* data() const { return static_cast<const uint8_t*>(view_.buf); }
  uint8_t* writable() { return static_cast<uint8_t*>(view_.buf); }  // flags must have had PyBUF_WRITABLE
  int64_t size() const { return view_.len; }

  // Whether the items are of a type: one of the struct module's letters in `letters`, `item_bytes` long, little-endian.
  // To ask, flags must have been PyBUF_C_CONTIGUOUS | PyBUF_FORMAT.
  bool holds(const std::string& letters, int64_t item_bytes) const {
    std::string format = view_.format == nullptr ? "B" : view_.format;
    if (!format.empty() && (format[0] == '<' || format[0] == '=' || format[0] == '@')) format.erase(0, 1);
    return view_.itemsize == item_bytes && format.size() == 1 && letters.find(format) != std::string::npos;
  }

 private:
  Py_buffer view_;
};

// Lets other Python threads run as long as it lives. A thread that comes back when the interpreter has ended is ended by
// Python (before 3.14) by unwinding its stack, which C++ would answer by aborting the process: so it is stopped here, and
// waits for the end of the process, as Python 3.14 has threads do.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      while (true) pause();
    }
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* const state_;
};

inline pybind11::object to_python(const Fault& fault) {
  if (!fault) return pybind11::none();
  return pybind11::make_tuple(fault.code, fault.row, fault.column, fault.position, fault.expected, fault.found);
}

// A numpy array that owns the vector's memory: nothing is copied.
inline pybind11::array_t<int64_t> to_python(std::vector<int64_t>&& values) {
  auto owned = std::make_unique<std::vector<int64_t>>(std::move(values));
  pybind11::capsule owner(owned.get(), [](void* memory) { delete static_cast<std::vector<int64_t>*>(memory); });
  const std::vector<int64_t>* kept = owned.release();
  return pybind11::array_t<int64_t>(static_cast<pybind11::ssize_t>(kept->size()), kept->data(), owner);
}

}  // namespace tfr
