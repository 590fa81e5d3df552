"""The native core, and the contract that ``reference.py`` fulfils in plain Python.

It knows no torch, no file names and no Python objects inside its hot path. Two kinds of plain tuples cross the border:

``Fault``: what is wrong with the first bad row or frame: ``(code, row, column, position, expected, found)``.

    ==================  =========================================================================================
    frame codes         position is the byte offset of the frame in the file; column is -1
    ==================  =========================================================================================
    truncated_header    1 to 11 bytes where a 12-byte header should be; expected 12, found that many
    length_crc          stored checksum of the length (expected) differs from the computed one (found)
    length_mismatch     the index says one payload length (expected), a header with a good checksum another (found)
    truncated_payload   bytes wanted after the header, payload + 4 (expected), and bytes there (found)
    data_crc            stored checksum of the payload (expected) differs from the computed one (found)
    io                  read failed; found is errno
    ==================  =========================================================================================

    ==================  =========================================================================================
    payload codes       position is the byte offset in the payload of the damaged element (0 where it has none)
    ==================  =========================================================================================
    bad_tag             field number 0, wire type 6 or 7, a tag over 32 bits or 5 bytes, an unmatched group end
    bad_varint          longer than 10 bytes, or cut short by the end of its message
    bad_length          a length, or a 4- or 8-byte value, that runs past the end of its message
    bad_packed          packed floats whose byte length is not a multiple of 4; expected 4, found the length
    bad_group           an unknown group nested more than 100 deep, or without an end
    missing             a required feature is absent or has no kind set
    kind                the feature's kind differs; expected and found are kinds
    count               the number of values differs; expected and found are counts
    nbytes              the size of a raw bytes value differs; expected and found are byte counts
    ==================  =========================================================================================

``row`` counts from 0 in the call's batch, or, in ``split_frames``, ``scan_frames`` and ``scan``, frames from the start
of that call.

``Column``: what to read of a record: ``(key, kind, layout, count, nbytes, default)``.

    * ``key``: the feature's name, bytes.
    * ``kind``: 1 bytes, 2 float32, 3 int64; 0 takes the whole payload as one bytes value, whatever it holds.
    * ``layout``: ``FIXED`` (0): exactly ``count`` values a record; ``RAGGED`` (1): any number.
    * ``count``: values a record for FIXED, else 0.
    * ``nbytes``: for kind 1 and FIXED: the exact size of each value, which is then written densely; -1: any size.
    * ``default``: None, or for FIXED the values of a record where the feature is missing. Numbers and sized bytes: the
      raw little-endian bytes of all values. Bytes of any size: a tuple of ``count`` bytes.

What a column becomes in the arena, at byte offsets that the caller chooses (a *placement*: three int64 a column,
``(values_at, value_offsets_at, row_offsets_at)``, -1 where the column has no such part or is not wanted). All parts
must lie at multiples of 8:

    ==============================  ======================  ===========================  =========================
    column                          values                  value_offsets (int64)        row_offsets (int64)
    ==============================  ======================  ===========================  =========================
    FIXED numbers                   rows x count items      -                            -
    FIXED bytes with nbytes         rows x count x nbytes   -                            -
    FIXED bytes                     all bytes, end to end   rows x count + 1             -
    RAGGED numbers                  all items, end to end   -                            rows + 1, in values
    RAGGED bytes                    all bytes, end to end   number of values + 1         rows + 1, in values
    kind 0                          all bytes, end to end   rows + 1                     -
    ==============================  ======================  ===========================  =========================

Parsing follows protobuf's rules: fields in any order, packed and unpacked lists joined, the last kind of a feature
wins, the last entry of a name wins, unknown fields skipped; except that an entry with unknown fields is kept, and that
names are bytes. Features that no column asks for are stepped over without a look inside.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

Fault: TypeAlias = tuple[str, int, int, int, int, int]
Column: TypeAlias = tuple[bytes, int, int, int, int, bytes | tuple[bytes, ...] | None]
Int64s: TypeAlias = NDArray[np.int64]

FIXED: int
RAGGED: int

def crc32c(data: Buffer, crc: int = 0) -> int:
    """CRC-32C (Castagnoli) of ``data``, 0 to 2**32 - 1; or of bytes whose own is ``crc``, and ``data``."""

def masked_crc32c(data: Buffer, crc: int = 0) -> int:
    """CRC-32C rotated right by 15 bits plus 0xA282EAD8, as TFRecord frames store it. ``crc`` as for ``crc32c``."""

def crc32c_implementations() -> list[str]:
    """Names of the implementations that run on this CPU, fastest first: of ``sse42``, ``arm64``, ``portable``."""

def crc32c_implementation() -> str:
    """Name of the implementation in use."""

def set_crc32c_implementation(name: str) -> None:
    """Choose an implementation, for tests. Raises ValueError for a name that cannot run here."""

def split_frames(data: Buffer, verify: int, limit: int) -> tuple[list[bytes], int, Fault | None]:
    """Take whole frames from the start of a buffer.

    Args:
        data: Bytes that begin at a frame.
        verify: 0 checks nothing but bounds, 1 the length's checksum, 2 both.
        limit: Bytes from the start of ``data`` to the end of the file: at least ``len(data)``; -1 when not known. A
            frame that would run past it is a ``truncated_payload`` fault at once (so no caller buffers a frame that
            cannot come), and a header that would is ``truncated_header``; both only where ``limit`` is known.

    Returns:
        payloads, the number of bytes that they and their frames take, and the fault that stopped it, whose position
        counts from the start of ``data``, or None: then the remaining bytes are the start of a frame, or none.
    """

def scan_frames(data: Buffer, verify: int, limit: int) -> tuple[Int64s, Int64s, int, Fault | None]:
    """Find whole frames at the start of a buffer, as ``split_frames`` does, but leave their payloads where they are.

    Returns:
        Offsets of frames in ``data`` and lengths of payloads, both int64 of one size; and as ``split_frames``.
    """

def frame_size(header: Buffer) -> int:
    """Whole size of the frame (payload + 16) that these 12 header bytes announce, capped to 2**63 - 1; unchecked."""

def frame(payload: Buffer) -> bytes:
    """The frame of one payload: length, masked CRC, payload, masked CRC."""

@final
class File:
    """An open file descriptor that is read with ``pread``. Closed when the last user lets go of it."""

    def __init__(self, fd: int) -> None:
        """Own a descriptor that is open for reading; the caller no longer closes it."""

    def size(self) -> int:
        """Size in bytes now. Raises OSError."""

    def read(self, offset: int, size: int) -> bytes:
        """Bytes at an offset: fewer than ``size`` only at the end of the file. Raises OSError."""

    def scan(self, offset: int, max_bytes: int, verify: int) -> tuple[Int64s, Int64s, int, Fault | None]:
        """Walk frames from ``offset`` until about ``max_bytes`` are passed, the file ends, or a fault.

        Args:
            offset: Byte offset of a frame.
            max_bytes: Where to pause, so that callers can show progress and be interrupted.
            verify: 1 checks the lengths' checksums and skips payloads; 2 both.

        Returns:
            Offsets of frames and lengths of payloads, both int64 of one size; the offset to go on from; and the fault
            that stopped it, or None. At the end of the file the offset equals its size.
        """

@final
class Decoder:
    """A compiled list of columns. Immutable; may be used by several threads at once."""

    def __init__(self, columns: Sequence[Column]) -> None:
        """Compile. Raises ValueError for columns that contradict the rules above. A key may occur several times."""

    def read(
        self,
        files: Sequence[File],
        file_of: Int64s | None,
        offsets: Int64s,
        lengths: Int64s,
        verify: int,
    ) -> Job:
        """Prepare to decode rows from files.

        Args:
            files: Files that rows lie in.
            file_of: int64[rows]: each row's place in ``files``; None where there is one file.
            offsets: int64[rows]: byte offset of each row's frame.
            lengths: int64[rows]: bytes of each row's payload.
            verify: 0, 1 or 2 as in ``split_frames``.
        """

    def parse(self, payloads: Iterable[Buffer]) -> Job:
        """Prepare to decode payloads that are in memory. Their bytes are copied when they are read."""

@final
class Job:
    """One batch on its way into an arena: ``measure`` where the decoder's ``sized`` is False, then ``fill``.

    Each is there twice: ``measure`` and ``fill`` return when they are done, while ``start_measure`` and ``start_fill``
    return at once and leave the work to native threads, who take up what was started first before the next. Then
    ``wait`` comes before anything else is asked of the job or started. Any number of jobs may be at work at once.

    A job that nobody refers to any more is cancelled, so what it writes to may go with it: until nothing writes there,
    the job keeps the arena alive. In a child of a fork, a job that was at work counts as done, ``wait`` raises
    RuntimeError, and its memory is never freed.
    """

    rows: int
    sized: bool  # True: no column's size depends on the data, so measure may be left out
    finished_at: float  # seconds of time.monotonic() when what was started last had ended; 0.0 before

    def measure(self, num_threads: int) -> Fault | None:
        """Read and check all rows and find the size of each column. GIL released. At most once a job, before fill.

        Args:
            num_threads: Threads to use at most, the caller's among them.
        """

    def start_measure(self, num_threads: int) -> None:
        """Begin to measure, and return.

        Args:
            num_threads: Native threads to use at most.
        """

    def done(self) -> bool:
        """Whether nothing is at work. Where the system gives no threads, that comes by ``wait`` alone."""

    def wait(self) -> Fault | None:
        """Wait for what was started last: the fault is that of ``measure`` or ``fill``, also when asked again.

        GIL released. The caller does what nobody has begun, so it never waits for other jobs. An exception of a signal
        handler, KeyboardInterrupt say, leaves the job at work.

        Raises:
            ValueError: Nothing was started, or another thread cancelled the job.
            RuntimeError: It was started in the process that this one was forked from.
            MemoryError: There was too little for the work.
        """

    def cancel(self) -> None:
        """Drop the tasks that nobody has begun, and wait for the others. All further use of the job is ValueError."""

    def num_values(self, column: int) -> int:
        """Values in a column over all rows. After measure, or for FIXED columns."""

    def num_bytes(self, column: int) -> int:
        """Bytes of a column's values part. After measure, or where sized."""

    def values(self, column: int) -> list[bytes]:
        """Copies of a bytes column's values, row by row. After measure."""

    def fill(self, arena: Buffer, placements: Int64s, num_threads: int) -> Fault | None:
        """Write all columns into a writable buffer. GIL released. At most once a job.

        Args:
            arena: Writable and contiguous; every part must lie inside it, else ValueError.
            placements: int64[columns * 3], see above.
            num_threads: Threads to use at most, the caller's among them.
        """

    def start_fill(self, arena: Buffer, placements: Int64s, num_threads: int) -> None:
        """Begin to fill, and return. Arguments as for ``fill``, but ``num_threads`` counts native threads."""

    def num_defaulted(self) -> int:
        """How many values of (row, column) were taken from a default. After fill, or measure where not sized."""

    def num_duplicates(self) -> int:
        """How many entries of a wanted name were replaced by a later entry of that name. As num_defaulted."""

