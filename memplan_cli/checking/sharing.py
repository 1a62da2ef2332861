"""Checks of shared memory: tensors with the same bytes, and outputs stored in donated inputs.

When a tensor is written, every other tensor with the same bytes must be dead, or one of these
must hold: both are views of the same value; the other tensor ends at this node, which may
overwrite it in place; the other tensor is the result of the subgraph that the node selected; both
are in different branches of an If, of which one runs.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from memplan_cli.checking.operators import IN_PLACE_INPUTS, VIEWS
from memplan_cli.core.symbolic.sizes import size_of

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence

    from memplan_cli.checking.timeline import Node, PlacedTensor, PlannedModel, Timeline, Value
    from memplan_cli.core.results.placements import Placement


def check_sharing(planned: PlannedModel) -> Iterator[str]:
    """Yield errors of tensors that share bytes by ``alias_of``.

    These are wrong aliases, tensors written over one that is still needed, and states of a loop in the bytes of
    its inputs. `check_layout` finds tensors that overlap without an alias. All sizes are known: `check_tensors`
    has checked them.
    """
    groups: defaultdict[str, list[PlacedTensor]] = defaultdict(list)
    for tensor_id, tensor in planned.tensors.items():
        row = tensor.placement
        if row.alias_of is not None:
            yield from _check_alias(row, planned)
        groups[row.alias_of or tensor_id].append(tensor)
    shared = {base: tensors for base, tensors in groups.items() if len(tensors) > 1}
    if not shared:
        return
    # The buffer of each value that shares bytes is named after the tensor that is no alias.
    buffers = {id(value): base for base, tensors in shared.items() for _, value in tensors}
    view_sources = _view_sources(planned.timeline)
    for tensors in shared.values():
        yield from _check_overwrites(tensors, view_sources, buffers)
    for node in planned.timeline.nodes():
        if node.repeats:
            yield from _check_loop_state(node, buffers)


def _check_alias(row: Placement, planned: PlannedModel) -> Iterator[str]:
    """Yield errors of a tensor with ``alias_of``: it must have the place of the tensor named there.

    The level must allow sharing, the other tensor must not be an alias, and neither may be pinned.
    """
    base = planned.tensors.get(row.alias_of or "")
    name = f"tensor {row.id[:120]!r}"
    level = planned.plan.report.level
    if level < 2:
        yield f"{name} shares bytes, which is not allowed at level {level}"
    elif base is None or base.placement.alias_of is not None:
        yield f"{name} shares the bytes of {str(row.alias_of)[:120]!r}, which has no bytes of its own"
    else:
        other = base.placement
        place = row.arena, row.offset, row.bytes, row.slot
        if place != (other.arena, other.offset, other.bytes, other.slot):
            yield f"{name} shares the bytes of {other.id[:120]!r}, but has another place"
        if row.pinned or other.pinned:
            yield f"{name} shares the bytes of {other.id[:120]!r}, and one of them is pinned"


def viewed_value(value: Value) -> Value | None:
    """Return the value of which this value is a direct view, or None if it is not a view."""
    node = value.producer
    if node is None or node.operator not in VIEWS or not node.inputs:
        return None
    return node.inputs[0] if node.outputs[0] is value else None


def view_bases(timeline: Timeline, sizes: Mapping[str, Hashable]) -> Mapping[str, str]:
    """Return, for each tensor of ``sizes``, the tensor in whose bytes it lies: itself, or the base of a view.

    ``sizes`` has the size of each tensor that may share bytes, by id. A view lies in the bytes of the viewed tensor,
    except in two cases: their sizes differ, or the view is an output of a repeated subgraph and its base an input.
    """
    bases = {name: name for name in sizes}
    repeated = [block for node in timeline.nodes() if node.repeats for block in node.subgraphs]
    inputs = {value.tensor_id for block in repeated for value in block.inputs}
    outputs = {value.tensor_id for block in repeated for value in block.outputs}
    for view in timeline.values():  # a value comes before its views
        viewed, name = viewed_value(view), view.tensor_id
        if viewed is None or name not in bases or viewed.tensor_id not in bases:
            continue
        base = bases[viewed.tensor_id]
        # After an iteration the runtime copies outputs into inputs, one after the other. If outputs 1 and 2 were
        # views of inputs 2 and 1, the copy of output 1 would overwrite output 2 before it is copied.
        is_copied = name in outputs and base in inputs
        if not is_copied and sizes[viewed.tensor_id] == sizes[name]:
            bases[name] = base
    return bases


def _view_sources(timeline: Timeline) -> Mapping[int, Value]:
    """Return the value at the start of each view's chain of views, by the ``id`` of the view."""
    sources: dict[int, Value] = {}
    for value in timeline.values():  # a value comes before its views
        viewed = viewed_value(value)
        if viewed is not None:
            sources[id(value)] = sources.get(id(viewed), viewed)
    return sources


