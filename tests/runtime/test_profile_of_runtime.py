"""The profile of ONNX Runtime holds for the version whose kernels were probed."""

from __future__ import annotations

from memplan_cli.core.results.observations import CPU
from memplan_cli.runtime.profile.in_place import load_table
from memplan_cli.runtime.profile.record import PROFILE


def test_the_profile_is_of_the_version_whose_kernels_were_probed() -> None:
    assert PROFILE.version in load_table(CPU).versions


def test_a_process_that_has_imported_the_runtime_takes_what_was_measured() -> None:
    assert round(PROFILE.imported_process / 1e6) == 50
