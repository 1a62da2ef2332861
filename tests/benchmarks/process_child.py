"""One session in a fresh process: what it takes, what it gives, and how long a run lasts.

    python -m tests.benchmarks.process_child MODEL FEED plain|load [serve]

``plain`` is what people do, ``load`` is `memplan_cli.load`; both with one intra-op thread. Prints
one line of JSON. With ``serve`` each line of standard input runs once more and is answered
with the processor milliseconds of that run.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort

from memplan_cli.core.serialization import to_json
from memplan_cli.loading.session import load_session
from memplan_cli.runtime.workers.process_memory import baseline, bytes_beyond, resident

if TYPE_CHECKING:
    from pathlib import Path

RUNS = 3


def plain(path: Path) -> ort.InferenceSession:
    """Return the session that most people create."""
    return ort.InferenceSession(str(path), one_thread(), providers=["CPUExecutionProvider"])


def planned(path: Path) -> ort.InferenceSession:
    """Return the session that the file's metadata asks for."""
    return load_session(path, one_thread())


def one_thread() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return options


HOW = {"plain": plain, "load": planned}


def digest(outputs: list[Any]) -> str:
    """Return what tells two sets of outputs apart, to the bit."""
    found = hashlib.sha256()
    for output in outputs:
        array = np.asarray(output)
        found.update(f"{array.dtype}{array.shape}".encode())
        found.update(np.ascontiguousarray(array).data if array.size else b"")
    return found.hexdigest()[:16]


def main(arguments: list[str]) -> None:
    """Measure one session, and serve runs where asked."""
    from pathlib import Path

    model, feed_file, how = arguments[:3]
    feed = dict(np.load(feed_file, allow_pickle=False))
    before, worked = baseline(), time.process_time()
    session = HOW[how](Path(model))
    created = time.process_time() - worked
    loaded = resident()
    bits = ""
    for _ in range(RUNS):
        outputs = session.run(None, feed)
        bits = bits or digest(outputs)
        del outputs
    found = bytes_beyond(before, loaded, resident())
    assert found
    assert before
    assert loaded
    more = {"stands": loaded.now - before.now, "create": created, "bits": bits}
    print(json.dumps({**to_json(found), **more}), flush=True)
    if "serve" in arguments:
        for _ in sys.stdin:
            worked = time.process_time()
            session.run(None, feed)
            print(1000 * (time.process_time() - worked), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
