"""Forms of recurrences, attention and bodies, and of what older files say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from features.training.forms import above, fixed, form, single
from memplan_cli.features.training.train_step import Statistics

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from features.training.forms import Forms
    from features.training.gradient_checks import Case

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def _recurrence(kind: str, how: str, given: str, ways: int = 1) -> Case:
    """Write a recurrence over 3 steps, 2 sequences, width 2 and 4 hidden; ``given`` names inputs."""
    gates = _GATES[kind]
    known = {
        "x": (3, 2, 2),
        "w": (ways, gates * 4, 2),
        "r": (ways, gates * 4, 4),
        "b": (ways, 2 * gates * 4),
        "h": (ways, 2, 4),
        "c": (ways, 2, 4),
    }
    read = [name.strip() for name in given.split(",")]
    outputs = ("y", "last", "cell") if kind == "LSTM" else ("y", "last")
    shapes: dict[str, Any] = {n: single(*known[n], seed=i) for i, n in enumerate(read) if n}
    return form(
        f"{', '.join(outputs)} = {kind}<{how}>({given})", how={"outputs": outputs}, **shapes
    )


_WIDTH = "hidden_size=4"
_TWO_WAYS = 'direction="bidirectional", activations=["Sigmoid", "Tanh", "Tanh", "Relu"]'

RECURRENCES: Forms = {
    **{
        f"{kind}-{name}": _recurrence(kind, f"{_WIDTH}{how}", given, ways)
        for kind in _GATES
        for name, how, given, ways in (
            ("bare", "", "x, w, r", 1),
            ("reverse", ', direction="reverse"', "x, w, r, b, , h", 1),
            ("both-ways", ', direction="bidirectional"', "x, w, r, b, , h", 2),
        )
    },
    "LSTM-all": _recurrence("LSTM", _WIDTH, "x, w, r, b, , h, c"),
    "LSTM-cell-alone": _recurrence("LSTM", _WIDTH, "x, w, r, , , , c"),
    "GRU-linear-first": _recurrence("GRU", f"{_WIDTH}, linear_before_reset=1", "x, w, r"),
    "GRU-linear-first-bias": _recurrence(
        "GRU", f"{_WIDTH}, linear_before_reset=1", "x, w, r, b"
    ),
    "RNN-relu": _recurrence("RNN", f'{_WIDTH}, activations=["Relu"]', "x, w, r, b"),
    "RNN-two": _recurrence(
        "RNN",
        f'{_WIDTH}, direction="bidirectional", activations=["Relu", "Sigmoid"]',
        "x, w, r, b",
        2,
    ),
    "GRU-two": _recurrence("GRU", f"{_WIDTH}, {_TWO_WAYS}", "x, w, r, b", 2),
    "LSTM-others": _recurrence(
        "LSTM", f'{_WIDTH}, activations=["HardSigmoid", "Softsign", "Relu"]', "x, w, r, b"
    ),
    **{
        f"GRU-{both}": _recurrence("GRU", f"{_WIDTH}, activations=[{both}]", "x, w, r")
        for both in (
            *(f'"Sigmoid", "{bend}"' for bend in ("LeakyRelu", "Softplus", "Elu")),
            '"sigmoid", "tanh"',
        )
    },
}

_Q3 = {"q": (2, 3, 4), "k": (2, 3, 4), "v": (2, 3, 6)}
_Q4 = {"q": (1, 2, 3, 4), "k": (1, 2, 5, 4), "v": (1, 2, 5, 3)}
_SEEN = np.array([[True, False, True], [True, True, True], [False, True, True]])
_BLIND = np.array([[False, True, True], [False, False, False], [False, True, True]])
"""The second query sees no key; the first none that a causal mask lets it see. Both give 0
in the runtime's own kernel, which is for float32; in float64 it runs an older definition."""

_INFINITE = np.where(_BLIND, 0.1, -np.inf).astype(np.float32)
_SINGLE = {name: single(2, 3, 4, seed=seed) for seed, name in enumerate("qkv")}

_HEADS = "q_num_heads=2, kv_num_heads=2"


