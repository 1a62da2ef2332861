"""The shape of each value: the file's annotations, ONNX inference, bindings, repairs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.core.operators import CONTROL_FLOW
from memplan_cli.errors import SettingsError
from memplan_cli.onnx_io.interface import names_taken
from memplan_cli.onnx_io.load import lazy
from memplan_cli.onnx_io.protobuf import messages
from memplan_cli.onnx_io.shapes.annotations import (
    Names,
    names_of_inputs,
    restore_annotations,
    take_annotations,
)
from memplan_cli.onnx_io.shapes.given import (
    add_known,
    bind_graph,
    dims_from_shapes,
    light_copy,
    name_free_dims,
)
from memplan_cli.onnx_io.shapes.given_values import as_constants, as_inputs
from memplan_cli.onnx_io.shapes.lattice import has_holes
from memplan_cli.onnx_io.shapes.subgraphs.infer import declare, infer_nested
from memplan_cli.onnx_io.shapes.workarounds import add_masks, forget_invented
from memplan_cli.onnx_io.traversal import graphs

if TYPE_CHECKING:
    from onnx import ModelProto

    from memplan_cli.onnx_io.load import LazyModel
    from memplan_cli.onnx_io.shapes.bindings import Bindings


def infer(
    model: ModelProto | LazyModel, bindings: Bindings
) -> tuple[ModelProto, tuple[str, ...]]:
    """Return a light copy of a model with every shape that can be inferred, and warnings.

    Nodes keep their order and index. Big weights appear as graph inputs. A dim that only
    inference has a name for (``unk__0``) is unknown: nobody could give it a value.

    Raises:
        SettingsError: a shape given contradicts the model, or names no value of it.
    """
    source = lazy(model)
    del model
    kinds = {node.op_type for node in source.model.graph.node}
    nested = not kinds.isdisjoint(CONTROL_FLOW)
    light, taken = light_copy(source.model), names_taken(source.model)
    source.release()
    name_free_dims(light, taken)
    said = dims_from_shapes(light, bindings.shapes)
    for name, value in said.items():
        if bindings.dims.get(name, value) != value:
            raise SettingsError(
                f"dim {name!r} is given as both {bindings.dims[name]} and {value}"
            )
    dims = {**bindings.dims, **said}
    names = Names(names_of_inputs(light), dims)
    annotations = take_annotations(light, bindings.untrusted)
    for graph in graphs(light.graph) if dims else ():
        bind_graph(graph, dims)
    add_known(light, bindings, dims)
    fixed = as_constants(light, bindings.values)
    inference = _Inference(has_masks=nested or "Dropout" in kinds)
    if any(annotations):
        found = _infer_nested(light, inference) if nested else inference(light)
        if not restore_annotations(light, annotations, found, names):
            return as_inputs(found, fixed), (*dict.fromkeys(inference.warnings),)
    if nested:
        inferred = _infer_nested(light, inference)
    else:
        # As bytes: the copy is given up before inference makes two more.
        data = light.SerializeToString()
        del light
        inferred = inference.of_bytes(data, messages().ModelProto)
    return as_inputs(inferred, fixed), (*dict.fromkeys(inference.warnings),)


def _infer_nested(light: ModelProto, inference: _Inference) -> ModelProto:
    try:
        return infer_nested(light, inference)
    except Exception as error:  # noqa: BLE001 - subgraphs that are none break it in many ways
        what = f"{type(error).__name__} {str(error)[:200]}"
        inference.warnings.append(f"the shapes inside subgraphs are not known: {what}")
        return inference(light)


@dataclass(slots=True)
class _Inference:
    """ONNX inference of one level, with its repairs; a failure is a warning."""

    warnings: list[str] = field(default_factory=list)
    has_masks: bool = True
    """Whether a Dropout is there, whose masks inference leaves out."""
    failed: bool = False

    def __call__(self, model: ModelProto) -> ModelProto:
        """Infer a model; it is not changed."""
        return self.of_bytes(model.SerializeToString(), type(model))

    def of_bytes(self, data: bytes, kind: type[ModelProto]) -> ModelProto:
        """Infer the graph, then interpret it where that leaves holes."""
        self.failed = False
        inferred = self._once(data, kind)
        if not self.failed and has_holes(inferred.graph):
            from memplan_cli.onnx_io.shapes.symbolic.interpret import interpret

            declare(inferred.graph, interpret(inferred).types)
        return inferred

    def _once(self, data: bytes, kind: type[ModelProto]) -> ModelProto:
        from memplan_cli.onnx_io.shapes.onnx_inference import infer_shapes

        try:
            inferred = infer_shapes(data)
            if self.has_masks and add_masks(inferred):
                inferred = infer_shapes(inferred.SerializeToString())
        except Exception as error:  # noqa: BLE001 - it raises many types; the file's shapes remain
            lines = str(error).strip().splitlines() or [type(error).__name__]
            text = "ONNX shape inference failed, the file's own shapes are used"
            self.warnings.append(f"{text}: {lines[0][:200]}")
            self.failed = True
            inferred = kind()
            inferred.ParseFromString(data)
        forget_invented(inferred)
        return inferred
