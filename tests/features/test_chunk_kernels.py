"""ONNX Runtime's kernels give the same bits in the pieces that the table of kernels allows."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime
import pytest

from features.chunk_cases import Case, differences, reads_everywhere
from features.chunk_draws import CASES, Draw
from memplan_cli.core.operators import NCHWC
from memplan_cli.features.chunking.axes.split import Role
from memplan_cli.features.chunking.axes.table import RULES, splits_of
from memplan_cli.features.chunking.kernels import keeps_bits, min_chunk_length

if TYPE_CHECKING:
    from collections.abc import Iterator

    from features.chunk_cases import Array
    from memplan_cli.features.chunking.axes.split import Node, Split


class Wide(Draw):
    """Lengths of a few registers, and floats whose sums round."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._dims = list(self.rng.choice(np.arange(12, 48), 10, replace=False))

    def whole(self, *shape: int) -> Array:
        return self.rng.standard_normal(shape).astype(np.float32)

    def doubles(self, *shape: int) -> Array:
        return self.floats(*shape)


def drawn(kind: str, seed: int) -> tuple[Case, Node] | None:
    """Return a case that the runtime can run; not every one of the reference's is."""
    onnxruntime.set_default_logger_severity(4)
    case = CASES[kind](Wide(seed))
    try:
        return case, case.node(case.run_in_runtime())
    except Exception:  # noqa: BLE001 - the runtime raises what it likes
        return None


