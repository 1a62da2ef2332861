"""Install a wheel as its users do and write what came with it: CycloneDX JSON, checked.

    python .ci/sbom.py FOLDER DIST

The environment is a fresh one in FOLDER, of .ci/locks/run.txt and the wheel in DIST alone,
and memplan plans a model in it. Each component has the hash of the very file that was
installed, besides what `cyclonedx-py` writes: version, licences, what needs what.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
VERSION = "1.6"

ALONE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
"""The environment of a process that sees what is installed and nothing else."""


def installed(python: Path, report: Path, *words: str) -> dict[str, str]:
    """Install with the pip of this environment; return each package's SHA-256 by its name."""
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*pip, "--report", str(report), *words], check=True, cwd=ROOT, env=ALONE)
    found = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {
        one["metadata"]["name"].lower(): one["download_info"]["archive_info"]["hashes"][
            "sha256"
        ]
        for one in found
    }


def hashed(document: dict[str, Any], hashes: dict[str, str]) -> dict[str, Any]:
    """Return a document with the hash of each component's file, its own too, and no place.

    Raises:
        KeyError: a component was not installed by these hashes.
    """
    components = [
        {**_placeless(one), "hashes": [_hash(hashes[one["name"].lower()])]}
        for one in document["components"]
    ]
    about = document["metadata"]
    itself = {**about["component"], "hashes": [_hash(hashes[about["component"]["name"]])]}
    metadata = {**about, "component": itself}
    return {**document, "metadata": metadata, "components": components}


def _hash(content: str) -> dict[str, str]:
    return {"alg": "SHA-256", "content": content}


def _placeless(component: dict[str, Any]) -> dict[str, Any]:
    links = [
        link
        for link in component.get("externalReferences", ())
        if not link["url"].startswith("file:")
    ]
    rest = {key: value for key, value in component.items() if key != "externalReferences"}
    return {**rest, "externalReferences": links} if links else rest


def check(text: str) -> None:
    """Hold a document against the schema of CycloneDX.

    Raises:
        SystemExit: the document is not valid.
    """
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    wrong = JsonStrictValidator(SchemaVersion.from_version(VERSION)).validate_str(text)
    if wrong is not None:
        raise SystemExit(f"sbom: not valid CycloneDX {VERSION}: {wrong}")


def main(folder: Path, dist: Path) -> int:
    """Make the environment, use it, and write the document beside the wheel."""
    venv.create(folder, clear=True, with_pip=False)
    python = folder / "bin" / "python"
    (wheel,) = dist.glob("*.whl")
    locked = ["--require-hashes", "--only-binary", ":all:", "-r", ".ci/locks/run.txt"]
    hashes = installed(python, folder / "run.json", *locked)
    hashes |= installed(python, folder / "own.json", "--no-deps", str(wheel))
    sample = ROOT / "sample_models" / "train_mlp.onnx"
    plan = [str(folder / "bin" / "memplan"), "report", str(sample), "--quiet"]
    subprocess.run(plan, check=True, stdout=subprocess.DEVNULL, env=ALONE)
    words = [
        str(Path(sys.executable).parent / "cyclonedx-py"), "environment", str(python),
        "--pyproject", str(ROOT / "pyproject.toml"), "--output-reproducible",
        "--spec-version", VERSION, "--output-format", "JSON", "--output-file", "-",
    ]  # fmt: skip
    made = subprocess.run(words, check=True, capture_output=True, text=True, env=ALONE).stdout
    text = json.dumps(hashed(json.loads(made), hashes), indent=1) + "\n"
    check(text)
    out = dist / f"{wheel.name.split('-py3')[0]}.cdx.json"
    out.write_text(text, encoding="utf-8")
    print(f"{out}: {len(json.loads(text)['components'])} components, CycloneDX {VERSION}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), Path(sys.argv[2])))
