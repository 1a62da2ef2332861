"""Job: run a model op by op, with every planned tensor at its offset inside poisoned arenas."""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from memplan_cli.core.check import Tolerance
from memplan_cli.core.deserialization import from_json
from memplan_cli.core.operators import operator
from memplan_cli.core.results.observations import CPU, UNOPTIMIZED, Difference
from memplan_cli.core.serialization import to_json
from memplan_cli.onnx_io.runs.node_models import NodeModels
from memplan_cli.onnx_io.types import array_dtype, element_type, unpacked
from memplan_cli.runtime.profile.type_names import runtime_type_of
from memplan_cli.runtime.replay.placements import BoundPlacement
from memplan_cli.runtime.workers.ort_values import (
    NOT_IN_NUMPY,
    array_of,
    ort_value,
)
from memplan_cli.runtime.workers.outputs import compare_with_saved, save_values
from memplan_cli.runtime.workers.session import deterministic, make_session
from memplan_cli.runtime.workers.spec import InputSet, SessionSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from onnx import NodeProto

    from memplan_cli.core.json_types import Json

POISON = 0xFF
"""The value of every free byte: all ones are NaN in every float type, -1 in integers."""

_CUDA_HOST_TO_DEVICE, _CUDA_DEVICE_TO_HOST = 1, 2

_CUDA_RUNTIMES = ("libcudart.so.13", "libcudart.so.12", "cudart64_13.dll", "cudart64_12.dll")

_PAGE = 4096
"""Arenas begin at a multiple of this number of bytes."""

_UNBINDABLE_TYPES = ("seq(", "map(")
"""Prefixes of ONNX Runtime's types whose values are Python lists and dicts."""


# ---- arenas ----


class ReplayArena(Protocol):
    """Contiguous memory on the device of a provider, poisoned when it is created.

    Attributes:
        device: ONNX Runtime's name of the device.
        address: of the first byte.
    """

    device: str
    address: int

    def poison(self, offset: int, size: int) -> None:
        """Overwrite bytes with `POISON`."""

    def read(self, offset: int, size: int) -> bytes:
        """Return a copy of bytes in host memory."""

    def write(self, offset: int, data: bytes) -> None:
        """Overwrite bytes with data from host memory."""


class HostReplayArena:
    """An arena in the memory of this process."""

    device = "cpu"

    def __init__(self, size: int) -> None:
        self._memory = np.full(size + _PAGE, POISON, np.uint8)
        start = -self._memory.ctypes.data % _PAGE
        self._bytes = self._memory[start : start + size]
        self.address = int(self._memory.ctypes.data) + start

    def poison(self, offset: int, size: int) -> None:
        """Overwrite bytes with `POISON`."""
        self._bytes[offset : offset + size] = POISON

    def read(self, offset: int, size: int) -> bytes:
        """Return a copy of bytes."""
        return self._bytes[offset : offset + size].tobytes()

    def write(self, offset: int, data: bytes) -> None:
        """Overwrite bytes."""
        self._bytes[offset : offset + len(data)] = np.frombuffer(data, np.uint8)


class DeviceReplayArena:
    """An arena on CUDA device 0, in the memory of one ``OrtValue``."""

    device = "cuda"

    def __init__(self, size: int) -> None:
        import onnxruntime as ort

        self._value = ort.OrtValue.ortvalue_from_shape_and_type(
            [max(size, 1)], np.uint8, "cuda", 0
        )
        self.address = int(self._value.data_ptr())
        self._cuda = _cuda_runtime()
        self.poison(0, size)

    def poison(self, offset: int, size: int) -> None:
        """Overwrite bytes with `POISON`."""
        address = ctypes.c_void_p(self.address + offset)
        self._check(self._cuda.cudaMemset(address, POISON, ctypes.c_size_t(size)))
        self._check(self._cuda.cudaDeviceSynchronize())

    def read(self, offset: int, size: int) -> bytes:
        """Return a copy of bytes in host memory."""
        self._check(self._cuda.cudaDeviceSynchronize())
        data = ctypes.create_string_buffer(size)
        address = ctypes.c_void_p(self.address + offset)
        self._copy(data, address, size, _CUDA_DEVICE_TO_HOST)
        return data.raw

    def write(self, offset: int, data: bytes) -> None:
        """Overwrite bytes with data from host memory."""
        address = ctypes.c_void_p(self.address + offset)
        self._copy(address, ctypes.c_char_p(data), len(data), _CUDA_HOST_TO_DEVICE)

    def _copy(self, target: object, source: object, size: int, direction: int) -> None:
        self._check(self._cuda.cudaMemcpy(target, source, ctypes.c_size_t(size), direction))

    @staticmethod
    def _check(error_code: int) -> None:
        if error_code:
            raise OSError(f"the CUDA runtime returned error {error_code}")


