"""Hostile inputs for runs: archives, tensors and JSON that lie about what they hold."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile
import zlib
from typing import TYPE_CHECKING

import numpy as np
import onnx.parser
from numpy.lib import format as npy
from onnx import TensorProto, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

NET = (
    '<ir_version: 10, opset_import: ["" : 21]> '
    "g (float[n,4] x, int64[k] ids, string[s] words) => (float[n,4] y, int64[k] i) "
    "{ a = Relu(x) y = Neg(a) i = Abs(ids) }"
)
SPARSE = 1 << 40
"""Bytes that a file says it has, and of which none is on the disk."""


class _Shell:
    """What a pickle can do: run a command."""

    def __init__(self, folder: Path) -> None:
        self._command = f"touch {folder / 'pwned'}"

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (self._command,)


def _net(folder: Path, name: str) -> list[str]:
    onnx.save(onnx.parser.parse_model(NET), folder / "m.onnx")
    return ["report", str(folder / "m.onnx"), "--inputs", str(folder / name)]


def _given(name: str, write: Callable[[Path], object]) -> Callable[[Path], list[str]]:
    def make(folder: Path) -> list[str]:
        write(folder / name)
        return _net(folder, name)

    return make


def _header(shape: str, descr: str = "'<f4'") -> bytes:
    """Return the head of a numpy file that says whatever it wants."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return npy.magic(1, 0) + struct.pack("<H", len(text)) + text


def _array(*shape: int) -> bytes:
    file = io.BytesIO()
    np.save(file, np.zeros(shape, np.float32))
    return file.getvalue()


def _npz(*members: tuple[str, bytes]) -> Callable[[Path], list[str]]:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members:
                archive.writestr(name, content)

    return _given("i.npz", write)


