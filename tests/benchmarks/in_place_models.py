"""Models of one op each, which show whether ONNX Runtime writes a result over an input.

The probed input is made by an op that must allocate, because it reads a graph input that must not be
overwritten. The result is read by one more op, so that it is no graph output. If ``kept``, the input
is read again later: then the result shares its memory only if it is an alias.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.core.operators import MICROSOFT, ML, NCHWC, ONNX, Family, names_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from onnx import NodeProto

    from memplan_cli.core.program import Attribute

Values = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Operand:
    """An input of the model, or a constant where it has ``values``."""

    dtype: str = "float32"
    shape: tuple[int, ...] = (4, 8)
    values: Values | None = None


@dataclass(frozen=True, slots=True)
class OneOp:
    """An op to probe, with operands for which its result has the shape of its first operand.

    Attributes:
        type: the operator.
        operands: its inputs.
        attributes: its attributes.
        domain: of the operator; ``""`` is the standard one.
        result_dtype: the dtype of output 0.
        opset: the version of the standard domain.
        later: for each of the outputs 1, 2, and so on, the pair (input, output) of positions that may share
            memory by ONNX Runtime's sources.
    """

    type: str
    operands: tuple[Operand, ...]
    attributes: Mapping[str, Attribute]
    domain: str = ""
    result_dtype: str = "float32"
    opset: int = 21
    later: tuple[tuple[int, int], ...] = ()

    @property
    def key(self) -> str:
        """The op as the tables name it: ``domain.type``, or the type alone."""
        return f"{self.domain}.{self.type}" if self.domain else self.type


@dataclass(frozen=True, slots=True)
class Probe:
    """A model that shows whether an output of ``op`` shares memory with input ``position``.

    If ``kept``, the input is read again after the op: only an alias still shares its memory.
    """

    op: OneOp
    position: int
    kept: bool
    model: bytes


_X = Operand()
_MATRIX = Operand(shape=(8, 8))
_IMAGE = Operand(shape=(1, 8, 6, 6))
_BLOCKED = Operand(shape=(1, 16, 6, 6))
_POINTWISE = Operand(shape=(16, 16, 1, 1))
_BOOL = Operand("bool")
_LONG = Operand("int64")
_DOUBLE = Operand("float64")
_PLACES = Operand("int64", values=(0,) * 32)
_NONE = Operand(shape=(0,), values=())


def _longs(*values: int) -> Operand:
    return Operand("int64", (len(values),), values)


def _op(
    name: str,
    *operands: Operand,
    domain: str = "",
    result_dtype: str = "float32",
    opset: int = 21,
    **attributes: object,
) -> OneOp:
    """Return an op to probe; its only operand is `_X` if none is given."""
    return OneOp(name, operands or (_X,), attributes, domain, result_dtype, opset)  # type: ignore[arg-type]


_UNARY = (
    *names_of(
        lambda each: each.family in (Family.UNARY, Family.SOFTMAX) and each.name != "Cast"
    ),
    "Flatten",
    "LpNormalization",
    "MeanVarianceNormalization",
    "Trilu",
)
"""Probed on floats, without attributes. Cast is not among them: its attribute ``to`` is required."""

_BINARY = (*names_of(lambda each: each.family is Family.ARITHMETIC), "PRelu")

_LEAF: Mapping[str, Attribute] = {
    "n_targets": 1,
    **dict.fromkeys(("nodes_nodeids", "nodes_treeids", "nodes_featureids"), (0,)),
    **dict.fromkeys(("nodes_truenodeids", "nodes_falsenodeids"), (0,)),
    **dict.fromkeys(("target_ids", "target_nodeids", "target_treeids"), (0,)),
    "nodes_values": (0.0,),
    "nodes_modes": ("LEAF",),
    "target_weights": (1.0,),
}
"""Attributes of a tree ensemble of one leaf."""

ONE_OPS: tuple[OneOp, ...] = (
    *(_op(name) for name in _UNARY),
    *(_op(name, _DOUBLE, result_dtype="float64") for name in _UNARY),
    *(_op(name, _X, _X) for name in _BINARY),
    _op("Mod", _X, _X, fmod=1),
    _op("Not", _BOOL, result_dtype="bool"),
    *(_op(name, _BOOL, _BOOL, result_dtype="bool") for name in ("And", "Or", "Xor")),
    *(_op(name, _LONG, _LONG, result_dtype="int64") for name in ("BitwiseAnd", "BitwiseOr")),
    _op("Reshape", _X, _longs(8, 4)),
    _op("Squeeze", Operand(shape=(1, 4, 8)), _longs(0)),
    _op("Unsqueeze", _X, _longs(0)),
    _op("Cast", _X, to=1),
    _op("Cast", Operand("int32"), to=1),
    _op("Cast", _LONG, to=1),
    _op("CastLike", _X, _X),
    _op("Transpose", perm=(1, 0)),
    _op("Transpose", _MATRIX, perm=(1, 0)),
    _op("Expand", _X, _longs(4, 8)),
    _op("Tile", _X, _longs(1, 1)),
    _op("Slice", _X, _longs(0), _longs(4)),
    _op("Pad", _X, _longs(0, 0, 0, 0)),
    _op("Concat", _X, axis=0),
    _op("Split", _X, axis=0, num_outputs=1),
    _op("Gather", _X, _longs(0, 1, 2, 3)),
    _op("GatherElements", _X, _PLACES, axis=0),
    _op("ScatterElements", _X, _PLACES, _X, axis=0),
    _op("Scatter", _X, _PLACES, _X, opset=10, axis=0),
    _op("TensorScatter", Operand(shape=(1, 4, 8)), Operand(shape=(1, 2, 8)), _longs(0), opset=24),
    _op("BitCast", result_dtype="int32", opset=26, to=6),
    OneOp("TreeEnsembleRegressor", (Operand(shape=(4, 1)),), _LEAF, ML),
    _op("ScatterND", _X, Operand("int64", (2, 1), (0, 1)), Operand(shape=(2, 8))),
    _op("Where", _BOOL, _X, _X),
    _op("CumSum", _X, Operand("int64", (), (0,))),
    _op("ReduceSum", Operand(shape=(4, 1)), _longs(1)),
    _op("ReduceMean", Operand(shape=(4, 1)), _longs(1)),
    _op("ReduceMax", Operand(shape=(4, 1)), _longs(1)),
    _op("MatMul", _MATRIX, _MATRIX),
    _op("Gemm", _MATRIX, _MATRIX, _MATRIX),
    _op("Einsum", _MATRIX, equation="ij->ij"),
    _op("Conv", _IMAGE, Operand(shape=(8, 8, 1, 1))),
    _op("ConvTranspose", _IMAGE, Operand(shape=(8, 8, 1, 1))),
    *(_op(name, _IMAGE, kernel_shape=(1, 1)) for name in ("MaxPool", "AveragePool", "LpPool")),
    _op("GlobalAveragePool", Operand(shape=(1, 8, 1, 1))),
    _op("BatchNormalization", _IMAGE, *(Operand(shape=(8,)),) * 4),
    OneOp("BatchNormalization", (_IMAGE, *(Operand(shape=(8,)),) * 4), {"training_mode": 1},
          later=((3, 1), (4, 2))),
    _op("InstanceNormalization", _IMAGE, *(Operand(shape=(8,)),) * 2),
    _op("GroupNormalization", _IMAGE, *(Operand(shape=(8,)),) * 2, num_groups=2),
    _op("LayerNormalization", _X, Operand(shape=(8,)), Operand(shape=(8,))),
    _op("LRN", _IMAGE, size=3),
    _op("Resize", _IMAGE, _NONE, _NONE, _longs(1, 8, 6, 6)),
    _op("DepthToSpace", Operand(shape=(1, 4, 3, 3)), blocksize=1),
    _op("SpaceToDepth", Operand(shape=(1, 4, 3, 3)), blocksize=1),
    *(_op(name, _X, _X, result_dtype="bool") for name in ("Equal", "Less", "Greater")),
    _op("Gelu", domain=MICROSOFT),
    _op("QuickGelu", domain=MICROSOFT),
    _op("FastGelu", _X, Operand(shape=(8,)), domain=MICROSOFT),
    _op("BiasGelu", _X, Operand(shape=(8,)), domain=MICROSOFT),
    _op("FusedMatMul", _MATRIX, _MATRIX, domain=MICROSOFT),
    _op("FusedGemm", _MATRIX, _MATRIX, _MATRIX, domain=MICROSOFT, activation="Relu"),
    _op("FusedConv", _IMAGE, Operand(shape=(8, 8, 1, 1)), domain=MICROSOFT),
    _op(
        "FusedConv",
        _IMAGE,
        Operand(shape=(8, 8, 1, 1)),
        Operand(shape=(8,)),
        _IMAGE,
        domain=MICROSOFT,
    ),
    _op("SkipLayerNormalization", *(Operand(shape=(1, 4, 8)),) * 2, Operand(shape=(8,)),
        Operand(shape=(8,)), domain=MICROSOFT),
    _op("SimplifiedLayerNormalization", _X, Operand(shape=(8,)), domain=""),
    _op("TransposeMatMul", _MATRIX, _MATRIX, domain=MICROSOFT),
    _op("ReorderInput", _BLOCKED, domain=NCHWC),
    _op("ReorderOutput", _BLOCKED, domain=NCHWC, channels=16),
    _op("Conv", _BLOCKED, _POINTWISE, domain=NCHWC),
    _op("Conv", _BLOCKED, _POINTWISE, Operand(shape=(16,)), _BLOCKED, domain=NCHWC),
    _op("MaxPool", _BLOCKED, kernel_shape=(1, 1), domain=NCHWC),
    _op("AveragePool", _BLOCKED, kernel_shape=(1, 1), domain=NCHWC),
    _op("GlobalAveragePool", Operand(shape=(1, 16, 1, 1)), domain=NCHWC),
    _op("Upsample", _BLOCKED, scales=(1, 1, 1, 1), domain=NCHWC),
)  # fmt: skip
"""The ops to probe; ops that are neither here nor in a table of the profile are assumed to allocate."""


def probes() -> Iterator[Probe]:
    """Yield both probes, kept or not, for every input of every op."""
    for op in ONE_OPS:
        for position, operand in enumerate(op.operands):
            if operand.values is None:
                for kept in (False, True):
                    yield Probe(op, position, kept, _probe_model(op, position, kept=kept))


def _probe_model(op: OneOp, position: int, *, kept: bool) -> bytes:
    """Return the serialized model of a probe, in which the op may write over ``in<position>``, unless ``kept``.

    For an op with two operands, position 0, not kept:

        x0 -> copy -> in0 -> op -> r -> copy -> y
        x1 -> copy -> in1 -> op
                      in1 -> copy -> y1

    All operands that the op must not write over are read again after it. With ``kept`` these are all, and a
    result in the memory of ``in<position>`` is an alias. An operand with ``values`` is an initializer. Results
    ``r1``, ``r2``, and so on (`OneOp.later`) are unused.
    """
    from onnx import helper

    inputs, weights, copies, later_reads = [], [], [], []
    outputs = [helper.make_value_info("y", _tensor_type(op.result_dtype))]
    for index, operand in enumerate(op.operands):
        name, dtype = f"in{index}", operand.dtype
        element = _element_type(dtype)
        if operand.values is not None:
            weights.append(helper.make_tensor(name, element, operand.shape, operand.values))
            continue
        inputs.append(helper.make_tensor_value_info(f"x{index}", element, operand.shape))
        copies.append(_copy(f"x{index}", name, dtype))
        if kept or index != position:
            later_reads.append(_copy(name, f"y{index}", dtype))
            outputs.append(helper.make_value_info(f"y{index}", _tensor_type(dtype)))
    names = [f"in{index}" for index in range(len(op.operands))]
    results = ["r", *(f"r{output}" for _, output in op.later)]
    probed = helper.make_node(op.type, names, results, domain=op.domain, name="probe",
                              **op.attributes)  # fmt: skip
    nodes = [*copies, probed, _copy("r", "y", op.result_dtype), *later_reads]
    graph = helper.make_graph(nodes, "probe", inputs, outputs, weights)
    versions = {ONNX: op.opset, ML: 3, MICROSOFT: 1, NCHWC: 1}
    opsets = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    model: bytes = helper.make_model(
        graph, opset_imports=opsets, ir_version=10
    ).SerializeToString()
    return model


def _copy(name: str, result: str, dtype: str) -> NodeProto:
    """Return a node that reads a tensor and gives one of the same dtype and shape, never an alias of it."""
    from onnx import helper

    return helper.make_node("Not" if dtype == "bool" else "Neg", [name], [result])


def _element_type(dtype: str) -> int:
    """Return the TensorProto.DataType of a dtype."""
    from onnx import TensorProto

    names = {"float32": "FLOAT", "float64": "DOUBLE"}
    return int(TensorProto.DataType.Value(names.get(dtype, dtype.upper())))


def _tensor_type(dtype: str) -> object:
    """Return the type of a tensor of unknown shape."""
    from onnx import helper

    return helper.make_tensor_type_proto(_element_type(dtype), None)
