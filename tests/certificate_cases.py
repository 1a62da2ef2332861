"""Small models with a plan and its certificate, for those who forge certificates."""

from __future__ import annotations

import json
import random
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from onnx import parser

from memplan_cli import Settings
from memplan_cli.api.models.model_file import plan_model, read_model
from memplan_cli.api.verify_certificate import certified_model
from memplan_cli.checking.certificates.verify import verify
from memplan_cli.core.results.certificate import certificate_from_json
from memplan_cli.features.certificates.certify import certificate_of
from memplan_cli.onnx_io.load import load_model
from memplan_cli.planning.plan_file import checked_plan

if TYPE_CHECKING:
    from memplan_cli.core.results.certificate import CertificateVerdict
    from memplan_cli.core.results.plan import Plan

SAMPLES = Path(__file__).parents[1] / "sample_models"


@dataclass(frozen=True)
class Case:
    """A model's file, its plan and the JSON of both."""

    model: Path
    plan: Plan
    certificate: dict[str, Any]

    def verdict(self, forged: dict[str, Any] | None = None) -> CertificateVerdict:
        """Check a certificate, the honest one by default."""
        found = certificate_from_json(deepcopy(forged or self.certificate))
        return verify(
            found, self.plan, certified_model(load_model(self.model), self.plan, self.model)
        )

    def raised(self, part: Literal["order", "recompute"], more: int) -> Case:
        """Return a case whose plan and certificate, if it has the part, say a higher bound than holds.

        The plan's digest says nothing of its report.
        """
        forged, report = deepcopy(self.certificate), self.plan.report
        if part == "order":
            bound = forged[part]["bound"] = forged[part]["bound"] + more
            report = replace(report, memory=replace(report.memory, order_bound=bound))
        else:
            bound = (report.recompute.bound or 0) + more
            report = replace(report, recompute=replace(report.recompute, bound=bound))
        return replace(self, plan=self.plan.with_report(report), certificate=forged)


def case_of(model: Path, settings: Settings | None = None) -> Case:
    planned = plan_model(read_model(model), settings or Settings())
    plan = checked_plan(json.loads(planned.plan.dumps()))
    return Case(model, plan, json.loads(certificate_of(planned).dumps()))


def random_text(seed: int, size: int, kinds: str = "F") -> str:
    """Return a model of random wiring: each node reads up to two of those before it."""
    draw = random.Random(seed)
    bytes_of = [draw.choice((64, 128, 192, 320, 512)) for _ in range(size)]
    read: set[int] = set()
    lines = []
    for at in range(size):
        sources = draw.sample(range(at), min(at, draw.randint(0, 2)))
        kind = draw.choice(kinds.split())
        if kind != "F" and sources:
            del sources[1:]
            bytes_of[at] = bytes_of[sources[0]]
            lines.append(f"t{at} = {kind} (t{sources[0]})")
        else:
            names = ", ".join(["x", *(f"t{source}" for source in sources)])
            lines.append(f"t{at} = local.F ({names})")
        read.update(sources)
    left = ", ".join(f"t{at}" for at in range(size) if at not in read)
    types = ", ".join(f"int8[{much}] t{at}" for at, much in enumerate(bytes_of))
    nodes = "\n".join([*lines, f"y = local.F ({left})"])
    return (
        '<ir_version: 10, opset_import: ["" : 21, "local" : 1]>\n'
        f"g (int8[1] x) => (int8[1] y) <{types}> {{\n{nodes}\n}}"
    )


def write_text(text: str, path: Path) -> Path:
    path.write_bytes(parser.parse_model(text).SerializeToString())
    return path


def random_case(
    seed: int, size: int, folder: Path, level: Literal[0, 1, 2] = 2, kinds: str = "F"
) -> Case:
    path = write_text(random_text(seed, size, kinds), folder / f"{seed}_{size}_{level}.onnx")
    return case_of(path, Settings(level=level))