def cuts_of(node: Node, split: Split, seed: int) -> list[int]:
    """Return cuts into pieces as narrow as can be, and some wider."""
    rng = np.random.default_rng(seed)
    narrow, at = min_chunk_length(node, split) + int(rng.integers(0, split.extent // 2 + 1)), 0
    narrow = min_chunk_length(node, split) if rng.integers(2) else narrow
    cuts: list[int] = []
    while len(cuts) < 4:
        at += narrow + int(rng.integers(0, 2) * rng.integers(0, 5))
        if at > split.extent - narrow:
            break
        cuts.append(at)
    return cuts


def allowed(case: Case, node: Node, seed: int) -> Iterator[tuple[Split, list[int]]]:
    for split in filter(case.allows, splits_of(node)):
        cuts = cuts_of(node, split, seed)
        if not cuts or not reads_everywhere(case, split, cuts):
            continue
        if keeps_bits(node, split, pairwise([0, *cuts, split.extent])):
            yield split, cuts


def changed(kind: str, seeds: range) -> list[str]:
    return [
        f"seed {seed}: {split}: {found}"
        for seed in seeds
        if (made := drawn(kind, seed)) is not None
        for split, cuts in allowed(*made, seed)
        if (found := differences(made[0], made[1], split, cuts, Case.run_in_runtime))
    ]


@pytest.mark.parametrize("kind", sorted(RULES))
def test_the_runtime_gives_the_same_bits_in_allowed_pieces(kind: str) -> None:
    assert not changed(kind, range(2))


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(RULES))
def test_the_runtime_gives_the_same_bits_in_many_allowed_pieces(kind: str) -> None:
    assert not changed(kind, range(2, 40))


def test_rows_that_fill_registers_are_summed_alike_in_pieces() -> None:
    for kind, width in (("ReduceSum", 64), ("ReduceMean", 192), ("ReduceL2", 128)):
        case = Case(
            kind, (Wide(7).whole(5, 37, width), np.array([-1], np.int64)), constants=(1,)
        )
        node = case.node(case.run_in_runtime())
        for split, cuts in allowed(case, node, 0):
            assert not differences(case, node, split, cuts, Case.run_in_runtime), kind


@pytest.mark.parametrize("kind", ["ReduceSum", "ReduceMean", "ReduceL2"])
@pytest.mark.parametrize("dims", [(256, 77), (512, 3), (5, 64, 77), (3, 8, 8, 129)])
def test_rows_of_any_width_are_summed_alike_where_pieces_begin_as_registers_do(
    kind: str, dims: tuple[int, ...]
) -> None:
    x, last = Wide(3).whole(*dims), np.array([-1], np.int64)
    case = Case(kind, (x, last), constants=(1,))
    node = case.node(case.run_in_runtime())
    split = splits_of(node)[0]
    cuts = [1, 3] if len(dims) > 2 else [64, 192]
    cuts = [at for at in cuts if at < dims[0]]
    assert keeps_bits(node, split, pairwise([0, *cuts, split.extent]))
    assert not differences(case, node, split, cuts, Case.run_in_runtime)


@pytest.mark.parametrize(("samples", "height"), [(1, 16), (3, 32)])
def test_group_normalization_keeps_the_bits_where_groups_fill_registers(
    samples: int, height: int
) -> None:
    x = Wide(3).whole(samples, 12, height, 4)
    case = Case("GroupNormalization", (x, *(Wide(4).whole(2, 12))), {"num_groups": 6})
    node = case.node(case.run_in_runtime())
    for split in splits_of(node):
        if split.extent > 1:
            assert keeps_bits(node, split, [(0, 1), (1, split.extent)])
            assert not differences(case, node, split, [1], Case.run_in_runtime)


def test_rows_that_begin_elsewhere_are_not_summed_in_pieces() -> None:
    case = Case(
        "ReduceSum", (Wide(3).whole(256, 77), np.array([-1], np.int64)), constants=(1,)
    )
    node = case.node(case.run_in_runtime())
    (split,) = splits_of(node)
    assert not keeps_bits(node, split, [(0, 65), (65, 256)])
    assert differences(case, node, split, [65, 130, 195], Case.run_in_runtime)


@pytest.mark.parametrize(
    ("kind", "cuts"),
    [
        ("MatMul", [1]),
        ("Gemm", [1]),
        ("Attention", [1]),
        ("ReduceSum", [4]),
        ("GroupNormalization", [1]),
        ("InstanceNormalization", [1]),
        ("Log", [3]),
    ],
)
def test_pieces_that_the_table_forbids_may_change_bits(kind: str, cuts: list[int]) -> None:
    assert any(
        [*differences(case, node, split, cuts, Case.run_in_runtime)]
        for made in (drawn(kind, seed) for seed in range(24))
        if made is not None
        for case, node in (made,)
        for split in splits_of(node)
        if not keeps_bits(node, split, pairwise([0, *cuts, split.extent]))
    )


def convolution(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    channels, kernel = int(rng.choice((3, 8, 16, 32))), int(rng.choice((1, 3, 5)))
    height, width = int(rng.integers(8, 40)), int(rng.integers(8, 72))
    group = int(rng.choice((1, 1, channels)))
    made = group * int(rng.choice((1, 3)))
    x = rng.standard_normal((1, channels, height, width)).astype(np.float32)
    weight = rng.standard_normal((made, channels // group, kernel, kernel)).astype(np.float32)
    attributes = {
        "pads": (kernel // 2,) * 4,
        "strides": (int(rng.integers(1, 3)),) * 2,
        "group": group,
    }
    return Case("Conv", (x, weight), attributes, constants=(1,))


@pytest.mark.parametrize("seed", range(15))
def test_tiles_of_any_convolution_keep_the_bits_where_blocks_stay(seed: int) -> None:
    case = convolution(seed)
    node = case.node(case.run_in_runtime())
    for split, cuts in allowed(case, node, seed):
        assert not differences(case, node, split, cuts, Case.run_in_runtime)


@pytest.mark.parametrize("channels", [16, 144, 320])
@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize("form", ["dense", "depthwise"])
def test_single_rows_and_columns_of_blocked_channels_keep_the_bits(
    channels: int, kernel: int, form: str
) -> None:
    rng = np.random.default_rng(channels + kernel)
    group = channels if form == "depthwise" else 1
    x, added = rng.standard_normal((2, 1, channels, 9, 13)).astype(np.float32)
    weight = rng.standard_normal((channels, channels // group, kernel, kernel))
    weights = weight.astype(np.float32), rng.standard_normal(channels).astype(np.float32)
    attributes = {"pads": (kernel // 2,) * 4, "kernel_shape": (kernel,) * 2, "group": group}
    case = Case("Conv", (x, *weights, added), attributes, domain=NCHWC)
    node = case.node(case.run_in_runtime())
    for split in splits_of(node):
        if split.role is Role.TILES:
            cuts = list(range(1, split.extent))
            assert keeps_bits(node, split, pairwise([0, *cuts, split.extent]))
            assert not differences(case, node, split, cuts, Case.run_in_runtime)


@pytest.mark.parametrize("seed", range(15))
def test_tiles_of_a_transposed_convolution_keep_the_bits_where_blocks_stay(seed: int) -> None:
    rng = np.random.default_rng(seed)
    read, made, stride = (
        int(rng.choice(each)) for each in ((16, 200, 512), (1, 32), (1, 2, 4))
    )
    kernel = stride * int(rng.integers(1, 4))
    dims = (int(rng.integers(20, 200)),) if rng.integers(2) else (24, 20)
    x = rng.standard_normal((1, read, *dims)).astype(np.float32)
    weight = rng.standard_normal((read, made, *(kernel for _ in dims))).astype(np.float32)
    attributes = {
        "strides": (stride,) * len(dims),
        "pads": ((kernel - stride) // 2,) * 2 * len(dims),
    }
    case = Case("ConvTranspose", (x, weight), attributes, constants=(1,))
    node = case.node(case.run_in_runtime())
    for split, cuts in allowed(case, node, seed):
        assert not differences(case, node, split, cuts, Case.run_in_runtime)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_samples_of_a_transposed_convolution_keep_the_padding_that_follows_from_sizes(
    auto_pad: str,
) -> None:
    inputs = Wide(3).whole(4, 3, 5, 5), Wide(4).whole(3, 2, 4, 4)
    case = Case("ConvTranspose", inputs, {"auto_pad": auto_pad, "strides": (2, 2)})
    node = case.node(case.run_in_runtime())
    (samples,) = splits_of(node)
    assert not differences(case, node, samples, [2], Case.run_in_runtime)


@pytest.mark.parametrize("seed", range(15))
def test_columns_of_a_product_keep_the_bits_where_blocks_stay(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, summed, columns = (int(rng.integers(4, most)) for most in (40, 600, 200))
    left = rng.standard_normal((rows, summed)).astype(np.float32)
    right = rng.standard_normal((summed, columns)).astype(np.float32)
    for constants in ((), (1,)):
        case = Case("MatMul", (left, right), constants=constants)
        node = case.node(case.run_in_runtime())
        for split, cuts in allowed(case, node, seed):
            assert not differences(case, node, split, cuts, Case.run_in_runtime), split


def test_few_columns_are_summed_in_longer_blocks() -> None:
    kept = []
    for columns, cut in ((256, 128), (256, 64), (128, 64), (64, 32), (32, 16)):
        case = Case("MatMul", (Wide(5).whole(8, 1100), Wide(6).whole(1100, columns)))
        node = case.node(case.run_in_runtime())
        (split,) = (split for split in splits_of(node) if split.role is Role.COLUMNS)
        if keeps_bits(node, split, [(0, cut), (cut, columns)]):
            kept.append((columns, cut))
    assert kept == [(256, 128)]
