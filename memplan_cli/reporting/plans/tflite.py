"""TFLite Micro's offline plan: the words of its metadata, by the tensors of a ``.tflite`` file.

Only what the words need is read of the file: the first subgraph's tensors and operators. The
file is untrusted: every offset in it is checked against its length.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from memplan_cli.core.problem import Buffer, BufferId, Layout, LiveRange, Problem, violations
from memplan_cli.core.untrusted_files import refuse_endless
from memplan_cli.errors import ModelError, PlanError
from memplan_cli.reporting.escape import terminal
from memplan_cli.reporting.plans.exports import check_tflm

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from memplan_cli.core.results.placements import Placement
    from memplan_cli.core.results.plan import Plan

_BYTES: Mapping[int, int] = {
    0: 4, 1: 2, 2: 4, 3: 1, 4: 8, 6: 1, 7: 2, 8: 8, 9: 1, 10: 8, 11: 16, 12: 8, 15: 4, 16: 2,
}  # fmt: skip
"""Bytes of an element by TFLite's ``TensorType``; of others nothing is known."""


@dataclass(frozen=True, slots=True)
class TfliteTensor:
    """A tensor of the file: its bytes, where known, and the operators it is live between."""

    name: str
    bytes: int | None
    live: LiveRange | None
    """None of a constant, an input or an output of the graph: TFLite Micro places those."""


def tflm_of_file(plan: Plan, content: bytes) -> str:
    """Return the words with an offset for each tensor of the first subgraph of a file.

    Tensors are matched by name. What the plan does not hold is left to the runtime.

    Raises:
        ModelError: the content is no TFLite model.
        PlanError: no tensor is in the plan, one is larger there, or two that the file's
            order of operators needs at once would share bytes.
    """
    check_tflm(plan)
    tensors = read_tflite(content)
    places = _matched(plan, tensors)
    _check(tensors, places)
    offsets = [places[at].offset if at in places else -1 for at in range(len(tensors))]
    data = {
        "metadata": "OfflineMemoryAllocation",
        "words": [0, 0, len(offsets), *offsets],
        "tensors": [terminal(tensor.name) for tensor in tensors],
    }
    return json.dumps(data, ensure_ascii=True) + "\n"


def read_bytes(path: Path) -> bytes:
    """Return the content of a TFLite model.

    Raises:
        ModelError: it cannot be read.
    """
    refuse_endless(path, ModelError)
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error


def read_tflite(content: bytes) -> tuple[TfliteTensor, ...]:
    """Return the tensors of the first subgraph of a TFLite model, by index.

    Raises:
        ModelError: it is none.
    """
    if content[4:8] != b"TFL3":
        raise ModelError("the file is no TFLite model: it lacks the mark TFL3")
    try:
        return _tensors(content)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ModelError("the TFLite model is damaged: an offset leads nowhere") from error


def _tensors(content: bytes) -> tuple[TfliteTensor, ...]:
    root = _Table(content, _number(content, "<I", 0))
    graph = root.tables(2)[0]
    buffers = root.tables(4)
    inputs, outputs = graph.numbers(1), graph.numbers(2)
    made: dict[int, int] = {}
    read: dict[int, int] = {}
    operators = graph.tables(3)
    for step, operator in enumerate(operators):
        for index in operator.numbers(1):
            read[index] = step
        for index in operator.numbers(2):
            made.setdefault(index, step)
    found = []
    for index, tensor in enumerate(graph.tables(0)):
        at = tensor.scalar(2, "<I")
        constant = bool(buffers[at].vector(0)) if at else False
        free = not constant and index in made and index not in {*inputs, *outputs}
        live = LiveRange(made[index], read.get(index, made[index]) + 1) if free else None
        found.append(TfliteTensor(tensor.text(3), _size(tensor), live))
    return tuple(found)


def _size(tensor: _Table) -> int | None:
    width = _BYTES.get(tensor.scalar(1, "<b"))
    shape = tensor.numbers(0)
    return None if width is None or any(n < 0 for n in shape) else math.prod(shape) * width