def _cuda_runtime() -> ctypes.CDLL:
    """Return the CUDA runtime library that ONNX Runtime has loaded, or else one that can be loaded.

    A system may have several versions. Only Linux can be asked for a library that is loaded already.

    Raises:
        OSError: there is none.
    """
    only_if_loaded = ctypes.DEFAULT_MODE | getattr(os, "RTLD_NOLOAD", 0)
    for mode in (only_if_loaded, ctypes.DEFAULT_MODE):
        for name in _CUDA_RUNTIMES:
            try:
                return ctypes.CDLL(name, mode)
            except OSError:
                continue
    raise OSError("the CUDA runtime library is not loaded")


# ---- the replay ----


def replay_and_compare(job: Json) -> Json:
    """Job: replay a model, and compare its outputs with those that were saved, or save them.

    Each tensor is computed at its place. A place is poisoned when it is free, so that a node which still reads it
    gives wrong outputs.

    Args:
        job: ``session`` and ``inputs``: of the model; ``places``: a `BoundPlacement` of each
            tensor; ``arenas``: bytes of each arena; ``order``: for each position in the plan's
            order, the index of the node in the file; ``outputs``: names; ``folder``: where the
            outputs were saved; ``save``: whether to save the outputs there, and compare nothing.

    Returns:
        ``differences`` of outputs, and of pinned tensors that were overwritten; ``bound``: the
        tensors that were put at their offsets.
    """
    spec = SessionSpec.of_job(job)
    placements = [from_json(BoundPlacement, entry, "the job") for entry in job["places"]]
    new_arena = HostReplayArena if spec.provider == CPU else DeviceReplayArena
    replay = _Replay(
        node_models=NodeModels.of(spec.model),
        provider=spec.provider,
        new_arena=new_arena,
        arenas={name: new_arena(height) for name, height in job["arenas"].items()},
        # The runtime runs subgraphs in memory of its own: their tensors are not put at their places.
        places={place.name: place for place in placements if not place.block},
    )
    feed = InputSet.of_job(job).draw()
    replay.values.update({name: _runtime_value(value) for name, value in feed.items()})
    # Places in subgraphs are poisoned too: that shows if a wrong plan put them on a tensor in use.
    replay.run_nodes(job["order"], placements)
    outputs: list[str] = job["outputs"]
    # Outputs that are weights are not computed, so they are neither saved nor compared.
    values = {
        name: replay.array(name) for name in outputs if name not in replay.node_models.weights
    }
    differences: list[Difference] = []
    if job["save"]:
        save_values(Path(job["folder"]), outputs, values)
    else:
        differences = compare_with_saved(Path(job["folder"]), outputs, values, Tolerance())
        differences += replay.overwritten()
    return {"differences": to_json(differences), "bound": sorted(replay.in_arenas)}


