"""Session settings as Python, C and C++ code that creates the session they were measured with.

The C API of ONNX Runtime (up to 1.31) cannot set two options that Python can: the order of
execution, and reuse off. The C and C++ code has a comment where settings contain them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from memplan_cli.core.results.observations import CPU
from memplan_cli.core.serialization import to_json
from memplan_cli.loading.heap import (
    LOADING_ENVIRONMENT,
    LOADING_ENVIRONMENT_TEXT,
    LOADING_THRESHOLD,
)
from memplan_cli.loading.settings import (
    EXTEND_STRATEGIES,
    MEMORY_NAMES,
    OPTION_ENUMS,
    provider_options,
)
from memplan_cli.reporting.escape import c_literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from memplan_cli.core.results.observations import RuntimeSettings, Setting


_MAX_LINE = 80
"""Columns of a line of Python."""

_LOADED_BY_MEMPLAN = (
    "memplan.load also does what no option does: while it creates the session,",
    "glibc maps each large block by itself, and returns it when it is freed. For",
    "the same memory, start the process with",
    f"  {LOADING_ENVIRONMENT_TEXT}",
)
"""What this code leaves out, on the CPU provider, where weights are packed on the heap."""


def settings_snippet(settings: RuntimeSettings, model: str, provider: str = CPU) -> str:
    """Return Python that creates the session, each option in its scope; the last lines show how to run it."""
    # On other providers the loading environment changes nothing.
    notes = [f"# {note}" for note in _LOADED_BY_MEMPLAN] if provider == CPU else []
    lines = [*notes, "import onnxruntime as ort", "", "options = ort.SessionOptions()"]
    for key, value in sorted(settings.session.items()):
        enum = OPTION_ENUMS.get(key)
        text = f"ort.{enum}.{value}" if enum else repr(value)
        lines.append(f"options.{key} = {text}")
    for key, entry in sorted(settings.session_config.items()):
        lines += _call("options.add_session_config_entry", repr(key), repr(entry))
    if settings.arena:
        lines += _python_arena(settings, provider)
    providers = f"providers=[({provider!r}, {dict(sorted(settings.provider.items()))!r})]"
    lines += _call("session = ort.InferenceSession", repr(model), "options", providers)
    lines.append("run_options = ort.RunOptions()")
    for key, entry in sorted(settings.run_config.items()):
        lines += _call("run_options.add_run_config_entry", repr(key), repr(entry))
    if settings.io_binding:
        lines += binding_lines(settings.io_binding, provider)
    else:
        lines.append("# outputs = session.run(None, inputs, run_options)")
    return "\n".join(lines) + "\n"


def _call(function: str, *arguments: str) -> list[str]:
    """Return a Python call on one line, or with a line for each argument if it is too long."""
    line = f"{function}({', '.join(arguments)})"
    if len(line) <= _MAX_LINE:
        return [line]
    return [f"{function}(", *(f"    {argument}," for argument in arguments), ")"]


def binding_lines(outputs: Mapping[str, str] | str, provider: str = CPU) -> list[str]:
    """Return Python that makes a step of a session with donated buffers.

    A donated output is bound to the buffer of an input, and is written over it. ``outputs`` is
    ``{output: input}``, or a Python expression with this value. The provider's device holds the
    buffers.
    """
    donated = outputs if isinstance(outputs, str) else _dict_literal(outputs)
    device = "cpu" if provider == CPU else "cuda"
    written = "them" if provider == CPU else "their copies on the device"
    return [
        "# Each of these outputs is written over the input that it replaces.",
        f"donated = {donated}",
        "",
        "",
        "def bind(inputs):",
        f'    """Return a binding to these arrays; runs write into {written}."""',
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
        "# session.run_with_iobinding(binding, run_options)  # one step; repeat",
        "# outputs = binding.copy_outputs_to_cpu()",
    ]


def _dict_literal(outputs: Mapping[str, str]) -> str:
    """Return a Python dict literal with one ``output: input`` pair per line."""
    pairs = (
        f"    {output!r}: {input_name!r},\n" for output, input_name in sorted(outputs.items())
    )
    return f"{{\n{''.join(pairs)}}}"


def _python_arena(settings: RuntimeSettings, provider: str) -> list[str]:
    """Return Python that registers the arena of a provider, which all sessions of the process share."""
    entries = [f"    {key!r}: {value!r}," for key, value in _arena_numbers(settings).items()]
    register = "ort.create_and_register_allocator(memory, ort.OrtArenaCfg(arena))"
    if provider != CPU:
        register = f"ort.create_and_register_allocator_v2(\n    {provider!r}, memory, {{}}, ort.OrtArenaCfg(arena)\n)"
    return [
        "# The arena belongs to the process: register it once, before the first session.",
        "memory = ort.OrtMemoryInfo(",
        f'    "{MEMORY_NAMES[provider]}", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT',
        ")",
        "arena = {",
        *entries,
        "}",
        register,
        'options.add_session_config_entry("session.use_env_allocators", "1")',
    ]


def settings_json(settings: RuntimeSettings, provider: str) -> str:
    """Return settings as JSON, in the form of ``runtime.settings`` of a report, and ``environment``.

    These are variables for the process of programs that do not use `memplan_cli.load`.
    """
    environment = process_environment(provider)
    return json.dumps({**to_json(settings), "environment": environment}, indent=2) + "\n"


def process_environment(provider: str) -> dict[str, str]:
    """Return the environment variables with which loading takes as little as with `memplan_cli.load`."""
    return dict(LOADING_ENVIRONMENT) if provider == CPU else {}


_WITHOUT_C = {
    "execution_order": "DEFAULT",
    "enable_mem_reuse": True,
}
"""Attributes of Python's ``SessionOptions`` that the C API lacks, with their defaults."""

