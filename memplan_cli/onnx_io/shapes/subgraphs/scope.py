"""What a subgraph captures from the graph around it: types and constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.onnx_io.traversal import free_names, subgraphs

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, TensorProto, TypeProto

Infer = Callable[["ModelProto"], "ModelProto"]
"""Returns a copy of a model with inferred types."""


@dataclass(slots=True)
class OuterGraph:
    """The graph around subgraphs, after inference.

    Attributes:
        model: the model whose main graph this is.
        infer: infers a model with all its subgraphs.
        types: types by name.
        constants: initializers, and computed values that are known, by name.
    """

    model: ModelProto
    infer: Infer
    types: dict[str, TypeProto] = field(default_factory=dict)
    constants: dict[str, TensorProto] = field(default_factory=dict)

    @classmethod
    def of(cls, model: ModelProto, infer: Infer) -> OuterGraph:
        """Return the main graph of an inferred model as the outer graph of its subgraphs."""
        graph = model.graph
        outer = cls(model, infer)
        for value in (*graph.output, *graph.value_info, *graph.input):
            outer.types[value.name] = value.type
        outer.constants = {tensor.name: tensor for tensor in graph.initializer}
        outer._evaluate_constants()
        return outer

    def _evaluate_constants(self) -> None:
        """Add to ``constants`` the computed values that the interpretation of the graph knows.

        Of these only what subgraphs need: captured values, and trip counts and conditions.
        """
        from onnx import numpy_helper

        from memplan_cli.onnx_io.shapes.interpret import interpret
        from memplan_cli.onnx_io.shapes.symbolic.value_rules import SHAPE_ARITHMETIC

        needed: set[str] = set()
        computed: set[str] = set()
        for node in self.model.graph.node:
            for _, body in subgraphs(node):
                needed.update(node.input[:2])  # of a Loop the trip count and condition
                needed.update(free_names(body))
            if node.op_type in SHAPE_ARITHMETIC:
                computed.update(node.output)
        needed &= computed
        for name, value in interpret(self.model, needed).values.items() if needed else ():
            if name in needed and value.is_known:
                self.constants[name] = numpy_helper.from_array(value.array, name)

    def type_of(self, name: str) -> TypeProto:
        """Return the type of a value; an empty type if it is unknown."""
        from onnx import TypeProto, helper

        if name in self.types:
            return self.types[name]
        tensor = self.constants.get(name)
        if tensor is None:
            return TypeProto()
        return helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))

    def constant_scalar(self, name: str) -> int | None:
        """Return the value of a trip count or condition (0 or 1), None unless it is a constant with one element."""
        from onnx import numpy_helper

        tensor = self.constants.get(name)
        if tensor is None:
            return None
        array = numpy_helper.to_array(tensor)
        return int(array.reshape(-1)[0]) if array.size == 1 else None

    def infer_subgraph(
        self, subgraph: GraphProto, input_types: Sequence[TypeProto]
    ) -> GraphProto:
        """Return a subgraph inferred for these types of its inputs; it has the same nodes.

        It is inferred as a model of its own, in which captured constants are initializers and other captured
        values inputs.
        """
        model = type(self.model)()
        model.ir_version = self.model.ir_version
        model.opset_import.extend(self.model.opset_import)
        graph = model.graph
        graph.node.extend(subgraph.node)
        graph.initializer.extend(subgraph.initializer)
        graph.output.extend(subgraph.output)
        graph.value_info.extend(subgraph.value_info)
        graph.input.extend(subgraph.input)
        for value, type_proto in zip(graph.input, input_types, strict=False):
            if type_proto.WhichOneof("value"):
                # Not merged with the declared type: a dim may be unknown on purpose.
                value.type.CopyFrom(type_proto)
        for name in free_names(subgraph):
            if name in self.constants:
                graph.initializer.append(self.constants[name])
            elif name in self.types:
                graph.input.add(name=name).type.CopyFrom(self.types[name])
        inferred = self.infer(model).graph
        result = deepcopy(subgraph)
        del result.node[:], result.input[:], result.output[:], result.value_info[:]
        result.node.extend(inferred.node)
        result.input.extend(inferred.input[: len(subgraph.input)])
        result.output.extend(inferred.output)
        result.value_info.extend(inferred.value_info)
        return result
