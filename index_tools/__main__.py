"""The command line. Each command is imported when it runs, so that help and usage errors come at once."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from torch_tfrecord import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_OK, EXIT_DAMAGED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130
_PATHS_HELP = "a file, a directory, a glob pattern, or name@N for name-00000-of-0000N and its brothers"
_EPILOG = (
    "A path that exists is taken literally. Of a directory, and of what a pattern matches, all files are taken, "
    "whatever their ending, except those whose names start with a dot or an underscore or end with .tfrindex, "
    ".tfindex, .idx or .crc; directories inside are not entered, except by **. "
    "Exit status: 0 all is well, 1 the data are damaged or do not fit the index, or a plan's check fails, "
    "2 wrong usage or a missing file."
)


def make_parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    parser = argparse.ArgumentParser(
        prog="tfrecord-index",
        description="Build and show indexes of TFRecord files, and plan who reads what of them.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    build = commands.add_parser("build", help="scan files and write an index of them", epilog=_EPILOG)
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
        default="length",
        help="check the checksums of lengths, or all of them, which reads all data (default: length)",
    )
    build.add_argument("--quiet", action="store_true", help="show no progress and no result")
    show = commands.add_parser("show", help="say what is in files, or in an index of them", epilog=_EPILOG)
    show.add_argument("paths", nargs="+", metavar="PATH", help=f"an index file; or {_PATHS_HELP}")
    show.add_argument(
        "--records",
        type=_count,
        default=1,
        metavar="N",
        help="describe the features of the first N records (default: 1)",
    )
    plan = commands.add_parser(
        "plan", help="say which rank and worker reads what, and check that each record is read once", epilog=_EPILOG
    )
    _describe_plan(plan)
    for command in (build, show, plan):
        command.add_argument(
            "--on-error",
            choices=("raise", "skip"),
            default="raise",
            help="stop at damage, or leave it out and report it (default: raise)",
        )
        command.add_argument("--json", action="store_true", help="write the result as JSON")
    return parser


def _describe_plan(plan: argparse.ArgumentParser) -> None:
    plan.add_argument("paths", nargs="*", metavar="PATH", help=f"an index file; or {_PATHS_HELP}")
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    options = make_parser().parse_args(arguments)
    try:
        status = _run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the output has gone, as in `| head`. Python would complain once more when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_DAMAGED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return status


def _run(options: argparse.Namespace) -> int:
    from torch_tfrecord.errors import TFRecordError  # noqa: PLC0415

    try:
        if options.command == "build":
            from index_tools.build import build  # noqa: PLC0415

            build(options)
        elif options.command == "plan":
            from index_tools.plan import plan  # noqa: PLC0415

            return EXIT_OK if plan(options) else EXIT_DAMAGED
        else:
            from index_tools.show import show  # noqa: PLC0415

            show(options)
    except BrokenPipeError:
        raise
    except TFRecordError as error:
        from index_tools.text import with_flags  # noqa: PLC0415

        return _complain(with_flags(str(error)), EXIT_DAMAGED)
    except OSError as error:
        named = error.filename is not None and error.strerror is not None
        return _complain(f"{error.filename}: {error.strerror}" if named else error, EXIT_USAGE)
    except ValueError as error:
        return _complain(error, EXIT_USAGE)
    return EXIT_OK


def _complain(problem: object, status: int) -> int:
    sys.stderr.write(f"tfrecord-index: error: {problem}\n")
    return status


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"must be a number, 0 or more: {text}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
