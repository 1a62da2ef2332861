"""A decoder whose caches become buffers of a fixed capacity, and the rewritten graphs to try."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.errors import ModelError
from memplan_cli.features.kv_cache.find import find_caches
from memplan_cli.features.kv_cache.grouped import without_repeated_heads
from memplan_cli.features.kv_cache.rewrite import with_cache_buffers, with_tensor_scatter

if TYPE_CHECKING:
    from collections.abc import Collection

    from onnx import ModelProto

    from memplan_cli.core.results.rewrites import CacheSummary
    from memplan_cli.features.kv_cache.find import CacheSearch

_REPEATS_NOTE = "Repeated heads are kept: without them the outputs are not bit-identical."


@dataclass(frozen=True, slots=True)
class CacheAttempt:
    """A rewritten graph to compare with the original.

    Attributes:
        model: the graph with caches in buffers.
        notes: what the report says if this attempt is the one that is written.
    """

    model: ModelProto
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BufferedDecoder:
    """A decoder with caches that can be updated in place.

    Attributes:
        rewritten: the graph with its caches in buffers.
        caches: how the rewritten graph is run.
    """

    rewritten: ModelProto
    caches: CacheSummary

    @classmethod
    def of(
        cls, model: ModelProto, capacity: int, excluded: Collection[str]
    ) -> BufferedDecoder:
        """Find the caches of a decoder, in any opset, and rewrite them to buffers.

        Each buffer has ``capacity`` entries; ``excluded`` inputs and outputs keep memory of their own.

        Raises:
            ModelError: there is no cache, none can be updated in place, or the model cannot be
                converted to the opset that this needs.
        """
        # Before the conversion, whose errors say less.
        _refuse_without_caches(find_caches(model, excluded))
        model = with_tensor_scatter(model)
        search = find_caches(model, excluded)
        _refuse_without_caches(search)
        return cls(*with_cache_buffers(model, search, capacity))

    def attempts(self) -> list[CacheAttempt]:
        """Return the graphs to try, one after the other until the outputs are those of the original.

        First without the repeated heads of grouped queries, which need memory, then with them if
        there are any.
        """
        grouped = without_repeated_heads(self.rewritten)
        attempts = [CacheAttempt(grouped)]
        if grouped is not self.rewritten:
            attempts.append(CacheAttempt(self.rewritten, (_REPEATS_NOTE,)))
        return attempts


def _refuse_without_caches(search: CacheSearch) -> None:
    """Refuse a model without a growing cache that can be updated in place.

    Raises:
        ModelError: with the reason.
    """
    # A constant cache does not grow: its output passes the input on.
    if any(cache.form != "constant" for cache in search.matches):
        return
    not_in_place = search.kept  # caches that stay two tensors, each with the reason
    if not not_in_place:
        raise ModelError(
            "the model has no cache: no output extends an input along one axis",
            hint="export the decoder with its past as inputs and its present as outputs",
        )
    first = not_in_place[0]
    more = f" ({len(not_in_place) - 1} more are kept too)" if len(not_in_place) > 1 else ""
    raise ModelError(
        f"no cache can be updated in place: {first.output!r} extends {first.input!r}, but "
        f"{first.reason}{more}"
    )
