"""The original of a proof, run while the plan is being made.

It has to run in any case, and what it is run at is known when the model has been read: a
second core does the one while the first does the other.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Self

from memplan_cli.errors import RuntimeUnavailableError
from memplan_cli.workflows.files.binding import binding_of

if TYPE_CHECKING:
    from memplan_cli.core.check import Check
    from memplan_cli.runtime.run.baseline import Baseline, BaselineRun
    from memplan_cli.settings.settings import Settings
    from memplan_cli.workflows.files.model_file import ModelFile
    from memplan_cli.workflows.files.rewriting import Rewriting


class SizesRefusedError(RuntimeUnavailableError):
    """An original does not run at sizes that were believed, not tried."""


class Ahead:
    """The original that a check wants, started as soon as it is known how to run it."""

    def __init__(self, check: Check) -> None:
        """Start nothing yet."""
        self._check = check
        self._running: BaselineRun | None = None

    def __enter__(self) -> Self:
        """Use it in a block."""
        return self

    def __exit__(self, *_: object) -> None:
        """End what runs still, and remove its files."""
        self._end()

    def begin(self, file: ModelFile, settings: Settings) -> None:
        """Start a model at the numbers of settings; what cannot run is found out later."""
        if self._running is not None:
            return
        from memplan_cli.runtime.run.baseline import BaselineRun
        from memplan_cli.runtime.workers.session import resolve_provider

        check, binding = self._check, binding_of(settings)
        resolve_provider(check.provider)  # a provider that is not there is refused at once
        with suppress(RuntimeUnavailableError):
            self._running = BaselineRun(file.path, file.model, check, binding)

    def baseline(self, rewriting: Rewriting, check: Check) -> Baseline:
        """Return the original of a rewriting, run now if it was not begun as asked.

        Raises:
            SizesRefusedError: it does not run, and some of its sizes are assumed.
            RuntimeUnavailableError: it cannot run here.
        """
        from memplan_cli.onnx_io.load import load_model
        from memplan_cli.runtime.run.baseline import BaselineRun

        path, binding = rewriting.compared_with, binding_of(rewriting.settings)
        asked, running = (path, check, binding), self._running
        if running is None or (running.path, running.check, running.binding) != asked:
            self._end()
            # A dump may have lost dims that the inputs have.
            model = rewriting.file.model if rewriting.original is None else load_model(path)
            self._running = running = BaselineRun(path, model, check, binding)
        try:
            return running.result()
        except RuntimeUnavailableError as error:
            if rewriting.settings.inputs.assumed:
                raise SizesRefusedError(str(error), hint=error.hint) from error
            raise

    def _end(self) -> None:
        if self._running is not None:
            self._running.end()
