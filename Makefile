# The chores of this project. Each works on a fresh machine with Python 3.10 or newer and a C++17 compiler.

BIN := .venv/bin
PIP_OPTIONS := --quiet --constraint constraints.txt
SOURCES := $(wildcard torch_tfrecord/native/*.cc torch_tfrecord/native/*.h)
SANITIZED_TESTS := $(wildcard $(addprefix tests/test_, $(addsuffix .py, \
    backend core_async core_contract core_rows crc32c damage decode_raw encode_native file_native frames_native \
    order_core parity wire_rules)))
TENSORFLOW := 2.21.0

export TORCH_TFRECORD_JOBS ?= 2
export TORCH_TFRECORD_WERROR ?= 1

help:
	@echo "make demo         train on handwritten digits, from images to TFRecords to an accurate network"
	@echo "make test         lint, types, all tests"
	@echo "make lint         lint and types alone"
	@echo "make sanitize     the native tests under the address and undefined-behaviour sanitizers (Linux)"
	@echo "make wheel-test   build sdist and wheel, install each in a fresh environment, use it there"
	@echo "make tensorflow-test   the tests that compare with TensorFlow, which gets an environment of its own (1.5 GB)"
	@echo "make bench        measure against other readers (bench-quick: a tenth of it)"
	@echo "make clean        remove all that these make, .venv too"

# The environment, made again when what it is made of changes. An editable install also compiles the native core, into
# the tree; in its compat mode type checkers, too, find the package from any folder.
.venv/ready: pyproject.toml setup.py constraints.txt $(SOURCES)
	@echo "Making .venv and compiling the native core: a minute or two"
	python3 -m venv .venv
	$(BIN)/pip install $(PIP_OPTIONS) --config-settings editable_mode=compat --editable '.[dev,demo]'
	@touch $@

demo: .venv/ready
	$(BIN)/python examples/01_digits.py demo_output

test: lint
	$(BIN)/pytest

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# A second build of the package, which hides the one in the tree. libstdc++ is named because Python itself is not linked
# to it, and the sanitizer must find the functions that throw exceptions before the core is loaded. pytest must not capture
# standard error itself, where the sanitizer reports.
sanitize: .venv/ready
	TORCH_TFRECORD_SANITIZE=1 $(BIN)/python setup.py --quiet build --build-base build/sanitize --build-lib build/sanitize/lib
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0 PYTHONPATH=build/sanitize/lib $(BIN)/pytest --capture=sys $(SANITIZED_TESTS)

wheel-test: .venv/ready
	rm -rf dist build/fresh
	$(BIN)/python -m build
	python3 -m venv build/fresh
	build/fresh/bin/pip install $(PIP_OPTIONS) dist/*.whl
	cd build/fresh && bin/python ../../tests/smoke.py
	build/fresh/bin/pip install $(PIP_OPTIONS) --force-reinstall --no-deps dist/*.tar.gz
	cd build/fresh && bin/python ../../tests/smoke.py

# TensorFlow is only ever asked for its answers, by tests, in processes of their own.
build/tensorflow/$(TENSORFLOW):
	@echo "Making build/tensorflow: about a minute"
	python3 -m venv --clear build/tensorflow
	build/tensorflow/bin/pip install $(PIP_OPTIONS) tensorflow-cpu==$(TENSORFLOW)
	@touch $@

tensorflow-test: .venv/ready build/tensorflow/$(TENSORFLOW)
	TORCH_TFRECORD_TENSORFLOW=build/tensorflow/bin/python $(BIN)/pytest -m tensorflow

bench: .venv/ready
	$(BIN)/python benchmarks/run.py

bench-quick: .venv/ready
	$(BIN)/python benchmarks/run.py --quick

clean:
	rm -rf .venv build dist demo_output *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -f torch_tfrecord/native/*.so

.PHONY: help demo test lint sanitize wheel-test tensorflow-test bench bench-quick clean
