"""What a runtime is asked for, or predicted of: `validate`, `runtime_settings`, `fit`, `soak` ..."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from memplan_cli.core.check import DEFAULT_CHECK, Check
from memplan_cli.core.results.observations import DEFAULT_TIMEOUT
from memplan_cli.workflows.files.sources import on_files
from memplan_cli.workflows.request import settings_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from memplan_cli.core.bindings import Inputs
    from memplan_cli.core.progress import Progress
    from memplan_cli.core.results.validation import Proof
    from memplan_cli.planning.fit import Fit
    from memplan_cli.runtime.serving.soak import Soak
    from memplan_cli.runtime.settings_search.choice import SettingsChoice
    from memplan_cli.runtime.simulate.allocators import AllocatorComparison
    from memplan_cli.settings.settings import Settings
    from memplan_cli.workflows.files.sources import ModelSource
    from memplan_cli.workflows.request import FilePath
    from memplan_cli.workflows.serving import SoakTerms
    from memplan_cli.workflows.validate import Extra


def validate(
    planned: ModelSource,
    original: ModelSource | None = None,
    check: Check = DEFAULT_CHECK,
    extras: Collection[Extra] = (),
    inputs: Inputs | None = None,
) -> Proof:
    """Hold a written model against its plan, run it and its original, and compare the outputs.

    Where the plan beside it does not say what the model says, nothing is run. Both run at the
    dims that the plan was made for, at two sets of them where it has bounds, both inside;
    without a plan, at small ones. Where the written model says that outputs may lie where
    inputs were, two steps are taken with each such pair in one buffer.

    Args:
        planned: A model that memplan wrote; its plan beside it, which the extras need.
        original: The model it was made from; None: what its name says.
        check: Where to run, and what counts as equal.
        extras: ``replay`` runs it op by op inside the plan's arenas, ``measure`` measures
            both models' memory in the runtime, of the check's number of processes at once too.
        inputs: Real inputs, of the sizes that the plan was made for; the others are drawn.

    Raises:
        MemplanError: a file is not what it should be, or the original cannot run.
    """
    from memplan_cli.workflows.validate import validate

    def work(written: Path, source: Path | None = None) -> Proof:
        return validate(written, source, check, extras, inputs)

    models = (planned,) if original is None else (planned, original)
    return on_files(models, work)


def runtime_settings(
    model: ModelSource,
    given: Settings | None = None,
    check: Check | None = None,
    progress: Progress | None = None,
    *,
    config: FilePath | None = None,
    **options: object,
) -> SettingsChoice:
    """Return the runtime options that make a model, as it is, need least memory.

    Args:
        model: Its weights must be there: the runtime loads it to tell what it would run.
        given: What binds dims and inputs in it counts.
        check: Confirm by a run on its provider, or search by measuring; None predicts only.
        progress: Told of each process of a search.
        config: A settings file, in place of ``given``.
        options: Settings by name, in place of ``given``: ``dims={"batch": 8}``.

    Raises:
        MemplanError: the model does not load, or has no dim of a name.
    """
    from memplan_cli.workflows.settings import settings

    def work(path: Path) -> SettingsChoice:
        return settings(path, settings_of(path, given, config, options), check, progress)

    return on_files((model,), work)


def simulate(
    model: ModelSource,
    settings: Settings | None = None,
    allocators: Sequence[str] | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    *,
    config: FilePath | None = None,
    **options: object,
) -> AllocatorComparison:
    """Return what dynamic allocators need for one real run, beside the static plan.

    Args:
        model: A model, as a file or in memory.
        settings: What binds dims and inputs in it counts.
        allocators: Which; None: all.
        timeout: Seconds after which the run is given up.
        config: A settings file, in place of ``settings``.
        options: Settings by name, in place of ``settings``.

    Raises:
        MemplanError: the model cannot be read or run, or there is no such allocator.
    """
    from memplan_cli.workflows.simulate import checked_allocators, simulate

    wanted = checked_allocators(allocators)

    def work(path: Path) -> AllocatorComparison:
        return simulate(path, settings_of(path, settings, config, options), wanted, timeout)

    return on_files((model,), work)


def fit(  # noqa: PLR0913 - what the command takes, by name
    model: ModelSource,
    memory: int | str,
    unknown: str | Sequence[str],
    settings: Settings | None = None,
    *,
    overhead: int | str | None = None,
    of: Literal["auto", "process", "tensors"] = "auto",
    provider: str | None = None,
    progress: Progress | None = None,
    config: FilePath | None = None,
    **options: object,
) -> Fit:
    """Return the largest value of a dim with which a model fits a memory size.

    Args:
        model: A model, as a file or in memory.
        memory: Bytes, or text like ``16GiB``.
        unknown: The dim; with several, the first is the largest for powers of two of the
            others.
        settings: What binds the other dims.
        overhead: Bytes of Python and the runtime; None: the usual ones.
        of: What has to fit, the predicted process or the planned tensors; ``auto``: the
            process where it can be predicted.
        provider: Where to run the answer; None: nothing is run.
        progress: Told what is being done.
        config: A settings file, in place of ``settings``.
        options: Settings by name, in place of ``settings``: ``dims={"seq": 128}``.

    Raises:
        MemplanError: the model has no such dim, it has a value, or another has none.
    """
    from memplan_cli.workflows.fit import MemoryLimit, fit

    names = (unknown,) if isinstance(unknown, str) else tuple(unknown)
    spare = None if overhead is None else _bytes(overhead)
    limit = MemoryLimit(_bytes(memory), names, spare, provider, of)

    def work(path: Path) -> Fit:
        return fit(path, limit, settings_of(path, settings, config, options), progress)

    return on_files((model,), work)


def soak(
    model: ModelSource,
    settings: Settings | None = None,
    *,
    terms: SoakTerms | None = None,
    progress: Progress | None = None,
    config: FilePath | None = None,
    **options: object,
) -> Soak:
    """Serve many requests of changing size under the defaults and under settings for them.

    Args:
        model: A model, as a file or in memory.
        settings: Bounds of the dims of requests, and what binds the others.
        terms: How many requests, in which order, and how long they may take.
        progress: Told what is being done.
        config: A settings file, in place of ``settings``.
        options: Settings by name, in place of ``settings``: ``bounds={"batch": (1, 8)}``.

    Raises:
        MemplanError: the model does not run here, or has no dim of a name.
    """
    from memplan_cli.workflows.serving import soak

    def work(path: Path) -> Soak:
        return soak(path, settings_of(path, settings, config, options), terms, progress)

    return on_files((model,), work)


def _bytes(size: int | str) -> int:
    from memplan_cli.core.quantities import parse_size

    return size if isinstance(size, int) else parse_size(size)
