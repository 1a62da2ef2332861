"""Errors for proofs of a certificate that are wrong or cannot be checked.

The other modules of this package raise them; `verify` turns them into verdicts.
"""

from __future__ import annotations


class ProofError(Exception):
    """A proof does not show its bound. The text is the reason."""


class UnknownSizeError(ProofError):
    """A proof cannot be checked because the model does not contain the size of a tensor."""


def require(condition: object, reason: str) -> None:
    """Raise a `ProofError` with this reason unless the condition is true."""
    if not condition:
        raise ProofError(reason)
