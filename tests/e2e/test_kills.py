"""Whatever signal ends a command, no process and no file of it is left."""

from __future__ import annotations

import sys

import pytest

from benchmarks.kills import COMMANDS, FORKING, SIGNALS, Victim, killed

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@pytest.mark.parametrize(
    "sent",
    [
        "SIGKILL",
        *(pytest.param(s, marks=pytest.mark.slow) for s in ("SIGTERM", "SIGHUP", "SIGINT")),
    ],
)
def test_a_killed_optimize_leaves_nothing(sent: str) -> None:
    assert killed(COMMANDS["optimize"], sent, moments=3).wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("sent", SIGNALS)
@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "optimize"])
def test_a_killed_command_leaves_nothing(name: str, sent: str) -> None:
    assert killed(COMMANDS[name], sent, moments=5).wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["server", "job"])
@pytest.mark.parametrize("name", FORKING)
def test_killing_only_the_server_or_the_job_leaves_nothing(name: str, victim: Victim) -> None:
    assert killed(COMMANDS[name], "SIGKILL", victim, moments=6).wrong == []
