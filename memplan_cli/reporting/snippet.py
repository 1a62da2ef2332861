"""The settings as code: what to paste to get the session that was measured."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from memplan_cli.core.results.observations import CPU, EXTEND_STRATEGIES, OPTION_ENUMS
from memplan_cli.core.serialization import to_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.results.observations import RuntimeSettings, Setting


def settings_snippet(settings: RuntimeSettings, model: str, provider: str = CPU) -> str:
    """Return Python that creates the session and runs it, each option in its scope."""
    lines = ["import onnxruntime as ort", "", "options = ort.SessionOptions()"]
    for key, value in sorted(settings.session.items()):
        enum = OPTION_ENUMS.get(key)
        text = f"ort.{enum}.{value}" if enum else repr(value)
        lines.append(f"options.{key} = {text}")
    for key, entry in sorted(settings.session_config.items()):
        lines.append(f"options.add_session_config_entry({key!r}, {entry!r})")
    own: dict[str, Setting] = dict(sorted(settings.provider.items()))
    if settings.arena and provider == CPU:
        lines += _cpu_arena(settings)
    elif settings.arena:
        own |= dict(sorted(settings.arena.items()))
    lines.append(
        f"session = ort.InferenceSession({model!r}, options, "
        f"providers=[({provider!r}, {own!r})])"
    )
    lines.append("run_options = ort.RunOptions()")
    for key, entry in sorted(settings.run_config.items()):
        lines.append(f"run_options.add_run_config_entry({key!r}, {entry!r})")
    if settings.io_binding:
        lines += binding_lines(settings.io_binding, provider)
    else:
        lines.append("# outputs = session.run(None, inputs, run_options)")
    return "\n".join(lines) + "\n"


def binding_lines(outputs: Mapping[str, str] | str, provider: str = CPU) -> list[str]:
    """Return Python that makes a step of a session with donated buffers.

    Args:
        outputs: ``{output: input}``, or an expression that gives it.
        provider: Where the buffers are.
    """
    text = outputs if isinstance(outputs, str) else _pretty(outputs)
    device = "cpu" if provider == CPU else "cuda"
    return [
        "# Each of these outputs is written over the input that it replaces.",
        f"donated = {text}",
        "",
        "",
        "def bind(inputs):",
        '    """Return a binding whose buffers are the arrays given: runs write into them."""',
        "    of = ort.OrtValue.ortvalue_from_numpy",
        f"    buffers = {{name: of(array, {device!r}, 0) for name, array in inputs.items()}}",
        "    binding = session.io_binding()",
        "    for name, buffer in buffers.items():",
        "        binding.bind_ortvalue_input(name, buffer)",
        "    for name in (output.name for output in session.get_outputs()):",
        "        if name in donated:",
        "            binding.bind_ortvalue_output(name, buffers[donated[name]])",
        "        else:",
        f"            binding.bind_output(name, {device!r})",
        "    return binding",
        "",
        "",
        "# binding = bind(inputs)  # inputs: name -> array",
        "# session.run_with_iobinding(binding, run_options)  # a step; and again, the next",
        "# outputs = binding.copy_outputs_to_cpu()",
    ]


def _pretty(outputs: Mapping[str, str]) -> str:
    pairs = (f"    {made!r}: {given!r},\n" for made, given in sorted(outputs.items()))
    return f"{{\n{''.join(pairs)}}}"


def _cpu_arena(settings: RuntimeSettings) -> list[str]:
    """On CPU the arena belongs to the process: one registration, before any session."""
    keys = {k: EXTEND_STRATEGIES.get(str(v), v) for k, v in sorted(settings.arena.items())}
    return [
        "# The arena belongs to the process: register it once, before the first session.",
        "memory = ort.OrtMemoryInfo(",
        '    "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT',
        ")",
        f"ort.create_and_register_allocator(memory, ort.OrtArenaCfg({keys!r}))",
        'options.add_session_config_entry("session.use_env_allocators", "1")',
    ]


def settings_json(settings: RuntimeSettings) -> str:
    """Return the contract's ``runtime.settings`` block as text."""
    return json.dumps(to_json(settings), indent=2) + "\n"
