"""The protobuf classes: names, numbers and wire bytes are TensorFlow's."""

from __future__ import annotations

import copy
import inspect
import pickle
import subprocess
import sys

import pytest

from torch_tfrecord import messages
from torch_tfrecord.messages import (
    BytesList,
    Example,
    Feature,
    FeatureList,
    FeatureLists,
    Features,
    FloatList,
    Int64List,
    SequenceExample,
)


def test_all_names_are_there() -> None:
    assert sorted(messages.__all__) == [
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
    for name in messages.__all__:
        assert getattr(messages, name).DESCRIPTOR.full_name == f"tensorflow.{name}"


@pytest.mark.parametrize(
    ("message", "fields"),
    [
        (Example, {"features": 1}),
        (SequenceExample, {"context": 1, "feature_lists": 2}),
        (Features, {"feature": 1}),
        (FeatureLists, {"feature_list": 1}),
        (FeatureList, {"feature": 1}),
        (Feature, {"bytes_list": 1, "float_list": 2, "int64_list": 3}),
        (BytesList, {"value": 1}),
        (FloatList, {"value": 1}),
        (Int64List, {"value": 1}),
    ],
)
def test_field_numbers(message: type[Example], fields: dict[str, int]) -> None:
    assert {field.name: field.number for field in message.DESCRIPTOR.fields} == fields


def test_example_on_the_wire() -> None:
    example = Example(features=Features(feature={"f": Feature(int64_list=Int64List(value=[1, -1]))}))
    packed = bytes.fromhex("0a160a140a0166120f1a0d0a0b01ffffffffffffffffff01")
    assert example.SerializeToString() == packed
    assert Example.FromString(packed) == example
    unpacked = bytes.fromhex("0a0e0a0c0a016612071a05080108ac02")
    assert list(Example.FromString(unpacked).features.feature["f"].int64_list.value) == [1, 300]


def test_float_and_bytes_on_the_wire() -> None:
    assert FloatList(value=[1.0, -2.0]).SerializeToString() == bytes.fromhex("0a080000803f000000c0")
    assert BytesList(value=[b"a", b""]).SerializeToString() == bytes.fromhex("0a01610a00")


def test_kind_is_a_oneof() -> None:
    feature = Feature(float_list=FloatList(value=[1.0]))
    assert feature.WhichOneof("kind") == "float_list"
    feature.bytes_list.value.append(b"x")
    assert feature.WhichOneof("kind") == "bytes_list"
    assert not feature.float_list.value
    assert Feature().WhichOneof("kind") is None


def test_sequence_example_round_trip() -> None:
    steps = FeatureList(feature=[Feature(int64_list=Int64List(value=[i])) for i in range(3)])
    sequence = SequenceExample(
        context=Features(feature={"length": Feature(int64_list=Int64List(value=[3]))}),
        feature_lists=FeatureLists(feature_list={"steps": steps}),
    )
    wire = sequence.SerializeToString()
    again = SequenceExample.FromString(wire)
    assert [list(step.int64_list.value) for step in again.feature_lists.feature_list["steps"].feature] == [
        [0],
        [1],
        [2],
    ]
    # An Example has its features where a SequenceExample has its context.
    assert list(Example.FromString(wire).features.feature) == ["length"]


def test_maps_make_entries_on_access() -> None:
    example = Example()
    example.features.feature["age"].int64_list.value.append(29)
    assert dict(example.features.feature)["age"].int64_list.value[0] == 29


@pytest.mark.parametrize("name", messages.__all__)
def test_messages_can_be_pickled_and_copied(name: str) -> None:
    message = getattr(messages, name)()
    assert type(pickle.loads(pickle.dumps(message))) is type(message)
    example = Example(features=Features(feature={"f": Feature(bytes_list=BytesList(value=[b"\xff"]))}))
    assert pickle.loads(pickle.dumps(example)) == example
    assert copy.deepcopy(example) == example


CLASH = """
from google.protobuf import descriptor_pb2, descriptor_pool

def add():  # another file with the same full names, as TensorFlow registers in the default pool
    file = descriptor_pb2.FileDescriptorProto(name="tensorflow/core/example/example.proto", package="tensorflow")
    file.message_type.add(name="Example").field.add(name="other", number=7, label=1, type=9)
    descriptor_pool.Default().AddSerializedFile(file.SerializeToString())

{first}
{second}
theirs = descriptor_pool.Default().FindMessageTypeByName("tensorflow.Example")
assert [field.name for field in theirs.fields] == ["other"]
assert [field.name for field in Example.DESCRIPTOR.fields] == ["features"]
"""


@pytest.mark.parametrize("ours_first", [True, False])
def test_no_clash_with_the_same_names_in_the_default_pool(ours_first: bool) -> None:
    steps = ["from torch_tfrecord.messages import Example", "add()"]
    first, second = steps if ours_first else reversed(steps)
    script = CLASH.format(first=first, second=second)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", messages.__all__)
def test_help_names_the_fields(name: str) -> None:
    message = getattr(messages, name)
    text = inspect.getdoc(message)
    assert text is not None
    assert all(f"{field.name}``" in text for field in message.DESCRIPTOR.fields)
    assert "FromString()" in text
