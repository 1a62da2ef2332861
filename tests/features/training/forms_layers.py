"""Forms of products, convolutions, pools, normalizations and losses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from features.training.forms import above, fixed, form, single
from memplan_cli.features.training.train_step import Statistics

if TYPE_CHECKING:
    from features.training.forms import Forms

_RUNNING = {"statistics": Statistics.RUNNING}

PRODUCTS: Forms = {
    **{
        f"Gemm-{name}": form(f"y = Gemm<{how}>(a, b, c)", a=(3, 3), b=(3, 3), c=c)
        for name, how, c in (
            ("plain", "alpha=1.0", (3, 3)),
            ("scalar", "beta=0.3, transA=1", ()),
            ("one", "beta=0.3, transB=1", (1,)),
            ("row", "beta=0.0, alpha=0.2", (3,)),
            ("column", "alpha=-2.0, transA=1, transB=1", (3, 1)),
        )
    },
    "Gemm-two": form("y = Gemm<alpha=0.5, transB=1>(a, b)", a=(2, 3), b=(4, 3)),
    "Gemm-same": form("y = Gemm<transA=1>(a, a, a)", a=(3, 3)),
    "MatMul-same": form("y = MatMul(a, a)", a=(2, 3, 3)),
    **{
        f"MatMul-{len(a)}-{len(b)}-{sum(a)}": form("y = MatMul(a, b)", a=a, b=b)
        for a, b in (
            ((3,), (3,)),
            ((1,), (1, 2)),
            ((3,), (2, 3, 2)),
            ((2, 3), (3,)),
            ((2, 2, 3), (3,)),
            ((1, 2, 3), (4, 3, 1)),
            ((2, 3), (4, 3, 2)),
            ((4, 1, 2, 3), (2, 3, 2)),
            ((1, 1, 1), (1, 1)),
            ((2, 2, 3), (1, 3, 2)),
        )
    },
}

_CONVS = {
    "same-lower": ("auto_pad={q}SAME_LOWER{q}, strides=[2, 1]", (5, 6)),
    "same-upper": ("auto_pad={q}SAME_UPPER{q}, strides=[3, 2]", (5, 6)),
    "valid": ("auto_pad={q}VALID{q}, strides=[2, 2]", (5, 6)),
    "uneven": ("pads=[2, 0, 0, 1], strides=[3, 2]", (6, 5)),
    "wide-stride": ("strides=[4, 5]", (9, 9)),
    "kernel-given": ("kernel_shape=[3, 2]", (4, 4)),
    "dilated": ("dilations=[2, 3], strides=[2, 2], pads=[1, 2, 1, 2]", (7, 7)),
    "exact": ("", (3, 2)),
}

CONVOLUTIONS: Forms = {
    **{
        f"Conv-{name}-{group}": form(
            f"y = Conv<group={group}{(', ' if how else '')}{how.format(q=chr(34))}>(x, w, b)",
            x=(2, 2 * group, *size),
            w=(2 * group, 2, 3, 2),
            b=(2 * group,),
        )
        for name, (how, size) in _CONVS.items()
        for group in (1, 2)
    },
    "Conv-depthwise": form("y = Conv<group=3>(x, w)", x=(1, 3, 4, 4), w=(6, 1, 2, 2)),
    "Conv-same-twice": form("y = Conv(x, x)", x=(2, 2, 3, 3)),
    "Conv-one-place": form("y = Conv(x, w)", x=(1, 1, 1), w=(1, 1, 1)),
    "Conv-point-grouped": form("y = Conv<group=2>(x, w)", x=(2, 4, 3, 2), w=(6, 2, 1, 1)),
    "Conv-point-strided": form(
        "y = Conv<strides=[2, 2]>(x, w)", x=(1, 2, 4, 5), w=(3, 2, 1, 1)
    ),
    "Conv-point-padded": form(
        "y = Conv<pads=[1, 0, 1, 2]>(x, w)", x=(1, 2, 4, 5), w=(3, 2, 1, 1)
    ),
    **{
        f"ConvTranspose-{name}-{group}": form(
            f"y = ConvTranspose<group={group}, {how.format(q=chr(34))}>(x, w, b)",
            x=(2, 2 * group, 3, 4),
            w=(2 * group, 2, 3, 2),
            b=(2 * group,),
        )
        for name, how in (
            ("default", "dilations=[1, 1]"),
            ("strided", "strides=[2, 3]"),
            ("extra", "strides=[3, 3], output_padding=[2, 1], pads=[1, 0, 0, 1]"),
            ("dilated", "dilations=[2, 1], strides=[2, 1], pads=[2, 0, 1, 0]"),
            ("valid", "auto_pad={q}VALID{q}, strides=[2, 2]"),
        )
        for group in (1, 2)
    },
}

_POOLS = {
    "plain": "kernel_shape=[2, 3]",
    "same-upper": "kernel_shape=[2, 3], strides=[2, 2], auto_pad={q}SAME_UPPER{q}",
    "same-lower": "kernel_shape=[2, 3], strides=[2, 2], auto_pad={q}SAME_LOWER{q}",
    "valid": "kernel_shape=[2, 3], strides=[2, 2], auto_pad={q}VALID{q}",
    "uneven": "kernel_shape=[3, 3], strides=[2, 2], pads=[1, 0, 0, 1]",
    "ceil": "kernel_shape=[2, 3], strides=[2, 3], ceil_mode=1",
    "ceil-padded": "kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1",
    "dilated": "kernel_shape=[2, 2], dilations=[2, 3]",
    "dilated-padded": "kernel_shape=[2, 2], dilations=[2, 2], pads=[1, 1, 1, 1]",
    "dilated-ceil": "kernel_shape=[2, 2], dilations=[2, 2], strides=[2, 2], ceil_mode=1",
}

POOLS: Forms = {
    **{
        f"MaxPool-{name}": form(f"y = MaxPool<{how.format(q=chr(34))}>(x)", x=(2, 2, 5, 6))
        for name, how in _POOLS.items()
    },
    "MaxPool-indices-given": form("y, i = MaxPool<kernel_shape=[2]>(x)", x=(1, 2, 5)),
    **{
        f"AveragePool-{name}-{counted}-{opset}": form(
            f"y = AveragePool<count_include_pad={counted}, {how.format(q=chr(34))}>(x)",
            x=(2, 2, 5, 6),
            how={"opset": opset},
        )
        for name, how in _POOLS.items()
        for counted in (0, 1)
        for opset in (18, 22)
        if not ("dilated" in name and opset < 19)
    },
    "GlobalAveragePool-line": form("y = GlobalAveragePool(x)", x=(2, 2, 3)),
    "GlobalMaxPool-line": form("y = GlobalMaxPool(x)", x=(2, 2, 3)),
    "GlobalMaxPool-one": form("y = GlobalMaxPool(x)", x=(2, 2, 1, 1)),
}

NORMALIZATIONS: Forms = {
    **{
        f"GroupNormalization-{groups}-{len(size)}": form(
            f"y = GroupNormalization<num_groups={groups}, epsilon=0.01>(x, s, b)",
            x=single(2, 4, *size),
            s=single(4, seed=1),
            b=single(4, seed=2),
            how={"opset": 21},
        )
        for groups in (1, 2, 4)
        for size in ((3,), (2, 2))
    },
    **{
        f"LayerNormalization-{name}": form(
            f"y = LayerNormalization<{how}>(x, s{(', b' if b is not None else '')})",
            x=(2, 3, 4),
            s=s,
            **{} if b is None else {"b": b},
        )
        for name, how, s, b in (
            ("default", "epsilon=0.01", (4,), (4,)),
            ("no-bias", "axis=1", (3, 4), None),
            ("all", "axis=0", (2, 3, 4), (2, 3, 4)),
            ("negative", "axis=-2", (3, 4), (3, 4)),
            ("narrow", "axis=1", (4,), (1,)),
            ("scalar", "axis=2", (1,), (4,)),
        )
    },
    "LayerNormalization-single": form(
        "y = LayerNormalization<axis=1>(x, s, b)", x=single(2, 4), s=single(4), b=single(4)
    ),
    "RMSNormalization-all": form(
        "y = RMSNormalization<axis=0>(x, s)", x=(2, 3), s=(2, 3), how={"opset": 23}
    ),
    "RMSNormalization-narrow": form(
        "y = RMSNormalization<axis=-2>(x, s)", x=(2, 3), s=(3,), how={"opset": 23}
    ),
    **{
        f"BatchNormalization-{len(size)}-{training}": form(
            f"y{(', m1, v1' if training else '')} = BatchNormalization<training_mode={training}>(x,s,b,m,v)",
            x=fixed(*size),
            s=above(size[1]),
            b=(size[1],),
            m=[0.1] * size[1],
            v=[1.3] * size[1],
            how={"wanted": ("x", "s", "b"), **({} if training else _RUNNING)},
        )
        for size in ((4, 2), (3, 2, 2), (2, 2, 2, 2), (2, 1, 2, 1, 2))
        for training in (0, 1)
    },
    "InstanceNormalization-line": form(
        "y = InstanceNormalization(x, s, b)", x=(2, 3, 4), s=(3,), b=(3,)
    ),
    "MeanVarianceNormalization-axes": form(
        "y = MeanVarianceNormalization<axes=[-1, 0]>(x)", x=(2, 3, 4)
    ),
    "MeanVarianceNormalization-rows": form(
        "y = MeanVarianceNormalization<axes=[1, 2]>(x)", x=(2, 3, 4)
    ),
}

_LABELS = np.array([[1, 0], [2, 1]])

LOSSES: Forms = {
    f"{kind}-{reduction}-{weighted}-{ignored}-{rest}": form(
        f"""y = {kind}<reduction="{reduction}"{(f", ignore_index={ignored}" if ignored is not None else "")}>(x, t{(", w" if weighted else "")})""",
        x=(2, 3, 2) if rest else (2, 3),
        t=_LABELS if rest else _LABELS[:, 0],
        **{"w": [0.7, 1.2, 0.4]} if weighted else {},
    )
    for kind in ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
    for reduction in ("mean", "sum", "none")
    for weighted in (0, 1)
    for ignored in (None, 1, -1)
    for rest in (0, 1)
}

BOTH_RESULTS: Forms = {
    f"SoftmaxCrossEntropyLoss-{reduction}-{'-'.join(names)}": form(
        f'y, p = SoftmaxCrossEntropyLoss<reduction="{reduction}">(x, t)',
        x=(2, 3, 2),
        t=_LABELS,
        how={"outputs": names},
    )
    for reduction in ("mean", "none")
    for names in (("y", "p"), ("p",))
}

LAYERS: Forms = {
    **PRODUCTS,
    **CONVOLUTIONS,
    **POOLS,
    **NORMALIZATIONS,
    **LOSSES,
    **BOTH_RESULTS,
}