def _check_overwrites(
    tensors: Sequence[PlacedTensor],
    view_sources: Mapping[int, Value],
    buffers: Mapping[int, str],
) -> Iterator[str]:
    """Yield each of the ``tensors`` of a buffer that is written while another one is still needed.

    Args:
        tensors: the tensors that share the bytes of the buffer.
        view_sources: the value at the start of each view's chain of views, by ``id`` of the view.
        buffers: the name of the buffer of each value that shares bytes, by ``id`` of the value.
    """
    live_tensors: list[PlacedTensor] = []
    for tensor in sorted(tensors, key=lambda tensor: (tensor.value.first, tensor.value.end)):
        value = tensor.value
        live_tensors = [other for other in live_tensors if other.value.end > value.first]
        for other in live_tensors:
            may_share = _in_different_branches(value, other.value)
            if not may_share and not _is_view_or_in_place(
                tensor, other, view_sources, buffers
            ):
                yield (
                    f"tensor {tensor.placement.id[:120]!r} is written at tick {value.first} over "
                    f"{other.placement.id[:120]!r}, which is needed until tick {other.value.end - 1}"
                )
        live_tensors.append(tensor)


def _is_view_or_in_place(
    tensor: PlacedTensor,
    other: PlacedTensor,
    view_sources: Mapping[int, Value],
    buffers: Mapping[int, str],
) -> bool:
    """Return whether a tensor may be written to the bytes of ``other``, which is live then and has the same size.

    It may if both tensors are views of one value, or if ``other`` ends at the tensor's producer, which may overwrite
    ``other``. ``view_sources`` has the value at the start of each view's chain of views, by ``id`` of the view;
    ``buffers`` has the name of the buffer of each value that shares bytes, by ``id`` of the value.
    """
    (row, value), (other_row, other_value) = tensor, other
    if size_of(row.shape, row.dtype) != size_of(other_row.shape, other_row.dtype):
        return False
    # A value that is no view is its own source.
    source = view_sources.get(id(value), value)
    other_source = view_sources.get(id(other_value), other_value)
    if source is other_source:
        return True
    is_last_read = other_value.end - 1 == value.first
    return is_last_read and _may_overwrite(value, other_value, buffers)


def _may_overwrite(value: Value, other: Value, buffers: Mapping[int, str]) -> bool:
    """Return whether the producer of a value may write it over ``other``, which ends at this node.

    ``buffers`` has the buffer of each value that shares bytes, by ``id``; both values have the same.

    - An If may return ``other``, an output of the branch that it ran, as this value.
    - A Loop or Scan may overwrite nothing.
    - Any other node may write its first output over ``other`` if it reads the buffer as ``other`` only, and
      only at inputs that its operator may overwrite.
    """
    node = value.producer
    if node is None:
        return False
    if node.selects_subgraph:
        branch = other.block
        # A graph that is not valid can have fewer outputs on one side.
        returned = zip(node.outputs, branch.outputs, strict=False)
        return branch in node.subgraphs and (value, other) in returned
    if node.subgraphs or node.outputs[0] is not value:
        return False
    in_place = IN_PLACE_INPUTS.get(node.operator, ())
    reads_of_buffer = [
        (position, read)
        for position, read in enumerate(node.inputs)
        if read is not None and buffers.get(id(read)) == buffers[id(value)]
    ]
    return bool(reads_of_buffer) and all(
        position in in_place and read is other for position, read in reads_of_buffer
    )


def _in_different_branches(value: Value, other: Value) -> bool:
    """Return whether two values are in different branches of the same If."""
    if value.block is other.block:
        return False
    branches = dict(_enclosing_branches(value))
    return any(
        node in branches and branches[node] != branch
        for node, branch in _enclosing_branches(other)
    )


def _enclosing_branches(value: Value) -> Iterator[tuple[int, int]]:
    """Yield the If nodes around a value, each with the branch the value is in, by ``id``."""
    block = value.block
    while block.parent is not None:
        if block.parent.selects_subgraph:
            yield id(block.parent), id(block)
        block = block.parent.block


