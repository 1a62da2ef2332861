"""Donation: graph outputs that are written over the graph inputs that they replace.

A new parameter may be written where the old one is if nothing reads the old one afterwards, or if
the op that computes the new one is the last reader and writes in place. The ops are ordered so
that most pairs are safe: readers of an old value go before the writer of its new value,
wherever the edges of the graph allow it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal, NamedTuple

from memplan_cli.analysis.precedence import nearest_order, predecessors, successors
from memplan_cli.core.operators import operator
from memplan_cli.core.results.report import DonationSummary, Refusal
from memplan_cli.core.symbolic.sizes import size_of
from memplan_cli.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from memplan_cli.core.program import Dataflow, Program, VarId
    from memplan_cli.planning.candidate import Candidate, PlanningTask


Moves = Literal["any", "none"]
"""Which ops may be moved so that pairs are safe."""


class Pair(NamedTuple):
    """A graph input, and the graph output that is written over it."""

    input: VarId
    output: VarId


class RefusedPair(NamedTuple):
    """A pair that may not share one buffer, and why."""

    input: VarId
    output: VarId
    reason: str


@dataclass(frozen=True, slots=True)
class Donations:
    """The pairs that may share one buffer.

    Attributes:
        program: the same ops, in an order in which all pairs are safe; the program given
            itself if its order is.
    """

    program: Program
    pairs: tuple[Pair, ...]
    refused: tuple[RefusedPair, ...]


def donated_outputs(program: Program, patterns: Mapping[str, str]) -> frozenset[VarId]:
    """Return the graph outputs that may be written over graph inputs in the order of `donations`."""
    pairs = donations(program, tuple(patterns.items())).pairs
    return frozenset(pair.output for pair in pairs)


def donate(candidate: Candidate, task: PlanningTask) -> Candidate:
    """Return a candidate in an order in which the donations of the settings are safe.

    This must be the last rewrite: a pair is safe in one order of the ops, and another order
    may undo it. If the order in which most pairs are safe needs more memory than they save,
    or breaks the budget, only the pairs that are safe in the present order are donated.
    """
    program = candidate.program
    patterns = tuple(task.settings.donate.items())
    result = donations(program, patterns)
    if result.program is not program:  # ops were moved
        if _is_too_costly(result, candidate, task):
            result = donations(program, patterns, moves="none")
        else:
            candidate = replace(candidate, program=result.program)

    def name(var: VarId) -> str:
        return program.vars[var].name

    facts = DonationSummary(
        tuple((name(pair.input), name(pair.output)) for pair in result.pairs),
        tuple(
            Refusal(f"{name(refused.input)}={name(refused.output)}", refused.reason)
            for refused in result.refused
        ),
    )
    return replace(candidate, donated=facts)


def _is_too_costly(result: Donations, candidate: Candidate, task: PlanningTask) -> bool:
    """Whether the order of ops that donations require costs more bytes than they save, or breaks the budget.

    A budget that the candidate exceeds already does not count.
    """
    planned_vars = replace(task.planned_vars, sizes=candidate.sizes)
    # A runtime allocates graph outputs, though a plan may leave them out: `resident` includes them.
    live_peak = planned_vars.resident.live_peak
    before = live_peak(candidate.program)
    after = live_peak(result.program)  # in the order that the donations require
    # The budget in bytes: `recompute.budget` if values are recomputed, else `settings.budget`, unless
    # that is a share of the peak.
    budget = candidate.recompute.budget or task.settings.budget
    if isinstance(budget, int) and before <= budget < after:
        return True
    return after - before > _saved_bytes(candidate.program, result.pairs)


def _saved_bytes(program: Program, pairs: Iterable[Pair]) -> int:
    """Return the bytes of the outputs of donated pairs; symbolic sizes count as 0."""
    outputs = (program.vars[pair.output] for pair in pairs)
    sizes = [size_of(var.shape, var.dtype) for var in outputs]
    return sum(size.coefficient for size in sizes if size is not None and not size.symbols)


def donations(
    program: Program, patterns: Sequence[tuple[str, str]], moves: Moves = "any"
) -> Donations:
    """Return the pairs of an input and an output that may share one buffer, and an order for them.

    In that order, no op reads the input of a pair after the op that writes its output.

    Args:
        program: in the order in which it will run.
        patterns: globs ``(input, output)`` with at most one ``*`` each, which stands for
            the same text in both: ``("in.*", "new.*")``.
        moves: which ops may be moved. If none, only pairs that are safe already are returned.

    Raises:
        SettingsError: a pattern has more than one ``*``, or matches no pair.
    """
    matches = [pair for pattern in patterns for pair in _matching_pairs(program, *pattern)]
    fit_pairs, refused = _fit_pairs(program, matches)
    order = _DonationOrder(program, moves)
    safe_pairs = []
    for pair in fit_pairs:
        reason = order.add_pair(pair)
        if reason:
            refused.append(RefusedPair(*pair, reason))
        else:
            safe_pairs.append(pair)
    return Donations(order.ordered(program), tuple(safe_pairs), tuple(refused))


def _fit_pairs(
    program: Program, matches: Iterable[Pair]
) -> tuple[list[Pair], list[RefusedPair]]:
    """Return the pairs that may share memory in some order, and the refused ones.

    Each var is in one pair: of several pairs with a var in common, the first is returned.
    """
    pairs: list[Pair] = []
    refused: list[RefusedPair] = []
    paired_vars: set[VarId] = set()
    for pair in dict.fromkeys(matches):
        reason = _why_unfit(program, pair)
        if not reason and not paired_vars.isdisjoint(pair):
            reason = "it is in another pair"
        if reason:
            refused.append(RefusedPair(*pair, reason))
        else:
            paired_vars.update(pair)
            pairs.append(pair)
    return pairs, refused


def _matching_pairs(
    program: Program, input_pattern: str, output_pattern: str
) -> Iterator[Pair]:
    """Yield the pairs of a graph input and a graph output whose names match two patterns.

    A ``*`` stands for the same text in both names, and other characters for themselves.

    Raises:
        SettingsError: the patterns have not the same number of ``*``, 0 or 1, or match no pair.
    """
    donation = f"the donation {input_pattern}={output_pattern}"
    stars = input_pattern.count("*"), output_pattern.count("*")
    if stars not in ((0, 0), (1, 1)):
        raise SettingsError(
            f"{donation} needs one * on both sides, or none", hint="for example 'in.*=new.*'"
        )
    outputs = {program.vars[var].name: var for var in program.body.outputs}
    head, _, tail = input_pattern.partition("*")
    glob = re.sub(r"[?[]", r"[\g<0>]", input_pattern)  # only the ``*`` is special
    has_match = False
    for var in program.body.inputs:
        name = program.vars[var].name
        if not fnmatchcase(name, glob):
            continue
        matched_text = name[len(head) : len(name) - len(tail)]  # by *; empty without one
        output_name = output_pattern.replace("*", matched_text)
        if output_name in outputs:
            has_match = True
            yield Pair(var, outputs[output_name])
    if not has_match:
        raise SettingsError(f"{donation} matches no input and output")


def _why_unfit(program: Program, pair: Pair) -> str:
    """Return why a graph output cannot be written over a graph input, however the ops are ordered; else empty."""
    source, target = program.vars[pair.input], program.vars[pair.output]
    if source.dtype != target.dtype:
        return f"the types differ: {source.dtype} and {target.dtype}"
    if source.shape is None or source.shape != target.shape:
        return "the shapes differ, or are not known"
    if pair.output not in program.dataflow.producer:
        return "no op makes the output"
    if pair.input in program.body.outputs:  # so its own value is returned
        return "the input is an output too"
    if not set(_views(program.dataflow, pair.input)).isdisjoint(program.body.outputs):
        return "an output is a view of the input"
    return ""


def _views(flow: Dataflow, graph_input: VarId) -> list[VarId]:
    """Return the views of a graph input, and views of these."""
    views: list[VarId] = []
    stack = [graph_input]
    while stack:
        var = stack.pop()
        readers = [flow.ops[reader] for reader in flow.consumers.get(var, ())]
        # A view op may read a var as its shape too: only its first input is viewed.
        new = [op.outputs[0] for op in readers if operator(op).is_view and op.inputs[0] == var]
        views += new
        stack += new
    return views


class _DonationOrder:
    """The precedence of ops, with an edge from each reader of an input to the pair's writer.

    A pair is a graph input and a graph output that are to share memory. Its writer is the op that computes
    the output. Ops are numbered by their place in the top block.

    Attributes:
        _flow: the producers and readers of vars.
        _successors: for each op, those that must run after it.
    """

    def __init__(self, program: Program, moves: Moves) -> None:
        """Begin with the edges that the graph requires, from each producer to its consumers.

        `add_pair` adds the edges by which a graph input and a graph output can share memory. ``moves`` tells
        which ops may run elsewhere for that.
        """
        self._moves = moves
        self._flow = program.dataflow
        self._successors = [set(after) for after in successors(predecessors(program.body))]

    def add_pair(self, pair: Pair) -> str:
        """Let an output take the memory of an input: other ops that read the input run before the output's writer.

        The writer itself may read the input if it may write the output over the input (`_may_overwrite`).

        Returns:
            Why that is impossible: then no edge is added. Empty if the pair is safe.
        """
        writer = self._flow.producer[pair.output]
        readers = self._readers(pair.input)
        late_readers = {reader for reader in readers if reader > writer}
        if late_readers and self._moves == "none":  # moves were found to take more memory
            op = self._flow.ops[min(late_readers)]
            return f"{op.label} reads the input later, and to run it before takes more memory"
        if writer in readers and not self._may_overwrite(writer, pair):
            op = self._flow.ops[writer]
            return f"{op.label} reads the input while it writes the output"
        readers_after_writer = readers & self._descendants(writer)
        if readers_after_writer:
            op = self._flow.ops[min(readers_after_writer)]
            return f"{op.label} needs the output and reads the input"
        for reader in readers - {writer}:
            self._successors[reader].add(writer)
        return ""

    def _readers(self, graph_input: VarId) -> set[int]:
        """Return the ops that read a graph input, or a view of it."""
        vars_ = (graph_input, *_views(self._flow, graph_input))
        return {reader for var in vars_ for reader in self._flow.consumers.get(var, ())}

    def _may_overwrite(self, writer: int, pair: Pair) -> bool:
        """Return whether an op that reads the pair's input may write the pair's output over it."""
        op = self._flow.ops[writer]
        if op.outputs[0] != pair.output:  # only a first output is written in place
            return False
        # A view has the same bytes, but the op may read its elements in another order.
        if not set(op.inputs).isdisjoint(_views(self._flow, pair.input)):
            return False
        positions = {index for index, var in enumerate(op.inputs) if var == pair.input}
        return bool(positions) and positions <= set(operator(op).in_place)

    def _descendants(self, op: int) -> set[int]:
        """Return the ops that must run after an op, without the op itself."""
        stack, descendants = [op], set[int]()
        while stack:
            for successor in self._successors[stack.pop()]:
                if successor not in descendants:
                    descendants.add(successor)
                    stack.append(successor)
        return descendants

    def ordered(self, program: Program) -> Program:
        """Return the program in the nearest order that reads each pair's input before it writes the output."""
        order = nearest_order(self._successors)
        if order == sorted(order):
            return program
        return program.with_ops(tuple(program.body.ops[index] for index in order))
