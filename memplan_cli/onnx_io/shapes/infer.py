"""Shape inference of a model: declared types, bindings, ONNX's inference, and interpretation of the rest."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.core.operators import CONTROL_FLOW
from memplan_cli.errors import SettingsError
from memplan_cli.onnx_io.interface import names_taken
from memplan_cli.onnx_io.load import first_line, lazy
from memplan_cli.onnx_io.protobuf import messages
from memplan_cli.onnx_io.shapes.annotations import (
    DimNames,
    names_of_inputs,
    restore_annotations,
    take_named_dims,
    take_types,
)
from memplan_cli.onnx_io.shapes.generated_names import clear_generated_names
from memplan_cli.onnx_io.shapes.lattice import has_holes
from memplan_cli.onnx_io.shapes.light_model import (
    as_inputs,
    bind_model,
    light_copy,
    name_free_dims,
    sizes_of_named_dims,
)
from memplan_cli.onnx_io.shapes.onnx_inference import infer_shapes
from memplan_cli.onnx_io.shapes.subgraphs.infer import declare, infer_nested

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onnx import ModelProto

    from memplan_cli.onnx_io.load import LazyModel
    from memplan_cli.onnx_io.shapes.bindings import Bindings


def infer(
    model: ModelProto | LazyModel, bindings: Bindings
) -> tuple[ModelProto, tuple[str, ...]]:
    """Return a light copy of a model with every shape that can be inferred, and warnings.

    Nodes keep their order and index. Large weights are graph inputs.

    Raises:
        SettingsError: a given shape contradicts the model, or names no value of it.
    """
    # At most one copy of a large model is in memory at a time: hence `del` and `release`.
    source = lazy(model)
    del model
    has_subgraphs = any(node.op_type in CONTROL_FLOW for node in source.model.graph.node)
    inference = _Inference(has_subgraphs)
    # 1. Make a copy without weights, in which each free dim of an input has a name by which it can be bound.
    light = light_copy(source.model)
    used_names = names_taken(source.model)
    source.release()
    name_free_dims(light, used_names)
    # 2. Remove declared types of node outputs, because inference keeps what is declared. Step 5 restores some.
    if bindings.untrusted:
        # Nodes contradict the types of these values. Other types may be as wrong, so all are removed.
        restorable_types = take_types(light, never_restored=bindings.untrusted)
    else:
        restorable_types = take_named_dims(light)  # numbers stay
    # 3. Bind dims, shapes and values. Inputs with known values are constants up to the last step.
    sizes = _all_sizes(light, bindings)  # of the dims that are bound, by name
    names_before_binding = DimNames(names_of_inputs(light), sizes)  # for step 5
    constant_inputs = bind_model(light, bindings, sizes)
    data = light.SerializeToString()
    del light
    inferred = inference.of_bytes(data)  # 4. Infer.
    # 5. Restore types that tell more than inference has found, and infer all others from them.
    if any(restorable_types):
        light = messages().ModelProto.FromString(data)
        if restore_annotations(light, restorable_types, inferred, names_before_binding):
            inferred = inference.of_bytes(light.SerializeToString())
    return as_inputs(inferred, constant_inputs), tuple(dict.fromkeys(inference.warnings))


def _all_sizes(model: ModelProto, bindings: Bindings) -> Mapping[str, int]:
    """Return the sizes of dims that are bound by name or follow from the shapes given for inputs.

    All dims of the model's inputs have names (`name_free_dims`).

    Raises:
        SettingsError: a dim has two sizes, or a shape contradicts the model.
    """
    sizes_from_shapes = sizes_of_named_dims(model, bindings.shapes)
    for name, size in sizes_from_shapes.items():
        if bindings.dims.get(name, size) != size:
            raise SettingsError(
                f"dim {name!r} is given as both {bindings.dims[name]} and {size}"
            )
    return {**bindings.dims, **sizes_from_shapes}


@dataclass(frozen=True, slots=True)
class _Inference:
    """Inference of a model: ONNX's, and an interpretation of what it leaves open.

    Attributes:
        has_subgraphs: whether the model has nodes with subgraphs.
        warnings: failures; each call may add one.
    """

    has_subgraphs: bool
    warnings: list[str] = field(default_factory=list)

    def of_bytes(self, data: bytes) -> ModelProto:
        """Return an inferred copy of a serialized model, subgraphs at any depth included.

        If inference of subgraphs fails, only the main graph is inferred, and a warning is added.
        """
        if not self.has_subgraphs:
            return self._with_types_of_main_graph(data)
        try:
            return infer_nested(
                messages().ModelProto.FromString(data),
                lambda model: self._with_types_of_main_graph(model.SerializeToString()),
            )
        except Exception as error:  # noqa: BLE001 - invalid subgraphs fail in many ways
            reason = f"{type(error).__name__} {str(error)[:200]}"
            self.warnings.append(f"the shapes inside subgraphs are not known: {reason}")
            return self._with_types_of_main_graph(data)

    def _with_types_of_main_graph(self, data: bytes) -> ModelProto:
        """Return a copy of a serialized model with the inferred types of its main graph's values.

        ONNX infers first, and `interpret` then finds the types that ONNX leaves open. Dims with names that ONNX
        generates (``unk__0``) are unknown: they cannot be bound.

        If ONNX's inference fails, the types are those of the model, and a warning is added: such a model
        may be invalid, and is not interpreted.
        """
        try:
            inferred = infer_shapes(data)
            is_inferred = True
        except Exception as error:  # noqa: BLE001 - of many types
            text = "ONNX shape inference failed, the file's own shapes are used"
            self.warnings.append(f"{text}: {first_line(error)}")
            inferred = messages().ModelProto.FromString(data)
            is_inferred = False
        clear_generated_names(inferred)
        if is_inferred and has_holes(inferred.graph):
            from memplan_cli.onnx_io.shapes.interpret import interpret  # imports numpy

            declare(inferred.graph, interpret(inferred).types)
        return inferred