def _pickled(path: Path) -> None:
    file = io.BytesIO()
    np.save(file, np.array([_Shell(path.parent)], dtype=object), allow_pickle=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", file.getvalue())


def _bare_pickle(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", pickle.dumps(_Shell(path.parent)))


def bomb(head: bytes, megabytes: int, path: Path, name: str = "x.npy") -> None:
    """Write an archive of one member whose few bytes unpack to so many megabytes of zeros."""
    block = bytes(1 << 20)
    pack = zlib.compressobj(9, zlib.DEFLATED, -15)
    start = pack.compress(head) + pack.flush(zlib.Z_FULL_FLUSH)
    once = pack.compress(block) + pack.flush(zlib.Z_FULL_FLUSH)
    data = start + once * megabytes + pack.flush()
    digest = zlib.crc32(head)
    for _ in range(megabytes):
        digest = zlib.crc32(block, digest)
    _member(path, name, data, len(head) + (megabytes << 20), digest, method=8)


def _member(
    path: Path, name: str, data: bytes, size: int, digest: int = 0, *, method: int = 0,
    flags: int = 0,
) -> None:  # fmt: skip
    """Write an archive whose one entry says what it is told to say."""
    sizes = struct.pack("<3I", digest, len(data), min(size, 0xFFFFFFFF))
    wide = struct.pack("<2HQ", 1, 8, size) if size > 0xFFFFFFFE else b""
    sizes = sizes if not wide else struct.pack("<3I", digest, len(data), 0xFFFFFFFF)
    label = name.encode()
    common = struct.pack("<5H", 45, flags, method, 0, 33) + sizes
    local = b"PK\3\4" + common + struct.pack("<2H", len(label), len(wide)) + label + wide
    central = b"PK\1\2" + struct.pack("<H", 45) + common
    central += struct.pack("<2H", len(label), len(wide)) + bytes(6) + bytes(4) + bytes(4)
    central += label + wide
    end = b"PK\5\6" + struct.pack("<4H", 0, 0, 1, 1)
    end += struct.pack("<2IH", len(central), len(local) + len(data), 0)
    path.write_bytes(local + data + central + end)


def _lying(size: int, data: bytes) -> Callable[[Path], list[str]]:
    return _given("i.npz", lambda path: _member(path, "x.npy", data, size, zlib.crc32(data)))


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(SPARSE)


def _pb(
    write: Callable[[Path], object], name: str = "input_0.pb"
) -> Callable[[Path], list[str]]:
    """Give a folder with one tensor's file in it."""

    def make(folder: Path) -> list[str]:
        (folder / "data").mkdir()
        write(folder / "data" / name)
        return _net(folder, "data")

    return make


def _tensor(tensor: TensorProto, cut: int | None = None) -> Callable[[Path], list[str]]:
    return _pb(lambda path: path.write_bytes(tensor.SerializeToString()[:cut]))


def _says(**fields: object) -> TensorProto:
    return TensorProto(**{"name": "x", "data_type": TensorProto.FLOAT, **fields})


def _elsewhere(place: str) -> TensorProto:
    tensor = _says(dims=[1, 4], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=place)
    return tensor


def _json(text: str) -> Callable[[Path], list[str]]:
    return _given("i.json", lambda path: path.write_text(text))


def _x(entry: str) -> Callable[[Path], list[str]]:
    return _json(f'{{"x": {entry}}}')


def _word(text: str) -> Callable[[Path], list[str]]:
    def make(folder: Path) -> list[str]:
        return [*_net(folder, "")[:2], "--input", text]

    return make


def _good(path: Path) -> bytes:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", _GOOD)
    return path.read_bytes()


def _three(path: Path) -> None:
    """Write three members that each are within the limit, and together are not."""
    bomb(_header(f"({96 << 20}, 4)"), 1536, path)
    with zipfile.ZipFile(path) as archive:
        (one,) = archive.infolist()
    begin = one.header_offset + 30 + len(one.filename)
    _repeat(path, one, path.read_bytes()[begin : begin + one.compress_size])


def _repeat(path: Path, one: zipfile.ZipInfo, data: bytes) -> None:
    """Write the same packed bytes under three names."""
    local, central, place = b"", b"", 0
    for name in (b"x.npy", b"ids.npy", b"words.npy"):
        common = struct.pack("<5H", 45, 0, 8, 0, 33)
        common += struct.pack("<3I", one.CRC, len(data), one.file_size)
        entry = b"PK\3\4" + common + struct.pack("<2H", len(name), 0) + name + data
        central += (
            b"PK\1\2" + struct.pack("<H", 45) + common + struct.pack("<2H", len(name), 0)
        )
        central += bytes(10) + struct.pack("<I", place) + name
        local += entry
        place += len(entry)
    end = b"PK\5\6" + struct.pack("<4H", 0, 0, 3, 3)
    path.write_bytes(local + central + end + struct.pack("<2IH", len(central), place, 0))


def _many(folder: Path) -> list[str]:
    (folder / "data").mkdir()
    for at in range(5_000):
        (folder / "data" / f"input_{at}.pb").touch()
    return _net(folder, "data")


def _loop(folder: Path) -> list[str]:
    (folder / "data").mkdir()
    (folder / "data" / "data").symlink_to(folder / "data")
    return _net(folder, "data")


_GOOD = _array(2, 4)
_WHOLE = numpy_helper.from_array(np.zeros((64, 4), np.float32), "x")
_DEEP = "[" * 100_000

CASES: Mapping[str, Callable[[Path], list[str]]] = {
    "inputs: an archive with a pickle for an array": _given("i.npz", _pickled),
    "inputs: an archive with a pickle for a file": _given("i.npz", _bare_pickle),
    "inputs: an archive of 1 MB that unpacks to 1 GB, of another type": _given(
        "i.npz", lambda path: bomb(_header(f"({1 << 28}, 4)", "'|i1'"), 1024, path)
    ),
    "inputs: an archive of 1 MB that unpacks to 1 GB and says 16 bytes": _given(
        "i.npz", lambda path: bomb(_header("(1, 4)"), 1024, path)
    ),
    "inputs: three arrays of 1.5 GB in one archive": _given("i.npz", _three),
    "inputs: an archive in an archive": _npz(("x.npy", _GOOD), ("y.npz", b"PK\3\4")),
    "inputs: a member of 2**40 bytes that has 4": _lying(1 << 40, _header(f"({1 << 36}, 4)")),
    "inputs: a member that says less than it has": _lying(20, _GOOD),
    "inputs: a member with a path out of the folder": _npz(("../../pwned.npy", _GOOD)),
    "inputs: a member at an absolute path": _npz(("/etc/pwned.npy", _GOOD)),
    "inputs: a member whose name steers the terminal": _npz(("\x1b[2J\n::error::.npy", _GOOD)),
    "inputs: a member that is there twice": _npz(("x.npy", _GOOD), ("x", _GOOD)),
    "inputs: a member that needs a password": _given(
        "i.npz", lambda path: _member(path, "x.npy", _GOOD, len(_GOOD), flags=1)
    ),
    "inputs: a member of an unknown compression": _given(
        "i.npz", lambda path: _member(path, "x.npy", _GOOD, len(_GOOD), method=77)
    ),
    "inputs: an array with a wrong checksum": _given(
        "i.npz", lambda path: _member(path, "x.npy", _GOOD, len(_GOOD), 1)
    ),
    "inputs: a head that is a program": _npz(
        ("x.npy", _header("__import__('os').system('touch pwned')"))
    ),
    "inputs: a head in 5,000 brackets": _npz(("x.npy", _header("(" * 5000 + ")" * 5000))),
    "inputs: a head with a shape of 2**70": _npz(("x.npy", _header(f"({2**70}, 4)"))),
    "inputs: a head with a negative shape": _npz(("x.npy", _header("(-1, 4)"))),
    "inputs: a head with 100 dims": _npz(("x.npy", _header(f"{(1,) * 100}") + b"1234")),
    "inputs: a head with one element of 4 GB": _npz(("x.npy", _header("()", "'|V4294967295'"))),
    "inputs: a head of fields in fields": _npz(
        ("x.npy", _header("(1,)", f"{'[(0, ' * 40}'<f4'{')]' * 40}"))
    ),
    "inputs: an archive cut in half": _given(
        "i.npz", lambda path: path.write_bytes(_good(path)[:99])
    ),
    "inputs: an archive of 1 TB that has no byte": _given("i.npz", _sparse),
    "inputs: an archive that is a pipe": _given("i.npz", os.mkfifo),
    "inputs: an archive that is a device": _given(
        "i.npz", lambda path: path.symlink_to("/dev/zero")
    ),
    "inputs: 5,000 members": _npz(*((f"{at}.npy", _GOOD) for at in range(5_000))),
    "inputs: a tensor cut in half": _tensor(_WHOLE, 200),
    "inputs: a tensor of 2**62 by 4 with 16 bytes": _tensor(
        _says(dims=[1 << 62, 4], raw_data=bytes(16))
    ),
    "inputs: a tensor with a negative dim": _tensor(_says(dims=[-4, 4], raw_data=bytes(64))),
    "inputs: a tensor of type 999": _tensor(_says(dims=[1, 4], data_type=999)),
    "inputs: a tensor with more bytes than dims": _tensor(
        _says(dims=[1, 4], raw_data=bytes(65536))
    ),
    "inputs: a tensor with data twice": _tensor(
        _says(dims=[1, 4], raw_data=bytes(16), float_data=[1, 2, 3, 4])
    ),
    "inputs: a tensor of 100 dims": _tensor(_says(dims=[1] * 100, raw_data=bytes(4))),
    "inputs: a tensor whose data is in /etc/passwd": _tensor(_elsewhere("/etc/passwd")),
    "inputs: a tensor whose data is in ../m.onnx": _tensor(_elsewhere("../m.onnx")),
    "inputs: a tensor that says 2**60 bytes follow": _pb(
        lambda path: path.write_bytes(b"\x4a" + b"\x80" * 8 + b"\x10" + b"1234")
    ),
    "inputs: a tensor of 1 TB that has no byte": _pb(_sparse),
    "inputs: a tensor that is a pipe": _pb(os.mkfifo),
    "inputs: a tensor that is a device": _pb(lambda path: path.symlink_to("/dev/zero")),
    "inputs: a tensor that is a folder": _pb(lambda path: path.mkdir()),
    "inputs: a tensor for input 999,999,999": _pb(
        lambda path: path.write_bytes(_says(name="").SerializeToString()), "input_999999999.pb"
    ),
    "inputs: a folder of 5,000 tensors": _many,
    "inputs: a folder that is linked into itself": _loop,
    "inputs: deep JSON": _json(_DEEP),
    "inputs: a value in 100,000 brackets": _x(f'{{"value": {_DEEP}'),
    "inputs: a value in 90 brackets": _x(f'{{"value": {"[" * 90}1{"]" * 90}}}'),
    "inputs: an uneven value": _x('{"value": [[1, 2], [3]]}'),
    "inputs: a value of 5,000 digits": _x(f'{{"value": {"9" * 5000}}}'),
    "inputs: a shape of 2**62": _x(f'{{"shape": [{1 << 62}, 4]}}'),
    "inputs: a shape below zero": _x('{"shape": [-1, 4]}'),
    "inputs: a shape of 1,000,000 dims": _x(f'{{"shape": {[1] * 1_000_000}, "value": 1}}'),
    "inputs: a shape of truths": _x('{"shape": [true, 4]}'),
    "inputs: a shape that is text": _x('{"shape": "1,4"}'),
    "inputs: one value for 2**32 elements": _x(f'{{"shape": [{1 << 30}, 4], "value": 1}}'),
    "inputs: drawn values for 2**32 elements": _x(
        f'{{"shape": [{1 << 30}, 4], "low": 0, "high": 1}}'
    ),
    "inputs: values drawn up to no number": _x('{"shape": [1, 4], "low": 0, "high": NaN}'),
    "inputs: values drawn up to 10**400": _x(
        f'{{"shape": [1, 4], "low": 0.5, "high": 1{"0" * 400}}}'
    ),
    "inputs: a generator without its value": _x('{"shape": [1, 4], "gen": "const"}'),
    "inputs: a generator that is a program": _x('{"shape": [1, 4], "gen": "__import__(1)"}'),
    "inputs: a type that steers the terminal": _x('{"shape": [1, 4], "dtype": "\\u001b[2J"}'),
    "inputs: a key that steers the terminal": _x('{"shape": [1, 4], "\\u001b[2J": 1}'),
    "inputs: a name that steers the terminal": _json('{"\\u001b[2J": {"shape": [1, 4]}}'),
    "inputs: a name that is half a character": _json('{"\\ud800": {"shape": [1, 4]}}'),
    "inputs: a name of 1 MB": _json(f'{{"{"n" * 1_000_000}": {{"shape": [1, 4]}}}}'),
    "inputs: text with a zero in it": _json('{"words": {"value": ["a\\u0000b"]}}'),
    "inputs: text of half a character": _json('{"words": {"value": ["\\ud800"]}}'),
    "inputs: JSON that is a list": _json("[1]"),
    "inputs: JSON that is not UTF-8": _given("i.json", lambda p: p.write_bytes(b"\xff\xfe{}")),
    "inputs: JSON of 1 TB that has no byte": _given("i.json", _sparse),
    "inputs: JSON that is a pipe": _given("i.json", os.mkfifo),
    "inputs: an option of 5,000 digits": _word(f"x={'9' * 5000}"),
    "inputs: an option in 5,000 brackets": _word(f"x={'[' * 5000}1{']' * 5000}"),
    "inputs: an option that is no number": _word("ids=nan"),
    "inputs: an option that steers the terminal": _word("\x1b[2J=1"),
}  # fmt: skip
