"""The rewritten model's outputs compared with the original's, bit for bit.

Both run in processes of their own, on the same seeded inputs, twice, at two sets of dims
where a dim is free. The original's outputs lie in files while the other one runs, so that
no process holds both.
"""

from __future__ import annotations

import dataclasses
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.bindings import Binding, given_text
from memplan_cli.core.check import DEFAULT_CHECK, Check
from memplan_cli.core.results.observations import Difference, RuntimeSettings, Validation
from memplan_cli.core.serialization import to_json
from memplan_cli.core.symbolic.dims import binding_text
from memplan_cli.errors import ModelError, RuntimeUnavailableError
from memplan_cli.onnx_io.interface import other_inputs
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.runs.feeds import feed_specs
from memplan_cli.onnx_io.runs.runnable import missing_weights, random_ops
from memplan_cli.onnx_io.runs.seeding import seeded_twins
from memplan_cli.runtime.workers.bits import differences, widened
from memplan_cli.runtime.workers.session import resolve_provider
from memplan_cli.runtime.workers.session_job import SessionJob
from memplan_cli.runtime.workers.worker import Outcome, run_job

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onnx import ModelProto

    from memplan_cli.core.bindings import FeedSpec
    from memplan_cli.core.check import Tolerance

_DRAWN = "random ops had seeds in copies of both models, of which the first runs were compared"

