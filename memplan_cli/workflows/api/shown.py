"""Results that a notebook can show: the frozen data of a workflow, and its document as HTML."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.reporting.document import Document
    from memplan_cli.reporting.findings.gate import Verdict
    from memplan_cli.reporting.findings.sweep_rows import Row

Found = TypeVar("Found")

_MOST_ROWS = 20
"""Rows of each table of a plan: a cell is a page at most."""

_DOCUMENTS: Mapping[str, tuple[str, str]] = {
    "Certified": ("commands.certificate:document", ""),
    "Changed": ("commands.diff:document", "difference"),
    "Diagnosis": ("commands.runtime:diagnosis", ""),
    "Fit": ("commands.fit:document", ""),
    "Optimized": ("plans.sections:plan_document", "plan"),
    "Packed": ("commands.pack:document", ""),
    "PeakStory": ("commands.why:peak", ""),
    "Plan": ("plans.sections:plan_document", ""),
    "ProcessStory": ("commands.why:process", ""),
    "Proof": ("commands.validate:document", ""),
    "Recommendation": ("commands.runtime:recommended", ""),
    "Simulated": ("commands.runtime:simulation", ""),
    "Soak": ("commands.serving:soaked", ""),
    "TensorStory": ("commands.why:tensor", ""),
    "WrittenStep": ("commands.train_step:document", ""),
}
"""Result -> what makes its document, in `reporting`, and of which attribute."""

_MORE: Mapping[str, tuple[object, ...]] = {
    "commands.runtime:recommended": ("model.onnx",),
    "plans.sections:plan_document": (_MOST_ROWS,),
}
"""What a document is made of besides the result."""


class Shown:
    """What has a picture in notebooks; mixed into the class of a result."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """Return the result as a part of a page."""
        kind = type(self).__mro__[2].__name__
        made_by, attribute = _DOCUMENTS[kind]
        found = attrgetter(attribute)(self) if attribute else self
        return _drawn(made_by, found)

    def __eq__(self, other: object) -> bool:
        """Whether the data is the same, shown or not."""
        kind = type(self).__mro__[2]
        if not isinstance(other, kind):
            return NotImplemented
        return bool(_copy(kind, self) == _copy(kind, other))

    def __hash__(self) -> int:
        return hash(_copy(type(self).__mro__[2], self))

    def __reduce__(self) -> tuple[Any, ...]:
        """Say how a copy is made: classes that are made when they are asked for have no name."""
        return shown, (_copy(type(self).__mro__[2], self),)


def _drawn(made_by: str, found: object) -> str:
    from memplan_cli.reporting.media.notebook import draw

    module, _, function = made_by.partition(":")
    document: Document = getattr(import_module(f"memplan_cli.reporting.{module}"), function)(
        found, *_MORE.get(made_by, ())
    )
    return draw(document)


def shown(found: Found) -> Found:
    """Return a result as one of its own class that a notebook can show."""
    return cast("Found", _copy(_class(cast("Any", type(found))), found))


@cache
def _class(kind: type[Any]) -> type[Any]:
    return kind if issubclass(kind, Shown) else type(kind.__name__, (Shown, kind), _body(kind))


def _body(kind: type) -> dict[str, object]:
    return {"__slots__": (), "__module__": kind.__module__, "__doc__": kind.__doc__}


def _copy(kind: type[Any], found: object) -> object:
    """Return frozen data as another class that has the same fields."""
    made: object = object.__new__(kind)
    for field in fields(found):  # type: ignore[arg-type] # a dataclass, as all results are
        object.__setattr__(made, field.name, getattr(found, field.name))
    return made


class Verdicts(tuple["Verdict", ...]):
    """The verdict of a gate on each model."""

    __slots__ = ()

    @property
    def passed(self) -> bool:
        """Whether no model fails."""
        return all(verdict.passed for verdict in self)

    def _repr_html_(self) -> str:
        """Return the verdicts as a part of a page."""
        return _drawn("commands.gate:document", self)


class Rows(tuple["Row", ...]):
    """The rows of a sweep."""

    __slots__ = ()

    @property
    def passed(self) -> bool:
        """Whether no row is of a failure."""
        return all(row.passed for row in self)

    def _repr_html_(self) -> str:
        """Return the rows as a part of a page."""
        return _drawn("commands.sweep:document", self)
