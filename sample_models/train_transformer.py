"""Train a small transformer to predict the next letter, a hundred steps in ONNX Runtime.

    python sample_models/train_transformer.py

As train_cnn.py: a forward model becomes a training step, which runs as it is and with
recompute; the losses are the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from train_cnn import (  # type: ignore[import-not-found]  # beside this script
    compare,
    with_weights,
)

from memplan_cli.features.training.optimizers import Optimizer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

BATCH, LENGTH, WIDTH, HEADS, LAYERS = 16, 32, 64, 4, 2

TEXT = (
    "a tensor is born when its producer starts and dies when its last consumer ends; "
    "what dies leaves room for what is born, and the most that lives at once is the peak. "
) * 4

LETTERS = sorted(set(TEXT))

LAYER = """
    {i}n = LayerNormalization({x}, {i}_norm1_scale, {i}_norm1_bias)
    {i}q0 = MatMul({i}n, {i}_query_weight)
    {i}k0 = MatMul({i}n, {i}_key_weight)
    {i}v0 = MatMul({i}n, {i}_value_weight)
    {i}q1 = Reshape({i}q0, heads)
    {i}k1 = Reshape({i}k0, heads)
    {i}v1 = Reshape({i}v0, heads)
    {i}q = Transpose<perm = [0, 2, 1, 3]>({i}q1)
    {i}k = Transpose<perm = [0, 2, 3, 1]>({i}k1)
    {i}v = Transpose<perm = [0, 2, 1, 3]>({i}v1)
    {i}s0 = MatMul({i}q, {i}k)
    {i}s1 = Mul({i}s0, scale)
    {i}s2 = Where(seen, {i}s1, far)
    {i}a = Softmax<axis = -1>({i}s2)
    {i}o0 = MatMul({i}a, {i}v)
    {i}o1 = Transpose<perm = [0, 2, 1, 3]>({i}o0)
    {i}o2 = Reshape({i}o1, rows)
    {i}o3 = MatMul({i}o2, {i}_out_weight)
    {i}r = Add({x}, {i}o3)
    {i}m = LayerNormalization({i}r, {i}_norm2_scale, {i}_norm2_bias)
    {i}h0 = MatMul({i}m, {i}_up_weight)
    {i}h1 = Add({i}h0, {i}_up_bias)
    {i}h2 = Gelu({i}h1)
    {i}h3 = MatMul({i}h2, {i}_down_weight)
    {i}h4 = Add({i}h3, {i}_down_bias)
    {i}y = Add({i}r, {i}h4)"""


def network() -> str:
    """Return the model as ONNX text."""
    layers = "".join(
        LAYER.format(i=f"l{index}", x="embedded" if index == 0 else f"l{index - 1}y")
        for index in range(LAYERS)
    )
    return f"""<ir_version: 10, opset_import: ["": 20]>
    transformer (int64[{BATCH}, {LENGTH}] ids) => (float[{BATCH}, {LENGTH}, {len(LETTERS)}] logits)
    <int64[4] heads = {{{BATCH}, {LENGTH}, {HEADS}, {WIDTH // HEADS}}},
     int64[3] rows = {{{BATCH}, {LENGTH}, {WIDTH}}},
     float scale = {{{(WIDTH / HEADS) ** -0.5}}}, float far = {{-1e9}}> {{
    letters = Gather(letter_weight, ids)
    embedded = Add(letters, position_weight)
    {layers}
    last = LayerNormalization(l{LAYERS - 1}y, norm_scale, norm_bias)
    logits = MatMul(last, head_weight)
}}"""


def shapes() -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight."""
    found: dict[str, tuple[int, ...]] = {
        "letter_weight": (len(LETTERS), WIDTH),
        "position_weight": (LENGTH, WIDTH),
        "norm_scale": (WIDTH,),
        "norm_bias": (WIDTH,),
        "head_weight": (WIDTH, len(LETTERS)),
    }
    for index in range(LAYERS):
        name = f"l{index}"
        for norm in ("norm1", "norm2"):
            found |= {f"{name}_{norm}_scale": (WIDTH,), f"{name}_{norm}_bias": (WIDTH,)}
        for part in ("query", "key", "value", "out"):
            found[f"{name}_{part}_weight"] = (WIDTH, WIDTH)
        found |= {f"{name}_up_weight": (WIDTH, 4 * WIDTH), f"{name}_up_bias": (4 * WIDTH,)}
        found |= {f"{name}_down_weight": (4 * WIDTH, WIDTH), f"{name}_down_bias": (WIDTH,)}
    return found


def pieces(number: int) -> dict[str, Array]:
    """Return a batch of pieces of the text and, for each letter, the next one."""
    codes = np.array([LETTERS.index(letter) for letter in TEXT])
    rng = np.random.default_rng(number)
    starts = rng.integers(0, len(codes) - LENGTH - 1, BATCH)
    at = starts[:, None] + np.arange(LENGTH)
    return {"ids": codes[at], "labels": codes[at + 1]}


def main() -> None:
    """Build, train, print."""
    import onnx

    model = with_weights(network(), shapes(), seed=2)
    seen = np.tril(np.ones((LENGTH, LENGTH), bool))
    model.graph.initializer.append(onnx.numpy_helper.from_array(seen, "seen"))
    compare(model, Optimizer("adam"), pieces, 3e-3)


if __name__ == "__main__":
    main()
