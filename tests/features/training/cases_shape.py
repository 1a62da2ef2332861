"""Cases of operators that move elements: reshaping, slicing, indexing, branches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from features.training.gradient_checks import Case
from features.training.gradient_values import indices, integer, ints, pick, shape, values

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from features.training.gradient_values import Draw

    Build = Callable[[Draw], Case]


def moved(body: str, dims: tuple[int, ...], **constants: tuple[int, ...]) -> Build:
    fixed = {name: ints(*numbers) for name, numbers in constants.items()}
    return lambda draw: Case(body, {"x": values(draw, *dims)}, constants=fixed)


def transpose(draw: Draw) -> Case:
    full = shape(draw, 1, 4)
    order = np.random.default_rng(integer(draw, 0, 99)).permutation(len(full)).tolist()
    body = pick(draw, f"y = Transpose<perm={order}>(x)", "y = Transpose(x)")
    return Case(body, {"x": values(draw, *full)})


def expand(draw: Draw) -> Case:
    full = shape(draw, 1, 3)
    small = tuple(n if integer(draw, 0, 1) else 1 for n in full)
    target = ints(*(2, *full) if integer(draw, 0, 1) else full)
    return Case("y = Expand(x, n)", {"x": values(draw, *small)}, constants={"n": target})


def concat(draw: Draw) -> Case:
    full = list(shape(draw, 1, 3))
    axis = integer(draw, 0, len(full) - 1)
    inputs = {}
    for name in "abc":
        dims = list(full)
        dims[axis] = integer(draw, 1, 3)
        inputs[name] = values(draw, *dims)
    wanted = pick(draw, ("a", "b", "c"), ("b",), ("a", "c"))
    return Case(f"y = Concat<axis={axis}>(a, b, c)", inputs, wanted=wanted)


def split(draw: Draw) -> Case:
    body, outputs = pick(
        draw,
        ("y, z = Split<axis=1>(x, n)", ("y", "z")),
        ("y, z = Split<axis=-1>(x, n)", ("z",)),
        ("y, z, w = Split<axis=1, num_outputs=3>(x)", ("y", "w")),
    )
    return Case(body, {"x": values(draw, 2, 5)}, outputs, constants={"n": ints(2, 3)})


def slice_(draw: Draw) -> Case:
    full = shape(draw, 1, 3)
    axes, starts, ends, steps = [], [], [], []
    for axis, size in enumerate(full):
        if not integer(draw, 0, 2):
            continue
        step = pick(draw, 1, 1, 2, 3, -1, -2)
        first, last = sorted((integer(draw, 0, size - 1), integer(draw, 0, size - 1)))
        axes.append(axis - len(full) * integer(draw, 0, 1))
        steps.append(step)
        starts.append(first if step > 0 else last)
        ends.append(last + 1 if step > 0 else first - 1 if first else -(10**9))
    if not axes:
        axes, starts, ends, steps = [0], [0], [10**9], [1]
    bounds = {"a": ints(*starts), "b": ints(*ends), "c": ints(*axes), "d": ints(*steps)}
    return Case("y = Slice(x, a, b, c, d)", {"x": values(draw, *full)}, constants=bounds)


def slice_at_run_time(draw: Draw) -> Case:
    inputs = {"x": values(draw, 4, 5), "a": ints(1), "b": ints(integer(draw, 2, 5))}
    constants = {"c": ints(1), "d": ints(2)}
    return Case("y = Slice(x, a, b, c, d)", inputs, constants=constants)


def pad(draw: Draw) -> Case:
    mode = pick(draw, "constant", "reflect", "edge", "wrap")
    pads = [integer(draw, 0, 1 if mode != "constant" else 2) for _ in range(4)]
    x = values(draw, integer(draw, 2, 3), 3)
    return Case(f'y = Pad<mode="{mode}">(x, n)', {"x": x}, constants={"n": ints(*pads)})


def pad_axes(draw: Draw) -> Case:
    constants = {"n": ints(1, 2), "axes": ints(pick(draw, 0, 1, -1))}
    return Case("y = Pad(x, n, , axes)", {"x": values(draw, 2, 3)}, constants=constants)


def depth_to_space(draw: Draw) -> Case:
    mode = pick(draw, "DCR", "CRD")
    x = values(draw, 2, 8, 2, 3)
    return Case(f'y = DepthToSpace<blocksize=2, mode="{mode}">(x)', {"x": x})


def trilu(draw: Draw) -> Case:
    body = f"y = Trilu<upper={integer(draw, 0, 1)}>(x, k)"
    constants = {"k": np.array(integer(draw, -1, 1))}
    return Case(body, {"x": values(draw, 2, 3, 4)}, constants=constants)


def gather(draw: Draw) -> Case:
    full = shape(draw, 1, 3)
    axis = integer(draw, 0, len(full) - 1)
    where = indices(draw, full[axis], *shape(draw, 0, 2))
    axis -= len(full) * integer(draw, 0, 1)
    inputs = {"x": values(draw, *full), "i": where}
    return Case(f"y = Gather<axis={axis}>(x, i)", inputs)


def gather_elements(draw: Draw) -> Case:
    full = shape(draw, 1, 3)
    axis = integer(draw, 0, len(full) - 1)
    dims = [n if a != axis else n + 1 for a, n in enumerate(full)]
    where = indices(draw, full[axis], *dims) % full[axis]
    inputs = {"x": values(draw, *full), "i": where}
    return Case(f"y = GatherElements<axis={axis}>(x, i)", inputs)


def gather_nd(draw: Draw) -> Case:
    x = values(draw, 2, 3, 2)
    depth = integer(draw, 1, 2)
    columns = [indices(draw, n, 4, 1) % n for n in x.shape[:depth]]
    inputs = {"x": x, "i": np.concatenate(columns, axis=-1)}
    return Case("y = GatherND(x, i)", inputs)


def scatter_elements(draw: Draw) -> Case:
    mode = pick(draw, "none", "add")
    where = np.array([[0, 1, 2], [2, 0, 1]]) if mode == "none" else indices(draw, 3, 2, 3) % 3
    inputs = {"x": values(draw, 3, 3), "i": where, "u": values(draw, 2, 3)}
    return Case(f'y = ScatterElements<axis=0, reduction="{mode}">(x, i, u)', inputs)


def scatter_nd(draw: Draw) -> Case:
    mode = pick(draw, "none", "add")
    inputs = {"x": values(draw, 4, 3), "i": np.array([[3], [1]]), "u": values(draw, 2, 3)}
    return Case(f'y = ScatterND<reduction="{mode}">(x, i, u)', inputs)


def top_k(draw: Draw) -> Case:
    how = f"axis={integer(draw, 0, 1)}, largest={integer(draw, 0, 1)}"
    return Case(
        f"y, i = TopK<{how}>(x, k)", {"x": values(draw, 3, 4)}, constants={"k": ints(2)}
    )


SHAPE: Mapping[str, Build] = {
    "Concat": concat,
    "DepthToSpace": depth_to_space,
    "Expand": expand,
    "Flatten": moved("y = Flatten<axis=2>(x)", (2, 3, 2)),
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "Pad": pad,
    "Pad-axes": pad_axes,
    "Reshape": moved("y = Reshape(x, n)", (2, 3, 2), n=(4, -1)),
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
    "Slice": slice_,
    "Slice-run-time": slice_at_run_time,
    "SpaceToDepth": moved("y = SpaceToDepth<blocksize=2>(x)", (1, 2, 4, 6)),
    "Split": split,
    "Squeeze": moved("y = Squeeze(x, n)", (2, 1, 3), n=(1,)),
    "Tile": moved("y = Tile(x, n)", (2, 3), n=(3, 2)),
    "TopK": top_k,
    "Transpose": transpose,
    "Trilu": trilu,
    "Unsqueeze": moved("y = Unsqueeze(x, n)", (2, 3), n=(0, 2)),
}
