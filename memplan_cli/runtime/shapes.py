"""Which shapes does ONNX Runtime know that ONNX inference does not? The last resort.

Its own inference, from a session that is loaded and never run; or, where asked for, one
run on drawn inputs, whose profile says what every node read and wrote. Most models need
neither, so what starts a process is imported where one is started.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan_cli.dims import parse_dim, symbols_of
from memplan_cli.errors import SettingsError
from memplan_cli.ir import intermediates
from memplan_cli.onnx_io.checked import read_checked
from memplan_cli.onnx_io.read import Loaded
from memplan_cli.onnx_io.shapes import Bindings
from memplan_cli.onnx_io.shelf import on_shelf
from memplan_cli.polynomials import names_in, spelled_atom
from memplan_cli.runtime.type_names import dtype_of
from memplan_cli.sizes import BITS, size_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onnx import ModelProto

    from memplan_cli.ir import Dim, Program, Shape, VarId
    from memplan_cli.onnx_io.shelf import Shelved

MOST_NODES = 4000
"""Above this a session takes longer to load than all of the planning."""

_LOAD_TIMEOUT = 120.0
"""Seconds to load a model of at most `MOST_NODES`; without an answer, sizes stay unknown."""

Known = dict[str, tuple[str, "Shape"]]


def read_completely(model: ModelProto | Shelved, path: Path, bindings: Bindings) -> Loaded:
    """Read a model; where sizes are missing, ask the runtime's inference for them."""
    shelf = on_shelf(model)
    del model
    loaded = read_checked(shelf, bindings)
    missing = missing_sizes(loaded.program)
    if not missing or len(loaded.program.body.ops) > MOST_NODES:
        return loaded
    known, failure = inferred_shapes(
        shelf.model, bindings, {loaded.program.vars[v].name for v in missing}
    )
    if failure:
        note = (
            f"{len(missing)} sizes are unknown and ONNX Runtime cannot load {path.name} to say"
        )
        return Loaded(loaded.program, (*loaded.warnings, f"{note}: {failure}"))
    return _read_with(shelf, bindings, known, missing, "come from ONNX Runtime's inference")


def read_observed(model: ModelProto | Shelved, path: Path, bindings: Bindings) -> Loaded:
    """Read a model; where sizes are missing, run it once and look.

    Raises:
        SettingsError: a dim of the inputs is free: the run would fix it in silence.
        RuntimeUnavailableError: the model cannot run here.
    """
    from memplan_cli.onnx_io.feeds import default_dims

    shelf = on_shelf(model)
    del model
    loaded = read_checked(shelf, bindings)
    unknown = (*missing_sizes(loaded.program), *_unbound(loaded.program))
    if not unknown:
        return loaded
    free = sorted(set(default_dims(shelf.model)) - set(bindings.dims))
    if free:
        raise SettingsError(
            f"a run has numbers for all dims, and {free[0]!r} has none",
            hint=f"bind it: --dim {free[0]}=8",
        )
    known = observed_shapes(shelf.model, path, bindings.dims)
    dims = {**_seen_dims(loaded.program, known), **bindings.dims}
    text = "were seen in one run on drawn inputs; other data may need more"
    return _read_with(shelf, Bindings(dims, bindings.shapes), known, unknown, text)


def _unbound(program: Program) -> tuple[VarId, ...]:
    """Return the intermediates whose size has a symbol in it."""
    return tuple(
        var
        for var in intermediates(program)
        if any(symbols_of(dim) for dim in program.vars[var].shape or ())
    )


def _seen_dims(program: Program, known: Known) -> dict[str, int]:
    """Return the largest number seen for each symbol that data decides (``u0``)."""
    found: dict[str, int] = {}
    for var in program.vars.values():
        seen = known.get(var.id)
        if seen is None or var.shape is None or len(seen[1]) != len(var.shape):
            continue
        for dim, value in zip(var.shape, seen[1], strict=True):
            if isinstance(dim, str) and isinstance(value, int):
                for name in symbols_of(dim):
                    if dim == spelled_atom(name):
                        found[name] = max(found.get(name, 0), value)
    return found


