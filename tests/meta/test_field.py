"""What `make field` reads out of hints, and the inputs that it draws."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from benchmarks.field_hints import Followed, Said, follow, offers
from benchmarks.field_shapes import arrays, drawn

HEAD = '<ir_version: 10, opset_import: ["" : 21]> '


GATE = ("gate", "m.onnx", "--dim", "bach=2")


@pytest.mark.parametrize(
    ("hint", "added"),
    [
        ("bind it: --dim batch=8", [("--dim", "batch=8")]),
        ("bind both: --dim a=1 --dim 'b c=2'; --allow-partial leaves them out",
         [("--dim", "a=1", "--dim", "b c=2"), ("--allow-partial",)]),
        ("some are known in a run: --dim x=1 --profile-shapes looks at one",
         [("--dim", "x=1", "--profile-shapes")]),
        ("say it with --shape x:0=1,3,64,64, then again", [("--shape", "x:0=1,3,64,64")]),
        ("say it with --shape NAME=D,D", []),
        ("--timeout SECONDS gives it more", []),
        ("name another file", []),
    ],
)  # fmt: skip
def test_only_options_that_can_be_copied_are_taken_from_a_hint(
    hint: str, added: list[tuple[str, ...]]
) -> None:
    assert offers(hint, GATE) == [(*GATE, *words) for words in added]


def test_a_hint_may_be_another_command_or_take_something_away() -> None:
    assert offers("`memplan doctor` shows what works here", GATE) == [("doctor",)]
    whole = "memplan report 'my model.onnx' --dim batch=1"
    assert offers(whole, GATE) == [("report", "my model.onnx", "--dim", "batch=1")]
    assert offers("leave --dim out", GATE) == [("gate", "m.onnx")]
    assert offers("leave --order out", GATE) == []


def test_a_name_stands_in_place_of_the_one_that_is_wrong() -> None:
    message = "no dim is called 'bach': its dims are batch"
    right = [("gate", "m.onnx", "--dim", "batch=2")]
    assert offers("did you mean 'batch', 'bath'?", GATE, message) == right


def _refused(message: str, hint: str) -> Said:
    return Said(2, "", f"Error: {message}\nHint: {hint}\n")


def _outcomes(first: Said, *later: Said) -> list[str]:
    answers = iter(later)
    found: list[Followed] = follow("m", "gate", ("gate",), first, lambda _: next(answers))
    return [one.outcome for one in found]


def test_hints_are_followed_until_a_command_works() -> None:
    first, second = _refused("no a", "--dim a=1"), _refused("no b", "--dim b=1")
    assert _outcomes(first, second, Said(0, "", "")) == ["another message", "works"]


def test_a_hint_that_leads_to_the_same_message_leads_no_further() -> None:
    first = _refused("no a", "--dim a=1")
    assert _outcomes(first, first) == ["no further"]


def test_an_option_that_the_command_has_not_is_no_way_further() -> None:
    first = _refused("it fails", "add --no-validate")
    assert _outcomes(first, Said(2, "", "Error: No such option: --no-validate")) == ["refused"]


def test_inputs_that_nobody_describes_are_drawn_by_name_rank_and_dtype() -> None:
    text = "g (float[batch,3,h,w] image, int64[batch,seq] ids, float[1,7] fixed, bool flag)"
    model = onnx.parser.parse_model(f"{HEAD}{text} => (y) {{ y = Shape(image) }}")
    shapes = {one.name: one.shape for one in drawn(model, {}, {}, {})}
    assert shapes == {
        "image": (1, 3, 320, 320),
        "ids": (1, 64),
        "fixed": (1, 7),
        "flag": (),
    }


def test_dims_without_a_name_of_their_own_may_differ() -> None:
    text = 'g (float["?",3,"?","?"] x) => (y) { y = Shape(x) }'
    (one,) = drawn(onnx.parser.parse_model(f"{HEAD}{text}"), {}, {}, {})
    assert one.shape == (1, 3, 320, 320)


def test_what_is_said_beside_a_model_goes_before_the_rule() -> None:
    model = onnx.parser.parse_model(f"{HEAD}g (int64[n,seq] ids) => (y) {{ y = Shape(ids) }}")
    told = {"ids": {"shape": [2, 24], "gen": "randint 5 250"}}
    (one,) = drawn(model, {"ids": (9, 9)}, {}, told)
    assert (one.shape, one.dtype, one.low, one.high) == ((2, 24), "int64", 5, 249)
    made = arrays([one])["ids"]
    assert made.shape == (2, 24)
    assert made.dtype == "int64"
    assert 5 <= made.min() <= made.max() <= 249
    assert np.array_equal(made, arrays([one])["ids"])


def test_a_value_that_a_model_compares_with_what_it_knows_is_drawn_as_it_is() -> None:
    model = onnx.parser.parse_model(
        f"{HEAD}g (int64 sr, string[n] s) => (y) {{ y = Neg(sr) }}"
    )
    made = arrays(drawn(model, {}, {"sr": 16000}, {}))
    assert (made["sr"].shape, int(made["sr"])) == ((), 16000)
    assert made["s"].dtype.kind == "U"
