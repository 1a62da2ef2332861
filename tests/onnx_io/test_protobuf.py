"""The message classes come without the package, and are the package's own all the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx

from memplan_cli.onnx_io.protobuf import messages

ROOT = Path(__file__).parents[2]


def python(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_classes_are_the_packages_where_that_is_there_first() -> None:
    assert messages().ModelProto is onnx.ModelProto


def test_the_classes_are_the_packages_where_that_comes_later() -> None:
    code = """
import sys
from memplan_cli.onnx_io.protobuf import ALONE, messages
ALONE.set(True)
found = messages()
assert "numpy" not in sys.modules and "onnx" not in sys.modules
model = found.ModelProto(ir_version=10)
import onnx
assert onnx.ModelProto is found.ModelProto
assert isinstance(model, onnx.ModelProto)
onnx.checker.check_model(onnx.parser.parse_model(
    '<ir_version: 10, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Abs(x) }'
))
print("same")
"""
    assert python(code) == "same\n"


def test_a_program_that_imports_memplan_gets_the_whole_package() -> None:
    code = """
from memplan_cli.onnx_io.protobuf import messages
found = messages()
import onnx
print(onnx.onnx_ml_pb2 is found)
"""
    assert python(code) == "True\n"


def test_the_types_of_one_node_are_inferred_without_the_package() -> None:
    code = """
import sys
from memplan_cli.onnx_io.protobuf import ALONE, messages
from memplan_cli.onnx_io.shapes.interpret import interpret
ALONE.set(True)
model = messages().ModelProto()
model.opset_import.add(version=17)
model.graph.input.add(name="x").type.tensor_type.elem_type = 1
model.graph.node.add(op_type="Abs", input=["x"], output=["y"])
types = interpret(model).types
print(types["y"].tensor_type.elem_type, "onnx" in sys.modules)
"""
    assert python(code) == "1 False\n"


def test_the_command_writes_a_model_that_says_its_shapes_without_numpy(tmp_path: Path) -> None:
    code = """
import atexit, sys
from memplan_cli.__main__ import main
from memplan_cli.api.output import optimized
optimized._MAX_NODES = 0  # as for a large model, whose process is not predicted
atexit.register(lambda: print(sorted({"numpy", "onnx", "onnxruntime"} & set(sys.modules))))
sys.argv = ["memplan", "optimize", *sys.argv[1:]]
main()
"""
    text = '<ir_version: 10, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Abs(x) }'
    model, out = tmp_path / "m.onnx", tmp_path / "out.onnx"
    onnx.save(onnx.parser.parse_model(text), model)
    words = (str(model), "--no-validate", "--order", "keep", "-o", str(out))
    assert python(code, *words).splitlines()[-1] == "[]"
    assert out.exists()


def test_without_the_module_of_messages_the_package_is_imported() -> None:
    code = """
import importlib.machinery
honest = importlib.machinery.PathFinder.find_spec
importlib.machinery.PathFinder.find_spec = classmethod(
    lambda cls, name, path=None, target=None:
        None if name.endswith("_ml_pb2") and "onnx" not in sys.modules else honest(name, path)
)
import sys
from memplan_cli.onnx_io.protobuf import ALONE, messages
ALONE.set(True)
found = messages()
import onnx
print(found.ModelProto is onnx.ModelProto)
"""
    assert python(code) == "True\n"
