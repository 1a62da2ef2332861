"""What does a file declare of results, and what of it is still believed where some is wrong?

What nodes contradict is forgotten. The rest is set aside while inference looks at the model
alone, and put back where that found nothing or agrees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.onnx_io.load import graphs
from memplan_cli.shapes.lattice import agrees, merged
from memplan_cli.shapes.subgraphs.infer import declare

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from onnx import ModelProto, TypeProto


def set_aside(
    model: ModelProto, doubted: Collection[str]
) -> Sequence[Mapping[str, TypeProto]]:
    """Take away, in place, the types of all results; return those not doubted, by graph."""
    aside = []
    for graph in graphs(model.graph):
        types: dict[str, TypeProto] = {}
        for value in (*graph.value_info, *graph.output):
            if value.name not in doubted:
                types[value.name] = kind = type(value.type)()
                kind.CopyFrom(value.type)
        del graph.value_info[:]
        for value in graph.output:
            value.ClearField("type")
        aside.append(types)
    return aside


def put_back(
    model: ModelProto, aside: Sequence[Mapping[str, TypeProto]], found: ModelProto
) -> bool:
    """Declare, in place, what was set aside and says more than inference found; is there any?

    ``found`` is what inference made of the model, whose graphs stand in the same order.
    """
    more = False
    for graph, types, inferred in zip(
        graphs(model.graph), aside, graphs(found.graph), strict=True
    ):
        known = {value.name: value.type for value in (*inferred.value_info, *inferred.output)}
        better: dict[str, TypeProto] = {}
        for name, kind in types.items():
            mine = known.get(name)
            if mine is None or (agrees(mine, kind) and merged(mine, kind) != mine):
                better[name] = kind if mine is None else merged(mine, kind)
        declare(graph, better)
        more = more or bool(better)
    return more
