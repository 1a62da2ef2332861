"""Forms that a rule does not know: each is refused, and the message names the operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from features.training.forms import form, half, single

if TYPE_CHECKING:
    from features.training.forms import Forms

_RECURRENT = {"x": (3, 2, 2), "w": (1, 12, 2), "r": (1, 12, 3), "b": (1, 24)}
_HEADS = "q_num_heads=2, kv_num_heads=2"
_QKV = dict.fromkeys("qkv", (1, 3, 4))

REFUSED: Forms = {
    "If": form(
        "y = If(c) <then_branch = t () => (double[3] p) { p = Mul(a, a) },"
        " else_branch = e () => (double[3] q) { q = Neg(a) }>",
        a=(3,),
        c=np.array([True]),
    ),
    "Clip-trained-bound": form("y = Clip(x, l)", x=(3, 4), l=np.array(-0.22)),
    "Pad-trained-value": form("y = Pad(x, n, v)", x=(2, 3), n=[1, 0, 1, 2], v=()),
    "Resize-cubic": form(
        'y = Resize<mode="cubic">(x, , n)', x=single(1, 1, 3, 4), n=[1.0, 1.0, 2.0, 2.0]
    ),
    "MaxPool-storage-order": form(
        "y, i = MaxPool<kernel_shape=[2, 2], storage_order=1>(x)", x=(1, 1, 3, 3)
    ),
    **{
        f"ScatterElements-{how}": form(
            f'y = ScatterElements<reduction="{how}">(x, i, u)',
            x=(3, 2),
            i=np.array([[2, 0]]),
            u=(1, 2),
        )
        for how in ("mul", "max", "min")
    },
    "ScatterND-mul": form(
        'y = ScatterND<reduction="mul">(x, i, u)', x=(3,), i=np.array([[2]]), u=(1,)
    ),
    **{
        f"Resize-{name}": form(
            f'y = Resize<mode="linear", {how}>(x, {rest})',
            x=single(1, 1, 4, 4),
            **given,
        )
        for name, how, rest, given in (
            ("antialiased", "antialias=1", ", n", {"n": [1.0, 1.0, 0.5, 0.5]}),
            (
                "keeping-its-aspect",
                'keep_aspect_ratio_policy="not_larger", axes=[2, 3]',
                ", , n",
                {"n": [6, 5]},
            ),
            (
                "cropping",
                'coordinate_transformation_mode="tf_crop_and_resize"',
                "r, , n",
                {"r": [0.0, 0.0, 0.2, 0.2, 1.0, 1.0, 0.7, 0.7], "n": [1, 1, 2, 2]},
            ),
            (
                "cropping-to-the-same-size",
                'coordinate_transformation_mode="tf_crop_and_resize"',
                "r, , n",
                {"r": [0.0, 0.0, 0.2, 0.2, 1.0, 1.0, 0.7, 0.7], "n": [1, 1, 4, 4]},
            ),
        )
    },
    "Einsum": form('y = Einsum<equation="ij,jk">(a, b)', a=(2, 3), b=(3, 2)),
    **{
        f"ConvTranspose-{name}": form(
            f"y = ConvTranspose<{how}>(x, w)", x=(1, 1, 3, 4), w=(1, 2, 3, 2)
        )
        for name, how in (
            ("same", 'auto_pad="SAME_LOWER", strides=[2, 2]'),
            ("shaped", "output_shape=[6, 7], strides=[2, 2]"),
            ("long-padding", "dilations=[3, 3], output_padding=[0, 1]"),
        )
    },
    "Conv-strided-of-unknown-size": form(
        "z = Reshape(x, n) y = Conv<strides=[2, 2]>(z, w)",
        x=(1, 1, 3, 4),
        n=np.array([1, 1, 3, 4]),
        w=(1, 1, 2, 2),
    ),
    "Pow-trained-exponent": form("y = Pow(x, p)", x=(2,), p=(2,)),
    "GatherND-batch": form(
        "y = GatherND<batch_dims=1>(x, i)", x=(2, 3, 2), i=np.array([[1], [-1]])
    ),
    "GroupNormalization-scaled-by-group": form(
        "y = GroupNormalization<num_groups=2>(x, s, b)", x=(2, 4, 3), s=(2,), b=(2,)
    ),
    "Attention-window": form(
        f"y = Attention<{_HEADS}, left_window_size=1>(q, k, v)", how={"opset": 25}, **_QKV
    ),
    "Attention-short-mask": form(
        f"y = Attention<{_HEADS}>(q, k, v, m)", m=(3, 2), how={"opset": 24}, **_QKV
    ),
    "Attention-mask-of-one": form(
        f"y = Attention<{_HEADS}>(q, k, v, m)", m=(3, 1), how={"opset": 24}, **_QKV
    ),
    "Attention-mask-of-another-type": form(
        f"y = Attention<{_HEADS}>(q, k, v, m)", m=single(3, 3), how={"opset": 23}, **_QKV
    ),
    "Attention-of-two-types": form(
        f"y = Attention<{_HEADS}>(q, k, v)",
        q=(1, 3, 4),
        k=(1, 3, 4),
        v=single(1, 3, 4),
        how={"opset": 23},
    ),
    **{
        f"LSTM-{name}": form(f"y = LSTM<hidden_size=3, {how}>(x, w, r, b{rest})", **given)
        for name, how, rest, given in (
            ("clipped", "clip=0.3", "", _RECURRENT),
            (
                "sloped",
                'activation_alpha=[0.3], activations=["HardSigmoid", "Tanh", "Tanh"]',
                "",
                _RECURRENT,
            ),
            (
                "shifted",
                'activation_beta=[0.3], activations=["HardSigmoid", "Tanh", "Tanh"]',
                "",
                _RECURRENT,
            ),
            (
                "thresholded",
                'activations=["Sigmoid", "ThresholdedRelu", "Tanh"]',
                "",
                _RECURRENT,
            ),
            ("affine", 'activations=["Affine", "Tanh", "Tanh"]', "", _RECURRENT),
            ("coupled", "input_forget=1", "", _RECURRENT),
            ("batch-first", "layout=1", "", _RECURRENT),
            ("peepholes", 'direction="forward"', ", , , , p", {**_RECURRENT, "p": (1, 9)}),
            (
                "of-lengths",
                'direction="forward"',
                ", n",
                {**_RECURRENT, "n": np.array([3, 2], np.int32)},
            ),
        )
    },
    "LayerNormalization-mean-used": form(
        "h, m = LayerNormalization(x, s) y = Add(h, m)", x=(2, 3), s=(3,)
    ),
    "BatchNormalization-running-used": form(
        "h, m, v = BatchNormalization<training_mode=1>(x, s, b, o, w) y = Add(h, m)",
        x=(2, 3),
        s=(3,),
        b=(3,),
        o=[0.1, 0.2, 0.3],
        w=[1.1, 1.2, 1.3],
    ),
    "BatchNormalization-of-two-types": form(
        "y = BatchNormalization(x, s, b, o, w)",
        x=half(2, 3),
        s=single(3),
        b=single(3),
        o=[0.1, 0.2, 0.3],
        w=[1.1, 1.2, 1.3],
    ),
    "NegativeLogLikelihoodLoss-trained-weights": form(
        "y = NegativeLogLikelihoodLoss(x, t, w)", x=(2, 3), t=np.array([1, 2]), w=(3,)
    ),
    "Dropout-trained-ratio": form(
        "y = Dropout(x, q, t)", x=(2, 3), q=np.array(0.3), t=np.ones((), bool)
    ),
    "Round-of-another-domain": form(
        "z = other.Round(x) c = Cast<to=11>(z) y = Reshape(c, n)", x=(2, 3), n=[6]
    ),
    "GridSample": form("y = GridSample(x, g)", x=(1, 1, 3, 3), g=(1, 2, 2, 2)),
    "LpPool": form("y = LpPool<kernel_shape=[2]>(x)", x=(1, 1, 3)),
}
