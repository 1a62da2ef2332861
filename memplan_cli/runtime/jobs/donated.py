"""Run two consecutive steps; the new values may lie where the old ones were."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from memplan_cli.errors import RuntimeUnavailableError
from memplan_cli.evidence import CPU
from memplan_cli.runtime.bits import Tolerance
from memplan_cli.runtime.jobs.outputs import against, save
from memplan_cli.runtime.session import run_options
from memplan_cli.runtime.session_job import SessionJob

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memplan_cli.evidence import Difference
    from memplan_cli.runtime.inputs import Feed
    from memplan_cli.runtime.worker import Json

STEPS = 2
"""The second step reads what the first has written over its own inputs."""


def run(job: Json) -> Json:
    """Take `STEPS` steps in one way, and save, compare or measure what they give.

    ``way`` is a key of `WAYS`. ``then`` is ``save``: the outputs of each step go to the
    folder, ``against``: they are held against what is there, or ``measure``: they are let
    go, and the process's memory is returned, in bytes; None where the system does not say.
    """
    steps = WAYS[str(job["way"])](job)
    if job["then"] == "measure":
        return _measured(steps)
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
        steps.take_over(values)
        del values
    return {
        "differences": [dataclasses.asdict(item) for item in found],
        "not_finite": list(dict.fromkeys(unsure)),
    }


class _Steps:
    """A session, and the state that goes from step to step: ``pairs`` maps new to old."""

    def __init__(self, job: Json) -> None:
        asked = SessionJob.from_json(job)
        self.settings, self.provider = asked.settings, asked.provider
        self.pairs: Mapping[str, str] = {new: old for old, new in job["pairs"]}  # type: ignore[attr-defined]
        self.session = asked.session()
        self.names = [output.name for output in self.session.get_outputs()]
        self.feed: Feed = asked.feed()

    def step(self) -> dict[str, Any]:
        """Run once and return the outputs by name."""
        values = self.session.run(self.names, self.feed, run_options(self.settings))
        return dict(zip(self.names, values, strict=True))

    def take_over(self, values: Mapping[str, Any]) -> None:
        """Make the new values those that the next step reads."""
        self.feed |= {old: values[new] for new, old in self.pairs.items()}


class _Bound(_Steps):
    """Each pair is one buffer, as the report's settings tell the user to bind it."""

    def __init__(self, job: Json) -> None:
        super().__init__(job)
        import onnxruntime as ort

        self._device = "cpu" if self.provider == CPU else "cuda"
        plain = [name for name, value in self.feed.items() if not _is_tensor(value)]
        if plain:
            raise RuntimeUnavailableError(f"the input {plain[0]} is no tensor of numbers")
        of = ort.OrtValue.ortvalue_from_numpy
        self.buffers = {name: of(value, self._device, 0) for name, value in self.feed.items()}
        self.feed = {}
        self.written: dict[str, Any] = {}
        self._binding = self.session.io_binding()
        for name, buffer in self.buffers.items():
            self._binding.bind_ortvalue_input(name, buffer)
        for name in self.names:
            self.bind_output(name)

    def bind_output(self, name: str) -> None:
        """Bind an output: to the buffer of the input that it replaces, if there is one."""
        if name in self.pairs:
            self._binding.bind_ortvalue_output(name, self.buffers[self.pairs[name]])
        else:
            self._binding.bind_output(name, self._device)

    def step(self) -> dict[str, Any]:
        """Run once and return copies of the outputs by name."""
        self.advance()
        copies = self._binding.copy_outputs_to_cpu()
        return dict(zip(self.names, copies, strict=True))

    def advance(self) -> None:
        """Run once and leave the outputs where they are."""
        self.session.run_with_iobinding(self._binding, run_options(self.settings))

    def take_over(self, values: Mapping[str, Any]) -> None:
        """Do nothing: the new values lie where the next step reads."""
        del values


class _Swapped(_Bound):
    """Each pair has two buffers, read and written in turns: what needs no donation."""

    def bind_output(self, name: str) -> None:
        """Bind an output to a buffer of its own."""
        import onnxruntime as ort

        if name not in self.pairs:
            super().bind_output(name)
            return
        twin = np.empty_like(self.buffers[self.pairs[name]].numpy())
        self.written[name] = ort.OrtValue.ortvalue_from_numpy(twin, self._device, 0)
        self._binding.bind_ortvalue_output(name, self.written[name])

    def take_over(self, values: Mapping[str, Any]) -> None:
        """Read from now on what was written, and write where it was read."""
        del values
        for new, old in self.pairs.items():
            self.written[new], self.buffers[old] = self.buffers[old], self.written[new]
            self._binding.bind_ortvalue_input(old, self.buffers[old])
            self._binding.bind_ortvalue_output(new, self.written[new])


WAYS: Mapping[str, Callable[[Json], _Steps]] = {
    "fed": _Steps,
    "swapped": _Swapped,
    "donated": _Bound,
}
"""How a step gets the new values of the one before."""


def _measured(steps: _Steps) -> Json:
    """Return the process's memory before the steps and at most during them, in bytes."""
    _forget_peak()
    before = _status("VmRSS")
    for _ in range(STEPS):
        if isinstance(steps, _Bound):
            steps.advance()
            steps.take_over({})
        else:
            steps.take_over(steps.step())
    return {"before": before, "peak": _status("VmHWM")}


def _forget_peak() -> None:
    """Let the high-water mark of this process begin anew (proc(5), ``clear_refs``)."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return


def _status(key: str) -> int | None:
    """Return a line of ``/proc/self/status`` in bytes; None where there is none."""
    try:
        text = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return None
    return next(
        (int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith(key)),
        None,
    )


def _is_tensor(value: Any) -> bool:  # noqa: ANN401 - an array or a list of them
    return isinstance(value, np.ndarray) and value.dtype.kind != "O"


def _is_finite(value: Any) -> bool:  # noqa: ANN401 - ONNX Runtime has no types
    array = np.asarray(value)
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())
