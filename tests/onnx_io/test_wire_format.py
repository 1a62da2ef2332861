"""What is written as bytes is what the protobuf library would have written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto

from memplan_cli.onnx_io.wire_format import encoded_entry, field, varint

LENGTHS = [0, 1, 127, 128, 255, 256, 16_383, 16_384, 100_000]


@given(st.integers(0, 2**63 - 1))
def test_varints_are_encoded_like_the_protobuf_library(number: int) -> None:
    tensor = TensorProto(int64_data=[number])
    packed = tensor.SerializeToString()
    assert packed.endswith(varint(number))
    assert TensorProto.FromString(packed) == tensor


@pytest.mark.parametrize("length", LENGTHS)
def test_fields_are_encoded_like_the_protobuf_library(length: int) -> None:
    wanted = ValueInfoProto(name="n" * length).SerializeToString()
    assert field(ValueInfoProto.NAME_FIELD_NUMBER, b"n" * length) == wanted


@pytest.mark.parametrize("message", [NodeProto, ValueInfoProto])
@pytest.mark.parametrize("length", LENGTHS)
def test_entries_are_encoded_like_the_protobuf_library(
    message: type[NodeProto], length: int
) -> None:
    wanted = message()
    wanted.metadata_props.add(key="pkg.memplan.step", value="7" * length)
    number = message.METADATA_PROPS_FIELD_NUMBER
    assert (
        encoded_entry(number, "pkg.memplan.step", "7" * length) == wanted.SerializeToString()
    )


@given(key=st.text(min_size=1), value=st.text())
def test_keys_and_values_may_be_any_text(key: str, value: str) -> None:
    wanted = NodeProto()
    wanted.metadata_props.add(key=key, value=value)
    number = NodeProto.METADATA_PROPS_FIELD_NUMBER
    assert encoded_entry(number, key, value) == wanted.SerializeToString()


def test_a_field_with_a_number_above_fifteen_has_a_longer_tag() -> None:
    number = GraphProto.METADATA_PROPS_FIELD_NUMBER
    assert number > 15
    wanted = GraphProto()
    wanted.metadata_props.add(key="k", value="v")
    assert encoded_entry(number, "k", "v") == wanted.SerializeToString()


def test_merged_entries_are_appended() -> None:
    node = NodeProto(op_type="Relu", input=["x"], output=["y"])
    node.metadata_props.add(key="a", value="1")
    node.MergeFromString(encoded_entry(NodeProto.METADATA_PROPS_FIELD_NUMBER, "b", 2))
    assert [(e.key, e.value) for e in node.metadata_props] == [("a", "1"), ("b", "2")]
    assert (node.op_type, node.input[:], node.output[:]) == ("Relu", ["x"], ["y"])
