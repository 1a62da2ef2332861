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
    take_annotations,
)
from memplan_cli.onnx_io.shapes.generated_names import clear_generated_names
from memplan_cli.onnx_io.shapes.lattice import has_holes
from memplan_cli.onnx_io.shapes.light_model import (
    add_known,
    as_constants,
    as_inputs,
    bind_graph,
    dims_from_shapes,
    light_copy,
    name_free_dims,
)
from memplan_cli.onnx_io.shapes.subgraphs.infer import declare, infer_nested
from memplan_cli.onnx_io.traversal import graphs

if TYPE_CHECKING:
    from onnx import ModelProto

    from memplan_cli.onnx_io.load import LazyModel
    from memplan_cli.onnx_io.shapes.bindings import Bindings


def infer(
    model: ModelProto | LazyModel, bindings: Bindings
) -> tuple[ModelProto, tuple[str, ...]]:
    """Return a light copy of a model with every shape that can be inferred, and warnings.

    Nodes keep their order and index. Large weights are graph inputs. Dims with names that inference generates
    (``unk__0``) are unknown: nobody could bind them.

    Raises:
        SettingsError: a given shape contradicts the model, or names no value of it.
    """
    # At most one copy of a large model is in memory at a time: hence `del` and `release`.
    source = lazy(model)
    del model
    has_subgraphs = any(node.op_type in CONTROL_FLOW for node in source.model.graph.node)
    light, taken = light_copy(source.model), names_taken(source.model)
    source.release()
    name_free_dims(light, taken)
    sizes_from_shapes = dims_from_shapes(light, bindings.shapes)
    for name, value in sizes_from_shapes.items():
        if bindings.dims.get(name, value) != value:
            raise SettingsError(
                f"dim {name!r} is given as both {bindings.dims[name]} and {value}"
            )
    dims = {**bindings.dims, **sizes_from_shapes}
    names = DimNames(names_of_inputs(light), dims)
    annotations = take_annotations(light, bindings.untrusted)
    for graph in graphs(light.graph) if dims else ():
        bind_graph(graph, dims)
    add_known(light, bindings, dims)
    constant_inputs = as_constants(light, bindings.values)
    infer_level = _OneLevelInference()
    # First without the removed types.
    if any(annotations):
        inferred = (
            _infer_with_subgraphs(light, infer_level) if has_subgraphs else infer_level(light)
        )
        some_tell_more = restore_annotations(light, annotations, inferred, names)
        if not some_tell_more:
            return as_inputs(inferred, constant_inputs), infer_level.distinct_warnings()
    # Then with those that tell more than inference, if there are any.
    if has_subgraphs:
        inferred = _infer_with_subgraphs(light, infer_level)
    else:
        # As `infer_level(light)`, but the light copy is freed before inference makes two more.
        data = light.SerializeToString()
        del light
        inferred = infer_level.of_bytes(data, messages().ModelProto)
    return as_inputs(inferred, constant_inputs), infer_level.distinct_warnings()


def _infer_with_subgraphs(light: ModelProto, infer_level: _OneLevelInference) -> ModelProto:
    """Infer a model and its subgraphs; if that fails, only the main graph, with a warning."""
    try:
        return infer_nested(light, infer_level)
    except Exception as error:  # noqa: BLE001 - invalid subgraphs fail in many ways
        reason = f"{type(error).__name__} {str(error)[:200]}"
        infer_level.warnings.append(f"the shapes inside subgraphs are not known: {reason}")
        return infer_level(light)


@dataclass(frozen=True, slots=True)
class _OneLevelInference:
    """Inference of one graph: ONNX's, and an interpretation of what it leaves open.

    Attributes:
        warnings: failures of ONNX's inference; each call may add one.
    """

    warnings: list[str] = field(default_factory=list)

    def distinct_warnings(self) -> tuple[str, ...]:
        """Return the warnings without repetitions, in order."""
        return (*dict.fromkeys(self.warnings),)

    def __call__(self, model: ModelProto) -> ModelProto:
        """Return an inferred copy of a model."""
        return self.of_bytes(model.SerializeToString(), type(model))

    def of_bytes(self, data: bytes, model_class: type[ModelProto]) -> ModelProto:
        """Return an inferred copy of a serialized model, without generated dim names (``unk__0``).

        If ONNX's inference fails, the types are those of the model, and a warning is added. Such a model
        may be invalid and is not interpreted.
        """
        from memplan_cli.onnx_io.shapes.onnx_inference import infer_shapes

        try:
            inferred = infer_shapes(data)
        except Exception as error:  # noqa: BLE001 - of many types
            text = "ONNX shape inference failed, the file's own shapes are used"
            self.warnings.append(f"{text}: {first_line(error)}")
            unchanged = model_class()
            unchanged.ParseFromString(data)
            clear_generated_names(unchanged)
            return unchanged
        clear_generated_names(inferred)
        if has_holes(inferred.graph):
            from memplan_cli.onnx_io.shapes.interpret import interpret

            declare(inferred.graph, interpret(inferred).types)
        return inferred
