"""A model, the change that keeps one of its tensors alive longer, and a command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
from click.testing import CliRunner
from onnx import parser

import memplan_cli.cli as command_line

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

_HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'

_MODEL = """
story (float[64,256] x) => (float[64,256] y) {
    [early_node] early = Transpose(x)
    [scores_node] scores = MatMul(x, early)
    [softmax_node] weights = Softmax(scores)
    [mix_node] mixed = MatMul(weights, x)
    [wide_node] wide = Concat <axis = 1> (mixed, x, mixed, x)
    [tall_node] tall = Transpose(wide)
    [gram_node] gram = MatMul(wide, tall)
    [last_node] LAST
}
"""

GOOD = _MODEL.replace("LAST", "y = MatMul(gram, x)")
"""``early`` dies at the second node."""

LONGER = _MODEL.replace("LAST", "y = Gemm <transB = 1> (gram, early)")
"""The last node reads ``early``, which now waits through the peak."""

SMALLER = _MODEL.replace("(mixed, x, mixed, x)", "(mixed, x)").replace(
    "LAST", "y = MatMul(gram, x)"
)
"""Half as wide: a gain."""


COMMANDS = """
import json, sys
from click.testing import CliRunner
from memplan_cli.cli import main

def end(line):
    done = CliRunner().invoke(main, line.split(), catch_exceptions=False)
    return done.exit_code, done.stdout, done.stderr

print(json.dumps([end(line) for line in sys.argv[1:]]))
"""
"""A script that runs several commands, and prints the exit code, stdout and stderr of each as JSON."""


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(parser.parse_model(_HEAD + text), path)
    return path


def memplan(*words: object) -> Result:
    """Run a command in this process: its exit code, stdout and stderr."""
    done = CliRunner().invoke(command_line.main, [str(word) for word in words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done