@dataclass(slots=True)
class _Replay:
    """A replay in progress: the arenas, and the values outside of them.

    Attributes:
        node_models: the model, from which models of single nodes are cut.
        provider: where the nodes run.
        new_arena: allocates memory of so many bytes on the provider's device.
        arenas: the arenas of the plan, by id.
        places: the planned tensors of the top block, by name.
        values: values that lie in no arena, by name: ``OrtValue``, or the lists, dicts and arrays
            of strings that cannot be bound.
        digests: hashes of pinned tensors when they were computed, by which `overwritten` finds changes.
        in_arenas: names of the tensors that were computed and put at their offsets.
    """

    node_models: NodeModels
    provider: str
    new_arena: Callable[[int], ReplayArena]
    arenas: Mapping[str, ReplayArena]
    places: Mapping[str, BoundPlacement]
    values: dict[str, Any] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    in_arenas: set[str] = field(default_factory=set)

    def run_nodes(self, order: Sequence[int], placements: Iterable[BoundPlacement]) -> None:
        """Run the nodes in an order, and poison the place of each tensor once it is freed.

        ``order`` has the index of each node in the file. Tensors of subgraphs are among the ``placements``.
        """
        # By position in the order.
        freed_at: dict[int, list[BoundPlacement]] = defaultdict(list)
        for place in placements:
            if place.freed_after is not None:
                freed_at[place.freed_after].append(place)
        nodes = self.node_models.nodes()
        for position, index in enumerate(order):
            if not self.node_models.is_constant(nodes[index]):
                self.run_node(nodes[index])
            # A node that reads these bytes later gives wrong outputs.
            self.poison_freed(nodes[index], freed_at[position])

    def run_node(self, node: NodeProto) -> None:
        """Run one node; read its placed inputs from the arenas, and write its placed outputs there.

        Placed outputs are added to `in_arenas`. The bytes of pinned ones, which no later tensor may
        overwrite, are hashed into `digests`: `overwritten` compares them at the end.

        Raises:
            ValueError: an input was not computed yet.
        """
        inputs = self.node_models.computed_reads(node)
        for name in inputs:
            if name not in self.values and name not in self.in_arenas:
                raise ValueError(
                    f"node {node.name or node.op_type!r} reads {name!r} before the plan's order "
                    "makes it"
                )
        outputs = [name for name in node.output if name]
        session = self._session_of_node(node, inputs)
        # Strings, sequences and maps cannot be bound to memory: the node reads and writes copies.
        reads_unbindable = any(_is_unbindable(self.values.get(name)) for name in inputs)
        writes_unbindable = any(
            output.type.startswith(_UNBINDABLE_TYPES) for output in session.get_outputs()
        )
        if reads_unbindable or writes_unbindable:
            self._run_with_copies(session, inputs, outputs)
        else:
            # A plan may place an output of an If on tensors that its branch reads. The runtime orders the ops of a
            # branch itself, and may write the output before they are read.
            is_if = operator(node).runs_one_body
            late_outputs = {
                name: self.new_arena(self.places[name].bytes)
                for name in outputs
                if is_if and self._is_placed(name)
            }
            self._run_bound(session, inputs, outputs, late_outputs)
        for name in filter(self._is_placed, outputs):
            self.in_arenas.add(name)
            if self.places[name].pinned:
                self.digests[name] = self._digest(self.places[name])

    def _session_of_node(self, node: NodeProto, inputs: Sequence[str]) -> Any:  # noqa: ANN401 - ONNX Runtime has no types
        """Create a session of one node, whose ``inputs`` have been computed."""
        # The model of the node declares its inputs by the types of their values. A map does not tell its type, so
        # `one_op` copies the declaration of the whole model for it.
        types = {
            name: self._runtime_type(name)
            for name in inputs
            if not self.node_models.is_map(name)
        }
        model = self.node_models.one_op(node, types)
        settings = UNOPTIMIZED.updated(deterministic(self.provider))
        return make_session(model, settings, self.provider)

    def _run_bound(
        self,
        session: Any,  # noqa: ANN401 - ONNX Runtime has no types
        inputs: Sequence[str],
        outputs: Sequence[str],
        late_outputs: Mapping[str, ReplayArena],
    ) -> None:
        """Run a session with its inputs and outputs bound to their places.

        Args:
            session: of one node.
            inputs: names of its inputs.
            outputs: names of its outputs.
            late_outputs: other memory for outputs that are copied to their places after the run.
        """
        binding = session.io_binding()
        for name in inputs:
            if self._is_placed(name):
                place = self.places[name]
                binding.bind_input(name, *self._bound_memory(place))
            else:
                binding.bind_ortvalue_input(name, self.values[name])
        for name in outputs:
            if self._is_placed(name):
                place, memory = self.places[name], late_outputs.get(name)
                binding.bind_output(name, *self._bound_memory(place, memory))
            else:
                binding.bind_output(name, "cpu")
        session.run_with_iobinding(binding)
        for name, memory in late_outputs.items():
            place = self.places[name]
            self.arenas[place.arena].write(place.offset, memory.read(0, place.bytes))
        for name, value in zip(outputs, binding.get_outputs(), strict=True):
            if not self._is_placed(name):
                self.values[name] = value

    def _run_with_copies(
        self,
        session: Any,  # noqa: ANN401 - ONNX Runtime has no types
        inputs: Sequence[str],
        outputs: Sequence[str],
    ) -> None:
        """Run a node that reads or writes strings, sequences or maps, which cannot be bound.

        Placed inputs are copied out of the arenas before, placed outputs into them after the run.
        """
        feed = {name: self.array(name) for name in inputs}
        for name, value in zip(outputs, session.run(outputs, feed), strict=True):
            if self._is_placed(name):
                place = self.places[name]
                self.arenas[place.arena].write(place.offset, np.asarray(value).tobytes())
            else:
                self.values[name] = _runtime_value(value)

    def poison_freed(self, node: NodeProto, freed: Sequence[BoundPlacement]) -> None:
        """Poison the tensors that are free after a node, apart from the node's own outputs.

        Outputs of a control-flow node may lie on tensors of its subgraphs, which are free before
        the outputs are written. Inputs and outputs of other nodes never overlap.
        """
        has_subgraphs = any(attribute.HasField("g") for attribute in node.attribute)
        outputs = [
            self.places[name]
            for name in (node.output if has_subgraphs else ())
            if self._is_placed(name)
        ]
        for place in freed:
            arena = self.arenas[place.arena]
            written = [
                (output.offset, output.offset + output.bytes)
                for output in outputs
                if output.arena == place.arena
            ]
            whole = (place.offset, place.offset + place.bytes)
            for start, end in _without_ranges(whole, written):
                arena.poison(start, end - start)

    def overwritten(self) -> list[Difference]:
        """Return a difference for each pinned tensor that changed after it was computed."""
        return [
            Difference(name, 0, 0.0, 1, "an excluded tensor was overwritten")
            for name, digest in self.digests.items()
            if self._digest(self.places[name]) != digest
        ]

    def array(self, name: str) -> Any:  # noqa: ANN401 - array, list or dict
        """Return a tensor as an array, or the list or dict of a sequence or map."""
        if self._is_placed(name):
            place = self.places[name]
            data = self.arenas[place.arena].read(place.offset, place.bytes)
            if place.dtype in NOT_IN_NUMPY:
                return unpacked(data, place.dtype, place.shape)
            return np.frombuffer(data, place.dtype).reshape(place.shape)
        value = self.values[name]
        # Lists, dicts and arrays of strings are kept as they are, all other values as ``OrtValue``.
        return value if _is_unbindable(value) else array_of(value)

    def _is_placed(self, name: str) -> bool:
        return name in self.places and self.places[name].bytes > 0

    def _bound_memory(
        self, place: BoundPlacement, memory: ReplayArena | None = None
    ) -> tuple[str, int, int, tuple[int, ...], int]:
        """Return the arguments of `bind_input` and `bind_output` behind the name of a tensor.

        These are device, device number, type, shape and address. The type is ONNX's number, because
        numpy has no int4 and no float8.

        Args:
            place: of the tensor.
            memory: other memory to bind the tensor to; None: its place.
        """
        arena = self.arenas[place.arena]
        address = arena.address + place.offset if memory is None else memory.address
        return arena.device, 0, element_type(place.dtype), place.shape, address

    def _runtime_type(self, name: str) -> str:
        """Return the type of a value, which is no map, in ONNX Runtime's words.

        Examples are ``tensor(float)`` and ``seq(tensor(int64))``. An empty sequence does not show the type of
        its elements: float32 is assumed.
        """
        if self._is_placed(name):
            return f"tensor({runtime_type_of(self.places[name].dtype)})"
        value = self.values[name]
        if isinstance(value, list):
            dtype = str(value[0].dtype) if value else "float32"
            return f"seq(tensor({runtime_type_of(dtype)}))"
        if isinstance(value, np.ndarray):  # only arrays of strings are no ``OrtValue`` here
            return "tensor(string)"
        return str(value.data_type())

    def _digest(self, place: BoundPlacement) -> str:
        data = self.arenas[place.arena].read(place.offset, place.bytes)
        return hashlib.blake2b(data).hexdigest()


def _without_ranges(
    span: tuple[int, int], holes: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Yield the parts of a half-open range that lie in none of the holes."""
    start, end = span
    for hole_start, hole_end in sorted(holes):
        if hole_end <= start or hole_start >= end:
            continue
        if hole_start > start:
            yield start, hole_start
        start = max(start, hole_end)
    if start < end:
        yield start, end


def _runtime_value(value: Any) -> Any:  # noqa: ANN401 - ONNX Runtime has no types
    """Return an array as an ``OrtValue``; strings, sequences and maps are returned unchanged."""
    if isinstance(value, list | dict) or value.dtype.kind in "OUS":
        return value
    return ort_value(value, array_dtype(value))


def _is_unbindable(value: Any) -> bool:  # noqa: ANN401 - ONNX Runtime has no types
    """Return whether a value is a sequence, a map or an array of strings, not an ``OrtValue``."""
    return isinstance(value, list | dict | np.ndarray)
