"""Bindings: the numbers of a model's dims, and the data of its inputs.

`Inputs` holds what a user passed by options or in Python, `Feed` the data of one input of the model.
A `Binding` is what planning, prediction, runs and measurements use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path

Provenance = Literal["given", "inputs", "assumed", "bounds"]
"""The source of a dim's number: an option or settings file, the data of an input, an assumption, or the
bounds within which it was chosen for runs."""


@dataclass(frozen=True, slots=True)
class FeedSpec:
    """How to draw one input at random, or the files with its data.

    Attributes:
        name: the graph input.
        dtype: numpy's name of the element type, or ``str``.
        shape: integers only.
        kind: ``normal`` (random, times ``scale``), ``positive`` (its absolute value),
            ``integers`` (random, ``low <= value < high``), ``mask`` (random 0 or 1, the first
            element of each row 1), ``values`` (exactly ``values``), ``strings``, ``file`` (the
            arrays in ``files``) or ``fill`` (the single value in ``files`` for all elements).
        container: ``tensor``, ``sequence``, ``optional``, ``map of text`` (a map with text keys) or
            ``map of numbers``.
        files: one array, or one for each tensor of a sequence.
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
    """The shape and data of one input, as the user passed it.

    Attributes:
        shape: integers only; None if a single value is used for all elements of any shape.
        files: arrays on disk; empty if only the shape was passed.
        container: ``tensor`` or ``sequence``.
        storage: an object that deletes the files when it is garbage-collected.
    """

    shape: tuple[int, ...] | None
    files: tuple[str, ...] = ()
    container: str = "tensor"
    storage: object = field(default=None, repr=False, compare=False)


Feeds = Mapping[str, Feed]
"""Name of a graph input -> its data."""


def given_text(feeds: Feeds) -> str:
    """Return ``with the values given of 'a', 'b'`` for a message; empty if no feed has data."""
    names = [repr(name[:100]) for name, feed in feeds.items() if feed.files]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f" with the values given of {', '.join(names[:3])}{more}" if names else ""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Inputs that a user passed, and how they were resolved for one model.

    Attributes:
        files: ``.npz`` files, folders of ``input_*.pb``, JSON files.
        values: input name -> a number, a list or an array.
        feeds: the data of the model's inputs; None until they are resolved.
        provenance: the source of the number of each dim that no option binds.
        assumed: assumed numbers of dims that the user did not bind. Plans stay symbolic in these
            dims; figures in bytes and runs use the numbers. None until they are resolved.
        others: how to treat an input that the model does not have: an error, or, if many models
            are processed, nothing.
    """

    files: tuple[str, ...] = ()
    values: Mapping[str, object] = field(default_factory=dict)
    feeds: Feeds | None = None
    provenance: Mapping[str, Provenance] = field(default_factory=dict)
    assumed: Mapping[str, int] | None = None
    others: Literal["refuse", "leave"] = "refuse"

    @property
    def given(self) -> bool:
        """Whether the user passed any input."""
        return bool(self.files or self.values)


def inputs_of(source: Inputs | Mapping[str, object] | Path | str | tuple[str, ...]) -> Inputs:
    """Return inputs from a mapping of names to values, a path, or several paths."""
    if isinstance(source, Inputs):
        return source
    if isinstance(source, Mapping):
        return Inputs(values=source)
    if isinstance(source, list | tuple):
        return Inputs(tuple(str(path) for path in source))
    return Inputs((str(source),))


@dataclass(frozen=True, slots=True)
class Binding:
    """The numbers of a model's dims, and the data of its inputs.

    Attributes:
        dims: symbol -> number.
        feeds: the inputs whose data or shape the user passed; others are drawn at random.
        assumed: symbols whose number is an assumption, so that a comparison may use others too.
        second_numbers: for symbols with bounds, another number within them, for such a comparison.
    """

    dims: Mapping[str, int] = field(default_factory=dict)
    feeds: Feeds = field(default_factory=dict)
    assumed: frozenset[str] = frozenset()
    second_numbers: Mapping[str, int] = field(default_factory=dict)

    def at(self, dims: Mapping[str, int]) -> Binding:
        """Return the binding with further or other numbers of dims, which count as not assumed."""
        return Binding({**self.dims, **dims}, self.feeds, self.assumed - dims.keys())
