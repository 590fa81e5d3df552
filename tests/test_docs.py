"""What the documents and docstrings show is true: every Python block runs, and every example prints what it says."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest
import torch

import index_tools
import torch_tfrecord as tfr

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md")])
MODULES = [
    module.name
    for package in (tfr, index_tools)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if not module.name.endswith("._core")
]
NEEDS_DOCTEST = {  # public names whose docstrings must show an example
    *(name for name in tfr.__all__ if tfr._HOME[name] in {"batch", "collation", "dataset", "encode", "index"}),
    *(name for name in tfr.__all__ if tfr._HOME[name] in {"infer", "parsing", "ragged", "schema", "writer"}),
    *(name for name in tfr.__all__ if tfr._HOME[name] in {"loader", "mixing", "order", "sampler", "stream"}),
    "read_records",
}
OPTIONS = doctest.NORMALIZE_WHITESPACE


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of an example, with the file that examples read after `TFRecordDataset`'s has made it."""
    monkeypatch.chdir(tmp_path)
    with tfr.TFRecordWriter("numbers.tfrecord") as writer:
        writer.write_batch({"n": torch.arange(100)})
    return tmp_path


def code_blocks(document: Path, language: str) -> list[tuple[int, str]]:
    """Line number and text of a document's blocks of code in a language."""
    text = document.read_text()
    return [
        (text.count("\n", 0, match.start(1)) + 1, match[1])
        for match in re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.usefixtures("folder")
def test_docstring_examples(name: str) -> None:
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=OPTIONS)
    assert failed == 0


@pytest.mark.parametrize("name", sorted(NEEDS_DOCTEST - {"Schema"}))
def test_main_names_show_an_example(name: str) -> None:
    examples = doctest.DocTestParser().get_examples(getattr(tfr, name).__doc__)
    assert any(example.want for example in examples)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.relative_to(ROOT).as_posix())
@pytest.mark.usefixtures("folder")
def test_blocks_of_a_document_run(document: Path) -> None:
    """One after another in one namespace, as a reader would type them; those with prompts are also checked."""
    scope = {"__name__": "document"}
    for line, block in code_blocks(document, "python"):
        if block.startswith(">>>"):
            test = doctest.DocTestParser().get_doctest(block, scope, document.name, str(document), line)
            runner = doctest.DocTestRunner(optionflags=OPTIONS | doctest.ELLIPSIS)
            assert runner.run(test, clear_globs=False).failed == 0
            scope = test.globs
        else:
            exec(compile("\n" * line + block, str(document), "exec"), scope)


def test_the_documents_show_code() -> None:
    assert len(code_blocks(ROOT / "README.md", "python")) >= 5


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.relative_to(ROOT).as_posix())
def test_links_between_documents_hold(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text()):
        if not target.startswith(("http://", "https://")):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_the_map_names_every_module() -> None:
    """Of headers, those without a ``.cc`` beside them."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for folder, pattern in [
        ("torch_tfrecord", "*.py"),
        ("torch_tfrecord/native", "*.cc"),
        ("torch_tfrecord/native", "*.py"),
        ("torch_tfrecord/native", "*.h"),
        ("index_tools", "*.py"),
        ("benchmarks", "*.py"),
    ]:
        for file in ROOT.joinpath(folder).glob(pattern):
            if not file.with_suffix(".cc").exists() or file.suffix == ".cc":
                assert f"`{file.name}`" in text or f"`native/{file.name}`" in text, f"{folder}/{file.name}"


def test_the_map_names_nothing_that_is_not_there() -> None:
    names = set(re.findall(r"`([a-z0-9_]+\.(?:py|cc|h|md))`", (ROOT / "ARCHITECTURE.md").read_text())) - {"test_X.py"}
    tracked = ("torch_tfrecord", "index_tools", "benchmarks", "benchmarks/systems", "tests", "docs", "examples", ".")
    present = {
        file.name
        for folder in tracked
        for file in [*(ROOT / folder).glob("*.*"), *(ROOT / folder / "native").glob("*.*")]
    }
    assert names <= present, names - present
