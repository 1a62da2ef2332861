"""What a subgraph captures from the graph around it: types, constants, and arithmetic on shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.core.operators import SHAPE_QUERIES
from memplan_cli.onnx_io.graph_editor import producer_nodes
from memplan_cli.onnx_io.shapes.lattice import is_complete
from memplan_cli.onnx_io.traversal import free_names, subgraphs

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto

Infer = Callable[["ModelProto"], "ModelProto"]
"""Returns a copy of a model with inferred types."""

_MAX_PRELUDE = 64
"""Nodes of shape arithmetic that are copied for one captured value."""


@dataclass(slots=True)
class OuterGraph:
    """The graph around subgraphs, after inference.

    Attributes:
        model: the model whose main graph this is.
        infer: infers a model with all its subgraphs.
        types: types by name.
        constants: initializers, and computed values that are known, by name.
        producers: by name of a value, the node that computes it, if that is an operator of shape arithmetic.
    """

    model: ModelProto
    infer: Infer
    types: dict[str, TypeProto] = field(default_factory=dict)
    constants: dict[str, TensorProto] = field(default_factory=dict)
    producers: dict[str, NodeProto] = field(default_factory=dict)

    @classmethod
    def of(cls, model: ModelProto, infer: Infer) -> OuterGraph:
        """Return the main graph of an inferred model as the outer graph of its subgraphs."""
        from memplan_cli.onnx_io.shapes.symbolic.value_rules import SHAPE_ARITHMETIC

        graph = model.graph
        outer = cls(model, infer)
        for value in (*graph.output, *graph.value_info, *graph.input):
            outer.types[value.name] = value.type
        outer.constants = {tensor.name: tensor for tensor in graph.initializer}
        outer.producers = producer_nodes(
            node for node in graph.node if node.op_type in SHAPE_ARITHMETIC
        )
        outer._evaluate_constants()
        return outer

    def _evaluate_constants(self) -> None:
        """Move values that the interpretation of the graph knows from ``producers`` to ``constants``.

        Of these only what subgraphs need: captured values, and trip counts and conditions.
        """
        from onnx import numpy_helper

        from memplan_cli.onnx_io.shapes.symbolic.interpret import interpret

        captured: set[str] = set()
        for node in self.model.graph.node:
            for _, body in subgraphs(node):
                captured.update(node.input[:2])  # of a Loop the trip count and condition
                captured.update(free_names(body))
        captured &= self.producers.keys()
        for name, value in interpret(self.model, captured).values.items() if captured else ():
            if name in captured and value.is_known:
                self.constants[name] = numpy_helper.from_array(value.array, name)
                del self.producers[name]

    def is_known(self, value: str | ValueInfoProto | None) -> bool:
        """Whether a type is fully known: of a value of this graph by name, or of another one as declared."""
        if isinstance(value, str):
            return value in self.types and is_complete(self.types[value])
        return value is not None and is_complete(value.type)

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
        """Return the value of a constant with one element (of a bool 0 or 1), None for other values."""
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

        It is inferred as a model of its own, whose further inputs are the captured values. Captured constants
        become initializers, and the shape arithmetic behind captured values is put in front.
        """
        model = type(self.model)()
        model.ir_version = self.model.ir_version
        model.opset_import.extend(self.model.opset_import)
        graph = model.graph
        graph.name = subgraph.name or "body"
        shape_nodes = self._shape_nodes(subgraph)
        graph.node.extend(shape_nodes)
        graph.node.extend(subgraph.node)
        graph.initializer.extend(subgraph.initializer)
        graph.output.extend(subgraph.output)
        graph.value_info.extend(subgraph.value_info)
        for value, type_proto in zip(subgraph.input, input_types, strict=False):
            graph.input.add().CopyFrom(value)
            # Not merged with the declared type: a dim may be unknown on purpose.
            graph.input[-1].type.CopyFrom(
                type_proto if type_proto.WhichOneof("value") else value.type
            )
        self._add_captures(
            graph, computed={name for node in shape_nodes for name in node.output}
        )
        inferred = self.infer(model).graph
        result = deepcopy(subgraph)
        del result.node[:], result.input[:], result.output[:], result.value_info[:]
        result.node.extend(inferred.node[len(shape_nodes) :])
        result.input.extend(inferred.input[: len(subgraph.input)])
        result.output.extend(inferred.output)
        result.value_info.extend(inferred.value_info)
        return result

    def _add_captures(self, graph: GraphProto, computed: set[str]) -> None:
        """Add captured values to a graph, in place: constants as initializers, others as inputs.

        Those in ``computed`` are left out: nodes of the graph compute them.
        """
        for name in free_names(graph):
            if name in self.constants:
                graph.initializer.append(self.constants[name])
            elif name in self.types and name not in computed:
                value = graph.input.add()
                value.name = name
                value.type.CopyFrom(self.types[name])

    def _shape_nodes(self, subgraph: GraphProto) -> list[NodeProto]:
        """Return the nodes of shape arithmetic behind the captured values, producers first.

        A value that depends on data, or takes more than `_MAX_PRELUDE` nodes, gets none: it becomes an input.
        """
        nodes: dict[int, NodeProto] = {}
        for name in free_names(subgraph):
            shape_ops: dict[int, NodeProto] = {}
            if self._collect_shape_ops(name, shape_ops) and len(shape_ops) <= _MAX_PRELUDE:
                nodes.update(shape_ops)
        # For each value, producers were added before the nodes that read them; a node that an earlier
        # value needs as well keeps its position.
        return list(nodes.values())

    def _collect_shape_ops(self, name: str, shape_ops: dict[int, NodeProto]) -> bool:
        """Add to ``shape_ops`` the producers of a value; return whether only shapes and constants decide it.

        If not, ``shape_ops`` may have some of its producers, and must not be used.
        """
        producer = self.producers.get(name)
        if producer is None:
            # A value of unknown type is no obstacle: it could not become an input instead.
            return name in self.constants or name not in self.types
        if id(producer) in shape_ops:
            return True
        if len(shape_ops) > _MAX_PRELUDE:
            return False
        # A shape query reads only the type of its input.
        if producer.op_type not in SHAPE_QUERIES and not all(
            self._collect_shape_ops(source, shape_ops) for source in producer.input if source
        ):
            return False
        shape_ops[id(producer)] = producer
        return True
