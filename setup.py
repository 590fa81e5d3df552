"""Builds the one native extension; everything else is in pyproject.toml.

Switches (environment variables, all off by default):
    TORCH_TFRECORD_DEBUG=1     -O0 -g, assertions on
    TORCH_TFRECORD_WERROR=1    warnings are errors (CI)
    TORCH_TFRECORD_SANITIZE=1  address and undefined-behaviour sanitizers
    TORCH_TFRECORD_COVERAGE=1  gcov counters
"""

import os
from glob import glob

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension
from setuptools import setup


def switch(name: str) -> bool:
    return os.environ.get(f"TORCH_TFRECORD_{name}", "0") not in ("", "0")


compile_args = ["-O3", "-Wall", "-Wextra", "-fvisibility=hidden"]
link_args: list[str] = []
if switch("DEBUG"):
    compile_args += ["-O0", "-g", "-UNDEBUG"]
if switch("WERROR"):
    compile_args += ["-Werror"]
if switch("SANITIZE"):
    flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g"]
    compile_args += ["-O1", *flags]
    link_args += flags
if switch("COVERAGE"):
    compile_args += ["-O0", "--coverage"]
    link_args += ["--coverage"]

extension = Pybind11Extension(
    "torch_tfrecord.native._core",
    sorted(glob("torch_tfrecord/native/*.cc")),
    depends=sorted(glob("torch_tfrecord/native/*.h")),
    cxx_std=17,
    extra_compile_args=compile_args,
    extra_link_args=[*link_args, "-pthread"],
)

with ParallelCompile("TORCH_TFRECORD_JOBS"):
    setup(ext_modules=[extension])
