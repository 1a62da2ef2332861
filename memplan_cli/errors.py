"""What can go wrong, in the user's words."""

from __future__ import annotations


class MemplanError(Exception):
    """Something stopped the work; the message names it and the hint says what to do.

    Every one of these ends a command with exit code 2. A check that fails is a result,
    never one of these.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class SettingsError(MemplanError):
    """A setting is unknown, malformed or matches nothing."""


class ModelError(MemplanError):
    """A model cannot be read, is not valid, or cannot be written."""


class UnknownSizeError(ModelError):
    """A total was asked for and the size of some tensor is not known."""


class PlanError(MemplanError):
    """A plan file is not valid, or no plan fits the capacity asked for."""


class InvalidLayoutError(PlanError):
    """An allocator broke its promise: this is our bug, and it names the buffers."""


class RuntimeUnavailableError(MemplanError):
    """The provider asked for is not there, or could not run the model."""


class RuntimeTimeoutError(RuntimeUnavailableError):
    """A run was given up: it took longer than the seconds that it had."""
