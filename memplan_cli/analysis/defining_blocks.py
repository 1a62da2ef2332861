"""The block that defines each var, and which vars are in exclusive branches of an If.

An If runs one of its subgraphs and returns the results of that subgraph. So the results of both
branches and the output of the If may be one buffer:

    then:  t  y1 --+
    else:  u  y2 --+--> z        y1, y2 and z may share bytes: y1 and y2 are never both computed
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memplan_cli.core.program import Block, Op, Program, VarId

BlockPath = tuple[tuple[int, int], ...]
"""Path from the main graph to a block: per level, (index of the op with subgraphs, subgraph).

Subgraphs of an op that runs exactly one are numbered 0, 1, ...; those of other ops -1, -2, ...
"""


class BranchOp(NamedTuple):
    """An op that runs exactly one of its subgraphs, and the paths of the subgraphs."""

    op: Op
    bodies: tuple[BlockPath, ...]


@dataclass(frozen=True, slots=True)
class DefiningBlocks:
    """The block in which each var of a program is defined.

    Attributes:
        path_of: the path of the block that defines a var, as op output or block input.
        branch_ops: the ops that run exactly one of their subgraphs, inner ones first.
    """

    path_of: Mapping[VarId, BlockPath]
    branch_ops: tuple[BranchOp, ...]

    def is_inside(self, var: VarId, path: BlockPath) -> bool:
        """Return whether a var is defined in a block or in a subgraph below it."""
        return self.path_of[var][: len(path)] == path

    def are_exclusive(self, first: VarId, second: VarId) -> bool:
        """Return whether two vars are defined in different branches of one branch op."""
        for (op1, body1), (op2, body2) in zip(
            self.path_of[first], self.path_of[second], strict=False
        ):
            if (op1, body1) != (op2, body2):
                return op1 == op2 and body1 >= 0 and body2 >= 0
        return False


def defining_blocks(program: Program, runs_one: Callable[[Op], bool]) -> DefiningBlocks:
    """Return the defining block of every var.

    ``runs_one`` returns whether an op runs exactly one of its subgraphs.
    """
    path_of: dict[VarId, BlockPath] = {}
    branch_ops: list[BranchOp] = []

    def collect(block: Block, path: BlockPath) -> None:
        """Add the vars and the branch ops of a block and of the subgraphs below it."""
        path_of.update(dict.fromkeys(block.inputs, path))
        for index, op in enumerate(block.ops):
            path_of.update(dict.fromkeys(op.outputs, path))
            if not op.bodies:
                continue
            is_branch_op = runs_one(op)
            # Only subgraphs of which one runs have numbers from 0 on: see `BlockPath`.
            numbers = (
                range(len(op.bodies)) if is_branch_op else range(-1, -1 - len(op.bodies), -1)
            )
            body_paths = tuple((*path, (index, number)) for number in numbers)
            for body, body_path in zip(op.bodies, body_paths, strict=True):
                collect(body, body_path)
            if is_branch_op:
                branch_ops.append(BranchOp(op, body_paths))

    collect(program.body, ())
    return DefiningBlocks(path_of, tuple(branch_ops))
