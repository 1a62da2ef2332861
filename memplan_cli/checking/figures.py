"""Checks of the numbers and bindings in a report that need the written model.

The numbers that follow from the plan's own tensors are checked by `plan_figures`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.checking.certainty import compare_certainty
from memplan_cli.checking.live_bytes import (
    LiveBytes,
    add_sums,
    canonical_expression,
    evaluate_expression,
    evaluate_sum,
    is_symbolic,
    live_bytes_at,
    merge_storages,
    peak_bytes,
    sample_dims,
    tensor_bytes,
)
from memplan_cli.checking.operators import ELEMENT_BITS, STANDARD
from memplan_cli.checking.order import (
    COPY_MARK,
    is_in_file_order,
    node_labels,
    subgraphs_of,
)
from memplan_cli.checking.plan_figures import (
    Comparison,
    check_plan_figures,
    mismatches,
    report_dims,
    total_sums,
)
from memplan_cli.checking.sharing import view_bases
from memplan_cli.checking.timeline import ValueKind
from memplan_cli.core.symbolic.dims import canonical_dim, symbols_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from onnx import (  # noqa: TID251 - types only; onnx_io makes them
        GraphProto,
        TensorShapeProto,
        TypeProto,
    )

    from memplan_cli.checking.live_bytes import ByteSum, Storage
    from memplan_cli.checking.timeline import Node, PlannedModel, Timeline, Value


def check_figures(planned: PlannedModel) -> Iterator[str]:
    """Yield the numbers of a report that differ from those of the model and the plan's tensors."""
    yield from check_plan_figures(planned.plan, planned.bounds)
    interface, storages = _interface_bytes(planned), _runtime_storages(planned)
    comparisons = [
        *_compare_model_counts(planned),
        *_compare_interface(planned, interface),
        *_compare_interface_tensors(planned, interface),
        *compare_certainty(planned),
        *_compare_original_order(planned),
        *_compare_folded(planned),
        *_compare_peak_node(planned),
        *_compare_resident(planned, interface, storages),
        *_compare_model_expressions(planned, interface),
        *_compare_resident_expression(planned, interface, storages),
    ]
    yield from mismatches(comparisons)
    yield from _check_foldable(planned)


def _compare_model_counts(planned: PlannedModel) -> Iterator[Comparison]:
    """Compare a report's numbers of intermediates and of recomputed copies of nodes with those of the model.

    With the original at hand, also its inputs with free dims, and the number of nodes that chunking added.
    """
    report, timeline = planned.plan.report, planned.timeline
    nodes = list(timeline.nodes())
    intermediates = sum(1 for _ in timeline.intermediates())
    yield Comparison("intermediates", report.model.intermediates, intermediates)
    yield Comparison("recomputed nodes", report.recompute.nodes, sum(map(_is_copy, nodes)))
    original = planned.original
    if original is None:
        return
    # ``model.inputs`` has inputs with free dims only.
    yield Comparison("inputs with free dims", report.model.inputs, original.free_inputs)
    if original.graph is not None and not report.folded.tensors:
        added = len(nodes) - _node_count(original.graph) - report.recompute.nodes
        yield Comparison("nodes that chunking added", report.chunked.nodes, added)


def _node_count(graph: GraphProto) -> int:
    """Return the number of nodes of a graph, subgraphs included."""
    inner = (subgraph for node in graph.node for subgraph in subgraphs_of(node))
    return len(graph.node) + sum(map(_node_count, inner))


def _is_copy(node: Node) -> bool:
    """Return whether a node is a recomputed copy of another node, by the names of its outputs."""
    names = [value.name for value in node.outputs if value is not None]
    return bool(names) and all(COPY_MARK in name for name in names)


def _compare_interface(
    planned: PlannedModel, interface: _InterfaceBytes
) -> Iterator[Comparison]:
    """Compare the bytes of weights, inputs, outputs and donated outputs with those counted from the model.

    Bytes can depend on a symbol, as 4 * batch. If the symbol has no value, the report must have None for inputs and 0
    for donated outputs, which are stored in the memory of an input. The bytes of all outputs are not compared then.
    """
    report, dims = planned.plan.report, report_dims(planned.plan)
    memory = report.memory
    yield Comparison("weights", memory.weights, interface.weights)
    if interface.inputs is not None:  # else the model does not tell the shape of an input
        # None if a symbol has no value: the report must have None too.
        yield Comparison("inputs", memory.inputs, evaluate_sum(interface.inputs, dims))
    output_bytes = evaluate_sum(interface.outputs, dims)
    # None if the model does not tell the shape of an output, or a symbol has no value. A graph that ONNX Runtime
    # optimized for one batch size, say, can keep such a symbol, and the report has the bytes at this batch size.
    if output_bytes is not None:
        yield Comparison("outputs", memory.outputs, output_bytes)
    donated_bytes = evaluate_sum(interface.donated, dims) or 0  # a report has 0 for None
    yield Comparison("donated bytes", report.donated.bytes, donated_bytes)


