"""The protobuf wire format, as far as reading needs it.

A message is a run of fields. A field is a *tag*, which is a varint that holds ``field number * 8 + wire type``, and a
value whose extent the wire type tells:

    ====  =====================================================================================================
    0     a varint: groups of 7 bits, low ones first; the top bit of a byte says that another byte follows
    1     eight bytes, little-endian
    2     a varint with a length, then that many bytes: strings, messages, packed lists
    3, 4  start and end of a *group*: fields in between, an old way to nest
    5     four bytes, little-endian
    ====  =====================================================================================================

So a reader can step over fields that it does not know. Nothing here knows what a field means. Every length is checked
against the message around it before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

VARINT, EIGHT_BYTES, LENGTH_DELIMITED, START_GROUP, END_GROUP, FOUR_BYTES = range(6)

MAX_VARINT_BYTES = 10  # 64 bits in groups of 7
MAX_TAG_BYTES = 5  # 32 bits in groups of 7
MAX_GROUP_DEPTH = 100
INT64_MAX = 2**63 - 1


def to_bytes(data: Buffer) -> bytes:
    """A copy as bytes. Unlike ``bytes`` itself it raises TypeError for an int or a list."""
    return memoryview(data).tobytes()


class WireError(Exception):
    """Damage in a payload: a code of ``_core.pyi`` and the numbers that go with it."""

    def __init__(self, code: str, position: int, expected: int = 0, found: int = 0) -> None:
        super().__init__(code, position, expected, found)
        self.code = code
        self.position = position
        self.expected = expected
        self.found = found


class Field(NamedTuple):
    """One field of a message. Its value lies in ``data[begin:end]``: for wire type 2 without the length."""

    number: int
    wire_type: int
    begin: int
    end: int


def fields(data: bytes, begin: int, end: int) -> Iterator[Field]:
    """Walk the fields of the message in ``data[begin:end]``, checking each one when it is reached.

    Raises:
        WireError: The next field is damaged. Fields before it have been yielded.
    """
    at = begin
    while at < end:
        number, wire_type, value = read_tag(data, at, end)
        if wire_type == START_GROUP:
            field = Field(number, wire_type, value, skip_group(data, value, end, number))
        elif wire_type == END_GROUP:
            raise WireError("bad_tag", at)
        else:
            field = Field(number, wire_type, *value_extent(data, value, end, wire_type))
        yield field
        at = field.end


def read_varint(data: bytes, begin: int, end: int) -> tuple[int, int]:
    """Read a varint; returns its value, 0 to 2**64 - 1, and where it ends. Bits beyond 64 are dropped."""
    value = 0
    for i, byte in enumerate(data[begin : min(end, begin + MAX_VARINT_BYTES)]):
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value % 2**64, begin + i + 1
    raise WireError("bad_varint", begin)


def read_tag(data: bytes, begin: int, end: int) -> tuple[int, int, int]:
    """Read a tag; returns field number, wire type, and where it ends."""
    tag, tag_end = read_varint(data, begin, end)
    number, wire_type = divmod(tag, 8)
    if tag >= 2**32 or tag_end - begin > MAX_TAG_BYTES or number == 0 or wire_type > FOUR_BYTES:
        raise WireError("bad_tag", begin)
    return number, wire_type, tag_end


def value_extent(data: bytes, begin: int, end: int, wire_type: int) -> tuple[int, int]:
    """Where the value after a tag lies, for all but groups."""
    if wire_type == VARINT:
        _, value_end = read_varint(data, begin, end)
        return begin, value_end
    if wire_type == LENGTH_DELIMITED:
        size, value = read_varint(data, begin, end)
    else:
        size, value = (8 if wire_type == EIGHT_BYTES else 4), begin
    if size > end - value:
        raise WireError("bad_length", begin, expected=min(size, INT64_MAX), found=end - value)
    return value, value + size


def skip_group(data: bytes, begin: int, end: int, number: int) -> int:
    """Step over a group whose start tag has been read; returns where its end tag ends. Its fields are checked too."""
    open_groups = [number]  # a list and no recursion: the depth is the input's choice
    at = begin
    while open_groups:
        if at == end:
            raise WireError("bad_group", end)
        number, wire_type, value = read_tag(data, at, end)
        if wire_type == START_GROUP:
            if len(open_groups) == MAX_GROUP_DEPTH:
                raise WireError("bad_group", at)
            open_groups.append(number)
            at = value
        elif wire_type == END_GROUP:
            if number != open_groups.pop():
                raise WireError("bad_tag", at)
            at = value
        else:
            _, at = value_extent(data, value, end, wire_type)
    return at
