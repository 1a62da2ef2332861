"""The settings' readers against libraries: lines, seconds, and mistakes named at their place.

`google.protobuf.text_format` reads a prototxt into messages declared here; `ruamel.yaml`, which
memplan does not depend on, reads YAML into maps that know where their keys and values stand.
Both are put in the place of memplan's own readers; the judge behind them stays the same.
"""

from __future__ import annotations

import inspect
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from statistics import median
from time import process_time
from typing import TYPE_CHECKING, Any

from memplan_cli.errors import SettingsError

from .ablation_modules import lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROUNDS = 9

_LC = "_yaml_line_col"
"""Where ruamel.yaml keeps lines and columns of a map or list."""

PROTOTXT_MISTAKES = (
    ("mem_param {\n optimise_train: true }", "2:2"),
    ("mem_param { optimize_train: 2 }", "1:29"),
    ("mem_param { optimize_train: yes }", "1:29"),
    ("mem_param { exclude_blob: fc1 }", "1:27"),
    ("mem_param { exclude_blob: '' }", "1:27"),
    ("mem_param { optimize_train: true optimize_train: true }", "1:34"),
    ("mem_param {}\nmem_param {}", "2:1"),
    ("mem_param { optimize_train true }", "1:28"),
    ("mem_param { optimize_train: }", "1:29"),
    ("mem_param { optimize_train: [true] }", "1:29"),
    ('mem_param { exclude_blob: ["a" { ] }', "1:32"),
    ('mem_param { exclude_blob: ["a"', "1:28"),
    ("mem_param 3", "1:11"),
    ("mem_param {", "1:11"),
    ("layer { mem_param { } }", "1:9"),
    ("layer { ", ""),
    ("}", "1:1"),
    ('\nname: "open', "2:7"),
    ('name: "net"', ""),
)
"""Texts that are refused, and the line and column that memplan names."""

NET = r"""
name: "net { mem_param { }"  # mem_param { optimize_train: false }
layer { name: 'a' type: "Convolution" convolution_param < num_output: 64 > top: "fc1" }
mem_param { optimize_train: true optimize_test: false, exclude_blob: "fc1" exclude_blob: 'f\x32' }
layer { name: "b" blobs { data: [1.5, -2e3] } pool: MAX }
"""

BOMB = "a0: &a0 [x]\n" + "".join(
    f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 9)}]\n" for at in range(1, 10)
)
"""Aliases that come to nine to the power of nine values."""

YAML_MISTAKES = (
    ("level: 3", "1:8"),
    ("levle: 1", "1:1"),
    ("level: 1\nlevel: 2", "2:1"),
    ("level: [1", "1:10"),
    ("mem_param:\n  optimise_train: true", "2:3"),
    ("mem_param: {optimize_train: 1}", "1:29"),
    ("dims: {batch: -1}", "1:15"),
    ("dims:\n  batch: 8\n  seq: many", "3:8"),
    ("mem_param: {exclude_blob: [a, 3]}", "1:31"),
    ("level: !!python/object:os.system 1", "1:8"),
    ("a: &a [*a]", "1:4"),
    ("? [a, b]\n: 1", "1:3"),
    ("alignment: 1:30", "1:12"),
    ("level: 1\n\tphase: test", "2:1"),
    ('order: "auto', "1:13"),
    ("level: !!binary aGk=", "1:8"),
    ("level: !!set {1}", "1:8"),
    ("dims: {? 3 : 4}\nlevel: 2001-01-01", "2:8"),
    (BOMB, "1:5"),
)

PATIENCE = 5.0
"""Seconds after which a text is said not to end."""

YAML = "level: 1\nmem_param:\n  exclude_blob: [fc1, 'head/*']\ndims: {batch: 8, on: 3}\n"


def by_text_format(text: str, source: str) -> Any:  # noqa: ANN401 - a Value
    """Read a prototxt by protobuf's own parser: places of mistakes in its grammar only."""
    from google.protobuf import text_format  # type: ignore[import-untyped]

    from memplan_cli.settings.written import Entry, Place, Value, wrong

    at = Place(source)
    try:
        net = text_format.Parse(text, _net()(), allow_unknown_field=True)
    except text_format.ParseError as error:
        place = Place(source, error.GetLine() or 0, error.GetColumn() or 0)
        raise wrong(place, str(error)) from error
    if not net.HasField("mem_param"):
        raise wrong(at, "no mem_param block")
    entries = []
    for descriptor, value in net.mem_param.ListFields():
        content = value
        if not isinstance(value, bool):
            content = Value(tuple(Value(each, at) for each in value), at, kind="list")
        found = content if isinstance(content, Value) else Value(content, at)
        entries.append(Entry(descriptor.name, at, found))
    block = Entry("mem_param", at, Value(tuple(entries), at, kind="table"))
    return Value((block,), at, kind="table")


def _net() -> Any:  # noqa: ANN401 - a class of messages
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="ablation.proto", package="ablation")
    block = file.message_type.add(name="MemParam")
    field = descriptor_pb2.FieldDescriptorProto
    for number, name in enumerate(("optimize_train", "optimize_test"), start=1):
        block.field.add(
            name=name, number=number, type=field.TYPE_BOOL, label=field.LABEL_OPTIONAL
        )
    block.field.add(
        name="exclude_blob", number=3, type=field.TYPE_STRING, label=field.LABEL_REPEATED
    )
    net = file.message_type.add(name="Net")
    net.field.add(
        name="mem_param", number=1, type=field.TYPE_MESSAGE, label=field.LABEL_OPTIONAL,
        type_name=".ablation.MemParam",
    )  # fmt: skip
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("ablation.Net"))


