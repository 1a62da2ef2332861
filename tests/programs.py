"""Random programs: bodies in bodies, captures, views, in-place ops, unread outputs."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import strategies as st

from builders import program
from memplan_cli.core.operators import names_of
from memplan_cli.core.program import Block, Op, Program, VarId, blocks

ONE_INPUT = sorted(names_of(lambda each: each.in_place == (0,)))
TWO_INPUTS = sorted(names_of(lambda each: each.in_place == (0, 1)))
VIEWS = sorted(names_of(lambda each: each.is_view))


@dataclass
class Maker:
    """Draws a program; every choice comes from one seeded generator."""

    rng: random.Random
    room: int
    """Ops that may still be made."""
    sizes: dict[str, int] = field(default_factory=dict)

    def var(self, size: int | None = None) -> VarId:
        name = f"v{len(self.sizes)}"
        self.sizes[name] = size or self.rng.choice((1, 2, 2, 2, 3))
        return VarId(name)

    def block(self, inputs: tuple[VarId, ...], scope: list[VarId], depth: int) -> Block:
        """Make a block whose ops may read anything in scope."""
        seen, ops = [*scope, *inputs], []
        for _ in range(self.rng.randint(1, 6 if depth else 12)):
            if self.room <= 0:
                break
            self.room -= 1
            made = self.op(seen, depth)
            ops.append(made)
            seen.extend(var for var in made.outputs if var)
        return Block(inputs, self.outputs(ops, seen), tuple(ops))

    def outputs(self, ops: list[Op], seen: list[VarId]) -> tuple[VarId, ...]:
        """Choose what a block gives: mostly what its ops made."""
        own = [var for made in ops for var in made.outputs if var]
        count = self.rng.randint(1, 3)
        return tuple(dict.fromkeys(self.rng.choice(own or seen) for _ in range(count)))

    def op(self, seen: list[VarId], depth: int) -> Op:
        roll = self.rng.random()
        if depth < 3 and roll < 0.12:
            return self.branching(seen, depth)
        if depth < 3 and roll < 0.24:
            return self.repeating(seen, depth)
        if roll < 0.42:
            base = self.pick(seen)
            kind = self.rng.choice(VIEWS)
            return self.named(kind, (base,), (self.var(self.sizes[base]),))
        if roll < 0.62:
            base = self.pick(seen)
            others = tuple(self.pick(seen) for _ in range(self.rng.choice((0, 0, 1, 2))))
            kind = self.rng.choice(ONE_INPUT)
            return self.named(kind, (base, *others), (self.var(self.sizes[base]),))
        if roll < 0.78:
            inputs = tuple(self.pick(seen) for _ in range(self.rng.choice((2, 2, 3))))
            size = self.sizes[self.rng.choice(inputs)]
            return self.named(self.rng.choice(TWO_INPUTS), inputs, (self.var(size),))
        inputs = tuple(self.pick(seen) for _ in range(self.rng.randint(1, 3)))
        outputs = tuple(self.var() for _ in range(self.rng.choice((1, 1, 2))))
        return self.named("Opaque", inputs, outputs)

    def branching(self, seen: list[VarId], depth: int) -> Op:
        bodies = [self.block((), seen, depth + 1) for _ in range(2)]
        count = min(len(body.outputs) for body in bodies)
        cut = tuple(Block(b.inputs, b.outputs[:count], b.ops) for b in bodies)
        made = tuple(self.var() for _ in range(count))
        return self.named("If", (self.pick(seen),), made, cut)

    def repeating(self, seen: list[VarId], depth: int) -> Op:
        """Make a Loop whose body carries values from turn to turn.

        A body that hands out what it was given, as it is, needs a swap that no layout can
        give: the runtime moves such values. So a carried value is made by an op.
        """
        carried = tuple(self.var() for _ in range(self.rng.randint(1, 3)))
        body = self.block(carried, seen, depth + 1)
        ops = list(body.ops)
        own = [var for each in ops for var in each.outputs if var]
        self.rng.shuffle(own)
        while len(own) < len(carried) or self.rng.random() < 0.3:
            source = self.rng.choice((*carried, own[-1] if own else carried[0]))
            view = self.named("Identity", (source,), (self.var(self.sizes[source]),))
            ops.append(view)
            own.append(view.outputs[0])
        extra = self.rng.randint(0, 1)
        body = Block(carried, tuple(own[-len(carried) - extra :]), tuple(ops))
        inputs = tuple(self.pick(seen) for _ in carried)
        outputs = tuple(self.var() for _ in body.outputs)
        kind = self.rng.choice(("Loop", "Scan"))
        return self.named(kind, inputs, outputs, (body,))

    def pick(self, seen: list[VarId]) -> VarId:
        """Choose something to read, mostly something recent."""
        recent = seen[-4:] if self.rng.random() < 0.7 else seen
        return self.rng.choice(recent)

    def named(
        self,
        kind: str,
        inputs: tuple[VarId, ...],
        outputs: tuple[VarId, ...],
        bodies: tuple[Block, ...] = (),
    ) -> Op:
        return Op("+".join(outputs), kind, inputs, outputs, bodies)


def random_program(seed: int) -> Program:
    rng = random.Random(seed)
    maker = Maker(rng, room=rng.randint(1, 45))
    inputs = tuple(maker.var() for _ in range(rng.randint(1, 3)))
    top = maker.block(inputs, [], 0)
    return program(top, sizes=maker.sizes)


def as_read(made: Program) -> Program:
    """Return a program whose vars go by their block's path, as those of a file do."""
    ids = {
        var: VarId(f"{inner.path}/{var}" if inner.path else var)
        for inner in blocks(made.body)
        for var in (*inner.inputs, *(var for each in inner.ops for var in each.outputs))
    }

    def named(variables: tuple[VarId, ...]) -> tuple[VarId, ...]:
        return tuple(ids.get(var, var) for var in variables)

    def moved(inner: Block) -> Block:
        ops = tuple(
            each._replace(
                inputs=named(each.inputs),
                outputs=named(each.outputs),
                bodies=tuple(map(moved, each.bodies)),
            )
            for each in inner.ops
        )
        return Block(named(inner.inputs), named(inner.outputs), ops, inner.path)

    vars_ = {
        ids[var]: facts._replace(id=ids[var], name=var, block=ids[var].removesuffix(var)[:-1])
        for var, facts in made.vars.items()
    }
    return Program(made.name, moved(made.body), vars_)


def programs() -> st.SearchStrategy[Program]:
    """Programs from seeds: a failing one is told by its seed, and made again from it."""
    return st.integers(0, 2**32 - 1).map(random_program)