_SETTERS = {
    "execution_mode": "SetSessionExecutionMode",
    "graph_optimization_level": "SetSessionGraphOptimizationLevel",
    "inter_op_num_threads": "SetInterOpNumThreads",
    "intra_op_num_threads": "SetIntraOpNumThreads",
    "use_deterministic_compute": "SetDeterministicCompute",
}
"""Attribute of Python's ``SessionOptions`` -> the function of the C API that takes its value."""

_SWITCHES = {
    "enable_cpu_mem_arena": "CpuMemArena",
    "enable_mem_pattern": "MemPattern",
}
"""Attribute -> the name behind ``Enable`` or ``Disable`` of the two functions that set it."""

_CPP_NAMES = {
    "SetSessionGraphOptimizationLevel": "SetGraphOptimizationLevel",
    "SetSessionExecutionMode": "SetExecutionMode",
}
"""Functions that have another name in C++."""


def c_snippet(settings: RuntimeSettings, model: str, provider: str = CPU) -> str:
    """Return a function in C that creates the session and its run options.

    The function returns NULL, or the status of the first call that failed. What was created before that
    is not released.
    """
    lines = [
        "#include <stddef.h>",
        "",
        "#include <onnxruntime_c_api.h>",
        "",
        *_python_only_comments(settings),
        *_loading_comments(provider),
        "#define MEMPLAN_TRY(call) \\",
        "  do { \\",
        "    OrtStatus* status_ = (call); \\",
        "    if (status_ != NULL) return status_; \\",
        "  } while (0)",
        "",
        *_donated_array(settings),
        "static OrtStatus* memplan_session(const OrtApi* ort, OrtEnv* env, OrtSession** session,",
        "                                  OrtRunOptions** run_options) {",
        "  OrtSessionOptions* options = NULL;",
        "  MEMPLAN_TRY(ort->CreateSessionOptions(&options));",
        *(
            f"  MEMPLAN_TRY(ort->{function}({', '.join(('options', *arguments))}));"
            for function, arguments in _session_calls(settings)
        ),
        *(
            f"  MEMPLAN_TRY(ort->AddSessionConfigEntry(options, {pair}));"
            for pair in _literal_pairs(settings.session_config)
        ),
        *(_c_arena(settings, provider) if settings.arena else ()),
        *(_c_cuda(settings) if provider != CPU else ()),
        f"  MEMPLAN_TRY(ort->CreateSession(env, ORT_TSTR({c_literal(model)}), options, session));",
        "  ort->ReleaseSessionOptions(options);",
        "  MEMPLAN_TRY(ort->CreateRunOptions(run_options));",
        *(
            f"  MEMPLAN_TRY(ort->AddRunConfigEntry(*run_options, {pair}));"
            for pair in _literal_pairs(settings.run_config)
        ),
        "  return NULL;",
        "}",
    ]
    return "\n".join(lines) + "\n"


