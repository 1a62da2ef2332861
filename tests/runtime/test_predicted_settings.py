from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import onnx
import onnx.parser
import pytest

from memplan_cli.core.results.observations import CPU, CUDA, RuntimeSettings
from memplan_cli.onnx_io.runs.prepared_models import unread_outputs, with_readers
from memplan_cli.onnx_io.shapes.reading import read_program
from memplan_cli.reporting.snippets import settings_snippet
from memplan_cli.runtime.graph.recorded import with_recorded_order
from memplan_cli.runtime.run.run_model import RunRecord
from memplan_cli.runtime.settings_search.predicted import predict_settings
from memplan_cli.runtime.simulate.predict import ExecutedGraph, predict_peaks, session_traces
from memplan_cli.runtime.simulate.regions import best_arena
from memplan_cli.runtime.simulate.trace import with_copied_inputs
from memplan_cli.runtime.workers.session_profile import Kernel
from memplan_cli.runtime.workers.spec import RunSpec, SessionSpec

HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'


def executed(nodes: str) -> ExecutedGraph:
    text = (
        HEAD
        + f"g (float[1024] x) => (float[1024] y) <int64[1] i = {{0}}, int64[1] j = {{1024}}> {{ {nodes} }}"
    )
    return ExecutedGraph(read_program(onnx.parser.parse_model(text)).program)


def test_the_order_that_needs_less_is_recommended() -> None:
    # Depth first keeps one branch's result; the file keeps three at once.
    graph = executed(
        "a0 = Exp(x) b0 = Exp(x) c0 = Exp(x) a1 = Neg(a0) b1 = Neg(b0) c1 = Neg(c0) "
        "s = Add(a1, b1) y = Add(s, c1)"
    )
    best = predict_settings(graph, RuntimeSettings())
    peaks = {
        order: predict_peaks(
            graph,
            RuntimeSettings(session={"execution_order": order, "enable_mem_reuse": False}),
        ).first_run_peak
        for order in ("DEFAULT", "PRIORITY_BASED")
    }
    assert best.settings.session["execution_order"] == min(peaks, key=lambda o: peaks[o] or 0)


def test_a_memory_pattern_with_which_the_arena_holds_less_counts_as_less_memory() -> None:
    text = HEAD + (
        "g (float[2048] x) => (float[4096] y) { a = Exp(x) b = Neg(x) c = Neg(x) "
        "d = Concat<axis=0>(c, c) y = Concat<axis=0>(c, a) }"
    )
    graph = ExecutedGraph(read_program(onnx.parser.parse_model(text)).program)
    no_pattern = RuntimeSettings(session={"enable_mem_pattern": False})
    best, without = (predict_settings(graph, base) for base in (RuntimeSettings(), no_pattern))
    assert best.settings.session["enable_mem_pattern"]
    assert (best.predicted.held or 0) < (without.predicted.held or 0)
    assert best.rank < without.rank


def test_a_fixed_order_stays() -> None:
    base = RuntimeSettings(session={"execution_order": "PRIORITY_BASED"})
    best = predict_settings(executed("a = Exp(x) y = Neg(a)"), base)
    assert best.settings.session["execution_order"] == "PRIORITY_BASED"


def test_sizes_that_depend_on_data_get_settings_that_win_on_average() -> None:
    text = HEAD + "g (float[8] x) => (int64[1,n] y) { y = NonZero(x) }"
    graph = ExecutedGraph(read_program(onnx.parser.parse_model(text)).program)
    best = predict_settings(graph, RuntimeSettings())
    assert best.settings.arena["arena_extend_strategy"] == "kSameAsRequested"
    assert best.predicted.first_run_peak is None
    assert "depend on data" in best.notes[0]


def test_the_snippet_is_python_and_sets_each_option_in_its_scope() -> None:
    settings = RuntimeSettings(
        session={"execution_order": "PRIORITY_BASED", "enable_mem_pattern": False},
        session_config={"a.b": "1"},
        arena={"arena_extend_strategy": "kSameAsRequested"},
        run_config={"c.d": "2"},
    )
    text = settings_snippet(settings, "m.onnx")
    ast.parse(text)
    assert "options.execution_order = ort.ExecutionOrder.PRIORITY_BASED" in text
    assert "arena = {\n    'arena_extend_strategy': 1,\n}" in text
    assert "ort.OrtArenaCfg(arena)" in text
    assert "run_options.add_run_config_entry('c.d', '2')" in text
    on_cuda = settings_snippet(settings, "m.onnx", CUDA)
    ast.parse(on_cuda)
    assert f"create_and_register_allocator_v2(\n    {CUDA!r}, memory, {{}}" in on_cuda
    assert '"Cuda", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR' in on_cuda
    assert 'add_session_config_entry("session.use_env_allocators", "1")' in on_cuda
    assert f"providers=[({CUDA!r}, {{}})]" in on_cuda


