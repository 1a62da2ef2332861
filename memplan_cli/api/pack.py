"""``memplan pack``: pack the buffers of a CSV file into one arena, and write their offsets."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.api.option_names import accepts_option_names
from memplan_cli.api.output.output_files import refuse_targets
from memplan_cli.core.files import write_files
from memplan_cli.core.problem import pressure
from memplan_cli.errors import SettingsError
from memplan_cli.packing import problem_file

if TYPE_CHECKING:
    from memplan_cli.api.request import FilePath
    from memplan_cli.core.progress import Progress
    from memplan_cli.core.results.certificate import Certificate
    from memplan_cli.packing.problem_file import PackingResult


@accepts_option_names()
def pack(
    problem: FilePath,
    *,
    capacity: int | None = None,
    time_limit: float | None = None,
    out: FilePath | None = None,
    certificate: FilePath | None = None,
    progress: Progress | None = None,
) -> PackingResult:
    """Pack the buffers of a CSV file; write them with their offsets if all fit.

    Args:
        problem: The file, with the columns ``id,lower,upper,size``.
        capacity: Bytes that must suffice.
        time_limit: Seconds for the search.
        out: The file of the layout.
        certificate: The file that shows that no layout is lower; needs ``out``.
        progress: Called with the name of each stage.

    Raises:
        MemplanError: the file is no problem, or the result cannot be written.
    """
    problem = Path(problem)
    layout_file = None if out is None else Path(out)
    certificate_file = None if certificate is None else Path(certificate)
    if certificate_file is not None and layout_file is None:
        raise SettingsError(
            "--certificate needs -o: it proves the layout in a file", hint="add -o FILE"
        )
    refuse_targets({"-o": layout_file, "--certificate": certificate_file})
    # Only the layout may replace the problem: it has the same columns, and one more.
    refuse_targets({"--certificate": certificate_file}, (problem,))
    packed = problem_file.pack(
        problem_file.read_problem(problem),
        capacity=capacity,
        time_limit=time_limit,
        progress=progress,
    )
    # A layout above the capacity is not written: a script could use it as a result.
    if layout_file is not None and packed.passed:
        _write_layout(packed, problem, layout_file, certificate_file)
    return packed


def _write_layout(
    packed: PackingResult, problem: Path, layout_file: Path, certificate_file: Path | None
) -> None:
    """Write a layout, which may replace the problem's file, and its certificate if asked for."""
    from memplan_cli.onnx_io.load import file_digest

    layout = problem_file.layout_csv(packed).encode()
    contents = {layout_file: layout}
    if certificate_file is not None:
        # If the layout replaces the problem, a check reads it as both.
        is_replaced = layout_file.exists() and layout_file.samefile(problem)
        digest = sha256(layout).hexdigest()
        problem_digest = digest if is_replaced else file_digest(problem)
        certificate = _certificate(packed, problem_digest, digest)
        contents[certificate_file] = certificate.dumps().encode()
    write_files(contents)


def _certificate(
    packed: PackingResult, problem_digest: str, layout_digest: str
) -> Certificate:
    """Return the certificate of a layout, for CSV files with these digests.

    The proof is the tick at which most bytes are live: no layout is lower than that. A greater bound,
    which only an exhausted search proved, is certified as not checkable.
    """
    from memplan_cli.core.results.certificate import NOT_CHECKABLE, ArenaProof, Certificate
    from memplan_cli.core.version import VERSION

    curve = pressure(packed.problem)
    tick, live_bytes = max(curve, key=lambda point: point[1], default=(0, 0))
    bound = packed.layout.height if packed.layout.proved else live_bytes
    if bound == live_bytes:
        proof = ArenaProof(arena=0, bound=bound, method="load", tick=tick)
    else:
        why = f"by an exhausted search; {live_bytes} bytes are live at tick {tick}"
        proof = ArenaProof(arena=0, bound=bound, method=NOT_CHECKABLE, why=why)
    return Certificate(
        version=VERSION,
        graph_sha256=problem_digest,
        plan_sha256=layout_digest,
        order=None,
        arenas=(proof,),
        recompute=None,
    )
