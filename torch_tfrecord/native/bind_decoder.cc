// Decoder, Job, Block and describe for Python. Arguments are checked here; the files behind know no Python.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "block.h"
#include "columns.h"
#include "decoder.h"
#include "example.h"
#include "python_values.h"
#include "varint.h"

namespace py = pybind11;

namespace tfr {
namespace {

using Int64s = py::array_t<int64_t, py::array::c_style | py::array::forcecast>;

// (key, kind, layout, count, nbytes, default)
void add_column(Schema& schema, const py::tuple& spec) {
  if (spec.size() != 6) throw py::value_error("a column has 6 parts: key, kind, layout, count, nbytes, default");
  Column column;
  const auto kind = spec[1].cast<int64_t>(), layout = spec[2].cast<int64_t>();
  if (kind < 0 || kind > 3) throw py::value_error("a column's kind is not 0, 1, 2 or 3");
  if (layout < 0 || layout > 1) throw py::value_error("a column's layout is not FIXED or RAGGED");
  column.kind = static_cast<Kind>(kind);
  column.layout = static_cast<Layout>(layout);
  column.count = spec[3].cast<int64_t>();
  column.nbytes = spec[4].cast<int64_t>();
  const py::object value = spec[5];
  column.has_default = !value.is_none();
  if (py::isinstance<py::tuple>(value)) {
    column.default_offsets.push_back(0);
    for (const py::handle item : value.cast<py::tuple>()) {
      const auto bytes = item.cast<std::string>();
      column.default_bytes.insert(column.default_bytes.end(), bytes.begin(), bytes.end());
      column.default_offsets.push_back(static_cast<int64_t>(column.default_bytes.size()));
    }
  } else if (column.has_default) {
    const auto bytes = value.cast<std::string>();
    column.default_bytes.assign(bytes.begin(), bytes.end());
  }
  schema.add(spec[0].cast<py::bytes>(), std::move(column));
}

std::shared_ptr<Schema> compile(const py::iterable& columns) {
  auto schema = std::make_shared<Schema>();
  for (const py::handle column : columns) add_column(*schema, column.cast<py::tuple>());
  return schema;
}

// A job, with the arena that it writes to. Made, used and destroyed under the GIL.
class PyJob {
 public:
  template <class... Args>
  explicit PyJob(Args&&... args) : job_(std::make_unique<Job>(std::forward<Args>(args)...)) {}
  PyJob(const PyJob&) = delete;
  PyJob& operator=(const PyJob&) = delete;

  ~PyJob() {
    if (!job_->at_work()) return;
    if (job_->work()->foreign()) {  // a fork may have come at any moment: what it copied is not fit to be freed
      static_cast<void>(job_.release());
      return;
    }
    const WithoutGil release;
    job_->work()->cancel();
  }

  Job& job() const {
    if (cancelled_) throw py::value_error("this job was cancelled");
    return *job_;
  }
  const Job& even_if_cancelled() const { return *job_; }

  void start_fill(const py::object& arena, const Int64s& numbers, int threads);

  bool done() const { return job().work() == nullptr || job_->work()->done(); }

  py::object wait() {
    const std::shared_ptr<Work> work = job().work();
    if (work != nullptr) {
      while (!wait_a_while(*work)) {
        if (PyErr_CheckSignals() != 0) throw py::error_already_set();
      }
    }
    const Fault fault = job().finish();
    arena_.reset();
    return to_python(fault);
  }

  void cancel() {
    cancelled_ = true;
    if (job_->at_work()) {
      const WithoutGil release;
      job_->work()->cancel();
    }
    arena_.reset();
  }

 private:
  static bool wait_a_while(Work& work) {
    const WithoutGil release;
    return work.wait(std::chrono::milliseconds(100));
  }

