"""Runtimes that crash, hang, refuse or are not there, and what memplan makes of them."""

from __future__ import annotations

import os
import time
from pathlib import Path

from .fault_place import ROOT, Ending, Place, judged

_FAKE = """
import importlib, os, sys, time
sys.path.remove(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
del sys.modules["onnxruntime"]
real = importlib.import_module("onnxruntime")

class Session(real.InferenceSession):
    def __init__(self, source, *more, **options):
        data = source if isinstance(source, bytes) else open(source, "rb").read()
        if b"pkg.memplan.plan" in data:
            FAULT
        super().__init__(source, *more, **options)

real.InferenceSession = Session
"""
"""An ONNX Runtime that fails on what memplan wrote, and on nothing else."""


def _with_a_runtime_that(place: Place, fault: str, *words: object) -> Ending:
    package = place.folder.parent / "fake" / "onnxruntime"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(_FAKE.replace("FAULT", fault))
    paths = os.pathsep.join([str(package.parent), str(ROOT)])
    return place.end(*words, env=place.environment(PYTHONPATH=paths))


def runtime_crashes(place: Place) -> Ending:
    words = ("optimize", "model.onnx", "-o", "out.onnx")
    ending = _with_a_runtime_that(place, "os.abort()", *words)
    return judged(ending, 1, "does not run (crash)", place.rubbish())


def runtime_hangs(place: Place) -> Ending:
    words = ("optimize", "model.onnx", "-o", "out.onnx", "--timeout", "10")
    ending = _with_a_runtime_that(place, "time.sleep(600)", *words)
    return judged(ending, 1, "does not run (timeout)", place.rubbish())


def kill_while_the_runtime_hangs(place: Place) -> Ending:
    """Kill memplan itself: no session may live on that nobody waits for."""
    package = place.folder.parent / "fake" / "onnxruntime"
    package.mkdir(parents=True)
    mark = place.folder.parent / "hangs"
    (package / "__init__.py").write_text(
        f"import os, time\nopen({str(mark)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    )
    paths = os.pathsep.join([str(package.parent), str(ROOT)])
    environment = place.environment(PYTHONPATH=paths)
    process = place.start("optimize", "model.onnx", "-o", "out.onnx", env=environment)
    while not mark.exists() or not mark.read_text():
        time.sleep(0.02)
    started = time.perf_counter()
    process.kill()
    process.communicate()
    child = Path(f"/proc/{mark.read_text()}")
    while child.exists() and time.perf_counter() - started < 5:
        time.sleep(0.02)
    wrong = ["the runtime's process lives on"] * child.exists()
    wrong += ["something was written"] * (place.folder / "out.onnx").exists()
    seconds = time.perf_counter() - started
    return Ending(f"signal {-process.returncode}", "", tuple(wrong), seconds)


def runtime_raises(place: Place) -> Ending:
    words = ("optimize", "model.onnx", "-o", "out.onnx")
    ending = _with_a_runtime_that(place, 'raise RuntimeError("no")', *words)
    return judged(ending, 1, "does not run (error)", place.rubbish())


def no_runtime(place: Place) -> Ending:
    package = place.folder.parent / "none" / "onnxruntime"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('raise ImportError("libcudart is missing")')
    paths = os.pathsep.join([str(package.parent), str(ROOT)])
    words = ("optimize", "model.onnx", "-o", "out.onnx")
    ending = place.end(*words, env=place.environment(PYTHONPATH=paths))
    return judged(ending, 2, "libcudart is missing", place.rubbish())
