"""What a record says of what nobody told it, and how wide each type is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from memplan_cli.core.bindings import Feed, FeedSpec
from memplan_cli.core.results.caches import step_dims
from memplan_cli.core.results.certificate import read_certificate
from memplan_cli.core.results.chunks import Chunks
from memplan_cli.core.results.report import Donated
from memplan_cli.core.symbolic.polynomials import multiplied
from memplan_cli.core.symbolic.sizes import BITS
from memplan_cli.errors import PlanError

if TYPE_CHECKING:
    from pathlib import Path

WIDTHS = {
    2: "int2 uint2",
    4: "int4 uint4 float4e2m1",
    8: """bool int8 uint8 float8e4m3fn float8e4m3fnuz float8e5m2 float8e5m2fnuz
        float8e8m0""",
    16: "int16 uint16 float16 bfloat16",
    32: "int32 uint32 float32",
    64: "int64 uint64 float64 complex64",
    128: "complex128",
}


def test_each_type_is_as_wide_as_the_standard_says() -> None:
    widths = {name: bits for bits, names in WIDTHS.items() for name in names.split()}
    assert dict(BITS) == widths


def test_what_nobody_told_is_nothing() -> None:
    assert (Donated().bytes, Donated().pairs, Donated().refused) == (0, (), ())
    chunks = Chunks()
    assert (chunks.nodes, chunks.flops_increase, chunks.budget) == (0, 0.0, None)
    assert chunks.met


def test_integers_of_an_input_are_truth_values_unless_told() -> None:
    spec = FeedSpec("x", "int64", (3,), "integers")
    assert (spec.low, spec.high, spec.scale) == (0, 2, 1.0)


def test_a_feed_is_a_tensor_without_files_unless_told() -> None:
    feed = Feed((2, 3))
    assert (feed.files, feed.container) == ((), "tensor")


def test_what_keeps_the_files_of_a_feed_tells_no_feeds_apart() -> None:
    one, other = (Feed((2,), storage=[name]) for name in "ab")
    assert one == other
    assert "storage" not in repr(one)


def test_numbers_of_a_step_follow_their_rules() -> None:
    rules = {rule: rule for rule in ("new", "total", "past", "one", "five")}
    numbers = {"new": 3, "total": 10, "past": 7, "one": 1, "five": 5}
    assert step_dims(rules, 7, 3) == numbers


def test_a_product_has_each_factor_once() -> None:
    assert multiplied([{("n",): 1}]) == {("n",): 1}
    assert multiplied([{("n",): 1}, {("m",): 2, (): 3}]) == {("m", "n"): 2, ("n",): 3}
    assert multiplied([{("n",): 1}], 4) == {("n",): 4}


def test_a_file_of_64_mebibytes_is_no_certificate_too_large(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for more, words in ((0, "is not JSON"), (1, "is too large")):
        with path.open("wb") as file:
            file.truncate((64 << 20) + more)
        with pytest.raises(PlanError, match=words):
            read_certificate(path)
