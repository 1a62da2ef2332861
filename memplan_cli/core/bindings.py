"""Bindings: the sizes and values that a model's inputs have, wherever they were said.

`Inputs` is what somebody gave; `Feed` is one input as a run gets it; a `Binding` holds both
numbers for dims and feeds, for all that plans, predicts, runs or measures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path

Provenance = Literal["given", "inputs", "assumed"]
"""Of a dim's number: an option or a settings file, an input's data, or nobody."""


@dataclass(frozen=True, slots=True)
class FeedSpec:
    """How to draw one input, or where its data is.

    Attributes:
        name: the graph input.
        dtype: numpy's name, or ``str``.
        shape: numbers only.
        kind: ``normal`` (scaled by ``scale``), ``positive`` (its absolute value),
            ``integers`` (``low <= value < high``), ``mask`` (0 or 1, the first of each row
            1), ``values`` (exactly ``values``), ``strings``, ``file`` (the arrays in
            ``files``) or ``fill`` (the one value in ``files`` everywhere).
        container: ``tensor``, ``sequence``, ``optional``, ``map of text`` or ``map of
            numbers``, by what its keys are.
        files: arrays on disk, one, or one for each tensor of a sequence.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    kind: str
    low: int = 0
    high: int = 2
    scale: float = 1.0
    values: tuple[int, ...] = ()
    container: str = "tensor"
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Feed:
    """What is known of one input that was given.

    Attributes:
        shape: numbers only; None where one value fills whatever shape is bound.
        files: arrays on disk; none where only the shape was given.
        container: ``tensor`` or ``sequence``.
        storage: keeps the files as long as it is there itself.
    """

    shape: tuple[int, ...] | None
    files: tuple[str, ...] = ()
    container: str = "tensor"
    storage: object = field(default=None, repr=False, compare=False)


Feeds = Mapping[str, Feed]
"""Inputs that were given, by name."""


def given_text(feeds: Feeds) -> str:
    """Say, for a message, which inputs a run had that were given."""
    names = [repr(name[:100]) for name, feed in feeds.items() if feed.files]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f" with the values given of {', '.join(names[:3])}{more}" if names else ""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Inputs that somebody gave, and what was made of them for one model.

    Attributes:
        files: ``.npz`` files, folders of ``input_*.pb``, JSON files.
        values: by name, a number, a list or an array.
        feeds: what a run gets; None until a model is known.
        provenance: who said the number of each dim, where no option did.
        assumed: numbers for dims that nobody bound: what is planned stays symbolic in them,
            and a number, or a run, is at these; None until they were looked for.
        others: what becomes of inputs that a model does not take: `leave` is for many models.
    """

    files: tuple[str, ...] = ()
    values: Mapping[str, object] = field(default_factory=dict)
    feeds: Feeds | None = None
    provenance: Mapping[str, Provenance] = field(default_factory=dict)
    assumed: Mapping[str, int] | None = None
    others: Literal["refuse", "leave"] = "refuse"

    @property
    def given(self) -> bool:
        """Whether anything was given."""
        return bool(self.files or self.values)


def inputs_of(given: Inputs | Mapping[str, object] | Path | str | tuple[str, ...]) -> Inputs:
    """Return inputs from a mapping of names to values, a path, or several paths."""
    if isinstance(given, Inputs):
        return given
    if isinstance(given, Mapping):
        return Inputs(values=given)
    if isinstance(given, list | tuple):
        return Inputs(tuple(str(path) for path in given))
    return Inputs((str(given),))


@dataclass(frozen=True, slots=True)
class Binding:
    """Numbers for dims, and inputs that were given.

    ``assumed`` names the dims whose number nobody said: a comparison may run at others too.
    """

    dims: Mapping[str, int] = field(default_factory=dict)
    feeds: Feeds = field(default_factory=dict)
    assumed: frozenset[str] = frozenset()

    def at(self, dims: Mapping[str, int]) -> Binding:
        """Return the same feeds at further numbers for dims."""
        return Binding({**self.dims, **dims}, self.feeds, self.assumed - dims.keys())
