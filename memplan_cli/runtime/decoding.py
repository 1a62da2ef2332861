"""Decoding with caches in place: prefill and steps, with arrays in and out.

A file whose caches were made buffers takes and gives each of them whole. Here both are one
value of the runtime's, which a step writes into, and the caller sees the other inputs and
outputs alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memplan_cli.core.results.observations import CPU
from memplan_cli.errors import ModelError, SettingsError
from memplan_cli.runtime.profile.type_names import dtype_of
from memplan_cli.runtime.workers.running import array_of, ort_value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.core.results.rewrites import Caches


class Decoder:
    """A model with caches in place, its buffers, and how many of their entries are valid.

    A step that fails, for whatever reason, leaves position and valid entries as they were.

    Attributes:
        session: the runtime's, which may be shared with nobody while a step runs.
        caches: what the file says of its caches.
        position: valid entries of each cache.
    """

    def __init__(
        self,
        session: Any,  # noqa: ANN401 - ONNX Runtime has no types
        caches: Caches | None,
        dims: Mapping[str, int] | None = None,
        run_options: Any = None,  # noqa: ANN401
    ) -> None:
        """Wrap a session of a file that ``memplan optimize --kv-cache in-place`` wrote.

        Args:
            session: on that file.
            caches: what its metadata says.
            dims: numbers of dims that the caches have and no other input.
            run_options: of each run.

        Raises:
            ModelError: the file has no caches in place, or others than its metadata says.
        """
        if caches is None:
            raise ModelError(
                "the model has no caches in place",
                hint="`memplan optimize MODEL --kv-cache in-place --capacity N` writes one",
            )
        self.session, self.caches = session, caches
        self._dims, self._options = dict(dims or {}), run_options
        self._given = {value.name: value for value in session.get_inputs()}
        self._made = [value.name for value in session.get_outputs()]
        self._device = "cpu" if session.get_providers()[0] == CPU else "cuda"
        names = {caches.position, *(each.input for each in caches.buffers)}
        outputs = {caches.length, *(each.output for each in caches.buffers)}
        strange = sorted((names - self._given.keys()) | (outputs - set(self._made)))
        if strange:
            raise ModelError(
                f"the model's metadata names caches that it has not: {strange[0]!r}"
            )
        self.inputs = tuple(name for name in self._given if name not in names)
        """What `prefill` takes, beside the constant caches that it may set."""
        self.outputs = tuple(name for name in self._made if name not in outputs)
        """What `prefill` and `step` return."""
        self._constant = {b.input: b.output for b in caches.buffers if b.form == "constant"}
        self._buffers: dict[str, Any] = {}
        self.position = 0

    @property
    def capacity(self) -> int:
        """The most entries that a cache holds."""
        return self.caches.capacity

    def reset(self) -> None:
        """Forget what the caches hold; their memory stays for the next sequence."""
        self.position = 0

    def prefill(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Begin a sequence: forget the one before, and take a first step.

        Args:
            inputs: an array for each input that is no growing cache.

        Raises:
            SettingsError: an input is missing or unknown, or there are more new entries than
                the capacity.
        """
        self.reset()
        return self.step(inputs)

    def step(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run once, and write the new entries behind those that are valid.

        Args:
            inputs: an array for each input that is no cache; a constant cache keeps its value.

        Raises:
            SettingsError: an input is missing or unknown, or the new entries go beyond the
                capacity. Nothing is lost: the caches are as they were.
        """
        self._refuse(inputs)
        self._keep_constant(inputs)
        binding = self.session.io_binding()
        for name in self.inputs:
            binding.bind_ortvalue_input(name, self._value(name, inputs[name]))
        place = np.array([self.position], np.int64)
        # On the CPU: kernels read a position there.
        binding.bind_ortvalue_input(self.caches.position, ort_value(place, "int64"))
        bound: list[str] = []
        for each in self.caches.buffers:
            bound.append(each.output)
            buffer = self._buffer(each.input, inputs)
            binding.bind_ortvalue_input(each.input, buffer)
            binding.bind_ortvalue_output(each.output, buffer)
        for name in (*self.outputs, self.caches.length):
            bound.append(name)
            binding.bind_output(name, "cpu")
        try:
            self.session.run_with_iobinding(binding, self._options)
        except Exception as error:
            self._refuse_overflow(error)
            raise
        found = dict(zip(bound, binding.get_outputs(), strict=True))
        self.position = int(found[self.caches.length].numpy()[0])
        return {name: array_of(found[name]) for name in self.outputs}

    def valid(self, name: str) -> Any:  # noqa: ANN401 - numpy's or the runtime's
        """Return a copy of the valid entries of a cache, by its input's name.

        Raises:
            SettingsError: there is no such cache, or no step was taken yet.
        """
        found = [each for each in self.caches.buffers if each.input == name]
        if not found or name not in self._buffers:
            raise SettingsError(f"there is no cache {name!r} yet")
        whole = array_of(self._buffers[name])
        if found[0].form == "constant":
            return whole.copy()
        span = (slice(None),) * found[0].axis + (slice(0, self.position),)
        return whole[span].copy()

    def load(self, values: Mapping[str, Any]) -> None:
        """Begin with entries that were computed elsewhere, all caches of one length.

        Args:
            values: an array for each growing cache, by its input's name.

        Raises:
            SettingsError: a cache is missing, lengths differ or are beyond the capacity.
        """
        growing = self.caches.growing
        lengths = {each.input: np.shape(values[each.input])[each.axis] for each in growing}
        most = max(lengths.values(), default=0)
        if len(set(lengths.values())) > 1 or most > self.capacity:
            raise SettingsError(
                f"the caches have lengths {sorted(set(lengths.values()))}, and need one that is "
                f"at most {self.capacity}"
            )
        for each in growing:
            array = np.asarray(values[each.input])
            whole = list(array.shape)
            whole[each.axis] = self.capacity
            room = np.zeros(whole, array.dtype)
            room[(slice(None),) * each.axis + (slice(0, array.shape[each.axis]),)] = array
            self._buffers[each.input] = self._value(each.input, room)
        self.position = most

    def _refuse(self, inputs: Mapping[str, Any]) -> None:
        known = {*self.inputs, *self._constant}
        strange = [name for name in inputs if name not in known]
        if strange:
            own = strange[0] in self._given
            hint = "the decoder binds it itself" if own else f"it takes {_listed(self.inputs)}"
            raise SettingsError(f"{strange[0]!r} is no input of a step", hint=hint)
        missing = [name for name in self.inputs if name not in inputs]
        missing += [n for n in self._constant if n not in inputs and n not in self._buffers]
        if missing:
            raise SettingsError(f"the input {missing[0]!r} is missing")
        for name, axis in self.caches.tokens[:1]:
            shape = np.shape(inputs[name])
            if axis < len(shape) and self.position + shape[axis] > self.capacity:
                raise self._full(shape[axis])

    def _refuse_overflow(self, error: Exception) -> None:
        """Say in our words that the runtime found no room for the new entries."""
        if "TensorScatter" in str(error) or self.position >= self.capacity:
            raise self._full(0) from error

    def _full(self, new: int) -> SettingsError:
        more = f" and {new} new ones" if new else ", and the new ones"
        return SettingsError(
            f"the caches hold {self.capacity} entries: {self.position} are taken{more} do not fit",
            hint="write the model again with a larger --capacity, or begin anew with prefill",
        )

    def _keep_constant(self, inputs: Mapping[str, Any]) -> None:
        for name in self._constant:
            if name in inputs:
                self._buffers[name] = self._value(name, np.array(inputs[name]))

    def _buffer(self, name: str, inputs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Return a cache's buffer; one of another batch than before is made anew."""
        if name in self._constant:
            return self._buffers[name]
        shape = self._shape(name, inputs)
        known = self._buffers.get(name)
        if known is not None and tuple(known.shape()) == shape:
            return known
        if known is not None and self.position:
            raise SettingsError(
                f"the cache {name!r} is {list(known.shape())}, and this step needs {list(shape)}",
                hint="begin anew with prefill",
            )
        dtype = dtype_of(self._given[name].type)
        zeros = np.zeros(shape, np.float32 if _is_foreign(dtype) else dtype)
        self._buffers[name] = self._value(name, zeros)
        return self._buffers[name]

    def _shape(self, name: str, inputs: Mapping[str, Any]) -> tuple[int, ...]:
        dims = dict(self._dims)
        for other in (*self.inputs, *self._constant):
            array = inputs[other] if other in inputs else self._buffers[other].numpy()
            for dim, size in zip(self._given[other].shape, np.shape(array), strict=False):
                if isinstance(dim, str):
                    dims.setdefault(dim, size)
        # Nobody says it: the batch of nearly every decoder that has no other input with it.
        found = (
            dims.get(d, 1) if not isinstance(d, int) else d for d in self._given[name].shape
        )
        return tuple(found)

    def _value(self, name: str, array: Any) -> Any:  # noqa: ANN401
        import onnxruntime as ort

        dtype = dtype_of(self._given[name].type)
        found = np.ascontiguousarray(array)
        if self._device == "cpu":
            return ort_value(found, dtype)
        return ort.OrtValue.ortvalue_from_numpy(found, self._device, 0)


def _is_foreign(dtype: str) -> bool:
    from memplan_cli.runtime.workers.running import FOREIGN

    return dtype in FOREIGN


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:5])
    return shown + (f" and {len(names) - 5} more" if len(names) > 5 else "")
