"""Sessions made as a model file says: its options, its arena, its buffers.

The one place in which memplan works with ONNX Runtime in the process of its caller: here the
session is what the caller asked for.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import onnxruntime as ort

from memplan_cli.core.results.observations import CPU, RuntimeSettings
from memplan_cli.errors import ModelError
from memplan_cli.features.kv_cache.note import recorded_caches
from memplan_cli.onnx_io.settings_metadata import RecordedSettings, recorded_settings
from memplan_cli.onnx_io.wire_format import scanned_metadata
from memplan_cli.runtime.decoding import Decoder
from memplan_cli.runtime.workers.process_memory import giving_back
from memplan_cli.runtime.workers.session import (
    apply_options,
    given_options_count,
    provider_options,
    register_arena,
    run_entries,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from memplan_cli.core.results.observations import Setting
    from memplan_cli.core.results.rewrites import Caches

_registered: list[Mapping[str, Setting]] = []
"""The CPU arena of this process, once there is one: ONNX Runtime keeps it to the end."""


class PlannedSession(ort.InferenceSession):  # type: ignore[misc]
    """An ``InferenceSession`` whose runs have the file's run options.

    Attributes:
        settings: what was applied.
        donated: ``{output: input}``: outputs that may lie where an input was.
        caches: what the file says of decoder caches in place, if it has any.
    """

    caches: Caches | None = None

    def __init__(
        self,
        path: Path,
        options: Any,  # noqa: ANN401 - ONNX Runtime has no types
        recorded: RecordedSettings,
        **others: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(str(path), options, **others)
        self.settings = recorded.settings
        self.donated = dict(recorded.settings.io_binding)

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any = None,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Run as `InferenceSession.run` does, with the file's run options."""
        return super().run(output_names, input_feed, self._with_own(run_options))

    def run_with_iobinding(self, iobinding: Any, run_options: Any = None) -> None:  # noqa: ANN401
        """Run as `InferenceSession.run_with_iobinding` does, with the file's run options."""
        super().run_with_iobinding(iobinding, self._with_own(run_options))

    def _with_own(self, run_options: Any) -> Any:  # noqa: ANN401
        """Return run options with the file's; where it has none, those that were given."""
        # Options made for each run are a tenth of the time of a small model's.
        if not self.settings.run_config:
            return run_options
        return run_entries(self.settings, run_options)

    def bound(self, inputs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Return a binding whose buffers are the arrays given: runs write into them.

        Each output that replaces an input, a new parameter its old one, is written where that
        input lies: run the binding again for the next step.

        Args:
            inputs: an array for each input.
        """
        device = "cpu" if self.get_providers()[0] == CPU else "cuda"
        buffers = {
            name: ort.OrtValue.ortvalue_from_numpy(array, device, 0)
            for name, array in inputs.items()
        }
        binding = self.io_binding()
        for name, buffer in buffers.items():
            binding.bind_ortvalue_input(name, buffer)
        for output in self.get_outputs():
            if output.name in self.donated:
                binding.bind_ortvalue_output(output.name, buffers[self.donated[output.name]])
            else:
                binding.bind_output(output.name, device)
        return binding

    def decoder(self, **dims: int) -> Decoder:
        """Return a decoder that keeps the caches of this model in buffers of its own.

        Args:
            dims: numbers of dims that the caches have and no other input.

        Raises:
            ModelError: the file has no caches in place.
        """
        return Decoder(self, self.caches, dims)


def load_session(path: Path, options: Any = None, **others: Any) -> PlannedSession:  # noqa: ANN401
    """Create a session on a file with the settings in its metadata.

    A file without any, which memplan did not write, gets ONNX Runtime's defaults.

    Args:
        path: the model.
        options: ONNX Runtime's ``SessionOptions`` to set them on; new ones by default. What
            a file sets wins: its order of execution is what it was planned for.
        others: further arguments of ``InferenceSession``; ``providers`` wins over the file's.

    Raises:
        ModelError: the file cannot be read, or its settings are none of memplan's.
    """
    metadata = scanned_metadata(path)
    recorded = recorded_settings(metadata) or RecordedSettings(CPU, RuntimeSettings())
    settings = recorded.settings
    options = ort.SessionOptions() if options is None else options
    apply_options(options, settings)
    if "providers" not in others:
        own = provider_options(settings, recorded.provider)
        others["providers"] = [(recorded.provider, own)]
    provider = _first(others["providers"])
    if provider != recorded.provider:
        # The order of the run holds anywhere, an arena's sizes do not.
        _warn(
            f"{path} was planned for {recorded.provider}: its arena is not used on {provider}"
        )
    elif settings.arena and provider == CPU:
        _use_arena(settings.arena)
        options.add_session_config_entry("session.use_env_allocators", "1")
    with given_options_count(), giving_back(path.resolve().parent):
        session = PlannedSession(path, options, recorded, **others)
    session.caches = recorded_caches(metadata)
    _refuse_unknown(session, path)
    return session


def _refuse_unknown(session: PlannedSession, path: Path) -> None:
    """Refuse buffers of inputs and outputs that the model does not have.

    Raises:
        ModelError: naming one.
    """
    known = {value.name for value in (*session.get_inputs(), *session.get_outputs())}
    for name in (*session.donated, *session.donated.values()):
        if name not in known:
            raise ModelError(f"{path} binds {name[:80]!r}, which is no input or output of it")


def _first(providers: Any) -> str:  # noqa: ANN401 - names, or pairs with options
    first = providers[0] if providers else CPU
    return str(first if isinstance(first, str) else first[0])


def _use_arena(arena: Mapping[str, Setting]) -> None:
    """Register the arena of this process, once: later models share it, and let it grow."""
    if not _registered:
        register_arena(arena)
        _registered.append(dict(arena))
    elif _registered[0] != dict(arena):
        _warn("this process has its arena already, sized for another model: it is shared")


def _warn(text: str) -> None:
    """Warn whoever called ``memplan_cli.load``."""
    warnings.warn(text, stacklevel=5)
