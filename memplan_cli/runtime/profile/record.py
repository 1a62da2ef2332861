"""The numbers on which predictions of ONNX Runtime are based, in one record for one version.

A docstring anywhere in the package that calls a fact about the runtime "measured" means this version.
Another version gets another record. How to measure: a log of all blocks that a session
allocates (for the process), the profile of a run (``mem_*`` keys of node events) and
``session.collect_node_memory_stats_to_file`` (for the arena), ``tests.benchmarks.in_place``
(for kernels that write in place).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class RuntimeProfile:
    """Facts about one version of ONNX Runtime on the CPU. Sizes are bytes unless said otherwise.

    Attributes:
        version: the version that was measured and whose sources were read.
        arena_chunk: the arena rounds every request up to a multiple of this
            (``kMinAllocationSize``, core/framework/bfc_arena.h).
        arena_initial: size of the arena's first region by default
            (``DEFAULT_INITIAL_CHUNK_SIZE_BYTES``, core/framework/bfc_arena.h).
        arena_max_dead: a chunk with this much more than the request is split by default
            (``DEFAULT_MAX_DEAD_BYTES_PER_CHUNK``, core/framework/bfc_arena.h).
        arena_max_extension: the largest step of a growing arena by default
            (``DEFAULT_MAX_POWER_OF_TWO_EXTEND_BYTES``, core/framework/bfc_arena.h).
        arena_growth_after_shrink: the first step by default after empty regions were given back
            (``DEFAULT_INITIAL_GROWTH_CHUNK_SIZE_BYTES``, core/framework/bfc_arena.h).
        arena_handle_ratio: the arena keeps a table of 1 byte for this many of a region: a handle
            of 8 bytes for each chunk of 256 (``AllocationRegion``, core/framework/bfc_arena.h).
        pattern_alignment: sizes in a memory pattern's block are rounded up to a multiple of this
            (core/framework/mem_pattern_planner.h).
        tensor_alignment: tensors are aligned to this (``MlasGetPreferredBufferAlignment``,
            core/mlas/lib/platform.cpp).
        string_size: one element of a string tensor, a ``std::string`` as the wheels are built.
        eager_operators: standard operators that ``PRIORITY_BASED`` runs as soon as they are ready
            (``PriorityNodeCompare``, core/graph/graph.cc).
        workspace_first: operators whose kernels allocate workspace before their outputs; others
            do it afterwards (measured: requests of each node).
        image_piece: MLAS takes this for each thread that goes through an image piece by piece
            (measured: workspace of Conv with more pixels than filters).
        loop_counter, loop_condition: bytes that a Loop keeps in the arena while it runs
            (core/providers/cpu/controlflow/loop.cc).
        matrix_panel: MLAS packs float matrices for SGEMM in panels of this many columns
            (measured: blocks that sessions allocate for packed weights).
        session_heap: heap of any session, whatever its model (measured).
        node_heap, weight_heap: heap for each node and for each weight of the file (measured).
        run_node_heap: heap that runs leave for each node (measured).
        loaded_code: pages of the runtime's library that are touched until a session exists
            (measured).
        run_code: pages of the runtime's library that the kernels of a run touch (measured).
        inline_weight: a weight up to this size stays where it was parsed (measured).
        read_buffer: bytes of a file that are read at a time while it is parsed (measured).
        reserved_text: protobuf reserves the whole of a text up to this size; a longer one doubles
            (``kSafeStringSize``, google/protobuf/parse_context.h).
        imported_threshold: size from which glibc maps a request once the runtime is imported:
            Python has freed mappings of up to this size (measured, glibc 2.36).
        mapped_for_row: the system maps this much of a weight file to read one row
            (measured, Linux 6.18, ext4).
        arena_call_work: time to request and free the memory of one tensor, in FLOPs that pass
            meanwhile: 0.15 microseconds (measured: runs with and without a memory pattern).
        imported_process: resident size of a process that has imported Python, NumPy and the runtime,
            and made no session (measured: 50 MB).
        process_margin: the relative error of a predicted process, with the imports, that few exceed
            (measured: 2 of 67 processes, at the median 1.6 %).
        session_process: resident size of a process with a session of one node, Python included
            (measured: 65 MB). A CUDA context takes some hundred megabytes of the card instead.
        cpu_features: features by which kernels are chosen, in Linux's names (MLAS, core/mlas/lib/platform.cpp).
        costly_fusions: fused operator -> the optimizer that makes it, for kernels whose
            workspace costs more memory than the fusion saves: ``BiasGelu`` allocates as much again
            as its result, 1.6 MB beside a peak of 3.6 in BERT-base (measured).
    """

    version: str
    arena_chunk: int
    arena_initial: int
    arena_max_dead: int
    arena_max_extension: int
    arena_growth_after_shrink: int
    arena_handle_ratio: int
    pattern_alignment: int
    tensor_alignment: int
    string_size: int
    eager_operators: frozenset[str]
    workspace_first: frozenset[str]
    image_piece: int
    loop_counter: int
    loop_condition: int
    matrix_panel: int
    session_heap: int
    node_heap: int
    weight_heap: int
    run_node_heap: int
    loaded_code: int
    run_code: int
    inline_weight: int
    read_buffer: int
    reserved_text: int
    imported_threshold: int
    mapped_for_row: int
    arena_call_work: int
    imported_process: int
    process_margin: float
    session_process: int
    cpu_features: frozenset[str]
    costly_fusions: Mapping[str, str]


PROFILE = RuntimeProfile(
    version="1.31.1",
    arena_chunk=256,
    arena_initial=1 << 20,
    arena_max_dead=128 << 20,
    arena_max_extension=1 << 30,
    arena_growth_after_shrink=2 << 20,
    arena_handle_ratio=32,
    pattern_alignment=256,
    tensor_alignment=64,
    string_size=32,
    eager_operators=frozenset({"Shape", "Size"}),
    workspace_first=frozenset({"Einsum", "Where"}),
    image_piece=64 << 10,
    loop_counter=8,
    loop_condition=1,
    matrix_panel=16,
    session_heap=1_300_000,
    node_heap=3_700,
    weight_heap=4_500,
    run_node_heap=500,
    loaded_code=7_850_000,
    run_code=1_100_000,
    inline_weight=127,
    read_buffer=4 << 20,
    reserved_text=50_000_000,
    imported_threshold=1_052_672,
    mapped_for_row=64 << 10,
    arena_call_work=12_000,
    imported_process=48 << 20,
    process_margin=0.1,
    session_process=64 << 20,
    cpu_features=frozenset(
        {
            "amx_bf16",
            "amx_int8",
            "amx_tile",
            "asimddp",
            "avx",
            "avx2",
            "avx512_bf16",
            "avx512_vnni",
            "avx512bw",
            "avx512f",
            "avx_vnni",
            "fma",
            "i8mm",
            "sve",
        }
    ),
    costly_fusions={"BiasGelu": "BiasGeluFusion"},
)
"""The version that memplan requires (pyproject.toml) and predicts."""
