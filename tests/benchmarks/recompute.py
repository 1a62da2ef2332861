"""Budgets on the shared training steps: what is reached, at what extra work, in what time.

    python tests/benchmarks/recompute.py MODELS [--run] > docs/measurements/recompute.md

With ``--run`` each result is also run by ONNX Runtime against the original: bits, and
CPU milliseconds of a run with one thread, the best of three.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from memplan_cli.analysis.phase import find_phases
from memplan_cli.analysis.storage import live_peak
from memplan_cli.transforms.donate import donations
from memplan_cli.transforms.recomputing.auto import Recomputation, auto
from unit.transforms.test_recompute_onnx import (
    Arrays,
    _session,
    drawn,
    filled,
    planned,
    written,
)

RUN = ("train_mlp_adam", "train_cnn_adam", "train_resnet18_momentum", "train_bert_small_adam")
PLAN = ("train_gpt2_small_adam", "train_lstm_unrolled_128x2")
SHARES = (0.8, 0.6, 0.4)


def main(folder: Path, *, runs: bool) -> None:
    print("# Recomputation under a budget\n")
    print(__doc__.partition("\n")[0] + "\n" if __doc__ else "")
    print(
        "Peaks are `live_peak`, shares of the original's; work is FLOPs plus 8 x bytes moved;"
    )
    print("seconds are CPU seconds of the search. A budget below the bound cannot be met.\n")
    print(
        "| model | budget | met | peak | bound | more work | copies | seconds | bits | run ms |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name in (*RUN, *PLAN):
        with tempfile.TemporaryDirectory() as scratch:
            _rows(name, folder / f"{name}.onnx", Path(scratch), runs=runs and name in RUN)
    print("\n# Donation (`in.*=new.*`)\n")
    print("| model | pairs | donated |")
    print("|---|---|---|")
    for name in (*RUN, PLAN[0]):
        program, _ = planned(folder / f"{name}.onnx")
        found = donations(program, [("in.*", "new.*")])
        print(f"| {name} | {len(found.pairs) + len(found.refused)} | {len(found.pairs)} |")


def _rows(name: str, path: Path, scratch: Path, *, runs: bool) -> None:
    program, terms = planned(path)
    peak = live_peak(program, terms.sizes)
    model = filled(name, scratch) if runs else path
    before = _timed(model, drawn(name)) if runs else None
    for share in SHARES:
        start = time.process_time()
        found = auto(program, terms, find_phases(program), int(peak * share))
        seconds = time.process_time() - start
        after = _timed(written(model, found.program), drawn(name)) if runs else None
        print(_row((name, share, peak), found, seconds, before, after), flush=True)


def _row(
    what: tuple[str, float, int],
    found: Recomputation,
    seconds: float,
    before: tuple[Arrays, float] | None,
    after: tuple[Arrays, float] | None,
) -> str:
    name, share, peak = what
    bits, took = "", ""
    if before and after:
        same = all(before[0][key].tobytes() == after[0][key].tobytes() for key in before[0])
        bits, took = "equal" if same else "differ", f"{before[1]:.0f} -> {after[1]:.0f}"
    cells = (
        name,
        share,
        "yes" if found.met else "no",
        f"{found.chosen.peak / peak:.3f}",
        f"{found.bound / peak:.3f}",
        f"{found.chosen.extra:.2%}",
        found.chosen.nodes,
        f"{seconds:.1f}",
        bits,
        took,
    )
    return f"| {' | '.join(map(str, cells))} |"


def _timed(path: Path, inputs: Arrays) -> tuple[Arrays, float]:
    session = _session(path)
    names = [output.name for output in session.get_outputs()]
    best, values = float("inf"), []
    for _ in range(3):
        start = time.process_time()
        values = session.run(names, inputs)
        best = min(best, time.process_time() - start)
    return dict(zip(names, values, strict=True)), best * 1000


if __name__ == "__main__":
    main(Path(sys.argv[1]), runs="--run" in sys.argv)
