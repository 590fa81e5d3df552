"""The public names, and what is not imported before it is needed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import torch_tfrecord as tfr

ROOT = Path(__file__).resolve().parent.parent


def modules_after(statement: str) -> set[str]:
    """Top-level modules that a new interpreter has loaded after a statement, which may print and exit."""
    script = (
        "import atexit, sys\n"
        "atexit.register(lambda: print('MODULES', *{name.partition('.')[0] for name in sys.modules}))\n"
        f"{statement}\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.rpartition("MODULES ")[2].split())


def test_all_is_sorted_and_is_what_is_served() -> None:
    assert tfr.__all__ == sorted(tfr.__all__)
    assert len(set(tfr.__all__)) == len(tfr.__all__)
    assert set(tfr.__all__) == set(tfr._HOME)


@pytest.mark.parametrize("name", tfr.__all__)
def test_every_name_is_there_and_says_what_it_is(name: str) -> None:
    value = getattr(tfr, name)
    assert name in dir(tfr)
    if name == "backend":
        assert value in {"native", "python"}
    elif hasattr(value, "DESCRIPTOR"):  # a message class, made by protobuf
        assert value.DESCRIPTOR.full_name == f"tensorflow.{name}"
    else:
        assert value.__module__ == f"torch_tfrecord.{tfr._HOME[name]}"
        assert value.__doc__


def test_unknown_names_are_refused() -> None:
    name = "TFRecordDatset"
    with pytest.raises(AttributeError, match=f"module 'torch_tfrecord' has no attribute '{name}'"):
        getattr(tfr, name)


def test_star_import_gives_exactly_the_public_names() -> None:
    scope: dict[str, object] = {}
    exec("from torch_tfrecord import *", scope)
    assert set(scope) - {"__builtins__"} == set(tfr.__all__)


def test_version_is_that_of_the_project() -> None:
    versions = re.findall(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert versions == [tfr.__version__]


def test_import_loads_nothing_heavy() -> None:
    loaded = modules_after("import torch_tfrecord")
    assert "torch_tfrecord" in loaded
    assert loaded.isdisjoint({"torch", "numpy", "google", "PIL"})


@pytest.mark.parametrize("name", ["RecordIndex", "TFRecordWriter", "encode_example", "read_records", "DataLossError"])
def test_records_and_index_need_no_torch(name: str) -> None:
    loaded = modules_after(f"import torch_tfrecord; torch_tfrecord.{name}")
    assert loaded.isdisjoint({"torch", "google", "PIL"})


def test_help_of_the_tool_loads_no_torch_or_numpy() -> None:
    loaded = modules_after("import index_tools.__main__ as tool; tool.main(['--help'])")
    assert "index_tools" in loaded
    assert loaded.isdisjoint({"torch", "numpy"})


def test_messages_load_protobuf_only_when_used() -> None:
    assert "google" in modules_after("import torch_tfrecord; torch_tfrecord.Example")
