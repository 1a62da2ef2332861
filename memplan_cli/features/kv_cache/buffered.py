"""A decoder whose caches become buffers: the graphs to try, each planned for its fullest step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan_cli.api.files.binding import bind
from memplan_cli.api.files.model_file import ModelFile, plan_model, plan_settled
from memplan_cli.api.files.rewriting import Rewriting
from memplan_cli.api.optimized import warned
from memplan_cli.core.bindings import Inputs
from memplan_cli.core.program import VarId
from memplan_cli.core.results.observations import UNOPTIMISED, RuntimeSettings
from memplan_cli.core.symbolic.sizes import size_of
from memplan_cli.errors import ModelError, SettingsError

if TYPE_CHECKING:
    from onnx import ModelProto

    from memplan_cli.api.files.rewriting import Targets
    from memplan_cli.core.bindings import Provenance
    from memplan_cli.core.program import Program
    from memplan_cli.core.progress import Progress
    from memplan_cli.core.results.rewrites import Caches
    from memplan_cli.features.kv_cache.decoded import OriginalDecoding
    from memplan_cli.features.kv_cache.find import Search
    from memplan_cli.features.kv_cache.merged import OpenedBranch
    from memplan_cli.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class Attempt:
    """A rewritten graph, and what both models' sessions are set to."""

    model: ModelProto
    settings: RuntimeSettings
    note: str = ""


@dataclass(frozen=True, slots=True)
class Buffered:
    """A model whose caches are rewritten, and what somebody said of its sizes."""

    file: ModelFile
    settings: Settings
    """As they were given."""
    bound: Settings
    """The same for the model as it is: numbers of dims, inputs."""
    capacity: int
    model: ModelProto
    """In the opset that the rewritten graph needs."""
    search: Search
    merged: OpenedBranch | None = None
    """What the model is a branch of."""

    @classmethod
    def of(cls, file: ModelFile, settings: Settings) -> Buffered:
        """Look for the caches of a model.

        Raises:
            SettingsError: there is no capacity.
            ModelError: there is no cache, or none that can be in place.
        """
        from memplan_cli.features.kv_cache.find import find_caches
        from memplan_cli.features.kv_cache.merged import unmerged
        from memplan_cli.features.kv_cache.rewrite import converted

        if settings.capacity is None:
            raise SettingsError(
                "--kv-cache in-place needs the most entries that a cache may hold",
                hint="add --capacity N",
            )
        merged = unmerged(file.model)
        model = file.model if merged is None else merged.model
        # What keeps no model out of a conversion is looked at first: the reason is plainer.
        _refuse_none(find_caches(model, _excluded(model, settings)))
        model = converted(model)
        search = find_caches(model, _excluded(model, settings))
        _refuse_none(search)
        bound = bind(file.model, settings)
        return cls(file, settings, bound, settings.capacity, model, search, merged)

    def attempts(self) -> list[Attempt]:
        """Return the graphs to try, the cheapest first."""
        from memplan_cli.features.kv_cache.grouped import without_repeats

        plain = self.caches_of()[0]
        grouped = without_repeats(plain)
        tries = [Attempt(grouped, RuntimeSettings())]
        if grouped is not plain:
            note = "heads are repeated as in the file: without, the outputs have other bits"
            tries.append(Attempt(plain, RuntimeSettings(), note))
        note = (
            "compared with the runtime's optimisation off: on, it fuses other nodes, and the "
            "outputs have other bits"
        )
        tries.append(Attempt(grouped, UNOPTIMISED, note))
        if grouped is not plain:
            tries.append(Attempt(plain, UNOPTIMISED, note))
        return tries

    def caches_of(self) -> tuple[ModelProto, Caches]:
        """Return the rewritten graph, and what its user has to know."""
        from memplan_cli.features.kv_cache.rewrite import in_buffers

        return in_buffers(self.model, self.search, self.capacity)

    def rewriting(
        self,
        attempt: Attempt,
        first: OriginalDecoding | None,
        targets: Targets,
        progress: Progress,
    ) -> Rewriting:
        """Plan a rewritten graph for a step that fills its caches."""
        from memplan_cli.api.files.assuming import settle
        from memplan_cli.onnx_io.caches_metadata import caches_note
        from memplan_cli.onnx_io.load import LazyModel, graph_digest

        caches = self.caches_of()[1]
        file = ModelFile(self.file.path, LazyModel(attempt.model))
        settings = self._full(attempt.model, caches, first)
        settings = _assuming(bind(attempt.model, settings), self.bound)
        settled = settle(file.lazy, file.path, replace(settings, run=False))
        planned = plan_settled(file, settled, progress)
        caches = self._described(planned.program, caches, first)
        notes = caches_note(
            replace(caches, bytes=0, kept=(), steps=(), before=None, planned_at=0)
        )
        report = replace(planned.plan.report, caches=caches)
        said = {key: value for key, value in planned.plan.settings.items() if key != "run"}
        own = graph_digest(self.file.model)
        plan = replace(planned.plan.with_report(report), settings=said, graph_sha256=own)
        if self.merged is not None:
            plan = warned(
                plan,
                f"{self.merged.condition!r} is no input any more: what it chooses where caches "
                "are empty is left out, and the branch that extends them begins too",
            )
        planned = replace(planned, plan=plan)
        return Rewriting(file, planned, settled.settings, targets, notes=notes, caches=caches)

    def _full(
        self, model: ModelProto, caches: Caches, first: OriginalDecoding | None
    ) -> Settings:
        """Return settings for the step that fills the caches."""
        from memplan_cli.onnx_io.interface import free_dims

        past = self._past(first)
        known = free_dims(model)
        ones = dict.fromkeys(known, 1)
        rules = ones if first is None else first.dims_at(past, self.capacity - past)
        dims = {**rules, **self.bound.dims}
        position = {caches.position: [past]}
        donate = {_as_glob(given): made for given, made in caches.donated}
        return replace(
            self.settings,
            dims={name: value for name, value in dims.items() if name in known},
            shapes={},
            inputs=Inputs(values=position),
            donate=donate,
        )

    def _described(
        self, program: Program, caches: Caches, first: OriginalDecoding | None
    ) -> Caches:
        """Return what is said of the caches, with the bytes that they take now and before."""
        if first is not None:
            caches = replace(caches, tokens=first.tokens, steps=first.steps)
        return replace(
            caches,
            bytes=sum(_bytes(program, each.output) for each in caches.buffers),
            before=self._before(first),
            planned_at=self._past(first),
        )

    def _past(self, first: OriginalDecoding | None) -> int:
        """Return the position of the step that fills the caches."""
        new = first.steps[-1] if first is not None and first.steps else 1
        return max(self.capacity - new, 0)

    def _before(self, first: OriginalDecoding | None) -> tuple[int, int, int] | None:
        """Return inputs, outputs and planned bytes of the original's last step; None if unknown."""
        if first is None:
            return None
        past = self._past(first)
        dims = {**first.dims_at(past, self.capacity - past), **self._past_dims(past)}
        settings = replace(
            self.bound,
            dims={**dims, **self.bound.dims},
            inputs=replace(self.bound.inputs, feeds={}, assumed={}),
            shapes={},
            kv_cache="keep",
            capacity=None,
            run=False,
        )
        memory = plan_model(self.file, settings).plan.report.memory
        if memory.inputs is None or memory.outputs is None or memory.planned is None:
            return None
        return memory.inputs, memory.outputs, memory.planned

    def _past_dims(self, past: int) -> dict[str, int]:
        from memplan_cli.onnx_io.interface import (
            fed_inputs,
            names_taken,
            tensor_dims,
        )
        from memplan_cli.onnx_io.types import tensor_type

        model = self.file.model
        taken = names_taken(model)
        axes = {f.input: f.axis for f in self.search.matches if f.form != "constant"}
        return {
            str(tensor_dims(value, tensor_type(value)[1], taken)[axes[value.name]]): past
            for value in fed_inputs(model)
            if value.name in axes
        }


