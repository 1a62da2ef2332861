"""A fusion whose kernel asks for workspace is left out where the same bits need less."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from memplan_cli import Check, Settings, api
from memplan_cli.api.optimizing.verification import Verifier
from memplan_cli.core.bindings import Binding
from memplan_cli.core.results.observations import RuntimeSettings
from memplan_cli.onnx_io.load import load_model
from memplan_cli.runtime.graph.dumps import write_dump
from memplan_cli.runtime.profile.record import PROFILE
from memplan_cli.runtime.profile.workspace import costly_fusions, without_fusions
from memplan_cli.runtime.settings_search.predicted import held_without_weights
from memplan_cli.runtime.settings_search.written_model import WrittenModel
from memplan_cli.runtime.verification.verify import compare_models
from memplan_cli.runtime.workers.spec import SessionSpec

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.api.output.rewriting import RewrittenFiles
    from memplan_cli.core.results.plan import Plan

LAYERS = """
<ir_version: 10, opset_import: ["" : 20]>
net (float[batch,256,64] x) => (float[batch,256,64] y) {
    wide = MatMul(x, up)
    moved = Add(wide, bias)
    bent = Gelu(moved)
    y = MatMul(bent, down)
}
"""
"""A transformer's wide layer with a batch: its Gelu takes the bias, no Gemm does."""

OTHER_BITS = "on this processor the fused kernel gives other bits"

SHAPES = {"up": (64, 512), "bias": (512,), "down": (512, 64)}


@pytest.fixture
def wide_layer(tmp_path: Path) -> Path:
    model = onnx.parser.parse_model(LAYERS)
    generator = np.random.default_rng(0)
    for name, shape in SHAPES.items():
        data = generator.standard_normal(shape, dtype=np.float32)
        model.graph.initializer.append(numpy_helper.from_array(data, name))
    path = tmp_path / "layer.onnx"
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("kind", PROFILE.costly_fusions)
def test_each_fusion_is_made_and_can_be_left_out(
    kind: str, wide_layer: Path, tmp_path: Path
) -> None:
    kinds = []
    for number, settings in enumerate(
        (RuntimeSettings(), without_fusions([PROFILE.costly_fusions[kind]]))
    ):
        dump = tmp_path / f"dump{number}.onnx"
        write_dump(SessionSpec(wide_layer, settings=settings), dump)
        kinds.append({node.op_type for node in onnx.load(dump).graph.node})
    assert kind in kinds[0]
    assert kind not in kinds[1]


def same_bits_without_it(model: Path) -> bool:
    """Whether both kernels give the same bits: each processor has kernels of its own."""
    left_out = without_fusions(["BiasGeluFusion"])
    written = WrittenModel(model, spoiled_by_optimization=True, unoptimized_settings=left_out)
    verdict = compare_models(model, written, Check("cpu", depth="outputs"), Binding()).verdict
    return bool(verdict.bit_identical)


def test_settings_leave_a_costly_fusion_out_and_say_so(wide_layer: Path) -> None:
    if not same_bits_without_it(wide_layer):
        pytest.skip(OTHER_BITS)
    check = Check(provider="cpu", search="measured")
    found = api.settings(wide_layer, Settings(dims={"batch": 1}), check)
    config = found.settings.session_config
    assert config["optimization.disable_specified_optimizers"] == "BiasGeluFusion"
    assert any("BiasGeluFusion" in note for note in found.notes)
    assert found.observed is not None
    assert held_without_weights(found.observed) < 2.5 * 256 * 512 * 4


def test_a_target_competes_without_the_costly_fusion(wide_layer: Path, tmp_path: Path) -> None:
    if not same_bits_without_it(wide_layer):
        pytest.skip(OTHER_BITS)
    out = tmp_path / "out.onnx"
    done = api.optimize(
        wide_layer, Settings(target="cpu", dims={"batch": 1}), out=out, check=Check("cpu")
    )
    assert done.passed
    assert "BiasGelu" not in {node.op_type for node in load_model(out).graph.node}
    data = {path.name for path in tmp_path.iterdir()} - {"layer.onnx", "out.onnx", "out.json"}
    assert data == {"out.unfused.onnx.data"}


def test_weights_of_the_previous_output_are_gone_although_the_graph_with_their_name_failed(
    wide_layer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify = Verifier.verify

    def passes_if_unfused(verifier: Verifier, files: RewrittenFiles) -> Plan:
        plan = verify(verifier, files)
        assert plan.report.validation is not None
        status = "passed" if "unfused" in files.rewriting.file.path.name else "failed"
        validation = replace(plan.report.validation, status=status)
        return plan.with_report(replace(plan.report, validation=validation))

    out, settings = tmp_path / "out.onnx", Settings(target="cpu", dims={"batch": 1})
    api.optimize(wide_layer, settings, out=out, check=None)
    assert (tmp_path / "out.onnx.data").is_file()
    monkeypatch.setattr(Verifier, "verify", passes_if_unfused)
    check = Check("cpu", search="measured")
    assert api.optimize(wide_layer, settings, out=out, check=check).passed
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"layer.onnx", "out.onnx", "out.json", "out.unfused.onnx.data"}


def test_a_program_without_such_fusions_is_tried_once() -> None:
    from builders import block, op, program

    assert costly_fusions(program(block("x", "y", op("y <- x", kind="Gelu")))) == ()
    made = program(block("x", "y", op("y <- x", kind="BiasGelu")))
    assert costly_fusions(made) == ("BiasGeluFusion",)
    assert without_fusions(()) == RuntimeSettings()
