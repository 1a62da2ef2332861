"""Hostile certificates, and hostile settings in the metadata of a model."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from onnx import ModelProto, StringStringEntryProto

from memplan_cli import api
from memplan_cli.loading.settings import RUNTIME, SETTINGS
from memplan_cli.onnx_io.metadata import HARDWARE

from .hostile_commands import SAMPLE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

LOAD = "load"
"""The word for `memplan.load` of a file, which is no command."""

_TERABYTE = 1 << 40
_DEEP = "[" * 100_000


def _certified(folder: Path) -> list[str]:
    """Have a plan with its certificate as ``c.json``, and return the words that check it."""
    out, certificate = folder / "o.onnx", folder / "c.json"
    api.optimize(SAMPLE, out=out, check=None, certificate=certificate)
    return ["verify-certificate", SAMPLE, str(folder / "o.json"), str(certificate)]


def _text(change: Callable[[str], str]) -> Callable[[Path], list[str]]:
    def make(folder: Path) -> list[str]:
        words = _certified(folder)
        path = folder / "c.json"
        path.write_text(change(path.read_text()))
        return words

    return make


def _changed(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], list[str]]:
    def changed(text: str) -> str:
        data = json.loads(text)
        change(data)
        return json.dumps(data)

    return _text(changed)


def _instead(name: str, write: Callable[[Path], object]) -> Callable[[Path], list[str]]:
    """Put something else in the place of one of the files."""

    def make(folder: Path) -> list[str]:
        words = _certified(folder)
        (folder / name).unlink()
        write(folder / name)
        return words

    return make


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(_TERABYTE)


def _states(count: int) -> Callable[[dict[str, Any]], object]:
    def change(data: dict[str, Any]) -> None:
        move = {"nodes": [0], "free": [], "to": 1}
        data["order"] = {
            "bound": 1, "method": "search", "states": [[move]] * count,
        }  # fmt: skip

    return change


def _model(*entries: tuple[str, str], last: bytes = b"") -> bytes:
    """Return a model that loads, with entries in its metadata and bytes behind them."""
    from pathlib import Path

    added = ModelProto(
        metadata_props=[StringStringEntryProto(key=key, value=value) for key, value in entries]
    )
    head: bytes = added.SerializeToString()
    return Path(SAMPLE).read_bytes() + head + last


def _written(data: Callable[[], bytes], word: str) -> Callable[[Path], list[str]]:
    def make(folder: Path) -> list[str]:
        (folder / "m.onnx").write_bytes(data())
        return [word, str(folder / "m.onnx")]

    return make


def _scopes(**scopes: object) -> str:
    empty: dict[str, object] = {
        name: {} for name in ("session", "session_config", "arena", "provider", "run_config")
    }
    return json.dumps({"provider": "CPUExecutionProvider", "settings": {**empty, **scopes}})


_SETTINGS: Mapping[str, str] = {
    "deep JSON": _DEEP,
    "no JSON": "once upon a time",
    "a list": "[1]",
    "a number of 5,000 digits": _scopes(arena={"max_mem": 1}).replace("1}", "9" * 5000 + "}"),
    "an option that loads a library": _scopes(
        session_config={"session.register_custom_ops_library": "evil.so"}
    ),
    "an option that writes a file": _scopes(session={"optimized_model_filepath": "pwned"}),
    "an option whose name steers the terminal": _scopes(session={"\x1b[2J": 1}),
    "a provider that steers the terminal": _scopes().replace("CPUE", "\\u001b[2J"),
    "text for a truth": _scopes(session={"enable_mem_pattern": "no"}),
    "an order of execution that is a method": _scopes(
        session={"execution_order": "__class__"}
    ),
    "a level that is none": _scopes(session={"graph_optimization_level": "ORT_ENABLE_EVIL"}),
    "a number for an order of execution": _scopes(session={"execution_order": 7}),
    "an entry of 1 MB": _scopes(
        session_config={"session.disable_prepacking": "1" * (1 << 20)}
    ),
    "an arena below zero": _scopes(arena={"initial_chunk_size_bytes": -4096}),
    "an arena of 2**62 bytes": _scopes(arena={"initial_chunk_size_bytes": 1 << 62}),
    "an arena of 2**80 bytes": _scopes(arena={"max_mem": 1 << 80}),
    "an arena that is text": _scopes(arena={"max_mem": "much"}),
    "an arena of 1 byte": _scopes(arena={"max_mem": 1}),
    "a strategy that is none": _scopes(arena={"arena_extend_strategy": "kEvil"}),
    "a shrinkage that is none": _scopes(
        run_config={"memory.enable_memory_arena_shrinkage": "gpu:99;;;cpu:-1"}
    ),
    "a binding of what is not there": _scopes(io_binding={"ghost": "\x1b[2J"}),
}
"""What the entry of the settings says."""


_CERTIFICATES: Mapping[str, Callable[[Path], list[str]]] = {
    "an empty file": _text(lambda _: ""),
    "deep JSON": _text(lambda _: _DEEP),
    "half a file": _text(lambda text: text[: len(text) // 2]),
    "a list": _text(lambda _: "[1]"),
    "another schema": _text(lambda text: text.replace("certificate/1", "certificate/9")),
    "a number of 2**80": _changed(lambda data: data["order"].update(bound=1 << 80)),
    "a number of 5,000 digits": _text(
        lambda text: text.replace('"bound":', '"bound":' + "9" * 5000, 1)
    ),
    "a bound below zero": _changed(lambda data: data["order"].update(bound=-1)),
    "a bound that is no number": _text(
        lambda text: text.replace('"bound":', '"bound":NaN', 1)
    ),
    "a method that steers the terminal": _changed(
        lambda data: data["order"].update(method="\x1b[2J")
    ),
    "tensors that steer the terminal": _changed(
        lambda data: data["order"].update(tensors=["\x1b[2J\n::error::"] * 3)
    ),
    "a tensor of half a character": _changed(
        lambda data: data["order"].update(tensors=["\ud800"] * 3)
    ),
    "a tensor's name of 1 MB": _changed(
        lambda data: data["order"].update(tensors=["n" * (1 << 20)])
    ),
    "an unknown key": _changed(lambda data: data.update({"\x1b[2J": 1})),
    "a digest that is none": _changed(lambda data: data.update(plan_sha256="z" * 64)),
    "a search of 30,000 states": _changed(_states(30_000)),
    "half a character": _text(lambda text: text.replace("memplan", "\\ud800", 1)),
    "a pipe": _instead("c.json", os.mkfifo),
    "a device": _instead("c.json", lambda path: path.symlink_to("/dev/zero")),
    "a folder": _instead("c.json", lambda path: path.mkdir()),
    "1 TB that has no byte": _instead("c.json", _sparse),
    "a plan of 1 TB that has no byte": _instead("o.json", _sparse),
    "a plan that is the certificate": _instead(
        "o.json", lambda path: path.symlink_to(path.parent / "c.json")
    ),
}

_FILES: Mapping[str, Callable[[], bytes]] = {
    **{
        name: (lambda text=text: _model((SETTINGS, text)))  # type: ignore[misc]
        for name, text in _SETTINGS.items()
    },
    "settings twice": lambda: _model((SETTINGS, _scopes()), (SETTINGS, _DEEP)),
    "settings of 17 MB": lambda: _model((SETTINGS, " " * (17 << 20))),
    "notes that steer the terminal": lambda: _model(
        (RUNTIME, "\x1b[2J\n::error::"), (HARDWARE, "\x1b[2J")
    ),
    "notes of 1 MB": lambda: _model((RUNTIME, "n" * (1 << 20)), (HARDWARE, "n" * (1 << 20))),
    "metadata that is no text": lambda: _model(last=b"\x72\x04\x0a\x02\xff\xfe"),
    "metadata that says 2**60 bytes follow": lambda: _model(
        last=b"\x72" + b"\x80" * 8 + b"\x10"
    ),
    "metadata longer within than without": lambda: _model(last=b"\x72\x04\x0a\x7fab"),
    "metadata with a number that has no end": lambda: _model(last=b"\x08" + b"\xff" * 20),
    "2,000,000 fields of one byte": lambda: _model(last=b"\x08\x01" * 2_000_000),
    "half a model": lambda: _model()[:5000],
    "zeros": lambda: bytes(4096),
}


def _tricky(word: str) -> Mapping[str, Callable[[Path], list[str]]]:
    """Return files that are none, for whatever reads a model's metadata."""
    made = {
        "a pipe": os.mkfifo,
        "a device": lambda path: path.symlink_to("/dev/zero"),
        "a folder": lambda path: path.mkdir(),
        "1 TB that has no byte": _sparse,
    }

    def case(write: Callable[[Path], object]) -> Callable[[Path], list[str]]:
        def make(folder: Path) -> list[str]:
            write(folder / "m.onnx")
            return [word, str(folder / "m.onnx")]

        return make

    return {name: case(write) for name, write in made.items()}


CASES: Mapping[str, Callable[[Path], list[str]]] = {
    **{f"certificate: {name}": make for name, make in _CERTIFICATES.items()},
    **{
        f"{word}: {name}": make
        for word in ("doctor", LOAD)
        for name, make in {
            **{name: _written(data, word) for name, data in _FILES.items()},
            **_tricky(word),
        }.items()
    },
}