def _matched(plan: Plan, tensors: Sequence[TfliteTensor]) -> dict[int, Placement]:
    """Return the plan's tensor for each of the file's, by index.

    Raises:
        PlanError: there is none at all.
    """
    names = {tensor.id: tensor for tensor in plan.tensors}
    found = {
        at: names[known[0]]
        for at, tensor in enumerate(tensors)
        if tensor.live is not None
        and (known := [n for n in _possible_names(tensor) if n in names])
    }
    if not found:
        free = [tensor.name for tensor in tensors if tensor.live is not None]
        first = free[0] if free else ""
        near = get_close_matches(first, names, 1, 0)
        beside = f": it has {first!r}, the plan {near[0]!r}" if near and first else ""
        raise PlanError(
            f"no tensor of the TFLite model has the name of a planned one{beside}",
            hint="convert the model so that names are kept",
        )
    return found


def _possible_names(tensor: TfliteTensor) -> tuple[str, ...]:
    """Return what a tensor may be called in ONNX: of fused ones a converter joins the names."""
    name = tensor.name.removesuffix(":0")
    return (name, *reversed(name.split(";")))


def _check(tensors: Sequence[TfliteTensor], places: Mapping[int, Placement]) -> None:
    """Refuse a plan that does not hold for the file's own sizes and order of operators.

    Raises:
        PlanError: a tensor is larger than its place, or two that are live at once overlap.
    """
    buffers, offsets = [], {}
    for at, place in places.items():
        tensor = tensors[at]
        if tensor.bytes is None or tensor.bytes > place.bytes or tensor.live is None:
            needs = "an unknown number of" if tensor.bytes is None else tensor.bytes
            raise PlanError(
                f"{tensor.name!r} takes {needs} bytes in the TFLite model and {place.bytes} "
                "in the plan"
            )
        name = BufferId(str(at))
        buffers.append(Buffer(name, tensor.bytes, tensor.live))
        offsets[name] = place.offset
    height = max(offsets[b.id] + b.size for b in buffers)
    wrong = violations(Problem(tuple(buffers)), Layout(offsets, height))
    if wrong:
        names = " and ".join(repr(tensors[int(name)].name) for name in wrong[0].buffers)
        raise PlanError(
            f"{names} would share bytes while both are needed: the operators of the TFLite "
            "model run in another order than the plan's",
            hint="plan with --order keep, and at --level 1, which computes nothing in place",
        )


def _number(content: bytes, form: str, at: int) -> int:
    if at < 0:
        raise IndexError(at)
    (found,) = struct.unpack_from(form, content, at)
    assert isinstance(found, int)  # noqa: S101 - the forms here are of whole numbers
    return found


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of a flatbuffer: fields by their number in the schema."""

    content: bytes
    at: int

    def _field(self, number: int) -> int | None:
        """Return where a field lies; None where it has its default."""
        fields = self.at - _number(self.content, "<i", self.at)
        if 4 + 2 * number >= _number(self.content, "<H", fields):
            return None
        distance = _number(self.content, "<H", fields + 4 + 2 * number)
        return self.at + distance if distance else None

    def scalar(self, number: int, form: str) -> int:
        """Return a number; 0 where it is not there."""
        at = self._field(number)
        return 0 if at is None else _number(self.content, form, at)

    def vector(self, number: int) -> range:
        """Return where the elements of a vector lie, where they are of four bytes."""
        at = self._field(number)
        if at is None:
            return range(0)
        start = at + _number(self.content, "<I", at)
        count = _number(self.content, "<I", start)
        return range(start + 4, start + 4 + 4 * count, 4)

    def numbers(self, number: int) -> tuple[int, ...]:
        """Return a vector of int32."""
        return tuple(_number(self.content, "<i", at) for at in self.vector(number))

    def tables(self, number: int) -> tuple[_Table, ...]:
        """Return a vector of tables."""
        places = self.vector(number)
        return tuple(
            _Table(self.content, at + _number(self.content, "<I", at)) for at in places
        )

    def text(self, number: int) -> str:
        """Return a string."""
        at = self._field(number)
        if at is None:
            return ""
        start = at + _number(self.content, "<I", at)
        count = _number(self.content, "<I", start)
        return self.content[start + 4 : start + 4 + count].decode("utf-8")
