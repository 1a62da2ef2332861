"""The predicted process: its parts add up, and on this machine it is what is observed."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from builders import parse
from cache_models import Shape, decoder
from memplan_cli import Settings
from memplan_cli.api.process import plan_with_prediction
from memplan_cli.core.bindings import Binding
from memplan_cli.core.program import Block, Op, Origin, Program, Var, VarId
from memplan_cli.core.results.observations import CUDA, RuntimeSettings
from memplan_cli.onnx_io.shapes.reading import read_program
from memplan_cli.onnx_io.traversal import graphs
from memplan_cli.onnx_io.weights.stored import stored_model
from memplan_cli.runtime.graph.dumps import executed_graph
from memplan_cli.runtime.process.parts import (
    ARENA,
    INLINE_WEIGHTS,
    KERNEL_WORKSPACE,
    MAPPED_WEIGHTS,
    PACKED_WEIGHTS,
)
from memplan_cli.runtime.process.predict import ProcessMeasurements, simulate_process
from memplan_cli.runtime.process.simulated_memory import PAGE
from memplan_cli.runtime.profile.packed_weights import packed_bytes, panel_bytes, weight_reads
from memplan_cli.runtime.profile.record import PROFILE
from memplan_cli.runtime.profile.workspace import (
    requests_from_totals,
    totals_by_rule,
    workspace_by_rule,
)
from memplan_cli.runtime.run.run_model import process_of_run
from memplan_cli.runtime.simulate.predict import session_traces
from memplan_cli.runtime.workers.spec import RunConditions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from memplan_cli.runtime.process.parts import PredictedProcess

WIDTH = 1500
LAYERS = 6
DEFAULTS = RuntimeSettings()

OF_FOUR = RunConditions(binding=Binding({"batch": 4}))


def layers(kind: str = "MatMul") -> onnx.ModelProto:
    """Return some wide layers, 9 MB of weights each, in the file itself."""
    names = ["x", *(f"y{n}" for n in range(LAYERS))]
    generator = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(
            (generator.standard_normal((WIDTH, WIDTH)) / WIDTH).astype(np.float32), f"w{n}"
        )
        for n in range(LAYERS)
    ]
    nodes = [
        helper.make_node(kind, [names[n], f"w{n}"], [names[n + 1]], name=f"n{n}")
        for n in range(LAYERS)
    ]
    shape = ["batch", WIDTH]
    values = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name in (names[0], names[-1])
    )
    given, made = ([value] for value in values)
    graph = helper.make_graph(nodes, "layers", given, made, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module", params=("inside", "beside"))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "layers.onnx"
    outside = request.param == "beside"
    onnx.save(layers(), str(path), save_as_external_data=outside, size_threshold=0)
    return path


def predicted_process(path: Path, settings: RuntimeSettings = DEFAULTS) -> PredictedProcess:
    found = simulate_process(
        stored_model(path), executed_graph(path, settings, {"batch": 4}), settings
    )
    assert found is not None
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what a process takes")
def test_the_process_is_predicted_to_two_megabytes_or_two_percent(model: Path) -> None:
    predicted = predicted_process(model).process
    seen = process_of_run(model, DEFAULTS, OF_FOUR)
    assert seen is not None
    for name in ("load", "run", "private"):
        mine, theirs = getattr(predicted, name), getattr(seen, name)
        assert abs(mine - theirs) <= max(2_000_000, 0.02 * theirs), (name, mine, theirs)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what a process takes")
@pytest.mark.parametrize(
    ("layers", "words", "share"), [(6, 4000, 1.7), (4, 8000, 0.34)], ids=("more", "less")
)
def test_outputs_that_the_caller_keeps_cost_more_or_less_than_their_bytes(
    tmp_path: Path, layers: int, words: int, share: float
) -> None:
    path = tmp_path / "decoder.onnx"
    like = Shape(layers=layers, heads=4, size=64, words=words, whole=True)
    onnx.save(decoder(like), str(path), save_as_external_data=True)
    caches = [f"{name}{layer}_past" for name in "ab" for layer in range(layers)]
    dims = {"batch": 8, "new": 128, **dict.fromkeys(caches, 128)}
    # Numbers of dims that the file leaves free, as `fit` has them.
    executed = replace(executed_graph(path, DEFAULTS, {}), dims=dims)
    predicted = simulate_process(stored_model(path), executed, DEFAULTS)
    assert predicted is not None
    kept = predicted.process.kept
    assert kept is not None
    conditions = RunConditions(binding=Binding(dims))
    seen = process_of_run(path, DEFAULTS, conditions, "keeps outputs")
    assert seen is not None
    assert abs(predicted.process.run + kept - seen.run) <= 0.02 * seen.run
    output_bytes = 4 * 8 * (128 * words + len(caches) * 4 * 256 * 64)
    assert kept == pytest.approx(share * output_bytes, rel=0.01)


@pytest.mark.parametrize("dtype", [TensorProto.INT64, TensorProto.INT32])
def test_a_lookup_reads_the_pages_around_its_rows_whatever_type_indices_have(
    tmp_path: Path, dtype: int
) -> None:
    path = tmp_path / "lookup.onnx"
    table = numpy_helper.from_array(np.zeros((1 << 10, 1 << 9), np.float32), "table")
    lookup = helper.make_node("Gather", ["table", "rows"], ["y"], name="lookup")
    graph = helper.make_graph(
        [lookup],
        "lookup",
        [helper.make_tensor_value_info("rows", dtype, [3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 1 << 9])],
        [table],
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.save(model, str(path), save_as_external_data=True, size_threshold=0)
    parts = {part.name: part.run for part in predicted_process(path).parts}
    assert parts[MAPPED_WEIGHTS] == 3 * (64 << 10)


def test_the_rows_of_a_lookup_are_counted_with_the_numbers_of_dims(tmp_path: Path) -> None:
    path = tmp_path / "lookup.onnx"
    model = parse("lookup (int64[n] rows) => (float[n, 512] y) { y = Gather(table, rows) }")
    table = numpy_helper.from_array(np.zeros((1 << 10, 1 << 9), np.float32), "table")
    model.graph.initializer.append(table)
    onnx.save(model, str(path), save_as_external_data=True, size_threshold=0)
    executed = replace(executed_graph(path, DEFAULTS, {}), dims={"n": 3})
    predicted = simulate_process(stored_model(path), executed, DEFAULTS)
    assert predicted is not None
    parts = {part.name: part.run for part in predicted.parts}
    assert parts[MAPPED_WEIGHTS] == 3 * (64 << 10)


def test_a_lookup_in_a_packed_weight_reads_the_weight_itself(tmp_path: Path) -> None:
    path = tmp_path / "tied.onnx"
    model = parse(
        "tied (int64[3] rows, float[4, 2048] x) => (float[3, 512] y, float[4, 512] z)"
        "{ y = Gather(table, rows)  z = MatMul(x, table) }"
    )
    table = numpy_helper.from_array(np.zeros((2048, 512), np.float32), "table")
    model.graph.initializer.append(table)
    onnx.save(model, str(path), save_as_external_data=True, size_threshold=0)
    stored = stored_model(path)
    packed = tuple(replace(weight, packed_in_file=4 << 20) for weight in stored.weights)
    found = simulate_process(
        replace(stored, weights=packed), executed_graph(path, DEFAULTS, {}), DEFAULTS
    )
    assert found is not None
    code = PROFILE.loaded_code + PROFILE.run_code
    assert found.process.file == code + (4 << 20) + 3 * (64 << 10)


@pytest.mark.parametrize(
    ("nodes", "mapped"),
    [
        ("y = Gather(table, rows)  z = Gather(table, others)", 2 * 3 * (64 << 10)),
        ("y = Gather <axis = -2> (table, rows)", 3 * (64 << 10)),
        ("y = Gather <axis = 1> (table, rows)", 1 << 21),
        ("y = Gather(table, rows)  z = Add(table, w)", 1 << 21),
    ],
)
def test_lookups_of_one_table_read_their_rows_and_lookups_of_columns_the_whole_table(
    tmp_path: Path, nodes: str, mapped: int
) -> None:
    path = tmp_path / "lookup.onnx"
    outputs = "y, z" if "z =" in nodes else "y"
    model = parse(
        f"g (int64[3] rows, int64[3] others, float[512] w) => ({outputs}) {{ {nodes} }}"
    )
    table = np.zeros((1 << 10, 1 << 9), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(table, "table"))
    onnx.save(model, str(path), save_as_external_data=True, size_threshold=0)
    parts = {part.name: part.run for part in predicted_process(path).parts}
    assert parts[MAPPED_WEIGHTS] == mapped


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what a process takes")
def test_what_loading_gives_back_is_predicted_and_is_a_third_of_what_was_private(
    model: Path,
) -> None:
    trial = replace(OF_FOUR, opened_by_memplan=True)
    kept = process_of_run(model, DEFAULTS, replace(trial, opened_by_memplan=False))
    seen = process_of_run(model, DEFAULTS, trial)
    assert seen is not None
    assert kept is not None
    if stored_model(model).size > WIDTH * WIDTH * 4:  # weights that were parsed leave holes
        assert seen.private < kept.private * 2 / 3
    stored, executed = stored_model(model), executed_graph(model, DEFAULTS, {"batch": 4})
    shown = ProcessMeasurements(opened_by_memplan=True)
    found = simulate_process(stored, executed, DEFAULTS, measurements=shown)
    assert found is not None
    for name in ("load", "run", "private"):
        mine, theirs = getattr(found.process, name), getattr(seen, name)
        assert abs(mine - theirs) <= max(2_000_000, 0.02 * theirs), (name, mine, theirs)


def looped() -> onnx.ModelProto:
    """Return two Scans with two products of 9 MB each, and one behind them."""
    wide = layers()
    steps = numpy_helper.from_array(np.zeros((4, 1), np.float32), "steps")
    state = helper.make_tensor_value_info("h", TensorProto.FLOAT, ["batch", WIDTH])
    made = helper.make_tensor_value_info("hn", TensorProto.FLOAT, ["batch", WIDTH])
    part = helper.make_tensor_value_info("s", TensorProto.FLOAT, [1])
    names = ["x", "first", "second"]
    whole = []
    for at in range(2):
        nodes = [
            helper.make_node("MatMul", ["h", f"w{2 * at}"], ["m"]),
            helper.make_node("MatMul", ["m", f"w{2 * at + 1}"], ["n"]),
            helper.make_node("Add", ["n", "s"], ["hn"]),
        ]
        body = helper.make_graph(nodes, "step", [state, part], [made])
        inputs, outputs = [names[at], "steps"], [names[at + 1]]
        whole.append(helper.make_node("Scan", inputs, outputs, body=body, num_scan_inputs=1))
    whole.append(helper.make_node("MatMul", ["second", "w4"], ["y5"]))
    weights = [*list(wide.graph.initializer)[:5], steps]
    graph = helper.make_graph(whole, "looped", wide.graph.input, wide.graph.output, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what a process takes")
def test_what_a_subgraph_reads_to_pack_it_stays_until_it_has_packed_all(
    tmp_path: Path,
) -> None:
    """Packed copies, 45 MB, and pages of the two weights that a Scan reads, 18 MB.

    The graph around it packs first, so those of its own are gone by then, and so are the other's.
    """
    path = tmp_path / "looped.onnx"
    onnx.save(looped(), str(path), save_as_external_data=True, size_threshold=0)
    seen = process_of_run(path, DEFAULTS, replace(OF_FOUR, opened_by_memplan=True))
    executed = executed_graph(path, DEFAULTS, {"batch": 4})
    found = simulate_process(
        stored_model(path),
        executed,
        DEFAULTS,
        measurements=ProcessMeasurements(opened_by_memplan=True),
    )
    assert seen is not None
    assert found is not None
    assert abs(found.process.load - seen.load) <= 2_000_000, (found.process.load, seen.load)


BESIDE_THE_ARENA = {
    "ScatterElements": "y = ScatterElements<axis = 0>(x, at, x)",
    "ScatterND": "p = Unsqueeze(at, last)\n y = ScatterND(x, p, x)",
    "GatherND": "p = Unsqueeze(at, last)\n y = GatherND(x, p)",
}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what a process takes")
@pytest.mark.parametrize("kind", BESIDE_THE_ARENA)
def test_what_kernels_take_beside_the_arena_is_predicted(tmp_path: Path, kind: str) -> None:
    path, count = tmp_path / "m.onnx", 2_000_000
    text = f"""s (float[{count}] x, int64[{count}] at) => (float[{count}] y) {{
        last = Constant<value_ints = [1]>()
        {BESIDE_THE_ARENA[kind]}
    }}"""
    onnx.save(parse(text), path)
    seen = process_of_run(path, DEFAULTS, RunConditions())
    executed = executed_graph(path, DEFAULTS, {})
    found = simulate_process(stored_model(path), executed, DEFAULTS)
    assert seen is not None
    assert found is not None
    (beside,) = (part for part in found.parts if part.name == KERNEL_WORKSPACE)
    assert beside.run == -(-8 * count // PAGE) * PAGE
    # Where the block lay, the heap keeps it once, or once more.
    most = found.process.run + 8 * count
    assert found.process.run - 2_000_000 <= seen.run <= most + 2_000_000


def test_the_parts_of_the_run_add_up_to_it(model: Path) -> None:
    found = predicted_process(model)
    assert sum(part.run for part in found.parts) == found.process.run
    assert sum(part.load for part in found.parts) == found.process.load
    assert sum(part.private for part in found.parts) == found.process.private


def test_each_layer_keeps_a_packed_copy_of_its_weights(model: Path) -> None:
    (packed,) = (
        p for p in predicted_process(model).parts if p.name.startswith(PACKED_WEIGHTS)
    )
    least = LAYERS * panel_bytes(WIDTH, WIDTH)
    assert least <= packed.private <= least + LAYERS * 2 * 4096
    assert packed.remedy == "--target cpu"


def test_without_packing_the_weights_themselves_are_read(model: Path) -> None:
    off = RuntimeSettings(session_config={"session.disable_prepacking": "1"})
    unpacked = predicted_process(model, off)
    assert not any(part.name.startswith(PACKED_WEIGHTS) for part in unpacked.parts)
    stored = stored_model(model)
    least = LAYERS * WIDTH * WIDTH * 4
    assert unpacked.process.private + unpacked.process.file >= least
    if stored.size < least:  # they are mapped
        assert unpacked.process.private < least < unpacked.process.file
    seen = process_of_run(model, off, OF_FOUR)
    if seen is not None:  # a system that says what a process takes
        assert abs(unpacked.process.run - seen.run) <= max(2_000_000, 0.02 * seen.run)


def test_weights_in_the_file_are_on_the_heap_while_it_is_loaded(tmp_path: Path) -> None:
    inside, beside = tmp_path / "inside.onnx", tmp_path / "beside.onnx"
    onnx.save(layers(), str(inside))
    onnx.save(layers(), str(beside), save_as_external_data=True, size_threshold=0)
    assert any(part.name == INLINE_WEIGHTS for part in predicted_process(inside).parts)
    assert not any(part.name == INLINE_WEIGHTS for part in predicted_process(beside).parts)
    assert (
        predicted_process(inside).process.load
        > predicted_process(beside).process.load + 20_000_000
    )


def test_the_arena_counts_where_it_is_written(model: Path) -> None:
    batch = 2048
    executed = executed_graph(model, DEFAULTS, {"batch": batch})
    found = simulate_process(stored_model(model), executed, DEFAULTS)
    assert found is not None
    (arena,) = (part for part in found.parts if part.name == ARENA)
    assert 2 * WIDTH * batch * 4 <= arena.private <= 5 * WIDTH * batch * 4
    assert arena.load == 0


def test_rows_of_a_matrix_are_packed_in_panel_bytes_of_sixteen_columns() -> None:
    assert panel_bytes(2048, 1000) == 2048 * 1008 * 4


@pytest.mark.parametrize(
    ("dims", "groups", "copies"),
    [
        ((64, 32, 3, 3), 1, 1),
        ((64, 32, 3, 3), 4, 1),
        ((64, 1, 3, 3), 64, 0),
        ((64, 1, 1, 1), 1, 0),
    ],
)
def test_filters_of_a_transposed_convolution_are_kept_once_more(
    dims: tuple[int, ...], groups: int, copies: int
) -> None:
    op = Op(
        "n",
        "ConvTranspose",
        (VarId("x"), VarId("w")),
        (VarId("y"),),
        attributes={"group": groups},
    )
    weights = Var(VarId("w"), "float32", dims, Origin.WEIGHT, "w")
    program = Program("p", Block((), (), (op,)), {VarId("w"): weights})
    assert packed_bytes(op, VarId("w"), program) == copies * 4 * math.prod(dims)


def test_a_kernel_packs_weights_of_its_own_graph_and_of_the_one_around_it() -> None:
    product = "{} = MatMul(x, {})"
    inner = (
        f"If (go) < then_branch = t () => (float[32,32] i) {{ {product.format('i', 'w')} }}"
    )
    inner += f", else_branch = e () => (float[32,32] j) {{ {product.format('j', 'v')} }} >"
    model = parse(f"""g (float[32,32] x, bool go) => (float[32,32] y)
        <float[32,32] w, float[32,32] u>
        {{ y = If (go) < then_branch = a () => (float[32,32] p)
                             <float[32,32] v> {{ p = {inner} }},
                         else_branch = b () => (float[32,32] q) {{
                             {product.format("q", "u")} }} > }}""")
    for graph in graphs(model.graph):
        for value in graph.value_info:
            zeros = np.zeros((32, 32), np.float32)
            graph.initializer.append(numpy_helper.from_array(zeros, value.name))
    program = read_program(model).program
    found = {
        program.vars[read.weight].name: read.packed_bytes for read in weight_reads(program)
    }
    assert found == {"u": 4096, "v": 4096, "w": 0}


def test_nothing_is_predicted_for_another_provider(model: Path) -> None:
    executed = executed_graph(model, DEFAULTS, {"batch": 4})
    elsewhere = replace(executed, provider=CUDA)
    assert simulate_process(stored_model(model), elsewhere, DEFAULTS) is None


def test_nothing_is_predicted_where_the_arena_is_off(model: Path) -> None:
    off = RuntimeSettings(session={"enable_cpu_mem_arena": False})
    executed = executed_graph(model, off, {"batch": 4})
    assert simulate_process(stored_model(model), executed, off) is None


def test_nothing_is_predicted_where_data_decides_a_size(save: Callable[..., Path]) -> None:
    path = save("""g (float[4] x) => (float[n] y) {
        z = NonZero (x)  f = Cast <to = 1> (z)  flat = Flatten <axis = 0> (f)
        y = Squeeze (flat) }""")
    executed = executed_graph(path, DEFAULTS, {})
    assert simulate_process(stored_model(path), executed, DEFAULTS) is None


def test_nothing_is_predicted_with_kernels_whose_packing_was_not_measured(model: Path) -> None:
    executed = executed_graph(model, DEFAULTS, {"batch": 4})
    body = executed.program.body
    ops = tuple(op._replace(type="MatMulNBits", domain="com.microsoft") for op in body.ops)
    other = replace(executed.program, body=replace(body, ops=ops))
    known = replace(executed, program=other)
    assert simulate_process(stored_model(model), known, DEFAULTS) is None


def test_what_kernels_ask_for_besides_is_known_by_rules(save: Callable[..., Path]) -> None:
    path = save("""g (float[1,64,8,8] x, bool[1,64,8,8] c, float s) => (float[1,64,8,8] y) {
        y = Where (c, x, s) }""")
    loaded = onnx.load(str(path))
    loaded.graph.node[0].name = "spread"
    onnx.save(loaded, str(path))
    executed = executed_graph(path, DEFAULTS, {})
    spread = 64 * 64 * 4
    assert workspace_by_rule(executed.program, executed.dims) == {"spread": (spread, spread)}
    # Statistics add a kernel's requests up; what they say otherwise is one request.
    assert requests_from_totals(executed.program, executed.dims, {"spread": 2 * spread}) == {
        "spread": (spread, spread)
    }
    assert requests_from_totals(executed.program, executed.dims, {"spread": 100}) == {
        "spread": (100,)
    }


def test_a_kernel_asks_for_its_workspace_before_its_output_or_after(
    save: Callable[..., Path],
) -> None:
    path = save("""g (float[1,4,8,8] x, bool[1,1,8,8] c, float s, float[2,4,3,3] w) => (float[1,2,6,6] y) {
        m = Where (c, s, x)  y = Conv (m, w) }""")
    loaded = onnx.load(str(path))
    for node in loaded.graph.node:
        node.name = node.op_type
    onnx.save(loaded, str(path))
    executed = executed_graph(path, DEFAULTS, {})
    one, all_, columns = 8 * 8 * 4, 4 * 8 * 8 * 4, 64 << 10
    trace = session_traces(
        executed, DEFAULTS, totals_by_rule(executed.program, executed.dims)
    ).first
    taken = [trace.sizes[index] * (1 if chunks else -1) for chunks, index in trace.steps]
    result = 2 * 6 * 6 * 4
    # The condition spreads over the number alone, and is spread itself over all channels.
    assert taken[:5] == [one, all_, all_, -all_, -one]
    assert taken[5:9] == [result, columns, -columns, -all_]


@pytest.mark.parametrize(("channels", "warned"), [(8, False), (1024, True)])
def test_a_prediction_without_copies_of_filters_that_nodes_make_says_so(
    save: Callable[..., Path], channels: int, *, warned: bool
) -> None:
    tensor = f"float[1,{channels},4,4]"
    model = save(
        f"""g ({tensor} x) => ({tensor} y) <int64[4] shape = {{{channels}, {channels}, 3, 3}}> {{
        w = ConstantOfShape <value = float[1] {{0.5}}> (shape)
        a = Conv <pads = [1, 1, 1, 1]> (x, w)
        y = Relu(a) }}"""
    )
    warnings = plan_with_prediction(model, Settings()).report.warnings
    said = [text for text in warnings if "predicted process may be far too low" in text]
    assert bool(said) == warned
    assert all("make 36.00 MiB of its filters at load" in text for text in said)


def test_a_dim_of_ten_trillion_is_predicted_as_fast_as_a_small_one(tmp_path: Path) -> None:
    path = tmp_path / "layers.onnx"
    onnx.save(layers("MatMul"), path)
    report = plan_with_prediction(path, Settings(dims={"batch": 10**13})).report
    assert report.runtime is not None
    process = report.runtime.predicted["original"].process
    assert process is not None
    assert process.run > 2 * 10**13 * WIDTH * 4  # the input and the output of a layer
