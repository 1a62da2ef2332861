"""A session with the settings in its model file, as `memplan_cli.load` returns it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnxruntime as ort

from memplan_cli.errors import ModelError, RuntimeUnavailableError
from memplan_cli.loading.heap import release_after_loading
from memplan_cli.loading.metadata import missing_data_files, scanned_metadata
from memplan_cli.loading.settings import (
    CPU,
    CUDA,
    RUNTIME,
    RUNTIME_DEFAULTS,
    apply_options,
    file_settings,
    load_cuda_libraries,
    options_of_file_ignored,
    provider_options,
    register_arena,
    use_arena_of_process,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.loading.settings import FileSettings, Setting

_registered_arenas: dict[str, Mapping[str, Setting]] = {}
"""The keys of the arena of this process by provider, if one was registered; it lasts until the end."""


class PlannedSession(ort.InferenceSession):  # type: ignore[misc]
    """An ``InferenceSession`` whose runs have the file's run options.

    Attributes:
        settings: the settings of the file, without its arena on another provider than planned.
    """

    def __init__(
        self,
        path: Path,
        options: Any,  # noqa: ANN401 - ONNX Runtime has no types
        settings: FileSettings,
        **more_arguments: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(str(path), options, **more_arguments)
        self.settings = settings
        # Making new options for each run would take a tenth of the time of a small model.
        self._file_options = self._add_file_entries(ort.RunOptions())

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any = None,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Run as `InferenceSession.run` does, with the file's run options."""
        return super().run(output_names, input_feed, self._run_options(run_options))

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, Any],
        run_options: Any = None,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Run as `InferenceSession.run_with_ort_values` does, with the file's run options."""
        options = self._run_options(run_options)
        return super().run_with_ort_values(output_names, input_dict_ort_values, options)

    def run_with_iobinding(self, iobinding: Any, run_options: Any = None) -> None:  # noqa: ANN401
        """Run as `InferenceSession.run_with_iobinding` does, with the file's run options."""
        super().run_with_iobinding(iobinding, self._run_options(run_options))

    def _run_options(self, options: Any) -> Any:  # noqa: ANN401
        """Return the caller's run options with the file's entries added to them, or the file's if None."""
        return self._file_options if options is None else self._add_file_entries(options)

    def _add_file_entries(self, options: Any) -> Any:  # noqa: ANN401
        """Add the file's run entries to some run options, and return them."""
        for key, value in self.settings.run_config.items():
            options.add_run_config_entry(key, value)
        return options

    def bound(self, inputs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Return a binding of inputs to the arrays of ``inputs``, and of all outputs.

        An output that replaces a donated input, such as a parameter, is bound to the buffer of this input. So
        each run of the binding is one more training step. On the CPU the buffers are the caller's arrays
        themselves, and runs overwrite those of donated inputs; on CUDA they are copies.
        """
        device = "cuda" if self.get_providers()[0] == CUDA else "cpu"
        buffers = {
            name: ort.OrtValue.ortvalue_from_numpy(array, device, 0)
            for name, array in inputs.items()
        }
        binding = self.io_binding()
        for name, buffer in buffers.items():
            binding.bind_ortvalue_input(name, buffer)
        donated_inputs = self.settings.io_binding  # output -> the input that it overwrites
        for output in self.get_outputs():
            if output.name in donated_inputs:
                buffer = buffers[donated_inputs[output.name]]
                binding.bind_ortvalue_output(output.name, buffer)
            else:
                binding.bind_output(output.name, device)
        return binding


def load_session(
    path: Path | str,
    options: Any = None,  # noqa: ANN401 - ONNX Runtime has no types
    **more_arguments: Any,  # noqa: ANN401
) -> PlannedSession:
    """Create a session on a file with the settings in its metadata.

    A file that memplan did not write gets ONNX Runtime's defaults.

    Args:
        path: the model.
        options: the ``SessionOptions`` to change; None: new ones. The file's options replace those of the
            caller: the plan holds only under them.
        more_arguments: of ``InferenceSession``; ``providers`` replaces the file's provider and its
            options.

    Raises:
        ModelError: the file cannot be read, or its settings are not memplan's or name no value of the model.
        RuntimeUnavailableError: the file was planned for CUDA, which does not work here.
    """
    path = Path(path)
    metadata = scanned_metadata(path)
    settings = file_settings(metadata) or RUNTIME_DEFAULTS
    _warn_of_other_version(path, metadata.get(RUNTIME, ""))
    options = ort.SessionOptions() if options is None else options
    apply_options(options, settings.session, settings.session_config)
    if "providers" in more_arguments:
        file_needs_cuda = False  # the caller's providers replace that of the file
    else:
        file_needs_cuda = settings.execution_provider == CUDA
        more_arguments = {**_provider_arguments(settings), **more_arguments}
    provider = _first_provider(more_arguments["providers"])
    missing_libraries = load_cuda_libraries() if provider == CUDA else ""
    if provider != settings.execution_provider:
        settings = _settings_without_arena(path, settings, provider)
    try:
        if settings.arena:
            _use_arena(settings.arena, provider, options)
        # ``options`` have all that the file may set: ONNX Runtime must not read further options in it.
        # Memory that only the creation of the session needed goes back to the system.
        with options_of_file_ignored(), release_after_loading(settings.run_config):
            session = PlannedSession(path, options, settings, **more_arguments)
    except Exception as error:
        _refuse_missing_weights(path)
        if file_needs_cuda:
            raise _unusable_cuda(path, missing_libraries or f"{error}") from error
        raise
    # ONNX Runtime leaves out CUDA if it cannot load the libraries of CUDA.
    if file_needs_cuda and session.get_providers()[0] != CUDA:
        raise _unusable_cuda(path, missing_libraries or "ONNX Runtime cannot start it")
    _require_bound_values(path, session)
    return session


def _provider_arguments(settings: FileSettings) -> dict[str, Any]:
    """Return the arguments of ``InferenceSession`` with which it runs on the file's provider, or not at all."""
    provider = (settings.execution_provider, provider_options(settings.provider))
    # 0: if the provider does not start, ONNX Runtime must not use the CPU instead.
    return {"providers": [provider], "enable_fallback": 0}


def _warn_of_other_version(path: Path, runtime: str) -> None:
    """Warn the caller of ``memplan_cli.load`` if a file was made with another version of ONNX Runtime.

    ``runtime`` is the entry `RUNTIME` of the metadata, such as ``onnxruntime 1.31.1 CPUExecutionProvider``.
    """
    made_with = runtime.rpartition(" ")[0]
    here = f"onnxruntime {ort.__version__}"
    if made_with not in ("", here):
        _warn(
            f"{path} was made with {made_with[:80]} and may need more memory with {here}: "
            "`memplan optimize` makes it again"
        )


def _settings_without_arena(path: Path, settings: FileSettings, provider: str) -> FileSettings:
    """Return the settings for another provider than planned; warn if the file has an arena.

    The arena, and the option to release it after runs, are left out: both are for the planned provider only.
    """
    if settings.arena:
        _warn(
            f"{path} was planned for {settings.execution_provider}: its arena is not used on {provider}"
        )
    return settings._replace(arena={}, run_config={})


def _refuse_missing_weights(path: Path) -> None:
    """Raise a `ModelError` if a file with weights of a model does not exist."""
    for missing in missing_data_files(path):
        raise ModelError(
            f"there is no file {missing}, which holds weights of {path}",
            hint=f"a model and its data lie in one folder: copy {missing.name} too",
        ) from None


def _require_bound_values(path: Path, session: PlannedSession) -> None:
    """Raise a `ModelError` if the settings of a file bind a value that is no input or output of its model."""
    value_names = {value.name for value in (*session.get_inputs(), *session.get_outputs())}
    for pair in session.settings.io_binding.items():
        for name in pair:
            if name not in value_names:
                raise ModelError(
                    f"{path} binds {name[:80]!r}, which is not an input or output of it"
                )


def _unusable_cuda(path: Path, reason: str) -> RuntimeUnavailableError:
    return RuntimeUnavailableError(
        f"{path} was planned for {CUDA}, which does not work here: {reason}",
        hint=f"load(..., providers=[{CPU!r}]) runs it on the CPU",
    )


def _first_provider(providers: Any) -> str:  # noqa: ANN401 - names, or pairs with options
    first = providers[0] if providers else CPU
    return str(first if isinstance(first, str) else first[0])


def _use_arena(
    arena: Mapping[str, Setting],
    provider: str,
    options: Any,  # noqa: ANN401 - ONNX Runtime has no types
) -> None:
    """Let ``SessionOptions`` use the arena of this process for a provider.

    The first call registers that arena, with the settings ``arena``. A later call with other settings uses the
    registered arena too, and warns the caller.
    """
    if provider not in _registered_arenas:
        register_arena(arena, provider)
        _registered_arenas[provider] = dict(arena)
    elif _registered_arenas[provider] != dict(arena):
        _warn("this process already has an arena, sized for another model: it is shared")
    use_arena_of_process(options)


def _warn(text: str) -> None:
    """Warn the caller of ``memplan_cli.load``. For functions that `load_session` calls."""
    warnings.warn(text, stacklevel=5)
