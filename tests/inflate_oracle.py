"""What zlib alone, fed byte by byte, makes of a compressed file; and which records are whole in that."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import TypeAlias

from torch_tfrecord.native import reference

Part: TypeAlias = tuple[bytes, str | None]  # uncompressed bytes, and what is wrong after them
Place: TypeAlias = tuple[int, int, str, int | None]  # record, offset, reason, bytes lost

_MAGIC = b"\x1f\x8b\x08"


def inflate_slowly(data: bytes, kind: str) -> list[Part]:
    """The stream, in parts: a new one begins behind each wrong checksum, and nothing comes after other damage.

    For files that were written without optional fields in their headers.
    """
    parts: list[Part] = []
    made = bytearray()
    begin = 0
    while begin < len(data):
        head = 10 if kind == "gzip" else 2
        if begin and not (kind == "gzip" and _MAGIC.startswith(data[begin : begin + 3])):
            return [*parts, (bytes(made), "inflate_trailing")]
        decoder = zlib.decompressobj(31 if kind == "gzip" else 15)
        at = begin
        try:
            while at < len(data) and not decoder.eof:
                piece = decoder.decompress(data[at : at + 1], 1)
                at += 1
                while piece:
                    made += piece
                    piece = decoder.decompress(decoder.unconsumed_tail, 1)
        except zlib.error as error:
            if not any(says in str(error) for says in ("data check", "length check")):
                return [*parts, (bytes(made), "inflate_data")]
            parts.append((bytes(made), "inflate_checksum"))
            made.clear()
            begin = _end_of_data(data, begin + head) + (8 if kind == "gzip" else 4)
            continue
        if not decoder.eof:
            has_fields = kind == "gzip" and data[begin + 3 : begin + 4] > b"\x01"  # so the flags are what is damaged
            whole = not has_fields and _end_of_data(data, begin + head) <= len(data)
            return [*parts, (bytes(made), "inflate_trailer_missing" if whole else "inflate_truncated")]
        begin = _end_of_data(data, begin + head) + (8 if kind == "gzip" else 4)
    return [*parts, (bytes(made), None)]


def _end_of_data(data: bytes, begin: int) -> int:
    decoder = zlib.decompressobj(-15)
    decoder.decompress(data[begin:])
    return len(data) - len(decoder.unused_data) if decoder.eof else len(data) + 1


@dataclass
class Expected:
    """What reading gives: the payloads, and what was left out; or, without skipping, what it raises."""

    payloads: list[bytes] = field(default_factory=list)
    faults: list[Place] = field(default_factory=list)


def expect(parts: list[Part], *, skip: bool) -> Expected:
    """The records of a stream, by the rules."""
    result = Expected()
    data, offset, record = b"", 0, 0

    def note(reason: str, lost: int | None) -> bool:
        result.faults.append((record, offset, reason, lost))
        return skip

    for made, damage in parts:
        data += made
        to_the_end = damage in (None, "inflate_trailer_missing")  # else nobody knows what follows
        while True:
            payloads, used, fault = reference.split_frames(data, 2, len(data) if damage is None else -1)
            result.payloads += payloads
            record += len(payloads)
            offset += used
            data = data[used:]
            if fault is None:
                break
            if fault[0] != "data_crc":
                note(fault[0], len(data) if to_the_end else None)
                return result
            frame = reference.frame_size(data[:12])
            if not note(fault[0], frame):
                return result
            record, offset, data = record + 1, offset + frame, data[frame:]
        if damage == "inflate_checksum" and note(damage, 0):
            continue
        if damage not in (None, "inflate_checksum"):
            note(damage, len(data) if to_the_end else None)
        return result
    return result