def _varied(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the mask's name where it is varied: infinities have no neighbors."""
    return ("m",) if isinstance(given.get("m"), tuple) else ()


ATTENTION: Forms = {
    f"Attention-{name}-{opset}": form(
        f"y = Attention<{how}>(q, k, v{', m' if 'm' in given else ''})",
        how={"opset": opset, "wanted": ("q", "k", "v", *_varied(given))},
        **given,
    )
    for opset in (23, 24)
    for name, how, given in (
        ("plain", _HEADS, _Q3),
        ("causal", f"{_HEADS}, is_causal=1", _Q3),
        ("scaled", f"{_HEADS}, scale=0.3", _Q3),
        ("capped", f"{_HEADS}, softcap=0.4", _Q3),
        ("masked", _HEADS, {**_Q3, "m": (3, 3)}),
        ("masked-bool", _HEADS, {**_Q3, "m": _SEEN}),
        ("masked-heads", _HEADS, {**_Q3, "m": (2, 1, 3, 3)}),
        ("masked-capped", f"{_HEADS}, softcap=0.4", {**_Q3, "m": (3, 3)}),
        ("masked-causal", f"{_HEADS}, is_causal=1", {**_Q3, "m": (3, 3)}),
        ("blind", _HEADS, {**_SINGLE, "m": _BLIND}),
        ("blind-causal", f"{_HEADS}, is_causal=1", {**_SINGLE, "m": _BLIND}),
        ("blind-at-infinity", _HEADS, {**_SINGLE, "m": _INFINITE}),
        (
            "blind-at-infinity-causal",
            f"{_HEADS}, is_causal=1",
            {**_SINGLE, "m": _INFINITE},
        ),
        ("scaled-to-0", f"{_HEADS}, scale=0.0", _Q3),
        ("four", "scale=0.5", _Q4),
        ("four-causal", "is_causal=1", _Q4),
        ("shared", "scale=0.5", {"q": (1, 4, 2, 2), "k": (1, 2, 3, 2), "v": (1, 2, 3, 2)}),
        (
            "shared-3",
            "q_num_heads=4, kv_num_heads=2",
            {"q": (1, 2, 8), "k": (1, 3, 4), "v": (1, 3, 4)},
        ),
        ("same", _HEADS, {"q": (2, 3, 4), "k": (2, 3, 4), "v": (2, 3, 4)}),
    )
}


def _old(opset: int, body: str, **given: Any) -> Case:  # noqa: ANN401 - as for form
    return form(body, how={"opset": opset}, **given)


OLD: Forms = {
    "opset-11-BatchNormalization": form(
        "y = BatchNormalization(x, s, b, m, v)",
        x=single(2, 2, 2, 2),
        s=single(2),
        b=single(2),
        m=[0.1, 0.2],
        v=[0.8, 1.1],
        how={"opset": 11, "wanted": ("x", "s", "b"), "statistics": Statistics.RUNNING},
    ),
    "opset-11-Max": _old(
        11, "y = Max(a, b)", a=single(2, 3), b=single(3, seed=4) + np.float32(0.03)
    ),
    "opset-11-Resize": _old(
        11,
        'y = Resize<mode="linear">(x, r, n)',
        x=single(1, 1, 2, 3),
        r=[0.0],
        n=[1.0, 1.0, 2.0, 2.0],
    ),
    "opset-11-Softmax": _old(11, "y = Softmax(x)", x=(2, 3, 2)),
    "opset-11-Softmax-last": _old(11, "y = Softmax<axis=2>(x)", x=(2, 3, 2)),
    "opset-11-Softmax-negative": _old(11, "y = Softmax<axis=-2>(x)", x=(2, 3, 2)),
    "opset-11-Softmax-all": _old(11, "y = Softmax<axis=0>(x)", x=(2, 3, 2)),
    "opset-11-LogSoftmax": _old(11, "y = LogSoftmax(x)", x=(2, 3, 2)),
    "opset-11-ReduceMax": _old(11, "y = ReduceMax<axes=[-1], keepdims=0>(x)", x=(2, 3)),
    "opset-11-ReduceSum": _old(11, "y = ReduceSum<axes=[0, -1], keepdims=0>(x)", x=(2, 3, 2)),
    "opset-11-ReduceMean": _old(11, "y = ReduceMean<axes=[1]>(x)", x=(2, 3, 2)),
    "opset-13-ReduceMean": _old(13, "y = ReduceMean<keepdims=0>(x)", x=(2, 3, 2)),
    "opset-13-ReduceSum-noop": _old(13, "y = ReduceSum<noop_with_empty_axes=1>(x)", x=(2, 3)),
    "opset-11-Squeeze": _old(11, "y = Squeeze<axes=[1]>(x)", x=(2, 1, 3)),
    "opset-11-Unsqueeze": _old(11, "y = Unsqueeze<axes=[0, -1]>(x)", x=(2, 3)),
    "opset-11-Split": form(
        "y, z = Split<axis=1, split=[1, 2]>(x)",
        x=(2, 3),
        how={"opset": 11, "outputs": ("z", "y")},
    ),
    "opset-13-Split": form(
        "y, z = Split<axis=-1>(x)", x=(2, 4), how={"opset": 13, "outputs": ("z", "y")}
    ),
    "opset-11-Dropout": _old(11, "y = Dropout<ratio=0.3>(x)", x=(3, 4)),
    "opset-11-TopK": _old(11, "y, i = TopK<axis=0>(x, k)", x=(4, 2), k=[2]),
    "opset-11-DepthToSpace": _old(
        11, 'y = DepthToSpace<blocksize=2, mode="CRD">(x)', x=(1, 8, 1, 2)
    ),
    "opset-11-PRelu": _old(11, "y = PRelu(x, s)", x=(2, 3, 2), s=(3, 1)),
    "opset-11-Gemm": _old(
        11, "y = Gemm<beta=0.3, transB=1>(a, b, c)", a=(2, 3), b=(4, 3), c=(4,)
    ),
    "opset-11-Pow": _old(11, "y = Pow(x, p)", x=above(3, 4), p=2.0),
    "opset-11-AveragePool": _old(
        11, "y = AveragePool<kernel_shape=[2], ceil_mode=1, strides=[2]>(x)", x=(1, 2, 5)
    ),
    "opset-11-GatherND": _old(11, "y = GatherND(x, i)", x=(2, 3), i=np.array([[1, -1]])),
    "opset-11-LSTM": form(
        "y, h, c = LSTM<hidden_size=3>(x, w, r, b)",
        x=single(3, 2, 2),
        w=single(1, 12, 2, seed=1),
        r=single(1, 12, 3, seed=2),
        b=single(1, 24, seed=3),
        how={"opset": 11, "outputs": ("y", "h", "c")},
    ),
    "opset-12-SoftmaxCrossEntropyLoss": _old(
        12, "y = SoftmaxCrossEntropyLoss(x, t)", x=fixed(2, 3), t=np.array([1, 2])
    ),
    "opset-11-Where": _old(11, "y = Where(c, a, b)", a=(2, 3), b=(3,), c=np.eye(2, 3) > 0),
    "opset-11-Expand": _old(11, "y = Expand(x, n)", x=(3, 1), n=[2, 1, 4]),
    "opset-11-Flatten": _old(11, "y = Flatten<axis=2>(x)", x=(2, 3, 2)),
}

EXPANDED: Forms = {**RECURRENCES, **ATTENTION, **OLD}
