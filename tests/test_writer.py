"""Writing: what is in the file, and that a final name never holds half of one."""

import gc
import gzip
import logging
import os
import signal
import stat
import subprocess
import sys
import time
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from record_files import ALPHA, BETA, PAYLOADS, frames

from torch_tfrecord.encode import encode_example
from torch_tfrecord.messages import Example
from torch_tfrecord.records import read_records
from torch_tfrecord.writer import TFRecordWriter


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.tfrecord"


def test_vectors(path: Path) -> None:
    with TFRecordWriter(path) as writer:
        writer.write(b"alpha")
        writer.write(b"beta")
    assert path.read_bytes() == ALPHA + BETA
    assert (writer.num_records, writer.num_bytes) == (2, 41)


def test_bytes_like_and_str(path: Path) -> None:
    records: list[Any] = [b"a", bytearray(b"b"), memoryview(b"xcx")[1:2], np.array([100], np.uint8), "é"]
    records += [b"", memoryview(b""), np.zeros((0, 3), np.float32)]
    with TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)
    assert list(read_records(path)) == [b"a", b"b", b"c", b"d", "é".encode(), b"", b"", b""]


@pytest.mark.parametrize("record", [3, None, ["a"], Example()])
def test_other_records(path: Path, record: Any) -> None:
    with TFRecordWriter(path) as writer:
        with pytest.raises(TypeError, match="a record must be bytes-like or str, not ") as info:
            writer.write(record)
        assert ("SerializeToString" in str(info.value)) == isinstance(record, Example)
        writer.write(b"alpha")
    assert path.read_bytes() == ALPHA


@pytest.mark.parametrize("size", [0, 100, 2**20 - 17, 2**20 - 16, 2**20 - 15, 2**20, 3 * 2**20])
def test_sizes_around_the_buffer(path: Path, size: int) -> None:
    payloads = [b"a", os.urandom(size), b"b" * 500_000, b"c" * 600_000, b"d"]
    with TFRecordWriter(path) as writer:
        for payload in payloads:
            writer.write(payload)
    assert path.read_bytes() == frames(payloads)
    assert writer.num_bytes == path.stat().st_size


def test_write_example(path: Path) -> None:
    with TFRecordWriter(path) as writer:
        writer.write_example({"label": 3, "name": "ada"})
    (payload,) = read_records(path)
    message = Example.FromString(payload)
    assert message.features.feature["label"].int64_list.value == [3]
    assert message.features.feature["name"].bytes_list.value == [b"ada"]


def test_write_batch_equals_examples(path: Path, tmp_path: Path) -> None:
    batch = {
        "image": np.arange(12, dtype=np.float64).reshape(3, 2, 2),
        "label": torch.tensor([1, 2, 3]),
        "name": ["a", b"bb", ""],
        "tokens": [[1], [2, 3, 4], [5]],
    }
    with TFRecordWriter(path) as writer:
        writer.write_batch(batch)
        writer.write_batch({"only": [7]})
    assert writer.num_records == 4
    other = tmp_path / "other"
    with TFRecordWriter(other) as writer:
        for row in range(3):
            writer.write_example({name: values[row] for name, values in batch.items()})  # type: ignore[index]
        writer.write_example({"only": 7})
    assert path.read_bytes() == other.read_bytes()


def test_a_batch_that_does_not_fit_writes_nothing(path: Path) -> None:
    with TFRecordWriter(path) as writer:
        with pytest.raises(ValueError, match="feature 'b' has 1 rows, but feature 'a' has 2"):
            writer.write_batch({"a": [1, 2], "b": [1]})
        writer.write(b"alpha")
    assert path.read_bytes() == ALPHA
    assert writer.num_records == 1


def test_nothing_under_the_final_name_before_close(path: Path) -> None:
    writer = TFRecordWriter(path)
    writer.write(b"alpha")
    writer.flush()
    (hidden,) = os.listdir(path.parent)
    assert hidden.startswith(".a.tfrecord.")
    assert (path.parent / hidden).read_bytes() == ALPHA
    writer.write(b"beta")
    writer.close()
    assert os.listdir(path.parent) == ["a.tfrecord"]
    assert path.read_bytes() == ALPHA + BETA


