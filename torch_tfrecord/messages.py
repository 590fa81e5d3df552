"""The protobuf message classes of ``Example`` and ``SequenceExample``, without generated code.

They carry TensorFlow's full names (``tensorflow.Example``) and field numbers, so bytes go either way; they live in a
descriptor pool of their own, so TensorFlow may be imported in the same process, before or after.

    >>> example = Example()
    >>> example.features.feature["age"].int64_list.value.append(29)
    >>> Example.FromString(example.SerializeToString()).features.feature["age"].int64_list.value[0]
    29

A map sorts its entries only if asked to: ``SerializeToString(deterministic=True)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

__all__ = [
    "BytesList",
    "Example",
    "Feature",
    "FeatureList",
    "FeatureLists",
    "Features",
    "FloatList",
    "Int64List",
    "SequenceExample",
]

# Message -> its fields and their types, nearly as a .proto file says it. Field numbers count from 1 in this order.
_MESSAGES = {
    "BytesList": {"value": "repeated bytes"},
    "FloatList": {"value": "repeated float"},
    "Int64List": {"value": "repeated int64"},
    "Feature": {"bytes_list": "BytesList", "float_list": "FloatList", "int64_list": "Int64List"},  # oneof kind
    "Features": {"feature": "map Feature"},
    "FeatureList": {"feature": "repeated Feature"},
    "FeatureLists": {"feature_list": "map FeatureList"},
    "Example": {"features": "Features"},
    "SequenceExample": {"context": "Features", "feature_lists": "FeatureLists"},
}
_DOCS = {
    "BytesList": "Strings: ``repeated bytes value``.",
    "FloatList": "Floats of 32 bits: ``repeated float value``.",
    "Int64List": "Ints: ``repeated int64 value``.",
    "Feature": "The values of one feature: one of ``bytes_list``, ``float_list`` and ``int64_list``, or none of them.",
    "Features": "Features by name: ``map<string, Feature> feature``.",
    "FeatureList": "One feature over the steps of a sequence: ``repeated Feature feature``.",
    "FeatureLists": "Lists of features by name: ``map<string, FeatureList> feature_list``.",
    "Example": "One record, which holds named features: ``Features features``.",
    "SequenceExample": "One record of a sequence: ``Features context`` of all of it, ``FeatureLists feature_lists``.",
}
_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bytes": _Field.TYPE_BYTES,
    "float": _Field.TYPE_FLOAT,
    "int64": _Field.TYPE_INT64,
    "string": _Field.TYPE_STRING,
}


def _add_field(message: descriptor_pb2.DescriptorProto, name: str, number: int, notation: str) -> None:
    """Add one field; a map is, on the wire and in descriptors, a repeated entry message with a key and a value."""
    label, _, type_name = notation.rpartition(" ")
    if label == "map":
        entry = message.nested_type.add(name="".join(map(str.title, name.split("_"))) + "Entry")
        entry.options.map_entry = True
        _add_field(entry, "key", 1, "string")
        _add_field(entry, "value", 2, type_name)
        type_name = f"{message.name}.{entry.name}"
    field = message.field.add(name=name, number=number)
    field.label = _Field.LABEL_REPEATED if label else _Field.LABEL_OPTIONAL
    if type_name in _SCALARS:
        field.type = _SCALARS[type_name]
    else:
        field.type = _Field.TYPE_MESSAGE
        field.type_name = f".tensorflow.{type_name}"


def _message_classes() -> dict[str, Any]:
    """Build the classes. proto3 packs repeated numbers by default, as TensorFlow's own files ask for."""
    file = descriptor_pb2.FileDescriptorProto(
        name="torch_tfrecord/example.proto", package="tensorflow", syntax="proto3"
    )
    for message_name, fields in _MESSAGES.items():
        message = file.message_type.add(name=message_name)
        for number, (name, notation) in enumerate(fields.items(), start=1):
            _add_field(message, name, number, notation)
        if message_name == "Feature":
            message.oneof_decl.add(name="kind")
            for field in message.field:
                field.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())  # the one spelling that protobuf 4 to 7 all have
    classes = {}
    for name in _MESSAGES:
        cls = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"tensorflow.{name}"))
        cls.__module__ = __name__  # so that messages can be pickled, to and from loader workers
        cls.__doc__ = f"""{_DOCS[name]}

A protobuf message: fields are attributes and arguments by keyword; see SerializeToString(), FromString(), WhichOneof().
"""
        classes[name] = cls
    return classes


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, MutableMapping, MutableSequence
    from typing import Literal, TypeAlias

    from google.protobuf.message import Message

    # What type checkers see: the same classes, spelled out.

    class BytesList(Message):
        """``repeated bytes value``."""

        value: MutableSequence[bytes]

        def __init__(self, *, value: Iterable[bytes] = ...) -> None: ...

    class FloatList(Message):
        """``repeated float value``."""

        value: MutableSequence[float]

        def __init__(self, *, value: Iterable[float] = ...) -> None: ...

    class Int64List(Message):
        """``repeated int64 value``."""

        value: MutableSequence[int]

        def __init__(self, *, value: Iterable[int] = ...) -> None: ...

    _Kind: TypeAlias = Literal["bytes_list", "float_list", "int64_list"]

    class Feature(Message):
        """One of three lists, or none of them."""

        bytes_list: BytesList
        float_list: FloatList
        int64_list: Int64List

        def __init__(
            self, *, bytes_list: BytesList = ..., float_list: FloatList = ..., int64_list: Int64List = ...
        ) -> None: ...
        def WhichOneof(self, oneof_group: Literal["kind"]) -> _Kind | None: ...  # noqa: N802, D102

    class Features(Message):
        """``map<string, Feature> feature``."""

        feature: MutableMapping[str, Feature]

        def __init__(self, *, feature: Mapping[str, Feature] = ...) -> None: ...

    class FeatureList(Message):
        """``repeated Feature feature``."""

        feature: MutableSequence[Feature]

        def __init__(self, *, feature: Iterable[Feature] = ...) -> None: ...

    class FeatureLists(Message):
        """``map<string, FeatureList> feature_list``."""

        feature_list: MutableMapping[str, FeatureList]

        def __init__(self, *, feature_list: Mapping[str, FeatureList] = ...) -> None: ...

    class Example(Message):
        """One record: named features."""

        features: Features

        def __init__(self, *, features: Features = ...) -> None: ...

    class SequenceExample(Message):
        """One record of a sequence: features of the whole, and named lists of features, one a step."""

        context: Features
        feature_lists: FeatureLists

        def __init__(self, *, context: Features = ..., feature_lists: FeatureLists = ...) -> None: ...

else:
    _classes = _message_classes()
    BytesList = _classes["BytesList"]
    FloatList = _classes["FloatList"]
    Int64List = _classes["Int64List"]
    Feature = _classes["Feature"]
    Features = _classes["Features"]
    FeatureList = _classes["FeatureList"]
    FeatureLists = _classes["FeatureLists"]
    Example = _classes["Example"]
    SequenceExample = _classes["SequenceExample"]
