"""Programs, models and plans written where a test wants them, in as few words as can be."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from memplan_cli.core.problem import Buffer, BufferId, LiveRange
from memplan_cli.core.program import Block, Op, Origin, Program, Var, VarId, blocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.symbolic.sizes import Size
    from memplan_cli.planning.allocation import Allocation, Needs
    from memplan_cli.planning.candidate import Runtime, Source
    from memplan_cli.planning.planner import PlannedProgram
    from memplan_cli.settings.settings import Settings

HEAD = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1, "local" : 1]>\n'


def ids(text: str) -> tuple[VarId, ...]:
    """Return the vars of a list of words; ``_`` stands for an omitted one."""
    return tuple(VarId("" if word == "_" else word) for word in text.split())


def op(text: str, *bodies: Block, kind: str = "Op", domain: str = "", name: str = "") -> Op:
    """Build an op from ``"out1 out2 <- in1 in2"``."""
    outputs, inputs = text.split("<-")
    return Op(name or outputs.strip(), kind, ids(inputs), ids(outputs), bodies, domain=domain)


def block(inputs: str, outputs: str, *ops: Op) -> Block:
    return Block(ids(inputs), ids(outputs), ops)


def program(
    top: Block, *, weights: str = "", sizes: Mapping[str, int] | None = None
) -> Program:
    """Build a program: each var is ``int8[n]``, n from ``sizes``, else 4 elements."""
    top = _placed(top, "")
    vars_: dict[VarId, Var] = {}

    def add(names: Iterable[VarId], origin: Origin) -> None:
        for name in names:
            if name:
                assert name not in vars_, f"{name} is made twice"
                shape = ((sizes or {}).get(name, 4),)
                vars_[name] = Var(name, "int8", shape, origin, name)

    add(ids(weights), Origin.WEIGHT)
    for inner in blocks(top):
        add(inner.inputs, Origin.BODY_INPUT if inner.path else Origin.INPUT)
        for each in inner.ops:
            add(each.outputs, Origin.OP)
    return Program("test", top, vars_)


def _placed(inner: Block, path: str) -> Block:
    """Give ops their index and bodies their paths, as the reader does."""
    ops = []
    for index, each in enumerate(inner.ops):
        numbered = each._replace(source=index)
        prefix = f"{path}/{numbered.label}" if path else numbered.label
        bodies = tuple(
            _placed(body, f"{prefix}.body{number}") for number, body in enumerate(each.bodies)
        )
        ops.append(numbered._replace(bodies=bodies))
    return replace(inner, ops=tuple(ops), path=path)


def var_sizes(made: Program, *without: str) -> dict[VarId, Size]:
    """Return the sizes of a program's intermediates, those in ``without`` left out."""
    from memplan_cli.core.program import intermediates
    from memplan_cli.core.symbolic.sizes import size_of

    found = {
        var: size_of(made.vars[var].shape, made.vars[var].dtype) for var in intermediates(made)
    }
    return {
        var: size for var, size in found.items() if size is not None and var not in without
    }


def allocated_at_each_level(needs: Needs) -> list[Allocation]:
    """Return the allocations of levels 0, 1 and 2."""
    from memplan_cli.planning.allocation import allocate

    return [allocate(needs, level) for level in range(3)]


def buffer(name: str, size: int, start: int, end: int, dtype: str = "int8") -> Buffer:
    return Buffer(BufferId(name), size, LiveRange(start, end), dtype, (size,))


def parse(text: str, head: str = HEAD) -> Any:  # noqa: ANN401 - onnx has no types
    """Return the model that ONNX text describes."""
    import onnx.parser

    return onnx.parser.parse_model(head + text)


def read(text: str, **bindings: Any) -> Program:  # noqa: ANN401 - as Bindings
    """Return the program of a model in ONNX text."""
    from memplan_cli.onnx_io.shapes.bindings import Bindings
    from memplan_cli.onnx_io.shapes.reading import read_program

    return read_program(parse(text), Bindings(**bindings)).program


def plan_of_text(text: str, settings: Settings | None = None) -> Plan:
    """Plan a model in ONNX text."""
    from memplan_cli.settings.settings import Settings

    return plan_program(read(text), settings or Settings())


def plan_program(made: Program, settings: Settings) -> Plan:
    return planned_program(made, settings).plan


def planned_program(
    made: Program,
    settings: Settings,
    source: Source | None = None,
    runtime: Runtime | None = None,
) -> PlannedProgram:
    """Plan a program with all rewrites of the package."""
    from memplan_cli.api.rewrites import REWRITES
    from memplan_cli.planning.candidate import Source
    from memplan_cli.planning.planner import make_plan

    source = source or Source("model.onnx", "0" * 64, "1" * 64)
    return make_plan(made, settings, source, REWRITES, runtime=runtime)
