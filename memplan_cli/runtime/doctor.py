"""Diagnose this environment: which providers work, and whether a file suits the installed runtime."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from memplan_cli.core.results.observations import CPU, CUDA
from memplan_cli.core.serialization import SPARSE, Keys, json_form
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.metadata import HARDWARE, RUNTIME
from memplan_cli.onnx_io.settings_metadata import recorded_settings
from memplan_cli.onnx_io.weights.external_data import external_tensors
from memplan_cli.onnx_io.weights.prepacked import packed_blobs
from memplan_cli.runtime.installed import hardware, version_of
from memplan_cli.runtime.workers.session import ProviderProbe, probe_provider

if TYPE_CHECKING:
    from pathlib import Path

_WHEELS = (
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-directml",
    "onnxruntime-openvino",
    "onnxruntime-qnn",
    "onnxruntime-training",
)
"""The wheels that contain ONNX Runtime; all of them install the folder ``onnxruntime``."""

_PACKAGES = ("memplan", "onnx", *_WHEELS, "numpy", "numba")


@dataclass(frozen=True, slots=True)
class ProviderState:
    """Whether a session on a provider could be created, and the error if not."""

    works: bool
    reason: str


_AS_TABLE = json_form(type_hint=Mapping[str, str], write=dict)
_BY_PROVIDER = json_form(
    type_hint=Mapping[str, ProviderState],
    write=lambda probes: {
        probe.provider: ProviderState(probe.works, probe.reason) for probe in probes
    },
)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The state of the environment.

    Attributes:
        python: its version and the platform.
        versions: the relevant packages that are installed, with their versions.
        listed: the providers that the runtime lists, whether or not they work.
        probes: for each provider, whether a session could be created on it.
        problems: what is wrong, and what to do about it.
        file: facts from the metadata of a model file, if one was given.
    """

    json_keys: ClassVar[Keys] = (
        "python",
        "versions",
        "listed",
        ("providers", "probes"),
        "problems",
        "file",
    )

    python: str
    versions: tuple[tuple[str, str], ...] = field(metadata=_AS_TABLE)
    listed: tuple[str, ...]
    probes: tuple[ProviderProbe, ...] = field(metadata=_BY_PROVIDER)
    problems: tuple[str, ...]
    file: tuple[tuple[str, str], ...] = field(default=(), metadata={**SPARSE, **_AS_TABLE})


def diagnose(file: Path | None = None) -> Diagnosis:
    """Look up the installed packages, and try to create a session on each provider.

    Args:
        file: a model whose metadata is compared with this environment.

    Raises:
        ModelError: the file cannot be read.
    """
    versions = installed_versions()
    facts, mismatches = compare_with_environment(file, dict(versions)) if file else ((), ())
    probes = (probe_provider(CPU), probe_provider(CUDA))
    return Diagnosis(
        python=f"{platform.python_version()} on {platform.platform()}",
        versions=versions,
        listed=_listed_providers(),
        probes=probes,
        problems=(*find_problems(dict(versions), probes), *mismatches),
        file=facts,
    )


Facts = tuple[tuple[str, str], ...]
"""Pairs of a label and a text."""


def compare_with_environment(
    file: Path, versions: Mapping[str, str]
) -> tuple[Facts, tuple[str, ...]]:
    """Return facts from a model's metadata, and how they differ from this environment.

    Outputs are right in any environment; another runtime or processor costs memory.

    Args:
        file: the model.
        versions: the installed packages and their versions.

    Raises:
        ModelError: the file cannot be read, or its settings are not memplan's.
    """
    model = load_model(file)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    blobs = {
        blob
        for tensor in external_tensors(model)
        for _, packed in packed_blobs(tensor)
        for blob in packed
    }
    made_with, made_on = metadata.get(RUNTIME, ""), metadata.get(HARDWARE, "")
    facts = {
        "file": str(file),
        "settings": "in the file" if recorded_settings(metadata) else "none in the file",
        "made with": made_with,
        "made on": made_on,
        "packed weights": f"{sum(blob.length for blob in blobs)} bytes" if blobs else "",
    }
    installed = next(
        (f"onnxruntime {version}" for wheel, version in versions.items() if wheel in _WHEELS),
        "none",
    )
    differences = []
    # The metadata has the provider behind the version.
    if made_with and made_with.rpartition(" ")[0] != installed:
        differences.append(f"it was made with {made_with}, here is {installed}")
    if made_on and made_on != hardware():
        differences.append(f"it was made on {made_on}, this is {hardware()}")
    if differences and blobs:
        differences.append(
            f"{len(blobs)} packed weights may be packed again at each load, in memory of their own"
        )
    mismatches: tuple[str, ...] = ()
    if differences:
        remedy = (
            f"memplan optimize MODEL --target ... -o {file.name} makes it for what is here"
        )
        mismatches = (f"{file.name}: {'; '.join(differences)}: {remedy}",)
    return tuple((label, text) for label, text in facts.items() if text), mismatches


def installed_versions() -> tuple[tuple[str, str], ...]:
    """Return ``(package, version)`` of the relevant packages that are installed."""
    versions = ((package, version_of(package)) for package in _PACKAGES)
    return tuple((package, version) for package, version in versions if version)


def find_problems(
    versions: dict[str, str], probes: tuple[ProviderProbe, ...]
) -> tuple[str, ...]:
    """Return what is wrong with the installed wheels and the CPU provider, a sentence each."""
    wheels = [name for name in _WHEELS if name in versions]
    problems = []
    if not wheels:
        problems.append("no onnxruntime wheel is installed: pip install onnxruntime")
    if len(wheels) > 1:
        # The wheel that was installed last wins, and removing one breaks the other. `pip check`
        # does not report it.
        problems.append(
            f"{' and '.join(wheels)} share one import folder and break each other: "
            f"pip uninstall {' '.join(wheels)}, then install one of them"
        )
    cpu = next((probe for probe in probes if probe.provider == CPU), None)
    if wheels and cpu and not cpu.works:
        problems.append(f"no session can be created on {CPU}: {cpu.reason}")
    return tuple(problems)


def _listed_providers() -> tuple[str, ...]:
    """Return the providers that ONNX Runtime lists; none if it cannot be imported."""
    try:
        import onnxruntime as ort
    except ImportError:
        return ()
    return tuple(ort.get_available_providers())
