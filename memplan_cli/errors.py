"""The errors that memplan reports to its users, among them those of files that cannot be read."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pathlib import Path

_MAX_READ_BYTES = 1 << 31
"""The largest file that is read into memory: the size limit of a protobuf message."""


class MemplanError(Exception):
    """An error that stops a command with exit code 2.

    A check that fails is a result with exit code 1, not an error.

    Its text, as in a traceback, is the message and the hint.

    Attributes:
        message: what is wrong.
        hint: what the user can do, or an empty text.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nHint: {self.hint}" if self.hint else self.message


class SettingsError(MemplanError):
    """A setting is unknown, malformed or matches nothing."""


class ModelError(MemplanError):
    """A model cannot be read, is not valid, or cannot be written."""


class UnknownSizeError(ModelError):
    """A total was requested, but the size of some tensor is unknown."""


class PlanError(MemplanError):
    """A plan file is not valid, or no plan fits the requested capacity."""


class InvalidLayoutError(PlanError):
    """A layout is not safe. If memplan made it, that is a bug. The message names the buffers."""


class RuntimeUnavailableError(MemplanError):
    """The requested provider is not available, or could not run the model."""


INSTALL_RUNTIME = "pip install 'memplan[cpu]' (or 'memplan[gpu]')"
"""How to install ONNX Runtime."""


class RuntimeMissingError(RuntimeUnavailableError):
    """ONNX Runtime is not installed."""

    def __init__(self, *, hint: str = "") -> None:
        super().__init__(f"ONNX Runtime is not installed: {INSTALL_RUNTIME}", hint=hint)


class RuntimeTimeoutError(RuntimeUnavailableError):
    """A run was stopped because it exceeded its time limit."""


ErrorType = TypeVar("ErrorType", bound=MemplanError)


def unreadable(path: Path, error: OSError, kind: type[ErrorType]) -> ErrorType:
    """Return the error of the type ``kind`` for a file that could not be read."""
    if isinstance(error, FileNotFoundError):
        return missing(path, kind)
    return kind(f"{path} cannot be read: {error.strerror}")


_OTHER_KINDS = (
    (b"version https://git-lfs", "a Git LFS pointer", "git lfs pull fetches the model itself"),
    (b"<", "an HTML or XML page", "download the file itself, not the page that shows it"),
    (
        b"{",
        "a JSON file",
        "name the model; memplan report shows a plan, whose name ends in .json",
    ),
    (
        b"PK\x03\x04",
        "a zip archive, such as a checkpoint of PyTorch",
        "export the model as ONNX",
    ),
)
"""How files begin that are taken for models, what they are, and what to do."""

_MODEL_START = b"\x08"
"""The first byte of nearly every model: the field with its IR version."""


def not_a_model(path: Path, error: Exception) -> ModelError:
    """Return the error for a file that is no ONNX model, which names its kind where it is recognized.

    ``error`` says why it cannot be parsed.
    """
    with path.open("rb") as file:
        start = file.read(200)
    for mark, kind, hint in _OTHER_KINDS:
        if start.lstrip().startswith(mark):
            return ModelError(f"{path} is not an ONNX model but {kind}", hint=hint)
    lines = str(error).strip().splitlines()
    reason = lines[0][:200] if lines else type(error).__name__
    if start.startswith(_MODEL_START):
        text = f"{path} begins like an ONNX model, but is cut off or damaged: {reason}"
        return ModelError(text, hint="copy or download it again, and compare the sizes")
    hint = "memplan reads ONNX protobuf files; is it another format?"
    return ModelError(f"{path} is not an ONNX model: {reason}", hint=hint)


def missing(path: Path, kind: type[ErrorType]) -> ErrorType:
    """Return the error of the type ``kind`` for a file that does not exist.

    Its hint names the file of the same folder and suffix whose name is most similar, or the missing folder.
    """
    return kind(f"there is no file {path}", hint=_similar_file(path))


def _similar_file(path: Path) -> str:
    """Return the hint "did you mean FILE?" with a file of the same suffix, or that there is no such folder.

    Empty if no file is similar.
    """
    from difflib import get_close_matches

    try:
        names = sorted(
            file.name for file in path.parent.iterdir() if file.suffix == path.suffix
        )
    except FileNotFoundError:
        return f"there is no folder {path.parent}"
    except OSError:
        return ""
    similar = get_close_matches(path.name, names, n=1)
    return f"did you mean {path.with_name(similar[0])}?" if similar else ""


def refuse_endless(
    path: Path, error: type[MemplanError], max_bytes: int = _MAX_READ_BYTES
) -> None:
    """Raise an error if reading a file into memory could take forever or exhaust memory.

    That is a device, a pipe, a socket, or a file above ``max_bytes``, such as a sparse file that
    takes no disk space. A missing file and a folder are accepted: opening them fails anyway.

    Raises:
        MemplanError: of the type ``error``, with the path.
    """
    if path.is_file():
        size = path.stat().st_size
        if size > max_bytes:
            raise error(f"{path} has {size} bytes; files of its kind have at most {max_bytes}")
    elif path.exists() and not path.is_dir():
        raise error(f"{path} is not a regular file", hint="a device or a pipe may never end")
