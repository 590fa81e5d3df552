"""The command line. Each command is imported when it runs, so that help and usage errors come at once."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING

from index_tools import EXIT_DAMAGED, EXIT_INTERRUPTED, EXIT_USAGE
from index_tools.arguments import make_parser

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    options = make_parser().parse_args(arguments)
    # What a terminal cannot show, such as a name that is not UTF-8, is escaped.
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
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
        # A module for each command, with a function of its name that returns the exit status.
        status: int = getattr(importlib.import_module(f"index_tools.{options.command}"), options.command)(options)
    except BrokenPipeError:
        raise
    except TFRecordError as error:
        from index_tools.text import with_flags  # noqa: PLC0415

        return _complain(with_flags(str(error), can_skip=hasattr(options, "on_error")), EXIT_DAMAGED)
    except OSError as error:
        named = error.filename is not None and error.strerror is not None
        return _complain(f"{error.filename}: {error.strerror}" if named else error, EXIT_USAGE)
    except ValueError as error:
        return _complain(error, EXIT_USAGE)
    except MemoryError:
        return _complain("not enough memory", EXIT_USAGE)
    return status


def _complain(problem: object, status: int) -> int:
    from index_tools.text import printable  # noqa: PLC0415

    sys.stderr.write(f"tfrecord-index: error: {printable(str(problem))}\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
