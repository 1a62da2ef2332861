"""Requests of changing size: what processes take under the defaults, our settings and others.

    python -m tests.benchmarks.serving                  measure all, and write the page
    python -m tests.benchmarks.serving --only NAME...   these, beside what was measured
    python -m tests.benchmarks.serving --table          the page again

Each model serves seeded requests of random size by `soak`, a process for each configuration,
in one thread; then each configuration serves the largest request alone. Stripped weights are
filled with seeded ones first.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan_cli.reporting.commands.serving import SOAK
from memplan_cli.runtime.serving.soak import Requests, serve
from memplan_cli.settings.settings import Settings
from memplan_cli.workflows.serving import SoakTerms, service_of, soak

from .serving_models import WRITTEN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

ROOT = Path(__file__).parents[2]
MODELS = ROOT.parent / "shared" / "models"
OUT = ROOT / "out" / "serving"
PAGE = ROOT / "docs" / "measurements" / "serving.md"
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"


@dataclass(frozen=True, slots=True)
class Case:
    """A model, the bounds of its requests' dims, and how long each configuration may take."""

    path: str
    bounds: Mapping[str, tuple[int, int]]
    requests: int = 1000
    seconds: float = 240.0


CASES: Mapping[str, Case] = {
    "distilbert_ts": Case("messy/distilbert_ts.onnx", {"batch": (1, 8), "seq": (8, 512)}),
    "unet": Case("", {"height": (64, 192), "width": (64, 192)}),
    "detector": Case("", {"height": (64, 320), "width": (64, 320)}),
    "segformer_ts": Case("messy/segformer_ts.onnx", {"height": (64, 256), "width": (64, 256)}),
    "recogniser": Case("", {"batch": (1, 4), "width": (32, 640)}),
    "gru_loop": Case("", {"batch": (1, 4), "length": (8, 512)}),
    "gru_decoder_ts": Case("messy/gru_decoder_ts.onnx", {"batch": (1, 8), "seq": (8, 256)}),
    "bert_base_dyn": Case("bert_base_dyn.onnx", {"batch": (1, 4), "seq": (8, 256)}, 60),
}
"""By name; those without a path are written. The last has the bounds and the number of requests of
an earlier measurement: a thousand of its requests take an hour under each configuration."""

_ALONE = 3
"""Times that the largest request is served alone."""


def main() -> None:
    """Measure what is asked for, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=tuple(CASES))
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    for name in () if arguments.table else arguments.only or CASES:
        found = _measured(name, CASES[name])
        (OUT / f"{name}.json").write_text(json.dumps(found))
        print(name, found["passed"], flush=True)
    text = PAGE.read_text("utf-8")
    head, tail = text.split(BEGIN)[0], text.split(END)[1]
    PAGE.write_text(f"{head}{BEGIN}\n{_table()}{END}{tail}", "utf-8")


def _measured(name: str, case: Case) -> Any:  # noqa: ANN401 - JSON
    path = MODELS / case.path
    if not case.path:
        path = OUT / f"{name}.onnx"
        WRITTEN[name](path)
    elif not case.path.startswith("messy/"):
        path = OUT / f"{name}.onnx"
        script = MODELS / "fill_weights.py"
        subprocess.run([sys.executable, script, MODELS / case.path, path], check=True)
    terms = SoakTerms(requests=case.requests, seconds=case.seconds)
    settings = Settings(bounds=case.bounds)
    found = soak(path, settings, terms)
    service, _ = service_of(path, settings, terms.timeout)
    largest = Requests((service.extent.largest,) * _ALONE, case.seconds)
    courses = serve(service, largest, {one.name: one.settings for one in found.courses})
    alone = {one.name: one.highest for one in courses}
    return {**json.loads(SOAK["json"](found)), "alone": alone}


def _table() -> str:
    found = {
        name: json.loads((OUT / f"{name}.json").read_text())
        for name in CASES
        if (OUT / f"{name}.json").exists()
    }
    return "".join(
        f"{line}\n" for line in (*_bounds(found.items()), "", *_rows(found.items()))
    )


def _bounds(found: Iterable[tuple[str, Any]]) -> Iterator[str]:
    yield (
        "| model | sizes | simulated | requests | live peak, MB | bound, MB | bound / live | "
        "held, MB |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for name, one in found:
        serving = one["serving"]
        sizes = ", ".join(f"{dim} {low}-{high}" for dim, (low, high) in one["bounds"].items())
        (held,) = (c["held"] for c in one["configurations"] if c["name"] == "chosen")
        bound, live = serving["bound"], serving["live_peak"]
        yield (
            f"| {name} | {sizes} | {serving['sizes_simulated']:,} of {serving['sizes']:,} | "
            f"{one['requests']['served']:,} | {_mb(live)} | {_mb(bound)} | "
            f"{'-' if bound is None else f'{bound / live:.2f}'} | {_mb(held)} |"
        )


def _rows(found: Iterable[tuple[str, Any]]) -> Iterator[str]:
    yield (
        "| model | settings | growth, MB | highest, MB | alone, MB | highest / least alone | "
        "median, ms | 99th percentile, ms | CPU median, ms | CPU / defaults |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for name, one in found:
        base = one["configurations"][0]["milliseconds"]["cpu"]
        alone = one.get("alone", {})
        least = min(alone.values(), default=None)
        for course in one["configurations"]:
            times, highest = course["milliseconds"], course["highest"]
            share = "-" if least is None else f"{highest / least:.2f}"
            yield (
                f"| {name} | {course['name']} | {_mb(course['growth'])} | "
                f"{_mb(highest)} | {_mb(alone.get(course['name']))} | "
                f"{share} | {times['median']:.2f} | {times['p99']:.2f} | "
                f"{times['cpu']:.2f} | {times['cpu'] / base:.2f} |"
            )


def _mb(size: int | None) -> str:
    return "-" if size is None else f"{size / 1e6:.2f}"


if __name__ == "__main__":
    main()
