"""Hold a release against what it says: installed fresh, run, its metadata and licences read.

    python .ci/release.py FOLDER DIST

The wheel and the source in DIST are each installed into an environment of their own in
FOLDER, by the locks of .ci/locks/run.txt, and the demo runs there with the sample models
that the source brings along: no checkout is in sight. A tag of this commit must be the
version, and the changelog must have a section of it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

ALONE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
"""The environment of a process that sees what is installed and nothing else."""

PERMITTED = ("Apache", "BSD", "MIT", "PSF", "Python Software Foundation", "ISC", "0BSD")
"""What a licence of something that comes along begins with, or contains."""

READ = """
import importlib.metadata as m, json, memplan, memplan_cli
found = m.metadata("memplan").json
found["where"] = memplan_cli.__file__
found["files"] = [str(f) for f in m.files("memplan") or ()]
found["scripts"] = [e.name for e in m.distribution("memplan").entry_points]
found["said"] = memplan.__version__
found["licences"] = {
    d.name: " ".join([
        d.metadata["License-Expression"] or "", (d.metadata["License"] or "")[:200],
        *(c for c in d.metadata.get_all("Classifier") or () if c.startswith("License")),
    ])
    for d in m.distributions()
}
print(json.dumps(found))
"""


def wrong_metadata(found: dict[str, Any], folder: Path) -> list[str]:
    """Return what the metadata of an installed memplan lacks or has wrong."""
    must = {
        "the version that it says itself": found["version"] == found["said"],
        "its licence as an expression": found.get("license_expression") == "Apache-2.0",
        "the text of its licence": any("LICENSE" in name for name in found["files"]),
        "a Python that it needs": found.get("requires_python", "").startswith(">=3."),
        "a description": len(found.get("description", "")) > 1000,
        "the type of its description": "markdown" in found.get("description_content_type", ""),
        "what it requires": any(one.startswith("onnx") for one in found["requires_dist"]),
        "types": "memplan_cli/py.typed" in found["files"],
        "the script memplan": "memplan" in found["scripts"],
        "its own files, not the checkout's": Path(found["where"]).is_relative_to(folder),
        "no tests": not any(name.startswith("tests") for name in found["files"]),
    }
    return [name for name, holds in must.items() if not holds]


def wrong_tag(tags: list[str], version: str, changelog: str) -> list[str]:
    """Return what of a tagged commit is not the version's; an untagged one may be anything."""
    versions = [tag.removeprefix("v") for tag in tags if re.fullmatch(r"v\d+\.\d+\.\d+", tag)]
    wrong = [f"the tag is v{one}, the version {version}" for one in versions if one != version]
    if versions and f"## [{version}]" not in changelog:
        wrong.append(f"CHANGELOG.md has no section [{version}]")
    return wrong


def wrong_licences(licences: dict[str, str]) -> list[str]:
    """Return the distributions whose licence is unknown or not permitted, of each its own words."""
    return [
        f"{name}: {said.strip() or 'no licence'}"[:120]
        for name, said in sorted(licences.items())
        if not any(word in said for word in PERMITTED)
    ]


def tried(artifact: Path, samples: Path, folder: Path) -> list[str]:
    """Install a file, run the demo with it, and return what is wrong."""
    venv.create(folder, clear=True, with_pip=False)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    locked = ["--require-hashes", "--only-binary", ":all:", "-r", ".ci/locks/run.txt"]
    subprocess.run([*pip, *locked], check=True, cwd=ROOT, env=ALONE)
    subprocess.run([*pip, "--no-deps", str(artifact)], check=True, cwd=folder, env=ALONE)
    read = [str(python), "-c", READ]
    made = subprocess.run(
        read, check=True, capture_output=True, text=True, cwd=folder, env=ALONE
    )
    found = json.loads(made.stdout)
    wrong = wrong_metadata(found, folder)
    wrong += [f"a licence known of {one}" for one in wrong_licences(found["licences"])]
    demo = {**ALONE, "BIN": str(folder / "bin"), "OUT": str(folder / "demo")}
    words = ["sh", "sample_models/demo.sh"]
    done = subprocess.run(
        words, check=False, cwd=samples, env=demo, capture_output=True, text=True
    )
    if done.returncode:
        wrong.append(f"a demo that runs:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return [f"{artifact.name} has not {one}" for one in wrong]


def main(folder: Path, dist: Path) -> int:
    """Try the wheel and the source, and hold the version against tags and changelog."""
    folder.mkdir(parents=True, exist_ok=True)
    (wheel,), (source,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        archive.extractall(folder, filter="data")
    samples = folder / source.name.removesuffix(".tar.gz")
    version = samples.name.removeprefix("memplan-")
    listed = ["git", "tag", "--points-at", "HEAD"]
    tags = subprocess.run(listed, capture_output=True, text=True, check=False, cwd=ROOT)
    changelog = (samples / "CHANGELOG.md").read_text(encoding="utf-8")
    wrong = wrong_tag(tags.stdout.split(), version, changelog)
    only = folder / "samples"
    only.mkdir(exist_ok=True)
    (samples / "sample_models").rename(only / "sample_models")
    for kind, artifact in (("wheel", wheel), ("source", source)):
        wrong += tried(artifact.resolve(), only, folder / kind)
    for one in wrong:
        print(f"release: {one}", file=sys.stderr)
    tag = tags.stdout.strip() or "no tag"
    print(
        f"memplan {version}, {tag}: wheel and source "
        + ("NOT fit" if wrong else "run the demo")
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()))
