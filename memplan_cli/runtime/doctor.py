"""What of ONNX Runtime really works on this machine, and what of a file is lost here."""

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
    from collections.abc import Iterator
    from pathlib import Path

_WHEELS = (
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-directml",
    "onnxruntime-openvino",
    "onnxruntime-qnn",
    "onnxruntime-training",
)

_PACKAGES = ("memplan", "onnx", *_WHEELS, "numpy", "numba")


@dataclass(frozen=True, slots=True)
class ProviderState:
    """Whether a session on a provider could be created, and the error if not."""

    works: bool
    reason: str


_AS_TABLE = json_form(kind=Mapping[str, str], write=dict)
_BY_PROVIDER = json_form(
    kind=Mapping[str, ProviderState],
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
    """Look at the installed wheels and create a session on each provider.

    Args:
        file: a model: what it was made for, and what of that is not here.

    Raises:
        ModelError: it cannot be read.
    """
    versions = installed_versions()
    facts, lost = what_is_lost(file, dict(versions)) if file else ((), ())
    probes = (probe_provider(CPU), probe_provider(CUDA))
    return Diagnosis(
        python=f"{platform.python_version()} on {platform.platform()}",
        versions=versions,
        listed=_listed(),
        probes=probes,
        problems=(*find_problems(dict(versions), probes), *lost),
        file=facts,
    )


Facts = tuple[tuple[str, str], ...]


def what_is_lost(file: Path, versions: Mapping[str, str]) -> tuple[Facts, tuple[str, ...]]:
    """Return what a file says it was made for, and what of that is lost with these versions.

    Raises:
        ModelError: the file cannot be read, or its settings are none of memplan's.
    """
    model = load_model(file)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    recorded = recorded_settings(metadata)
    blobs = {
        blob
        for tensor in external_tensors(model)
        for _, packed in packed_blobs(tensor)
        for blob in packed
    }
    facts = {
        "file": str(file),
        "settings": "in the file" if recorded else "none in the file",
        "made with": metadata.get(RUNTIME, ""),
        "made on": metadata.get(HARDWARE, ""),
        "packed weights": f"{sum(b.length for b in blobs)} bytes" if blobs else "",
    }
    lost = tuple(_lost(file, metadata, versions, packed=len(blobs)))
    return tuple((key, value) for key, value in facts.items() if value), lost


def _lost(
    file: Path, metadata: Mapping[str, str], versions: Mapping[str, str], *, packed: int
) -> Iterator[str]:
    """Yield what another runtime or processor costs: the outputs stay the same."""
    made_with, made_on = metadata.get(RUNTIME), metadata.get(HARDWARE)
    wheel = next((f"onnxruntime {v}" for w, v in versions.items() if w in _WHEELS), "none")
    again = f"memplan optimize MODEL --target ... -o {file.name} makes it for what is here"
    differs = []
    if made_with and made_with.rpartition(" ")[0] != wheel:
        differs.append(f"it was made with {made_with}, here is {wheel}")
    if made_on and made_on != hardware():
        differs.append(f"it was made on {made_on}, this is {hardware()}")
    if differs and packed:
        blobs = f"{packed} packed weights"
        differs.append(f"{blobs} may be packed again at each load, in memory of their own")
    if differs:
        yield f"{file.name}: {'; '.join(differs)}: {again}"


def installed_versions() -> tuple[tuple[str, str], ...]:
    """Return ``(package, version)`` of what is installed, in a fixed order."""
    found = ((package, version_of(package)) for package in _PACKAGES)
    return tuple((package, version) for package, version in found if version)


def find_problems(
    versions: dict[str, str], probes: tuple[ProviderProbe, ...]
) -> tuple[str, ...]:
    """Return what is wrong with a set of wheels and providers, in words."""
    wheels = [name for name in _WHEELS if name in versions]
    problems = []
    if not wheels:
        problems.append("no onnxruntime wheel is installed: pip install onnxruntime")
    if len(wheels) > 1:
        # All of them unpack into the folder onnxruntime/, the last one wins, and removing
        # one breaks the other; pip check says nothing.
        problems.append(
            f"{' and '.join(wheels)} share one import folder and break each other: "
            f"pip uninstall {' '.join(wheels)}, then install one of them"
        )
    cpu = next((probe for probe in probes if probe.provider == CPU), None)
    if wheels and cpu and not cpu.works:
        problems.append(f"no session gets {CPU}: {cpu.reason}")
    return tuple(problems)


def _listed() -> tuple[str, ...]:
    try:
        import onnxruntime as ort
    except ImportError:
        return ()
    return tuple(ort.get_available_providers())
