"""Remove each rule in turn and see that a test fails: a rule no test needs is not a rule.

    python -m tests.benchmarks.mutations [--only TEXT] [--no-table]

Each mutation is one edit of one file, made in a copy of the repository; the tests named
beside it are run there until one fails.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from .cases import asked

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "measurements" / "mutations.md"
COPIED = (
    "memplan_cli",
    "tests",
    "sample_models",
    "configs",
    "pyproject.toml",
    "README.md",
    "docs",
)


@dataclass(frozen=True)
class Mutation:
    """An edit: in ``file``, ``old`` becomes ``new``; ``tests`` must notice."""

    rule: str
    file: str
    old: str
    new: str
    tests: str


LIVENESS, ALIASING = "memplan_cli/analysis/liveness.py", "memplan_cli/analysis/aliasing.py"
PROBLEM, PLAN = "memplan_cli/core/problem.py", "memplan_cli/core/results/plan.py"
POOL, STORAGE = "memplan_cli/packing/pools/pool.py", "memplan_cli/analysis/storage.py"
SAME = "memplan_cli/onnx_io/writing/verify.py"
RECOMPUTING, DONATE = (
    "memplan_cli/transforms/rematerialization",
    "memplan_cli/transforms/donation.py",
)
_CORE = "tests/analysis/test_liveness.py tests/analysis/test_aliasing.py tests/analysis/test_storage.py tests/planning/test_replay_properties.py tests/analysis/test_liveness_brute_force.py"
_RECOMPUTED = (
    "tests/transforms/test_recompute_auto.py tests/transforms/test_recompute_checkpoints.py"
    " tests/transforms/test_recompute_choices.py"
)
_BRUTE = (
    "tests/transforms/test_recompute_bound.py tests/transforms/test_recompute_properties.py"
)
_DONATED = "tests/transforms/test_donate.py"
_BOUND = "memplan_cli/runtime/workers/jobs/donated.py"
_STEPS = "tests/e2e/test_donated.py::test_an_unsafe_pair_is_caught tests/e2e/test_donated.py::test_a_step_that_starts_from_the_old_values_again_is_caught tests/e2e/test_donated.py::test_a_donated_pair_takes_less_memory_than_two_buffers"

_BRANCHES = "tests/analysis/test_branches.py tests/analysis/test_branch_properties.py"
BLOCKS = "memplan_cli/planning/checking/blocks.py"
CERTIFICATES = "memplan_cli/checking/certificates"
FUSIONS = f"{CERTIFICATES}/fusions.py"
_CERTIFIED = "tests/checking/test_forged_certificates.py tests/checking/test_certificates.py"

CONTRADICTIONS = "memplan_cli/shapes/contradictions.py"
_GIVEN = "tests/onnx_io/test_given_inputs.py"
_BINDING = "tests/workflows/test_bindings.py"
_BODIES = "tests/shapes/test_bodies.py"
_VALUES = "tests/shapes/test_given_values.py tests/workflows/test_given_values.py"
_DOMAINS = "tests/shapes/test_domains.py"
_DECLARED = "tests/shapes/test_contradictions.py tests/shapes/test_reading.py"

_CONSTANTS = "memplan_cli/analysis/constants.py"
_FOLDING = "memplan_cli/transforms/folding.py"
_FOLDED = "memplan_cli/onnx_io/weights/folded.py"
_VALUES_OF_CONSTANTS = "memplan_cli/onnx_io/weights/constants.py"
_STATED = "memplan_cli/planning/checking/constants.py"
_FOLDS = "tests/analysis/test_constants.py tests/transforms/test_folding.py tests/onnx_io/test_folded.py tests/workflows/test_folding.py"

_RESIDENT = "tests/planning/test_resident.py"
_TOLD = "tests/checking/test_lies.py"
_PROCESS = "memplan_cli/runtime/process"
_HEAP = "tests/runtime/test_process_heap.py"
_FORESEEN = "tests/runtime/test_process_prediction.py"

_CHUNKING = "memplan_cli/transforms/chunking"
_CUT = "tests/transforms/test_chunk_rewrite.py"

_CACHES = "memplan_cli/onnx_io/caches"
_IN_PLACE = "tests/workflows/test_caches.py"
_MERGED = "tests/workflows/test_merged_decoders.py"
_DECODED = "tests/runtime/test_decoding.py"

MUTATIONS = (
    Mutation("a cache that several outputs extend is kept", f"{_CACHES}/find.py",
             "extended[each.input] > 1", "False", _IN_PLACE),
    Mutation("a cache that is excluded is kept", f"{_CACHES}/find.py",
             "{each.input, each.output} & set(excluded)", "False", _IN_PLACE),
    Mutation("who reads a cache reads what is valid", f"{_CACHES}/rewrite.py",
             "self.renamed[cache.output] = valid", "pass", _DECODED),
    Mutation("a branch that hands on what the other computes stays", f"{_CACHES}/merged.py",
             'all(each.form != "constant" for each in new)', "True", _MERGED),
    Mutation("a choice that something else reads stays", f"{_CACHES}/merged.py",
             "if not read and", "if", _MERGED),
    Mutation("the length of a cache is a position", f"{_CACHES}/rewrite.py",
             "parts = [length]", "parts = [self.one]", _DECODED),
    Mutation("a step says how many entries are valid", "memplan_cli/runtime/decoding.py",
             "found[self.caches.length].numpy()[0]", "found[self.caches.length].numpy()[0] + 1",
             _DECODED),
    Mutation("a tile reads the halo behind it", f"{_CHUNKING}/axes/windows.py",
             "self.reach - self.stride - self.pads[0]", "0",
             "tests/transforms/test_chunk_axes.py"),
    Mutation("pieces of a product are summed in the blocks of the whole",
             f"{_CHUNKING}/kernels.py",
             "return all(_block((stop - start) * beside, summed) == whole for start, stop in pieces)",
             "return True", "tests/transforms/test_chunk_kernels.py"),
    Mutation("an op computes what all of its readers need", f"{_CHUNKING}/ranges.py",
             "_hull(found.needed.get(var, read), read)", "read", _CUT),
    Mutation("an op goes on where its readers have the rows before", f"{_CHUNKING}/ranges.py",
             "if start < own:", "if start < own - 1:", "tests/transforms/test_chunk_kept.py"),
    Mutation("rows are taken in a view where channels lie in blocks",
             f"{_CHUNKING}/writer.py",
             "return axis == ROWS and blocked in self.graph.blocked", "return False",
             "tests/workflows/test_chunk.py"),
    Mutation("columns are not cut where channels lie in blocks", f"{_CHUNKING}/graph.py",
             "axis == 0 or (axis == ROWS and ", "axis == 0 or (", "tests/transforms/test_chunk_blocks.py"),
    Mutation("what an interpolation makes of its halo is cut off",
             f"{_CHUNKING}/axes/windows.py",
             "(piece[0] - start) * made.scale", "0", "tests/transforms/test_chunk_axes.py"),
    Mutation("a file in pieces declares the dims that it was cut for",
             "memplan_cli/onnx_io/writing/chunked.py", "dim.dim_value = known", "pass",
             "tests/workflows/test_chunk.py"),
    Mutation("a default that a caller may replace is no constant", _CONSTANTS,
             " and var.id not in program.overridable", "", _FOLDS),
    Mutation("a random op is no constant", _CONSTANTS,
             "op.is_random or ", "", _FOLDS),
    Mutation("an operator of another domain is no constant", _CONSTANTS,
             " or op.domain not in STANDARD_DOMAINS", "", _FOLDS),
    Mutation("an op in a branch that is not repeatable makes its op none", _CONSTANTS,
             "return all(is_repeatable(inner) for body in op.bodies for inner in body.ops)", "return True", _FOLDS),
    Mutation("floats are not computed", _FOLDING,
             "if rule is None or not rule(reads, makes):", "if False:", _FOLDS),
    Mutation("an output stays a node's result", _FOLDING,
             "    stays = {**results, **kept}", "    stays = {**kept}", _FOLDS),
    Mutation("what is named stays", _FOLDING,
             "    stays = {**results, **kept}", "    stays = {**results}", _FOLDS),
    Mutation("a weight that is read elsewhere stays", _FOLDING,
             "- read\n", "\n", _FOLDS),
    Mutation("a slice backwards begins at the first element", _VALUES_OF_CONSTANTS,
             "first = min(max(first, 0), size - back)", "first = min(first, size - back)", _FOLDS),
    Mutation("a value is of the planned type and shape", _FOLDED,
             "!= value.dtype or var.shape != value.shape", "!= value.dtype and var.shape != value.shape", _FOLDS),
    Mutation("what a plan file calls foldable is at the peak", _STATED,
             "if at_peak.get(tensor.name) != tensor.bytes:", "if False:", _FOLDS),
    Mutation("constants are folded only where the settings ask for it", _STATED,
             "if report.folded.tensors and", "if False and", _FOLDS),
    Mutation("a loop's inputs last the whole loop", LIVENESS,
             "        yield from ((end, var) for var in op.inputs)\n", "", _CORE),
    Mutation("a loop's results grow during the loop", LIVENESS,
             "        yield from ((start, var) for var in op.outputs)\n", "", _CORE),
    Mutation("a body's inputs are read again each turn", LIVENESS,
             "        yield from ((end, var) for body in op.bodies for var in body.inputs)\n", "", _CORE),
    Mutation("a loop keeps its captures until it ends", LIVENESS,
             "        yield from ((end, var) for body in op.bodies for var in captures(body))\n", "", _CORE),
    Mutation("a subgraph's results are read when its op ends", LIVENESS,
             "        yield from ((end, var) for var in body.outputs)\n", "", _CORE),
    Mutation("the graph's results live to the end", LIVENESS,
             "        last[var] = max(last.get(var, 0), final)\n", "", _CORE),
    Mutation("an in-place input must die there", ALIASING,
             "        if groups.end[root] != start + 1:\n            continue\n", "", _CORE),
    Mutation("an in-place result has its input's size", ALIASING,
             "        if groups.sizes[source] is not size and groups.sizes[source] != size:\n            continue\n", "", _CORE),
    Mutation("a view has its base's size", ALIASING,
             "result is not None and sizes[base] == sizes[result]:", "result is not None:", _CORE),
    Mutation("carried values that change places are no views", ALIASING,
             "        if op.outputs[0] in carried and groups.vars[groups.root(base)] in received:\n            continue\n", "", _CORE),
    Mutation("only standard operators share bytes", ALIASING,
             "if op.domain not in STANDARD_DOMAINS or not op.inputs or not op.outputs:",
             "if not op.inputs or not op.outputs:", _CORE),
    Mutation("what a branch only passes through is copied", ALIASING,
             "results.count(root) == 1 and places.is_inside(groups.vars[root], place)",
             "results.count(root) == 1", _BRANCHES),
    Mutation("a branch's result is of one output", ALIASING, "if results.count(root) == 1 and ", "if ", _BRANCHES),
    Mutation("a branch's result has its output's size", ALIASING,
             "if root is None or groups.sizes[root] != groups.sizes[given]:", "if root is None:", _BRANCHES),
    Mutation("what a branch replaces is not read beside another's result", ALIASING,
             "if groups.may_follow(root, result, start):", "if True:", _BRANCHES),
    Mutation("only branches of one op are exclusive", "memplan_cli/analysis/branches.py",
             "return here[0] == there[0] and here[1] >= 0 and there[1] >= 0",
             "return here[1] >= 0 and there[1] >= 0", _BRANCHES),
    Mutation("subgraphs that may all run are not exclusive", "memplan_cli/analysis/branches.py",
             "return here[0] == there[0] and here[1] >= 0 and there[1] >= 0",
             "return here[0] == there[0]", _BRANCHES),
    Mutation("an order counts a branch's result and its output once", "memplan_cli/transforms/ordering/build.py",
             " and v not in facts.given]", "]", "tests/transforms/test_order_build.py"),
    Mutation("a replayed branch writes no output while it runs", "memplan_cli/runtime/workers/jobs/replay.py",
             "if node.op_type not in BRANCHES:", "if True:", "tests/e2e/test_runtime_replay.py"),
    Mutation("a plan's tensor stays in its body", BLOCKS,
             "if tensor.first < node.start or tensor.last > node.end + 1:", "if False:", "tests/planning/test_checking_blocks.py"),
    Mutation("a plan's loop gives nothing on its body's bytes", BLOCKS,
             "if _any_within(starts.get(node.block, ()), node.start, node.end):", "if False:", "tests/planning/test_checking_blocks.py"),
    Mutation("a plan's output takes one result of a branch", BLOCKS,
             "if results > 1 and given:", "if False:", "tests/planning/test_checking_blocks.py"),
    Mutation("what is pinned lives for the whole run", STORAGE,
             "ranges.update(dict.fromkeys(alone, whole_run))", "pass", _CORE + " tests/planning/test_scope.py"),
    Mutation("what is pinned shares nothing", STORAGE,
             "if var not in apart} if apart else sizes", "} if alone else sizes",
             _CORE + " tests/planning/test_scope.py"),
    Mutation("the checker sees overlaps", PROBLEM,
             "if place < len(live) and live[place] < top:", "if False:", "tests/core/test_problem.py tests/planning/test_plan_file.py"),
    Mutation("the checker sees what lies over its start", PROBLEM,
             "if place and tops[live[place - 1]] > offset:", "if False:", "tests/core/test_problem.py tests/planning/test_plan_file.py"),
    Mutation("the checker sees what sticks out", PROBLEM,
             " or max(map(add, offsets, sizes)) > height", "", "tests/core/test_problem.py tests/planning/test_plan_file.py"),
    Mutation("the checker sees misaligned offsets", PROBLEM,
             "return odd or min(offsets)", "return min(offsets)", "tests/core/test_problem.py tests/planning/test_plan_file.py"),
    Mutation("the checker sees negative offsets", PROBLEM,
             " or min(offsets) < 0", "", "tests/core/test_problem.py tests/planning/test_plan_file.py"),
    Mutation("a plan's alias must exist", PLAN,
             "None if alias_of is not None else (arena", "(arena", "tests/planning/test_plan_file.py"),
    Mutation("a plan places a tensor once", PLAN,
             "if len(identities) != len(tensors):", "if False:", "tests/planning/test_plan_file.py"),
    Mutation("level 0 matches shapes", POOL,
             "return buffer.dtype, buffer.shape", "return buffer.dtype", "tests/packing"),
    Mutation("level 1 matches dtypes", POOL,
             "return buffer.dtype\n", "return 0\n", "tests/packing"),
    Mutation("a slot is free only when its holder is dead", POOL,
             ">> _SLOT_BITS <= start", ">> _SLOT_BITS <= start + 1", "tests/packing tests/packing/test_allocators.py"),
    Mutation("a slot is as large as its largest buffer", POOL,
             "            elif found[slot] < buffer.size:\n                found[slot] = buffer.size\n", "", "tests/packing"),
    Mutation("a slot that is large enough is not enlarged", "memplan_cli/packing/pools/slots.py",
             "enough = bisect_left(sizes, size)\n        fitting", "enough = len(sizes)\n        fitting", "tests/packing"),
    Mutation("a lost node is seen", SAME, "if node not in after)", "if False)", "tests/onnx_io tests/shapes"),
    Mutation("a new node is seen", SAME, "if node not in before and not fewer.allows(node)", "if False", "tests/onnx_io tests/shapes"),
    Mutation("a node that runs twice is seen", SAME,
             "            elif name:\n", "            elif False:\n", "tests/onnx_io tests/shapes"),
    Mutation("a value read before it is made is seen", SAME,
             "if not there.issuperset(node.input[:]):", "if False:", "tests/onnx_io tests/shapes"),
    Mutation("a copy leaves out optional outputs only", SAME,
             "(not one and at in optional)", "not one", "tests/onnx_io tests/shapes"),
    Mutation("inference meets no node that it would crash on", "memplan_cli/shapes/onnx_inference.py",
             "hidden = [node for node, typed in _risky(model.graph, frozenset()) if not typed]",
             "hidden = list[NodeProto]()", "tests/onnx_io tests/shapes"),
    Mutation("declared numbers are compared", CONTRADICTIONS,
             "return made is not None and made >= 0 and made != declared", "return False", _DECLARED),
    Mutation("a number declared for a free size is wrong", CONTRADICTIONS,
             "return not is_invented(made)", "return False", _DECLARED),
    Mutation("declared ranks are compared", CONTRADICTIONS,
             "len(shape) != len(declared.shape) or any(", "any(", _DECLARED),
    Mutation("declared dtypes are compared", CONTRADICTIONS,
             "and dtype != declared.dtype", "and False", _DECLARED),
    Mutation("values of shapes tell declared results apart", CONTRADICTIONS,
             "                key = (*key, *map(self._said, inputs[first:]))\n", "", _DECLARED),
    Mutation("attributes tell declared results apart", CONTRADICTIONS,
             "                key = (*key, *attributes.items())\n", "                pass\n", _DECLARED),
    Mutation("a declared Reshape keeps its elements", CONTRADICTIONS,
             'if op.type == "Reshape":', "if False:", _DECLARED),
    Mutation("what is declared of control-flow nodes is what subgraphs give", CONTRADICTIONS,
             "        *_of_control_flow(nested, program.vars),\n", "", _DECLARED),
    Mutation("declared results of computed shapes are compared", CONTRADICTIONS,
             "waiting = [var for op in queried for var in likeness.sayers(op)]",
             "waiting = list[VarId]()", _DECLARED),
    Mutation("nobody asks about a declared result what would crash", CONTRADICTIONS,
             "if typed or op.type not in NEED_A_TYPE:", "if True:", _DECLARED),
    Mutation("what is declared wrongly is not believed", "memplan_cli/shapes/reading.py",
             "untrusted=untrusted", "untrusted=frozenset()", _DECLARED),
    Mutation("what inference does not agree on is unknown", "memplan_cli/shapes/reading.py",
             "    if left:", "    if False:", _DECLARED),
    Mutation("what hangs on an unknown size is unknown", "memplan_cli/shapes/reading.py",
             "    _spread(program.body, unknown)\n", "", _DECLARED),
    Mutation("a shape given wrongly is refused", "memplan_cli/shapes/reading.py",
             "    _reject_given(left, bindings)\n", "", _DECLARED),
    Mutation("a declared name is nothing against what the node makes", "memplan_cli/shapes/annotations.py",
             'dim.ClearField("dim_param")', "pass", f"{_DECLARED} tests/shapes/test_dim_names.py"),
    Mutation("a name that is none is another dim wherever it stands", "memplan_cli/onnx_io/interface.py",
             "return _NO_NAME.fullmatch(text) is not None", "return not text", "tests/shapes/test_dim_names.py"),
    Mutation("arrays of objects are refused in words", "memplan_cli/onnx_io/runs/input_files/archive.py",
             "    if dtype.hasobject:", "    if False:", _GIVEN),
    Mutation("an array has the bytes that it says", "memplan_cli/onnx_io/runs/input_files/archive.py",
             "    if said != there:", "    if False:", _GIVEN),
    Mutation("inputs are no more than a disk holds", "memplan_cli/onnx_io/runs/input_files/found.py",
             "    if size > LARGEST:", "    if False:", _GIVEN),
    Mutation("data outside of a tensor is not read", "memplan_cli/onnx_io/runs/input_files/tensors.py",
             "if tensor.data_location == TensorProto.EXTERNAL or tensor.external_data:", "if False:", _GIVEN),
    Mutation("an input is fed in its own type", "memplan_cli/onnx_io/runs/given.py",
             "    if found.dtype and not _is_alike(", "    if False and not _is_alike(", _GIVEN),
    Mutation("a run has the shapes that were given", "memplan_cli/workflows/files/binding.py",
             "{name: Feed(shape) for name, shape in said.items()}", "{}", _BINDING),
    Mutation("two that say other sizes are refused", "memplan_cli/workflows/files/binding.py",
             "    _agree(found, both)\n", "", _BINDING),
    Mutation("a dim that the model has not is refused", "memplan_cli/onnx_io/interface.py",
             "        if name not in names:", "        if False:", "tests/shapes/test_dim_names.py"),
    Mutation("a branch known to be taken is followed alone", "memplan_cli/shapes/symbolic/bodies.py",
             "if condition is None or name == taken]", "if True]", _BODIES),
    Mutation("of two branches only what both give is known", "memplan_cli/shapes/symbolic/bodies.py",
             "return one if one == other else None", "return one", _BODIES),
    Mutation("a loop is followed as often as it turns", "memplan_cli/shapes/symbolic/bodies.py",
             "while goes and (count is None or turns < count):", "while goes and (count is None or turns <= count):", _BODIES),
    Mutation("a loop ends where its condition does", "memplan_cli/shapes/symbolic/bodies.py",
             "state, turns, goes = made[: len(state)], turns + 1, bool(goes_on)", "state, turns = made[: len(state)], turns + 1", _BODIES),
    Mutation("a value that a turn changes is not known", "memplan_cli/shapes/symbolic/bodies.py",
             "wide = [common(a, b) for a, b in zip(state, made, strict=False)]", "wide = state", _BODIES),
    Mutation("a scan is given the rows in their order", "memplan_cli/shapes/symbolic/bodies.py",
             "return Known(kind, Value(rows[turn, ...]", "return Known(kind, Value(rows[0, ...]", _BODIES),
    Mutation("what a branch that is not taken makes needs no memory", "memplan_cli/shapes/reading.py",
             "    if loaded.skipped:", "    if False:", _BODIES),
    Mutation("what is never run contradicts nothing", "memplan_cli/shapes/reading.py",
             "if not is_inside(one.var.block, loaded.skipped)]", "if True]", _BODIES),
    Mutation("a branch that is not taken is written without types", "memplan_cli/onnx_io/writing/notes.py",
             "if self._is_inside and 0 in shape:", "if False:", _VALUES),
    Mutation("a value given is of its input's type", "memplan_cli/shapes/given_values.py",
             "    if element != given.data_type:", "    if False:", _VALUES),
    Mutation("a value given is of its input's length", "memplan_cli/shapes/given_values.py",
             "isinstance(dim, str) or dim in (None, length)", "True", _VALUES),
    Mutation("a long value is data", "memplan_cli/shapes/given_values.py",
             " or prod(feed.shape or ()) > _MOST:", ":", _VALUES),
    Mutation("an input whose value is given stays one", "memplan_cli/shapes/given_values.py",
             "    model.graph.input.extend(fixed)\n", "", _VALUES),
    Mutation("a planned model is read with the values given", "memplan_cli/workflows/files/assuming.py",
             ", values=values)", ")", _VALUES),
    Mutation("a product's operand is transposed", "memplan_cli/shapes/domains/products.py",
             "(*shape[:-2], shape[-1], shape[-2]) if last else shape", "shape", _DOMAINS),
    Mutation("a product's batch may lie behind", "memplan_cli/shapes/domains/products.py",
             "    if batch:  # the first", "    if False:  # the first", _DOMAINS),
    Mutation("a general product's operand is transposed", "memplan_cli/shapes/domains/products.py",
             'a[node.number("transA")], b[1 - node.number("transB")]', "a[0], b[1]", _DOMAINS),
    Mutation("channels may be the last dim", "memplan_cli/shapes/domains/products.py",
             "        return (shape[0], *shape[2:], shape[1])\n", "        return shape\n", _DOMAINS),
    Mutation("quantised tensors are joined along an axis", "memplan_cli/shapes/domains/products.py",
             "    found[axis] = summed([shape[axis] for shape in known])\n", "", _DOMAINS),
    Mutation("a cache is as long as what it had and what is new", "memplan_cli/shapes/domains/attention.py",
             "whole = length if past is None else summed((past[2], length))", "whole = length", _DOMAINS),
    Mutation("a shared cache is as long as the longest row", "memplan_cli/shapes/domains/attention.py",
             "larger(past[2], total)", "past[2]", _DOMAINS),
    Mutation("packed queries are wider than the result", "memplan_cli/shapes/domains/attention.py",
             "heads + 2 * few if is_packed else heads", "heads", _DOMAINS),
    Mutation("an attention is as wide as its values", "memplan_cli/shapes/domains/attention.py",
             "hidden: Dim = sizes[2] if", "hidden: Dim = sizes[0] if", _DOMAINS),
    Mutation("heads side by side are as wide as the values", "memplan_cli/shapes/workarounds.py",
             "        node.op_type += _HIDDEN\n", "        pass\n", "tests/shapes/test_workarounds.py"),
    Mutation("one intercept of two labels has two scores", "memplan_cli/shapes/domains/learning.py",
             "scores = two if count == 1 and labels == two else count", "scores = count", _DOMAINS),
    Mutation("a machine has a score for each pair", "memplan_cli/shapes/domains/learning.py",
             "count = two if labels == two else pairs", "count = labels", _DOMAINS),
    Mutation("a label has the type of its values", "memplan_cli/shapes/domains/learning.py",
             "element or (kind if node.attribute(name) is not None else 0)", "element or kind", _DOMAINS),
    Mutation("several elements of a table lie in a byte", "memplan_cli/shapes/domains/microsoft.py",
             'product((rows[-1], 8 // node.number("bits", 4)))', "rows[-1]", _DOMAINS),
    Mutation("a reduction leaves out the dims of its axes", "memplan_cli/shapes/domains/microsoft.py",
             "if keeps or at not in axes]", "]", _DOMAINS),
    Mutation("what is declared comes back only where inference agrees", "memplan_cli/shapes/annotations.py",
             "agrees(mine, kind) and ", "", _DECLARED),
    Mutation("a Constant is no declared type", "memplan_cli/onnx_io/read.py",
             "facts if constant == UNKNOWN else constant", "facts", _DECLARED),
    Mutation("a weight has the data that its dims say", "memplan_cli/onnx_io/weights/sizes.py",
             "if given not in (bytes_of(tensor), 0):", "if False:", "tests/onnx_io/test_weights.py"),
    Mutation("a weight has the values that its dims say", "memplan_cli/onnx_io/weights/sizes.py",
             "if values not in (_values(tensor, bits), 0):", "if False:", "tests/onnx_io/test_weights.py"),
    Mutation("a file holds no more weights than bytes", "memplan_cli/onnx_io/weights/sizes.py",
             "if sum(map(bytes_of, inside)) <= size:", "if True:", "tests/onnx_io/test_weights.py"),
    Mutation("only half a row is taken from a file of rows", "memplan_cli/reporting/findings/sweep_rows.py",
             "if half[: len(_START)] != _START[: len(half)]:", "if False:", "tests/workflows/test_sweep.py"),
    Mutation("functions that call themselves are refused", "memplan_cli/onnx_io/functions.py",
             "if endless is not None:", "if False:", "tests/onnx_io tests/shapes"),
    Mutation("the runtime sends nothing home", "memplan_cli/runtime/workers/warm.py",
             "**QUIET, ", "", "tests/runtime/test_worker.py"),
    Mutation("initializers are compared", SAME,
             "if not _same_weights(old, new):", "if False:", "tests/onnx_io tests/shapes"),
    Mutation("random ops never run twice", f"{RECOMPUTING}/values.py",
             "        op.is_random\n        or op.bodies", "        op.bodies", _RECOMPUTED),
    Mutation("ops on sequences never run twice", f"{RECOMPUTING}/values.py",
             '        or op.type.startswith("Sequence")\n', "", _RECOMPUTED),
    Mutation("what is pinned is never dropped", f"{RECOMPUTING}/values.py",
             "frozenset(program.body.outputs) | frozenset(pinned)", "frozenset(program.body.outputs)", _RECOMPUTED),
    Mutation("results of the graph are never dropped", f"{RECOMPUTING}/values.py",
             "frozenset(program.body.outputs) | frozenset(pinned)", "frozenset(pinned)", _RECOMPUTED),
    Mutation("a copy takes no name that is taken", f"{RECOMPUTING}/build.py",
             "            if twin not in self._vars:\n                break\n", "            break\n", _RECOMPUTED),
    Mutation("a reader reads the latest copy", f"{RECOMPUTING}/build.py",
             "time = times[at - 1]", "time = times[0]", _RECOMPUTED),
    Mutation("copies that are not needed are taken back", f"{RECOMPUTING}/state.py",
             "                undone += 1\n", "                self.copies[value].add(end)\n", _RECOMPUTED),
    Mutation("of what keeps a budget, the least work is taken", f"{RECOMPUTING}/solve.py",
             "return max(self.peak, budget), self.work, self.peak",
             "return max(self.peak, budget), -self.work, self.peak", _RECOMPUTED),
    Mutation("what cannot be made beside a value is kept", f"{RECOMPUTING}/bound.py",
             "if self._takes(at, self._again[value]) + beside > room:", "if False:", _BRUTE),
    Mutation("a branch may replace what the bound counts", f"{RECOMPUTING}/bound.py",
             "made = () if _runs_one(op) else op.outputs", "made = op.outputs", _BRUTE),
    Mutation("the bound counts no input twice", f"{RECOMPUTING}/bound.py",
             "                if need not in free:\n", "                if True:\n", _BRUTE),
    Mutation("in place, an output takes no more", f"{RECOMPUTING}/bound.py",
             "return number(sizes, result) if replaceable else 0", "return 0", _BRUTE),
    Mutation("what crosses segments is kept", f"{RECOMPUTING}/checkpoints.py",
             "if values.work[value] < 0 or self._crosses(times)", "if values.work[value] < 0", _RECOMPUTED),
    Mutation("a segment keeps what is read before it ends", f"{RECOMPUTING}/checkpoints.py",
             " and time > self._ends[segment]", "", _RECOMPUTED),
    Mutation("a useless checkpoint is said", f"{RECOMPUTING}/checkpoints.py",
             "            if var == self._loss:", "            if False:", _RECOMPUTED),
    Mutation("donation keeps to a dtype", DONATE, "if one.dtype != other.dtype:", "if False:", _DONATED),
    Mutation("donation keeps to a shape", DONATE,
             "if one.shape is None or one.shape != other.shape:", "if False:", _DONATED),
    Mutation("an output that shows the input is not donated over it", DONATE,
             "if any(_shows(op, given) and op.outputs[0] in program.body.outputs for op in flow.ops):",
             "if False:", _DONATED),
    Mutation("a pair's tensors are in no other pair", DONATE,
             "if not reason and not seen.isdisjoint((given, made)):", "if False:", _DONATED),
    Mutation("only an op of the table writes over what it reads", DONATE,
             "if writer in readers and not self._may_overwrite(writer, pair):", "if False:", _DONATED),
    Mutation("the table's places are kept", DONATE,
             "all(place in IN_PLACE.get(op.type, ()) for place in places)", "op.type in IN_PLACE", _DONATED),
    Mutation("who needs the output does not read the input", DONATE,
             "self._below(writer)\n            if late:\n", "self._below(writer)\n            if False:\n",
             _DONATED),
    Mutation("readers go before the writer", DONATE,
             "                self._after[reader].add(writer)\n", "                pass\n", _DONATED),
    Mutation("who reads a view reads the input", DONATE,
             "                    stack.append(op.outputs[0])\n", "                    pass\n", _DONATED),
    Mutation("random ops keep their turns", DONATE,
             "            self._after[first].add(second)\n", "            pass\n", _DONATED),
    Mutation("two donated steps use one buffer a pair", _BOUND,
             "        if name in self.pairs:\n            self.binding", "        if False:\n            self.binding",
             _STEPS),
    Mutation("the second step reads the first one's values", _BOUND,
             "self.feed |= {old: values[new] for new, old in self.pairs.items()}", "del values", _STEPS),
    Mutation("each model of a gate has the rules of its own folder", "memplan_cli/workflows/gate.py",
             "        if path.parent not in folders:\n", "        if not folders:\n            folders = dict.fromkeys((p.parent for p in paths), _terms(path, request))\n        if path.parent not in folders:\n", "tests/cli/test_gate.py"),
    Mutation("no plan is gated whose model has changed", "memplan_cli/workflows/files/provenance.py",
             "        if digest != plan.report.model.sha256:\n", "        if False:\n", "tests/cli/test_gate.py"),
    Mutation("releases of a plan file are where tensors die", "memplan_cli/planning/checking/clock.py",
             "            if due[name] != release.step:\n", "            if False:\n", "tests/planning/test_checking_clock.py"),
    Mutation("the order of a plan file has each node once", "memplan_cli/planning/checking/clock.py",
             "        if len(set(order.nodes)) < len(order.nodes):\n", "        if False:\n", "tests/planning/test_checking_clock.py"),
    Mutation("a dim of 0 is a length", "memplan_cli/onnx_io/interface.py",
             "and dim.dim_value >= 0", "and dim.dim_value > 0", "tests/cli/test_empty_dims.py tests/onnx_io tests/shapes"),
    Mutation("plans with bounds run inside of them", "memplan_cli/workflows/validate.py",
             "            first[name] = at = min(max(usual[name], low), high)\n", "            first[name] = at = usual[name]\n", "tests/workflows/test_validate.py"),
    Mutation("weights of a target replace no foreign file", "memplan_cli/workflows/files/own_weights.py",
             "        if name not in own and (place.exists() or place.is_symlink()):\n", "        if False:\n", "tests/e2e/test_output_files.py tests/e2e/test_target.py"),
    Mutation("names that the runtime counts are counted anew", "memplan_cli/runtime/graph/offline.py",
             '            base = name = COUNTED.sub("", node.name)\n', "            base = name = node.name\n", "tests/runtime/test_node_names.py"),
    Mutation("reductions without axes may reduce nothing", "memplan_cli/training/rules/reduction.py",
             "        return () if empty else tuple(range(rank))\n", "        return tuple(range(rank))\n", "tests/training/test_forms.py"),
    Mutation("a budget costs no memory that an order saves", f"{RECOMPUTING}/auto.py",
             "        self._order_alone()\n        if self._keeps_for_nothing(budget):\n            return\n", "", _RECOMPUTED),
    Mutation("the search asks first where tries ended", "memplan_cli/packing/search/exact.py",
             "later >= 0 and later % _BLAMING == 0", "False", "tests/packing/test_bottleneck.py"),
    Mutation("what could not be written is not tried again at the end", "memplan_cli/__main__.py",
             "            _let_go(stream)\n", "            pass\n", "tests/cli/test_terminal.py"),
    Mutation("who seems slower is timed again", "memplan_cli/runtime/measuring/timing.py",
             "if not any(is_slower(other.peaks, before.peaks) for other in others):", "if others:", "tests/runtime/test_timing.py"),
    Mutation("of two times the shorter one stays", "memplan_cli/runtime/measuring/timing.py",
             "else min(one, other)", "else max(one, other)", "tests/runtime/test_timing.py"),
    Mutation("what is slower is rejected", "memplan_cli/runtime/facts.py",
             "    if is_slower(after, before):\n        return None\n", "", "tests/runtime/test_unoptimised_settings.py"),
    Mutation("resident: a donated output takes none", "memplan_cli/planning/totals.py",
             "        if program.vars[var].name not in donated\n", "", _RESIDENT),
    Mutation("resident: nothing is written in place", "memplan_cli/planning/totals.py",
             "needs.pinned, SHARE_VIEWS,", "needs.pinned, SHARE_SAFELY,", _RESIDENT),
    Mutation("resident: outputs are counted", "memplan_cli/planning/totals.py",
             "    sizes = {**needs.sizes, **results}\n", "    sizes = {**needs.sizes}\n", _RESIDENT),
    Mutation("resident: a low live peak is not given up for outputs", "memplan_cli/transforms/ordering/resident.py",
             "if size < least and peak(other, terms) <= allowed:", "if size < least:", _RESIDENT),
    Mutation("resident: it is counted again from the model", "memplan_cli/checking/figures.py",
             'yield "resident", said, most_with(numbers, made)', 'yield "resident", said, said', _TOLD),
    Mutation("resident: the file's order is the plan's where it is kept", "memplan_cli/checking/figures.py",
             '        ("original.resident", report.original_resident, memory.resident),\n', "", _TOLD),
    Mutation("resident: symbols are tried at several dims", "memplan_cli/checking/symbols.py",
             'yield "resident in symbols", value_of(resident, dims), most_with(numbers, made)', "pass", _TOLD),
    Mutation("resident: what a run alone has told is its word", "memplan_cli/checking/figures.py",
             'if made is not None:\n        yield "resident"', 'if True:\n        yield "resident"', _TOLD),
    Mutation("resident: views share in the check too", "memplan_cli/checking/resident.py",
             "        value = other\n    return value\n", "        break\n    return value\n", _TOLD),
    Mutation("the process: a freed mapping raises the threshold", f"{_PROCESS}/heap.py",
             "if not self.fixed and self.threshold < whole <= _LARGEST_THRESHOLD:", "if False:", _HEAP),
    Mutation("the process: a fixed threshold stays", f"{_PROCESS}/heap.py",
             "if not self.fixed and self", "if self", _HEAP),
    Mutation("the process: pages that subgraphs read stay", f"{_PROCESS}/loading.py",
             "readers[var] + around)", "readers[var])", _FORESEEN),
    Mutation("the process: but not for the next node's", f"{_PROCESS}/loading.py",
             "                    if not readers[var]:\n                        self._let_go(var)", "                    pass", _FORESEEN),
    Mutation("notes that make a session larger are told", "memplan_cli/workflows/candidates.py",
             "if more < _NOTICED * before.process.load or notes < more / 2:", "if True:", "tests/cli/test_runtime_commands.py"),
    Mutation("notes that are not there are no reason", "memplan_cli/workflows/candidates.py",
             'rewriting.settings.notes != "model"', "False", "tests/cli/test_runtime_commands.py"),
    Mutation("the process: what is freed is joined with what is below", f"{_PROCESS}/heap.py",
             "        if start in self._ends:\n", "        if False:\n", _HEAP),
    Mutation("the process: what is freed is joined with what is above", f"{_PROCESS}/heap.py",
             "        if start + size in self._starts:\n", "        if False:\n", _HEAP),
    Mutation("the process: the heap shrinks at its end", f"{_PROCESS}/heap.py",
             "            self.end = _up(self.top + _PAD, PAGE)\n\n", "            pass\n\n", _HEAP),
    Mutation("the process: a page counts once written, and once", f"{_PROCESS}/space.py",
             "fresh = (last - first - pages.count(1, first, last)) * PAGE", "fresh = (last - first) * PAGE", _HEAP),
    Mutation("the process: a panel has whole columns", f"{_PROCESS}/packing.py",
             "rows * -(-columns // _COLUMNS) * _COLUMNS * _FLOAT", "rows * columns * _FLOAT", _FORESEEN),
    Mutation("the process: kernels whose packing nobody measured are not guessed", f"{_PROCESS}/foresee.py",
             "kernels = unknown_kernels(executed.program)", "kernels = ()", _FORESEEN),
    Mutation("the process: weights in the file lie on the heap while it is parsed", f"{_PROCESS}/loading.py",
             "            self.values[weight.name] = space.take(INSIDE, weight.size)\n", "", _FORESEEN),
    Mutation("the process: the arena's pages count", f"{_PROCESS}/running.py",
             "            self.space.touch(self._regions[start], address - start, size)\n", "            del start\n", _FORESEEN),
    Mutation("the process: Where spreads both alternatives", "memplan_cli/runtime/simulation/workspace.py",
             "    return tuple(prod(dims) * width for dims in spread if dims is not None)\n", "    return ()\n", _FORESEEN),
    Mutation("the arena: what Where asks for comes before its output", "memplan_cli/runtime/simulation/requests.py",
             'frozenset({"Einsum", "Where"})', 'frozenset({"Einsum"})', _FORESEEN),
    Mutation("the arena: each request of a kernel is one", "memplan_cli/runtime/simulation/workspace.py",
             "== total else (total,)", "== -1 else (total,)", _FORESEEN),
    Mutation("a slower file is warned of above five per cent", "memplan_cli/runtime/measuring/timing.py",
             "if ratio is None or ratio.median <= SLOWEST:", "if ratio is None or ratio.median <= 2:", "tests/runtime/test_time_claims.py"),
    Mutation("settings that a run has sized are called observed", "memplan_cli/runtime/steer.py",
             'return {f"arena.{key}": OBSERVED} if key in settings.arena else {}', "return {}", "tests/runtime/test_time_claims.py"),
    Mutation("validate --measure times both in turn", "memplan_cli/workflows/validate.py",
             "            facts, slower = with_time(facts, models, check, binding)\n", "", "tests/workflows/test_validate.py"),
    Mutation("a dry run is at the report's dims", "memplan_cli/workflows/dry_run.py",
             "dims={**dims, **settings.dims}", "dims=settings.dims", "tests/workflows/test_dry_run.py"),
    Mutation("a dry run keeps the level asked for", "memplan_cli/workflows/dry_run.py",
             "Settings(level=settings.level, ", "Settings(", "tests/workflows/test_dry_run.py"),
    Mutation("a cast is no view", ALIASING,
             'VIEWS: frozenset[str] = frozenset({"Flatten",', 'VIEWS: frozenset[str] = frozenset({"Cast", "Flatten",',
             "tests/analysis/test_tables_of_operators.py"),
    Mutation("an attribute that is not told has the standard's default", "memplan_cli/training/rules/activation.py",
             'call.attribute("lambd", 0.5)', 'call.attribute("lambd", 0.0)', "tests/training/test_defaults.py"),
    Mutation("a slot of a level 0 file has one shape", "memplan_cli/planning/checking/numbers.py",
             "            same = same and first.shape == tensor.shape\n", "            pass\n",
             "tests/planning/test_slot_files.py"),
    Mutation("an order above its bound is not proved", "memplan_cli/planning/decided.py",
             "return bound is not None and self.allocation.live_peak <= bound", "return True",
             "tests/planning/test_unproved_orders.py"),
    Mutation("an early fusion leaves no more behind", FUSIONS,
             '    refuse_unless(tasks.taken(node) <= freed, f"{what}: it leaves more behind")\n', "",
             "tests/checking/test_fusions.py"),
    Mutation("a group replaces nothing that what joined it reads", FUSIONS,
             "    other.replaces -= one.touches\n", "", "tests/checking/test_fusions.py"),
    Mutation("an early fusion takes no more at its step", FUSIONS,
             '    refuse_unless(step <= room, f"{what}: its step takes more")\n', "",
             "tests/checking/test_fusions.py"),
    Mutation("a move of a shown search runs what is ready", f"{CERTIFICATES}/states.py",
             "self._is_ready(group, now.left), f", "True, f", _CERTIFIED),
    Mutation("what a shown search runs for free leaves no more", f"{CERTIFICATES}/states.py",
             "at < len(move.nodes) or change <= 0,", "True,", _CERTIFIED),
    Mutation("a state of a shown search has all its moves", f"{CERTIFICATES}/states.py",
             "step >= self._bound or (late, group) in given,", "True,", _CERTIFIED),
    Mutation("nothing outside lies between the ops of a region", f"{_CHUNKING}/region.py",
             "            if not _is_convex(graph, ops, at, copied):\n", "            if False:\n", "tests/transforms/test_chunk_regions.py"),
    Mutation("a late fusion frees nothing", FUSIONS,
             '    refuse_unless(is_late(tasks, node), f"{what}: it frees something")\n', "",
             "tests/checking/test_fusions.py"),
    Mutation("for what is fused late, nobody else waits", FUSIONS,
             '    refuse_unless(one.succs == {into}, f"{what}: others wait for it too")\n', "",
             "tests/checking/test_fusions.py"),
)  # fmt: skip


def tried(mutation: Mutation, copy: Path) -> tuple[str, float]:
    """Make one edit in the copy, run its tests, undo it; return the verdict and seconds."""
    path = copy / mutation.file
    text = path.read_text()
    if text.count(mutation.old) != 1:
        return "the edit does not apply", 0.0
    path.write_text(text.replace(mutation.old, mutation.new))
    started = time.perf_counter()
    try:
        code = run_tests(mutation.tests, copy)
    finally:
        path.write_text(text)
    # A process that a signal ended fails no less than a test.
    killed = "killed" if code == 1 or code < 0 else f"pytest exit {code}"
    verdict = "SURVIVED" if code == 0 else killed
    return verdict, time.perf_counter() - started


def run_tests(tests: str, copy: Path) -> int:
    """Run tests of the copy, against the copy, until one fails."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not slow",
         *tests.split()],
        cwd=copy, capture_output=True, text=True, check=False, timeout=900,
        env={"PYTHONPATH": str(copy), "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    return done.returncode


def main() -> int:
    words = asked(__doc__)
    lines = [
        "# Mutations",
        "",
        "Made by `make mutations`: each rule removed in turn in a copy of the repository; a",
        "test must fail.",
        "",
        "| rule | file | verdict | seconds |",
        "|---|---|---|---:|",
    ]
    survivors = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                skip = shutil.ignore_patterns("__pycache__", "crashes")
                shutil.copytree(source, copy / name, ignore=skip)
            elif source.exists():
                shutil.copy(source, copy / name)
        wanted = [m for m in MUTATIONS if words.only in m.rule]
        for tests in dict.fromkeys(mutation.tests for mutation in wanted):
            if run_tests(tests, copy):
                print(f"these fail without any mutation, so they show nothing: {tests}")
                return 1
        for mutation in wanted:
            verdict, seconds = tried(mutation, copy)
            survivors += verdict != "killed"
            lines.append(f"| {mutation.rule} | {mutation.file} | {verdict} | {seconds:.0f} |")
            print(lines[-1], flush=True)
    lines += ["", f"{len(MUTATIONS)} mutations, {survivors} not killed."]
    if words.writes:
        TABLE.write_text("\n".join(lines) + "\n")
    return 1 if survivors else 0


if __name__ == "__main__":
    raise SystemExit(main())
