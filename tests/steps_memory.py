"""The memory of a process for two steps, by where their new values lie.

python tests/steps_memory.py JSON     the child's side of `held_by_steps`
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort

from memplan_cli.core.bindings import Binding
from memplan_cli.core.serialization import to_json
from memplan_cli.features.donation.proof import step_specs
from memplan_cli.features.donation.proof_job import STEPS, BoundSteps, Steps
from memplan_cli.runtime.simulate.predict import RUN_AS_WRITTEN
from memplan_cli.runtime.workers.spec import InputSet, SessionSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memplan_cli.core.json_types import Json
    from memplan_cli.core.results.observations import RuntimeSettings
    from memplan_cli.features.donation.proof import Pairs


@dataclass(frozen=True)
class Held:
    """A process's memory in two steps, in bytes; None where the system does not say."""

    before: int | None
    peak: int | None


def held_by_steps(
    model: Path, pairs: Pairs, way: str, settings: RuntimeSettings = RUN_AS_WRITTEN
) -> Held:
    """Return the memory of a process that takes two steps in one of `WAYS`."""
    session = SessionSpec(model, settings=settings).deterministic()
    inputs = InputSet(step_specs(model, Binding(), pairs))
    job: Json = {"session": to_json(session), "inputs": to_json(inputs)}
    job |= {"pairs": [list(pair) for pair in pairs], "way": way}
    command = [sys.executable, __file__, json.dumps(job)]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=600)
    return Held(**json.loads(answer.stdout))


class SwappedSteps(BoundSteps):
    """Each pair has two buffers, read and written in turns: what needs no donation."""

    def __init__(self, job: Json) -> None:
        self.written: dict[str, Any] = {}
        super().__init__(job)

    def bind_output(self, name: str) -> None:
        if name not in self.pairs:
            super().bind_output(name)
            return
        twin = np.empty_like(self.buffers[self.pairs[name]].numpy())
        self.written[name] = ort.OrtValue.ortvalue_from_numpy(twin, self.device, 0)
        self.binding.bind_ortvalue_output(name, self.written[name])

    def feed_back(self, outputs: Mapping[str, Any]) -> None:
        """Read from now on what was written, and write where it was read."""
        del outputs
        for new, old in self.pairs.items():
            self.written[new], self.buffers[old] = self.buffers[old], self.written[new]
            self.binding.bind_ortvalue_input(old, self.buffers[old])
            self.binding.bind_ortvalue_output(new, self.written[new])


WAYS: Mapping[str, Callable[[Json], Steps]] = {
    "donated": BoundSteps,
    "swapped": SwappedSteps,
    "fed": Steps,
}
"""One buffer a pair; two, used in turns; new ones of the runtime's, fed to the next step."""


def measured(steps: Steps) -> dict[str, int | None]:
    """Return the process's memory before the steps and at most during them, in bytes.

    What drawing the inputs has freed is as large as a buffer of the step, and whether the
    C library makes a new buffer of it hangs on how its heap happens to lie.
    """
    ctypes.CDLL(None).malloc_trim(0)
    forget_peak()
    before = status("VmRSS")
    for _ in range(STEPS):
        if isinstance(steps, BoundSteps):
            steps.advance()
            steps.feed_back({})
        else:
            steps.feed_back(steps.step())
    return {"before": before, "peak": status("VmHWM")}


def forget_peak() -> None:
    """Let the high-water mark of this process begin anew (proc(5), ``clear_refs``)."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return


def status(key: str) -> int | None:
    """Return a line of ``/proc/self/status`` in bytes; None where there is none."""
    try:
        text = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return None
    return next(
        (int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith(key)),
        None,
    )


if __name__ == "__main__":
    wanted = json.loads(sys.argv[1])
    print(json.dumps(measured(WAYS[wanted["way"]](wanted))))
