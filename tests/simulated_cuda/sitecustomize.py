"""A simulated CUDA device, for processes whose ``PYTHONPATH`` begins with this folder. For tests only.

Python imports this module when it starts. Sessions that ask for CUDA then run on the CPU and report CUDA: the arena
that they register is the CPU's, their profile names CUDA, and device memory is memory of the process. The variable
``SIMULATED_CUDA`` is how the device behaves. A process that is forked from one that works may have another value:

    works            as described
    old driver       sessions fail with the error of a driver that is too old
    no libraries     ONNX Runtime's preloading prints what it cannot load, and sessions are on the CPU
    unusable         sessions are on the CPU, without a reason
    full after N     run N + 1 of each process fails, because the device has no memory left
    full if written  runs of files that memplan wrote fail in this way
    noisy            outputs differ by about 1e-5 from run to run, and by 1e-6 from process to process
"""

# ONNX Runtime has no types, and this module replaces much of it.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN002, ANN003, ANN201, ANN202, ARG001
from __future__ import annotations

import ctypes
import importlib.abc
import importlib.machinery
import os
import random
import sys
from pathlib import Path

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"

OLD_DRIVER = (
    "/onnxruntime_src/onnxruntime/core/providers/cuda/cuda_call.cc:134 std::conditional_t<THRW, void, "
    "common::Status> CudaCall(...) CUDA failure 35: CUDA driver version is insufficient for CUDA runtime "
    "version ; GPU=0 ; hostname=host ; file=cuda_execution_provider_info.cc ; line=70 ; expr=..."
)

FULL = (
    "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running Conv node. "
    "Name:'stage/conv' Status Message: /onnxruntime_src/onnxruntime/core/framework/bfc_arena.cc:376 void* "
    "onnxruntime::BFCArena::AllocateRawInternal(...) Failed to allocate memory for requested buffer of size 1048576"
)

UNUSABLE = (
    "[ONNXRuntimeError] : 1 : FAIL : This session contains graph nodes that are assigned to the default CPU EP, but "
    "fallback to CPU EP has been explicitly disabled by the user."
)

BLOCK = 1 << 21
"""Bytes of a block of device memory; blocks are not shared."""

NO_FALLBACK = "session.disable_cpu_ep_fallback"


def mode() -> str:
    return os.environ.get("SIMULATED_CUDA", "")


