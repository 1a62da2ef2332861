"""Session settings as Python, C and C++ code that creates the session they were measured with.

The C API of ONNX Runtime (up to 1.31) cannot set two options that Python can: the order of
execution, and reuse off. The C and C++ code has a comment where settings contain them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from memplan_cli.core.results.observations import CPU, EXTEND_STRATEGIES, OPTION_ENUMS
from memplan_cli.core.serialization import to_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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


_WITHOUT_C = {
    "execution_order": "DEFAULT",
    "enable_mem_reuse": True,
}
"""Attributes of Python's ``SessionOptions`` that the C API lacks, with their defaults."""

_LEVELS = {
    "ORT_DISABLE_ALL",
    "ORT_ENABLE_BASIC",
    "ORT_ENABLE_EXTENDED",
    "ORT_ENABLE_LAYOUT",
    "ORT_ENABLE_ALL",
}


def c_snippet(settings: RuntimeSettings, model: str, provider: str = CPU) -> str:
    """Return a function in C that creates the session; it returns a status, NULL if all is well."""
    lines = [
        "#include <stddef.h>",
        "",
        "#include <onnxruntime_c_api.h>",
        "",
        *_comments(settings),
        "#define MEMPLAN_TRY(call) \\",
        "  do { \\",
        "    OrtStatus* status_ = (call); \\",
        "    if (status_ != NULL) return status_; \\",
        "  } while (0)",
        "",
        *_pairs(settings),
        "static OrtStatus* memplan_session(const OrtApi* ort, OrtEnv* env, OrtSession** session,",
        "                                  OrtRunOptions** run_options) {",
        "  OrtSessionOptions* options = NULL;",
        "  MEMPLAN_TRY(ort->CreateSessionOptions(&options));",
        *(f"  MEMPLAN_TRY(ort->{call});" for call in _c_options(settings)),
        *(_c_arena(settings) if settings.arena and provider == CPU else ()),
        *(_c_cuda(settings) if provider != CPU else ()),
        f"  MEMPLAN_TRY(ort->CreateSession(env, ORT_TSTR({_text(model)}), options, session));",
        "  ort->ReleaseSessionOptions(options);",
        "  MEMPLAN_TRY(ort->CreateRunOptions(run_options));",
        *(
            f"  MEMPLAN_TRY(ort->AddRunConfigEntry(*run_options, {_text(k)}, {_text(v)}));"
            for k, v in sorted(settings.run_config.items())
        ),
        "  return NULL;",
        "}",
    ]
    return "\n".join(lines) + "\n"


