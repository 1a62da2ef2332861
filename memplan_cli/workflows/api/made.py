"""What is made or checked beside a plan: `train_step`, `pack`, `verify_certificate`, `schema`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan_cli.errors import SettingsError
from memplan_cli.workflows.files.sources import on_files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan_cli.core.progress import Progress
    from memplan_cli.core.results.certified import Certified
    from memplan_cli.packing.problem_file import Packed
    from memplan_cli.reporting.findings.train_step import WrittenStep
    from memplan_cli.training.train_step import Recipe
    from memplan_cli.workflows.files.sources import ModelSource
    from memplan_cli.workflows.request import FilePath


def train_step(  # noqa: PLR0913 - what the command takes, by name
    model: ModelSource,
    out: FilePath,
    *,
    loss: str | None = None,
    loss_fn: str | None = None,
    optimizer: str | None = None,
    recipe: Recipe | None = None,
    checkpoints: Sequence[str] = (),
    budget: float | str | None = None,
    state: FilePath | None = None,
    progress: Progress | None = None,
) -> WrittenStep:
    """Turn a forward model into a training step in standard ONNX operators, and write it.

    Args:
        model: A model, as a file or in memory.
        out: The training step to write.
        loss: The loss tensor of the model.
        loss_fn: The loss to append to the model's first output, in place of ``loss``.
        optimizer: Whose update is appended; None: the step gives gradients.
        recipe: All of this and more, as `memplan_cli.training.train_step.Recipe` has it.
        checkpoints: Activations to keep; what lies between them is computed again.
        budget: Bytes for intermediates and outputs, a share of them, or text like ``2GiB``
            or ``50%``; activations are computed again until that is met.
        state: Where the first value of each ``in.*`` goes (``.npz``).
        progress: Told what is being done.

    Raises:
        MemplanError: what is asked for contradicts itself, an operator has no gradient, or a
            file cannot be read or written. A budget that cannot be met is a result: ``missed``
            says what the best step takes, and nothing is written.
    """
    from memplan_cli.workflows.train_step import Recomputation, StepFiles, train_step

    if checkpoints and budget is not None:
        raise SettingsError("checkpoints and a budget both say what is kept", hint="give one")
    wanted = recipe or _recipe(loss, loss_fn, optimizer)
    if recipe is not None and (loss or loss_fn or optimizer):
        raise SettingsError("a recipe says the loss and the optimizer", hint="leave them out")
    again = Recomputation(tuple(checkpoints), _budget(budget))
    first = None if state is None else Path(state)

    def work(path: Path) -> WrittenStep:
        return train_step(wanted, StepFiles(path, Path(out), first), again, progress)

    return on_files((model,), work)


def _recipe(loss: str | None, loss_fn: str | None, optimizer: str | None) -> Recipe:
    from memplan_cli.training.losses import LossFunction
    from memplan_cli.training.optimizers import Optimizer
    from memplan_cli.training.train_step import Recipe

    if (loss is None) == (loss_fn is None):
        raise SettingsError("a training step has one loss", hint="give loss or loss_fn")
    return Recipe(
        loss or LossFunction(str(loss_fn)), Optimizer(optimizer) if optimizer else None
    )


def _budget(budget: float | str | None) -> float | None:
    from memplan_cli.settings.keys import budget as read_budget
    from memplan_cli.settings.written import Place, Value

    return None if budget is None else read_budget(Value(budget, Place("budget")))


def pack(  # noqa: PLR0913 - what the command takes, by name
    problem: FilePath,
    *,
    capacity: int | None = None,
    time_limit: float | None = None,
    out: FilePath | None = None,
    certificate: FilePath | None = None,
    progress: Progress | None = None,
) -> Packed:
    """Pack the buffers of a CSV file; write them with their offsets if all fit.

    Args:
        problem: The file, with the columns ``id,lower,upper,size``.
        capacity: Bytes that must suffice.
        time_limit: Seconds for the search.
        out: Where the layout goes.
        certificate: Where goes what shows that no layout is lower; needs ``out``.
        progress: Told what is being done.

    Raises:
        MemplanError: the file is no problem, or the result cannot be written.
    """
    from memplan_cli.workflows.pack import PackingGoal, pack

    goal = PackingGoal(capacity, time_limit)
    return pack(problem, goal, out=out, certificate=certificate, progress=progress)


def verify_certificate(
    model: ModelSource, plan_file: FilePath, certificate_file: FilePath
) -> Certified:
    """Check a certificate against a plan and a model, without the searches that found it.

    Args:
        model: The model that the plan was made of, or the one that was written with it;
            or a CSV file of buffers.
        plan_file: The plan; or the CSV file with their offsets.
        certificate_file: The certificate.

    Raises:
        MemplanError: a file cannot be read, or the model is another one.
    """
    from memplan_cli.workflows.certificate import verify_certificate

    def work(path: Path) -> Certified:
        return verify_certificate(path, plan_file, certificate_file)

    return on_files((model,), work)


def schema(name: str) -> dict[str, Any]:
    """Return the JSON schema of something that memplan reads or writes.

    Raises:
        SettingsError: there is none of that name.
    """
    from memplan_cli.reporting.schemas import schema_text

    found: dict[str, Any] = json.loads(schema_text(name))
    return found
