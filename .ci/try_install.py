"""Install memplan in the ways that its users do, from a folder of wheels, and use it.

    python .ci/try_install.py FOLDER DIST

FOLDER gets the wheels that the extras need, then an environment for each way:

    uvx          plans a model, without ONNX Runtime
    pipx         `memplan[gpu]`, or `memplan[cpu]` where there is no such wheel; plans, runs, compares
    pip          into an environment with ONNX Runtime, which stays as it was and is used
    Containerfile   the files that it copies and its extras, without a container: plans, runs, compares

DIST has the built wheel of memplan. After the download nothing is fetched.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
SAMPLE = ROOT / "sample_models" / "branchy_cnn.onnx"
TOOLS = Path(sys.executable).parent

ALONE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
"""The environment of a process that sees what is installed and nothing else."""


def run(*words: str | Path, cwd: Path, expected: str = "", **variables: str | Path) -> str:
    """Run a command and return its output.

    Raises:
        SystemExit: it fails, or its output lacks the expected text.
    """
    environment = {**ALONE, **{name: str(value) for name, value in variables.items()}}
    done = subprocess.run(
        list(map(str, words)),
        check=False,
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode or expected not in " ".join(done.stdout.split()):
        line = " ".join(map(str, words))
        raise SystemExit(f"{line}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def megabytes(folder: Path) -> int:
    """Return the size of the files in a folder, links followed."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return round(sum(path.stat().st_size for path in files) / 1e6)


def try_uvx(folder: Path, index: Path) -> None:
    """Plan a model with `uvx`, first with an empty cache, then again."""
    words = [TOOLS / "uvx", "--no-index", "--find-links", index, "memplan", "report", SAMPLE]
    cache = folder / "cache"
    for state in ("empty", "filled"):
        start = time.monotonic()
        expected = "not predicted: ONNX Runtime is not installed: pip install 'memplan[cpu]'"
        run(*words, cwd=folder, expected=expected, UV_CACHE_DIR=cache)
        print(f"uvx memplan report, {state} cache: {time.monotonic() - start:.1f} s")
    (environment,) = {path.parent.parent for path in cache.rglob("bin/memplan")}
    print(f"uvx: {megabytes(environment)} MB installed")


def try_pipx(folder: Path, index: Path, extra: str) -> None:
    """Install memplan with a runtime by `pipx`, and optimize a model."""
    homes = {"PIPX_HOME": folder / "pipx", "PIPX_BIN_DIR": folder / "bin"}
    offline = f"--no-index --find-links {index}"
    run(
        TOOLS / "pipx",
        "install",
        f"memplan[{extra}]",
        "--pip-args",
        offline,
        cwd=folder,
        **homes,
    )
    optimize(folder / "bin" / "memplan", folder)
    print(f"pipx: memplan[{extra}] optimizes")


def try_beside_runtime(folder: Path, index: Path) -> None:
    """Install memplan beside a runtime that is there already, and optimize a model."""
    python = new_environment(folder / "venv")
    pip = [sys.executable, "-m", "pip", "--python", python]
    install = [*pip, "install", "--no-index", "--find-links", index]
    run(*install, "onnxruntime", cwd=folder)
    before = run(*pip, "freeze", cwd=folder).splitlines()
    run(*install, "memplan", cwd=folder)
    after = run(*pip, "freeze", cwd=folder).splitlines()
    if changed := set(before) - set(after):
        raise SystemExit(f"pip install memplan changed {changed}")
    if more := [line for line in after if line.startswith("onnxruntime-")]:
        raise SystemExit(f"pip install memplan brought {more}")
    optimize(python.parent / "memplan", folder)
    print("pip: memplan uses the ONNX Runtime that was there")


def try_container_file(folder: Path, index: Path) -> None:
    """Do what the Containerfile does, in a virtual environment: copy, install, optimize a model."""
    text = (ROOT / "Containerfile").read_text(encoding="utf-8")
    for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE):
        *sources, target = line.split()
        place = folder / target.lstrip("/")
        place.mkdir(parents=True, exist_ok=True)
        for source in map(ROOT.joinpath, sources):
            if source.is_dir():
                shutil.copytree(source, place, dirs_exist_ok=True)
            else:
                shutil.copy(source, place)
    (extras,) = re.findall(r"^ARG EXTRAS=(.*)$", text, re.MULTILINE)
    python = new_environment(folder / "venv")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-index"]
    run(*pip, "--find-links", index, "setuptools", cwd=folder)
    source = f"{folder / 'src'}[{extras}]"
    run(*pip, "--find-links", index, "--no-build-isolation", source, cwd=folder)
    optimize(python.parent / "memplan", folder)
    print(f"Containerfile: its files with the extras {extras} optimize")


def new_environment(folder: Path) -> Path:
    """Make a virtual environment without pip; return its Python."""
    venv.create(folder, clear=True, with_pip=False)
    return folder / "bin" / "python"


def optimize(memplan: Path, folder: Path) -> None:
    """Optimize the sample, with its outputs compared."""
    words = [memplan, "optimize", SAMPLE, "-o", folder / "out.onnx"]
    run(*words, cwd=folder, expected="bit-identical")


def main(folder: Path, dist: Path) -> int:
    """Download what the extras need, and try each way in a folder of its own."""
    shutil.rmtree(folder, ignore_errors=True)
    index = folder / "index"
    index.mkdir(parents=True)
    (wheel,) = dist.glob("*.whl")
    extra = "gpu" if sys.platform in ("linux", "win32") else "cpu"
    wanted = [f"{wheel}[{one}]" for one in sorted({extra, "cpu", "fast"})]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary", ":all:"]
    run(*pip, "--dest", index, "setuptools", *wanted, cwd=ROOT)
    for name in ("uvx", "pipx", "pip", "container"):
        (folder / name).mkdir()
    try_uvx(folder / "uvx", index)
    try_pipx(folder / "pipx", index, extra)
    try_beside_runtime(folder / "pip", index)
    try_container_file(folder / "container", index)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()))
