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


class PathStep(NamedTuple):
    """A step from a block into a subgraph of one of its ops.

    Attributes:
        op: the index of the op in the block.
        body: the index of the subgraph in the op.
        is_branch: whether the op runs exactly one of its subgraphs.
    """

    op: int
    body: int
    is_branch: bool


BlockPath = tuple[PathStep, ...]
"""The steps from the main graph to a block; empty for the main graph."""


class BranchOp(NamedTuple):
    """An op that runs exactly one of its subgraphs, and the paths of the subgraphs."""

    op: Op
    body_paths: tuple[BlockPath, ...]


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
        for step1, step2 in zip(self.path_of[first], self.path_of[second], strict=False):
            if step1 != step2:  # where the two paths part
                return step1.op == step2.op and step1.is_branch
        return False


def defining_blocks(program: Program, runs_one_body: Callable[[Op], bool]) -> DefiningBlocks:
    """Return the defining block of every var, and the ops that run one of several subgraphs.

    ``runs_one_body`` returns whether an op runs exactly one of its subgraphs.
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
            is_branch_op = runs_one_body(op)
            body_paths = tuple(
                (*path, PathStep(index, body_index, is_branch_op))
                for body_index in range(len(op.bodies))
            )
            for body, body_path in zip(op.bodies, body_paths, strict=True):
                collect(body, body_path)
            if is_branch_op:
                branch_ops.append(BranchOp(op, body_paths))

    collect(program.body, ())
    return DefiningBlocks(path_of, tuple(branch_ops))
