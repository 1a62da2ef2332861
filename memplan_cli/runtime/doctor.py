"""Diagnose this environment: which providers work, and whether a file suits the installed runtime."""

from __future__ import annotations

import mmap
import platform
from collections.abc import Mapping  # noqa: TC003 - read by the JSON schema
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.core.one_line import one_line_repr
from memplan_cli.core.results.observations import CPU, CUDA
from memplan_cli.core.serialization import SPARSE
from memplan_cli.errors import RuntimeMissingError
from memplan_cli.loading.settings import RUNTIME
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.metadata import HARDWARE
from memplan_cli.onnx_io.settings_metadata import recorded_settings
from memplan_cli.onnx_io.weights.external_data import external_tensors, locations, missing
from memplan_cli.onnx_io.weights.prepacked import packed_blobs
from memplan_cli.runtime.installed import hardware, runtime_wheels, version_of
from memplan_cli.runtime.workers.session import ProviderProbe, probe_provider

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PACKAGES = ("memplan", "onnx", "numpy", "numba")
"""The relevant packages besides the wheels that contain ONNX Runtime."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The state of the environment.

    Attributes:
        python: its version and the platform.
        versions: the relevant packages that are installed, with their versions.
        listed: the providers that the runtime lists, whether or not they work.
        providers: for each provider, whether a session could be created on it.
        problems: what is wrong, and what to do about it.
        page_bytes: the bytes of a page of memory.
        mapping_bytes: files are mapped from multiples of this offset; more than a page on Windows.
        file: facts from the metadata of a model file, as texts by label, if one was given.
    """

    python: str
    versions: Mapping[str, str]
    listed: tuple[str, ...]
    providers: Mapping[str, ProviderProbe]
    problems: tuple[str, ...]
    page_bytes: int = mmap.PAGESIZE
    mapping_bytes: int = mmap.ALLOCATIONGRANULARITY
    file: Mapping[str, str] = field(default_factory=dict, metadata=SPARSE)

    __repr__ = one_line_repr


def diagnose(file: Path | None = None) -> Diagnosis:
    """Look up the installed packages, and try to create a session on each provider.

    The metadata of ``file``, if it is given, is compared with this environment.

    Raises:
        ModelError: the file cannot be read.
    """
    versions = installed_versions()
    facts, mismatches = compare_with_environment(file, versions) if file else ({}, ())
    probes = {provider: probe_provider(provider) for provider in (CPU, CUDA)}
    return Diagnosis(
        python=f"{platform.python_version()} on {platform.platform()}",
        versions=versions,
        listed=_listed_providers(),
        providers=probes,
        problems=(*find_problems(versions, probes[CPU]), *mismatches),
        file=facts,
    )


def compare_with_environment(
    file: Path, versions: Mapping[str, str]
) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """Return facts from a model's metadata by label, and what is wrong with the file in this environment.

    Data files may be missing. Under another runtime or processor than the file was made for, the outputs
    are right, but runs may need more memory. ``versions`` are those of the installed packages.

    Raises:
        ModelError: the file cannot be read, or its settings are not memplan's.
    """
    model = load_model(file)
    weights = tuple(external_tensors(model))
    problems = [
        f"{file.name}: its weights are missing: there is no file {file.parent / name}"
        for name in missing(locations(weights), file.parent)
    ]
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    blobs = {blob for tensor in weights for blob in packed_blobs(tensor)}
    made_with, made_on = metadata.get(RUNTIME, ""), metadata.get(HARDWARE, "")
    facts = {
        "file": str(file),
        "settings": "in the file" if recorded_settings(metadata) else "none in the file",
        "made with": made_with,
        "made on": made_on,
        "packed weights": f"{sum(blob.length for blob in blobs)} bytes" if blobs else "",
    }
    facts = {label: text for label, text in facts.items() if text}
    differences = list(_environment_differences(made_with, made_on, versions))
    if differences and blobs:
        differences.append(
            f"{len(blobs)} packed weights may be packed again at each load, in memory of their own"
        )
    if differences:
        remedy = (
            f"memplan optimize MODEL --target ... -o {file.name} makes it for what is here"
        )
        problems.append(f"{file.name}: {'; '.join(differences)}: {remedy}")
    return facts, tuple(problems)


def _environment_differences(
    made_with: str, made_on: str, versions: Mapping[str, str]
) -> Iterator[str]:
    """Yield how the runtime and the hardware of a file's metadata, if there, differ from those here."""
    wheels = (f"onnxruntime {versions[name]}" for name in _wheels_of(versions))
    installed = next(wheels, "none")
    version = made_with.rpartition(" ")[0]  # the provider follows
    if made_with and version != installed:
        yield f"it was made with {made_with}, here is {installed}"
    if made_on and made_on != hardware():
        yield f"it was made on {made_on}, this is {hardware()}"


def installed_versions() -> Mapping[str, str]:
    """Return the versions of the relevant packages that are installed."""
    versions = {package: version for package in _PACKAGES if (version := version_of(package))}
    return {**versions, **runtime_wheels()}


def find_problems(versions: Mapping[str, str], cpu: ProviderProbe) -> tuple[str, ...]:
    """Return what is wrong with the installed wheels and the CPU provider, a sentence each."""
    wheels = _wheels_of(versions)
    problems = []
    if not wheels:
        problems.append(f"{RuntimeMissingError()}; planning works without it")
    if len(wheels) > 1:
        # The wheel that was installed last wins, and removing one breaks the other. `pip check`
        # does not report it.
        problems.append(
            f"{' and '.join(wheels)} share one import folder and break each other: "
            f"pip uninstall {' '.join(wheels)}, then install one of them"
        )
    if wheels and not cpu.works:
        problems.append(f"no session can be created on {CPU}: {cpu.reason}")
    return tuple(problems)


def _wheels_of(versions: Mapping[str, str]) -> list[str]:
    """Return which packages of `installed_versions` contain ONNX Runtime."""
    return [name for name in versions if name not in _PACKAGES]


def _listed_providers() -> tuple[str, ...]:
    """Return the providers that ONNX Runtime lists; none if it cannot be imported."""
    try:
        import onnxruntime as ort
    except ImportError:
        return ()
    return tuple(ort.get_available_providers())
