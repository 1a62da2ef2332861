"""The table of splits: pieces put together are the whole, and another split is not."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from features.chunk_cases import CONTRIB, Case, differences_to, reads_everywhere
from features.chunk_draws import CASES, ONLY_IN_RUNTIME, Draw
from memplan_cli.features.chunking.axes.split import AxisMap, Role
from memplan_cli.features.chunking.axes.table import RULES, splits_of
from memplan_cli.features.chunking.kernels import keeps_bits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from features.chunk_cases import Array
    from memplan_cli.features.chunking.axes.split import Node, Split

SEEDS = st.integers(0, 2**32 - 1)


def run(case: Case) -> list[Array]:
    kind = f"{case.domain}.{case.type}" if case.domain else case.type
    return case.run_in_runtime() if kind in ONLY_IN_RUNTIME else case.run()


def drawn(kind: str, seed: int) -> tuple[Case, list[Array], Node]:
    """Return a random case of an operator, its results, and what the rules see of it."""
    case = CASES[kind](Draw(seed))
    results = run(case)
    return case, results, case.node(results)


def own_splits(case: Case, node: Node) -> list[Split]:
    """Return the splits of a case: columns of blocks of channels are not cut."""
    return [split for split in splits_of(node) if case.allows(split)]


def cuts_of(split: Split, seed: int) -> list[int]:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, min(split.extent, 4)))
    return sorted(int(at) for at in rng.choice(range(1, split.extent), count, replace=False))


def test_every_operator_of_the_table_has_a_case() -> None:
    assert set(CASES) == set(RULES)


@pytest.mark.parametrize("kind", sorted(RULES))
@settings(max_examples=8)
@given(seed=SEEDS)
def test_pieces_put_together_are_the_whole(kind: str, seed: int) -> None:
    case, whole, node = drawn(kind, seed)
    for split in own_splits(case, node):
        cuts = cuts_of(split, seed)
        if not reads_everywhere(case, split, cuts):
            continue
        pieces = pairwise([0, *cuts, split.extent])
        rounds = split.role is Role.QUERIES or kind in {"RNN", "GRU", "LSTM"}
        is_by_kernel = kind in ONLY_IN_RUNTIME and rounds
        if not is_by_kernel or keeps_bits(node, split, pieces):
            assert not [*differences_to(whole, case, node, split, cuts, run)], split


@pytest.mark.parametrize("kind", sorted(RULES))
def test_most_operators_are_split_along_some_axis(kind: str) -> None:
    assert any(splits_of(drawn(kind, seed)[2]) for seed in range(8))


@pytest.mark.parametrize("kind", sorted(RULES))
def test_a_node_of_an_invalid_model_that_lacks_inputs_is_no_error(kind: str) -> None:
    _, _, node = drawn(kind, 0)
    for count in range(len(node.inputs)):
        op = node.op._replace(inputs=node.op.inputs[:count])
        constants = {at: value for at, value in node.constants.items() if at < count}
        lacking = replace(node, op=op, inputs=node.inputs[:count], constants=constants)
        splits = splits_of(lacking)
        assert all(split.extent > 1 and len(split.inputs) == count for split in splits)


def others(case: Case, node: Node, split: Split) -> Iterator[Split]:
    """Yield splits that say something else of one input or output."""
    for at, part in enumerate(split.inputs):
        shape = node.inputs[at]
        if shape and at not in (*case.constants, *case.ignored):
            for other in _other_inputs(shape, part):
                if (
                    case.type in {"Resize", "Upsample", "ConvTranspose", "Concat"}
                    and other
                    and part
                    and other.halo_before > part.halo_before
                ):
                    continue  # what it makes of a wider halo is cut off, or there is none
                changed = (*split.inputs[:at], other, *split.inputs[at + 1 :])
                yield split._replace(inputs=changed)
    for at, part in enumerate(split.outputs):
        if part is not None:
            for axis in _other_axes(len(node.outputs[at] or ()), part):
                changed = (
                    *split.outputs[:at],
                    part._replace(axis=axis),
                    *split.outputs[at + 1 :],
                )
                yield split._replace(outputs=changed)


def _other_inputs(shape: tuple[int, ...], part: AxisMap | None) -> Iterator[AxisMap | None]:
    if part is None:
        yield from (AxisMap(axis) for axis, dim in enumerate(shape) if dim > 1)
        return
    yield None
    yield from (part._replace(axis=axis) for axis in _other_axes(len(shape), part))
    yield part._replace(scale=part.scale + 1)
    yield part._replace(halo_before=part.halo_before + 1)
    yield part._replace(halo_after=part.halo_after - 1)


def _other_axes(rank: int, part: AxisMap) -> list[int]:
    return sorted({(part.axis + 1) % rank, (part.axis - 1) % rank} - {part.axis})


@pytest.mark.parametrize(
    "seeds", [range(2), pytest.param(range(2, 6), marks=pytest.mark.slow)], ids=["few", "many"]
)
@pytest.mark.parametrize("kind", sorted(RULES))
def test_the_negation_of_an_entry_is_another_result(kind: str, seeds: range) -> None:
    for seed in seeds:
        case, whole, node = drawn(kind, seed)
        for split in own_splits(case, node):
            for other in others(case, node, split):
                assert not _is_same(whole, case, node, other), (seed, split, other)


def _is_same(whole: list[Array], case: Case, node: Node, split: Split) -> bool:
    # An input of Concat is read by the pieces that lie in it alone.
    cuts = [*range(1, split.extent)] if case.type == "Concat" else [split.extent // 2]
    try:
        return not any(differences_to(whole, case, node, split, cuts, run))
    except Exception:  # noqa: BLE001 - an operator may fail in any way
        return False


def test_a_tile_reads_its_halo_and_no_more() -> None:
    case = Case(
        "Conv",
        (Draw(0).whole(1, 1, 8, 8), Draw(1).whole(1, 1, 3, 3)),
        {"pads": (1, 1, 1, 1), "kernel_shape": (3, 3)},
    )
    node = case.node(run(case))
    tiles = [split for split in splits_of(node) if split.role is Role.TILES]
    part = tiles[0].inputs[0]
    assert part is not None
    assert [part.range(piece, 8) for piece in ((0, 4), (4, 8))] == [(0, 5), (3, 8)]


@pytest.mark.parametrize(
    ("mode", "coordinates", "rows"),
    [
        ("cubic", "half_pixel", (2, 8)),
        ("linear", "half_pixel", (3, 7)),
        ("linear", "asymmetric", (4, 7)),
    ],
)
def test_a_resize_reads_the_halo_of_its_interpolation(
    mode: str, coordinates: str, rows: tuple[int, int]
) -> None:
    scales = np.array([1, 1, 2, 1], np.float32)
    case = Case(
        "Resize",
        (Draw(0).whole(1, 1, 8, 4), None, scales),
        {"mode": mode, "coordinate_transformation_mode": coordinates},
        constants=(2,),
    )
    node = case.node(run(case))
    reads = [split.inputs[0] for split in splits_of(node)]
    (read,) = (read for read in reads if read is not None and read.axis == 2)
    assert read.range((4, 6), 8) == rows


@pytest.mark.parametrize(
    "kind", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"]
)
def test_a_skip_normalization_is_split_along_every_axis_but_the_last(kind: str) -> None:
    case, _, node = drawn(f"{CONTRIB}.{kind}", 0)
    axes = [read.axis for split in splits_of(node) if (read := split.inputs[0]) is not None]
    first = case.inputs[0]
    assert first is not None
    assert axes == list(range(first.ndim - 1))


@pytest.mark.parametrize("kind", ["GlobalAveragePool", "GlobalMaxPool"])
def test_a_global_pooling_is_split_along_samples_and_channels(kind: str) -> None:
    case = Case(kind, (Draw(0).whole(2, 3, 4, 4),))
    node = case.node(run(case))
    axes = [read.axis for split in splits_of(node) if (read := split.inputs[0]) is not None]
    assert axes == [0, 1]
