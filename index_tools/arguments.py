"""The arguments of the commands, and their help."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from torch_tfrecord import __version__

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 - it has no public name

_PATHS_HELP = "a file, a directory, a glob pattern, or name@N for the N shards name-00000-of-0000N and on"
_INDEX_OR_PATHS_HELP = f"an index file; or {_PATHS_HELP}"
_EPILOG = (
    "A path that exists is taken literally. Of a directory, and of what a pattern matches, all files are taken, "
    "whatever their ending, except those whose names start with a dot or an underscore or end with .tfrindex, "
    ".tfindex, .idx or .crc; directories inside are not entered, except by **. Files that are compressed with gzip or "
    "zlib are told by their content; offsets count in what they are uncompressed. "
    "Exit status: 0 all is well, 1 the data are damaged or do not fit the index, or a plan's check fails, "
    "2 wrong usage or a file that is missing or cannot be read."
)


def make_parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    parser = argparse.ArgumentParser(
        prog="tfrecord-index",
        description="Index, look at, check and repair TFRecord files, and plan who reads what of them.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for describe in (_build, _show, _verify, _repair, _convert, _schema, _plan):
        describe(commands)
    return parser


def _add(commands: Commands, name: str, summary: str, description: str) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=summary, description=description, epilog=_EPILOG)
    command.add_argument("--json", action="store_true", help="write the result as JSON")
    return command


def _add_on_error(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--on-error",
        choices=("raise", "skip"),
        default="raise",
        help="stop at damage, or leave it out and report it (default: raise)",
    )


def _build(commands: Commands) -> None:
    build = _add(
        commands,
        "build",
        "scan files and write an index of them",
        "Scan files and write an index of them, which data sets use instead of scanning the files themselves.",
    )
    build.add_argument("paths", nargs="+", metavar="PATH", help=_PATHS_HELP)
    build.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="index file to write; by default the hidden one where data sets look for it",
    )
    build.add_argument(
        "--verify",
        choices=("length", "all"),
        help="check the checksums of lengths, or all of them, which reads all data (default: length; all with "
        "--on-error skip, as a data set with on_error='skip' does)",
    )
    build.add_argument("--quiet", action="store_true", help="show no progress and no result")
    _add_on_error(build)


def _show(commands: Commands) -> None:
    show = _add(
        commands,
        "show",
        "say what is in files, or in an index of them",
        "Say how many records files or an index of them have, their sizes and compression, and what features the first "
        "records hold.",
    )
    show.add_argument("paths", nargs="+", metavar="PATH", help=_INDEX_OR_PATHS_HELP)
    show.add_argument(
        "--records",
        type=_count,
        default=1,
        metavar="N",
        help="describe the features of the first N records (default: 1)",
    )
    _add_on_error(show)


def _verify(commands: Commands) -> None:
    verify = _add(
        commands,
        "verify",
        "read files whole and report all damage",
        "Read files whole, several at a time, compare every checksum, and report every fault. Where the rest of a file "
        "cannot be read in order, say how many records of it `repair` would save. For an index also check that records "
        "lie where it says.",
    )
    verify.add_argument("paths", nargs="+", metavar="PATH", help=_INDEX_OR_PATHS_HELP)
    verify.add_argument("--threads", type=_positive, metavar="N", help="files to read at a time (default: up to 32)")
    verify.add_argument("--quiet", action="store_true", help="show no progress and no result: the exit status tells")


def _repair(commands: Commands) -> None:
    repair = _add(
        commands,
        "repair",
        "copy all whole records of a damaged file to a new one",
        "Copy all whole records of a file to a new one. Behind damage the next record is looked for at every byte. "
        "Exit status 1 says that something was lost. The new file is written all the same, unless no whole record was "
        "found.",
    )
    repair.add_argument("input", metavar="INPUT", help="the damaged file; it is not changed")
    repair.add_argument("-o", "--output", metavar="FILE", required=True, help="the file to write, another than INPUT")
    repair.add_argument("--force", action="store_true", help="replace the file to write where there is one")
    repair.add_argument(
        "--compression",
        choices=("none", "gzip", "zlib"),
        help="of the file to write (default: that of INPUT)",
    )
    repair.add_argument("--quiet", action="store_true", help="show no result: the exit status tells")


def _convert(commands: Commands) -> None:
    convert = _add(
        commands,
        "convert",
        "turn indexes into the text indexes of other tools, or those into an index",
        "Turn an index, or data files themselves, into the text indexes that DALI and the tfrecord package read; or "
        "turn their text indexes, or tfr-reader's binary ones, into an index. What an index leaves out stays left out.",
    )
    convert.add_argument(
        "paths",
        nargs="+",
        metavar="INDEX",
        help=f"text indexes, one for each data file, or a directory of them; or {_INDEX_OR_PATHS_HELP}",
    )
    convert.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        required=True,
        help="file to write; or, for the text indexes of several data files, the directory to write them in",
    )
    convert.add_argument(
        "--data",
        nargs="+",
        action="extend",
        metavar="PATH",
        help="the data files of text indexes, in the same order; by default those beside them: "
        "a.idx is of a, a.tfrecord or a.tfrecords, and a.tfindex likewise",
    )
    convert.add_argument(
        "--names",
        choices=("dali", "tfrecord"),
        default="dali",
        help="how text indexes in a directory are called: a.tfrecord.idx, or a.tfindex, as the tfrecord package wants "
        "(default: dali)",
    )
    convert.add_argument("--quiet", action="store_true", help="show no progress and no result")


def _schema(commands: Commands) -> None:
    schema = _add(
        commands,
        "schema",
        "find the specs that read files",
        "Look at records and write the feature specs that read them, as Python code or as JSON. This needs torch.",
    )
    schema.add_argument("paths", nargs="+", metavar="PATH", help=_INDEX_OR_PATHS_HELP)
    schema.add_argument(
        "--max-records",
        type=_count,
        default=10_000,
        metavar="N",
        help="how many records to look at, the first ones of every file; 0: all (default: 10000)",
    )


def _plan(commands: Commands) -> None:
    plan = _add(
        commands,
        "plan",
        "say which rank and worker reads what, and check that each record is read once",
        "Say which rank and worker reads what, and check that each record is read exactly once.",
    )
    plan.add_argument("paths", nargs="*", metavar="PATH", help=_INDEX_OR_PATHS_HELP)
    plan.add_argument(
        "--records", type=_count, metavar="N", help="plan for N records, wherever they may be, instead of paths"
    )
    plan.add_argument("--batch-size", type=_count, required=True, metavar="B", help="rows of a batch, of one rank")
    plan.add_argument("--world-size", type=_count, default=1, metavar="W", help="number of ranks (default: 1)")
    plan.add_argument(
        "--workers", type=_count, default=0, metavar="N", help="workers of each rank (default: 0, the process itself)"
    )
    plan.add_argument(
        "--shuffle",
        default="none",
        metavar="ORDER",
        help="none, full, block[:BLOCK_SIZE,WINDOW] or queue:CAPACITY[,MIN_AFTER_DEQUEUE] (default: none)",
    )
    plan.add_argument("--seed", type=int, default=0, help="of the order (default: 0)")
    plan.add_argument("--epoch", type=_count, default=0, help="which epoch, from 0 (default: 0)")
    plan.add_argument("--drop-last", action="store_true", help="leave out what makes no full batch on each rank")
    _add_on_error(plan)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise argparse.ArgumentTypeError(f"must be a number, 0 or more: {text}")
    return int(text)


def _positive(text: str) -> int:
    number = _count(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number
