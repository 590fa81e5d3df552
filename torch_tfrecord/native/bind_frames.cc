// Python's way to checksums, frames, files and the encoder.
#include <pybind11/stl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "crc32c.h"
#include "encode.h"
#include "file.h"
#include "frame.h"
#include "python_values.h"

namespace py = pybind11;

namespace tfr {

namespace {

// Below this, work takes less time than handing over the GIL and getting it back may.
constexpr int64_t kReleaseBytes = 32 * 1024;

template <typename Work>
auto without_gil(int64_t bytes, Work work) {
  if (bytes < kReleaseBytes) return work();
  const WithoutGil release;
  return work();
}

[[noreturn]] void raise_os_error(int64_t code) {
  errno = static_cast<int>(code);
  PyErr_SetFromErrno(PyExc_OSError);
  throw py::error_already_set();
}

// A bytes object whose content is still to be written through `data_of`.
py::bytes new_bytes(int64_t size) {
  PyObject* object = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size));
  if (object == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::bytes>(object);
}

uint8_t* data_of(const py::bytes& object) { return reinterpret_cast<uint8_t*>(PyBytes_AS_STRING(object.ptr())); }

// --- checksums ---

uint32_t crc32c_of(const py::buffer& data, uint32_t crc) {
  const BufferView view(data);
  return without_gil(view.size(), [&] { return crc32c(view.data(), static_cast<size_t>(view.size()), crc); });
}

uint32_t masked_crc32c_of(const py::buffer& data, uint32_t crc) { return mask_crc(crc32c_of(data, crc)); }

void choose_crc32c(const std::string& name) {
  if (set_crc32c_implementation(name)) return;
  std::string names;
  for (const std::string& known : crc32c_implementations()) names += (names.empty() ? "" : ", ") + known;
  throw py::value_error("no CRC-32C implementation '" + name + "' runs on this CPU; there is " + names);
}

// --- frames ---

void check_verify(int verify, int least) {
  if (verify >= least && verify <= kVerifyAll) return;
  throw py::value_error("verify must be " + std::string(least == 0 ? "0 (bounds), " : "") +
                        "1 (length checksums) or 2 (both checksums), not " + std::to_string(verify));
}

Frames frames_in(const BufferView& view, int verify, int64_t limit) {
  check_verify(verify, kVerifyNothing);
  if (limit != -1 && limit < view.size()) {
    throw py::value_error("limit is " + std::to_string(limit) + ", less than the " + std::to_string(view.size()) +
                          " bytes of data; -1 means not known");
  }
  return without_gil(view.size(), [&] { return split_frames(view.data(), view.size(), verify, limit); });
}

py::tuple split_frames_of(const py::buffer& data, int verify, int64_t limit) {
  const BufferView view(data);
  const Frames frames = frames_in(view, verify, limit);
  py::list payloads(frames.offsets.size());
  for (size_t i = 0; i < frames.offsets.size(); ++i) {
    const uint8_t* payload = view.data() + frames.offsets[i] + kHeaderBytes;
    payloads[i] = py::bytes(reinterpret_cast<const char*>(payload), static_cast<size_t>(frames.lengths[i]));
  }
  return py::make_tuple(payloads, frames.end, to_python(frames.fault));
}

py::tuple scan_frames_of(const py::buffer& data, int verify, int64_t limit) {
  const BufferView view(data);
  Frames frames = frames_in(view, verify, limit);
  return py::make_tuple(to_python(std::move(frames.offsets)), to_python(std::move(frames.lengths)), frames.end,
                        to_python(frames.fault));
}

int64_t frame_size_of(const py::buffer& header) {
  const BufferView view(header);
  if (view.size() != kHeaderBytes) {
    throw py::value_error("a frame's header has 12 bytes, not " + std::to_string(view.size()));
  }
  return frame_size(view.data());
}

py::bytes frame_of(const py::buffer& payload) {
  const BufferView view(payload);
  py::bytes whole = new_bytes(view.size() + kFrameBytes);
  uint8_t* out = data_of(whole);
  without_gil(view.size(), [&] {
    if (view.size() > 0) std::memcpy(out + kHeaderBytes, view.data(), static_cast<size_t>(view.size()));
    seal_frame(out, view.size());
    return true;
  });
  return whole;
}

// --- files ---

std::shared_ptr<File> open_file(int fd) {
  if (fd < 0) throw py::value_error("a file descriptor must not be negative, but is " + std::to_string(fd));
  return std::make_shared<File>(fd);
}

int64_t file_size(const File& file) {
  const int64_t size = file.size();
  if (size < 0) raise_os_error(-size);
  return size;
}

py::bytes file_read(const File& file, int64_t offset, int64_t size) {
  if (offset < 0 || size < 0) {
    throw py::value_error("offset and size must not be negative, but are " + std::to_string(offset) + " and " +
                          std::to_string(size));
  }
  // No more memory than there are bytes in the file, whatever is asked for.
  size = std::min(size, std::max<int64_t>(file_size(file) - offset, 0));
  py::bytes content = new_bytes(size);
  uint8_t* out = data_of(content);
  int64_t got;
  {
    const WithoutGil release;
    got = file.read(offset, out, size);
  }
  if (got < 0) raise_os_error(-got);
  if (got == size) return content;
  return py::bytes(reinterpret_cast<const char*>(out), static_cast<size_t>(got));  // the file shrank just now
}

py::tuple file_scan(const File& file, int64_t offset, int64_t max_bytes, int verify) {
  check_verify(verify, kVerifyLength);
  if (offset < 0 || max_bytes < 1) {
    throw py::value_error("offset must be at least 0 and max_bytes at least 1, but are " + std::to_string(offset) +
                          " and " + std::to_string(max_bytes));
  }
  Frames frames;
  {
    const WithoutGil release;
    frames = scan_frames(file, offset, max_bytes, verify);
  }
  return py::make_tuple(to_python(std::move(frames.offsets)), to_python(std::move(frames.lengths)), frames.end,
                        to_python(frames.fault));
}

// --- encoding ---

constexpr int kTypedBuffer = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT;

std::vector<int64_t> offsets_of(const py::object& object, const char* name) {
  if (object.is_none()) return {};
  const BufferView view(object, kTypedBuffer);
  if (!view.holds("lq", 8)) throw py::value_error(std::string(name) + " must be int64");
  if (view.size() == 0) throw py::value_error(std::string(name) + " must hold at least one offset");
  // Copied, so that nothing can change them between their check and their use.
  std::vector<int64_t> offsets(static_cast<size_t>(view.size() / 8));
  std::memcpy(offsets.data(), view.data(), static_cast<size_t>(view.size()));
  return offsets;
}

struct ValueType {
  const char* name;
  const char* letters;  // of the struct module
  int64_t bytes;
};

ValueType value_type(int kind) {
  if (kind == kBytes) return {"uint8", "Bbc", 1};
  if (kind == kFloat) return {"float32", "f", 4};
  if (kind == kInt64) return {"int64", "lq", 8};
  throw py::value_error("kind must be 1 (bytes), 2 (float32) or 3 (int64), not " + std::to_string(kind));
}

EncodeColumn encode_column(const py::tuple& fields, std::vector<std::unique_ptr<BufferView>>& views) {
  if (fields.size() != 6) {
    throw py::value_error("a column to encode is a tuple of 6, not of " + std::to_string(fields.size()));
  }
  const int kind = fields[1].cast<int>();
  const ValueType type = value_type(kind);
  views.push_back(std::make_unique<BufferView>(fields[2], kTypedBuffer));
  const BufferView& values = *views.back();
  if (!values.holds(type.letters, type.bytes)) {
    throw py::value_error("values of kind " + std::to_string(kind) + " must be " + type.name);
  }
  EncodeColumn column;
  column.key = static_cast<std::string>(fields[0].cast<py::bytes>());
  column.kind = static_cast<Kind>(kind);
  column.values = values.data();
  column.size = values.size() / type.bytes;
  column.count = fields[3].cast<int64_t>();
  column.row_offsets = offsets_of(fields[4], "row_offsets");
  column.value_offsets = offsets_of(fields[5], "value_offsets");
  return column;
}

py::tuple encode_batch(const py::iterable& columns, int64_t rows, bool framed) {
  if (rows < 0) throw py::value_error("rows must not be negative, but is " + std::to_string(rows));
  std::vector<std::unique_ptr<BufferView>> views;
  std::vector<EncodeColumn> plan;
  for (const py::handle fields : columns) plan.push_back(encode_column(fields.cast<py::tuple>(), views));
  std::vector<int64_t> offsets;
  {
    const WithoutGil release;
    offsets = plan_examples(plan, rows, framed);
  }
  py::bytes whole = new_bytes(offsets.back());
  uint8_t* out = data_of(whole);
  {
    const WithoutGil release;
    write_examples(plan, offsets, framed, out);
  }
  return py::make_tuple(whole, to_python(std::move(offsets)));
}

}  // namespace

void bind_frames(py::module_& module) {
  using py::arg;
  module.def("crc32c", &crc32c_of, arg("data"), arg("crc") = 0);
  module.def("masked_crc32c", &masked_crc32c_of, arg("data"), arg("crc") = 0);
  module.def("crc32c_implementations", &crc32c_implementations);
  module.def("crc32c_implementation", &crc32c_implementation);
  module.def("set_crc32c_implementation", &choose_crc32c, arg("name"));

  module.def("split_frames", &split_frames_of, arg("data"), arg("verify"), arg("limit"));
  module.def("scan_frames", &scan_frames_of, arg("data"), arg("verify"), arg("limit"));
  module.def("frame_size", &frame_size_of, arg("header"));
  module.def("frame", &frame_of, arg("payload"));

  py::class_<File, std::shared_ptr<File>>(module, "File", py::is_final())
      .def(py::init(&open_file), arg("fd"))
      .def("size", &file_size)
      .def("read", &file_read, arg("offset"), arg("size"))
      .def("scan", &file_scan, arg("offset"), arg("max_bytes"), arg("verify"));

  module.def("encode_batch", &encode_batch, arg("columns"), arg("rows"), arg("framed"));
}

}  // namespace tfr
