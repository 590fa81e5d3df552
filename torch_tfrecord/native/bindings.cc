// The module. Only this file and bind_*.cc know Python.
#include <pybind11/pybind11.h>

namespace tfr {
void bind_frames(pybind11::module_& module);
void bind_decoder(pybind11::module_& module);
void bind_order(pybind11::module_& module);
}  // namespace tfr

PYBIND11_MODULE(_core, module, pybind11::mod_gil_not_used()) {
  tfr::bind_frames(module);
  tfr::bind_decoder(module);
  tfr::bind_order(module);
}