def by_ruamel(text: str, source: str) -> Any:  # noqa: ANN401 - a Value
    """Read YAML by ruamel.yaml's round-trip loader, whose maps know lines and columns."""
    ruamel = import_module("ruamel.yaml")
    from memplan_cli.settings.written import Entry, Place, Value, wrong

    def place(line: int, column: int) -> Place:
        return Place(source, line + 1, column + 1)

    def value(content: Any, at: Place, depth: int = 0) -> Value:  # noqa: ANN401
        if depth > 20:
            raise wrong(at, "nested too deeply")
        if isinstance(content, dict):
            lc: Any = vars(content)[_LC]
            return Value(
                tuple(
                    Entry(
                        str(key),
                        place(*lc.key(key)),
                        value(v, place(*lc.value(key)), depth + 1),
                    )
                    for key, v in content.items()
                ),
                at,
                kind="table",
            )
        if isinstance(content, list):
            pairs = enumerate(content)
            items = tuple(
                value(v, place(*vars(content)[_LC].item(i)), depth + 1) for i, v in pairs
            )
            return Value(items, at, kind="list")
        return Value(content, at)

    try:
        found = ruamel.YAML(typ="rt", pure=True).load(text)
    except ruamel.error.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = place(mark.line, mark.column) if mark else Place(source)
        raise wrong(at, str(error.problem)) from error
    return value({} if found is None else found, Place(source, 1, 1))


@dataclass(frozen=True)
class Reader:
    """A reader, the lines it takes, and what has to be loaded for it."""

    name: str
    lines: int
    parse: Callable[[str, str], Any]
    imports: str
    good: str
    mistakes: tuple[tuple[str, str], ...]


def readers() -> Iterator[Reader]:
    from memplan_cli.settings.prototxt import parse_prototxt
    from memplan_cli.settings.yaml_text import parse_yaml

    ours, theirs = lines("prototxt"), _length(by_text_format) + _length(_net)
    base = "import memplan_cli.settings.keys, onnx"
    rest: tuple[str, tuple[tuple[str, str], ...]] = (NET, PROTOTXT_MISTAKES)
    yield Reader("prototxt, own", ours, parse_prototxt,
                 f"{base}; import memplan_cli.settings.prototxt", *rest)  # fmt: skip
    yield Reader("prototxt, protobuf.text_format", theirs, by_text_format,
                 f"{base}; import google.protobuf.text_format, google.protobuf.message_factory",
                 *rest)  # fmt: skip
    rest = (YAML, YAML_MISTAKES)
    yield Reader("YAML, own over PyYAML", lines("yaml"), parse_yaml,
                 "import memplan_cli.settings.yaml_text", *rest)  # fmt: skip
    if find_spec("ruamel"):
        yield Reader("YAML, ruamel.yaml", _length(by_ruamel), by_ruamel,
                     "import memplan_cli.settings.keys; from ruamel.yaml import YAML; YAML(typ='rt')",
                     *rest)  # fmt: skip


def _length(function: Callable[..., object]) -> int:
    return len(inspect.getsource(function).splitlines())


HEAD = (
    "reader", "lines", "mistakes refused", "at the same place", "not noticed, or elsewhere",
    "loading, s", "reading, ms",
)  # fmt: skip


def rows() -> Iterator[tuple[str, ...]]:
    """Yield a row for each reader."""
    for reader in readers():
        refused, placed, worse = _judged(reader)
        yield (
            reader.name,
            str(reader.lines),
            f"{refused} of {len(reader.mistakes)}",
            str(placed),
            ", ".join(f"`{text[:60]!r}`" for text in worse[:4])
            + (" .." if len(worse) > 4 else ""),
            f"{loading(reader.imports):.3f}",
            f"{1e3 * _reading(reader):.2f}",
        )


def _judged(reader: Reader) -> tuple[int, int, list[str]]:
    from memplan_cli.settings.keys import read_table

    refused = placed = 0
    worse = []
    signal.signal(signal.SIGALRM, _late)
    for text, wanted in reader.mistakes:
        signal.setitimer(signal.ITIMER_REAL, PATIENCE)
        try:
            read_table(reader.parse(text, "f"))
        except SettingsError as error:
            refused += 1
            found = re.match(r"f(?::(\d+:\d+))?:", str(error))
            if found and (found[1] or "") == wanted:
                placed += 1
                continue
        except (RecursionError, TimeoutError):
            pass
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        worse.append(text)
    return refused, placed, worse


def _late(_signal: int, _frame: object) -> None:
    raise TimeoutError


def _reading(reader: Reader) -> float:
    def once() -> float:
        started = process_time()
        reader.parse(reader.good, "f")
        return process_time() - started

    return median(once() for _ in range(5 * ROUNDS))


def loading(imports: str) -> float:
    """Return processor seconds of a process that imports something, beyond an empty one."""
    code = "import resource; u = resource.getrusage(resource.RUSAGE_SELF); print(u.ru_utime + u.ru_stime)"

    def once(before: str) -> float:
        command = [sys.executable, "-c", f"{before}\n{code}"]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        return float(done.stdout)

    base = "import memplan_cli.settings.keys"
    if "onnx" in imports:
        base += ", onnx"
    pairs = [(once(base), once(imports)) for _ in range(ROUNDS)]
    return median(chain(after - before for before, after in pairs))
