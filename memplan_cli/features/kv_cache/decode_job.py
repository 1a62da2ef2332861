"""Run a decode loop, prefill and steps, and keep or compare what each step gives.

The original feeds its growing outputs back; the written model has them in buffers.
"""

from __future__ import annotations

import dataclasses
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from memplan_cli.core.check import Tolerance
from memplan_cli.core.deserialization import from_json
from memplan_cli.core.results.rewrites import Caches, step_dims
from memplan_cli.core.serialization import to_json
from memplan_cli.errors import RuntimeUnavailableError
from memplan_cli.onnx_io.interface import (
    fed_inputs,
    free_dims,
    names_taken,
    tensor_dims,
)
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.runs.random_inputs import Feeder
from memplan_cli.onnx_io.types import tensor_type
from memplan_cli.runtime.decoding import Decoder
from memplan_cli.runtime.workers.inputs import draw_all
from memplan_cli.runtime.workers.outputs import against, save
from memplan_cli.runtime.workers.running import run as run_session
from memplan_cli.runtime.workers.session import run_options
from memplan_cli.runtime.workers.spec import InputSet, SessionSpec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from memplan_cli.core.bindings import FeedSpec
    from memplan_cli.core.results.observations import Difference
    from memplan_cli.runtime.workers.worker import Json

_MOST = 400
"""Ways to number dims that are tried."""

_LOOKS: tuple[tuple[int, int], ...] = ((3, 2), (3, 1), (2, 1))
"""Past and new entries with which a step is looked for."""

Rules = dict[str, str]
"""Of each dim, what its number is: a key of `STEP_NUMBERS`."""


def run(job: Json) -> Json:
    """Take steps with one model, and save or compare their outputs.

    ``way`` is ``original`` or ``written``; ``folder`` has what goes from one to the other.
    """
    spec = SessionSpec.of_job(job)
    loop = (_Original if job["way"] == "original" else _Written)(spec, job)
    folder = Path(str(job["folder"]))
    tolerance = Tolerance(*map(float, job["tolerance"]))  # type: ignore[call-overload]
    lengths = list(loop.plan())
    found: list[Difference] = []
    names: list[str] = []
    for number, new in enumerate(lengths):
        place = folder / f"{number}"
        feed = loop.feed(new, number)
        values = loop.step(feed)
        names = list(values)
        if job["way"] == "original":
            place.mkdir(exist_ok=True)
            save(place, names, names, list(values.values()))
        else:
            apart = against(place, names, names, list(values.values()), tolerance)
            found += [dataclasses.replace(d, output=f"{d.output}@{number + 1}") for d in apart]
    held = loop.held()
    place = folder / "caches"
    if job["way"] == "original":
        place.mkdir(exist_ok=True)
        save(place, list(held), list(held), list(held.values()))
    else:
        found += against(place, list(held), list(held), list(held.values()), tolerance)
    return {
        "differences": to_json(found),
        **loop.facts(),
    }


