"""Training steps of real networks, in plain ONNX Runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest

from memplan_cli.analysis.storage import live_peak
from memplan_cli.ir import intermediates
from memplan_cli.onnx_io.gradients.optimisers import Optimizer
from memplan_cli.onnx_io.gradients.train_step import Recipe, make_train_step
from memplan_cli.onnx_io.read import read_program
from memplan_cli.sizes import size_of
from shared_models import LIGHT, SHARED, draw_inputs, filled, gradient_tensors, load
from training_runs import Run, session_of, train

if TYPE_CHECKING:
    from pathlib import Path

needs_shared = pytest.mark.skipif(
    not SHARED.exists(), reason=f"the shared models are not at {SHARED}"
)

MADE_BY_PYTORCH = {
    "train_mlp_sgd": "sgd",
    "train_cnn_sgd": "sgd",
    "train_resnet18_momentum": "momentum",
    "train_bert_small_adam": "adam",
}

QUICK = {
    "cond_early_exit": Run(1e-3),
    "wiring_amoeba_cell": Run(1e-3, "mse"),
    "wiring_darts_cell": Run(1e-3, "mse"),
    "wiring_nasnet_cell": Run(1e-3, "mse"),
}

LONG = {
    "bert_base_sdpa": Run(1e-3, "mse"),
    "inception_v3": Run(1e-3),
    "mobilenetv2_ts": Run(1e-3),
    "mobilenetv3_large": Run(1e-3),
    "moe_sparse": Run(1e-3, "mse"),
    "resnet50": Run(1e-3),
    "resnet50_dynbatch": Run(1e-3),
    "scan_lstm": Run(1e-3, "mse"),
    "segformer_b0": Run(1e-3, "mse"),
    "swin_tiny": Run(1e-3),
    "t5_small_decoder": Run(1e-3, "mse"),
    "whisper_tiny_encoder": Run(1e-3, "mse"),
    "wiring_nasnet_a_cifar": Run(1e-3),
    "wiring_randwire_c78_s0": Run(1e-3),
    "wiring_rwcell_n32_s0": Run(1e-3, "mse"),
}

RATES = {"light_inception_v1": 1e-8}
"""Its weights are all equal and large: any other rate blows it up."""


def _with_outputs(model: onnx.ModelProto, names: list[str]) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.output[:]
    copy.graph.output.extend(
        onnx.helper.make_value_info(name, onnx.TypeProto()) for name in names
    )
    return copy


def _run(model: onnx.ModelProto, inputs: dict[str, Any]) -> dict[str, Any]:
    session = session_of(model)
    names = [output.name for output in session.get_outputs()]
    feeds = {value.name: inputs[value.name] for value in session.get_inputs()}
    return dict(zip(names, session.run(names, feeds), strict=True))


@needs_shared
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name[6] in "rb" else [])
        for name in MADE_BY_PYTORCH
    ],
)
def test_gradients_agree_with_those_of_pytorch(name: str, tmp_path: Path) -> None:
    model, inputs = filled(name, tmp_path), draw_inputs(name)
    theirs = gradient_tensors(model)
    step = make_train_step(model, Recipe("loss", None, tuple(theirs)))
    expected = _run(_with_outputs(model, list(dict.fromkeys(theirs.values()))), inputs)
    got = _run(step.model, inputs)
    ours = [output.name for output in step.model.graph.output][1:]
    whole = np.sqrt(sum(np.linalg.norm(expected[g]) ** 2 for g in theirs.values()))
    assert len(ours) == len(theirs)
    for parameter, name_of_ours in zip(step.parameters, ours, strict=True):
        reference = expected[theirs[parameter.name]]
        error = np.linalg.norm(got[name_of_ours] - reference)
        # A key's bias shifts all scores alike: its gradient is zero but for rounding.
        assert error <= 1e-4 * max(np.linalg.norm(reference), 1e-6 * whole), parameter.name


@needs_shared
@pytest.mark.parametrize("name", [*MADE_BY_PYTORCH, "train_mlp_adam", "train_cnn_adam"])
def test_live_peak_is_at_most_a_tenth_above_that_of_pytorch(name: str) -> None:
    model = load(name)
    kind = name.rpartition("_")[2]
    recipe = Recipe("loss", Optimizer(kind), tuple(gradient_tensors(model)))
    ours = _peak(make_train_step(model, recipe).model)
    assert ours <= 1.1 * _peak(model)


def _peak(model: onnx.ModelProto) -> int:
    program = read_program(model).program
    sizes = {
        var: size_of(program.vars[var].shape, program.vars[var].dtype)
        for var in intermediates(program)
    }
    known = {var: size for var, size in sizes.items() if size is not None}
    assert len(known) == len(sizes)
    return live_peak(program, known)


@needs_shared
@pytest.mark.parametrize(
    ("name", "run"),
    [
        *(pytest.param(name, run, id=name) for name, run in QUICK.items()),
        *(
            pytest.param(name, run, id=name, marks=pytest.mark.slow)
            for name, run in LONG.items()
        ),
    ],
)
def test_loss_of_a_forward_model_falls(name: str, run: Run, tmp_path: Path) -> None:
    described = (SHARED / "inputs" / f"{name}.json").exists()
    given = draw_inputs(name) if described else {}
    _, losses = train(filled(name, tmp_path), run, given)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[] if "squeezenet" in path.stem else [pytest.mark.slow])
        for path in sorted(LIGHT.glob("light_*.onnx"))
    ],
    ids=lambda path: str(path.stem),
)
def test_loss_of_a_light_model_falls(path: Path) -> None:
    _, losses = train(onnx.load(path), Run(RATES.get(path.stem, 1e-3)))
    assert losses[-1] < losses[0]
