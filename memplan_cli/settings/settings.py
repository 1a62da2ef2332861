"""`Settings`: everything that decides a plan, as one frozen record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.core.bindings import Inputs, inputs_of
from memplan_cli.settings.fields import read_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.program import Shape
    from memplan_cli.core.symbolic.bounds import Bounds
    from memplan_cli.settings.choices import (
        CacheChoice,
        ChunkChoice,
        ExternalWeightsChoice,
        Kind,
        Level,
        NotesChoice,
        OrderChoice,
        PhaseChoice,
        RecomputeChoice,
        TargetChoice,
    )


@dataclass(frozen=True, slots=True)
class MemParam:
    """Caffe's ``mem_param`` block: the phases to optimize and the vars to exclude from reuse."""

    optimize_train: bool = True
    optimize_test: bool = True
    exclude_blob: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        read_fields(self, "mem_param.")


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that decides a plan: the same model and settings give the same bytes.

    Values may be written as in a settings file (``budget="60%"``, ``exclude="fc*"``) and are
    validated in the same way.
    """

    mem_param: MemParam = field(default_factory=MemParam)
    level: Level = 2
    exclude: tuple[str, ...] = ()
    """Names and globs from the command line, in addition to ``mem_param.exclude_blob``."""
    expose: bool = False
    """Whether excluded vars become graph outputs."""
    phase: PhaseChoice = "auto"
    skip_grads: bool = False
    """Whether gradients that the update consumes are excluded from reuse."""
    loss: str | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    bounds: Bounds = field(default_factory=dict)
    """The numbers that symbolic dims may have: the plan holds for all of them. A range may be written as
    ``(low, high)`` or ``(low, high, step)``."""
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    inputs: Inputs = field(default_factory=Inputs)
    """Input tensors: files, or arrays by name. A path or a mapping is converted."""
    run: bool = True
    """Whether the model may be run to observe sizes that depend on data."""
    order: OrderChoice = "auto"
    fold_constants: bool = False
    """Whether expressions of initializers and constants are computed when the model is written."""
    recompute: RecomputeChoice = "none"
    checkpoints: tuple[str, ...] = ()
    """Tensors that end the segments of ``recompute: checkpoints``."""
    chunk: ChunkChoice = "none"
    """Whether large activations are computed in chunks."""
    kv_cache: CacheChoice = "keep"
    """Whether decoder caches become buffers that a step updates in place."""
    capacity: int | None = None
    """Sequence length that the cache buffers hold; for ``kv_cache: in-place``."""
    budget: int | float | None = None
    """Live-peak target of ``recompute: auto`` or ``chunk: auto``: bytes, or a share of the peak before. None:
    the knee of recomputation; of chunks, the least memory in a run predicted at most 5 % slower."""
    best_effort: bool = False
    """Whether the smallest plan found is written if none is within the budget."""
    donate: Mapping[str, str] = field(default_factory=dict)
    """Glob of inputs -> glob of outputs: the output may overwrite the input that it replaces."""
    target: TargetChoice = "portable"
    """``portable``: the model's own graph, reordered. Otherwise the graph that ONNX Runtime makes
    of it for this provider, reordered."""
    external_weights: ExternalWeightsChoice = "auto"
    """Whether weights become external data if that lowers the peak of loading the model."""
    notes: NotesChoice = "auto"
    """Where the plan is written: beside the model only (``plan``), or also as metadata of nodes and
    values (``model``), which a session keeps in memory. ``auto``: see `has_notes_in_model`."""
    alignment: int | None = None
    """Bytes, a power of two. None: 64, or less for models of tiny tensors (levels must not grow)."""
    time_limit: float | None = None
    """Seconds after which searches stop. Without it they are bounded by work, and reproducible."""
    allow_partial: bool = False

    def __post_init__(self) -> None:
        """Validate the fields, and convert values in the form of a settings file, such as ``1..64``.

        Raises:
            SettingsError: a value is not allowed; the message names the setting.
        """
        # Arrays have no form in a file: `read_fields`, which sets the other fields, has no reader for them.
        object.__setattr__(self, "inputs", inputs_of(self.inputs))
        read_fields(self)

    @property
    def has_notes_in_model(self) -> bool:
        """Whether nodes and values of the written model get the plan as metadata.

        With ``notes: auto``, those of a portable file do, for viewers. A file of a target does not: it
        exists to take less memory.
        """
        return self.notes == "model" or (self.notes == "auto" and self.target == "portable")

    @property
    def excluded(self) -> tuple[str, ...]:
        """All excluded names and globs, each once, in the order in which they were given."""
        return tuple(dict.fromkeys((*self.mem_param.exclude_blob, *self.exclude)))

    def kind(self, detected: Kind) -> Kind:
        """Return the kind of a model: the detected one, or ``phase`` if that is set."""
        return detected if self.phase == "auto" else self.phase
