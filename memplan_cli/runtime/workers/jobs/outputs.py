"""Run a model and keep its outputs in files, or hold them against those of another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from memplan_cli.core.check import Tolerance
from memplan_cli.core.results.observations import Difference
from memplan_cli.core.serialization import to_json
from memplan_cli.runtime.workers.bits import difference
from memplan_cli.runtime.workers.running import run as run_session
from memplan_cli.runtime.workers.session import run_options
from memplan_cli.runtime.workers.session_job import SessionJob

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from memplan_cli.runtime.workers.worker import Json


def run(job: Json) -> Json:
    """Run the session's model several times on one feed.

    With ``save``, the first run's outputs go to the folder, and the other runs are compared
    with them: what differs there, the model cannot repeat. Without, every run is compared
    against what another model left in the folder.
    """
    task, folder = SessionJob.of(job), Path(str(job["folder"]))
    session, feed = task.session(), task.feed()
    names = job["outputs"] or [output.name for output in session.get_outputs()]
    known = {output.name for output in session.get_outputs()}
    wanted = [str(name) for name in names if name in known]  # type: ignore[attr-defined]
    missing = [name for name in names if name not in known]  # type: ignore[attr-defined]
    found = [Difference(name, 0, 0.0, 1, "there is no such output") for name in missing]
    tolerance = Tolerance(*map(float, job["tolerance"]))  # type: ignore[call-overload]
    for number in range(int(str(job["runs"]))):
        values = run_session(session, wanted, feed, run_options(task.settings))
        if job["save"] and number == 0:
            save(folder, wanted, wanted, values)
        else:
            found += against(folder, wanted, wanted, values, tolerance)
        del values
    return {
        "outputs": wanted,
        "differences": to_json(worst(found)),
        "providers": session.get_providers(),
    }


def save(folder: Path, numbered: list[str], names: list[str], values: list[Any]) -> None:
    """Write values to files, each named by its place among ``numbered``."""
    for number, _, leaf in _leaves(numbered, names, values):
        np.save(folder / f"{number}.npy", leaf)


def against(
    folder: Path,
    saved: list[str],
    names: list[str],
    values: list[Any],
    tolerance: Tolerance,
) -> list[Difference]:
    """Compare values by name with files; ``saved`` are the names that were saved."""
    found = []
    for number, name, leaf in _leaves(saved, names, values):
        file = folder / f"{number}.npy"
        if not file.exists():
            found.append(Difference(name, leaf.size, 0.0, 1, "the original has no such part"))
            continue
        # Scalars and empty arrays cannot be mapped.
        mode = "r" if leaf.size and leaf.ndim else None
        reference = np.load(file, mmap_mode=mode)  # type: ignore[arg-type]
        apart = difference(name, leaf, reference, tolerance)
        found += [apart] if apart else []
    return found


def _leaves(
    saved: list[str], names: list[str], values: list[Any]
) -> Iterator[tuple[str, str, NDArray[Any]]]:
    """Yield ``(file name, name, array)``: a sequence's elements one by one."""
    for name, value in zip(names, values, strict=True):
        number = saved.index(name)
        if isinstance(value, list):
            length = np.array(len(value))
            yield f"{number}", f"len({name})", length
            for index, item in enumerate(value):
                yield f"{number}.{index}", f"{name}[{index}]", _array(item)
        else:
            yield f"{number}", name, _array(value)


def _array(value: Any) -> NDArray[Any]:  # noqa: ANN401 - ONNX Runtime has no types
    if value is None:
        return np.zeros((0,), np.bool_)
    array = np.asarray(value)
    return array.astype(np.str_) if array.dtype.kind == "O" else array


def worst(found: list[Difference]) -> list[Difference]:
    """Keep the worst difference of each output over all runs."""
    kept: dict[str, Difference] = {}
    for item in found:
        old = kept.get(item.output)
        if old is None or (item.beyond, item.elements) > (old.beyond, old.elements):
            kept[item.output] = item
    return list(kept.values())
