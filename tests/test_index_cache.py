"""The index that a data set keeps: found again, built anew, built by one of many."""

import logging
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Literal

import pytest
from compressed_files import KINDS, compress, compress_file, write_compressed
from record_files import PAYLOADS, flip, frames, write_file

from torch_tfrecord import index_cache, index_scan
from torch_tfrecord.errors import DataLossError
from torch_tfrecord.index import RecordIndex
from torch_tfrecord.index_cache import place_beside, place_in_cache


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(3):
        write_file(folder / f"t-{number:05d}-of-00003", PAYLOADS[: number + 1])
    return folder


CHOICES: list[tuple[Literal["length", "all"], Literal["raise", "skip"]]] = [
    ("length", "raise"),
    ("all", "raise"),
    ("length", "skip"),
    ("all", "skip"),
]


def kept(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.startswith("."))


def number_of_builds(caplog: pytest.LogCaptureFixture) -> int:
    return sum("building" in record.getMessage() for record in caplog.records)


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="torch_tfrecord")


def test_kept_beside_the_data(data: Path, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    index = RecordIndex.load_or_build(data)
    (name,) = kept(data)
    assert name.startswith(".t-00000-of-00003.")
    assert name.endswith(".tfrindex")
    assert len(name) == len(".t-00000-of-00003.12345678.tfrindex")
    assert index.file == str(data / name)
    assert len(index) == 6
    again = RecordIndex.load_or_build(data / "t@3")
    assert (again.paths, again.fingerprint, again.file) == (index.paths, index.fingerprint, index.file)
    assert number_of_builds(caplog) == 1
    assert not cache.exists()


def test_moved_with_its_data(data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    RecordIndex.load_or_build(data)
    data.rename(tmp_path / "moved")
    assert len(RecordIndex.load_or_build(tmp_path / "moved")) == 6
    assert number_of_builds(caplog) == 1


def test_relative_and_absolute_paths_share_it(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    RecordIndex.load_or_build(data)
    monkeypatch.chdir(data)
    index = RecordIndex.load_or_build("t@3")
    assert index.paths == ("t-00000-of-00003", "t-00001-of-00003", "t-00002-of-00003")
    assert len(kept(data)) == 1


def test_other_lists_of_files_have_others(data: Path) -> None:
    paths = sorted(map(str, data.iterdir()))
    lists = [paths, paths[:2], [paths[0], paths[2]], [paths[0]], [paths[0], paths[0]]]
    for number, names in enumerate(lists, 1):
        assert len(RecordIndex.load_or_build(names).paths) == len(names)
        assert len(kept(data)) == number


@pytest.mark.parametrize("change", ["content", "size", "missing record"])
def test_changed_data_are_scanned_again(data: Path, change: str, caplog: pytest.LogCaptureFixture) -> None:
    before = RecordIndex.load_or_build(data)
    payloads = {"content": [b"alphb"], "size": [b"alpha!"], "missing record": []}[change]
    write_file(data / "t-00000-of-00003", payloads)
    after = RecordIndex.load_or_build(data)
    assert len(after) == 5 + len(payloads)
    assert after.fingerprint != before.fingerprint
    assert number_of_builds(caplog) == 2
    assert len(kept(data)) == 1
    assert RecordIndex.load_or_build(data).fingerprint == after.fingerprint
    assert number_of_builds(caplog) == 2


@pytest.mark.parametrize("time_ns", [1, -1, 1_700_000_000_123_456_789])
def test_touched_data_are_scanned_once_more(data: Path, time_ns: int, caplog: pytest.LogCaptureFixture) -> None:
    before = RecordIndex.load_or_build(data)
    os.utime(data / "t-00001-of-00003", ns=(time_ns, time_ns))
    for _ in range(3):
        after = RecordIndex.load_or_build(data)
        assert number_of_builds(caplog) == 2
    assert after.fingerprint == before.fingerprint
    before.open_shard(1)  # an index that somebody gives is not compared with times
    assert kept(data) == [os.path.basename(str(after.file))]


def test_other_boundaries_between_the_samples(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Size, number of records and all samples are what they were: only the time tells."""
    payloads = [bytes([number]) * 20 for number in range(100)]
    path = write_file(tmp_path / "a", payloads)
    RecordIndex.load_or_build(path)
    os.utime(path, (1, 1))
    before = RecordIndex.load_or_build(path)
    payloads[1], payloads[2] = b"x" * 15, b"y" * 25
    write_file(tmp_path / "a", payloads)
    before.open_shard(0)  # not noticed
    after = RecordIndex.load_or_build(path)
    assert after.lengths[:4].tolist() == [20, 15, 25, 20]
    assert after.fingerprint != before.fingerprint
    assert number_of_builds(caplog) == 3


def test_damage_in_the_arrays_is_healed(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    index = RecordIndex.load_or_build(data)
    whole = Path(str(index.file)).read_bytes()
    for number, position in enumerate((len(whole) - 1, len(whole) - 96), 2):
        Path(str(index.file)).write_bytes(flip(whole, position))
        assert RecordIndex.load_or_build(data)[5] == index[5]
        assert number_of_builds(caplog) == number
        assert Path(str(index.file)).read_bytes() == whole


def test_a_pipe_in_its_place_is_passed_by(data: Path, cache: Path) -> None:
    index = RecordIndex.load_or_build(data)
    os.unlink(str(index.file))
    os.mkfifo(str(index.file))
    assert str(RecordIndex.load_or_build(data).file).startswith(str(cache))


@pytest.mark.parametrize("content", [b"", b"garbage", b"TFRINDEX" + bytes(100)])
def test_damaged_index_is_replaced(data: Path, content: bytes) -> None:
    index = RecordIndex.load_or_build(data)
    assert index.file is not None
    Path(index.file).write_bytes(content)
    assert len(RecordIndex.load_or_build(data)) == 6
    assert len(RecordIndex.open(index.file)) == 6


def test_an_index_of_other_files_under_that_name_is_replaced(data: Path, tmp_path: Path) -> None:
    index = RecordIndex.load_or_build(data)
    assert index.file is not None
    other = write_file(tmp_path / "other", [b"other"])
    RecordIndex.build(other).save(index.file)
    assert RecordIndex.load_or_build(data).paths == index.paths


def test_more_checks_need_a_new_scan(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        assert RecordIndex.load_or_build(data, verify="length").verify_level == "length"
        assert RecordIndex.load_or_build(data, verify="all").verify_level == "all"
    assert number_of_builds(caplog) == 2


def test_each_choice_keeps_its_own(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = data / "t-00002-of-00003"
    whole = path.read_bytes()
    path.write_bytes(flip(whole, 12))
    for _ in range(2):
        assert len(RecordIndex.load_or_build(data)) == 6
        assert len(RecordIndex.load_or_build(data, on_error="skip")) == 6
        assert len(RecordIndex.load_or_build(data, verify="all", on_error="skip")) == 5
    assert number_of_builds(caplog) == 3
    assert [name.split(".", 3)[3] for name in kept(data)] == ["all.skip.tfrindex", "skip.tfrindex", "tfrindex"]
    names = sorted(map(str, data.glob("t-*")))
    assert len({place_in_cache(names, verify, on_error) for verify, on_error in CHOICES}) == 4
    assert len({place_beside(names, verify, on_error) for verify, on_error in CHOICES}) == 4


def test_an_index_with_gaps_does_not_hide_damage(data: Path) -> None:
    path = data / "t-00002-of-00003"
    path.write_bytes(path.read_bytes() + b"tail")
    with pytest.raises(DataLossError, match="record 3 at byte 57: truncated header"):
        RecordIndex.load_or_build(data)
    assert kept(data) == []
    skipping = RecordIndex.load_or_build(data, on_error="skip")
    assert len(skipping) == 6
    assert len(RecordIndex.load_or_build(data, on_error="skip").faults) == 1
    with pytest.raises(DataLossError, match="record 3 at byte 57: truncated header"):
        RecordIndex.load_or_build(data)


def test_wrong_choices_and_missing_files(data: Path) -> None:
    with pytest.raises(ValueError, match="verify must be"):
        RecordIndex.load_or_build(data, verify="none")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="on_error must be"):
        RecordIndex.load_or_build(data, on_error="x")  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        RecordIndex.load_or_build(data / "no")


# --- places that cannot be written ---


def test_a_folder_that_fails_leads_to_the_cache(data: Path, cache: Path) -> None:
    """The place beside the data is taken by a directory, so that renaming to it fails, for root too."""
    names = sorted(str(path) for path in data.iterdir())
    Path(place_beside(names)).mkdir()
    index = RecordIndex.load_or_build(data)
    assert index.file == place_in_cache(names)
    assert os.listdir(cache / "torch_tfrecord") == [os.path.basename(str(index.file))]
    again = RecordIndex.load_or_build(data)
    assert (again.file, again.paths) == (index.file, index.paths)
    assert sorted(os.listdir(data)) == sorted([*map(os.path.basename, names), os.path.basename(place_beside(names))])


def test_no_place_at_all(data: Path, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = sorted(str(path) for path in data.iterdir())
    Path(place_beside(names)).mkdir()
    cache.touch()  # a file, where a directory would be made
    index = RecordIndex.load_or_build(data)
    assert (len(index), index.file) == (6, None)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == [
        f"the index of {names[0]} cannot be kept, beside the data or in the cache: it is built anew each time"
    ]


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_read_only_folder(data: Path, cache: Path) -> None:
    data.chmod(0o555)
    try:
        index = RecordIndex.load_or_build(data)
    finally:
        data.chmod(0o755)
    assert str(index.file).startswith(str(cache))
    assert kept(data) == []


def test_place_in_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    monkeypatch.setenv("HOME", "/home/me")
    place = place_in_cache(["/a", "/b"])
    assert place is not None
    assert os.path.dirname(place) == "/x/torch_tfrecord"
    assert place_in_cache(["/a", "/b"]) == place
    assert place_in_cache(["/b", "/a"]) != place
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert str(place_in_cache(["/a"])).startswith("/home/me/.cache/torch_tfrecord/")


def test_long_names(tmp_path: Path) -> None:
    path = write_file(tmp_path / ("é" * 127), PAYLOADS)
    assert len(RecordIndex.load_or_build(path)) == 4
    assert len(kept(tmp_path)) == 1


# --- several processes ---

BUILD = """
import logging, sys
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
from torch_tfrecord.index import RecordIndex
input()
index = RecordIndex.load_or_build(sys.argv[1])
print("fingerprint", index.fingerprint, len(index))
"""

HOLD = """
import fcntl, os, sys
from torch_tfrecord.index import RecordIndex
from torch_tfrecord.index_cache import place_beside
from torch_tfrecord.paths import expand_paths
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
print("held", flush=True)
input()
names = expand_paths(sys.argv[1])
RecordIndex.build(names).save(place_beside(names))
"""


def start(data: Path, code: str = BUILD) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", code, str(data)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_four_at_once_build_once(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    piece = frames([b"x" * 20] * 50_000)
    for number in range(4):
        (data / f"s{number}").write_bytes(piece * 4)
    processes = [start(data) for _ in range(4)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    results = {line for output in outputs for line in output.splitlines() if line.startswith("fingerprint")}
    assert len(results) == 1
    assert results.pop().endswith(" 800000")
    assert sum(output.count("building") for output in outputs) == 1
    assert len(kept(data)) == 1


def test_without_locks_all_are_right(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "s").write_bytes(frames([b"x" * 20] * 50_000))
    code = BUILD.replace("from torch", "import fcntl; fcntl.flock = lambda *_: None\nfrom torch", 1)
    processes = [start(data, code) for _ in range(4)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    results = {line for output in outputs for line in output.splitlines() if line.startswith("fingerprint")}
    assert len(results) == 1
    assert len(kept(data)) == 1


def test_kill_while_building(tmp_path: Path) -> None:
    """No file passes for an index, and the next process does not wait for the dead one's lock."""
    data = tmp_path / "data"
    data.mkdir()
    whole = frames([b"x" * 20] * 50_000)
    for number in range(30):
        (data / f"s{number}").write_bytes(whole)
    code = BUILD.replace(
        "index = ", "import os, threading; threading.Timer(DELAY, os.kill, (os.getpid(), 9)).start()\nindex = "
    )
    for delay in (0.0, 0.005, 0.01, 0.02, 0.04):
        process = start(data, code.replace("DELAY", str(delay)))
        process.communicate("\n", timeout=60)
        assert process.returncode in (0, -signal.SIGKILL)
        for name in kept(data):
            if name.endswith(".tfrindex"):
                assert len(RecordIndex.open(data / name)) == 1_500_000
                (data / name).unlink()
    began = time.monotonic()
    assert len(RecordIndex.load_or_build(data)) == 1_500_000
    assert time.monotonic() - began < 60


def test_a_wait_for_the_lock_ends_with_the_index(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A process that waits finds what the one before it has built."""
    holder = start(data, HOLD)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    waiter = start(data)
    assert waiter.stdin is not None
    waiter.stdin.write("\n")
    waiter.stdin.flush()
    with pytest.raises(subprocess.TimeoutExpired):
        waiter.wait(1.5)
    holder.communicate("\n", timeout=60)
    output = waiter.communicate(timeout=60)[0]
    assert "building" not in output
    assert output.splitlines()[-1].endswith(" 6")


def test_a_lock_of_another_program_is_not_waited_for_for_ever(
    data: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_cache, "_LOCK_SECONDS", 0.5)
    monkeypatch.setattr(index_cache, "_QUIET_SECONDS", 0.1)
    holder = start(data, HOLD)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    began = time.monotonic()
    index = RecordIndex.load_or_build(data)
    assert 0.5 < time.monotonic() - began < 10
    assert len(RecordIndex.open(str(index.file))) == 6
    assert [record.getMessage().split(" after")[0] for record in caplog.records if record.levelname == "WARNING"] == [
        f"waiting for another process, which builds an index in {data} or has locked it",
        f"{data} is still locked by another process",
    ]
    holder.communicate("\n", timeout=60)


# --- files that come and go ---


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are scanned, as they are; emptied by ``take``."""
    names: list[str] = []
    scan = index_scan.scan_shard

    def counting(path: str, *args: Any, **options: Any) -> index_scan.ShardScan:
        names.append(os.path.basename(path))
        return scan(path, *args, **options)

    monkeypatch.setattr(index_scan, "scan_shard", counting)
    return names


def take(scanned: list[str]) -> list[str]:
    found = sorted(scanned)
    scanned.clear()
    return found


def assert_as_new(index: RecordIndex, **choices: Any) -> None:
    """All that an index says is what a scan of all its files says."""
    fresh = RecordIndex.build(list(index.paths), **choices)
    assert index.paths == fresh.paths
    assert index.fingerprint == fresh.fingerprint
    assert index.offsets.tolist() == fresh.offsets.tolist()
    assert index.lengths.tolist() == fresh.lengths.tolist()
    assert index.faults == fresh.faults
    assert index.shard_times == fresh.shard_times
    assert index.shard_compression == fresh.shard_compression
    again = RecordIndex.open(str(index.file))
    assert (again.paths, again.fingerprint, again.faults) == (fresh.paths, fresh.fingerprint, fresh.faults)


@pytest.mark.parametrize("kind", ["plain", *KINDS])
def test_only_new_and_changed_files_are_scanned(data: Path, scanned: list[str], kind: str) -> None:
    if kind != "plain":
        for path in data.iterdir():
            compress_file(str(path), kind)
    names = ["t-00000-of-00003", "t-00001-of-00003", "t-00002-of-00003"]
    RecordIndex.load_or_build(data)
    assert take(scanned) == names
    RecordIndex.load_or_build(data)
    assert take(scanned) == []

    write_file(data / "a-first", [b"new"])
    write_compressed(data / "z-last", [b"new", b"too"])
    index = RecordIndex.load_or_build(data)
    assert take(scanned) == ["a-first", "z-last"]
    assert_as_new(index)
    take(scanned)

    (data / names[1]).unlink()
    index = RecordIndex.load_or_build(data)
    assert take(scanned) == []
    assert [os.path.basename(path) for path in index.paths] == ["a-first", names[0], names[2], "z-last"]
    assert_as_new(index)
    take(scanned)

    backwards = RecordIndex.load_or_build(list(reversed(index.paths)))
    assert take(scanned) == []
    assert_as_new(backwards)
    take(scanned)

    write_file(data / names[2], [b"replaced"])
    with open(data / "a-first", "ab") as file:  # grown at its end
        file.write(frames([b"more"]))
    index = RecordIndex.load_or_build(data)
    assert take(scanned) == ["a-first", names[2]]
    assert_as_new(index)


def test_a_file_that_only_its_time_tells_apart_is_scanned(data: Path, scanned: list[str]) -> None:
    RecordIndex.load_or_build(data)
    take(scanned)
    os.utime(data / "t-00001-of-00003", (1, 1))
    index = RecordIndex.load_or_build(data)
    assert take(scanned) == ["t-00001-of-00003"]
    assert_as_new(index)


def test_what_an_index_knows_depends_on_how_it_was_built(data: Path, scanned: list[str]) -> None:
    path = data / "t-00002-of-00003"
    path.write_bytes(flip(path.read_bytes(), 12))
    names = sorted(os.listdir(data))
    RecordIndex.load_or_build(data)
    assert take(scanned) == names
    strict = RecordIndex.load_or_build(data, verify="all", on_error="skip")  # more is checked: nothing is known
    assert take(scanned) == names
    assert_as_new(strict, verify="all", on_error="skip")
    take(scanned)
    write_file(data / "z", [])
    # Of files without faults it is known more than enough; the one with a fault is another matter.
    lenient = RecordIndex.load_or_build(data, on_error="skip")
    assert take(scanned) == ["z"]
    assert_as_new(lenient, on_error="skip")
    take(scanned)
    strict = RecordIndex.load_or_build(data, verify="all", on_error="skip")
    assert take(scanned) == ["z"]
    assert len(strict.faults) == 1
    assert_as_new(strict, verify="all", on_error="skip")
    take(scanned)
    os.unlink(data / "z")
    with pytest.raises(DataLossError, match="data checksum"):
        RecordIndex.load_or_build(data, verify="all")
    assert take(scanned) == ["t-00002-of-00003"]


def test_a_damaged_or_older_index_knows_nothing(data: Path, scanned: list[str]) -> None:
    index = RecordIndex.load_or_build(data)
    place = Path(str(index.file))
    whole = place.read_bytes()
    for content in (flip(whole, len(whole) - 1), flip(whole, 40), whole[:-1], whole[:8] + b"\2\0\0\0" + whole[12:]):
        take(scanned)
        place.write_bytes(content)
        assert_as_new(RecordIndex.load_or_build(data))
        assert "t-00002-of-00003" in take(scanned)


def test_in_the_cache_directory_too(data: Path, cache: Path, scanned: list[str]) -> None:
    names = sorted(str(path) for path in data.iterdir())
    for wanted in (names, names[:2]):
        Path(place_beside(wanted)).mkdir()  # so that nothing can be kept beside the data
    RecordIndex.load_or_build(names)
    take(scanned)
    index = RecordIndex.load_or_build(names[:2])
    assert take(scanned) == []
    assert str(index.file).startswith(str(cache))
    assert_as_new(index)


@pytest.mark.parametrize("max_faults", [None, 0, 1, 2])
def test_budget_of_faults(data: Path, max_faults: int | None, scanned: list[str]) -> None:
    """It is no part of what is kept."""
    path = data / "t-00002-of-00003"
    path.write_bytes(flip(path.read_bytes(), 12) + b"tail")
    for _ in range(2):
        if max_faults in (None, 2):
            index = RecordIndex.load_or_build(data, verify="all", on_error="skip", max_faults=max_faults)
            assert len(index.faults) == 2
            built = RecordIndex.build(data, verify="all", on_error="skip", max_faults=max_faults)
            assert built.faults == index.faults
        else:
            for make in (RecordIndex.load_or_build, RecordIndex.build):
                with pytest.raises(DataLossError, match=f"{path}: record 0 at byte 0: data_crc.*{path}: record 3"):
                    make(data, verify="all", on_error="skip", max_faults=max_faults)
    assert len(kept(data)) == 1


def test_what_dead_writers_left_is_swept(data: Path) -> None:
    old, new, other = (
        data / ".i.1-abcdef01.tfrindex.tmp",
        data / ".i.2-abcdef01.tfrindex.tmp",
        data / ".x.1-abcdef01.tmp",
    )
    for path in (old, new, other):
        path.write_bytes(b"TFRINDEX")
    for path in (old, other):
        os.utime(path, (1, 1))
    RecordIndex.load_or_build([path for path in data.iterdir() if path.name.startswith("t-")])
    assert [path.exists() for path in (old, new, other)] == [False, True, True]


def test_eight_at_once_over_compressed_files(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for number in range(4):
        (data / f"s{number}").write_bytes(compress(frames([b"x" * 20] * 50_000), KINDS[number % 3]))
    processes = [start(data) for _ in range(8)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    results = {line for output in outputs for line in output.splitlines() if line.startswith("fingerprint")}
    assert len(results) == 1
    assert results.pop().endswith(" 200000")
    assert sum(output.count("building") for output in outputs) == 1
    assert len(kept(data)) == 1
    RecordIndex.open(data / kept(data)[0]).verify()


def test_builders_that_are_killed_at_random_moments(tmp_path: Path) -> None:
    """While others build, too, and the files change: whatever passes for an index afterwards is whole."""
    data = tmp_path / "data"
    data.mkdir()
    draw = random.Random(0)
    for number in range(6):
        (data / f"s{number}").write_bytes(compress(frames([b"x" * 20] * 30_000), "gzip"))
    code = BUILD.replace(
        "index = ",
        "import os, sys, threading\nthreading.Timer(float(sys.argv[2]), os.kill, (os.getpid(), 9)).start()\nindex = ",
    )
    command = [sys.executable, "-c", code, str(data)]
    for turn in range(8):
        write_file(data / f"t{turn}", [b"%d" % turn] * 1000)
        processes = [
            subprocess.Popen(
                [*command, str(draw.random() * 0.3)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for _ in range(3)
        ]
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        for process in processes:
            process.communicate(timeout=60)
            assert process.returncode in (0, -signal.SIGKILL)
        for name in kept(data):
            if name.endswith(".tfrindex"):
                RecordIndex.open(data / name).verify()
    index = RecordIndex.load_or_build(data)
    assert len(index) == 6 * 30_000 + 8 * 1000
    index.verify()
