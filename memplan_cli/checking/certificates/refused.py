"""What is wrong with a certificate."""

from __future__ import annotations


class RefusedError(Exception):
    """A part of a certificate does not show what it says; the text is the reason."""


def refuse_unless(holds: object, reason: str) -> None:
    """Refuse a part of a certificate.

    Raises:
        RefusedError: with the reason, unless the condition holds.
    """
    if not holds:
        raise RefusedError(reason)


class UnknownError(RefusedError):
    """The model does not say what a check needs: nothing is wrong, and nothing is shown."""
