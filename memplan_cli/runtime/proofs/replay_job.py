"""Run a model op by op, every planned tensor at its offset inside poisoned arenas."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from memplan_cli.core.check import Tolerance
from memplan_cli.core.deserialization import from_json
from memplan_cli.core.operators import operator
from memplan_cli.core.results.observations import CPU, UNOPTIMISED, Difference
from memplan_cli.core.serialization import to_json
from memplan_cli.onnx_io.runs.node_models import NodeModels
from memplan_cli.onnx_io.types import array_dtype, element_type, unpacked
from memplan_cli.runtime.profile.type_names import word_of
from memplan_cli.runtime.proofs.places import Place
from memplan_cli.runtime.workers.memory import DeviceMemory, HostMemory, Memory
from memplan_cli.runtime.workers.outputs import against, save
from memplan_cli.runtime.workers.running import FOREIGN, array_of, ort_value
from memplan_cli.runtime.workers.session import deterministic, make_session
from memplan_cli.runtime.workers.spec import InputSet, SessionSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from onnx import NodeProto

    from memplan_cli.runtime.workers.worker import Json


_NO_ARRAYS = ("seq(", "map(")
"""How the runtime's types begin whose values it gives as lists and dicts alone."""


@dataclass(slots=True)
class _Replay:
    cutter: NodeModels
    provider: str
    memory: Callable[[int], Memory]
    """Makes memory of so many bytes where the provider computes."""
    arenas: Mapping[str, Memory]
    places: Mapping[str, Place]
    values: dict[str, Any]
    digests: dict[str, str] = field(default_factory=dict)
    bound: set[str] = field(default_factory=set)
    """The tensors that have lain where the plan says."""

    def step(self, node: NodeProto) -> None:
        """Run one op: inputs and outputs lie where the plan says.

        Raises:
            ValueError: the plan's order has it before an op whose result it reads.
        """
        reads = self.cutter.reads(node)
        early = [name for name in reads if name not in self.values and name not in self.bound]
        if early:
            who = node.name or node.op_type
            raise ValueError(
                f"node {who!r} reads {early[0]!r} before the plan's order makes it"
            )
        types = {name: self._type(name) for name in reads if not self.cutter.is_map(name)}
        model = self.cutter.one_op(node, types)
        settings = UNOPTIMISED.updated(deterministic(self.provider))
        session = make_session(model, settings, self.provider)
        names = [name for name in node.output if name]
        given = (output.type for output in session.get_outputs())
        if any(_is_plain(self.values.get(name)) for name in reads) or any(
            kind.startswith(_NO_ARRAYS) for kind in given
        ):
            self._copy_through(session, reads, names)
            return
        binding = session.io_binding()
        for name in reads:
            self._bind_input(binding, name)
        aside = self._aside(node, names)
        for name in names:
            self._bind_output(binding, name, aside.get(name))
        session.run_with_iobinding(binding)
        for name, memory in aside.items():
            place = self.places[name]
            self.arenas[place.arena].write(place.offset, memory.read(0, place.bytes))
        for name, value in zip(names, binding.get_outputs(), strict=True):
            if not self._is_bound(name):
                self.values[name] = value
        self._remember(names)

    def _aside(self, node: NodeProto, names: list[str]) -> dict[str, Memory]:
        """Return memory for what is written to its place when the node has run.

        A plan's If gives its outputs when the branch is done, and they may lie on what the
        branch read. The runtime runs a branch in an order of its own, and writes results of
        it as outputs while others still read.
        """
        if not operator(node).runs_one_body:
            return {}
        bound = [name for name in names if self._is_bound(name)]
        return {name: self.memory(self.places[name].bytes) for name in bound}

    def _remember(self, names: list[str]) -> None:
        """Keep what pinned tensors are when they are made: they must be so in the end."""
        self.bound.update(name for name in names if self._is_bound(name))
        for name in names:
            if self._is_bound(name) and self.places[name].pinned:
                self.digests[name] = self._digest(self.places[name])

    def _copy_through(self, session: Any, reads: tuple[str, ...], names: list[str]) -> None:  # noqa: ANN401 - ONNX Runtime has no types
        """Run an op on strings or sequences, which cannot be bound; copy what can be."""
        feed = {name: self.result(name) for name in reads}
        for name, value in zip(names, session.run(names, feed), strict=True):
            if self._is_bound(name):
                place = self.places[name]
                self.arenas[place.arena].write(place.offset, np.asarray(value).tobytes())
            else:
                self.values[name] = _value(value)
        self._remember(names)

    def _is_bound(self, name: str) -> bool:
        return name in self.places and self.places[name].bytes > 0

    def _type(self, name: str) -> str:
        if self._is_bound(name):
            dtype = self.places[name].dtype
            return f"tensor({word_of(dtype)})"
        value = self.values[name]
        if isinstance(value, list):
            dtype = str(value[0].dtype) if value else "float32"
            return f"seq(tensor({word_of(dtype)}))"
        return "tensor(string)" if _is_plain(value) else str(value.data_type())

    def _bind_input(self, binding: Any, name: str) -> None:  # noqa: ANN401 - ONNX Runtime has no types
        if not self._is_bound(name):
            binding.bind_ortvalue_input(name, self.values[name])
            return
        binding.bind_input(name, *self._memory_of(name))

    def _bind_output(self, binding: Any, name: str, aside: Memory | None) -> None:  # noqa: ANN401 - ONNX Runtime has no types
        if not self._is_bound(name):
            binding.bind_output(name, "cpu")
            return
        binding.bind_output(name, *self._memory_of(name, aside))

    def _memory_of(self, name: str, aside: Memory | None = None) -> tuple[object, ...]:
        """Return a tensor's device, its number, type, shape and address, for a binding.

        The type goes by ONNX's number for it: numpy knows no int4 and no float8.
        """
        place = self.places[name]
        memory = aside or self.arenas[place.arena]
        address = memory.address + (0 if aside else place.offset)
        return memory.device, 0, element_type(place.dtype), place.shape, address

    def bury(self, node: NodeProto, dead: list[Place]) -> None:
        """Make the bytes of dead tensors unusable.

        What a subgraph made, or read last, is dead before its control-flow node writes its
        outputs: these may lie on it. Of any other op, inputs and outputs never overlap.
        """
        owns_bodies = any(attribute.HasField("g") for attribute in node.attribute)
        names = [name for name in node.output if self._is_bound(name)] if owns_bodies else []
        written = [self.places[name] for name in names]
        for place in dead:
            arena = self.arenas[place.arena]
            kept = [(w.offset, w.offset + w.bytes) for w in written if w.arena == place.arena]
            for start, end in _without((place.offset, place.offset + place.bytes), kept):
                arena.poison(start, end - start)

    def _digest(self, place: Place) -> str:
        data = self.arenas[place.arena].read(place.offset, place.bytes)
        return hashlib.blake2b(data).hexdigest()

    def overwritten(self) -> list[Difference]:
        """Return the pinned tensors that are not what they were when they were made."""
        return [
            Difference(name, 0, 0.0, 1, "an excluded tensor was overwritten")
            for name, digest in self.digests.items()
            if self._digest(self.places[name]) != digest
        ]

    def result(self, name: str) -> Any:  # noqa: ANN401 - array or list
        """Return a value as numpy has it."""
        if self._is_bound(name):
            place = self.places[name]
            data = self.arenas[place.arena].read(place.offset, place.bytes)
            if place.dtype in FOREIGN:
                return unpacked(data, place.dtype, place.shape)
            return np.frombuffer(data, place.dtype).reshape(place.shape)
        value = self.values[name]
        return value if _is_plain(value) else array_of(value)