  std::unique_ptr<BufferView> arena_;  // goes after the job
  std::unique_ptr<Job> job_;
  bool cancelled_ = false;
};

std::unique_ptr<PyJob> read(const std::shared_ptr<Schema>& schema, const py::iterable& files, const py::object& file_of,
                          const Int64s& offsets, const Int64s& lengths, int verify) {
  if (verify < 0 || verify > 2) throw py::value_error("verify is 0, 1 or 2");
  const py::ssize_t rows = offsets.size();
  if (lengths.size() != rows) throw py::value_error("offsets and lengths differ in size");
  Files shared;
  for (const py::handle file : files) shared.push_back(file.cast<std::shared_ptr<File>>());
  std::vector<Place> places(static_cast<size_t>(rows));
  const int64_t *offset = offsets.data(), *length = lengths.data();
  for (py::ssize_t i = 0; i < rows; ++i) places[static_cast<size_t>(i)] = {0, offset[i], length[i]};
  if (!file_of.is_none()) {
    const auto numbers = file_of.cast<Int64s>();
    if (numbers.size() != rows) throw py::value_error("file_of and offsets differ in size");
    const int64_t* file = numbers.data();
    for (py::ssize_t i = 0; i < rows; ++i) {
      if (file[i] < 0 || file[i] > INT32_MAX) throw py::value_error("a row's file is out of range");
      places[static_cast<size_t>(i)].file = static_cast<int32_t>(file[i]);
    }
  }
  return std::make_unique<PyJob>(schema, std::move(shared), std::move(places), verify);
}

std::unique_ptr<PyJob> parse(const std::shared_ptr<Schema>& schema, const py::iterable& payloads) {
  // An iterator keeps its item alive until the next one, and a view the object that exports it: neither need be kept by
  // the caller. (Iterating by index would let an item die before it is looked at.)
  std::vector<std::unique_ptr<BufferView>> views;
  std::vector<int64_t> offsets{0};
  for (const py::handle payload : payloads) {
    views.push_back(std::make_unique<BufferView>(payload));
    offsets.push_back(offsets.back() + views.back()->size());
  }
  Block block(offsets.back() + kSlack);
  for (size_t i = 0; i < views.size(); ++i) {
    if (views[i]->size() > 0) std::memcpy(block.data() + offsets[i], views[i]->data(), static_cast<size_t>(views[i]->size()));
  }
  return std::make_unique<PyJob>(schema, std::move(block), std::move(offsets));
}

void require_measured(const Job& job, const Column& column) {
  if (!column.sized() && !job.measured()) throw py::value_error("the size of this column is known after measure");
}

// Every part that will be written must lie inside the arena, at a multiple of 8.
void check_placements(const Job& job, const std::vector<Placement>& placements, int64_t arena_size) {
  const auto check = [arena_size](int64_t at, int64_t count, int64_t item) {
    if (at < 0 || at % 8 != 0 || at > arena_size || (item > 0 && count > (arena_size - at) / item)) {
      throw py::value_error("a part of a column does not lie inside the arena at a multiple of 8");
    }
  };
  for (size_t c = 0; c < placements.size(); ++c) {
    const Column& column = job.schema().columns[c];
    const Placement& at = placements[c];
    if (at.values < 0) continue;
    if (column.sized()) {
      check(at.values, job.rows(), column.row_bytes());
      continue;
    }
    check(at.values, job.num_bytes(c), 1);
    if (column.is_text()) check(at.value_offsets, job.num_values(c) + 1, 8);
    if (column.layout == Layout::kRagged) check(at.row_offsets, job.rows() + 1, 8);
  }
}

void PyJob::start_fill(const py::object& arena, const Int64s& numbers, int threads) {
  Job& job = this->job();
  const size_t columns = job.schema().columns.size();
  if (static_cast<size_t>(numbers.size()) != 3 * columns) throw py::value_error("placements are three numbers a column");
  job.check_fill();
  std::vector<Placement> placements(columns);
  if (columns > 0) std::memcpy(placements.data(), numbers.data(), columns * sizeof(Placement));
  auto view = std::make_unique<BufferView>(arena, PyBUF_WRITABLE);
  if (reinterpret_cast<uintptr_t>(view->data()) % 8 != 0 && columns > 0) throw py::value_error("the arena is not 8-byte aligned");
  check_placements(job, placements, view->size());
  job.start_fill(view->writable(), std::move(placements), threads);
  arena_ = std::move(view);
}

const Column& column_at(const Job& job, int64_t column) {
  if (column < 0 || column >= static_cast<int64_t>(job.schema().columns.size())) throw py::index_error("no such column");
  return job.schema().columns[static_cast<size_t>(column)];
}

py::list values(const PyJob& self, int64_t column) {
  const Job& job = self.job();
  const Column& spec = column_at(job, column);
  if (spec.kind > kBytes || !job.measured()) throw py::value_error("values are of a bytes column, after measure");
  py::list list;
  for (const Range& value : job.values(static_cast<size_t>(column))) {
    list.append(py::bytes(reinterpret_cast<const char*>(value.begin), static_cast<size_t>(value.size())));
  }
  return list;
}

py::object describe(const py::object& payload) {
  const BufferView view(payload);
  Block copy(view.size() + kSlack);
  if (view.size() > 0) std::memcpy(copy.data(), view.data(), static_cast<size_t>(view.size()));
  std::vector<Described> features;
  Fault fault;
  if (!describe_example({copy.data(), copy.data() + view.size()}, features, fault)) {
    fault.row = 0;
    return to_python(fault);
  }
  py::list list;
  for (const Described& feature : features) {
    const auto* name = reinterpret_cast<const char*>(feature.name.begin);
    list.append(py::make_tuple(py::bytes(name, static_cast<size_t>(feature.name.size())),
                               static_cast<int>(feature.kind), feature.count));
  }
  return list;
}

Int64s decode_packed(const py::object& data, bool plain) {
  const BufferView view(data);
  Block copy(view.size() + kSlack);
  if (view.size() > 0) std::memcpy(copy.data(), view.data(), static_cast<size_t>(view.size()));
  const int64_t count = count_varints(copy.data(), view.size());
  if (count < 0) throw py::value_error("not a run of whole varints of at most 10 bytes");
  Int64s values(count);
  if (plain) {
    decode_varints_plain(copy.data(), view.size(), values.mutable_data());
  } else {
    decode_varints(copy.data(), view.size(), count, values.mutable_data());
  }
  return values;
}

int get_block(PyObject* self, Py_buffer* view, int flags) {
  auto& block = py::handle(self).cast<Block&>();
  return PyBuffer_FillInfo(view, self, block.data(), block.size(), 0, flags);
}

}  // namespace

void bind_decoder(py::module_& module) {
  module.attr("FIXED") = static_cast<int>(Layout::kFixed);
  module.attr("RAGGED") = static_cast<int>(Layout::kRagged);
  module.def("describe", &describe, py::arg("payload"));
  module.def("decode_packed", &decode_packed, py::arg("data"), py::arg("plain") = false);

  // Its own buffer hook: pybind11's builds a description with strides for each request.
  py::class_<Block>(module, "Block", py::custom_type_setup([](PyHeapTypeObject* type) {
                      type->as_buffer.bf_getbuffer = get_block;
                      type->ht_type.tp_as_buffer = &type->as_buffer;
                    }))
      .def(py::init<int64_t>(), py::arg("nbytes"))
      .def("__len__", &Block::size);

  py::class_<PyJob>(module, "Job")
      .def_property_readonly("rows", [](const PyJob& self) { return self.even_if_cancelled().rows(); })
      .def_property_readonly("sized", [](const PyJob& self) { return self.even_if_cancelled().sized(); })
      .def_property_readonly("finished_at",
                             [](const PyJob& self) {
                               const auto& work = self.even_if_cancelled().work();
                               return work == nullptr ? 0.0 : work->finished_at();
                             })
      .def(
          "measure",
          [](PyJob& self, int threads) {
            self.job().start_measure(threads);
            return self.wait();
          },
          py::arg("num_threads"))
      .def(
          "start_measure",
          [](PyJob& self, int threads) {
            self.job().start_measure(threads);
            self.job().work()->submit();
          },
          py::arg("num_threads"))
      .def(
          "num_values",
          [](const PyJob& self, int64_t column) {
            const Job& job = self.job();
            if (column_at(job, column).layout == Layout::kRagged) require_measured(job, column_at(job, column));
            return job.num_values(static_cast<size_t>(column));
          },
          py::arg("column"))
      .def(
          "num_bytes",
          [](const PyJob& self, int64_t column) {
            require_measured(self.job(), column_at(self.job(), column));
            return self.job().num_bytes(static_cast<size_t>(column));
          },
          py::arg("column"))
      .def("values", &values, py::arg("column"))
      .def(
          "fill",
          [](PyJob& self, const py::object& arena, const Int64s& placements, int threads) {
            self.start_fill(arena, placements, threads);
            return self.wait();
          },
          py::arg("arena"), py::arg("placements"), py::arg("num_threads"))
      .def(
          "start_fill",
          [](PyJob& self, const py::object& arena, const Int64s& placements, int threads) {
            self.start_fill(arena, placements, threads);
            self.job().work()->submit();
          },
          py::arg("arena"), py::arg("placements"), py::arg("num_threads"))
      .def("done", &PyJob::done)
      .def("wait", &PyJob::wait)
      .def("cancel", &PyJob::cancel)
      .def("num_defaulted", [](const PyJob& self) { return self.job().num_defaulted(); })
      .def("num_duplicates", [](const PyJob& self) { return self.job().num_duplicates(); });

  py::class_<Schema, std::shared_ptr<Schema>>(module, "Decoder")
      .def(py::init(&compile), py::arg("columns"))
      .def("read", &read, py::arg("files"), py::arg("file_of"), py::arg("offsets"), py::arg("lengths"), py::arg("verify"))
      .def("parse", &parse, py::arg("payloads"));
}

}  // namespace tfr