def choosing(merged: OpenedBranch | None) -> dict[str, bool]:
    """Return the input of a merged decoder that chooses, and what it is for the branch kept."""
    return {} if merged is None else {merged.condition: merged.value}


def _bytes(program: Program, name: str) -> int:
    """Return the bytes of a tensor, 0 where they are not known as a number."""
    var = program.vars[VarId(name)]
    size = size_of(var.shape, var.dtype)
    return 0 if size is None or size.symbols else size.coefficient


def _assuming(settings: Settings, said: Settings) -> Settings:
    """Return settings that say which dims a decode loop gave numbers, and nobody else."""
    found: dict[str, Provenance] = {n: "assumed" for n in settings.dims if n not in said.dims}
    provenance = {**settings.inputs.provenance, **found}
    return replace(settings, inputs=replace(settings.inputs, provenance=provenance))


def _refuse_none(search: Search) -> None:
    """Refuse a model without a cache that can be in place.

    Raises:
        ModelError: saying what is in the way.
    """
    if any(each.form != "constant" for each in search.matches):
        return
    if not search.kept:
        raise ModelError(
            "the model has no cache: no output extends an input along one axis",
            hint="export the decoder with its past as inputs and its present as outputs",
        )
    first = search.kept[0]
    more = f" ({len(search.kept) - 1} more are kept too)" if len(search.kept) > 1 else ""
    raise ModelError(
        f"no cache can be updated in place: {first.output!r} follows {first.input!r}, and "
        f"{first.reason}{more}"
    )


def _excluded(model: ModelProto, settings: Settings) -> tuple[str, ...]:
    """Return the inputs and outputs that settings exclude from reuse."""
    from fnmatch import fnmatchcase

    names = [value.name for value in (*model.graph.input, *model.graph.output)]
    return tuple(n for n in names if any(fnmatchcase(n, p) for p in settings.excluded))


def _as_glob(name: str) -> str:
    """Return the glob that matches a name alone."""
    return name.replace("[", "[[]")
