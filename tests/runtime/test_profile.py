from __future__ import annotations

from typing import Any

from memplan_cli.runtime.workers.session_profile import arena_peaks, read_profile


def node(at: int, name: str, requested: int, delta: int, **more: int) -> dict[str, Any]:
    counters = {"mem_bytes_in_use": requested + 10, "mem_in_use_peak": requested + 10}
    counters |= {"mem_arena_held": 1000, **more}
    args: dict[str, Any] = {key: str(value) for key, value in counters.items()}
    args |= {
        "op_name": "Op",
        "provider": "CPUExecutionProvider",
        "mem_bytes_requested_in_use": str(requested),
        "mem_requested_in_use_delta": str(delta),
    }
    return {"cat": "Node", "name": f"{name}_kernel_time", "ts": at, "dur": 1, "args": args}


def model_run(at: int) -> dict[str, Any]:
    return {"cat": "Session", "name": "model_run", "ts": at, "dur": 50, "args": {}}


def test_runs_are_told_apart_and_events_sorted_by_time() -> None:
    events = [node(110, "b", 1, 1), model_run(100), node(20, "a2", 1, 1), node(10, "a1", 1, 1)]
    runs = read_profile([*events, model_run(0)])
    assert [[e.name for e in run] for run in runs] == [["a1", "a2"], ["b"]]


def test_peaks_leave_out_what_was_there_before_the_first_kernel() -> None:
    events = [
        model_run(0),
        node(1, "a", 150, 50),
        node(2, "b", 400, 250),
        model_run(100),
        node(101, "a", 300, 0, mem_arena_held=1200),
        node(102, "b", 320, 20, mem_in_use_peak=500),
    ]
    peaks = arena_peaks(read_profile(events))
    assert (peaks.weights, peaks.first_run_peak, peaks.steady_peak) == (100, 300, 220)
    assert (peaks.held, peaks.scratch) == (1200, 90)


def test_without_counters_nothing_is_guessed() -> None:
    event = {"cat": "Node", "name": "a_kernel_time", "ts": 1, "dur": 1, "args": {}}
    peaks = arena_peaks(read_profile([model_run(0), event]))
    assert (peaks.first_run_peak, peaks.steady_peak, peaks.held) == (None, None, None)


def test_one_run_has_no_steady_peak() -> None:
    assert arena_peaks(read_profile([model_run(0), node(1, "a", 5, 5)])).steady_peak is None