def test_close_twice_and_write_after(path: Path) -> None:
    writer = TFRecordWriter(path)
    writer.close()
    writer.close()
    writer.discard()
    assert path.read_bytes() == b""
    calls: list[Callable[[], None]] = [
        lambda: writer.write(b""),
        lambda: writer.write_example({}),
        lambda: writer.write_batch({"a": [1]}),
        writer.flush,
    ]
    for call in calls:
        with pytest.raises(ValueError, match=f"the writer of {path} is closed"):
            call()
    with pytest.raises(ValueError, match="is closed"), writer:
        pass


def test_exception_leaves_the_older_file(path: Path) -> None:
    path.write_bytes(BETA)
    with pytest.raises(ZeroDivisionError), TFRecordWriter(path) as writer:  # noqa: PT012
        writer.write(b"alpha")
        _ = 1 / 0
    assert os.listdir(path.parent) == ["a.tfrecord"]
    assert path.read_bytes() == BETA
    with pytest.raises(ValueError, match="is closed"):
        writer.write(b"")


def test_close_replaces_the_older_file(path: Path) -> None:
    path.write_bytes(BETA)
    with TFRecordWriter(path) as writer:
        writer.write(b"alpha")
        assert path.read_bytes() == BETA
    assert path.read_bytes() == ALPHA


def test_discard(path: Path) -> None:
    writer = TFRecordWriter(path)
    writer.write(b"alpha")
    writer.discard()
    writer.close()
    assert os.listdir(path.parent) == []


