"""Forms of operators that move, cut, pad, resize and index."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from features.training.forms import form, single
from features.training.gradient_checks import Case

if TYPE_CHECKING:
    from typing import Any

    from features.training.forms import Forms

_FAR = 2**62

_SLICES = {
    "defaults": ("a, b", [1], [3], None, None),
    "negative": ("a, b", [-2, -3], [-1, _FAR], None, None),
    "beyond": ("a, b", [-99, 1], [99, 99], None, None),
    "nothing": ("a, b, c", [3], [1], [0], None),
    "nothing-down": ("a, b, c, d", [1], [3], [0], [-2]),
    "nothing-strided": ("a, b, c, d", [3], [3], [1], [3]),
    "down": ("a, b, c, d", [-1], [-_FAR], [-1], [-1]),
    "down-strided": ("a, b, c, d", [99], [0], [1], [-2]),
    "down-from-before-first": ("a, b, c, d", [-9], [-_FAR], [0], [-1]),
    "down-to-first": ("a, b, c, d", [3], [-5], [0], [-3]),
    "axes-turned": ("a, b, c, d", [1, 0], [5, 3], [1, 0], [3, 2]),
    "steps-alone": ("a, b, , d", [0, 1], [4, 5], None, [3, 2]),
    "far-step": ("a, b, c, d", [1], [5], [1], [9]),
}

SLICES: Forms = {
    **{
        f"Slice-{name}": form(
            f"y = Slice(x, {read})",
            x=(4, 5),
            **{k: v for k, v in zip("abcd", bounds, strict=True) if v is not None},
        )
        for name, (read, *bounds) in _SLICES.items()
    },
    **{
        f"Slice-{name}-at-run-time": form(
            f"y = Slice(x, {read})",
            x=(4, 5),
            **{k: np.array(v) for k, v in zip("abcd", bounds, strict=True) if v is not None},
        )
        for name, (read, *bounds) in _SLICES.items()
    },
    "Slice-narrow-type": form(
        "p = Cast<to=6>(a) q = Cast<to=6>(b) y = Slice(x, p, q)", x=(4,), a=[-3], b=[9]
    ),
}

PADS: Forms = {
    **{
        f"Pad-{mode}-{name}": form(
            f'y = Pad<mode="{mode}">(x, n{rest})', x=(3, 4), n=pads, **given
        )
        for mode in ("constant", "reflect", "edge", "wrap")
        for name, pads, rest, given in (
            ("both", [1, 2, 2, 0], "", {}),
            ("cut", [-1, 1, 1, -2], "", {}),
            ("cut-only", [-1, 0, 0, -1], "", {}),
            ("nothing", [0, 0, 0, 0], "", {}),
            ("axes", [1, 2], ", , e", {"e": [-1]}),
            ("axes-turned", [2, 1, 0, -1], ", , e", {"e": [1, 0]}),
        )
    },
}

SHAPES: Forms = {
    "Reshape-zero": form("y = Reshape(x, n)", x=(2, 3, 2), n=[0, -1]),
    "Reshape-to-scalar": form("y = Reshape(x, n)", x=(1, 1), n=[]),
    "Reshape-of-scalar": form("y = Reshape(x, n)", x=(), n=[1, 1]),
    "Reshape-allowzero": form("y = Reshape<allowzero=1>(x, n)", x=(2, 3), n=[3, 2]),
    "Flatten-default": form("y = Flatten(x)", x=(2, 3, 2)),
    "Flatten-0": form("y = Flatten<axis=0>(x)", x=(2, 3, 2)),
    "Flatten-negative": form("y = Flatten<axis=-1>(x)", x=(2, 3, 2)),
    "Squeeze-all": form("y = Squeeze(x)", x=(1, 3, 1)),
    "Squeeze-negative": form("y = Squeeze(x, n)", x=(1, 3, 1), n=[-1]),
    "Unsqueeze-negative": form("y = Unsqueeze(x, n)", x=(2, 3), n=[-1, 0]),
    "Unsqueeze-scalar": form("y = Unsqueeze(x, n)", x=(), n=[0]),
    "Transpose-default": form("y = Transpose(x)", x=(2, 3, 4)),
    "Transpose-cycle": form("y = Transpose<perm=[2, 0, 1]>(x)", x=(2, 3, 4)),
    "Expand-smaller-target": form("y = Expand(x, n)", x=(3, 4), n=[1]),
    "Expand-both-ways": form("y = Expand(x, n)", x=(3, 1), n=[2, 1, 4]),
    "Expand-scalar": form("y = Expand(x, n)", x=(), n=[2, 3]),
    "Expand-at-run-time": form(
        "z = Expand(x, n) y = Reshape(z, o)", x=(3, 1), n=np.array([2, 1, 4]), o=[2, 3, 4]
    ),
    "Tile-none": form("y = Tile(x, n)", x=(2, 3), n=[1, 1]),
    "Tile-line": form("y = Tile(x, n)", x=(3,), n=[4]),
    "Concat-negative": form("y = Concat<axis=-2>(a, b)", a=(2, 3), b=(1, 3)),
    "Concat-one": form("y = Concat<axis=0>(a)", a=(2, 3)),
    "Concat-same": form("y = Concat<axis=1>(a, a, b)", a=(2, 3), b=(2, 1)),
    "Concat-empty-part": form("y = Concat<axis=0>(a, b)", a=(2, 3), b=np.zeros((0, 3))),
    "Split-default-axis": form("y, z = Split(x, n)", x=(3, 2), n=[1, 2]),
    "Split-uneven": form("y, z, w = Split<num_outputs=3>(x)", x=(5, 2)),
    "Split-last": form("y, z = Split<axis=-1, num_outputs=2>(x)", x=(2, 5)),
    "Split-both": form("y, z = Split(x, n)", x=(3, 2), n=[1, 2], how={"outputs": ("z", "y")}),
    "Split-zero-part": form("y, z = Split(x, n)", x=(3, 2), n=[3, 0]),
    "SpaceToDepth-3": form("y = SpaceToDepth<blocksize=3>(x)", x=(1, 2, 3, 6)),
    "DepthToSpace-default": form("y = DepthToSpace<blocksize=2>(x)", x=(2, 4, 1, 3)),
    "DepthToSpace-CRD": form('y = DepthToSpace<blocksize=2,mode="CRD">(x)', x=(2, 8, 1, 3)),
    "Trilu-lower": form("y = Trilu<upper=0>(x, k)", x=(3, 3), k=-1),
}

INDEXING: Forms = {
    "Gather-scalar": form("y = Gather(x, i)", x=(3, 2), i=np.array(-1)),
    "Gather-scalar-last": form("y = Gather<axis=-1>(x, i)", x=(3, 2, 2), i=np.array(1)),
    "Gather-table": form("y = Gather<axis=1>(x, i)", x=(2, 3), i=np.array([[0, -1], [2, 2]])),
    "Gather-narrow": form("y = Gather(x, i)", x=(3, 2), i=np.array([1, 1], np.int32)),
    "Gather-vector": form("y = Gather(x, i)", x=(4,), i=np.array([[3, 3, 0]])),
    "Gather-none": form("y = Gather(x, i)", x=(3, 2), i=np.zeros((0,), np.int64)),
    "GatherElements-negative": form(
        "y = GatherElements<axis=-1>(x, i)",
        x=(2, 3),
        i=np.array([[0, -1, 0, 1], [2, 2, -3, 0]]),
    ),
    "GatherElements-smaller": form(
        "y = GatherElements<axis=1>(x, i)", x=(3, 3), i=np.array([[0, 2], [1, 1]])
    ),
    "GatherND-scalar": form("y = GatherND(x, i)", x=(2, 3), i=np.array([1, -1])),
    "GatherND-rows": form("y = GatherND(x, i)", x=(2, 3), i=np.array([[1], [-1], [0]])),
    "GatherND-none": form("y = GatherND(x, i)", x=(3, 2), i=np.zeros((0, 1), np.int64)),
    "GatherND-empty-rows": form("y = GatherND(x, i)", x=(3, 0), i=np.array([[1]])),
    "ScatterElements-negative": form(
        "y = ScatterElements<axis=-1>(x, i, u)", x=(2, 3), i=np.array([[-1], [0]]), u=(2, 1)
    ),
    "ScatterElements-add-twice": form(
        'y = ScatterElements<reduction="add">(x, i, u)',
        x=(2, 3),
        i=np.array([[1, 1, -1], [1, 0, -1]]),
        u=(2, 3),
    ),
    "ScatterElements-smaller": form(
        "y = ScatterElements<axis=0>(x, i, u)", x=(3, 3), i=np.array([[2, 0]]), u=(1, 2)
    ),
    "ScatterElements-same": form(
        "y = ScatterElements<axis=1>(x, i, x)", x=(2, 2), i=np.array([[1, 0], [0, 1]])
    ),
    "ScatterND-element": form(
        "y = ScatterND(x, i, u)", x=(2, 3), i=np.array([[1, -1], [0, 0]]), u=(2,)
    ),
    "ScatterND-add-twice": form(
        'y = ScatterND<reduction="add">(x, i, u)', x=(3,), i=np.array([[1], [1]]), u=(2,)
    ),
    "TopK-smallest": form("y, i = TopK<axis=0, largest=0>(x, k)", x=(4, 2), k=[3]),
    "TopK-unsorted": form("y, i = TopK<sorted=0>(x, k)", x=(2, 4), k=[2]),
    "TopK-all": form("y, i = TopK<axis=-1>(x, k)", x=(2, 3), k=[3]),
}

_PLACES = ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")
_SIZES: dict[str, tuple[str, dict[str, Any]]] = {
    "up": (", , n", {"n": [1.0, 1.0, 2.0, 1.5]}),
    "down": (", , n", {"n": [1.0, 1.0, 0.6, 0.5]}),
    "to-one": (", , , n", {"n": [1, 2, 1, 3]}),
    "sizes": (", , , n", {"n": [1, 2, 7, 3]}),
    "nearly": (", , n", {"n": [1.0, 1.0, 1.1, 0.9]}),
}
_MODES = {
    "nearest": "",
    "nearest-floor": ', nearest_mode="floor"',
    "nearest-ceil": ', nearest_mode="ceil"',
    "nearest-up": ', nearest_mode="round_prefer_ceil"',
    "linear": "",
}

RESIZES: Forms = {
    **{
        f"Resize-{mode}-{places}-{name}": form(
            f'y = Resize<mode="{mode.split("-")[0]}",'
            f' coordinate_transformation_mode="{places}"{how}>(x, {read[2:]})',
            x=single(1, 2, 4, 4),
            **given,
        )
        for mode, how in _MODES.items()
        for places in _PLACES
        for name, (read, given) in _SIZES.items()
    },
    "Resize-axes": form(
        'y = Resize<mode="linear", axes=[3, 2]>(x, , n)', x=single(1, 2, 3, 4), n=[2.0, 1.5]
    ),
    "Resize-empty-batch": form(
        'y = Resize<mode="linear">(x, , n)', x=single(0, 2, 3, 4), n=[1.0, 1.0, 1.0, 1.5]
    ),
    "Resize-negative-axes": form(
        'y = Resize<mode="linear", axes=[-1, -2]>(x, , , n)', x=single(1, 2, 3, 4), n=[6, 5]
    ),
    "Resize-stretch": form(
        'y = Resize<mode="linear", keep_aspect_ratio_policy="stretch">(x, , , n)',
        x=single(1, 2, 3, 4),
        n=[1, 2, 6, 5],
    ),
    "Resize-scales-empty": Case(
        'y = Resize<mode="linear">(x, , s, n)',
        {"x": single(1, 1, 2, 2)},
        constants={"s": np.zeros(0, np.float32), "n": np.array([1, 1, 4, 4])},
    ),
    "Resize-roi-unused": form(
        'y = Resize<mode="linear">(x, r, n)',
        x=single(1, 1, 2, 3),
        r=single(8),
        n=[1.0, 1.0, 2.0, 2.0],
        how={"wanted": ("x",)},
    ),
    "Resize-line": form('y = Resize<mode="linear">(x, , n)', x=single(2, 3), n=[1.0, 2.0]),
}

EMPTY: Forms = {
    "Add-empty": form("y = Add(x, b)", x=(0, 3), b=(3,)),
    "Add-empty-of-one": form("y = Add(x, b)", x=(0, 3), b=(1, 1)),
    "Mul-empty-and-scalar": form("y = Mul(x, b)", x=(2, 0), b=()),
    "ReduceSum-empty": form("y = ReduceSum(x, n)", x=(0, 3), n=[0]),
    "ReduceSum-empty-kept": form("y = ReduceSum<keepdims=0>(x, n)", x=(0, 3), n=[1]),
    "MatMul-empty-rows": form("y = MatMul(x, w)", x=(0, 3), w=(3, 2)),
    "MatMul-empty-batch": form("y = MatMul(x, w)", x=(2, 0, 3), w=(3, 2)),
    "MatMul-empty-batches": form("y = MatMul(x, w)", x=(0, 2, 3), w=(1, 3, 2)),
    "Gemm-empty-rows": form("y = Gemm(x, w, b)", x=(0, 3), w=(3, 2), b=(2,)),
    "Reshape-empty": form("y = Reshape(x, n)", x=(2, 0, 3), n=[0, 0, 3]),
    "Reshape-empty-allowed": form("y = Reshape<allowzero=1>(x, n)", x=(2, 0, 3), n=[3, 0]),
    "Flatten-empty": form("y = Flatten(x)", x=(2, 0, 3)),
    "Squeeze-empty": form("y = Squeeze(x, n)", x=(0, 1, 3), n=[1]),
    "Transpose-empty": form("y = Transpose(x)", x=(2, 0, 3)),
    "Concat-empty": form("y = Concat<axis=0>(a, b)", a=(2, 3), b=(0, 3)),
    "Split-empty": form("y, z = Split(x, n)", x=(2, 3), n=[2, 0], how={"outputs": ("z", "y")}),
    "Expand-to-empty": form("y = Expand(x, n)", x=(1, 3), n=[0, 3]),
    "Tile-no-copies": form("y = Tile(x, n)", x=(2, 3), n=[0, 1]),
    "Gather-of-nothing": form("y = Gather(x, n)", x=(3, 2), n=[]),
    "Gather-empty-before": form("y = Gather<axis=1>(x, n)", x=(0, 3), n=[[0, 1], [2, 0]]),
    "Gather-empty-behind": form("y = Gather<axis=0>(x, n)", x=(3, 0), n=[[0, 1], [2, 0]]),
    "Slice-of-empty": form("y = Slice(x, a, b)", x=(0, 3), a=[0], b=[9]),
    "Pad-empty": form("y = Pad(x, n)", x=(0, 2), n=[1, 0, 0, 1]),
    "Relu-empty": form("y = Relu(x)", x=(0, 2)),
    "Softmax-empty": form("y = Softmax(x)", x=(0, 2)),
    "LayerNormalization-empty": form("y = LayerNormalization(x, s)", x=(0, 2), s=(2,)),
    "Conv-empty-batch": form("y = Conv(x, w)", x=(0, 2, 3, 3), w=(1, 2, 2, 2)),
    "Conv-point-empty-batch": form("y = Conv(x, w)", x=(0, 2, 3, 3), w=(1, 2, 1, 1)),
    "Conv-groups-empty-batch": form("y = Conv<group=2>(x, w)", x=(0, 4, 3, 3), w=(2, 2, 2, 2)),
    "ConvTranspose-empty-batch": form(
        "y = ConvTranspose(x, w)", x=(0, 2, 3, 3), w=(2, 1, 2, 2)
    ),
    "Gemm-empty-batch": form("y = Gemm(x, w, b)", x=(0, 3), w=(3, 2), b=(2,)),
}

MOVES: Forms = {**EMPTY, **SLICES, **PADS, **SHAPES, **INDEXING, **RESIZES}