_CHANGING = (
    "a run of the original changes the next one: the first runs, which repeat, were compared"
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """How two models are compared with each other.

    Attributes:
        check: where they run, and what counts as equal.
        binding: numbers for dims, and inputs that were given; the others are drawn. A second
            shape has others for the dims that nobody said.
        specs: how to draw the inputs; None reads it from the original.
        original_settings, rewritten_settings: on top of the deterministic settings. Both
            should name the same optimisation level, unless the file already holds the
            optimised graph.
    """

    check: Check = DEFAULT_CHECK
    binding: Binding = field(default_factory=Binding)
    specs: tuple[FeedSpec, ...] | None = None
    original_settings: RuntimeSettings = field(default_factory=RuntimeSettings)
    rewritten_settings: RuntimeSettings = field(default_factory=RuntimeSettings)

    def on_its_provider(self) -> Comparison:
        """Return the same with ONNX Runtime's name of the provider.

        Raises:
            RuntimeUnavailableError: the one asked for does not work here.
        """
        provider = resolve_provider(self.check.provider)
        return dataclasses.replace(
            self, check=dataclasses.replace(self.check, provider=provider)
        )


def compare(original: Path, rewritten: Path, how: Comparison | None = None) -> Validation:
    """Run both models and compare every output of the original.

    Raises:
        RuntimeUnavailableError: the weights are not there, the provider is not, or the
            original itself does not run. A rewritten model that does not run is a failed
            check, not an error.
        ModelError: it does not run because it takes other inputs than the original.
    """
    how = how or Comparison()
    require_weights(original)
    require_weights(rewritten)
    how = how.on_its_provider()
    first = _at_dims(original, rewritten, how, how.binding.dims)
    if first.status == "failed" and first.max_abs_diff is None:
        _refuse_another(original, rewritten)
    other = None if how.specs is not None else second_dims(how.binding)
    if other is None or first.status != "passed":
        return first
    try:
        second = _at_dims(original, rewritten, how, other)
    except RuntimeUnavailableError as error:
        note = f"one shape only: the original does not run at {_text(other)} ({error})"
        return dataclasses.replace(first, notes=(*first.notes, note))
    return _merged(first, second)


def require_weights(
    path: Path,
    instead: str = "--no-validate leaves the comparison out",
    model: ModelProto | None = None,
) -> None:
    """Refuse a model whose external data is not there: nothing could be shown with it.

    Args:
        path: the file.
        instead: what the user may do if the data is not to be had.
        model: what is in the file, where it was read already.

    Raises:
        RuntimeUnavailableError: naming the file.
    """
    missing = missing_weights(path, model)
    if missing:
        raise RuntimeUnavailableError(
            f"{path} cannot run: its weights file {missing[0]} is not in {path.parent}",
            hint=f"put the file there; {instead}" if instead else "put the file there",
        )


def _refuse_another(original: Path, rewritten: Path) -> None:
    """Refuse an original that the rewritten model cannot have been made from.

    Raises:
        ModelError: one takes inputs that the other does not.
    """
    found = other_inputs(load_model(original), load_model(rewritten))
    if found:
        raise ModelError(
            f"{rewritten} was not made from {original}: {'; '.join(found)}",
            hint="name the model that it was made from with --original",
        )


def second_dims(binding: Binding) -> dict[str, int] | None:
    """Return twice what was assumed, which ties of sums keep; None where nothing was."""
    other = {name: 2 * binding.dims[name] for name in binding.assumed if name in binding.dims}
    return {**binding.dims, **other} if other else None


def _at_dims(
    original: Path, rewritten: Path, how: Comparison, dims: Mapping[str, int]
) -> Validation:
    model = load_model(original)
    specs = how.specs if how.specs is not None else feed_specs(model, dims, how.binding.feeds)
    what = f"{original} does not run at {_text(dims) or 'its dims'}{given_text(how.binding.feeds)}"
    with tempfile.TemporaryDirectory(prefix="memplan-outputs-") as folder:
        drawn = random_ops(model)
        if how.check.noise and drawn:
            # Runs that nothing says anything of need not be made again to know that.
            seeded = _seeded(original, rewritten, how, specs)
            return seeded or _random(how, how.check.noise, drawn)
        one, other = _Model(original, original), _Model(rewritten, rewritten)
        base = _kept(one, how, specs, folder).require(what)
        noise = differences(base)
        if not noise:
            return _against(base, other, how, specs, folder)
        if drawn:
            return _seeded(original, rewritten, how, specs) or _random(how, noise, drawn)
        found = _first_runs((one, other), how, specs, _CHANGING)
        return found or _against(base, other, how, specs, folder)


@dataclass(frozen=True, slots=True)
class _Model:
    """A model that is run, and the one that it is, or is a copy of."""

    path: Path
    about: Path


def _kept(
    original: _Model, how: Comparison, specs: tuple[FeedSpec, ...], folder: str
) -> Outcome:
    """Run the original, and keep its outputs in a folder."""
    job = _job(original.path, how, how.original_settings, specs)
    job |= {"folder": folder, "save": True}
    return run_job("outputs", job, timeout=how.check.timeout, about=original.about)


def _against(
    base: Mapping[str, object],
    rewritten: _Model,
    how: Comparison,
    specs: tuple[FeedSpec, ...],
    folder: str,
) -> Validation:
    """Run the rewritten model against what lies in the folder."""
    noise = differences(base)
    tolerance = widened(how.check.tolerance, noise)
    job = _job(rewritten.path, how, how.rewritten_settings, specs)
    job |= {"tolerance": [tolerance.rtol, tolerance.atol], "outputs": base["outputs"]}
    job |= {"folder": folder, "save": False}
    second = run_job("outputs", job, timeout=how.check.timeout, about=rewritten.about)
    return verdict(differences(second.result), second, how.check.provider, tolerance, noise)


def _seeded(
    original: Path, rewritten: Path, how: Comparison, specs: tuple[FeedSpec, ...]
) -> Validation | None:
    """Compare the first runs of copies that draw the same numbers.

    None where there are no such copies, or the original's does not repeat itself.
    """
    with tempfile.TemporaryDirectory(prefix="memplan-seeded-") as folder:
        twins = seeded_twins(original, rewritten, Path(folder))
        if twins is None:
            return None
        # Copies that nothing is measured of: the original's process runs both in turn.
        one, other = (_Model(twin, original) for twin in twins)
        return _first_runs((one, other), how, specs, _DRAWN)


def _first_runs(
    models: tuple[_Model, _Model], how: Comparison, specs: tuple[FeedSpec, ...], note: str
) -> Validation | None:
    """Compare the first run of each; None where the original's is not always the same."""
    how = dataclasses.replace(how, check=dataclasses.replace(how.check, runs=1))
    alike = dataclasses.replace(how, rewritten_settings=how.original_settings)
    with tempfile.TemporaryDirectory(prefix="memplan-first-runs-") as folder:
        original, rewritten = models
        base = _kept(original, how, specs, folder).require("the original's first run")
        if not _against(base, original, alike, specs, folder).bit_identical:
            return None
        found = _against(base, rewritten, how, specs, folder)
    return dataclasses.replace(found, notes=(*found.notes, note))


def _job(
    model: Path, how: Comparison, settings: RuntimeSettings, specs: tuple[FeedSpec, ...]
) -> dict[str, object]:
    session = SessionJob(model, how.check.provider, specs, settings).exact()
    tolerance = [how.check.rtol, how.check.atol]
    job: dict[str, object] = {"session": to_json(session), "runs": how.check.runs}
    return job | {"outputs": [], "tolerance": tolerance}


def _random(
    how: Comparison, noise: tuple[Difference, ...], ops: tuple[str, ...]
) -> Validation:
    note = (
        f"two runs of the original differ in {len(noise)} outputs, because it draws random "
        f"numbers ({', '.join(ops)}): no comparison can show anything there"
    )
    return Validation("nondeterministic", how.check.provider, notes=(note,))


def verdict(
    found: tuple[Difference, ...],
    outcome: Outcome,
    provider: str,
    tolerance: Tolerance,
    noise: tuple[Difference, ...] = (),
) -> Validation:
    """Return what the differences of a process that ran, or its failure, say."""
    if not outcome.ok:
        note = f"the rewritten model does not run ({outcome.how}): {outcome.reason}"
        if outcome.timed_out:
            note += ", and --timeout gives more"
        return Validation("failed", provider, bit_identical=False, notes=(note,))
    notes = (
        [] if tolerance.exact else [f"tolerance rtol={tolerance.rtol} atol={tolerance.atol}"]
    )
    if noise:
        notes.insert(0, f"two runs of the original differ in {len(noise)} outputs")
    return Validation(
        status="failed" if any(item.beyond for item in found) else "passed",
        provider=provider,
        max_abs_diff=max((item.max_abs_diff for item in found), default=0.0),
        bit_identical=not found,
        differences=found,
        notes=tuple(notes),
    )


def _merged(first: Validation, second: Validation) -> Validation:
    status = first.status if second.status == "passed" else second.status
    farthest = [v.max_abs_diff for v in (first, second) if v.max_abs_diff is not None]
    return dataclasses.replace(
        first,
        status=status,
        max_abs_diff=max(farthest, default=None),
        bit_identical=bool(first.bit_identical and second.bit_identical),
        differences=(*first.differences, *second.differences),
        notes=tuple(dict.fromkeys((*first.notes, *second.notes))),
    )


def _text(dims: Mapping[str, int]) -> str:
    return binding_text(dict(sorted(dims.items())))
