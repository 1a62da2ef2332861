"""What of ONNX Runtime really works on this machine."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import ClassVar

from memplan_cli.core.results.observations import CPU, CUDA
from memplan_cli.core.serialization import Form, Key, Keys
from memplan_cli.runtime.installed import version_of
from memplan_cli.runtime.workers.session import ProviderProbe, probe_provider

_WHEELS = (
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-directml",
    "onnxruntime-openvino",
    "onnxruntime-qnn",
    "onnxruntime-training",
)

_PACKAGES = ("memplan", "onnx", *_WHEELS, "numpy", "numba")


_BY_PROVIDER = Form(
    write=lambda probes: {
        probe.provider: {"works": probe.works, "reason": probe.reason} for probe in probes
    }
)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The state of the environment.

    Attributes:
        python: version and platform.
        versions: installed packages that matter, with their versions.
        listed: providers the runtime claims to have; a claim, no more.
        probes: for each provider we use, whether a session really got it.
        problems: what is wrong, and what to do about it.
    """

    json_keys: ClassVar[Keys] = (
        "python",
        Key("versions", form=Form(write=dict)),
        "listed",
        Key("providers", "probes", form=_BY_PROVIDER),
        "problems",
    )

    python: str
    versions: tuple[tuple[str, str], ...]
    listed: tuple[str, ...]
    probes: tuple[ProviderProbe, ...]
    problems: tuple[str, ...]


def diagnose() -> Diagnosis:
    """Look at the installed wheels and create a session on each provider."""
    versions = installed_versions()
    probes = (probe_provider(CPU), probe_provider(CUDA))
    return Diagnosis(
        python=f"{platform.python_version()} on {platform.platform()}",
        versions=versions,
        listed=_listed(),
        probes=probes,
        problems=find_problems(dict(versions), probes),
    )


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