def test_dropped_without_close(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = TFRecordWriter(path)
    writer.write(b"alpha")
    with (  # noqa: PT031
        caplog.at_level(logging.WARNING, "torch_tfrecord"),
        pytest.warns(ResourceWarning, match=f"the writer of {path} was dropped without close"),
    ):
        del writer
        gc.collect()
    (logged,) = caplog.records
    assert logged.getMessage() == f"the writer of {path} was dropped without close(), and so was its file"
    assert os.listdir(path.parent) == []


def test_closed_writers_do_not_warn(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        writer = TFRecordWriter(path)
        writer.close()
        del writer
        gc.collect()
    assert path.exists()


def test_exit_without_close(path: Path) -> None:
    code = f"""
from torch_tfrecord.writer import TFRecordWriter
writer = TFRecordWriter({str(path)!r})
writer.write(b"alpha")
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert os.listdir(path.parent) == []


@pytest.mark.parametrize("compression", [None, "gzip", "zlib"])
def test_kill(path: Path, compression: str | None) -> None:
    code = f"""
import os, signal
from torch_tfrecord.writer import TFRecordWriter
writer = TFRecordWriter({str(path)!r}, compression={compression!r})
writer.write(b"alpha")
writer.write(bytes(3_000_000))
writer.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""
    result = subprocess.run([sys.executable, "-c", code], check=False)
    assert result.returncode == -signal.SIGKILL
    (left,) = os.listdir(path.parent)  # what a killed process cannot clean up
    assert left.startswith(".")
    assert left.endswith(".tmp")
    with pytest.raises(FileNotFoundError, match=f"a writer is not closed yet, or was killed: .*{left}"):
        read_records(path)
    with pytest.raises(FileNotFoundError, match=r"no data files .*or was killed"):
        read_records(path.parent)
    if compression is not None:  # and which does not pass for whole, though all records are there
        records = read_records(path.parent / left, on_error="skip")
        assert [len(record) for record in records] == [5, 3_000_000]
        assert [fault.reason for fault in records.faults] == ["inflate_truncated"]


@pytest.mark.parametrize("compression", [None, "gzip", "zlib"])
def test_killed_at_random_moments(path: Path, compression: str | None) -> None:
    """Under the final name there is nothing, or all of it."""
    code = f"""
from torch_tfrecord.writer import TFRecordWriter
print("writing", flush=True)
with TFRecordWriter({str(path)!r}, compression={compression!r}) as writer:
    for number in range(3000):
        writer.write(b"%d" % number * 500)
"""
    payloads = [b"%d" % number * 500 for number in range(3000)]
    whole = 0
    for step in range(12):
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(step * 0.01)
        process.kill()
        process.wait()
        process.stdout.close()
        if path.exists():
            assert list(read_records(path)) == payloads
            path.unlink()
            whole += 1
    assert whole < 12  # some were killed in time


# --- compressed files ---


@pytest.mark.parametrize(("compression", "start", "size"), [("gzip", "1f8b080000000000", 20), ("zlib", "789c", 8)])
def test_compressed(path: Path, compression: Literal["gzip", "zlib"], start: str, size: int) -> None:
    """Bytes that zlib and gzip read, the same each time, under the marks that TensorFlow writes too."""
    names: list[Any] = [compression, compression.upper()]
    contents = set()
    for name in names:
        with TFRecordWriter(path, compression=name) as writer:
            writer.write(b"alpha")
            writer.write(b"beta")
        assert (writer.num_records, writer.num_bytes) == (2, 41)
        contents.add(path.read_bytes())
        TFRecordWriter(path, compression=name).close()
        assert path.stat().st_size == size
        assert list(read_records(path, compression=compression)) == []
    (content,) = contents
    assert content.hex().startswith(start)
    assert (gzip.decompress if compression == "gzip" else zlib.decompress)(content) == ALPHA + BETA


@pytest.mark.parametrize("compression", ["gzip", "zlib"])
@pytest.mark.parametrize("size", [0, 100, 2**20 - 16, 2**20, 3 * 2**20 + 5])
def test_compressed_sizes_around_the_buffer(path: Path, compression: Literal["gzip", "zlib"], size: int) -> None:
    payloads = [b"a", os.urandom(size), b"b" * 500_000, b"c" * 600_000, b"d"]
    with TFRecordWriter(path, compression=compression) as writer:
        for payload in payloads:
            writer.write(payload)
        writer.write_example({"a": 1})
        writer.write_batch({"a": [1, 2]})
    example = encode_example({"a": 1})
    assert list(read_records(path)) == [*payloads, example, example, encode_example({"a": 2})]
    data = path.read_bytes()
    inflated = gzip.decompress(data) if compression == "gzip" else zlib.decompress(data)
    assert len(inflated) == writer.num_bytes


@pytest.mark.parametrize("compression", ["gzip", "zlib"])
def test_flush_of_a_compressed_file(path: Path, compression: Literal["gzip", "zlib"]) -> None:
    """Whoever reads the hidden file then finds all records so far."""
    with TFRecordWriter(path, compression=compression) as writer:
        for number in range(5):
            writer.write(b"%d" % number)
            writer.flush()
            writer.flush()
            (hidden,) = path.parent.iterdir()
            records = read_records(hidden, on_error="skip")
            assert list(records) == [b"%d" % i for i in range(number + 1)]
    assert list(read_records(path)) == [b"0", b"1", b"2", b"3", b"4"]


def test_compressed_files_are_smaller(path: Path) -> None:
    sizes = {}
    names: list[Any] = [None, "gzip", "zlib"]
    for compression in names:
        with TFRecordWriter(path, compression=compression) as writer:
            writer.write_batch({"text": [f"record number {i}" for i in range(10_000)]})
        sizes[compression] = path.stat().st_size
        assert writer.num_bytes == sizes[None]
    assert sizes["gzip"] == sizes["zlib"] + 12 < sizes[None] / 5


def test_a_forked_child_leaves_the_file_alone(path: Path) -> None:
    code = f"""
import os
from torch_tfrecord.writer import TFRecordWriter
writer = TFRecordWriter({str(path)!r})
writer.write(b"alpha")
child = os.fork()
if child == 0:
    raise SystemExit(0)  # an ordinary exit, with all clean-up
assert os.waitpid(child, 0)[1] == 0
writer.write(b"beta")
writer.close()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert path.read_bytes() == ALPHA + BETA


def test_mode_follows_umask(path: Path) -> None:
    before = os.umask(0o027)
    try:
        TFRecordWriter(path).close()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_link_is_followed(path: Path, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    path.symlink_to("sub/real")
    with TFRecordWriter(path) as writer:
        writer.write(b"alpha")
    assert path.is_symlink()
    assert (tmp_path / "sub" / "real").read_bytes() == ALPHA


def test_relative_path_survives_chdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    writer = TFRecordWriter("a")
    monkeypatch.chdir("/")
    writer.close()
    assert os.listdir(tmp_path) == ["a"]


def test_long_name(tmp_path: Path) -> None:
    path = tmp_path / ("é" * 127)
    TFRecordWriter(path).close()
    assert path.exists()


def test_missing_directory(tmp_path: Path) -> None:
    path = tmp_path / "no" / "a"
    with pytest.raises(FileNotFoundError, match="the directory to write in is missing") as info:
        TFRecordWriter(path)
    assert info.value.filename == str(path)


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        TFRecordWriter(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(OSError, match="only a regular file can be written"):
            TFRecordWriter(path)
    assert os.listdir(tmp_path) == ["pipe"]


@pytest.mark.parametrize("compression", ["", "lz4", "auto", 3])
def test_other_compressions(path: Path, compression: Any) -> None:
    with pytest.raises(ValueError, match=f"compression must be 'gzip', 'zlib' or None, not {compression!r}"):
        TFRecordWriter(path, compression=compression)
    assert os.listdir(path.parent) == []


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_failed_write_gives_the_file_up(path: Path, compression: str | None) -> None:
    """The disk is full: a limit on the size of files stands for it."""
    code = f"""
import os, resource, signal
from torch_tfrecord.writer import TFRecordWriter
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, 1_500_000))
try:
    with TFRecordWriter({str(path)!r}, compression={compression!r}) as writer:
        try:
            for _ in range(3):
                writer.write(os.urandom(1_100_000))
        except OSError as error:
            print(type(error).__name__, error.errno, error.filename)
        # the error was caught, and yet the file must not pass for whole
