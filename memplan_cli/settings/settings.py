"""Settings of a plan as one frozen value, wherever they were written.

Whoever makes one, `settings.judge` reads its values as it reads those of a file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.core.bindings import Inputs, inputs_of
from memplan_cli.settings.judge import judge

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.program import Shape
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
    """The Caffe block: which phases to optimise, and which vars to leave alone."""

    optimize_train: bool = True
    optimize_test: bool = True
    exclude_blob: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what no file may say.

        Raises:
            SettingsError: naming the key.
        """
        judge(self, "mem_param.")


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that decides a plan. The same model and settings give the same bytes.

    A value may be written as in a file (``budget="60%"``, ``exclude="fc*"``); what no file may
    say is a `SettingsError` that names it.
    """

    mem_param: MemParam = field(default_factory=MemParam)
    level: Level = 2
    exclude: tuple[str, ...] = ()
    """Names and globs from the command line; they add to ``mem_param.exclude_blob``."""
    expose: bool = False
    """Whether excluded vars become graph outputs."""
    phase: PhaseChoice = "auto"
    skip_grads: bool = False
    """Whether gradients that the update consumes are excluded from reuse."""
    loss: str | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Least and greatest value of symbols: the plan holds for all values between them."""
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    inputs: Inputs = field(default_factory=Inputs)
    """Real inputs: files, or values by name; a path or a mapping will do."""
    profile_shapes: bool = False
    """Accepted for what is the default: one run says the shapes that depend on data."""
    run: bool = True
    """Whether the model may be run to find what the file does not say of its sizes."""
    order: OrderChoice = "auto"
    fold_constants: bool = False
    """Whether expressions of initializers and constants become initializers."""
    recompute: RecomputeChoice = "none"
    checkpoints: tuple[str, ...] = ()
    """Tensors that end the segments of ``recompute: checkpoints``."""
    chunk: ChunkChoice = "none"
    """Whether long activations are computed in pieces to meet the budget."""
    kv_cache: CacheChoice = "keep"
    """Whether decoder caches become buffers that a step updates in place."""
    capacity: int | None = None
    """Entries that such a buffer holds."""
    budget: int | float | None = None
    """Live-peak target of ``recompute: auto`` or ``chunk: auto``: bytes, or a share of the peak before."""
    donate: Mapping[str, str] = field(default_factory=dict)
    """Globs, input to output: the output may reuse the memory of the input it replaces."""
    target: TargetChoice = "portable"
    """The file as it is, in a better order; or the runtime's own optimised graph, ordered."""
    external_weights: ExternalWeightsChoice = "auto"
    """Whether weights leave a portable file where that lowers the peak of loading it."""
    notes: NotesChoice = "model"
    """Whether nodes and values of the file say their plan too: a session holds what they say."""
    alignment: int | None = None
    """Bytes, a power of two; None: 64, or less where 64 would cost more than it packs."""
    time_limit: float | None = None
    """Seconds that may cut the searches short; they are bounded by work anyway."""
    allow_partial: bool = False

    def __post_init__(self) -> None:
        """Refuse what no file may say, and read what it may.

        Raises:
            SettingsError: naming the setting.
        """
        object.__setattr__(self, "inputs", inputs_of(self.inputs))
        judge(self)

    @property
    def excluded(self) -> tuple[str, ...]:
        """Every exclusion, in the order given, once."""
        return tuple(dict.fromkeys((*self.mem_param.exclude_blob, *self.exclude)))

    def kind(self, found: Kind) -> Kind:
        """Return the kind that a model counts as: the one found, unless that is overruled."""
        return found if self.phase == "auto" else self.phase
