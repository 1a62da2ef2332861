"""Random graphs of the table's operators: every legal split of theirs keeps the bits."""

from __future__ import annotations

import onnx
from hypothesis import example, given, settings
from hypothesis import strategies as st

from features.chunk_graphs import mixed
from features.test_chunk_rewrite import graph_of, peak, run, sizes_of
from memplan_cli.analysis.aliasing import SHARE_SAFELY
from memplan_cli.core.program import intermediates
from memplan_cli.features.chunking.bound import lower_bound
from memplan_cli.features.chunking.region import regions_from
from memplan_cli.features.chunking.rewrite import rewrite_in_chunks
from memplan_cli.onnx_io.shapes.reading import read_program
from memplan_cli.onnx_io.writing.chunked import chunked_model


@settings(max_examples=10)
@given(seed=st.integers(0, 2**32 - 1), steps=st.integers(2, 6), count=st.integers(2, 6))
@example(seed=362879, steps=4, count=5)  # carried rows that a later chunk reads in turn
def test_every_legal_split_of_a_random_graph_keeps_the_bits(
    seed: int, steps: int, count: int
) -> None:
    model = mixed(seed, steps)
    graph, whole = graph_of(model), [x.tobytes() for x in run(model)]
    bound = lower_bound(graph, sizes_of(graph.program), SHARE_SAFELY)
    assert bound.bytes <= peak(graph.program)
    regions = {
        found.key: found
        for seed_var in intermediates(graph.program)
        for axis in range(len(graph.dims(seed_var)))
        for found in regions_from(graph, seed_var, axis)
    }
    for region in regions.values():
        chunked = rewrite_in_chunks(graph, [(region, count)])
        if chunked is None:
            continue
        written, program = chunked_model(model, chunked.program, chunked.constants)
        onnx.checker.check_model(written, full_check=True)
        assert read_program(written).program.body == program.body
        assert [x.tobytes() for x in run(written)] == whole, (region, count)
        assert bound.bytes <= peak(chunked.program)