class Block:
    """A piece of memory, 64-byte aligned, with the buffer protocol. Goes back to a bounded free list when it dies."""

    def __init__(self, nbytes: int) -> None: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

def encode_batch(columns: Sequence[EncodeColumn], rows: int, framed: bool) -> tuple[bytes, Int64s]:
    """Encode rows as Examples, keys sorted by bytes, lists packed.

    Args:
        columns: A tuple a feature: ``(key, kind, values, count, row_offsets, value_offsets)``. ``values``: contiguous
            float32, int64, or for kind 1 uint8 (all bytes end to end). ``row_offsets``: int64[rows + 1] in values, or
            None where each row has ``count`` values. ``value_offsets``: int64[values + 1] in bytes for kind 1, else
            None.
        rows: Number of Examples.
        framed: Whether to wrap each in a TFRecord frame.

    Returns:
        All rows end to end, and int64[rows + 1] offsets of each.

    Raises:
        ValueError: Sizes contradict one another, or a key comes twice.
    """

EncodeColumn: TypeAlias = tuple[bytes, int, Any, int, Int64s | None, Int64s | None]

def describe(payload: Buffer) -> list[tuple[bytes, int, int]] | Fault:
    """Look at an Example whose schema is not known, and check everything inside.

    Returns:
        Names in the order of their first occurrence on the wire, each with kind (0 where none is set) and number of
        values, after merging; or the first fault.
    """