def _check_loop_state(node: Node, buffers: Mapping[int, str]) -> Iterator[str]:
    """Yield an error for each output of a repeated subgraph that shares bytes with one of its inputs.

    An output is passed to the next iteration while this iteration's inputs are still live. An input that is
    returned unchanged is no error: it is one value. ``buffers`` has the buffer of each value that shares
    bytes, by ``id`` of the value.
    """
    for subgraph in node.subgraphs:
        # Two inputs in one buffer are an error of `_check_overwrites`: both are live from the first tick.
        input_of_buffer = {
            buffers[id(value)]: value for value in subgraph.inputs if id(value) in buffers
        }
        for output in subgraph.outputs:
            shared = input_of_buffer.get(buffers.get(id(output), ""))
            if shared is not None and shared is not output:
                yield (
                    f"tensor {output.tensor_id[:120]!r} is passed to the next iteration and shares the "
                    f"bytes of {shared.tensor_id[:120]!r}, an input of this iteration"
                )


_Readers = dict[int, list["Node"]]
"""The nodes that read a value, themselves or in their subgraphs, by the ``id`` of the value."""


def check_donation(planned: PlannedModel) -> Iterator[str]:
    """Yield each invalid pair of a donated input and the output that is stored in its memory.

    Both must exist, occur in one pair only, and have the same dtype and shape. The input and its
    views must not be read after the output is written, nor be outputs themselves.
    """
    pairs = planned.plan.report.donated.pairs
    if not pairs:
        return
    main = planned.timeline.main
    inputs = {value.name: value for value in main.inputs}
    outputs = {value.name: value for value in main.outputs}
    readers = _readers(planned.timeline)
    names_seen: set[str] = set()
    for input_name, output_name in pairs:
        pair = f"{input_name[:120]!r} is donated to {output_name[:120]!r}"
        donated, output = inputs.get(input_name), outputs.get(output_name)
        if donated is None or output is None or output.producer is None:
            yield f"{pair}: the model has no such input or computes no such output"
            continue
        if not names_seen.isdisjoint((input_name, output_name)):
            yield f"{pair}, and one of them is in another pair"
        names_seen.update((input_name, output_name))
        if planned.type_of(donated) != planned.type_of(output):
            yield f"{pair}, which is of another type or shape"
        donated_ids = _ids_with_views(donated, readers)
        late_reader = _late_reader(donated, output, output.producer, donated_ids, readers)
        if late_reader:
            yield f"{pair}, and {late_reader} needs the input after the output is written"
        elif any(id(value) in donated_ids for value in main.outputs if value is not output):
            yield f"{pair}, and the caller needs the input after the output is written"


def _readers(timeline: Timeline) -> _Readers:
    """Return the nodes that read each value."""
    readers: defaultdict[int, list[Node]] = defaultdict(list)
    for node in timeline.nodes():
        for value_id in dict.fromkeys(map(id, node.reads())):
            readers[value_id].append(node)
    return readers


def _ids_with_views(value: Value, readers: _Readers) -> set[int]:
    """Return the ``id`` of a value and of all its direct and indirect views."""
    ids, pending = {id(value)}, [value]
    while pending:
        base = pending.pop()
        for node in readers.get(id(base), ()):
            output = node.outputs[0] if node.outputs else None
            if output is not None and viewed_value(output) is base:
                ids.add(id(output))
                pending.append(output)
    return ids


def _late_reader(
    donated: Value, output: Value, writer: Node, donated_ids: set[int], readers: _Readers
) -> str:
    """Return the quoted title of the first node that reads a donated input or a view of it too late.

    ``donated_ids`` has the ``id`` of the donated input and of its views. The ``writer`` of the output writes
    it to the input's memory. A node that starts after the writer's last tick is too late, and so is the
    writer itself if it may not overwrite what it reads, or what nodes in its subgraphs read. Empty if
    there is no such node.
    """
    nodes = {id(node): node for value_id in donated_ids for node in readers.get(value_id, ())}
    for node in sorted(nodes.values(), key=lambda node: node.start):
        if node is writer:  # also counts as a reader of what its subgraphs read
            is_late = not _may_overwrite_input(node, donated, output, donated_ids)
        else:
            is_late = node.start > writer.last
        if is_late:
            return repr(node.title)
    return ""


def _may_overwrite_input(
    node: Node, donated: Value, output: Value, donated_ids: Collection[int]
) -> bool:
    """Return whether a node may write its first output over a donated input that it reads.

    ``donated_ids`` has the ``id`` of the donated input, and of each view of it: a value with the same bytes.
    """
    if node.outputs[0] is not output or node.subgraphs:
        return False
    in_place = IN_PLACE_INPUTS.get(node.operator, ())
    # A read view is refused: its elements can have other positions, and be overwritten before they are read.
    return all(
        value is donated and position in in_place
        for position, value in enumerate(node.inputs)
        if id(value) in donated_ids
    )