def cpp_snippet(settings: RuntimeSettings, model: str, provider: str = CPU) -> str:
    """Return a function in C++ that creates the session; what fails is an ``Ort::Exception``."""
    lines = [
        "#include <onnxruntime_cxx_api.h>",
        "",
        *_comments(settings),
        *_pairs(settings),
        "inline Ort::Session memplan_session(Ort::Env& env) {",
        "  Ort::SessionOptions options;",
        *(f"  options.{call};" for call in _cpp_options(settings)),
        *(_cpp_arena(settings) if settings.arena and provider == CPU else ()),
        *(_cpp_cuda(settings) if provider != CPU else ()),
        f"  return Ort::Session(env, ORT_TSTR({_text(model)}), options);",
        "}",
        "",
        "inline Ort::RunOptions memplan_run_options() {",
        "  Ort::RunOptions options;",
        *(
            f"  options.AddConfigEntry({_text(k)}, {_text(v)});"
            for k, v in sorted(settings.run_config.items())
        ),
        "  return options;",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _comments(settings: RuntimeSettings) -> Iterator[str]:
    """Yield a comment for each session option that the C API cannot set."""
    for key, default in _WITHOUT_C.items():
        value = settings.session.get(key, default)
        if value != default:
            yield f"// {key} = {value}: can be set from Python only; outputs do not depend on it"


def _pairs(settings: RuntimeSettings) -> Iterator[str]:
    """Yield the donated pairs (output, input) as a C array; nothing without donation."""
    if settings.io_binding:
        yield "// Each of these outputs is bound (OrtIoBinding) to the buffer of the input behind it."
        yield "static const char* const memplan_donated[][2] = {"
        for made, given in sorted(settings.io_binding.items()):
            yield f"    {{{_text(made)}, {_text(given)}}},"
        yield "};"
        yield ""


def _calls(settings: RuntimeSettings) -> Iterator[tuple[str, str]]:
    """Yield ``(function, argument)`` of the C API for each session option.

    Raises:
        ValueError: no function sets an option, and it is not in `_WITHOUT_C`.
    """
    for key, value in sorted(settings.session.items()):
        if key in _WITHOUT_C:
            continue
        if key == "graph_optimization_level" and value in _LEVELS:
            yield "SetSessionGraphOptimizationLevel", str(value)
        elif key == "execution_mode":
            yield "SetSessionExecutionMode", str(value)
        elif key == "enable_mem_pattern":
            yield ("EnableMemPattern" if value else "DisableMemPattern"), ""
        elif key == "enable_cpu_mem_arena":
            yield ("EnableCpuMemArena" if value else "DisableCpuMemArena"), ""
        elif key == "use_deterministic_compute":
            yield "SetDeterministicCompute", "true" if value else "false"
        elif key in ("intra_op_num_threads", "inter_op_num_threads"):
            name = (
                "SetIntraOpNumThreads" if key.startswith("intra") else "SetInterOpNumThreads"
            )
            yield name, str(int(value))
        else:
            raise ValueError(f"no call of the C API sets {key!r}")


def _c_options(settings: RuntimeSettings) -> Iterator[str]:
    for name, argument in _calls(settings):
        yield f"{name}({', '.join(filter(None, ('options', argument)))})"
    for key, value in sorted(settings.session_config.items()):
        yield f"AddSessionConfigEntry(options, {_text(key)}, {_text(value)})"


_CPP_NAMES = {
    "SetSessionGraphOptimizationLevel": "SetGraphOptimizationLevel",
    "SetSessionExecutionMode": "SetExecutionMode",
}
"""Functions that have another name in C++."""


def _cpp_options(settings: RuntimeSettings) -> Iterator[str]:
    for name, argument in _calls(settings):
        yield f"{_CPP_NAMES.get(name, name)}({argument})"
    for key, value in sorted(settings.session_config.items()):
        yield f"AddConfigEntry({_text(key)}, {_text(value)})"


def _arena(settings: RuntimeSettings) -> Mapping[str, Setting]:
    return {k: EXTEND_STRATEGIES.get(str(v), v) for k, v in sorted(settings.arena.items())}


def _c_arena(settings: RuntimeSettings) -> Iterator[str]:
    arena = _arena(settings)
    yield "  // The arena belongs to the environment: registered once, before the first session."
    yield f"  const char* const keys[] = {{{', '.join(map(_text, arena))}}};"
    yield f"  const size_t values[] = {{{', '.join(str(int(v)) for v in arena.values())}}};"
    yield "  OrtArenaCfg* arena = NULL;"
    yield "  OrtMemoryInfo* memory = NULL;"
    yield f"  MEMPLAN_TRY(ort->CreateArenaCfgV2(keys, values, {len(arena)}, &arena));"
    yield "  MEMPLAN_TRY("
    yield '      ort->CreateMemoryInfo("Cpu", OrtArenaAllocator, 0, OrtMemTypeDefault, &memory));'
    yield "  MEMPLAN_TRY(ort->CreateAndRegisterAllocator(env, memory, arena));"
    yield "  ort->ReleaseMemoryInfo(memory);"
    yield "  ort->ReleaseArenaCfg(arena);"
    yield '  MEMPLAN_TRY(ort->AddSessionConfigEntry(options, "session.use_env_allocators", "1"));'


def _cpp_arena(settings: RuntimeSettings) -> Iterator[str]:
    pairs = ", ".join(f"{{{_text(k)}, {int(v)}}}" for k, v in _arena(settings).items())
    yield "  // The arena belongs to the environment: registered once, before the first session."
    yield f"  Ort::ArenaCfg arena(std::unordered_map<std::string, size_t>{{{pairs}}});"
    yield '  Ort::MemoryInfo memory("Cpu", OrtArenaAllocator, 0, OrtMemTypeDefault);'
    yield "  env.CreateAndRegisterAllocator(memory, arena);"
    yield '  options.AddConfigEntry("session.use_env_allocators", "1");'


def _provider_options(settings: RuntimeSettings) -> Mapping[str, str]:
    """Return the options of a CUDA provider, which include those of its arena, as text."""
    own = {**settings.provider, **settings.arena}
    return {k: str(int(v)) if isinstance(v, bool) else str(v) for k, v in sorted(own.items())}


def _c_cuda(settings: RuntimeSettings) -> Iterator[str]:
    options = _provider_options(settings)
    yield "  OrtCUDAProviderOptionsV2* cuda = NULL;"
    yield "  MEMPLAN_TRY(ort->CreateCUDAProviderOptions(&cuda));"
    if options:
        yield f"  const char* const cuda_keys[] = {{{', '.join(map(_text, options))}}};"
        yield f"  const char* const cuda_values[] = {{{', '.join(map(_text, options.values()))}}};"
        yield (
            "  MEMPLAN_TRY(ort->UpdateCUDAProviderOptions(cuda, cuda_keys, cuda_values, "
            f"{len(options)}));"
        )
    yield "  MEMPLAN_TRY(ort->SessionOptionsAppendExecutionProvider_CUDA_V2(options, cuda));"
    yield "  ort->ReleaseCUDAProviderOptions(cuda);"


def _cpp_cuda(settings: RuntimeSettings) -> Iterator[str]:
    pairs = ", ".join(
        f"{{{_text(k)}, {_text(v)}}}" for k, v in _provider_options(settings).items()
    )
    yield "  Ort::CUDAProviderOptions cuda;"
    if pairs:
        yield f"  cuda.Update(std::unordered_map<std::string, std::string>{{{pairs}}});"
    yield "  options.AppendExecutionProvider_CUDA_V2(*cuda);"


def _text(text: str) -> str:
    """Return a C string literal; other characters than printable ASCII are octal escapes."""
    plain = {ord('"'): '\\"', ord("\\"): "\\\\", ord("?"): "\\?"}
    written = (
        plain.get(byte, chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}")
        for byte in text.encode()
    )
    return f'"{"".join(written)}"'