class _Original:
    """The model as it was, whose caches grow: their outputs are fed back."""

    def __init__(self, spec: SessionSpec, job: Json) -> None:
        self.spec = spec
        self.caches = from_json(Caches, job["caches"], "the job")
        self.wanted: list[int] = list(job["lengths"])  # type: ignore[call-overload]
        self.feeding = _Feeding(spec.model, self.caches, job)
        self.session = spec.create()
        self.names = [output.name for output in self.session.get_outputs()]
        self.state: dict[str, Any] = {}
        self.position = 0
        self.rules: Rules = {}
        self.growths: list[dict[str, list[int]]] = []
        self.done: list[int] = []
        self.planned: list[int] = []

    def plan(self) -> Iterator[int]:
        """Find out how a step is fed, and yield the new entries of each step."""
        self.rules, least = self._rules()
        one = least if least == 1 else 0
        self.position = 0 if self._runs(0, one or 2) else 1
        if self.position:
            drawn = self.feeding.draw(self.rules, 1, 1, seed=99)
            self.state = {b.input: drawn[b.input] for b in self.caches.growing}
        room = self.caches.capacity - self.position
        for length in [1] * len(self.wanted) if one else self.wanted:
            if length <= room:
                room -= length
                self.planned.append(length)
                yield length

    def _rules(self) -> tuple[Rules, int]:
        """Return what each dim's number is, and the new entries with which that was found.

        Raises:
            RuntimeUnavailableError: no step runs.
        """
        last = ""
        for past, new in _LOOKS:
            for rules in islice(self.feeding.candidates(), _MOST):
                values, why = self._tried(rules, past, new)
                if values is None:
                    last = last or why
                elif self._grown(values, past) and self._same_again(rules):
                    return rules, new
                else:
                    last = "its caches do not all grow by the same number of entries"
        raise RuntimeUnavailableError(f"no decoding step of the model runs: {last[:400]}")

    def _same_again(self, rules: Rules) -> bool:
        values, _ = self._tried(rules, 5, 1)
        return values is not None and self._grown(values, 5) > 0

    def _grown(self, values: Mapping[str, Any], past: int) -> int:
        """Return by how many entries all caches grew; 0 where they differ."""
        more = {np.shape(values[b.output])[b.axis] - past for b in self.caches.growing}
        return more.pop() if len(more) == 1 else 0

    def _runs(self, past: int, new: int) -> bool:
        return self._tried(self.rules, past, new)[0] is not None

    def _tried(self, rules: Rules, past: int, new: int) -> tuple[dict[str, Any] | None, str]:
        try:
            return self._run(self.feeding.draw(rules, past, new)), ""
        except Exception as error:  # noqa: BLE001 - whatever the runtime says, it does not run
            return None, " ".join(f"{error}".split())

    def _run(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        options = run_options(self.spec.settings)
        values = run_session(self.session, self.names, feed, options)
        return dict(zip(self.names, values, strict=True))

    def feed(self, new: int, number: int) -> dict[str, Any]:
        """Return the inputs of a step."""
        known = self.state.keys()
        drawn = self.feeding.draw(self.rules, self.position, new, seed=number, without=known)
        return {**drawn, **self.state}

    def step(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Run once; the caches are kept for the next step and not among what is returned."""
        values = self._run(feed)
        grown = self._grown(values, self.position)
        if not grown:
            raise RuntimeUnavailableError(
                "the model's caches do not all grow by the same number of entries"
            )
        self.done.append(grown)
        self.growths.append({name: list(np.shape(value)) for name, value in feed.items()})
        self.position += grown
        self.state = {b.input: values[b.output] for b in self.caches.buffers}
        caches = {b.output for b in self.caches.buffers}
        return {name: value for name, value in values.items() if name not in caches}

    def held(self) -> dict[str, Any]:
        """Return what the caches hold after the last step."""
        return {b.input: self.state[b.input] for b in self.caches.growing}

    def facts(self) -> Json:
        """Return how steps are fed, and how many entries each had."""
        tokens = self._tokens()
        return {
            "rules": self.rules,
            "start": self.position - sum(self.done),
            "steps": self.done,
            "lengths": self.planned,
            "tokens": [list(tokens)] if tokens else [],
        }

    def _tokens(self) -> tuple[str, int] | None:
        """Return an input and its axis that was as long as the new entries in every step."""
        caches = {b.input for b in self.caches.buffers}
        for name, shape in (self.growths[0] if self.growths else {}).items():
            for axis in range(len(shape) if name not in caches else 0):
                if [seen[name][axis] for seen in self.growths] == self.done and axis:
                    return name, axis
        return None


class _Written:
    """The written model: its caches stay in buffers, and everything else is fed as before."""

    def __init__(self, spec: SessionSpec, job: Json) -> None:
        self.caches = from_json(Caches, job["caches"], "the job")
        self.original = Path(str(job["original"]))
        self.feeding = _Feeding(self.original, self.caches, job)
        self.rules: Rules = dict(job["rules"])  # type: ignore[call-overload]
        self.wanted: list[int] = list(job["lengths"])  # type: ignore[call-overload]
        session = spec.create()
        dims = self.feeding.numbers(self.rules, 1, 1)
        self.decoder = Decoder(session, self.caches, dims, run_options(spec.settings))
        start = int(str(job["start"]))
        if start:
            drawn = self.feeding.draw(self.rules, start, 1, seed=99)
            self.decoder.load({b.input: drawn[b.input] for b in self.caches.growing})

    def plan(self) -> Iterator[int]:
        """Yield the new entries of each step."""
        yield from self.wanted

    def feed(self, new: int, number: int) -> dict[str, Any]:
        """Return the inputs of a step that are no caches."""
        caches = self.caches.buffers if number else self.caches.growing
        without = {*(each.input for each in caches), *self.feeding.choosing}
        return self.feeding.draw(
            self.rules, self.decoder.position, new, seed=number, without=without
        )

    def step(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Run once."""
        return self.decoder.step(feed)

    def held(self) -> dict[str, Any]:
        """Return what the caches hold after the last step."""
        return {b.input: self.decoder.valid(b.input) for b in self.caches.growing}

    def facts(self) -> Json:
        """Return nothing: the original said it all."""
        return {}


class _Feeding:
    """How the inputs of the original are drawn, step by step."""

    def __init__(self, model: Path, caches: Caches, job: Json) -> None:
        self.model, self.caches = load_model(model), caches
        self.fixed: dict[str, int] = dict(job["dims"])  # type: ignore[call-overload]
        self.choosing: dict[str, bool] = dict(job["choosing"])  # type: ignore[call-overload]
        self.given = {spec.name: spec for spec in InputSet.of_job(job).specs}
        self.feeder = Feeder(self.model)
        taken = names_taken(self.model)
        self.dims = {
            value.name: tensor_dims(value, tensor_type(value)[1], taken)
            for value in fed_inputs(self.model)
        }
        self.past = {str(self.dims[b.input][b.axis]) for b in caches.growing}
        self.inside = {str(d) for b in caches.growing for d in self.dims[b.input]} - self.past
        self.constant = {
            str(dim)
            for b in caches.buffers
            if b.form == "constant"
            for dim in self.dims[b.input]
        } - self.inside
        self.free = [
            n for n in free_dims(self.model) if n not in self.past | self.fixed.keys()
        ]
        self.ones = any(b.form == "shared" for b in caches.buffers)

    def candidates(self) -> Iterator[Rules]:
        """Yield what the numbers of dims may be, the likely first."""
        choices = [
            ("five", "one") if name in self.constant
            else ("one", "five") if name in self.inside
            else ("new", "total", "one", "past")
            for name in self.free
        ]  # fmt: skip
        for chosen in product(*choices):
            yield dict(zip(self.free, chosen, strict=True))

    def numbers(self, rules: Rules, past: int, new: int) -> dict[str, int]:
        """Return a number for each dim."""
        return {**step_dims(rules, past, new), **dict.fromkeys(self.past, past), **self.fixed}

    def draw(
        self,
        rules: Rules,
        past: int,
        new: int,
        seed: int = 0,
        without: Collection[str] = (),
    ) -> dict[str, Any]:
        """Draw the inputs of a step, but for those that are known."""
        specs = self.feeder.specs(self.numbers(rules, past, new))
        wanted = [self._spec(s, past) for s in specs if s.name not in without]
        return draw_all(wanted, seed=seed)

    def _spec(self, spec: FeedSpec, past: int) -> FeedSpec:
        if spec.name in self.choosing:
            chosen = self.choosing[spec.name] == (past > 0)
            return dataclasses.replace(spec, kind="values", values=(int(chosen),))
        given = self.given.get(spec.name)
        if given is not None and given.shape == spec.shape:
            return given
        if self.ones and spec.kind == "mask":
            # Fused attention reads a mask's sum as the number of entries.
            return dataclasses.replace(spec, kind="values", values=(1,))
        return spec