class FakeRuntime:
    """The functions of the CUDA runtime that memplan calls; device memory is memory of this process."""

    @staticmethod
    def cudaMemset(address: ctypes.c_void_p, value: int, size: ctypes.c_size_t) -> int:  # noqa: N802
        ctypes.memset(address, value, size.value)
        return 0

    @staticmethod
    def cudaMemcpy(  # noqa: N802
        target: ctypes.c_void_p, source: ctypes.c_void_p, size: ctypes.c_size_t, _: int
    ) -> int:
        ctypes.memmove(target, source, size.value)
        return 0

    @staticmethod
    def cudaMalloc(_: object, size: ctypes.c_size_t) -> int:  # noqa: N802
        State.free -= -(-size.value // BLOCK) * BLOCK
        return 0

    @staticmethod
    def cudaMemGetInfo(free: object, _: object) -> int:  # noqa: N802
        free._obj.value = State.free
        return 0

    @staticmethod
    def cudaDeviceSynchronize() -> int:  # noqa: N802
        return 0


def simulate_driver() -> None:
    """Let the libraries of the driver and of the runtime of CUDA be loaded."""
    load = ctypes.CDLL

    class Library(load):
        def __new__(cls, name: str | None, *arguments: object, **more: object) -> object:
            if name and name.startswith("libcuda.so"):
                return object()
            if name and name.startswith("libcudart"):
                return FakeRuntime()
            return load(name, *arguments, **more)

    ctypes.CDLL = Library


class State:
    """The runs of this process so far, and the free bytes of the device."""

    runs = 0
    free = 1 << 34


def has_no_fallback(options: object) -> bool:
    try:
        return options.get_session_config_entry(NO_FALLBACK) == "1"
    except RuntimeError:  # it is not set
        return False


def is_written(model: object) -> bool:
    return isinstance(model, str) and b"pkg.memplan.plan" in Path(model).read_bytes()


def simulate_runtime(ort: object) -> None:
    """Replace what ONNX Runtime's Python module does for CUDA."""
    session_class, values = ort.InferenceSession, ort.OrtValue
    create, register = session_class.__init__, ort.create_and_register_allocator

    def init(self, model, options=None, providers=None, **more):
        names = [p if isinstance(p, str) else p[0] for p in providers or [CPU]]
        if CUDA not in names:
            create(self, model, options, providers=providers, **more)
            return
        if mode() == "old driver":
            raise RuntimeError(OLD_DRIVER)
        if options is not None and has_no_fallback(options):
            if mode() == "unusable":
                raise RuntimeError(UNUSABLE)
            options.add_session_config_entry(NO_FALLBACK, "0")
        create(self, model, options, providers=[CPU], **more)
        if mode() not in ("no libraries", "unusable"):
            self.on_cuda = True
            self.is_full = mode() == "full if written" and is_written(model)

    def providers_of(self):
        return (
            [CUDA, CPU] if getattr(self, "on_cuda", False) else original["get_providers"](self)
        )

    def checked(name):
        def run(self, *arguments, **more):
            if getattr(self, "on_cuda", False):
                State.runs += 1
                after = mode().removeprefix("full after ")
                if self.is_full or (after.isdecimal() and State.runs > int(after)):
                    raise RuntimeError(FULL)
            outputs = original[name](self, *arguments, **more)
            if mode() == "noisy" and name == "run":
                noise = 1e-5 * (State.runs % 2) + 1e-6 * random.random()
                outputs = [value + value.dtype.type(noise) for value in outputs]
            return outputs

        return run

    def end_profiling(self):
        path = original["end_profiling"](self)
        if getattr(self, "on_cuda", False):
            profile = Path(path)
            profile.write_text(profile.read_text().replace(CPU, CUDA))
        return path

    names = (
        "get_providers",
        "run",
        "run_with_ort_values",
        "run_with_iobinding",
        "end_profiling",
    )
    original = {name: getattr(session_class, name) for name in names}
    session_class.__init__ = init
    session_class.get_providers = providers_of
    session_class.end_profiling = end_profiling
    for name in names[1:4]:
        setattr(session_class, name, checked(name))

    def register_any(provider, memory, options, arena):
        device, kinds = ort.OrtMemType.DEFAULT, ort.OrtAllocatorType
        host = ort.OrtMemoryInfo("Cpu", kinds.ORT_ARENA_ALLOCATOR, 0, device)
        register(host, arena)

    ort.create_and_register_allocator_v2 = register_any

    def on_host(function):
        def call(*arguments, **more):
            return function(
                *("cpu" if isinstance(a, str) and a == "cuda" else a for a in arguments),
                **more,
            )

        return call

    for name in ("ortvalue_from_numpy", "ortvalue_from_shape_and_type"):
        setattr(values, name, staticmethod(on_host(getattr(values, name))))
    binding = ort.IOBinding
    for name in ("bind_input", "bind_output"):
        setattr(binding, name, on_host(getattr(binding, name)))

    def preload_dlls() -> None:
        if mode() == "no libraries":
            print("Failed to load libcublasLt.so.13: cannot open shared object file")
            print("Failed to load libcudart.so.13: cannot open shared object file")

    ort.preload_dlls = preload_dlls


class Finder(importlib.abc.MetaPathFinder):
    """Changes ONNX Runtime when it is imported."""

    def find_spec(self, name, path=None, target=None):
        """Return the spec of ONNX Runtime with a loader that changes it; None for other modules."""
        if name != "onnxruntime":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            simulate_runtime(module)

        spec.loader.exec_module = exec_module
        return spec


if mode():
    simulate_driver()
    sys.meta_path.insert(0, Finder())