@pytest.mark.parametrize(
    ("provider", "written"), [(CPU, "them."), (CUDA, "their copies on the device.")]
)
def test_the_snippet_says_where_donated_outputs_are_written(
    provider: str, written: str
) -> None:
    settings = RuntimeSettings(io_binding={"y": "x"})
    assert f"runs write into {written}" in settings_snippet(settings, "m.onnx", provider)


def test_on_cuda_the_same_regions_are_searched_as_on_the_cpu() -> None:
    # No kernel of these operators writes in place, so that both tables of kernels give the same requests.
    on_cpu = executed(
        "a = Concat<axis = 0>(x, x) b = Concat<axis = 0>(x, x, x) c = Concat<axis = 0>(a, b, a)"
        "d = Concat<axis = 0>(a, a, a, a) e = Concat<axis = 0>(c, d) f = Concat<axis = 0>(e, x)"
        "g = Concat<axis = 0>(f, x, x, x) h = Concat<axis = 0>(g, x) y = Slice(h, i, j)"
    )
    base = RuntimeSettings(session={"enable_mem_pattern": False})
    best = predict_settings(on_cpu, base)
    assert "initial_chunk_size_bytes" in best.settings.arena
    # The inputs are copied into the arena of the device, and callers keep their outputs on the host.
    on_cuda = replace(on_cpu, provider=CUDA)
    choice = predict_settings(on_cuda, base)
    requests = with_copied_inputs(session_traces(on_cuda, choice.settings, {}).first, [4096])
    best_of_search = best_arena(requests)
    assert choice.settings.arena == best_of_search.settings
    assert choice.predicted.held == best_of_search.held
    assert "initial_chunk_size_bytes" in choice.settings.arena


def test_on_cuda_buffers_are_reused_as_on_the_cpu() -> None:
    # Also with nodes on both devices: with one stream of each device type the planner reuses as with one.
    reused = RuntimeSettings(session={"enable_mem_pattern": False})
    graph = replace(executed("a = Exp(x) b = Neg(a) c = Exp(b) y = Neg(c)"), provider=CUDA)
    peak = predict_peaks(graph, reused).first_run_peak
    assert peak == 2 * 4096


def test_the_snippet_runs() -> None:
    settings = RuntimeSettings(session={"enable_mem_pattern": False})
    code = settings_snippet(settings, "m.onnx").split("session =")[0]
    scope: dict[str, object] = {}
    exec(code, scope)  # noqa: S102 - our own text
    assert getattr(scope["options"], "enable_mem_pattern") is False  # noqa: B009 - no types
    assert CPU in settings_snippet(settings, "m.onnx")


def test_a_shape_node_that_reads_an_unused_output_lowers_the_peak() -> None:
    text = (
        HEAD
        + """g (float[1,1,32,32] x) => (float[4,1,32,32] y)
        { a = Exp(x)  u, i = MaxPool<kernel_shape = [1, 1]>(a)  c = Cast<to = 1>(i)
          d = Concat<axis = 0>(a, c, a, c)  y = Neg(d) }"""
    )
    model = onnx.parser.parse_model(text)
    assert unread_outputs(model) == ("u",)
    read = with_readers(model, ("u",))
    assert [node.op_type for node in read.graph.node][2] == "Shape"
    onnx.checker.check_model(read)
    assert "u" not in unread_outputs(read)
    in_file_order = RuntimeSettings(
        session={"execution_order": "PRIORITY_BASED", "enable_mem_reuse": False}
    )
    before, after = (
        predict_peaks(ExecutedGraph(read_program(m).program), in_file_order).first_run_peak
        for m in (model, read)
    )
    assert before is not None
    assert after is not None
    assert after < before


def ran(*names: str) -> RunRecord:
    """A run whose kernels began in this order, and ended in the opposite one."""
    kernels = [Kernel(name, [], [], begin) for begin, name in enumerate(names)]
    spec = RunSpec(SessionSpec(Path("m.onnx")), ())
    return RunRecord(spec, kernels=(tuple(reversed(kernels)),))


def test_a_graph_is_put_in_the_order_that_was_recorded() -> None:
    graph = executed("[p] a = Exp(x) [q] b = Neg(x) [r] y = Add(a, b)")
    seen = with_recorded_order(graph, ran("q", "p", "r"))
    assert seen is not None
    assert [op.name for op in seen.program.body.ops] == ["q", "p", "r"]


def test_an_order_that_does_not_name_every_op_once_is_not_taken() -> None:
    graph = executed("[p] a = Exp(x) [q] b = Neg(x) [r] y = Add(a, b)")
    for names in (("q", "p"), ("q", "q", "r"), ("p", "q", "r", "r")):
        assert with_recorded_order(graph, ran(*names)) is None
