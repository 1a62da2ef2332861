"""The worker's job of `proof`: two training steps, with separate or donated buffers."""

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
from memplan_cli.runtime.workers.ort_values import (
    NOT_IN_NUMPY,
    array_of,
    ort_value,
    run_session,
)
from memplan_cli.runtime.workers.outputs import compare_with_saved, save_values
from memplan_cli.runtime.workers.session import run_options
from memplan_cli.runtime.workers.spec import InputSet, SessionSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memplan_cli.core.json_types import Json
    from memplan_cli.core.results.observations import Difference
    from memplan_cli.runtime.workers.inputs import Feed

STEPS = 2
"""The second step reads what the first one has written over its inputs."""


def run(job: Json) -> Json:
    """Run `STEPS` training steps in the worker process, and save or compare their outputs.

    Args:
        job: ``buffers`` is ``separate`` or ``donated`` (`STEP_CLASSES`): whether an output has the
            buffer of the input that it replaces; ``folder`` has a sub-folder per step; ``task`` is
            ``save`` (write the outputs there) or ``compare`` (with the outputs that are there,
            within ``tolerance``).

    Returns:
        ``not_finite``, the names of outputs with infinities or NaN, if the task is ``save``; and
        ``differences``, if it is ``compare``. The other one is empty.
    """
    steps = STEP_CLASSES[str(job["buffers"])](job)
    folder = Path(str(job["folder"]))
    tolerance = Tolerance(*map(float, job["tolerance"]))
    differences: list[Difference] = []
    not_finite: list[str] = []
    for number in range(1, STEPS + 1):
        outputs, step_folder = steps.step(), folder / str(number)
        if job["task"] == "save":
            step_folder.mkdir()
            save_values(step_folder, steps.names, outputs)
            not_finite += [name for name, value in outputs.items() if not _is_finite(value)]
        else:
            differences += [
                dataclasses.replace(difference, output=f"{difference.output}@{number}")
                for difference in compare_with_saved(
                    step_folder, steps.names, outputs, tolerance
                )
            ]
        steps.feed_back(outputs)
        del outputs  # so that the outputs of two steps are not in memory at once
    return {
        "differences": to_json(differences),
        "not_finite": list(dict.fromkeys(not_finite)),
    }


class Steps:
    """A session that runs training steps; new values are fed back as inputs of the next step.

    Attributes:
        pairs: the input that each output replaces, by the output's name.
        names: the outputs of the model.
        feed: the inputs of the next step.
    """

    def __init__(self, job: Json) -> None:
        """Create the session of a job of `run`, and draw the inputs of the first step."""
        spec = SessionSpec.of_job(job)
        self.settings, self.provider = spec.settings, spec.provider
        # Each input that a step replaces, with the output that is its value in the next step.
        pairs: Any = job["pairs"]
        self.pairs: Mapping[str, str] = {output: input_name for input_name, output in pairs}
        self.session = spec.create()
        self.names = [output.name for output in self.session.get_outputs()]
        self.feed: Feed = InputSet.of_job(job).draw()

    def step(self) -> dict[str, Any]:
        """Run one step and return the outputs by name."""
        values = run_session(self.session, self.names, self.feed, run_options(self.settings))
        return dict(zip(self.names, values, strict=True))

    def feed_back(self, outputs: Mapping[str, Any]) -> None:
        """Make the outputs of a step the inputs that they replace."""
        self.feed |= {input_name: outputs[output] for output, input_name in self.pairs.items()}


class BoundSteps(Steps):
    """A session that runs training steps with one buffer for each donated pair.

    The buffers are bound as the report tells the user to bind them.

    Attributes:
        device: ``cpu`` or ``cuda``, where the buffers are.
        buffers: the buffer of each input, by name; an output of a pair has that of its input.
        binding: the inputs and outputs bound to their buffers.
    """

    def __init__(self, job: Json) -> None:
        """Create the session, and copy the inputs of the first step to their buffers."""
        super().__init__(job)
        self.device = "cpu" if self.provider == CPU else "cuda"
        unbindable = [name for name, value in self.feed.items() if not self._can_bind(value)]
        if unbindable:
            raise RuntimeUnavailableError(
                f"the input {unbindable[0]} is not a tensor of numbers that numpy supports"
            )
        self.buffers = {name: self._buffer(value) for name, value in self.feed.items()}
        self.feed = {}  # its arrays are not needed beside their copies
        self.binding = self.session.io_binding()
        for name, buffer in self.buffers.items():
            self.binding.bind_ortvalue_input(name, buffer)
        for name in self.names:
            self.bind_output(name)

    def _can_bind(self, value: Any) -> bool:  # noqa: ANN401 - an array or a list of them
        """Return whether an input is a tensor of a type that can be copied to the device."""
        is_tensor = isinstance(value, np.ndarray) and value.dtype.kind != "O"
        return is_tensor and (self.device == "cpu" or array_dtype(value) not in NOT_IN_NUMPY)

    def _buffer(self, value: Any) -> Any:  # noqa: ANN401 - ONNX Runtime has no types
        """Return a copy of an input on the provider's device."""
        return ort_value(value, array_dtype(value), self.device)

    def bind_output(self, name: str) -> None:
        """Bind an output to the buffer of the input that it replaces, or to a new one."""
        if name in self.pairs:
            self.binding.bind_ortvalue_output(name, self.buffers[self.pairs[name]])
        else:
            self.binding.bind_output(name, self.device)

    def step(self) -> dict[str, Any]:
        """Run one step and return copies of the outputs by name."""
        self.advance()
        outputs = self.binding.get_outputs()
        # ONNX Runtime copies no output whose type numpy does not have, such as bfloat16.
        if any(dtype_of(output.data_type()) in NOT_IN_NUMPY for output in outputs):
            copies = [array_of(output) for output in outputs]
        else:
            copies = self.binding.copy_outputs_to_cpu()
        return dict(zip(self.names, copies, strict=True))

    def advance(self) -> None:
        """Run one step and leave the outputs in their buffers."""
        self.session.run_with_iobinding(self.binding, run_options(self.settings))

    def feed_back(self, outputs: Mapping[str, Any]) -> None:
        """Do nothing: the outputs are in the buffers that the next step reads."""
        del outputs  # unused here


STEP_CLASSES: Mapping[str, Callable[[Json], Steps]] = {
    "separate": Steps,
    "donated": BoundSteps,
}
"""The class that runs the steps: with separate buffers for the tensors of a pair, or with one."""


def _is_finite(value: Any) -> bool:  # noqa: ANN401 - ONNX Runtime has no types
    """Return whether a value is no tensor of floats, or has neither infinities nor NaN."""
    array = np.asarray(value)
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())
