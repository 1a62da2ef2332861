"""Create sessions with the settings in a model file, in the process of the caller.

Everywhere else memplan uses ONNX Runtime in worker processes only.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import onnxruntime as ort

from memplan_cli.core.results.observations import CPU, RuntimeSettings
from memplan_cli.errors import ModelError
from memplan_cli.onnx_io.caches_metadata import recorded_caches
from memplan_cli.onnx_io.settings_metadata import RecordedSettings, recorded_settings
from memplan_cli.onnx_io.wire_format import scanned_metadata
from memplan_cli.runtime.decoding import Decoder
from memplan_cli.runtime.workers.memory_release import release_after_loading
from memplan_cli.runtime.workers.session import (
    apply_options,
    options_of_file_ignored,
    provider_options,
    register_arena,
    run_options,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from memplan_cli.core.results.observations import Setting
    from memplan_cli.core.results.rewrites import CacheSummary

_registered_arena: list[Mapping[str, Setting]] = []
"""The keys of the CPU arena of this process, if one was registered; it lasts until the end."""


class PlannedSession(ort.InferenceSession):  # type: ignore[misc]
    """An ``InferenceSession`` whose runs have the file's run options.

    Attributes:
        settings: the settings of the file.
        donated: the input in whose memory an output may lie, by the output's name.
        caches: the decoder caches in place; None if the file has none.
    """

    caches: CacheSummary | None = None

    def __init__(
        self,
        path: Path,
        options: Any,  # noqa: ANN401 - ONNX Runtime has no types
        recorded: RecordedSettings,
        **more_arguments: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(str(path), options, **more_arguments)
        self.settings = recorded.settings
        self.donated = dict(recorded.settings.io_binding)

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any = None,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Run as `InferenceSession.run` does, with the file's run options."""
        return super().run(output_names, input_feed, self._with_file_options(run_options))

    def run_with_iobinding(self, iobinding: Any, run_options: Any = None) -> None:  # noqa: ANN401
        """Run as `InferenceSession.run_with_iobinding` does, with the file's run options."""
        super().run_with_iobinding(iobinding, self._with_file_options(run_options))

    def _with_file_options(self, options: Any) -> Any:  # noqa: ANN401
        """Add the file's run entries to some run options, or to new ones if they are None."""
        # New options for each run would take a tenth of the time of a small model.
        return run_options(self.settings, options) if self.settings.run_config else options

    def bound(self, inputs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Return a binding of the inputs to arrays, and of donated outputs to their inputs.

        A run overwrites a donated input, such as a parameter, with the output that replaces it.
        Running the binding again is the next step.

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
            dims: values of dims that only the caches have.

        Raises:
            ModelError: the file has no caches in place.
        """
        return Decoder(self, self.caches, dims)


def load_session(path: Path, options: Any = None, **more_arguments: Any) -> PlannedSession:  # noqa: ANN401
    """Create a session on a file with the settings in its metadata.

    A file that memplan did not write gets ONNX Runtime's defaults.

    Args:
        path: the model.
        options: the ``SessionOptions`` to change; None: new ones. The file's options replace
            those that are set, because its order of execution is the planned one.
        more_arguments: of ``InferenceSession``; ``providers`` replaces the file's provider and its
            options.

    Raises:
        ModelError: the file cannot be read, or its settings are not memplan's.
    """
    metadata = scanned_metadata(path)
    recorded = recorded_settings(metadata) or RecordedSettings(CPU, RuntimeSettings())
    settings = recorded.settings
    options = ort.SessionOptions() if options is None else options
    apply_options(options, settings)
    if "providers" not in more_arguments:
        file_options = provider_options(settings, recorded.provider)
        more_arguments["providers"] = [(recorded.provider, file_options)]
    provider = _first_provider(more_arguments["providers"])
    if settings.arena and provider != recorded.provider:
        # The order of execution suits every provider; the sizes of an arena do not.
        _warn(
            f"{path} was planned for {recorded.provider}: its arena is not used on {provider}"
        )
    elif settings.arena and provider == CPU:
        _use_arena(settings.arena)
        options.add_session_config_entry("session.use_env_allocators", "1")
    with options_of_file_ignored(), release_after_loading():
        session = PlannedSession(path, options, recorded, **more_arguments)
    session.caches = recorded_caches(metadata)
    value_names = {value.name for value in (*session.get_inputs(), *session.get_outputs())}
    for name in (*session.donated, *session.donated.values()):  # outputs, and their inputs
        if name not in value_names:
            raise ModelError(
                f"{path} binds {name[:80]!r}, which is not an input or output of it"
            )
    return session


def _first_provider(providers: Any) -> str:  # noqa: ANN401 - names, or pairs with options
    first = providers[0] if providers else CPU
    return str(first if isinstance(first, str) else first[0])


def _use_arena(arena: Mapping[str, Setting]) -> None:
    """Register the CPU arena of this process; warn if it has another one, which is shared then."""
    if not _registered_arena:
        register_arena(arena)
        _registered_arena.append(dict(arena))
    elif _registered_arena[0] != dict(arena):
        _warn("this process already has an arena, sized for another model: it is shared")


def _warn(text: str) -> None:
    """Warn the caller of ``memplan_cli.load``, who is as many calls above as ``stacklevel`` says."""
    warnings.warn(text, stacklevel=5)