except OSError as error:
    print(error)
"""
    path.write_bytes(BETA)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines() == [
        f"OSError 27 {path}",
        f"[Errno 5] the file was given up when a write failed: {str(path)!r}",
    ]
    assert path.read_bytes() == BETA
    assert os.listdir(path.parent) == ["a.tfrecord"]


@pytest.mark.parametrize(
    ("ending", "kind"),
    [("gz", "gzip"), ("GZ", "gzip"), ("gzip", "gzip"), ("zz", "zlib"), ("zlib", "zlib"), ("deflate", "zlib")],
)
def test_plain_file_of_a_compressed_name_warns(tmp_path: Path, ending: str, kind: Literal["gzip", "zlib"]) -> None:
    path = tmp_path / f"a.tfrecord.{ending}"
    with pytest.warns(UserWarning, match=f'will be a plain file, .*: pass compression="{kind}"') as caught:
        writer = TFRecordWriter(path)
    assert caught[0].filename == __file__
    with writer:
        writer.write(b"alpha")
    assert path.read_bytes() == ALPHA
    with TFRecordWriter(path, compression=kind) as writer:  # a warning would be an error
        writer.write(b"beta")
    assert list(read_records(path)) == [b"beta"]


def test_repr(path: Path) -> None:
    with TFRecordWriter(path) as writer:
        writer.write(b"alpha")
        assert repr(writer) == f"TFRecordWriter({str(path)!r}, open, 1 records, 21 bytes)"
    assert repr(writer) == f"TFRecordWriter({str(path)!r}, closed, 1 records, 21 bytes)"


def test_many_records_round_trip(path: Path) -> None:
    payloads = PAYLOADS * 2000
    with TFRecordWriter(path) as writer:
        for payload in payloads:
            writer.write(payload)
    assert list(read_records(path)) == payloads


def test_equal_features_give_equal_bytes() -> None:
    assert encode_example({"b": 1, "a": [2]}) == encode_example({"a": 2, "b": [1]})


# --- one kind for each name ---


@pytest.mark.parametrize(
    ("earlier", "later", "says"),
    [
        (0.5, 1, r"feature 'x' is int64 here and float32 in earlier records of .*float\(\.\.\.\) or np.float32"),
        (1, 0.5, r"feature 'x' is float32 here and int64 in earlier records of .*float\(\.\.\.\) or np.float32"),
        (1, b"a", "feature 'x' is bytes here and int64 in earlier records of .*as one kind, or under two names"),
        (1, np.array([]), "is float32 here and int64"),
    ],
)
def test_a_name_keeps_its_kind(path: Path, earlier: Any, later: Any, says: str) -> None:
    with TFRecordWriter(path) as writer:
        writer.write_example({"x": earlier, "other": 1})
        calls: list[tuple[Callable[[dict[str | bytes, Any]], None], dict[str | bytes, Any]]] = [
            (writer.write_example, {"x": later, "new": 1}),
            (writer.write_batch, {"x": [later], "new": [1]}),
            (writer.write_example, {b"x": later}),
        ]
        for write, features in calls:
            with pytest.raises(ValueError, match=says):
                write(features)
        writer.write_example({"new": 0.5, "x": earlier})  # what was refused is not remembered
        writer.write(encode_example({"x": later}))  # not looked at
    assert writer.num_records == 3


def test_a_batch_fixes_kinds_too(path: Path, tmp_path: Path) -> None:
    with TFRecordWriter(path) as writer:
        writer.write_batch({"x": np.zeros(3, np.float32)})
        writer.write_example({"x": None})
        writer.write_example({"x": []})
        with pytest.raises(ValueError, match="'x' is int64 here"):
            writer.write_example({"x": 3})
    with TFRecordWriter(tmp_path / "other") as writer:  # of another writer
        writer.write_example({"x": 3})


def test_paths_that_are_no_local_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="only local and mounted files"):
        TFRecordWriter("gs://bucket/a")
    with pytest.raises(FileNotFoundError, match="expanduser"):
        TFRecordWriter("~/a")


def test_an_open_writer_is_mentioned_where_its_file_is_missed(tmp_path: Path) -> None:
    names = [tmp_path / ("n" * 60), tmp_path / "t-00000-of-00001"]
    for name in names:
        with pytest.raises(FileNotFoundError) as info:
            read_records(name)
        assert "a writer is not closed yet" not in str(info.value)
    writers = [TFRecordWriter(name) for name in names]
    for missing in (*names, tmp_path / "t@1", tmp_path / "t-*", tmp_path):
        with pytest.raises(FileNotFoundError, match="a writer is not closed yet") as info:
            read_records(missing)
        assert info.value.filename == str(missing)
    with pytest.raises(FileNotFoundError) as info:
        read_records(tmp_path / "another")
    assert "a writer is not closed yet" not in str(info.value)
    for writer in writers:
        writer.discard()


def test_names_too_long_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 300)
    with pytest.raises(OSError, match="File name too long"):
        TFRecordWriter(path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_get_its_name_is_kept(tmp_path: Path) -> None:
    writer = TFRecordWriter(tmp_path / "a.tfrecord")
    writer.write(b"precious")
    (tmp_path / "a.tfrecord").mkdir()
    with pytest.raises(OSError, match="all records are in ") as error:
        writer.close()
    kept = str(error.value).partition("all records are in ")[2].partition(":")[0].partition("'")[0].strip()
    assert list(read_records(kept)) == [b"precious"]
    (tmp_path / "a.tfrecord").rmdir()
