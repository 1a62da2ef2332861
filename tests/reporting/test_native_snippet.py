"""Settings as C and C++: compilers take them, and they set what the Python ones set."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from memplan_cli.core.results.observations import CPU, CUDA, RuntimeSettings
from memplan_cli.reporting.snippets import c_snippet, cpp_snippet

if TYPE_CHECKING:
    from collections.abc import Callable

HEADERS = Path(os.environ.get("ORT_INCLUDE_DIR", Path(__file__).parent / "native"))
"""ONNX Runtime's own headers where the variable names them, else our declarations of it."""

LANGUAGES: dict[str, tuple[Callable[..., str], str, tuple[str, ...]]] = {
    "c": (c_snippet, "cc", ("-x", "c", "-std=c11")),
    "cpp": (cpp_snippet, "c++", ("-x", "c++", "-std=c++17")),
}

EVERYTHING = RuntimeSettings(
    session={
        "execution_order": "PRIORITY_BASED",
        "graph_optimization_level": "ORT_DISABLE_ALL",
        "enable_mem_pattern": False,
        "enable_mem_reuse": False,
        "enable_cpu_mem_arena": True,
        "execution_mode": "ORT_SEQUENTIAL",
        "intra_op_num_threads": 1,
        "inter_op_num_threads": 1,
        "use_deterministic_compute": True,
    },
    session_config={"session.use_device_allocator_for_initializers": "1"},
    arena={"arena_extend_strategy": "kSameAsRequested", "max_dead_bytes_per_chunk": 1},
    provider={"use_tf32": 0},
    run_config={"memory.enable_memory_arena_shrinkage": "cpu:0"},
    io_binding={"new.w": "in.w"},
)

CASES = {
    "nothing": RuntimeSettings(),
    "everything": EVERYTHING,
    "an arena": RuntimeSettings(arena={"initial_chunk_size_bytes": 1 << 20}),
}


def check(language: str, text: str) -> None:
    """Let a compiler read a snippet, warnings as errors."""
    compiler = shutil.which(LANGUAGES[language][1])
    if compiler is None:
        pytest.skip("there is no compiler here")
    flags = (*LANGUAGES[language][2], "-Wall", "-Wextra", "-Werror", "-Wno-unused")
    command = [compiler, *flags, "-fsyntax-only", f"-I{HEADERS}", "-"]
    done = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
    assert done.returncode == 0, f"{done.stderr}\n{text}"


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("provider", [CPU, CUDA])
@pytest.mark.parametrize("case", CASES)
def test_a_compiler_takes_it(language: str, provider: str, case: str) -> None:
    check(language, LANGUAGES[language][0](CASES[case], "m.onnx", provider))


@pytest.mark.parametrize("language", LANGUAGES)
def test_names_of_any_kind_stay_text(language: str) -> None:
    name = 'C:\\new "models"\\ä??/\n.onnx'
    text = LANGUAGES[language][0](RuntimeSettings(), name)
    check(language, text)
    assert '\\"models\\"' in text
    assert "\\303\\244" in text


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_holds_a_file_as_it_stands_is_there(language: str) -> None:
    text = LANGUAGES[language][0](EVERYTHING, "m.onnx")
    assert "ORT_DISABLE_ALL" in text
    assert "DisableMemPattern" in text
    assert '"session.use_env_allocators", "1"' in text
    assert "execution_order = PRIORITY_BASED: can be set from Python only" in text
    assert "enable_mem_reuse = False: can be set from Python only" in text
    assert re.search(r'{"new.w", "in.w"}', text)


@pytest.mark.parametrize("language", LANGUAGES)
def test_on_cuda_too_the_arena_is_registered_as_its_provider_lacks_its_keys(
    language: str,
) -> None:
    text = LANGUAGES[language][0](EVERYTHING, "m.onnx", CUDA)
    register, provider = text.split("CUDAProviderOptions", 1)
    assert "CreateAndRegisterAllocatorV2" in register
    assert f'"{CUDA}"' in register
    assert '"Cuda", OrtArenaAllocator' in register
    assert '"max_dead_bytes_per_chunk"' in register
    assert '"session.use_env_allocators", "1"' in register
    assert '"use_tf32"' in provider
    assert "max_dead_bytes" not in provider
    assert "arena_extend_strategy" not in provider


def test_an_option_without_a_call_is_no_silence() -> None:
    with pytest.raises(ValueError, match="no call of the C API sets 'log_id'"):
        c_snippet(RuntimeSettings(session={"log_id": "x"}), "m.onnx")
