"""What memplan is built on: bounds that can be tested, versions pinned by hashes, audits."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / ".ci" / "locks"
NAMES = ("dev", "run", "docs", "tools", "fuzz")
PIN = re.compile(r"([a-z0-9-]+)==([0-9][0-9a-z.]*)( ; [^\\]+)? \\")
HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def oldest(text: str) -> list[str]:
    found: list[str] = script("oldest").constraints(text)
    return found


def pinned(name: str) -> dict[str, set[str]]:
    """Return the versions of each package in a lock."""
    found: dict[str, set[str]] = {}
    for line in (LOCKS / f"{name}.txt").read_text().splitlines():
        if match := PIN.fullmatch(line):
            found.setdefault(match[1], set()).add(match[2])
    return found


def test_locks_hold_pins_and_hashes_and_nothing_else() -> None:
    for name in NAMES:
        lines = (LOCKS / f"{name}.txt").read_text().splitlines()[1:]
        strange = [at for at in lines if not PIN.fullmatch(at) and not HASH.fullmatch(at)]
        assert strange == []
        pins = [at for at, line in enumerate(lines) if PIN.fullmatch(line)]
        assert pins
        assert all(HASH.fullmatch(lines[at + 1]) for at in pins), "a pin without a hash"


@pytest.mark.parametrize("name", NAMES)
def test_locks_have_what_is_asked_for_within_its_bounds(name: str) -> None:
    versions = pinned(name)
    for line in script("lock").wishes(name).splitlines():
        if line.startswith("#"):
            continue
        wish = Requirement(line)
        found = versions[wish.name.lower()]
        assert any(wish.specifier.contains(Version(one)) for one in found), line


def test_environments_with_memplan_in_them_agree_on_versions() -> None:
    dev = pinned("dev")
    for name in ("run", "docs"):
        other = pinned(name)
        assert all(other[one] == dev[one] for one in other.keys() & dev.keys())
    assert pinned("run").keys() <= dev.keys()


@pytest.mark.parametrize(
    ("version", "wish", "locked"),
    [((3, 11), "", True), ((3, 12), "", True), ((3, 14), "", False), ((3, 11), "no", False)],
)
def test_other_pythons_and_those_who_ask_install_by_ranges(
    version: tuple[int, int],
    wish: str,
    locked: bool,  # noqa: FBT001 - a row of the table
) -> None:
    install = script("install")
    assert install.is_locked(version, wish) is locked
    words = install.commands("dev", locked=locked)
    assert any("--require-hashes" in one for one in words) is locked
    assert words[-1][-1] == ("." if locked else ".[dev]")


def test_pythons_of_the_workflow_install_by_hashes() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    asked = workflow["jobs"]["test"]["strategy"]["matrix"]["python"]
    locked = [f"{major}.{minor}" for major, minor in script("install").LOCKED]
    assert asked == locked


def test_no_dependency_has_an_upper_bound() -> None:
    extras = project()["optional-dependencies"].values()
    wishes = [*project()["dependencies"], *(one for extra in extras for one in extra)]
    operators = {bound.operator for wish in wishes for bound in Requirement(wish).specifier}
    assert operators == {">="}, "say why in docs/measurements/supply.md"


def fake_audit(folder: Path, *lines: str) -> str:
    """Write a program that stands for pip-audit."""
    tool = folder / "pip-audit"
    tool.write_text("\n".join([f"#!{sys.executable}", "import sys", *lines]))
    tool.chmod(0o755)
    return str(tool)


def test_audit_that_nobody_answers_is_neither_clean_nor_a_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = fake_audit(tmp_path, "sys.exit('ERROR: no route to host')")
    assert script("audit").main(tool) == 3
    said = capsys.readouterr().err
    assert "no route to host" in said
    assert "not done" in said


def test_audit_lists_each_known_fault_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fault = {"id": "CVE-1", "fix_versions": ["2.0"]}
    answer = {"dependencies": [{"name": "a", "version": "1.0", "vulns": [fault]}]}
    tool = fake_audit(tmp_path, f"print({json.dumps(answer)!r})", "sys.exit(1)")
    assert script("audit").main(tool) == 1
    assert capsys.readouterr().out.count("a 1.0: CVE-1 (mended in 2.0)") == 1


def test_audit_without_faults_is_clean(tmp_path: Path) -> None:
    answer = {"dependencies": [{"name": "a", "version": "1.0", "vulns": []}]}
    tool = fake_audit(tmp_path, f"print({json.dumps(answer)!r})")
    assert script("audit").main(tool) == 0


def test_audit_asks_the_second_service_where_the_first_is_silent(tmp_path: Path) -> None:
    answer: dict[str, Any] = {"dependencies": []}
    tool = fake_audit(
        tmp_path, "if 'pypi' in sys.argv: sys.exit('gone')", f"print({json.dumps(answer)!r})"
    )
    assert script("audit").main(tool) == 0


def test_release_lists_each_component_with_the_hash_of_its_file() -> None:
    listed = {
        "metadata": {"component": {"name": "memplan"}},
        "components": [
            {
                "name": "NumPy",
                "externalReferences": [
                    {"type": "distribution", "url": "file:///home/me/numpy.whl"},
                    {"type": "website", "url": "https://numpy.org"},
                ],
            }
        ],
    }
    made = script("sbom").hashed(listed, {"numpy": "12", "memplan": "34"})
    (component,) = made["components"]
    assert component["hashes"] == [{"alg": "SHA-256", "content": "12"}]
    assert [link["type"] for link in component["externalReferences"]] == ["website"]
    assert made["metadata"]["component"]["hashes"] == [{"alg": "SHA-256", "content": "34"}]


def test_release_refuses_a_component_that_the_lock_does_not_have() -> None:
    listed = {"metadata": {"component": {"name": "memplan"}}, "components": [{"name": "x"}]}
    with pytest.raises(KeyError):
        script("sbom").hashed(listed, {"memplan": "34"})


def project() -> dict[str, Any]:
    data: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return data


def test_every_dependency_has_a_lower_bound_that_the_oldest_job_pins() -> None:
    pinned = {
        line.partition("==")[0] for line in oldest((ROOT / "pyproject.toml").read_text())
    }
    wanted = {re.split(r"[><=;\[ ]", name)[0] for name in project()["dependencies"]}
    assert wanted <= pinned


def test_bound_keeps_its_marker_and_loses_its_extras() -> None:
    text = """[project]
        dependencies = ["a>=1.2; python_version < '4'", "b[x,y]>=3", "free"]
        optional-dependencies = {dev = ["c>=0.1"]}"""
    assert oldest(text) == ["a==1.2 ; python_version < '4'", "b==3", "c==0.1"]


def test_base_installation_has_no_runtime_and_the_extras_of_one_do_not_mix() -> None:
    names = {Requirement(wish).name for wish in project()["dependencies"]}
    assert names == {"click", "numpy", "onnx", "pyyaml", "rich"}
    extras = project()["optional-dependencies"]
    runtimes = {
        extra: [Requirement(wish).name for wish in extras[extra]] for extra in ("cpu", "gpu")
    }
    assert runtimes == {"cpu": ["onnxruntime"], "gpu": ["nvidia-ml-py", "onnxruntime-gpu"]}
    # The tests run with what the extras bring, within the same bounds.
    wanted = [*extras["cpu"], *extras["gpu"], *extras["fast"]]
    assert {wish.partition(";")[0] for wish in extras["dev"]} >= set(wanted)


def test_container_file_installs_extras_and_copies_files_that_are_there() -> None:
    text = (ROOT / "Containerfile").read_text(encoding="utf-8")
    (extras,) = re.findall("^ARG EXTRAS=(.*)$", text, re.MULTILINE)
    assert set(extras.split(",")) <= project()["optional-dependencies"].keys()
    (python,) = re.findall("^FROM python:([0-9.]+)-slim$", text, re.MULTILINE)
    assert f"Programming Language :: Python :: {python}" in project()["classifiers"]
    copied = [line.split()[:-1] for line in re.findall("^COPY (.*)$", text, re.MULTILINE)]
    assert all((ROOT / source).exists() for sources in copied for source in sources)


def test_workflow_runs_targets_that_the_makefile_has() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    jobs = workflow["jobs"]
    asked = [name.split()[0] for name in jobs["trust"]["strategy"]["matrix"]["target"]]
    for job in jobs.values():
        for step in job["steps"]:
            words = step.get("run", "").removeprefix("make ").split()
            asked += [word for word in words if re.fullmatch("[a-z-]+", word)]
    assert "test-oldest" in asked
    assert set(asked) <= targets


def test_every_python_that_is_supported_is_tried_or_said_not_to_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pythons = script("pythons")
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert pythons.supported(text) == ("3.11", "3.12", "3.13", "3.14")
    answers = {"3.11": "passed", "3.12": "tests failed", "3.13": "passed"}
    monkeypatch.setattr(
        pythons, "interpreter", lambda version: answers.get(version) and version
    )
    monkeypatch.setattr(pythons, "tried", lambda python, *_: answers[python])
    assert pythons.main(tmp_path, []) == 1
    assert capsys.readouterr().out.splitlines() == [
        "Python 3.11: passed",
        "Python 3.12: tests failed",
        "Python 3.13: passed",
        "Python 3.14: not tried: no such Python here",
    ]
    answers["3.12"] = "passed"
    assert pythons.main(tmp_path, []) == 0


def test_an_interpreter_is_asked_for_its_version(tmp_path: Path) -> None:
    pythons = script("pythons")
    here = ".".join(map(str, sys.version_info[:2]))
    assert pythons.is_version(sys.executable, here)
    assert not pythons.is_version(sys.executable, "3.0")
    assert not pythons.is_version(str(tmp_path / "none"), here)


@pytest.mark.parametrize(
    ("tags", "changelog", "wrong"),
    [
        ([], "", []),
        (["nightly"], "", []),
        (["v0.2.0"], "## [0.2.0] - 2027", []),
        (["v0.3.0"], "## [0.2.0] - 2027", ["the tag is v0.3.0, the version 0.2.0"]),
        (["v0.2.0"], "## [Unreleased]", ["CHANGELOG.md has no section [0.2.0]"]),
    ],
)
def test_a_tag_is_the_version_and_has_a_section(
    tags: list[str], changelog: str, wrong: list[str]
) -> None:
    assert script("release").wrong_tag(tags, "0.2.0", changelog) == wrong


def test_a_licence_that_is_unknown_or_not_permitted_is_named() -> None:
    licences = {
        "a": "MIT",
        "b": " 3-Clause BSD License",
        "c": " Apache-2.0 OR MIT",
        "d": "",
        "e": "GPL-3.0-only",
    }
    assert script("release").wrong_licences(licences) == ["d: no licence", "e: GPL-3.0-only"]


def test_metadata_that_is_missing_is_named(tmp_path: Path) -> None:
    found = {
        "version": "1",
        "said": "1",
        "license_expression": "Apache-2.0",
        "files": ["memplan_cli/py.typed", "memplan-1.dist-info/licenses/LICENSE"],
        "requires_python": ">=3.11",
        "description": "words " * 200,
        "description_content_type": "text/markdown",
        "requires_dist": ["onnx>=1.19"],
        "scripts": ["memplan"],
        "where": str(tmp_path / "lib" / "memplan_cli" / "__init__.py"),
    }
    release = script("release")
    assert release.wrong_metadata(found, tmp_path) == []
    wrong = {**found, "said": "2", "files": ["tests/test_a.py"], "where": str(ROOT)}
    assert release.wrong_metadata(wrong, tmp_path) == [
        "the version that it says itself",
        "the text of its licence",
        "types",
        "its own files, not the checkout's",
        "no tests",
    ]
