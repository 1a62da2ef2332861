"""Entries of session and run options of ONNX Runtime that change memory, for ``memplan doctor``.

ONNX Runtime accepts any entry in silence, so that a misspelled one has no effect. The names are those in the
library of the version of `PROFILE`; their meaning is from its public sources
(include/onnxruntime/core/session/onnxruntime_session_options_config_keys.h and onnxruntime_run_options_config_keys.h,
core/framework/resource_accountant.cc) and was not measured, unless memplan sets an entry itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

MEMORY_ENTRIES: Mapping[str, str] = {
    "memory.enable_memory_arena_shrinkage": "of a run: return empty regions of the named arenas after it",
    "session.use_env_allocators": "use the arenas that the process has registered, with other sessions",
    "session.use_device_allocator_for_initializers": "allocate each weight by itself, not in the arena",
    "session.disable_prepacking": "keep weights as they are, without packed copies",
    "session.prepack.enable_parallel": "pack several weights at once while loading",
    "session.save_external_prepacked_constant_initializers": "write packed weights into the saved file",
    "session.use_memory_mapped_ort_model": "map a file of the .ort format instead of reading it",
    "session.use_ort_model_bytes_directly": "keep no copy of the bytes of a model in the .ort format",
    "session.use_ort_model_bytes_for_initializers": "weights stay in those bytes too",
    "session.use_external_initializer_file_buffers_directly": "weights stay in the buffers of the caller",
    "optimization.constant_folding_max_output_size_in_bytes": "fold no constant that becomes larger (1 GiB)",
    "optimization.disable_specified_optimizers": "leave out optimizers, and what their kernels request",
    "session.graph_optimizations_loop_level": "how often optimizers run again, which decides the graph",
    "session.disable_quant_qdq": "run quantized nodes as they are in the file, in float",
    "session.disable_qdq_constant_folding": "keep quantized weights small: do not fold DequantizeLinear",
    "session.enable_quant_qdq_cleanup": "remove pairs of QuantizeLinear and DequantizeLinear",
    "session.disable_double_qdq_remover": "keep repeated pairs of them",
    "session.enable_dq_matmulnbits_fusion": "multiply by 4-bit weights without unpacking them",
    "session.qdq_matmulnbits_block_size": "values for each scale of such weights",
    "session.qdq_matmulnbits_accuracy_level": "type in which such products are computed",
    "mlas.use_lut_gemm": "multiply by tables, which are weights in another form",
    "mlas.nchwc_pointwise_conv_max_input_channel_batch": "input channels for each step of 1x1 convolutions",
    "mlas.nchwc_depthwise_sliding": "another kernel of depthwise convolutions",
    "session.gqa_value_layout": "layout of values in caches; another one adds Transposes around GroupQueryAttention",
    "ep.cuda.fpa_intb_gemm": "on CUDA: keep a second, packed copy of 4-bit and 8-bit weights",
    "ep.cuda.gqa_workspace_max_total_sequence_length": "on CUDA: length of a cache by which workspace is estimated",
    "session.resource_cuda_partitioning_settings": "KiB,FILE: nodes beyond this memory stay on the CPU",
    "session.max_shape_override": "shapes by which that memory is estimated",
    "session.collect_node_memory_stats_to_file": "write the FILE for it during a run",
    "session.layer_assignment_settings": "devices of nodes, by their annotations",
    "session.name_based_layer_assignment": "devices of nodes, by their names",
    "session.node_partition_config_file": "streams of nodes, from a file; two on one device are planned without reuse at first",
    "session.record_ep_graph_assignment_info": "keep which nodes went where, to be read later",
    "session.disable_cpu_ep_fallback": "fail instead of running nodes on the CPU",
    "session.strict_workspace_verification": "fail if kernels declare more workspace than was estimated",
}
"""Entry -> what it changes."""
