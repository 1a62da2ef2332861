"""Decoding with caches in place: prefill and steps, with arrays in and out.

Each cache of such a file is a buffer of the full capacity, which is an input and an output of the
model. `Decoder` binds both to one ``OrtValue``, so that a step writes into it. Callers pass and
get the other inputs and outputs only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memplan_cli.core.results.observations import CUDA
from memplan_cli.errors import ModelError, SettingsError
from memplan_cli.runtime.profile.type_names import dtype_of
from memplan_cli.runtime.workers.ort_values import NOT_IN_NUMPY, array_of, ort_value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.results.rewrites import CacheSummary


class Decoder:
    """A session of a model with caches in place, the buffers, and the number of valid entries.

    A step that fails leaves the position and the valid entries unchanged.

    Attributes:
        session: ONNX Runtime's session; nothing else may run it while a step runs.
        caches: the caches of the model, from its metadata.
        position: the number of valid entries in each growing cache.
        inputs: names of the inputs that each step takes. Besides these, a step may take a new value
            for a constant cache: one that does not grow, such as the keys of an encoder.
        outputs: names of the outputs that a step returns.
    """

    def __init__(
        self,
        session: Any,  # noqa: ANN401 - ONNX Runtime has no types
        caches: CacheSummary | None,
        dims: Mapping[str, int] | None = None,
        run_options: Any = None,  # noqa: ANN401
    ) -> None:
        """Wrap a session of a file that ``memplan optimize --kv-cache in-place`` wrote.

        Args:
            session: a session of the file.
            caches: the caches in its metadata; None if it has none.
            dims: values of dims that only the caches have.
            run_options: ONNX Runtime's options of each run.

        Raises:
            ModelError: the file has no caches in place, or its metadata names other caches.
        """
        if caches is None:
            raise ModelError(
                "the model has no caches in place",
                hint="`memplan optimize MODEL --kv-cache in-place --capacity N` writes one",
            )
        self.session, self.caches = session, caches
        self._dims, self._options = dict(dims or {}), run_options
        self._model_inputs = {value.name: value for value in session.get_inputs()}
        output_names = [value.name for value in session.get_outputs()]
        self._device = "cuda" if session.get_providers()[0] == CUDA else "cpu"
        # Names of the inputs and outputs that `step` binds to buffers of its own.
        bound_inputs = {caches.position, *(buffer.input for buffer in caches.buffers)}
        bound_outputs = {caches.length, *(buffer.output for buffer in caches.buffers)}
        unknown_inputs = bound_inputs - self._model_inputs.keys()
        unknown = sorted(unknown_inputs | (bound_outputs - set(output_names)))
        if unknown:
            raise ModelError(
                f"the model's metadata names a cache {unknown[0]!r} that the model does not have"
            )
        self.inputs = tuple(name for name in self._model_inputs if name not in bound_inputs)
        """Inputs that callers give in every step."""
        self._constant_caches = tuple(
            buffer.input for buffer in caches.buffers if buffer.form == "constant"
        )
        """Inputs of caches that do not grow. The first step needs a value of each; a later value replaces it."""
        self.outputs = tuple(name for name in output_names if name not in bound_outputs)
        self._buffers: dict[str, Any] = {}
        """An ``OrtValue`` for each cache, by its input's name, once there is one."""
        self.position = 0

    @property
    def capacity(self) -> int:
        """The number of entries that each growing cache can hold."""
        return self.caches.capacity

    def reset(self) -> None:
        """Make the entries of growing caches invalid. Buffers and the values of constant caches are kept."""
        self.position = 0

    def prefill(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Begin a new sequence with its first step, and return the outputs by name.

        Args:
            inputs: an array for each name in ``self.inputs``, and for each constant cache if no sequence
                before gave it a value: `reset` keeps that value.

        Raises:
            SettingsError: an input is missing or unknown, or there are more new entries than
                the capacity.
        """
        self.reset()
        return self.step(inputs)

    def step(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run once, append the new entries to the growing caches, and return the outputs by name.

        Args:
            inputs: an array for each name in ``self.inputs``. The first step also needs an array for each constant
                cache. The cache keeps it, until a later step gives another.

        Raises:
            SettingsError: an input is missing or unknown, or the new entries do not fit.
        """
        self._check_inputs(inputs)
        new_constants = {
            # A copy, because the run writes the cache's output into this buffer.
            name: self._ort_value(name, np.array(inputs[name]))
            for name in self._constant_caches
            if name in inputs
        }
        binding = self._binding(inputs, new_constants)
        try:
            self.session.run_with_iobinding(binding, self._options)
        except Exception as error:
            # `_check_inputs` refuses new entries that do not fit, if it knows their number. If not, the operator
            # that writes the entries fails here. Full caches have no room for any entry, whatever else is wrong.
            if "TensorScatter" in str(error) or self.position >= self.capacity:
                raise self._capacity_error(None) from error
            raise
        self._buffers |= new_constants  # only now: a run that fails keeps the former values
        cache_outputs = [cache.output for cache in self.caches.buffers]
        names = (*cache_outputs, *self.outputs, self.caches.length)  # in the order of binding
        values = dict(zip(names, binding.get_outputs(), strict=True))
        self.position = int(values[self.caches.length].numpy()[0])
        return {name: array_of(values[name]) for name in self.outputs}

    def _binding(self, inputs: Mapping[str, Any], new_constants: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Return an ``IOBinding`` of a step, in which each cache is read and written in one buffer.

        ``new_constants`` are the buffers of constant caches that get a value in this step, by their inputs' names.
        """
        binding = self.session.io_binding()
        for name in self.inputs:
            binding.bind_ortvalue_input(name, self._ort_value(name, inputs[name]))
        position = np.array([self.position], np.int64)
        # In host memory on every device, because kernels read the position there.
        binding.bind_ortvalue_input(self.caches.position, ort_value(position, "int64"))
        for cache in self.caches.buffers:
            if cache.input in new_constants:
                buffer = new_constants[cache.input]
            elif cache.input in self._constant_caches:
                buffer = self._buffers[cache.input]  # the value of an earlier step
            else:
                buffer = self._growing_buffer(cache.input, inputs)
            binding.bind_ortvalue_input(cache.input, buffer)
            binding.bind_ortvalue_output(cache.output, buffer)
        for name in (*self.outputs, self.caches.length):
            binding.bind_output(name, "cpu")
        return binding

    def valid(self, name: str) -> Any:  # noqa: ANN401 - numpy's or the runtime's
        """Return a copy of the valid entries of a cache, by its input's name.

        Raises:
            SettingsError: there is no such cache, or it has no entries yet.
        """
        cache = next((cache for cache in self.caches.buffers if cache.input == name), None)
        if cache is None or name not in self._buffers:
            raise SettingsError(f"there is no cache {name!r} yet")
        whole = array_of(self._buffers[name])
        if cache.form == "constant":
            return whole.copy()
        return whole[_first_entries(cache.axis, self.position)].copy()

    def load(self, values: Mapping[str, Any]) -> None:
        """Replace the valid entries of all growing caches by entries that were computed before.

        Args:
            values: an array for each growing cache and no others, by its input's name, all of one length.

        Raises:
            SettingsError: names are missing or unknown, or lengths differ or are beyond the capacity.
        """
        growing = self.caches.growing
        wrong_names = values.keys() ^ {cache.input for cache in growing}
        if wrong_names:
            raise SettingsError(f"{min(wrong_names)!r} is missing, or is no growing cache")
        lengths = {np.shape(values[cache.input])[cache.axis] for cache in growing}
        length = max(lengths, default=0)
        if len(lengths) > 1 or length > self.capacity:
            raise SettingsError(
                f"the caches have lengths {sorted(lengths)}; they need one length of at most "
                f"{self.capacity}"
            )
        for cache in growing:
            entries = np.asarray(values[cache.input])
            shape = list(entries.shape)
            shape[cache.axis] = self.capacity
            whole = np.zeros(shape, entries.dtype)
            whole[_first_entries(cache.axis, length)] = entries
            self._buffers[cache.input] = self._ort_value(cache.input, whole)
        self.position = length

    def _check_inputs(self, inputs: Mapping[str, Any]) -> None:
        """Check the names of the inputs of a step, and that its new cache entries fit.

        A step needs a value for each of ``self.inputs``, and for each constant cache that has none yet.
        The number of new entries is checked if an axis of an input is known to have that length.

        Raises:
            SettingsError: an input is missing or unknown, or the new entries do not fit.
        """
        for name in inputs:
            if name not in self.inputs and name not in self._constant_caches:
                if name in self._model_inputs:  # a growing cache, or the position
                    hint = "the decoder binds it itself"
                else:
                    shown = ", ".join(repr(known) for known in self.inputs[:5])
                    more = f" and {len(self.inputs) - 5} more" if len(self.inputs) > 5 else ""
                    hint = f"a step takes {shown}{more}"
                raise SettingsError(f"{name!r} is not an input of a step", hint=hint)
        new_constants = [name for name in self._constant_caches if name not in self._buffers]
        for name in (*self.inputs, *new_constants):
            if name not in inputs:
                raise SettingsError(f"the input {name!r} is missing")
        if not self.caches.tokens:
            return
        # Each of ``tokens`` is an input, and its axis whose length is the number of new entries. All have one length.
        name, axis = self.caches.tokens[0]
        shape = np.shape(inputs[name])
        if axis < len(shape) and self.position + shape[axis] > self.capacity:
            raise self._capacity_error(shape[axis])

    def _capacity_error(self, new_entries: int | None) -> SettingsError:
        """Return the error that new entries do not fit; None: their number is not known."""
        new = f"{new_entries} new ones" if new_entries else "the new ones"
        return SettingsError(
            f"the caches hold {self.capacity} entries: {self.position} are valid, and {new} do "
            "not fit",
            hint="write the model again with a larger --capacity, or begin anew with prefill",
        )

    def _growing_buffer(self, name: str, inputs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Return the buffer of a growing cache, a new one if it has none of the shape that a step needs.

        The shape follows from all ``inputs`` of the step.

        Raises:
            SettingsError: a buffer of another shape has valid entries.
        """
        shape = self._buffer_shape(name, inputs)
        buffer = self._buffers.get(name)
        if buffer is not None and tuple(buffer.shape()) == shape:
            return buffer
        if buffer is not None and self.position:
            raise SettingsError(
                f"the cache {name!r} is {list(buffer.shape())}, and this step needs {list(shape)}",
                hint="begin anew with prefill",
            )
        dtype = dtype_of(self._model_inputs[name].type)
        zeros = np.zeros(shape, np.float32 if dtype in NOT_IN_NUMPY else dtype)
        self._buffers[name] = self._ort_value(name, zeros)
        return self._buffers[name]

    def _buffer_shape(self, name: str, inputs: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the shape of a cache, with a number for each named dim.

        The number is the one that the decoder was created with, else the size of the dim in an input of the step.
        """
        dims = dict(self._dims)
        for other in (*self.inputs, *self._constant_caches):
            array = inputs[other] if other in inputs else self._buffers[other].numpy()
            shape = self._model_inputs[other].shape
            for dim, size in zip(shape, np.shape(array), strict=False):
                if isinstance(dim, str):
                    dims.setdefault(dim, size)
        # A dim that no input has is the batch in nearly all such decoders, hence 1.
        return tuple(
            dim if isinstance(dim, int) else dims.get(dim, 1)
            for dim in self._model_inputs[name].shape
        )

    def _ort_value(self, name: str, array: Any) -> Any:  # noqa: ANN401
        """Return an array as an ``OrtValue`` of an input's type, on the session's device."""
        dtype = dtype_of(self._model_inputs[name].type)
        return ort_value(np.ascontiguousarray(array), dtype, self._device)


def _first_entries(axis: int, count: int) -> tuple[slice, ...]:
    """Return an index of the first ``count`` entries along an axis."""
    return (slice(None),) * axis + (slice(0, count),)
