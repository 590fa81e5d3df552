"""What ``paths`` may be."""

import os
import re
from pathlib import Path

import pytest

from torch_tfrecord.paths import expand_paths, open_descriptor


def make(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def names(folder: Path, paths: list[str]) -> list[str]:
    return [os.path.relpath(path, folder) for path in paths]


def test_one_file_in_every_type(tmp_path: Path) -> None:
    make(tmp_path, "a")
    path = tmp_path / "a"
    assert (
        expand_paths(str(path))
        == expand_paths(path)
        == expand_paths([path])
        == expand_paths((str(path),))
        == [str(path)]
    )


def test_list_keeps_order_and_repetitions(tmp_path: Path) -> None:
    make(tmp_path, "a", "b")
    assert names(tmp_path, expand_paths([tmp_path / "b", tmp_path / "a", tmp_path / "b"])) == ["b", "a", "b"]


@pytest.mark.parametrize("name", ["a[1].tfrecord", "what?", "star*", "train@2", "~x", "-"])
def test_a_path_that_exists_is_literal(tmp_path: Path, name: str) -> None:
    make(tmp_path, name, "a1.tfrecord", "star1", "train-00000-of-00002", "train-00001-of-00002")
    assert names(tmp_path, expand_paths(tmp_path / name)) == [name]


def test_glob_is_sorted_by_bytes(tmp_path: Path) -> None:
    make(tmp_path, "b", "a10", "a9", "B", "ä", "z", "a", "c.txt")
    assert names(tmp_path, expand_paths(str(tmp_path / "[!c]*"))) == ["B", "a", "a10", "a9", "b", "z", "ä"]
    assert names(tmp_path, expand_paths(str(tmp_path / "a?"))) == ["a9"]


def test_glob_takes_files_only_and_no_side_files(tmp_path: Path) -> None:
    make(tmp_path, "a", "_SUCCESS", "a.crc", "a.tfrindex", "a.idx", "a.tfindex", "sub/b", "sub/deep/c")
    assert names(tmp_path, expand_paths(str(tmp_path / "*"))) == ["a"]
    assert names(tmp_path, expand_paths(str(tmp_path / "**"))) == ["a", "sub/b", "sub/deep/c"]
    assert names(tmp_path, expand_paths(str(tmp_path / "*" / "b"))) == ["sub/b"]


def test_a_glob_that_asks_for_side_files_gets_them(tmp_path: Path) -> None:
    make(tmp_path, "_a", "_b", ".c", "d")
    assert names(tmp_path, expand_paths(str(tmp_path / "_*"))) == ["_a", "_b"]
    assert names(tmp_path, expand_paths(str(tmp_path / ".[c]"))) == [".c"]


def test_directory(tmp_path: Path) -> None:
    make(
        tmp_path, "part-2", "part-10", "part-1.gz", ".hidden", "_SUCCESS", ".part-2.crc", "x.crc", "x.tfrindex", "sub/y"
    )
    make(tmp_path, "x.idx", "x.tfindex")
    assert names(tmp_path, expand_paths(tmp_path)) == ["part-1.gz", "part-10", "part-2"]


@pytest.mark.parametrize("pattern", ["train@3", "train@*"])
def test_sharded_names(tmp_path: Path, pattern: str) -> None:
    shards = [f"train-{shard:05d}-of-00003" for shard in range(3)]
    make(tmp_path, *shards, "train-00000-of-00003.bak", "training-00000-of-00009")
    assert names(tmp_path, expand_paths(tmp_path / pattern)) == shards


@pytest.mark.parametrize("count", ["2", "*"])
def test_sharded_names_with_an_ending(tmp_path: Path, count: str) -> None:
    shards = [f"d.train-{shard:05d}-of-00002.tfrecord" for shard in range(2)]
    make(tmp_path, *shards, "d.train-00000-of-00007")
    assert names(tmp_path, expand_paths(tmp_path / f"d.train@{count}.tfrecord")) == shards


def test_more_than_five_digits(tmp_path: Path) -> None:
    make(tmp_path, "t-00000-of-100000")
    with pytest.raises(FileNotFoundError, match=r"shard 1 of 100000 is missing: .*t-00001-of-100000"):
        expand_paths(tmp_path / "t@*")


def test_missing_shard_is_named(tmp_path: Path) -> None:
    make(tmp_path, "t-00000-of-00003", "t-00002-of-00003")
    for pattern in ("t@3", "t@*"):
        with pytest.raises(FileNotFoundError, match=r"shard 1 of 3 is missing: .*t-00001-of-00003"):
            expand_paths(tmp_path / pattern)


def test_missing_shard_of_a_star_suggests_a_glob(tmp_path: Path) -> None:
    make(tmp_path, "[t]-00002-of-00003.x", "[t]-00001-of-00003.x")
    with pytest.raises(FileNotFoundError, match="shard 0 of 3 is missing") as caught:
        expand_paths(tmp_path / "[t]@*.x")
    found = re.search(r"for those that are there: (.*)\)", caught.value.strerror or "")
    assert found
    assert names(tmp_path, expand_paths(found[1])) == ["[t]-00001-of-00003.x", "[t]-00002-of-00003.x"]


def test_star_needs_one_set(tmp_path: Path) -> None:
    make(tmp_path, "t-00000-of-00001", "t-00000-of-00002", "t-00001-of-00002")
    with pytest.raises(FileNotFoundError, match=r"shards of several sets, of \[1, 2\]: say which"):
        expand_paths(tmp_path / "t@*")
    with pytest.raises(FileNotFoundError, match="no shards of this name"):
        expand_paths(tmp_path / "u@*")


@pytest.mark.parametrize(
    "name", ["missing", "miss*", "miss[i]ng", "m?ssing", "m@2", "m@0", "m@*", "", "no/such/dir", "a\0b"]
)
def test_nothing_found_names_the_pattern(tmp_path: Path, name: str) -> None:
    pattern = str(tmp_path / "x" / name) if name else name
    with pytest.raises(FileNotFoundError) as info:
        expand_paths(["/dev/null", pattern])
    assert info.value.filename == pattern


def test_directory_without_data_files(tmp_path: Path) -> None:
    make(tmp_path, "_SUCCESS", "sub/a")
    with pytest.raises(FileNotFoundError, match="no data files in this directory") as info:
        expand_paths(tmp_path)
    assert info.value.filename == str(tmp_path)
    with pytest.raises(FileNotFoundError, match="no data file matches"):
        expand_paths(str(tmp_path / "s*"))


@pytest.mark.parametrize("empty", [[], (), iter(())])
def test_empty_list(empty: list[str]) -> None:
    with pytest.raises(ValueError, match="paths is empty"):
        expand_paths(empty)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (3, "paths must be a path, .* not 3"),
        (None, "paths must be a path, .* not None"),
        ([3], r"a path must be str or os\.PathLike\[str\], not int 3"),
        ([None], "a path must be .* not NoneType None"),
        (b"bytes", "a path must be .* not bytes b'bytes': os.fsdecode makes a str of it"),
        ([b"bytes"], "a path must be .* not bytes b'bytes': os.fsdecode makes a str of it"),
    ],
)
def test_other_types(wrong: str, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        expand_paths(wrong)


@pytest.mark.parametrize("name", ["gs://bucket/a", "s3://b/*.tfrecord", "https://host/a@2", "HTTP://h/a", "file:///a"])
def test_urls(name: str) -> None:
    with pytest.raises(FileNotFoundError, match="only local and mounted files can be used, no URLs") as info:
        expand_paths([name])
    assert info.value.filename == name


@pytest.mark.parametrize("name", ["~/no", "~/no/*", "~nobody/no@2", "~/no@*"])
def test_home_is_not_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"~ is not expanded: use os\.path\.expanduser"):
        expand_paths(name)


def test_broken_link_is_taken_and_fails_when_opened(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    paths = expand_paths(tmp_path / "link")
    with pytest.raises(FileNotFoundError):
        open_descriptor(paths[0])


def test_open_refuses_a_directory(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="a directory stands where a TFRecord file is expected") as info:
        open_descriptor(tmp_path)
    assert info.value.filename == str(tmp_path)


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    make(tmp_path, name)
    assert names(tmp_path, expand_paths(tmp_path)) == [name]
    assert names(tmp_path, expand_paths(str(tmp_path / "caf*"))) == [name]
