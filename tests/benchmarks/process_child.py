"""One model in a fresh process: what it takes, what it gives, and how long a run lasts.

    python -m tests.benchmarks.process_child MODEL FEED plain|load [serve] [outputs=FILE]

``plain`` is what people do, ``load`` is `memplan_cli.load`; both with one intra-op thread. Prints
one line of JSON. With ``serve`` each line of standard input runs once more and is answered
with the processor milliseconds of that run. ``outputs`` writes those of one more run to an npz file.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from memplan_cli.core.serialization import to_json
from memplan_cli.loading.heap import release_free_memory
from memplan_cli.runtime.workers.process_memory import bytes_beyond, reset_highest, resident

if TYPE_CHECKING:
    import onnxruntime as ort

RUNS = 3

Feed = Mapping[str, Any]
"""Arrays by the name of their input."""

Run = Callable[[Feed], Sequence[Any]]
"""Runs a model once, and returns its outputs as arrays in the order of the model."""

Opener = Callable[[], Callable[[Path, Feed], Run]]
"""Imports a runtime, and returns the function that loads a model for inputs of these shapes."""


def plain() -> Callable[[Path, Feed], Run]:
    """Return what creates the session that most people create."""
    import onnxruntime as ort

    return lambda path, _: runs_of(
        ort.InferenceSession(str(path), one_thread(), providers=["CPUExecutionProvider"])
    )


def planned() -> Callable[[Path, Feed], Run]:
    """Return what creates the session that the file's metadata asks for."""
    from memplan_cli.loading.session import load_session

    return lambda path, _: runs_of(load_session(path, one_thread()))


def one_thread() -> ort.SessionOptions:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return options


def runs_of(session: ort.InferenceSession) -> Run:
    return lambda feed: session.run(None, dict(feed))


HOW: Mapping[str, Opener] = {"plain": plain, "load": planned}


def digest(outputs: Sequence[Any]) -> str:
    """Return what tells two sets of outputs apart, to the bit."""
    found = hashlib.sha256()
    for output in outputs:
        array = np.asarray(output)
        found.update(f"{array.dtype}{array.shape}".encode())
        found.update(np.ascontiguousarray(array).data if array.size else b"")
    return found.hexdigest()[:16]


def main(arguments: list[str], openers: Mapping[str, Opener] = HOW) -> None:
    """Measure one model opened by one of the openers, and serve runs where asked."""
    # Some runtimes print to standard output, which is for answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    model, feed_file, how = arguments[:3]
    feed = dict(np.load(feed_file, allow_pickle=False))
    open_model = openers[how]()
    imported = resident()
    release_free_memory()
    reset_highest()
    before, worked = resident(), time.process_time()
    run = open_model(Path(model), feed)
    created = time.process_time() - worked
    loaded = resident()
    bits = ""
    for _ in range(RUNS):
        outputs = run(feed)
        bits = bits or digest(outputs)
        del outputs
    after = resident()
    found = bytes_beyond(before, loaded, after)
    assert found is not None
    assert imported is not None
    assert before is not None
    assert loaded is not None
    assert after is not None
    more = {
        "stands": loaded.now - before.now,
        "create": created,
        "bits": bits,
        "whole": max(imported.highest, after.highest),
    }
    for argument in arguments[3:]:
        if argument.startswith("outputs="):
            np.savez(argument.removeprefix("outputs="), *run(feed))
    print(json.dumps({**to_json(found), **more}), file=answers)
    if "serve" in arguments:
        for _ in sys.stdin:
            worked = time.process_time()
            run(feed)
            print(1000 * (time.process_time() - worked), file=answers)


if __name__ == "__main__":
    main(sys.argv[1:])
