"""Faults that happen to inputs that were given, and to certificates."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import onnx.parser

from .fault_place import Ending, Place, judged

if TYPE_CHECKING:
    from collections.abc import Mapping

NET = (
    '<ir_version: 10, opset_import: ["" : 21]> '
    "g (float[n,4] x) => (float[n,4] y) { a = Relu(x) y = Neg(a) }"
)
GIVEN = ("given.onnx", "given.npz")


def given(place: Place, rows: int) -> tuple[str, ...]:
    """Have a model and its input; return the words that plan it with that."""
    onnx.save(onnx.parser.parse_model(NET), place.folder / GIVEN[0])
    np.savez_compressed(place.folder / GIVEN[1], x=np.zeros((rows, 4), np.float32))
    return ("report", GIVEN[0], "--inputs", GIVEN[1])


def inputs_that_go(place: Place) -> Ending:
    """Have only a part of the archive there, as while somebody is still writing it."""
    words = given(place, 1000)
    path = place.folder / GIVEN[1]
    path.write_bytes(path.read_bytes()[:-40])
    return judged(place.end(*words), 2, "cannot be read", place.rubbish(*GIVEN))


def certificate_of_another_moment(place: Place) -> Ending:
    """Check a certificate against the plan of a later run, which differs from its own."""
    words = ("optimize", "model.onnx", "-o", "out.onnx", "--no-validate", "-q")
    first = place.end(*words, "--certificate", "c.json")
    second = place.end(*words, "--level", "1")
    ending = place.end("verify-certificate", "model.onnx", "out.json", "c.json")
    wrong = [] if first.ended == second.ended == "exit 0" else ["a plan could not be made"]
    wrong += place.rubbish("out.onnx", "out.json", "c.json")
    return judged(ending, 1, "", wrong)


def long_certificate(place: Place) -> tuple[str, ...]:
    """Have a certificate that takes a while to read; return the words that check it."""
    place.end("optimize", "model.onnx", "-o", "out.onnx", "--no-validate", "-q",
              "--certificate", "c.json")  # fmt: skip
    path = place.folder / "c.json"
    data: Mapping[str, object] = json.loads(path.read_text())
    move = {"nodes": [0], "free": [], "to": 1}
    order = {"bound": 1, "method": "search", "states": [[move]] * 900_000}
    path.write_text(json.dumps({**data, "order": order}))
    return ("verify-certificate", "model.onnx", "out.json", "c.json")
