"""Donation: outputs that may reuse the memory of the inputs that they replace.

A new parameter may be written where the old one is if nothing reads the old one
afterwards, or if the op that makes it writes in place on its last consumer. Of several orders
the one is taken in which most pairs are safe: consumers of an old value go before its new
value is made, wherever the edges of the graph allow it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from memplan_cli.analysis.precedence import nearest_order
from memplan_cli.analysis.repetition import repeatable
from memplan_cli.analysis.storage import live_peak
from memplan_cli.core.operators import operator
from memplan_cli.core.results.report import Donated, Refusal
from memplan_cli.core.symbolic.sizes import size_of
from memplan_cli.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from memplan_cli.core.program import Op, Program, VarId
    from memplan_cli.planning.candidate import Candidate, PlanningTask


@dataclass(frozen=True, slots=True)
class Donations:
    """What may share one buffer, in which order, and what may not, and why."""

    program: Program
    """The same ops, ordered so that the pairs are safe; the program given where it can be."""
    pairs: tuple[tuple[VarId, VarId], ...]
    """``(input, output)``."""
    refused: tuple[tuple[VarId, VarId, str], ...]
    """``(input, output, reason)``."""


def donated_outputs(program: Program, patterns: Mapping[str, str]) -> frozenset[VarId]:
    """Return the graph outputs that may be written over graph inputs in the best order."""
    pairs = donations(program, tuple(patterns.items())).pairs
    return frozenset(output for _, output in pairs)


def donate(candidate: Candidate, task: PlanningTask) -> Candidate:
    """Return a candidate in an order in which the donations of the settings are safe.

    This must be the last rewrite: a pair is safe in one order of the ops, and another order
    may undo it. If the order in which most pairs are safe needs more memory than they save,
    or breaks the budget, only the pairs that are safe in the present order are donated.
    """
    terms, program = task.terms, candidate.program
    patterns = tuple(task.settings.donate.items())
    result = donations(program, patterns)
    resident = replace(terms, sizes=candidate.sizes).resident
    peak_of = partial(
        live_peak,
        sizes=resident.sizes,
        pinned=resident.pinned,
        aliasing=resident.aliasing,
    )
    if result.program is not program:
        before, peak = peak_of(program), peak_of(result.program)
        budget = candidate.recompute.budget
        breaks_budget = candidate.recompute.met and budget is not None and peak > budget
        if breaks_budget or peak - before > _saved_bytes(program, result.pairs):
            result = donations_in_place(program, patterns)
        candidate = replace(candidate, program=result.program, measured=None)
    vars_ = program.vars
    facts = Donated(
        tuple((vars_[given].name, vars_[made].name) for given, made in result.pairs),
        tuple(
            Refusal(f"{vars_[given].name}={vars_[made].name}", reason)
            for given, made, reason in result.refused
        ),
    )
    return replace(candidate, donated=facts)


def _saved_bytes(program: Program, pairs: Iterable[tuple[VarId, VarId]]) -> int:
    """Return the bytes of the outputs of donated pairs; symbolic sizes count as 0."""
    outputs = (program.vars[output] for _, output in pairs)
    sizes = [size_of(var.shape, var.dtype) for var in outputs]
    return sum(size.coefficient for size in sizes if size is not None and size.unit == "1")


def donations(program: Program, patterns: Sequence[tuple[str, str]]) -> Donations:
    """Find the pairs of an input and an output that may share one buffer.

    Args:
        program: In the order in which it will run.
        patterns: Globs ``(input, output)`` with at most one ``*`` each, which stands for
            the same text in both: ``("in.*", "new.*")``.

    Raises:
        SettingsError: a pattern has more than one ``*``, or matches no pair.
    """
    return _settled(program, patterns, _Order.settle)


def donations_in_place(program: Program, patterns: Sequence[tuple[str, str]]) -> Donations:
    """Find the pairs that may share one buffer in the order that is there, as `donations`."""
    return _settled(program, patterns, _Order.settle_in_place)


def _settled(
    program: Program,
    patterns: Sequence[tuple[str, str]],
    settle: Callable[[_Order], None],
) -> Donations:
    asked = tuple(
        dict.fromkeys(p for pattern in patterns for p in _matched(program, *pattern))
    )
    refused: list[tuple[VarId, VarId, str]] = []
    chosen: list[tuple[VarId, VarId]] = []
    seen: set[VarId] = set()
    for given, made in asked:
        reason = _unfit(program, given, made)
        if not reason and not seen.isdisjoint((given, made)):
            reason = "it is in another pair"
        if reason:
            refused.append((given, made, reason))
        else:
            seen.update((given, made))
            chosen.append((given, made))
    order = _Order(program, chosen)
    settle(order)
    kept = tuple(pair for pair in chosen if pair not in order.impossible)
    refused += [(*pair, order.impossible[pair]) for pair in chosen if pair in order.impossible]
    return Donations(order.applied(program), kept, tuple(refused))


def _matched(program: Program, taken: str, given: str) -> Iterator[tuple[VarId, VarId]]:
    if max(taken.count("*"), given.count("*")) > 1 or taken.count("*") != given.count("*"):
        raise SettingsError(
            f"the donation {taken}={given} needs one * on both sides, or none",
            hint="for example 'in.*=new.*'",
        )
    results = {program.vars[var].name or str(var): var for var in program.body.outputs}
    head, _, tail = taken.partition("*")
    found = False
    for var in program.body.inputs:
        name = program.vars[var].name or str(var)
        if not fnmatchcase(name, taken):
            continue
        twin = given.replace("*", name[len(head) : len(name) - len(tail)])
        if twin in results:
            found = True
            yield var, results[twin]
    if not found:
        raise SettingsError(f"the donation {taken}={given} matches no input and output")


def _unfit(program: Program, given: VarId, made: VarId) -> str:
    """Return why a pair can share memory in no order; empty if it may."""
    one, other = program.vars[given], program.vars[made]
    if one.dtype != other.dtype:
        return f"the types differ: {one.dtype} and {other.dtype}"
    if one.shape is None or one.shape != other.shape:
        return "the shapes differ, or are not known"
    if made not in program.dataflow.producer:
        return "no op makes the output"
    if given in program.body.outputs:
        return "the input is an output too"
    if any(
        _shows(op, given) and op.outputs[0] in program.body.outputs for op in program.body.ops
    ):
        return "another output is a view of the input"
    return ""


def _shows(op: Op, var: VarId) -> bool:
    return operator(op).is_view and op.inputs[0] == var


class _Order:
    """Adds "consumer before writer" edges to the graph, and leaves out those that close a ring."""

    def __init__(self, program: Program, pairs: Sequence[tuple[VarId, VarId]]) -> None:
        self._flow = flow = program.dataflow
        self._pairs = pairs
        self._after: list[set[int]] = [set() for _ in flow.ops]
        for at, reads in enumerate(flow.reads):
            for var in reads:
                if var in flow.producer:
                    self._after[flow.producer[var]].add(at)
        # What may not run twice may not change places with its like either.
        fixed = [at for at, again in enumerate(repeatable(program)) if not again]
        for first, second in pairwise(fixed):
            self._after[first].add(second)
        self.impossible: dict[tuple[VarId, VarId], str] = {}
        self._moved = False

    def settle(self) -> None:
        """Add the edges of each pair, or say why they cannot be."""
        for pair in self._pairs:
            writer = self._flow.producer[pair[1]]
            consumers = self._consumers(pair[0])
            if writer in consumers and not self._may_overwrite(writer, pair):
                op = self._flow.ops[writer]
                self.impossible[pair] = (
                    f"{op.label} reads the input while it writes the output"
                )
                continue
            late = consumers & self._below(writer)
            if late:
                op = self._flow.ops[min(late)]
                self.impossible[pair] = f"{op.label} needs the output and reads the input"
                continue
            for consumer in consumers - {writer}:
                self._after[consumer].add(writer)
                self._moved |= consumer > writer

    def settle_in_place(self) -> None:
        """Say of each pair that needs another order why it cannot be; add no edges."""
        for pair in self._pairs:
            writer = self._flow.producer[pair[1]]
            late = {consumer for consumer in self._consumers(pair[0]) if consumer > writer}
            if late:
                op = self._flow.ops[min(late)]
                self.impossible[pair] = (
                    f"{op.label} reads the input later, and to run it before takes more memory"
                )
        self._pairs = [pair for pair in self._pairs if pair not in self.impossible]
        self.settle()

    def _consumers(self, given: VarId) -> set[int]:
        """Return the ops that read an input, or a view of it."""
        stack, found = [given], set[int]()
        while stack:
            for consumer in self._flow.consumers.get(stack.pop(), ()):
                found.add(consumer)
                op = self._flow.ops[consumer]
                if operator(op).is_view:
                    stack.append(op.outputs[0])
        return found

    def _may_overwrite(self, writer: int, pair: tuple[VarId, VarId]) -> bool:
        op = self._flow.ops[writer]
        places = [place for place, var in enumerate(op.inputs) if var == pair[0]]
        if op.outputs[0] != pair[1]:
            return False
        # A view of the input that the op reads too is read in another pattern.
        shown = {self._flow.producer.get(var) for var in op.inputs}
        if not shown.isdisjoint(self._consumers(pair[0])):
            return False
        return bool(places) and set(places) <= set(operator(op).in_place)

    def _below(self, writer: int) -> set[int]:
        stack, found = [writer], set[int]()
        while stack:
            for after in self._after[stack.pop()]:
                if after not in found:
                    found.add(after)
                    stack.append(after)
        return found

    def applied(self, program: Program) -> Program:
        """Return the program in the order nearest to its own that keeps all edges."""
        if not self._moved:
            return program
        ops = tuple(program.body.ops[at] for at in nearest_order(self._after))
        return program.with_ops(ops)
