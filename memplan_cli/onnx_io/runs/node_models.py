"""A model cut into models of one node each, as the replay runs them.

Weights stay constants of the node that reads them: a kernel may pack constant operands, and packed and
plain operands need not give the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.onnx_io.constants import stored_tensor
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.traversal import reads
from memplan_cli.onnx_io.weights.external_data import loaded
from memplan_cli.onnx_io.weights.tensor_data import dense, sparse_weights

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from onnx import ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto


@dataclass(frozen=True, slots=True)
class NodeModels:
    """Makes a model for each node of a model file; weights are read when a node needs them.

    Attributes:
        model: the model, functions inlined.
        folder: where its external data lies.
        weights: initializers, Constants and sparse weights (made dense), by name.
        map_inputs: declarations of the graph inputs of an ONNX map type, by name: `_type_proto` knows no maps.
    """

    model: ModelProto
    folder: Path
    weights: Mapping[str, TensorProto]
    map_inputs: Mapping[str, ValueInfoProto]

    @classmethod
    def of(cls, path: Path) -> NodeModels:
        """Open a model file.

        Raises:
            ModelError: as `load_model`.
        """
        model = load_model(path)
        weights = {tensor.name: tensor for tensor in model.graph.initializer}
        for node in model.graph.node:
            tensor = stored_tensor(node)
            if tensor is not None:
                weights[node.output[0]] = tensor
        for name, sparse in sparse_weights(model.graph):
            weights[name] = dense(sparse, path.parent)
        map_inputs = {v.name: v for v in model.graph.input if v.type.HasField("map_type")}
        return cls(model, path.parent, weights, map_inputs)

    def nodes(self) -> tuple[NodeProto, ...]:
        """Return the nodes of the main graph, in file order."""
        return tuple(self.model.graph.node)

    def is_constant(self, node: NodeProto) -> bool:
        """Whether a node only holds a weight."""
        return node.op_type == "Constant" and node.output[0] in self.weights

    def is_map(self, name: str) -> bool:
        """Whether a value is a graph input of an ONNX map type."""
        return name in self.map_inputs

    def computed_reads(self, node: NodeProto) -> tuple[str, ...]:
        """Return the inputs and captures of a node that are not weights, each once."""
        names = dict.fromkeys(filter(None, reads(node)))
        return tuple(name for name in names if name not in self.weights)

    def one_op(self, node: NodeProto, types: Mapping[str, str]) -> bytes:
        """Return a serialized model of one node.

        Args:
            node: A node of the main graph.
            types: ONNX Runtime's type (``tensor(float)``) of each value in
                ``self.computed_reads(node)``. Values of a map type (`is_map`) need no entry: they
                keep the declaration that they have in the whole model.
        """
        from onnx import ValueInfoProto, helper

        inputs = [
            self.map_inputs[name]
            if self.is_map(name)
            else helper.make_value_info(name, _type_proto(types[name]))
            for name in self.computed_reads(node)
        ]
        outputs = [ValueInfoProto(name=name) for name in node.output if name]
        names = dict.fromkeys(reads(node))
        weights = [self._loaded(name) for name in names if name in self.weights]
        # A weight that is a graph input of the whole model stays one: callers can override such a weight,
        # so kernels do not pack it.
        weight_names = {tensor.name for tensor in weights}
        inputs += [value for value in self.model.graph.input if value.name in weight_names]
        graph = helper.make_graph([node], "one", inputs, outputs, weights)
        model = helper.make_model(
            graph, opset_imports=self.model.opset_import, ir_version=self.model.ir_version
        )
        # The node may call a function that `load_model` could not inline: onnx inlines none of another opset.
        model.functions.extend(self.model.functions)
        data: bytes = model.SerializeToString()
        return data

    def _loaded(self, name: str) -> TensorProto:
        """Return a weight with its data, under the name by which nodes read it."""
        tensor = loaded(self.weights[name], self.folder)
        tensor.name = name
        return tensor


def _type_proto(text: str) -> TypeProto:
    """Parse ONNX Runtime's text of a type, such as ``seq(tensor(int64))``.

    Raises:
        ValueError: it is no tensor, sequence or optional.
    """
    from onnx import TensorProto, helper

    kind, _, inner = text.removesuffix(")").partition("(")
    match kind:
        case "tensor":
            elem_type = TensorProto.DataType.Value(inner.upper())
            return helper.make_tensor_type_proto(elem_type, None)
        case "seq":
            return helper.make_sequence_type_proto(_type_proto(inner))
        case "optional":
            return helper.make_optional_type_proto(_type_proto(inner))
    raise ValueError(f"{text} is no type of a tensor, sequence or optional")
