"""Defaults of attributes in gradient rules are those of the ONNX standard."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from onnx import AttributeProto, defs, helper

from features.training.forms_arithmetic import ARITHMETIC
from features.training.forms_expanded import EXPANDED
from features.training.forms_layers import LAYERS
from features.training.forms_moves import MOVES
from features.training.gradient_checks import parsed
from memplan_cli.errors import MemplanError
from memplan_cli.features.training.tape import Call
from memplan_cli.features.training.train_step import Recipe, make_train_step

if TYPE_CHECKING:
    from features.training.forms import Forms

FORMS: Forms = {**ARITHMETIC, **LAYERS, **MOVES, **EXPANDED}


def standard_default(kind: str, name: str) -> Any:  # noqa: ANN401 - ONNX's own
    """Return the default of an attribute in the newest version that has it; None without one."""
    schema = defs.get_schema(kind)
    for version in range(schema.since_version, 0, -1):
        known = defs.get_schema(kind, version).attributes
        if name in known:
            value = known[name].default_value
            if value.type == AttributeProto.UNDEFINED:
                return None
            found = helper.get_attribute_value(value)
            return found.decode() if isinstance(found, bytes) else found
    raise LookupError(f"{kind} has no {name}")


@pytest.mark.parametrize("name", FORMS)
def test_defaults_are_those_of_the_standard(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = Call.attribute
    asked: list[tuple[str, str, Any, Any]] = []

    def watched(call: Call, name: str, default: Any = None) -> Any:  # noqa: ANN401
        if call.node.domain in {"", "ai.onnx"}:
            standard = standard_default(call.node.op_type, name)
            asked.append((call.node.op_type, name, default, standard))
        return usual(call, name, default)

    monkeypatch.setattr(Call, "attribute", watched)
    case = FORMS[name]
    model = parsed(
        case, ["loss"], f"{case.body} loss = ReduceSum<keepdims=0>(y)", case.constants
    )
    floats = tuple(n for n, v in case.inputs.items() if v.dtype.kind == "f")
    with suppress(MemplanError):
        make_train_step(model, Recipe("loss", None, floats))
    for kind, attribute, default, standard in asked:
        # With the default None or [] the rule handles a missing attribute itself.
        if standard is not None and default is not None and default != []:
            assert default == pytest.approx(standard), f"{attribute} of {kind}"