def _without(span: tuple[int, int], holes: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield what is left of a half-open range when others are cut out."""
    start, end = span
    for low, high in sorted(holes):
        if high <= start or low >= end:
            continue
        if low > start:
            yield start, low
        start = max(start, high)
    if start < end:
        yield start, end


def run(job: Json) -> Json:
    """Replay the session's model and hold its outputs against those in ``folder``.

    With ``save`` the outputs are put there instead.

    ``order`` has the nodes at the top by their index in the file, and ``dies`` of a tensor is
    the place there of the node after which it is poisoned. ``bound`` of what is returned are
    the tensors that lay at their offsets.
    """
    spec = SessionSpec.of_job(job)
    entries: Any = job["places"]
    places = [from_json(Place, entry, "the job") for entry in entries]
    replay = _start(spec, job["arenas"], [place for place in places if not place.block])
    feed = InputSet.of_job(job).draw()
    replay.values.update({name: _value(value) for name, value in feed.items()})
    doomed: dict[int, list[Place]] = {}
    for place in places:
        doomed.setdefault(place.dies, []).append(place)
    nodes, order = replay.cutter.nodes(), cast("list[int]", job["order"])
    for index, node in enumerate(nodes[at] for at in order):
        if not replay.cutter.is_constant(node):
            replay.step(node)
        replay.bury(node, doomed.get(index, []))
    wanted = [str(name) for name in job["outputs"]]  # type: ignore[attr-defined]
    weights = replay.cutter.weights
    names = [name for name in wanted if name not in weights]
    values = [replay.result(name) for name in names]
    if job["save"]:
        save(Path(str(job["folder"])), wanted, names, values)
        return {"differences": [], "bound": sorted(replay.bound)}
    found = against(Path(str(job["folder"])), wanted, names, values, Tolerance())
    everything = to_json((*found, *replay.overwritten()))
    return {"differences": everything, "bound": sorted(replay.bound)}


def _start(spec: SessionSpec, heights: Any, places: list[Place]) -> _Replay:  # noqa: ANN401 - JSON
    memory = HostMemory if spec.provider == CPU else DeviceMemory
    arenas = {name: memory(height) for name, height in heights.items()}
    cutter = NodeModels.of(spec.model)
    placed = {place.name: place for place in places}
    return _Replay(cutter, spec.provider, memory, arenas, placed, {})


def _value(value: Any) -> Any:  # noqa: ANN401 - ONNX Runtime has no types
    """Return a value as the runtime's own; strings, sequences and maps stay as they are."""
    if isinstance(value, list | dict) or value.dtype.kind in "OUS":
        return value
    return ort_value(value, array_dtype(value))


def _is_plain(value: Any) -> bool:  # noqa: ANN401 - ONNX Runtime has no types
    return isinstance(value, list | dict | np.ndarray)
