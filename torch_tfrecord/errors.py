"""The errors of this package, one small tree.

    TFRecordError (Exception)
    ├── DataLossError (also OSError)      the bytes of a file are damaged, cut short, or not a TFRecord file
    │   └── NotATFRecordError             the file is something else, and the message says what it looks like
    ├── ParseError (also ValueError)      a record is whole, but does not fit: bad protobuf, dtype, count, absence
    ├── StaleIndexError (also ValueError) an index does not describe the data beside it, or is no index
    ├── StateError (also ValueError)      a saved state is of other data, another order or another version
    ├── OutOfRangeError (also EOFError)   a closed queue has no more elements
    └── CancelledError                    an operation was cancelled before it was done

Each class can be made from one string, since torch's ``DataLoader`` re-raises the errors of its workers so. Each also
derives from the built-in error that callers already catch. A missing file stays Python's own ``FileNotFoundError``.
"""

from __future__ import annotations


class TFRecordError(Exception):
    """Base class of every error that this package defines."""


class DataLossError(TFRecordError, OSError):
    """The bytes of a file are damaged or cut short. The message gives file, record number and byte offset."""


class NotATFRecordError(DataLossError):
    """The file is not a TFRecord file. The message says what it looks like."""


class ParseError(TFRecordError, ValueError):
    """A whole record does not fit what was asked. The message gives file, record, feature, expected and found."""


class StaleIndexError(TFRecordError, ValueError):
    """An index file is damaged, of another version, or does not describe the data files as they are now."""


class StateError(TFRecordError, ValueError):
    """A saved state does not fit the reader that is to go on from it. The message says in what they differ."""


class OutOfRangeError(TFRecordError, EOFError):
    """A queue is closed and has too few elements left."""


class CancelledError(TFRecordError):
    """An operation was cancelled before it was done."""
