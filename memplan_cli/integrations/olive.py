"""`MemplanOptimize`, a pass of Olive: what ``memplan optimize`` does, within a workflow.

    python -m memplan_cli.integrations.olive > package_config.json
    olive run --config workflow.json --package-config package_config.json

Olive knows the passes of one package configuration. What this module prints is the installed
Olive's own with `MemplanOptimize` in it.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olive.model import ONNXModelHandler
from olive.model.utils import resolve_onnx_path
from olive.passes import Pass
from olive.passes.pass_config import PassConfigParam

from memplan_cli.api.optimize import optimize
from memplan_cli.core.check import Check
from memplan_cli.core.selection import nearest
from memplan_cli.errors import MemplanError
from memplan_cli.reporting.hints import over_budget
from memplan_cli.settings.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.api.output.optimized import Optimized
    from memplan_cli.core.results.observations import RuntimeSettings

_PROVIDERS = {"CPUExecutionProvider": "cpu", "CUDAExecutionProvider": "cuda"}

_LEVELS = {
    "ORT_DISABLE_ALL": 0,
    "ORT_ENABLE_BASIC": 1,
    "ORT_ENABLE_EXTENDED": 2,
    "ORT_ENABLE_LAYOUT": 3,
    "ORT_ENABLE_ALL": 99,
}
_MODES = {"ORT_SEQUENTIAL": 0, "ORT_PARALLEL": 1}


class MemplanOptimize(Pass):  # type: ignore[misc]  # Olive has no types
    """Plan a model's memory, write it in the order that needs least, and prove it."""

    @classmethod
    def _default_config(cls, accelerator_spec: Any) -> dict[str, Any]:  # noqa: ANN401 - Olive's
        """Return the parameters: each setting of memplan by its name, and how to prove."""
        del accelerator_spec
        settings = {
            one.name: PassConfigParam(
                type_=Any,
                default_value=None,
                description=f"memplan's setting {one.name}, as in a settings file.",
            )
            for one in fields(Settings)
        }
        own = {
            "settings_file": PassConfigParam(
                type_=str, default_value=None, description="A settings file of memplan."
            ),
            "validation": PassConfigParam(
                type_=str,
                default_value="full",
                description="Run both models: compare 'outputs', their memory too ('full'), "
                "or nothing ('none').",
            ),
        }
        return {**settings, **own}

    @classmethod
    def get_config_params(
        cls,
        accelerator_spec: Any,  # noqa: ANN401 - Olive's
        config: Any = None,  # noqa: ANN401 - Olive's
        disable_search: Any = False,  # noqa: ANN401, FBT002 - Olive's signature
    ) -> Any:  # noqa: ANN401 - Olive's
        """Return the configuration; a name that Olive would ignore is refused.

        Raises:
            ValueError: naming it.
        """
        known = cls._default_config(accelerator_spec)
        wrong = next((name for name in config or {} if name not in known), None)
        if wrong is not None:
            raise ValueError(
                f"memplan: the pass has no parameter {wrong!r}. {nearest(wrong, known)}".strip()
            )
        return super().get_config_params(accelerator_spec, config, disable_search)

    def _run_for_config(
        self,
        model: Any,  # noqa: ANN401 - Olive's handler
        config: Any,  # noqa: ANN401 - Olive's configuration of this pass
        output_model_path: str,
    ) -> Any:  # noqa: ANN401 - Olive's handler
        """Optimise one model.

        Raises:
            ValueError: memplan refuses it, or the written model is none to use. Olive ends
                the workflow with its message.
        """
        # Olive calls a model that it saves so, and a plan has the name of its model.
        out = Path(resolve_onnx_path(output_model_path, "model.onnx"))
        given = {name: getattr(config, name) for name in _names()}
        try:
            done = optimize(
                model.model_path,
                config=config.settings_file,
                out=out,
                check=_check(config.validation, self.accelerator_spec),
                **{name: value for name, value in given.items() if value is not None},
            )
        except MemplanError as error:
            hint = f"; {error.hint}" if error.hint else ""
            raise ValueError(f"memplan: {error}{hint}") from error
        if not done.passed:
            raise ValueError(f"memplan: {_why_not(done)}")
        return _handler(model, done, out)


def _names() -> tuple[str, ...]:
    return tuple(one.name for one in fields(Settings))


def _check(depth: str, accelerator: Any) -> Check | None:  # noqa: ANN401 - Olive's
    """Return how the written model is proved, on the provider that Olive works for."""
    if depth == "none":
        return None
    if depth not in {"outputs", "full"}:
        raise ValueError(f"memplan: validation is {depth!r}: expected outputs, full or none")
    provider = _PROVIDERS.get(str(accelerator.execution_provider), "cpu")
    return Check(provider, depth="outputs" if depth == "outputs" else "full")


def _why_not(done: Optimized) -> str:
    """Return why nothing was written."""
    report = done.plan.report
    if missed := over_budget(report):
        return f"{missed}: nothing was written"
    found = report.validation.differences if report.validation else ()
    names = ", ".join(one.output for one in found[:5])
    return f"outputs are not the original's, so nothing was written: {names}"


def _handler(model: Any, done: Optimized, out: Path) -> Any:  # noqa: ANN401 - Olive's handlers
    """Return what Olive goes on with: the model, its weights and its plan, one folder."""
    attributes = dict(model.model_attributes or {})
    beside = [str(path) for path in done.written if path not in {out, *done.data_files}]
    attributes["additional_files"] = sorted(
        {*(attributes.get("additional_files") or ()), *beside}
    )
    runtime = done.plan.report.runtime
    settings = None if runtime is None else runtime.settings
    inference = dict(model.inference_settings or {})
    if settings is not None:
        said = inference.get("session_options") or {}
        inference["session_options"] = {**said, **session_options(settings)}
    return ONNXModelHandler(
        model_path=str(out.parent if done.data_files else out),
        onnx_file_name=out.name if done.data_files else None,
        model_attributes=attributes,
        inference_settings=inference or None,
    )


def session_options(settings: RuntimeSettings) -> dict[str, Any]:
    """Return what of the runtime's settings Olive sets on its sessions, as it writes them.

    Orders of execution, patterns, arenas, run options and buffers are left: Olive has no
    names for them. `memplan.load` on the file sets all.
    """
    session = settings.session
    found: dict[str, Any] = {}
    if session.get("graph_optimization_level") in _LEVELS:
        found["graph_optimization_level"] = _LEVELS[str(session["graph_optimization_level"])]
    if session.get("execution_mode") in _MODES:
        found["execution_mode"] = _MODES[str(session["execution_mode"])]
    entries = {key: str(value) for key, value in settings.session_config.items()}
    return {**found, **({"extra_session_config": entries} if entries else {})}


def package_config() -> dict[str, Any]:
    """Return the installed Olive's package configuration with the pass of memplan in it."""
    spec = find_spec("olive")
    folder = Path(str(spec.origin)).parent if spec else Path()
    data: dict[str, Any] = json.loads((folder / "olive_config.json").read_text("utf-8"))
    own: Mapping[str, Any] = {
        "module_path": f"memplan_cli.integrations.olive.{MemplanOptimize.__name__}",
        "supported_providers": ["*"],
        "supported_accelerators": ["*"],
        "supported_precisions": ["*"],
        "supported_algorithms": [],
        "supported_quantization_encodings": [],
    }
    return {**data, "passes": {**data["passes"], MemplanOptimize.__name__: own}}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(package_config(), indent=2) + os.linesep)
