"""Know the memory of an ONNX model before it runs, and make it smaller.

    import memplan

    plan = memplan.report("model.onnx", dims={"batch": 8}, extras=["process"])
    print(plan, plan.report.memory.live_peak)
    result = memplan.optimize("model.onnx", dims={"batch": 8})
    session = memplan.load(result.model)  # an InferenceSession, with the settings of the file

Each function does what the command of the same name does, and takes its options as keywords:
``max_memory="1GiB"`` is ``--max-memory 1GiB``. A model is a path, the bytes of a file or an
``onnx.ModelProto``. Settings are keywords or a `Settings`. What a command ends with exit code 2 for
raises `MemplanError`; a check that fails is a result. Nothing is printed.

Look at a model
    report              its plan, or that in a file; with extras=["process"] also the process
    plan                its plan, also by an allocator of your own
    why                 which tensors need the memory, or the parts of the process
    fit                 the largest batch, or other dim, that fits into a size
    diff                what changed between two models or plans
    sweep               a table of many models
    gate                judge models by a limit or a baseline

Write a model
    optimize            in the order that needs least memory, verified against the original; `Optimized`
    train_step          a training step of a forward model
    load                a session with the settings of a written file
    Decoder             prefill and steps of a file with caches in place
    validate            a written model against its original; `Check` says how
    verify_certificate  the proofs of a plan's bounds

ONNX Runtime and the rest
    settings            the runtime options with which a model needs least memory
    soak                requests of changing size, and the memory that they leave
    simulate            dynamic allocators on a run of a model
    pack                buffers of a CSV file into one arena
    doctor              what is installed, and which providers work
    schema              the JSON schema of a file

Classes: `Settings` and `MemParam` (options of a plan), `Check` (how outputs are compared), `Optimized`,
`Decoder`, `MemplanError`. help(memplan.Settings) shows one.
"""

# Everything of `memplan_cli` under the name of the command. `settings` is the function here, and a room
# of the package there.

from __future__ import annotations

from typing import TYPE_CHECKING

import memplan_cli

if TYPE_CHECKING:
    from memplan_cli import *  # noqa: F403 - what it exports, this exports
    from memplan_cli.api.settings import settings as settings  # noqa: PLC0414 - exported

_NAMES = {"settings": "runtime_settings"}
"""Name -> what it is called there, where otherwise."""

_PUBLIC = (*memplan_cli.__all__, "settings")

__all__ = [name for name in _PUBLIC if name.islower() and name not in _NAMES.values()]
"""The functions: ``help(memplan)`` would show all methods of the classes before them."""


def __getattr__(name: str) -> object:
    """Import what is asked for."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(memplan_cli, _NAMES.get(name, name))
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
