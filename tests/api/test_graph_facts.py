"""What a model tells a page of its nodes and tensors."""

from __future__ import annotations

import shutil
from pathlib import Path

from memplan_cli import api
from memplan_cli.api.graph_facts import facts_for
from memplan_cli.reporting.pages.graph_facts import category
from memplan_cli.settings.settings import Settings

SAMPLES = Path(__file__).parents[2] / "sample_models"


def test_a_model_tells_types_and_what_is_given() -> None:
    model = SAMPLES / "branchy_cnn.onnx"
    plan = api.report(model)
    facts = facts_for(model, plan)
    assert facts is not None
    assert facts.type_of("b0_conv/Conv") == "Conv"
    assert facts.given["weights"] == plan.report.memory.weights
    assert facts.given["inputs"] == plan.report.memory.inputs


def test_a_training_step_tells_gradients_and_the_update() -> None:
    model = SAMPLES / "train_mlp.onnx"
    plan = api.report(model)
    facts = facts_for(model, plan)
    assert facts is not None
    kinds = {category(tensor, facts) for tensor in plan.tensors}
    assert {"activations", "gradients"} <= kinds


def test_nodes_of_subgraphs_have_types_by_the_label_of_their_plan() -> None:
    model = SAMPLES / "nested_if_loop.onnx"
    plan = api.report(model)
    facts = facts_for(model, plan)
    assert facts is not None
    nodes = [f"{o.block}/{n}" if o.block else n for o in plan.order for n in o.nodes]
    assert all(facts.type_of(node) for node in nodes)


def test_a_plan_finds_its_model_beside_it_unless_that_is_another(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    shutil.copyfile(SAMPLES / "branchy_cnn.onnx", model)
    plan = api.report(model, Settings())
    named = tmp_path / "m.memplan.json"
    named.write_text(plan.dumps())
    assert facts_for(named, plan) is not None
    shutil.copyfile(SAMPLES / "train_mlp.onnx", model)
    assert facts_for(named, plan) is None
    model.unlink()
    assert facts_for(named, plan) is None
