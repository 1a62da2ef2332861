"""`MemplanOptimize`, a pass of Olive that does what ``memplan optimize`` does.

    python -m memplan_cli.integrations.olive > package_config.json
    olive run --config workflow.json --package-config package_config.json

Olive finds passes by name in a package configuration. This module prints the configuration of the
installed Olive with `MemplanOptimize` added.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import olive
from olive.model import ONNXModelHandler
from olive.model.utils import resolve_onnx_path
from olive.passes import Pass
from olive.passes.pass_config import PassConfigParam

from memplan_cli.api.optimize import optimize
from memplan_cli.core.check import Check
from memplan_cli.core.selection import nearest
from memplan_cli.errors import MemplanError
from memplan_cli.reporting.plans.runtime import reason_not_written
from memplan_cli.settings.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.api.output.optimized import Optimized
    from memplan_cli.core.results.observations import RuntimeSettings

_PROVIDERS = {"CPUExecutionProvider": "cpu", "CUDAExecutionProvider": "cuda"}

# Olive sets these options by number.
_OPTIMIZATION_LEVELS = {
    "ORT_DISABLE_ALL": 0,
    "ORT_ENABLE_BASIC": 1,
    "ORT_ENABLE_EXTENDED": 2,
    "ORT_ENABLE_LAYOUT": 3,
    "ORT_ENABLE_ALL": 99,
}
_EXECUTION_MODES = {"ORT_SEQUENTIAL": 0, "ORT_PARALLEL": 1}


class MemplanOptimize(Pass):  # type: ignore[misc]  # Olive has no types
    """Writes a model in the node order that needs least memory, and verifies its outputs."""

    @classmethod
    def _default_config(cls, accelerator_spec: Any) -> dict[str, Any]:  # noqa: ANN401 - Olive's
        """Return the parameters: every setting of memplan, a settings file, and the validation."""
        del accelerator_spec
        settings = {
            setting.name: PassConfigParam(
                type_=Any,
                default_value=None,
                description=f"memplan's setting {setting.name}, as in a settings file.",
            )
            for setting in fields(Settings)
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
        """Return the configuration of the pass. Unknown names are errors; Olive ignores them.

        Raises:
            ValueError: a name is not a parameter of the pass.
        """
        parameters = cls._default_config(accelerator_spec)
        unknown = next((name for name in config or {} if name not in parameters), None)
        if unknown is not None:
            hint = nearest(unknown, parameters)
            raise ValueError(f"memplan: the pass has no parameter {unknown!r}. {hint}".strip())
        return super().get_config_params(accelerator_spec, config, disable_search)

    def _run_for_config(
        self,
        model: Any,  # noqa: ANN401 - Olive's handler
        config: Any,  # noqa: ANN401 - Olive's configuration of this pass
        output_model_path: str,
    ) -> Any:  # noqa: ANN401 - Olive's handler
        """Optimize one model, and return a handler of the written model.

        Raises:
            ValueError: memplan refuses the model, or its outputs changed. Olive ends the workflow
                with the message.
        """
        # Olive saves a model under this name, and the plan contains the name of its model.
        out = Path(resolve_onnx_path(output_model_path, "model.onnx"))
        settings = {field.name: getattr(config, field.name) for field in fields(Settings)}
        try:
            optimized = optimize(
                model.model_path,
                config=config.settings_file,
                out=out,
                check=_check(config.validation, self.accelerator_spec),
                **{name: value for name, value in settings.items() if value is not None},
            )
        except MemplanError as error:
            hint = f"; {error.hint}" if error.hint else ""
            raise ValueError(f"memplan: {error.message}{hint}") from error
        if not optimized.passed:
            reason = reason_not_written(optimized.plan.report)
            raise ValueError(f"memplan: {reason}: nothing was written")
        return _output_handler(model, optimized, out)


def _check(depth: str, accelerator: Any) -> Check | None:  # noqa: ANN401 - Olive's
    """Return how the written model is verified, for the parameter ``validation`` of the pass; None: not at all.

    The execution provider of Olive's accelerator runs the models if memplan supports it, else the CPU does.

    Raises:
        ValueError: ``depth`` is none of ``outputs``, ``full`` and ``none``.
    """
    if depth == "none":
        return None
    if depth not in {"outputs", "full"}:
        raise ValueError(f"memplan: validation is {depth!r}: expected outputs, full or none")
    provider = _PROVIDERS.get(str(accelerator.execution_provider), "cpu")
    return Check(provider, depth="outputs" if depth == "outputs" else "full")


def _output_handler(model: Any, optimized: Optimized, out: Path) -> Any:  # noqa: ANN401 - Olive's handlers
    """Return Olive's handler of the written model.

    The plan and further files become additional files of the handler. Its inference settings are
    those of the input model, ``model``, with memplan's session settings added.
    """
    attributes = dict(model.model_attributes or {})
    model_files = {out, *optimized.data_files}
    other_files = [str(path) for path in optimized.written if path not in model_files]
    attributes["additional_files"] = sorted(
        {*(attributes.get("additional_files") or ()), *other_files}
    )
    runtime = optimized.plan.report.runtime
    settings = None if runtime is None else runtime.settings
    inference = dict(model.inference_settings or {})
    if settings is not None:
        existing = inference.get("session_options") or {}
        inference["session_options"] = {**existing, **session_options(settings)}
    # Olive names a model with data files by its folder and the file in it.
    return ONNXModelHandler(
        model_path=str(out.parent if optimized.data_files else out),
        onnx_file_name=out.name if optimized.data_files else None,
        model_attributes=attributes,
        inference_settings=inference or None,
    )


def session_options(settings: RuntimeSettings) -> dict[str, Any]:
    """Return the settings that Olive can set on its sessions, in Olive's form.

    Execution order, memory pattern, arena, run options and bound buffers are missing, because Olive
    has no names for them. `memplan.load` applies all settings of a file.
    """
    session = settings.session
    options: dict[str, Any] = {}
    if session.get("graph_optimization_level") in _OPTIMIZATION_LEVELS:
        options["graph_optimization_level"] = _OPTIMIZATION_LEVELS[
            str(session["graph_optimization_level"])
        ]
    if session.get("execution_mode") in _EXECUTION_MODES:
        options["execution_mode"] = _EXECUTION_MODES[str(session["execution_mode"])]
    entries = {key: str(value) for key, value in settings.session_config.items()}
    return {**options, **({"extra_session_config": entries} if entries else {})}


def package_config() -> dict[str, Any]:
    """Return the installed Olive's package configuration with memplan's pass added."""
    config = Path(olive.__file__).with_name("olive_config.json")
    data: dict[str, Any] = json.loads(config.read_text("utf-8"))
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