def _read_with(
    shelf: Shelved, bindings: Bindings, known: Known, before: Sequence[VarId], how: str
) -> Loaded:
    loaded = read_checked(shelf, Bindings(bindings.dims, bindings.shapes, known))
    after = set(missing_sizes(loaded.program))
    gained = [var for var in before if var not in after]
    if not gained:
        return loaded
    names = ", ".join(gained[:3]) + (", ..." if len(gained) > 3 else "")
    note = f"the shapes of {len(gained)} tensors {how}: {names}"
    return Loaded(loaded.program, (*loaded.warnings, note))


def missing_sizes(program: Program) -> tuple[VarId, ...]:
    """Return the intermediates without a size that a shape could give one."""
    return tuple(
        var
        for var in intermediates(program)
        if (facts := program.vars[var]).dtype in (*BITS, "unknown")
        and size_of(facts.shape, facts.dtype) is None
    )


def inferred_shapes(
    model: ModelProto, bindings: Bindings, names: set[str]
) -> tuple[Known, str]:
    """Return what a session says of the named values of the top block, or why there is none."""
    from memplan_cli.onnx_io.asked_shapes import question
    from memplan_cli.onnx_io.misread import misread_values
    from memplan_cli.runtime.worker import run_job

    names = names - misread_values(model.graph)
    if not names:
        return {}, ""
    asked = question(model, bindings, names)
    with tempfile.TemporaryDirectory(prefix="memplan-shapes-") as folder:
        file = Path(folder) / "model.onnx"
        file.write_bytes(asked.data)
        outcome = run_job("shapes", {"model": str(file)}, timeout=_LOAD_TIMEOUT)
    if not outcome.ok:
        return {}, outcome.reason
    types: Any = outcome.result["types"]
    found: Known = {}
    for name, (kind, dims) in types.items():
        dtype = dtype_of(kind)
        # No dims can mean a scalar or that not even the rank is known: the runtime says
        # the same of both, and a scalar that is none would be planned in four bytes.
        if dtype in BITS and name in names and dims:
            found[name] = (dtype, tuple(_dim(dim, asked.symbols) for dim in dims))
    return found, ""


def _dim(dim: Dim, symbols: frozenset[str]) -> Dim:
    """Keep numbers, and names that the model's inputs have: others the runtime made up."""
    if isinstance(dim, int):
        return dim if dim >= 0 else None
    return dim if dim and names_in(parse_dim(dim)) <= symbols else None


def observed_shapes(model: ModelProto, path: Path, dims: Mapping[str, int]) -> Known:
    """Run a model once and return the largest shape seen of every value, by its id.

    Raises:
        RuntimeUnavailableError: the model cannot run here.
    """
    from memplan_cli.onnx_io.asked_shapes import numbered
    from memplan_cli.onnx_io.feeds import feed_specs
    from memplan_cli.onnx_io.files import staged
    from memplan_cli.runtime.compare import require_weights
    from memplan_cli.runtime.session import resolve_provider
    from memplan_cli.runtime.session_job import SessionJob
    from memplan_cli.runtime.worker import run_job

    require_weights(path, "give the shapes with --shape")
    copy = numbered(model)
    provider, specs = resolve_provider("auto"), feed_specs(model, dims)
    # Beside the model: only there may a session read its external data.
    with staged(path, copy.data) as file:
        outcome = run_job("observed", SessionJob(file, provider, specs).to_json())
    result: Any = outcome.require(f"{path} could not be run for its shapes")["nodes"]
    found: dict[str, tuple[str, Shape]] = {}
    for node, read, written in result:
        for names, seen in ((copy.reads.get(node), read), (copy.writes.get(node), written)):
            if names is not None and len(names) == len(seen):
                for name, (kind, shape) in zip(names, seen, strict=True):
                    _widen(found, name, (dtype_of(kind), tuple(shape)))
    return {name: facts for name, facts in found.items() if facts[0] in BITS}


def _widen(found: Known, name: str, seen: tuple[str, Sequence[Dim]]) -> None:
    dtype, shape = seen
    before = found.get(name)
    if before is not None and len(before[1]) == len(shape):
        pairs = zip(before[1], shape, strict=True)
        shape = [max(a, b) for a, b in pairs if isinstance(a, int) and isinstance(b, int)]
    found[name] = (dtype, tuple(shape))
