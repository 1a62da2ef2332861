"""ONNX Runtime gives the same bits with and without copies, on the shared training steps.

With optimization off and PRIORITY_BASED execution, which is what keeps copies apart and in
their places; one intra-op thread, for scatters race otherwise.
"""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from memplan_cli.analysis.phase import find_phases
from memplan_cli.analysis.storage import result_sizes
from memplan_cli.core.program import Op, Program, intermediates
from memplan_cli.core.symbolic.sizes import size_of
from memplan_cli.features.donation.transform import donations
from memplan_cli.features.recompute.checkpoints import recompute_segments
from memplan_cli.features.recompute.search import search_recomputation
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.shapes.reading import read_program
from memplan_cli.ordering.best_order import best_order
from memplan_cli.ordering.records import PlannedVars

MODELS = Path(__file__).parents[3] / "shared" / "models"
Arrays = dict[str, np.ndarray]


def filled(name: str, folder: Path) -> Path:
    if not MODELS.is_dir():
        pytest.skip("the shared models are not here")
    path = folder / f"{name}.onnx"
    fill = runpy.run_path(str(MODELS / "fill_weights.py"))["fill"]
    fill(str(MODELS / f"{name}.onnx"), str(path))
    return path


def planned(path: Path) -> tuple[Program, PlannedVars]:
    program = read_program(load_model(path)).program
    sizes = {
        var: size
        for var in intermediates(program)
        if (size := size_of(program.vars[var].shape, program.vars[var].dtype)) is not None
    }
    return program, PlannedVars(sizes, results=result_sizes(program))


def written(path: Path, program: Program) -> Path:
    """Write the program beside the model; its copies are nodes of their own."""
    model = onnx.load(path, load_external_data=False)
    nodes = list(model.graph.node)
    del model.graph.node[:]
    for op in program.body.ops:
        model.graph.node.append(nodes[op.source])
        node = model.graph.node[-1]
        node.name = op.name
        node.input[:] = [program.vars[var].name if var else "" for var in op.inputs]
        node.output[:] = [program.vars[var].name if var else "" for var in op.outputs]
    target = path.with_name(f"{path.stem}.recomputed.onnx")
    onnx.save(model, target)
    onnx.checker.check_model(str(target))
    return target


def run(path: Path, inputs: Arrays) -> Arrays:
    session = _session(path)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def _session(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def drawn(name: str) -> Arrays:
    """Draw what the model's description says, optimizer states from small positive numbers."""
    described = json.loads((MODELS / "inputs" / f"{name}.json").read_text())["inputs"]
    random = np.random.default_rng(0)
    return {key: _draw(random, facts) for key, facts in described.items()}


def _draw(random: np.random.Generator, facts: dict[str, Any]) -> np.ndarray:
    kind, *numbers = facts["gen"].split()
    shape, dtype = tuple(facts["shape"]), np.dtype(facts["dtype"])
    if kind == "randint":
        return random.integers(int(numbers[0]), int(numbers[1]), shape).astype(dtype)
    if kind == "normal":
        drawn = random.standard_normal(shape) * float(numbers[0] if numbers else 1)
    else:
        constant = {"zeros": 0.01, "ones": 1.0}
        drawn = np.full(shape, constant[kind] if kind in constant else float(numbers[0]))
    return np.asarray(drawn, dtype)


def assert_same(one: Arrays, other: Arrays) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert value.tobytes() == other[name].tobytes(), name


def compare(name: str, folder: Path, shares: tuple[float, ...]) -> None:
    path = filled(name, folder)
    program, terms = planned(path)
    inputs = drawn(name)
    before = run(path, inputs)
    assert all(np.isfinite(value).all() for value in before.values())
    resident = terms.resident.live_peak(program)
    for share in shares:
        result = search_recomputation(
            program, terms, find_phases(program), int(resident * share)
        )
        assert result.copies
        assert_same(before, run(written(path, result.program), inputs))


@pytest.mark.parametrize(
    "name",
    [
        "train_mlp_sgd",
        "train_cnn_sgd",
        pytest.param("train_mlp_adam", marks=pytest.mark.slow),
        pytest.param("train_cnn_adam", marks=pytest.mark.slow),
    ],
)
def test_a_training_step_within_a_budget_gives_the_same_bits(
    name: str, tmp_path: Path
) -> None:
    compare(name, tmp_path, (0.6, 0.4))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train_resnet18_momentum", "train_bert_small_adam"])
def test_a_large_training_step_within_a_budget_gives_the_same_bits(
    name: str, tmp_path: Path
) -> None:
    compare(name, tmp_path, (0.6,))


def test_checkpoints_give_the_same_bits(tmp_path: Path) -> None:
    path = filled("train_mlp_adam", tmp_path)
    program, terms = planned(path)
    inputs = drawn("train_mlp_adam")
    result = recompute_segments(program, terms, ("relu_1", "relu"), find_phases(program))
    assert _sources(result.copies)
    assert_same(run(path, inputs), run(written(path, result.program), inputs))


DONATING = [
    "train_mlp_adam",
    "train_cnn_adam",
    pytest.param("train_resnet18_momentum", marks=pytest.mark.slow),
    pytest.param("train_bert_small_adam", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("name", DONATING)
def test_two_steps_with_donated_buffers_give_the_same_bits(name: str, tmp_path: Path) -> None:
    path = filled(name, tmp_path)
    program, terms = planned(path)
    ordered = best_order(program, terms.sizes, work=10_000).program
    found = donations(ordered, [("in.*", "new.*")])
    assert found.pairs
    assert not found.refused
    inputs = drawn(name)
    pairs = {str(given): str(made) for given, made in found.pairs}
    first = run(path, inputs)
    second = run(path, inputs | {given: first[made] for given, made in pairs.items()})
    assert_same(second, _two_donated_steps(written(path, found.program), inputs, pairs))


def _two_donated_steps(path: Path, inputs: Arrays, pairs: dict[str, str]) -> Arrays:
    """Run twice, each new value bound to the buffer of the old one."""
    session = _session(path)
    buffers = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in inputs.items()}
    binding = session.io_binding()
    given = {made: name for name, made in pairs.items()}
    for name, buffer in buffers.items():
        binding.bind_ortvalue_input(name, buffer)
    for output in session.get_outputs():
        if output.name in given:
            binding.bind_ortvalue_output(output.name, buffers[given[output.name]])
        else:
            binding.bind_output(output.name, "cpu")
    for _ in range(2):
        session.run_with_iobinding(binding)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, binding.copy_outputs_to_cpu(), strict=True))


def _sources(copies: tuple[Op, ...]) -> set[int]:
    return {op.source for op in copies}
