"""One model in one runtime, in a fresh process of that runtime's environment.

    python -m tests.benchmarks.runtimes_child convert RUNTIME FOLDER
    python -m tests.benchmarks.runtimes_child MODEL FEED RUNTIME [serve] [outputs=FILE]

``convert`` writes the runtime's file from ``default.onnx`` in the folder. The second form is that of
`process_child`, whose meter measures every runtime. Each runs with one thread, in float32, and with its
own options for low memory. Environments of runtimes have NumPy and the runtime only.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from . import process_child
from .process_child import Feed, Opener, Run, one_thread, runs_of

Load = Callable[[Path, Feed], Run]


# ---- ONNX Runtime ----


def onnxruntime_options() -> Load:
    """ONNX Runtime with the options that people copy: nothing is packed, and there is no arena."""
    import onnxruntime as ort

    def load(path: Path, _: Feed) -> Run:
        options = one_thread()
        options.enable_cpu_mem_arena = False
        options.enable_mem_pattern = False
        options.add_session_config_entry("session.disable_prepacking", "1")
        return runs_of(ort.InferenceSession(str(path), options, ["CPUExecutionProvider"]))

    return load


# ---- MNN ----

_WEIGHTS, _ACTIVATIONS = 2, 1
"""What a folder of `RuntimeManager::setExternalPath` is for."""


def mnn() -> Load:
    """MNN with low memory; it maps weights and activations from files that it makes itself."""
    from MNN import expr, nn

    def load(path: Path, feed: Feed) -> Run:
        settings = {"backend": "CPU", "precision": "high", "memory": "low", "numThread": 1}
        manager = nn.create_runtime_manager((settings,))
        manager.set_external(f"{path}.weight")
        _map_memory(manager, path.parent)
        outputs = (path.parent / "outputs.txt").read_text().splitlines()
        module = nn.load_module_from_file(
            str(path), [*feed], outputs, runtime_manager=manager,
            shape_mutable=False, rearrange=True,
        )  # fmt: skip

        def run(feed: Feed) -> list[Any]:
            variables = []
            for array in feed.values():
                is_float = array.dtype.kind == "f"
                values = np.ascontiguousarray(array, np.float32 if is_float else np.int32)
                kind = expr.float if is_float else expr.int
                variables.append(expr.const(values, values.shape, expr.NCHW, kind))
            results = module.forward(variables)
            results = results if isinstance(results, list | tuple) else [results]
            return [expr.convert(result, expr.NCHW).read() for result in results]

        return run

    return load


def _map_memory(manager: object, folder: Path) -> None:
    """Let a RuntimeManager map its memory from files in a folder, which Python has no function for.

    The object of Python holds a pointer to a shared pointer behind its 16 bytes of header. The library is
    built with the strings of GCC 4, which are one pointer.
    """
    import _mnncengine

    text = ctypes.c_void_p()
    make_string = ctypes.CDLL("libstdc++.so.6")._ZNSsC1EPKcRKSaIcE
    make_string(ctypes.byref(text), str(folder).encode(), ctypes.byref(ctypes.c_char()))
    shared_pointer = ctypes.POINTER(ctypes.c_void_p).from_address(id(manager) + 16)
    library = ctypes.CDLL(_mnncengine.__file__)
    name = "_ZN3MNN7Express8Executor14RuntimeManager15setExternalPathESsi"
    for purpose in (_WEIGHTS, _ACTIVATIONS):
        library[name](ctypes.c_void_p(shared_pointer[0]), ctypes.byref(text), purpose)


def convert_mnn(folder: Path) -> None:
    """Write mnn.mnn, its weights in a file beside it, and the names of the outputs."""
    import _tools  # MNN's command `mnnconvert` also installs packages and sends a log

    os.chdir(folder)  # the converter leaves a file in the current folder
    source, target = folder / "default.onnx", folder / "mnn.mnn"
    words = ["mnnconvert", "-f", "ONNX", "--modelFile", str(source), "--MNNModel", str(target)]
    _tools.mnnconvert([*words, "--saveExternalData"])


# ---- OpenVINO ----


def openvino() -> Load:
    """OpenVINO in float32, from its own format, whose weights are mapped, with a cached model."""
    import openvino as ov

    def load(path: Path, _: Feed) -> Run:
        model = ov.Core().compile_model(str(path), "CPU", _openvino_settings(path.parent))

        def run(feed: Feed) -> list[Any]:
            results = model(dict(feed))
            return [np.array(results[output]) for output in model.outputs]

        return run

    return load


def _openvino_settings(folder: Path) -> dict[str, Any]:
    return {
        "INFERENCE_NUM_THREADS": 1,
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": "f32",
        "CACHE_DIR": str(folder / "openvino_cache"),
        "CACHE_MODE": "OPTIMIZE_SIZE",
    }


def convert_openvino(folder: Path) -> None:
    """Write openvino.xml with its weights, and the cache that later sessions read."""
    import openvino as ov

    model = ov.convert_model(folder / "default.onnx")
    ov.save_model(model, folder / "openvino.xml", compress_to_fp16=False)
    ov.Core().compile_model(str(folder / "openvino.xml"), "CPU", _openvino_settings(folder))


# ---- tract ----


def tract() -> Load:
    """tract reads ONNX itself."""
    import tract as runtime

    def load(path: Path, _: Feed) -> Run:
        model = runtime.onnx().load(path)
        names = [model.input_name(index) for index in range(model.input_count())]
        runnable = model.into_model().into_runnable()
        return lambda feed: [
            each.to_numpy() for each in runnable.run([feed[name] for name in names])
        ]

    return load


# ---- LiteRT ----


def litert() -> Load:
    """LiteRT with its default kernels; images are channels last, as its converter writes them."""
    from ai_edge_litert.interpreter import Interpreter

    def load(path: Path, _: Feed) -> Run:
        interpreter = Interpreter(str(path), num_threads=1)
        interpreter.allocate_tensors()
        inputs = {each["name"]: each for each in interpreter.get_input_details()}
        outputs = interpreter.get_output_details()

        def run(feed: Feed) -> list[Any]:
            for name, array in feed.items():
                shape = tuple(inputs[name]["shape"])
                values = array if array.shape == shape else np.moveaxis(array, 1, -1)
                interpreter.set_tensor(inputs[name]["index"], values)
            interpreter.invoke()
            return [interpreter.get_tensor(each["index"]) for each in outputs]

        return run

    return load


def convert_litert(folder: Path) -> None:
    """Write default_float32.tflite."""
    words = ["-i", str(folder / "default.onnx"), "-o", str(folder), "-n", "-v", "error"]
    subprocess.run([sys.executable, "-m", "onnx2tf", *words], check=True)


# ---- ncnn ----


def ncnn() -> Load:
    """The runtime ncnn in float32 with recycled blobs; its tensors have no batch axis."""
    import ncnn as runtime

    def load(path: Path, _: Feed) -> Run:
        net = runtime.Net()
        net.opt.num_threads = 1
        net.opt.lightmode = True
        for kind in ("fp16_packed", "fp16_storage", "fp16_arithmetic"):
            setattr(net.opt, f"use_{kind}", False)
        if net.load_param(str(path)) or net.load_model(str(path.with_suffix(".bin"))):
            raise ValueError("a layer is not known")

        def run(feed: Feed) -> list[Any]:
            extractor = net.create_extractor()
            for name, array in zip(net.input_names(), feed.values(), strict=True):
                if len(array) != 1:
                    raise ValueError(
                        f"an input is a batch of {len(array)}, and ncnn has no batches"
                    )
                values = array.astype(np.int32) if array.dtype == np.int64 else array
                extractor.input(name, runtime.Mat(np.ascontiguousarray(values[0])).clone())
            results = [extractor.extract(name) for name in net.output_names()]
            if any(status for status, _ in results):
                raise ValueError("a layer failed")
            return [np.array(result) for _, result in results]

        return run

    return load


def convert_ncnn(folder: Path) -> None:
    """Write default.ncnn.param and default.ncnn.bin in float32."""
    import importlib.util

    package = importlib.util.find_spec("pnnx")
    assert package is not None
    assert package.origin is not None
    # The package's Python module needs PyTorch, the program in it does not.
    program = next(p for p in Path(package.origin).parent.rglob("pnnx") if p.is_file())
    subprocess.run([program, "default.onnx", "fp16=0"], check=True, cwd=folder)


OPENERS: Mapping[str, Opener] = {
    "defaults": process_child.plain,
    "options": onnxruntime_options,
    "memplan": process_child.planned,
    "chunks": process_child.planned,
    "mnn": mnn,
    "openvino": openvino,
    "tract": tract,
    "litert": litert,
    "ncnn": ncnn,
}

CONVERTERS: Mapping[str, Callable[[Path], None]] = {
    "mnn": convert_mnn,
    "openvino": convert_openvino,
    "litert": convert_litert,
    "ncnn": convert_ncnn,
}


if __name__ == "__main__":
    if sys.argv[1] == "convert":
        CONVERTERS[sys.argv[2]](Path(sys.argv[3]))
    else:
        process_child.main(sys.argv[1:], OPENERS)
