"""What a subgraph sees of the block around it: types, constants, arithmetic on shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.core.operators import SHAPE_QUERIES
from memplan_cli.onnx_io.graph_editor import producer_nodes
from memplan_cli.onnx_io.shapes.lattice import is_complete
from memplan_cli.onnx_io.shapes.symbolic.families import SHAPE_ARITHMETIC
from memplan_cli.onnx_io.traversal import free_names, subgraphs

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto

Infer = Callable[["ModelProto"], "ModelProto"]
"""Gives a copy of a model with the types of values filled in."""

_PRELUDE = 64
"""Ops of shape arithmetic that a subgraph may bring along for one captured value."""


@dataclass(slots=True)
class Level:
    """One block as its subgraphs see it: types, constants, and who makes what.

    ``infer`` infers a model and all its subgraphs.
    """

    model: ModelProto
    infer: Infer
    types: dict[str, TypeProto] = field(default_factory=dict)
    constants: dict[str, TensorProto] = field(default_factory=dict)
    producers: dict[str, NodeProto] = field(default_factory=dict)

    @classmethod
    def of(cls, model: ModelProto, infer: Infer) -> Level:
        """Return what the top block of an inferred model shows its subgraphs."""
        graph = model.graph
        level = cls(model, infer)
        for value in (*graph.output, *graph.value_info, *graph.input):
            level.types[value.name] = value.type
        level.constants = {tensor.name: tensor for tensor in graph.initializer}
        level.producers = producer_nodes(
            node for node in graph.node if node.op_type in SHAPE_ARITHMETIC
        )
        level._settle()
        return level

    def _settle(self) -> None:
        """Make constants of what subgraphs and control-flow nodes read, where it is known."""
        from onnx import numpy_helper

        from memplan_cli.onnx_io.shapes.symbolic.interpret import interpret

        wanted: set[str] = set()
        for node in self.model.graph.node:
            for _, body in subgraphs(node):
                wanted.update(node.input[:2])
                wanted.update(free_names(body))
        wanted &= self.producers.keys()
        for name, value in interpret(self.model, wanted).values.items() if wanted else ():
            if name in wanted and value.is_known:
                self.constants[name] = numpy_helper.from_array(value.array, name)
                del self.producers[name]

    def is_known(self, value: str | ValueInfoProto | None) -> bool:
        """Whether all is known of a value here, by its name, or by its type elsewhere."""
        if isinstance(value, str):
            return value in self.types and is_complete(self.types[value])
        return value is not None and is_complete(value.type)

    def type_of(self, name: str) -> TypeProto:
        """Return what is known of a value; a type that says nothing where that is nothing."""
        from onnx import TypeProto, helper

        if name in self.types:
            return self.types[name]
        tensor = self.constants.get(name)
        if tensor is None:
            return TypeProto()
        return helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))

    def number(self, name: str) -> int | None:
        """Return the value of a constant scalar."""
        from onnx import numpy_helper

        tensor = self.constants.get(name)
        if tensor is None:
            return None
        array = numpy_helper.to_array(tensor)
        return int(array.reshape(-1)[0]) if array.size == 1 else None

    def run(self, subgraph: GraphProto, given: Sequence[TypeProto]) -> GraphProto:
        """Infer a subgraph for these types of its inputs; the answer has the subgraph's nodes."""
        model = type(self.model)()
        model.ir_version = self.model.ir_version
        model.opset_import.extend(self.model.opset_import)
        graph = model.graph
        graph.name = subgraph.name or "body"
        prelude = self._prelude(subgraph)
        graph.node.extend(prelude)
        graph.node.extend(subgraph.node)
        graph.initializer.extend(subgraph.initializer)
        graph.output.extend(subgraph.output)
        graph.value_info.extend(subgraph.value_info)
        for value, kind in zip(subgraph.input, given, strict=False):
            graph.input.add().CopyFrom(value)
            # Not merged with what the subgraph declares: a hole here may be one on purpose.
            graph.input[-1].type.CopyFrom(kind if kind.WhichOneof("value") else value.type)
        self._bring(graph, made={name for node in prelude for name in node.output})
        answer = self.infer(model).graph
        result = deepcopy(subgraph)
        del result.node[:], result.input[:], result.output[:], result.value_info[:]
        result.node.extend(answer.node[len(prelude) :])
        result.input.extend(answer.input[: len(subgraph.input)])
        result.output.extend(answer.output)
        result.value_info.extend(answer.value_info)
        return result

    def _bring(self, graph: GraphProto, made: set[str]) -> None:
        """Make what a subgraph captures its inputs, or its constants."""
        for name in free_names(graph):
            if name in self.constants:
                graph.initializer.append(self.constants[name])
            elif name in self.types and name not in made:
                value = graph.input.add()
                value.name = name
                value.type.CopyFrom(self.types[name])

    def _prelude(self, subgraph: GraphProto) -> list[NodeProto]:
        """Return the shape arithmetic behind what a subgraph captures, makers first."""
        found: dict[int, NodeProto] = {}
        for name in free_names(subgraph):
            chain: dict[int, NodeProto] = {}
            if self._trace(name, chain) and len(chain) <= _PRELUDE:
                found.update(chain)
        # The order of discovery is makers first within a chain and chains share makers.
        return list(found.values())

    def _trace(self, name: str, chain: dict[int, NodeProto]) -> bool:
        """Collect the makers of a value that is computed from shapes and constants only."""
        maker = self.producers.get(name)
        if maker is None:
            return name in self.constants or name not in self.types
        if id(maker) in chain:
            return True
        if len(chain) > _PRELUDE:
            return False
        if maker.op_type not in SHAPE_QUERIES and not all(
            self._trace(source, chain) for source in maker.input if source
        ):
            return False
        chain[id(maker)] = maker
        return True
