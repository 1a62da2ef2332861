"""Run two consecutive steps; the new values may lie where the old ones were."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from memplan_cli.core.check import Tolerance
from memplan_cli.core.results.observations import CPU
from memplan_cli.core.serialization import to_json
from memplan_cli.errors import RuntimeUnavailableError
from memplan_cli.onnx_io.types import array_dtype
from memplan_cli.runtime.profile.type_names import dtype_of
from memplan_cli.runtime.workers.outputs import against, save
from memplan_cli.runtime.workers.running import FOREIGN, array_of, ort_value
from memplan_cli.runtime.workers.running import run as run_session
from memplan_cli.runtime.workers.session import run_options
from memplan_cli.runtime.workers.spec import InputSet, SessionSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memplan_cli.core.results.observations import Difference
    from memplan_cli.runtime.workers.inputs import Feed
    from memplan_cli.runtime.workers.worker import Json

STEPS = 2
"""The second step reads what the first has written over its own inputs."""


def run(job: Json) -> Json:
    """Take `STEPS` steps in one way, and save or compare what they give.

    ``way`` is a key of `WAYS`. ``then`` is ``save``: the outputs of each step go to the
    folder, or ``against``: they are compared with what is there.
    """
    steps = WAYS[str(job["way"])](job)
    folder = Path(str(job["folder"]))
    tolerance = Tolerance(*map(float, job["tolerance"]))  # type: ignore[call-overload]
    found: list[Difference] = []
    unsure: list[str] = []
    for number in range(1, STEPS + 1):
        values = steps.step()
        names = list(values)
        place = folder / str(number)
        if job["then"] == "save":
            place.mkdir()
            save(place, names, names, list(values.values()))
            unsure += [name for name, value in values.items() if not _is_finite(value)]
        else:
            apart = against(place, steps.names, names, list(values.values()), tolerance)
            found += [dataclasses.replace(d, output=f"{d.output}@{number}") for d in apart]
        steps.feed_back(values)
        del values
    return {
        "differences": to_json(found),
        "not_finite": list(dict.fromkeys(unsure)),
    }


class Steps:
    """A session, and the state that goes from step to step: ``pairs`` maps new to old."""

    def __init__(self, job: Json) -> None:
        spec = SessionSpec.of_job(job)
        self.settings, self.provider = spec.settings, spec.provider
        self.pairs: Mapping[str, str] = {new: old for old, new in job["pairs"]}  # type: ignore[attr-defined]
        self.session = spec.create()
        self.names = [output.name for output in self.session.get_outputs()]
        self.feed: Feed = InputSet.of_job(job).draw()

    def step(self) -> dict[str, Any]:
        """Run once and return the outputs by name."""
        values = run_session(self.session, self.names, self.feed, run_options(self.settings))
        return dict(zip(self.names, values, strict=True))

    def feed_back(self, values: Mapping[str, Any]) -> None:
        """Make the new values those that the next step reads."""
        self.feed |= {old: values[new] for new, old in self.pairs.items()}


class BoundSteps(Steps):
    """Each pair is one buffer, as the report's settings tell the user to bind it."""

    def __init__(self, job: Json) -> None:
        super().__init__(job)
        self.device = "cpu" if self.provider == CPU else "cuda"
        plain = [name for name, value in self.feed.items() if not self._can_bind(value)]
        if plain:
            raise RuntimeUnavailableError(
                f"the input {plain[0]} is no tensor of numbers that numpy knows"
            )
        self.buffers = {name: self._buffer(value) for name, value in self.feed.items()}
        self.feed = {}
        self.binding = self.session.io_binding()
        for name, buffer in self.buffers.items():
            self.binding.bind_ortvalue_input(name, buffer)
        for name in self.names:
            self.bind_output(name)

    def _can_bind(self, value: Any) -> bool:  # noqa: ANN401 - an array or a list of them
        """Whether an input is a tensor, of a type that goes to where the provider computes."""
        return _is_tensor(value) and (
            self.device == "cpu" or array_dtype(value) not in FOREIGN
        )

    def _buffer(self, value: Any) -> Any:  # noqa: ANN401 - ONNX Runtime has no types
        import onnxruntime as ort

        if self.device == "cpu":
            return ort_value(value, array_dtype(value))
        return ort.OrtValue.ortvalue_from_numpy(value, self.device, 0)

    def bind_output(self, name: str) -> None:
        """Bind an output: to the buffer of the input that it replaces, if there is one."""
        if name in self.pairs:
            self.binding.bind_ortvalue_output(name, self.buffers[self.pairs[name]])
        else:
            self.binding.bind_output(name, self.device)

    def step(self) -> dict[str, Any]:
        """Run once and return copies of the outputs by name."""
        self.advance()
        found = self.binding.get_outputs()
        if any(dtype_of(value.data_type()) in FOREIGN for value in found):
            copies = [array_of(value) for value in found]
        else:
            copies = self.binding.copy_outputs_to_cpu()
        return dict(zip(self.names, copies, strict=True))

    def advance(self) -> None:
        """Run once and leave the outputs where they are."""
        self.session.run_with_iobinding(self.binding, run_options(self.settings))

    def feed_back(self, values: Mapping[str, Any]) -> None:
        """Do nothing: the new values lie where the next step reads."""
        del values


WAYS: Mapping[str, Callable[[Json], Steps]] = {
    "fed": Steps,
    "donated": BoundSteps,
}
"""How a step gets the new values of the one before."""


def _is_tensor(value: Any) -> bool:  # noqa: ANN401 - an array or a list of them
    return isinstance(value, np.ndarray) and value.dtype.kind != "O"


def _is_finite(value: Any) -> bool:  # noqa: ANN401 - ONNX Runtime has no types
    array = np.asarray(value)
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())