def cpp_snippet(settings: RuntimeSettings, model: str, provider: str = CPU) -> str:
    """Return two functions in C++: one creates the session, the other its run options.

    Both throw an ``Ort::Exception`` if a call fails.
    """
    lines = [
        "#include <onnxruntime_cxx_api.h>",
        "",
        *_python_only_comments(settings),
        *_loading_comments(provider),
        *_donated_array(settings),
        "inline Ort::Session memplan_session(Ort::Env& env) {",
        "  Ort::SessionOptions options;",
        *(
            f"  options.{_CPP_NAMES.get(function, function)}({', '.join(arguments)});"
            for function, arguments in _session_calls(settings)
        ),
        *(
            f"  options.AddConfigEntry({pair});"
            for pair in _literal_pairs(settings.session_config)
        ),
        *(_cpp_arena(settings, provider) if settings.arena else ()),
        *(_cpp_cuda(settings) if provider != CPU else ()),
        f"  return Ort::Session(env, ORT_TSTR({c_literal(model)}), options);",
        "}",
        "",
        "inline Ort::RunOptions memplan_run_options() {",
        "  Ort::RunOptions options;",
        *(
            f"  options.AddConfigEntry({pair});"
            for pair in _literal_pairs(settings.run_config)
        ),
        "  return options;",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _python_only_comments(settings: RuntimeSettings) -> Iterator[str]:
    """Yield a comment for each session option that the C API cannot set, unless it has its default."""
    for key, default in _WITHOUT_C.items():
        value = settings.session.get(key, default)
        if value != default:
            yield f"// {key} = {value}: can be set from Python only; outputs do not depend on it"


def _loading_comments(provider: str) -> Iterator[str]:
    """Yield comments on what `memplan_cli.load` does beside its options, and the calls that do the same."""
    if provider != CPU:
        return
    yield from (f"// {note}" for note in _LOADED_BY_MEMPLAN)
    yield f"// or call mallopt(M_MMAP_THRESHOLD, {LOADING_THRESHOLD}) and"
    yield f"// mallopt(M_TRIM_THRESHOLD, {2 * LOADING_THRESHOLD}) (malloc.h) before, malloc_trim(0) after."


def _donated_array(settings: RuntimeSettings) -> Iterator[str]:
    """Yield the donated pairs (output, input) as a C array; nothing without donation."""
    if settings.io_binding:
        yield "// Each of these outputs is bound (OrtIoBinding) to the buffer of the input behind it."
        yield "static const char* const memplan_donated[][2] = {"
        yield from (f"    {{{pair}}}," for pair in _literal_pairs(settings.io_binding))
        yield "};"
        yield ""


def _session_calls(settings: RuntimeSettings) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield a C API call for each session option: ``("SetInterOpNumThreads", ("1",))``.

    The arguments are those that follow the pointer to the session options. Attributes in `_WITHOUT_C` are left out:
    `_python_only_comments` names them.

    Raises:
        ValueError: no function sets an attribute, and it is not in `_WITHOUT_C`.
    """
    for key, value in sorted(settings.session.items()):
        if key in _SETTERS:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            yield _SETTERS[key], (text,)
        elif key in _SWITCHES:
            yield f"{'Enable' if value else 'Disable'}{_SWITCHES[key]}", ()
        elif key not in _WITHOUT_C:
            raise ValueError(f"no call of the C API sets {key!r}")


def _arena_numbers(settings: RuntimeSettings) -> Mapping[str, Setting]:
    """Return the options of the arena by key, with numbers in place of names of strategies."""
    return {
        key: EXTEND_STRATEGIES.get(str(value), value)
        for key, value in sorted(settings.arena.items())
    }


def _c_arena(settings: RuntimeSettings, provider: str) -> Iterator[str]:
    """Yield C that registers the arena of a provider and lets the session use it."""
    numbers = _arena_numbers(settings)
    memory_name = c_literal(MEMORY_NAMES[provider])
    register_call = "CreateAndRegisterAllocator(env, memory, arena)"
    if provider != CPU:
        register_call = f"CreateAndRegisterAllocatorV2(env, {c_literal(provider)}, memory, arena, NULL, NULL, 0)"
    yield "  // The arena belongs to the environment: registered once, before the first session."
    yield f"  const char* const keys[] = {{{', '.join(map(c_literal, numbers))}}};"
    yield f"  const size_t values[] = {{{', '.join(str(int(v)) for v in numbers.values())}}};"
    yield "  OrtArenaCfg* arena = NULL;"
    yield "  OrtMemoryInfo* memory = NULL;"
    yield f"  MEMPLAN_TRY(ort->CreateArenaCfgV2(keys, values, {len(numbers)}, &arena));"
    yield "  MEMPLAN_TRY("
    yield f"      ort->CreateMemoryInfo({memory_name}, OrtArenaAllocator, 0, OrtMemTypeDefault, &memory));"
    yield f"  MEMPLAN_TRY(ort->{register_call});"
    yield "  ort->ReleaseMemoryInfo(memory);"
    yield "  ort->ReleaseArenaCfg(arena);"
    yield '  MEMPLAN_TRY(ort->AddSessionConfigEntry(options, "session.use_env_allocators", "1"));'


def _cpp_arena(settings: RuntimeSettings, provider: str) -> Iterator[str]:
    """Yield C++ that registers the arena of a provider and lets the session use it."""
    memory = f"{c_literal(MEMORY_NAMES[provider])}, OrtArenaAllocator, 0, OrtMemTypeDefault"
    register = "CreateAndRegisterAllocator(memory, arena)"
    if provider != CPU:
        register = f"CreateAndRegisterAllocatorV2({c_literal(provider)}, memory, {{}}, arena)"
    pairs = ", ".join(
        f"{{{c_literal(key)}, {int(value)}}}"
        for key, value in _arena_numbers(settings).items()
    )
    yield "  // The arena belongs to the environment: registered once, before the first session."
    yield f"  Ort::ArenaCfg arena(std::unordered_map<std::string, size_t>{{{pairs}}});"
    yield f"  Ort::MemoryInfo memory({memory});"
    yield f"  env.{register};"
    yield '  options.AddConfigEntry("session.use_env_allocators", "1");'


def _c_cuda(settings: RuntimeSettings) -> Iterator[str]:
    """Yield C that appends the CUDA provider to the session options."""
    options = dict(sorted(provider_options(settings.provider).items()))
    yield "  OrtCUDAProviderOptionsV2* cuda = NULL;"
    yield "  MEMPLAN_TRY(ort->CreateCUDAProviderOptions(&cuda));"
    if options:
        yield f"  const char* const cuda_keys[] = {{{', '.join(map(c_literal, options))}}};"
        yield f"  const char* const cuda_values[] = {{{', '.join(map(c_literal, options.values()))}}};"
        yield (
            "  MEMPLAN_TRY(ort->UpdateCUDAProviderOptions(cuda, cuda_keys, cuda_values, "
            f"{len(options)}));"
        )
    yield "  MEMPLAN_TRY(ort->SessionOptionsAppendExecutionProvider_CUDA_V2(options, cuda));"
    yield "  ort->ReleaseCUDAProviderOptions(cuda);"


def _cpp_cuda(settings: RuntimeSettings) -> Iterator[str]:
    """Yield C++ that appends the CUDA provider to the session options."""
    pairs = ", ".join(
        f"{{{pair}}}" for pair in _literal_pairs(provider_options(settings.provider))
    )
    yield "  Ort::CUDAProviderOptions cuda;"
    if pairs:
        yield f"  cuda.Update(std::unordered_map<std::string, std::string>{{{pairs}}});"
    yield "  options.AppendExecutionProvider_CUDA_V2(*cuda);"


def _literal_pairs(pairs: Mapping[str, str]) -> Iterator[str]:
    """Yield each key and its value as two C string literals with a comma, sorted."""
    for key, value in sorted(pairs.items()):
        yield f"{c_literal(key)}, {c_literal(value)}"
