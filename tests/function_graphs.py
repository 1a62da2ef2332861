"""Random models of functions that call each other, in ONNX's text form."""

from __future__ import annotations

import random

import onnx
import onnx.parser

HEAD = '<ir_version: 10, opset_import: ["" : 21, "m" : 1]>\n'
DOMAIN = '\n<domain: "m", opset_import: ["" : 21, "m" : 1]>\n'

UNARY = ("Neg", "Exp", "Sin", "Abs", "Tanh", "Sigmoid", "Floor", "HardSwish", "Mish", "Cos")
BINARY = ("Add", "Mul", "Max")
Signature = tuple[str, int, int]


def drawn_body(
    rng: random.Random, count: int, given: list[str], callable_: list[Signature]
) -> tuple[str, list[str]]:
    """Return nodes as text, and the values that none of them reads."""
    values, read, lines = list(given), set[str](), []
    for number in range(count):
        name, inputs, outputs = rng.choice(
            callable_ * 2
            + [(kind, 1, 1) for kind in UNARY]
            + [(kind, 2, 1) for kind in BINARY]
        )
        chosen = [rng.choice(values) for _ in range(inputs)]
        made = [f"v{number}_{at}" for at in range(outputs)]
        lines.append(f"{', '.join(made)} = {name}({', '.join(chosen)})")
        read.update(chosen)
        values += made
    return " ".join(lines), [v for v in values if v not in given and v not in read]


def drawn_functions(seed: int, dtype: str, shape: tuple[int, ...]) -> onnx.ModelProto:
    """Return a model of functions that call each other; every value is read."""
    kind = f"{dtype}[{','.join(map(str, shape))}]"
    rng = random.Random(seed)
    functions: list[Signature] = []
    texts = []
    for number in range(rng.randint(1, 4)):
        given = [f"i{at}" for at in range(rng.randint(1, 2))]
        lines, outputs = drawn_body(rng, rng.randint(1, 4), given, functions)
        texts.append(f"f{number} ({', '.join(given)}) => ({', '.join(outputs)}) {{ {lines} }}")
        functions.append((f"m.f{number}", len(given), len(outputs)))
    lines, outputs = drawn_body(rng, rng.randint(3, 8), ["x"], functions)
    results = ", ".join(f"{kind} {name}" for name in outputs)
    graph = f"g ({kind} x) => ({results}) {{ {lines} }}"
    return onnx.parser.parse_model(HEAD + graph + "".join(DOMAIN + text for text in texts))
