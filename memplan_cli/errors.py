"""The errors that memplan reports to its users."""

from __future__ import annotations


class MemplanError(Exception):
    """An error that stops a command with exit code 2.

    A check that fails is a result with exit code 1, not an error.

    Attributes:
        hint: what the user can do, or an empty text. The message says what is wrong.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


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


class RuntimeTimeoutError(RuntimeUnavailableError):
    """A run was stopped because it exceeded its time limit."""
