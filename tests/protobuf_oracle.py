"""Protobuf as a judge of what a record means: logical features, as ``strategies`` has them, out of its messages."""

from __future__ import annotations

from typing import Any, TypeAlias

from google.protobuf import descriptor_pb2, message_factory, text_format
from google.protobuf.message import DecodeError
from wire import delimited, varint

from torch_tfrecord.messages import Example

Feature: TypeAlias = tuple[int, tuple[Any, ...]]
Features: TypeAlias = dict[bytes, Feature]

BYTES, FLOAT32, INT64 = KINDS = (1, 2, 3)


def set_feature(message: Any, feature: Feature) -> None:
    """Make a protobuf Feature hold a logical one."""
    kind, values = feature
    message.Clear()
    if kind:
        values_field = (message.bytes_list, message.float_list, message.int64_list)[kind - 1]
        values_field.SetInParent()
        values_field.MergeFromString(_plain_list(kind, values))


def _plain_list(kind: int, values: tuple[Any, ...]) -> bytes:
    if kind == BYTES:
        return b"".join(delimited(1, value) for value in values)
    return delimited(1, *(values if kind == FLOAT32 else map(varint, values)))


def get_feature(message: Any) -> Feature:
    """The logical feature that a protobuf Feature holds."""
    kind = (None, "bytes_list", "float_list", "int64_list").index(message.WhichOneof("kind"))
    if kind == FLOAT32:  # by way of the wire, where the bits of a NaN are safe
        plain = type(message.float_list).FromString(message.float_list.SerializeToString())
        plain.DiscardUnknownFields()
        packed = plain.SerializeToString()
        raw = packed[len(packed) - 4 * len(message.float_list.value) :]
        return kind, tuple(raw[i : i + 4] for i in range(0, len(raw), 4))
    return kind, tuple(getattr(message, message.WhichOneof("kind")).value) if kind else ()


# An Example whose names are bytes and whose map is a plain list of entries, to which no rules of its own apply: protobuf
# then refuses no name, and keeps an entry that has unknown fields, as we do.
_LAX = """
name: "lax.proto" package: "lax" syntax: "proto3" dependency: "torch_tfrecord/example.proto"
message_type { name: "Entry"
    field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_BYTES }
    field { name: "value" number: 2 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".tensorflow.Feature" } }
message_type { name: "Features"
    field { name: "feature" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".lax.Entry" } }
message_type { name: "Example"
    field { name: "features" number: 1 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".lax.Features" } }
"""


def _lax_example() -> Any:
    pool: Any = Example.DESCRIPTOR.file.pool
    pool.AddSerializedFile(text_format.Parse(_LAX, descriptor_pb2.FileDescriptorProto()).SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("lax.Example"))


_LaxExample = _lax_example()


def read_by_protobuf(payload: bytes, *, lax: bool = False) -> Features | None:
    """The features of an Example as protobuf reads it; None where it refuses. ``lax`` differs as our rules do."""
    message: Any
    try:
        message = (_LaxExample if lax else Example).FromString(payload)
    except DecodeError:
        return None
    if lax:
        return {entry.key: get_feature(entry.value) for entry in message.features.feature}
    return {key.encode(): get_feature(feature) for key, feature in message.features.feature.items()}
