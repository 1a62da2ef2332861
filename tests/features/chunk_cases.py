"""A node and its inputs, run whole and in pieces."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from memplan_cli.features.chunking.axes.split import Node
from memplan_cli.features.chunking.axes.table import chunk_edit
from memplan_cli.onnx_io.read import program_of
from memplan_cli.runtime.workers.session_graph import block_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from memplan_cli.features.chunking.axes.split import Range, Split

    Array = np.ndarray[Any, Any]

CONTRIB, NCHWC = "com.microsoft", "com.microsoft.nchwc"


@dataclass(frozen=True)
class Case:
    """A node and its inputs; ``constants`` are positions whose values the rules may read."""

    type: str
    inputs: tuple[Array | None, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1
    domain: str = ""
    constants: tuple[int, ...] = ()
    opset: int = 24
    ignored: tuple[int, ...] = ()
    """Inputs whose values mean nothing to the result."""

    @property
    def model(self) -> onnx.ModelProto:
        """The node as a model: its arrays are inputs, or initializers where constant."""
        names = [f"x{at}" if each is not None else "" for at, each in enumerate(self.inputs)]
        made = [f"y{at}" for at in range(self.outputs)]
        node = helper.make_node(self.type, names, made, domain=self.domain, **self.attributes)
        given = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(each.dtype), each.shape
            )
            for at, (name, each) in enumerate(zip(names, self.inputs, strict=True))
            if each is not None and at not in self.constants
        ]
        known = [
            numpy_helper.from_array(np.asarray(self.inputs[at]), names[at])
            for at in self.constants
        ]
        results = [helper.make_empty_tensor_value_info(name) for name in made]
        graph = helper.make_graph([node], "case", given, results, known)
        own = [helper.make_opsetid(domain, 1) for domain in (CONTRIB, NCHWC)]
        imports = [helper.make_opsetid("", self.opset), *own]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)

    def feeds(self) -> dict[str, Array]:
        return {
            f"x{at}": each
            for at, each in enumerate(self.inputs)
            if each is not None and at not in self.constants
        }

    def node(self, results: Sequence[Array]) -> Node:
        """Return what the rules see."""
        known = {
            at: tuple(np.asarray(self.inputs[at]).ravel().tolist()) for at in self.constants
        }
        return Node(
            program_of(self.model, self.model.graph, {}).body.ops[0],
            tuple(None if each is None else each.shape for each in self.inputs),
            tuple(each.shape for each in results),
            known,
            self.opset,
        )

    def run(self) -> list[Array]:
        """Return the results by ONNX's reference evaluator."""
        found = ReferenceEvaluator(self.model).run(None, self.feeds())
        return [np.asarray(each) for each in found]

    def run_in_runtime(self) -> list[Array]:
        """Return the results by ONNX Runtime's kernel."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(
            self.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return [np.asarray(each) for each in session.run(None, self.feeds())]

    def block(self, at: int) -> int:
        """Return the block of channels of an input; 0 where it is an array like any other."""
        is_blocked = self.domain == NCHWC and self.type != "ReorderInput" and at in {0, 3}
        return block_size() if is_blocked else 0

    def allows(self, split: Split) -> bool:
        """Whether what has its channels in blocks is cut along samples, rows or columns."""
        reads = [part for at, part in enumerate(split.inputs) if self.block(at)]
        makes = split.outputs if self.block_of_results else ()
        return all(part is None or part.axis != 1 for part in (*reads, *makes))

    @property
    def block_of_results(self) -> int:
        is_blocked = self.domain == NCHWC and self.type != "ReorderOutput"
        return block_size() if is_blocked else 0

    def piece(self, node: Node, split: Split, piece: Range) -> Case:
        """Return the case of one piece."""
        changed = chunk_edit(node, split, piece)
        inputs = list(self.inputs)
        for at, part in enumerate(split.inputs):
            array = inputs[at]
            if part is not None and array is not None:
                start, stop = part.range(piece, array.shape[part.axis])
                taken = _taken(array, part.axis, start, stop, block=self.block(at))
                inputs[at] = cut = taken.copy()
                if (
                    not cut.size and self.type != "Concat"
                ):  # which may read nothing of an input
                    raise ValueError(f"a piece without elements of input {at}")
        for at, values in changed.constants.items():
            inputs[at] = np.array(values, np.int64)
        return replace(
            self, inputs=tuple(inputs), attributes={**self.attributes, **changed.attributes}
        )


def reads_everywhere(case: Case, split: Split, cuts: Sequence[int]) -> bool:
    """Whether each piece reads elements of each sliced input; Concat alone can do without."""
    return case.type == "Concat" or all(
        start < stop
        for piece in pairwise([0, *cuts, split.extent])
        for array, part in zip(case.inputs, split.inputs, strict=True)
        if array is not None and part is not None
        for start, stop in [part.range(piece, array.shape[part.axis])]
    )


def differences(
    case: Case,
    node: Node,
    split: Split,
    cuts: Sequence[int],
    run: Callable[[Case], list[Array]],
) -> list[str]:
    """Return which results of which pieces are not the whole's, to the bit."""
    return list(differences_to(run(case), case, node, split, cuts, run))


def differences_to(
    whole: Sequence[Array],
    case: Case,
    node: Node,
    split: Split,
    cuts: Sequence[int],
    run: Callable[[Case], list[Array]],
) -> Iterator[str]:
    """Yield which results of which pieces are not those of ``whole``; each piece is run when it is asked for."""
    for piece in pairwise([0, *cuts, split.extent]):
        results = run(case.piece(node, split, piece))
        before, after = chunk_edit(node, split, piece).surplus
        for at, part in enumerate(split.outputs):
            if part is not None:
                own, block = results[at], case.block_of_results
                if at == 0:
                    stop = own.shape[part.axis] - after
                    own = _taken(own, part.axis, before, stop, block)
                start, stop = part.range(piece, whole[at].shape[part.axis])
                if not is_same(own, _taken(whole[at], part.axis, start, stop, block)):
                    yield f"output {at} of {piece}"


def _taken(array: Array, axis: int, start: int, stop: int, block: int = 0) -> Array:
    """Return a range of an axis; of rows or columns where channels lie in blocks behind these."""
    if block and axis > 1:
        n, c, h, w = array.shape
        ranges = (
            (slice(start, stop), slice(None))
            if axis == 2
            else (slice(None), slice(start, stop))
        )
        part = array.reshape(n, c // block, h, w, block)[:, :, ranges[0], ranges[1]]
        return part.reshape(n, c, *part.shape[2:4])
    places = [slice(None)] * array.ndim
    places[axis] = slice(start, stop)
    return array[tuple(places)]


def is_same(one: Array, other: Array) -> bool:
    """Whether two arrays are equal to the bit; what is computed in double, to a float's bits.

    How the reference evaluator rounds sums hangs on how its arrays lie in memory.
    """
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    if one.dtype == np.float64:
        one, other = one.astype(np.float32), other.astype(np.float32)
    return one.tobytes() == other.tobytes()
