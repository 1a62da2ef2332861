"""Run the tests with each supported Python that is found here, and say which were not tried.

    python .ci/pythons.py FOLDER [words for pytest]

Supported are the versions in pyproject.toml's classifiers. Each gets an environment of its
own in FOLDER, with the newest packages in range. What was not found is said and is no
failure; exit 1 where tests fail or packages cannot be installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
QUICK = ("-q", "-n", "2", "--dist", "worksteal", "-m", "not slow and not bench and not cuda")


def supported(pyproject: str) -> tuple[str, ...]:
    """Return the versions that the classifiers of a project name."""
    classifiers = tomllib.loads(pyproject)["project"]["classifiers"]
    found = (re.fullmatch(r".* :: Python :: (3\.\d+)", each) for each in classifiers)
    return tuple(match[1] for match in found if match)


def candidates(version: str) -> Iterator[str]:
    """Yield where an interpreter of a version may be."""
    yield sys.executable
    if named := shutil.which(f"python{version}"):
        yield named
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    yield from map(str, sorted(pyenv.glob(f"{version}.*/bin/python")))
    if uv := shutil.which("uv"):
        words = [uv, "python", "find", version]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            yield done.stdout.strip()


def is_version(python: str, version: str) -> bool:
    """Whether an interpreter starts and is of a version."""
    words = [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError:
        return False
    return done.returncode == 0 and done.stdout.strip() == version


def interpreter(version: str) -> str | None:
    """Return an interpreter of a version, if there is one."""
    return next((each for each in candidates(version) if is_version(each, version)), None)


def tried(python: str, folder: Path, words: list[str]) -> str:
    """Install memplan and its tests' packages into an environment, and run them."""
    own = folder / "bin" / "python"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    commands = {
        "no environment": [python, "-m", "venv", str(folder)],
        "not installed": [
            str(own), "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
            "--only-binary", ":all:", "--editable", ".[dev]",
        ],
        "tests failed": [str(own), "-m", "pytest", *(words or QUICK)],
    }  # fmt: skip
    for failure, command in commands.items():
        if subprocess.run(command, check=False, cwd=ROOT, env=env).returncode:
            return failure
    return "passed"


def main(folder: Path, words: list[str]) -> int:
    """Try each version, and print a line for each."""
    versions = supported((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    results = {}
    for version in versions:
        python = interpreter(version)
        results[version] = (
            "not tried: no such Python here"
            if python is None
            else tried(python, folder / version, words)
        )
    for version, result in results.items():
        print(f"Python {version}: {result}")
    bad = [one for one in results.values() if one != "passed" and "not tried" not in one]
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]).resolve(), sys.argv[2:]))