def _compare_interface_tensors(
    planned: PlannedModel, interface: _InterfaceBytes
) -> Iterator[Comparison]:
    """Compare the bytes of each input, output and weight that a report lists with the counted ones.

    A report lists neither strings nor sequences, and no weight of less than a thousandth of all weights. A value
    whose shape the model does not tell, or tells with a symbol that has no number, is not compared.
    """
    main, rows = planned.timeline.main, planned.plan.report.interface
    dims = report_dims(planned.plan)
    recorded = {(row.kind, row.name): row.bytes for row in rows}
    name_of_rows = "rows of inputs, outputs and weights, each once"
    yield Comparison(name_of_rows, len(rows), len(recorded))
    values_by_kind = {
        "input": main.inputs,
        # An output that is an input or a weight is listed as such.
        "output": [value for value in main.outputs if value.is_computed],
        "weight": [v for v in planned.timeline.values() if v.kind is ValueKind.WEIGHT],
    }
    counted: dict[tuple[str, str], int] = {}
    unknown: set[tuple[str, str]] = set()
    for kind, values in values_by_kind.items():
        least = -(-interface.weights // 1000) if kind == "weight" else 0  # rounded up
        for value in values:
            dtype, shape = planned.type_of(value)
            size = evaluate_sum(_total_bytes(planned, [value]), dims)
            if shape is None or None in shape or size is None:
                unknown.add((kind, value.tensor_id))
            elif dtype in ELEMENT_BITS and size >= least:
                counted[kind, value.tensor_id] = size
    for key in sorted((recorded.keys() | counted.keys()) - unknown):
        kind, name = key
        title = f"bytes of {kind} {name[:120]!r}"
        yield Comparison(title, recorded.get(key), counted.get(key))


def _compare_original_order(planned: PlannedModel) -> Iterator[Comparison]:
    """Compare the report's numbers for the order of the file with the plan's numbers, if the plan has this order.

    The report must also name this order as the chosen one exactly if the plan has it.
    """
    report, memory = planned.plan.report, planned.plan.report.memory
    has_other_nodes = report.recompute.nodes or report.chunked.regions
    # None: the order of the file is not known, or has no place for copied or chunked nodes.
    has_file_order = None if has_other_nodes else is_in_file_order(planned)
    # Donations may move nodes after the choice. Then the choice does not tell which order the nodes have.
    if has_file_order is not None and not report.donated.pairs:
        # Another order is chosen only if it costs less, so it is never that of the file.
        was_chosen = report.chosen_order == "file"
        yield Comparison("whether the order of the file is chosen", was_chosen, has_file_order)
    # If sizes are unknown, the report must have None for all these numbers, whatever the order.
    has_no_totals = memory.planned is None
    if has_file_order or has_no_totals:
        yield Comparison("original.live_peak", report.original_live_peak, memory.live_peak)
        yield Comparison("original.planned", report.original_planned, memory.planned)
        yield Comparison("original.resident", report.original_resident, memory.resident)


def _compare_folded(planned: PlannedModel) -> Iterator[Comparison]:
    """Compare the bytes of folded tensors with those of the weights that they are in the written model."""
    weights = {v.tensor_id: v for v in planned.timeline.values() if v.kind is ValueKind.WEIGHT}
    for tensor in planned.plan.report.folded.tensors:
        value = weights.get(tensor.name)
        counted = None if value is None else (_total_bytes(planned, [value]) or {}).get("1", 0)
        yield Comparison(f"bytes of folded {tensor.name[:120]!r}", tensor.bytes, counted)


def _compare_peak_node(planned: PlannedModel) -> Iterator[Comparison]:
    """Compare the node that the report names at its peak with the model's node at this step."""
    peak = planned.plan.report.peak
    if peak is not None:
        yield Comparison("peak.node", peak.node, node_labels(planned).get(peak.step, ""))


def _compare_resident(
    planned: PlannedModel, interface: _InterfaceBytes, storages: Sequence[Storage] | None
) -> Iterator[Comparison]:
    """Compare ``resident``, the most bytes that a runtime holds at one tick, with those counted from the model.

    Nothing is compared if the bytes cannot be counted (`_resident_peak`), or if a partial report, which lacks
    sizes, omits the number.
    """
    report = planned.plan.report
    peak = _resident_peak(planned, interface, storages, report_dims(planned.plan))
    is_omitted = report.partial and report.memory.resident is None
    if peak is not None and not is_omitted:
        yield Comparison("resident", report.memory.resident, peak)


def _resident_peak(
    planned: PlannedModel,
    interface: _InterfaceBytes,
    storages: Sequence[Storage] | None,
    dims: Mapping[str, int],
) -> int | None:
    """Return the most bytes that a runtime holds at one tick, outputs included, at these dims.

    ``storages`` are those of the tensors in a runtime, None if they are unknown. The result is None then, or
    if the bytes of an output or a symbol are unknown.
    """
    outputs = _output_bytes_at(interface, dims)
    if storages is None or outputs is None:
        return None
    tensors = live_bytes_at(planned.plan, storages, dims)
    return None if tensors is None else peak_bytes([*tensors, *outputs])


def _compare_model_expressions(
    planned: PlannedModel, interface: _InterfaceBytes
) -> Iterator[Comparison]:
    """Compare a report's sums in symbols, as ``4*batch + 64``, with the sums counted from the model and the plan."""
    report = planned.plan.report
    plan_sums = total_sums(planned.plan)  # keys: "naive", "planned", "level 2" (plan's level)
    if not is_symbolic(plan_sums["naive"]):
        return  # the sums are numbers: `check_plan_figures` compares these
    if report.partial and not report.symbolic and report.memory.planned is None:
        return  # a report in which sizes are missing may have no sums at all
    inputs, outputs = interface.inputs, interface.outputs
    total = None
    if inputs is not None and outputs is not None:
        # Sums are coefficients by unit. The unit "1" is a byte.
        weights = {"1": interface.weights}
        # Donated bytes are those of outputs stored in the memory of an input: the total has them once.
        minus_donated = {unit: -coefficient for unit, coefficient in interface.donated.items()}
        total = add_sums(weights, inputs, outputs, plan_sums["planned"], minus_donated)
    sums = {**plan_sums, "inputs": inputs, "outputs": outputs, "total": total}
    for name, byte_sum in sums.items():
        text = report.symbolic.get(name)
        recorded = None if text is None else canonical_dim(text)
        # If a sum cannot be counted, the report must not have the sum.
        counted = None if byte_sum is None else canonical_expression(byte_sum)
        yield Comparison(f"{name} in symbols", recorded, counted)


def _compare_resident_expression(
    planned: PlannedModel, interface: _InterfaceBytes, storages: Sequence[Storage] | None
) -> Iterator[Comparison]:
    """Compare values of the expression of ``resident`` with the bytes counted from the model at the same dims.

    ``resident`` is the most bytes that a runtime holds at one tick, those of the tensors in ``storages`` and of the
    outputs. A report may lack the expression, which can be too long for a text. Nothing is compared if the
    storages, or the bytes of an output, are unknown.
    """
    resident = planned.plan.report.symbolic.get("resident")
    if resident is None or storages is None or interface.outputs is None:
        return
    # Units are products of symbols such as ``batch*seq``.
    units = [*(arena.unit for arena in planned.plan.arenas), *interface.outputs]
    # The maximum over ticks has no canonical text, so its values are compared.
    for dims in sample_dims(units):
        peak = _resident_peak(planned, interface, storages, dims)
        if peak is not None:
            recorded = evaluate_expression(resident, dims)
            yield Comparison("resident in symbols", recorded, peak)


def _check_foldable(planned: PlannedModel) -> Iterator[str]:
    """Yield tensors recorded as foldable that are not computed from weights alone, and wrong operators."""
    foldable = planned.plan.report.foldable
    if not foldable:
        return
    constants = _constants(planned.timeline)
    operators = {
        value.tensor_id: node.proto.op_type
        for node in planned.timeline.nodes()
        for value in node.outputs
        if value is not None
    }
    for tensor in foldable:
        if tensor.name not in constants:
            yield f"tensor {tensor.name[:120]!r} is recorded as foldable, but is not computed from weights alone"
        elif tensor.op != operators.get(tensor.name, tensor.op):
            yield f"foldable tensor {tensor.name[:120]!r} is not computed by {tensor.op[:40]!r}"


def _constants(timeline: Timeline) -> Collection[str]:
    """Return the ids of weights, and of tensors computed from weights alone.

    Weights that a caller may replace, because they are inputs of the model too, do not count. Nodes
    that draw random numbers, or of other domains than the standard one, compute no constants.
    """
    replaceable = {proto.name for proto in timeline.main.graph.input}
    constants = {
        value.tensor_id
        for value in timeline.values()
        if value.kind is ValueKind.WEIGHT and value.tensor_id not in replaceable
    }
    for node in timeline.nodes():  # an outer block comes before its subgraphs
        is_repeatable = all(
            inner.proto.domain in STANDARD and not inner.draws_random_numbers
            for inner in node.with_nodes_inside()
        )
        if is_repeatable and all(value.tensor_id in constants for value in node.reads()):
            constants.update(value.tensor_id for value in node.outputs if value is not None)
    return constants


@dataclass(frozen=True, slots=True)
class _InterfaceBytes:
    """Bytes of the weights, inputs and outputs of a model; sums by unit, as ``{"1": 64, "batch": 4}``.

    Attributes:
        weights: of the weights of known bytes.
        inputs, outputs: None if the bytes of one of them are unknown.
        donated: of the outputs that are stored in the memory of a donated input.
        separate_outputs: each output that is not stored in a donated input, as the tick at which it is
            written and its bytes; None if they are unknown.
    """

    weights: int
    inputs: ByteSum | None
    outputs: ByteSum | None
    donated: ByteSum
    separate_outputs: tuple[tuple[int, ByteSum | None], ...]


def _interface_bytes(planned: PlannedModel) -> _InterfaceBytes:
    """Return the bytes of a model's weights, inputs and outputs: ``{"batch": 4}`` for 4 * batch bytes, ``{}`` for 0.

    An output is *donated* if a run writes it to the memory of an input. Other outputs have memory of their own.
    """
    main = planned.timeline.main
    # An output may be listed twice, and counts once. An output that is an input or a weight has no bytes of its own.
    outputs = list(dict.fromkeys(value for value in main.outputs if value.is_computed))
    donated_names = {output for _, output in planned.plan.report.donated.pairs}
    donated = [value for value in outputs if value.name in donated_names]
    separate = [value for value in outputs if value.name not in donated_names]
    return _InterfaceBytes(
        weights=_weight_bytes(planned),
        inputs=_total_bytes(planned, main.inputs),
        outputs=_total_bytes(planned, outputs),
        donated=_total_bytes(planned, donated) or {},  # a report has 0 if they are unknown
        # ``first``, the tick of the first use, is the tick at which an output is written.
        separate_outputs=tuple((v.first, _total_bytes(planned, [v])) for v in separate),
    )


def _weight_bytes(planned: PlannedModel) -> int:
    """Return the bytes of the weights whose declared shapes are numbers."""
    weights = (v for v in planned.timeline.values() if v.kind is ValueKind.WEIGHT)
    sizes = (_bytes_of(planned, weight) for weight in weights)
    return sum(count for count, unit in filter(None, sizes) if unit == "1")


def _bytes_of(planned: PlannedModel, value: Value) -> tuple[int, str] | None:
    """Return the bytes of a value of the model as coefficient and unit; None if they are unknown."""
    dtype, shape = planned.type_of(value)
    return tensor_bytes(shape, dtype, planned.bounds)


def _total_bytes(planned: PlannedModel, values: Iterable[Value]) -> ByteSum | None:
    """Return the bytes of some values, or None if the bytes of one are unknown.

    Strings and sequences, whose shapes do not determine their bytes, are left out, as in a report.
    """
    sums = []
    for value in values:
        dtype, _ = planned.type_of(value)
        is_string_or_sequence = dtype not in ELEMENT_BITS and dtype != "unknown"
        if is_string_or_sequence:
            continue
        size = _bytes_of(planned, value)
        if size is None:  # the dtype or the shape is unknown
            return None
        coefficient, unit = size  # the unit is "1" or a product of symbols
        sums.append({unit: coefficient})
    return add_sums(*sums)


def _output_bytes_at(
    interface: _InterfaceBytes, dims: Mapping[str, int]
) -> list[LiveBytes] | None:
    """Return the bytes of model outputs at these dims, live from their tick to the end of the run.

    Outputs in donated inputs are left out. None if the bytes of one of the others, or a symbol, are unknown.
    """
    intervals = []
    for tick, byte_sum in interface.separate_outputs:
        size = evaluate_sum(byte_sum, dims)
        if size is None:
            return None
        intervals.append(LiveBytes(tick, sys.maxsize, size))
    return intervals


def _runtime_storages(planned: PlannedModel) -> list[Storage] | None:
    """Return the storages of tensors as a runtime has them: only a tensor and its views share one.

    None for models with subgraphs, whose inputs and outputs a runtime shares by other rules.
    """
    if len(planned.timeline.blocks) > 1:
        return None
    rows = [placement for placement, _ in planned.tensors.values()]
    # A pinned tensor has storage of its own for the whole run. `view_bases` lets only tensors of this mapping share.
    arena_and_bytes = {row.id: (row.arena, row.bytes) for row in rows if not row.pinned}
    bases = view_bases(planned.timeline, arena_and_bytes)
    return merge_storages((bases.get(row.id, row.id), row) for row in rows)


def check_bindings(planned: PlannedModel) -> Iterator[str]:
    """Yield where the report's bindings of dims differ from the settings and the model.

    - A dim with a value in the settings has a binding to this value.
    - A dim with bounds in the settings may have a binding: a value at which the model was run.
    - A free dim is any other symbol in the inputs. It has a binding to an assumed value >= 1.
    - A symbol of an input whose shape the settings replace may have a binding, as a free dim has.
    - No other dim has a binding.
    """
    bindings = planned.plan.report.bindings
    settings_dims = planned.plan.settings.get("dims")
    fixed = settings_dims if isinstance(settings_dims, dict) else {}
    if planned.original is not None:
        for name in sorted((fixed.keys() | planned.bounds.keys()) - planned.original.dims):
            yield f"the settings bind dim {name[:120]!r}, which the model does not have"
    free = _input_symbols(planned) - fixed.keys() - planned.bounds.keys()
    may_be_assumed = free | _replaced_symbols(planned)
    for name in sorted((fixed.keys() | free) - bindings.keys()):
        owner = "the settings" if name in fixed else "the plan's inputs"
        yield f"bindings are recorded without dim {name[:120]!r}, which {owner} have"
    for name in sorted(bindings):
        value, source = bindings[name].value, bindings[name].source
        dim = f"dim {name[:120]!r}"
        recorded = f"bindings are recorded with {value} for {dim}"
        bounds = planned.bounds.get(name)
        if name in fixed:
            if value != fixed[name]:
                yield f"{recorded}, the settings have {str(fixed[name])[:40]}"
        elif bounds is not None:
            if value not in bounds.values:
                steps = f" in steps of {bounds.step}" if bounds.step != 1 else ""
                yield f"{recorded}, its bounds are {bounds.low} to {bounds.high}{steps}"
        elif name not in may_be_assumed:
            yield f"bindings are recorded with {dim}, which is not free in the model"
        elif source != "assumed":
            yield f"{recorded} as {source}, and the settings do not give it"
        elif value < 1:
            yield f"{recorded}, an assumed value is at least 1"


def _input_symbols(planned: PlannedModel) -> set[str]:
    """Return the symbols in the shapes of a model's inputs, elements of sequences included."""
    symbols: set[str] = set()
    main_types = planned.types[0]
    for value in planned.timeline.main.inputs:
        _, shape = main_types.get(value.name, ("unknown", None))
        for dim in shape or ():
            symbols |= symbols_of(dim)
    for proto in planned.model.graph.input:
        for element_dim in _element_dims(proto.type):
            if element_dim.dim_param:
                symbols |= symbols_of(element_dim.dim_param)
    return symbols


def _element_dims(kind: TypeProto) -> Iterable[TensorShapeProto.Dimension]:
    """Return the dims of the tensors in a sequence or optional, also nested; none of a tensor."""
    container = kind.WhichOneof("value")
    if container not in ("optional_type", "sequence_type"):
        return ()
    element = getattr(kind, container).elem_type
    return element.tensor_type.shape.dim or _element_dims(element)


def _replaced_symbols(planned: PlannedModel) -> set[str]:
    """Return the symbols that the model has in inputs whose shapes the settings replace.

    The plan is made without these symbols, but a run may bind them.
    """
    shapes = planned.plan.settings.get("shapes")
    replaced_inputs = shapes if isinstance(shapes, dict) else {}
    symbols: set[str] = set()
    for value in planned.model.graph.input:
        if value.name in replaced_inputs:
            for axis, dim in enumerate(value.type.tensor_type.shape.dim):
                # Loading names a nameless dim <input>_dim<axis>. Where a dim is not nameless, nothing has this name.
                symbols |= {f"{value.name}_dim{axis}", *symbols_of(dim.dim_param)}
    return symbols