def decode_packed(data: Buffer, plain: bool = False) -> Int64s:
    """Values of a packed run of varints, int64[n]. For tests: ``plain`` leaves out what this CPU does faster.

    Raises:
        ValueError: A varint is longer than 10 bytes, or the last one is cut short.
    """

def permutation(size: int, key: int) -> Int64s:
    """Fisher and Yates: a random permutation of 0 .. size-1, by splitmix64 from ``key`` (0 to 2**64 - 1).

    Raises:
        ValueError: ``size`` is not 0 to 2**62.
        MemoryError: There is not enough.
    """

@final
class Bijection:
    """A permutation of 0 .. size-1 that is computed point by point: a Feistel network with cycle walking.

    Immutable; may be used by several threads at once.
    """

    def __init__(self, size: int, keys: Sequence[int]) -> None:
        """Make one.

        Args:
            size: 0 to 2**62.
            keys: A key of 64 bits for each round, 8 or more.

        Raises:
            ValueError: ``size`` is out of range, or there are too few keys.
        """

    def ids(self, positions: Int64s) -> Int64s:
        """The number at each position. IndexError for a position outside [0, size)."""

    def positions(self, ids: Int64s) -> Int64s:
        """The position of each number: the inverse of ``ids``."""

@final
class ShuffleQueue:
    """TF1's shuffle queue on numbers: 0 .. size-1 enter in sequence, and leave in random order.

    Before each draw the buffer holds ``capacity`` numbers, or all that remain. A draw takes the one at a random place,
    which the next number then gets, or, when all have entered, the one at the buffer's end. For one thread at a time.
    """

    def __init__(self, size: int, capacity: int, key: int) -> None:
        """Fill the buffer, 8 bytes a number.

        Args:
            size: 0 to 2**62.
            capacity: At least 1; memory is bounded by ``size`` as well.
            key: 0 to 2**64 - 1, from which splitmix64 draws.

        Raises:
            ValueError: A number is out of range.
            MemoryError: There is not enough.
        """

    @property
    def position(self) -> int:
        """Numbers drawn so far."""

    def take(self, count: int) -> Int64s:
        """The next draws. ValueError if fewer than ``count`` are left."""

    def skip(self, count: int) -> None:
        """As ``take``, without the numbers."""
