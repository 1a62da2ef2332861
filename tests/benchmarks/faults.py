"""Let the system fail under memplan, and see that nothing is lost and nothing is left.

    python -m tests.benchmarks.faults [--only TEXT] [--no-table]

Each fault is a command in processes of its own. Afterwards there is the old file or the
whole new one, no file that nobody asked for, and one message that says what went wrong.

Guards the claim of docs/measurements/robustness.md: a full disk, a signal or a crashing runtime loses no
file and leaves none behind.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto, helper

from memplan_cli import Settings, api
from memplan_cli.onnx_io.load import load_model
from memplan_cli.planning.plan_file import read_plan

from .cases import asked, cell, publish_check, run_all
from .fault_place import ROOT, SAMPLE, Ending, Place, judged

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

NET = (
    '<ir_version: 10, opset_import: ["" : 21]> '
    "g (float[n,4] x) => (float[n,4] y) { a = Relu(x) y = Neg(a) }"
)
GIVEN = ("given.onnx", "given.npz")


def given(place: Place, rows: int) -> tuple[str, ...]:
    """Have a model and its input; return the words that plan it with that."""
    onnx.save(onnx.parser.parse_model(NET), place.folder / GIVEN[0])
    np.savez_compressed(place.folder / GIVEN[1], x=np.zeros((rows, 4), np.float32))
    return ("report", GIVEN[0], "--inputs", GIVEN[1])


def inputs_that_go(place: Place) -> Ending:
    """Have only a part of the archive there, as while somebody is still writing it."""
    words = given(place, 1000)
    path = place.folder / GIVEN[1]
    path.write_bytes(path.read_bytes()[:-40])
    return judged(place.end(*words), 2, "cannot be read", place.rubbish(*GIVEN))


def certificate_of_another_moment(place: Place) -> Ending:
    """Check a certificate against the plan of a later run, which differs from its own."""
    certified_plan(place)
    api.optimize(place.model, Settings(level=1), out=place.folder / "out.onnx", check=None)
    ending = place.end("verify-certificate", "model.onnx", "out.json", "c.json")
    return judged(ending, 1, "", place.rubbish("out.onnx", "out.json", "c.json"))


def certified_plan(place: Place) -> Path:
    """Have a plan and its certificate; return the path of the latter."""
    out, certificate = place.folder / "out.onnx", place.folder / "c.json"
    api.optimize(place.model, out=out, check=None, certificate=certificate)
    return certificate


def long_certificate(place: Place) -> tuple[str, ...]:
    """Have a certificate that takes a while to read; return the words that check it."""
    path = certified_plan(place)
    data: Mapping[str, object] = json.loads(path.read_text())
    move = {"nodes": [0], "free": [], "to": 1}
    order = {"bound": 1, "method": "search", "states": [[move]] * 500_000}
    path.write_text(json.dumps({**data, "order": order}))
    return ("verify-certificate", "model.onnx", "out.json", "c.json")


_FAKE = """
import importlib, os, sys, time
sys.path.remove(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
del sys.modules["onnxruntime"]
real = importlib.import_module("onnxruntime")

class Session(real.InferenceSession):
    def __init__(self, source, *more, **options):
        data = source if isinstance(source, bytes) else open(source, "rb").read()
        if b"pkg.memplan.plan" in data:
            FAULT
        super().__init__(source, *more, **options)

real.InferenceSession = Session
"""
"""An ONNX Runtime that fails on what memplan wrote, and on nothing else."""


def _with_a_runtime_that(place: Place, fault: str, *words: object) -> Ending:
    package = place.folder.parent / "fake" / "onnxruntime"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(_FAKE.replace("FAULT", fault))
    paths = os.pathsep.join([str(package.parent), str(ROOT)])
    return place.end(*words, env=place.environment(PYTHONPATH=paths))


def runtime_crashes(place: Place) -> Ending:
    words = ("optimize", "model.onnx", "-o", "out.onnx")
    ending = _with_a_runtime_that(place, "os.abort()", *words)
    return judged(ending, 1, "does not run (crash)", place.rubbish())


def runtime_hangs(place: Place) -> Ending:
    words = ("optimize", "model.onnx", "-o", "out.onnx", "--timeout", "10")
    ending = _with_a_runtime_that(place, "time.sleep(600)", *words)
    return judged(ending, 1, "does not run (timeout)", place.rubbish())


def kill_while_the_runtime_hangs(place: Place) -> Ending:
    """Kill memplan itself: no session may live on that nobody waits for."""
    package = place.folder.parent / "fake" / "onnxruntime"
    package.mkdir(parents=True)
    mark = place.folder.parent / "hangs"
    (package / "__init__.py").write_text(
        f"import os, time\nopen({str(mark)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    )
    paths = os.pathsep.join([str(package.parent), str(ROOT)])
    environment = place.environment(PYTHONPATH=paths)
    process = place.start("optimize", "model.onnx", "-o", "out.onnx", env=environment)
    while not mark.exists() or not mark.read_text():
        time.sleep(0.02)
    started = time.perf_counter()
    process.kill()
    process.communicate()
    child = Path(f"/proc/{mark.read_text()}")
    while child.exists() and time.perf_counter() - started < 5:
        time.sleep(0.02)
    wrong = ["the runtime's process lives on"] * child.exists()
    wrong += ["something was written"] * (place.folder / "out.onnx").exists()
    seconds = time.perf_counter() - started
    return Ending(f"signal {-process.returncode}", "", tuple(wrong), seconds)


def runtime_raises(place: Place) -> Ending:
    words = ("optimize", "model.onnx", "-o", "out.onnx")
    ending = _with_a_runtime_that(place, 'raise RuntimeError("no")', *words)
    return judged(ending, 1, "does not run (error)", place.rubbish())


def no_runtime(place: Place) -> Ending:
    package = place.folder.parent / "none" / "onnxruntime"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('raise ImportError("libcudart is missing")')
    paths = os.pathsep.join([str(package.parent), str(ROOT)])
    words = ("optimize", "model.onnx", "-o", "out.onnx")
    ending = place.end(*words, env=place.environment(PYTHONPATH=paths))
    return judged(ending, 2, "libcudart is missing", place.rubbish())


LARGE = ROOT / "sample_models" / "branchy_cnn.onnx"
KILLS = 20


def _in_a_mount(
    place: Place, options: str, command: str, *, temporary: bool = False
) -> Ending:
    """Run a command with a file system of its own for its output, or for temporary files."""
    target = place.temporary if temporary else place.folder / "disk"
    target.mkdir(exist_ok=True)
    script = (
        f"mount -t tmpfs -o {options} none {target} && {command}; code=$?; "
        f"ls -A {target} | sed 's/^/LEFT /' >&2; exit $code"
    )
    started = time.perf_counter()
    done = subprocess.run(
        ["unshare", "--mount", "--map-root-user", "sh", "-c", script], cwd=place.folder,
        env=place.environment(), capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    seconds = time.perf_counter() - started
    return Ending(f"exit {done.returncode}", done.stderr.strip(), seconds=seconds)


def _memplan(*words: object) -> str:
    return shlex.join([sys.executable, "-m", "memplan_cli", *map(str, words)])


def _left(ending: Ending) -> list[str]:
    return [line.lower() for line in ending.said.splitlines() if line.startswith("LEFT ")]


def full_disk(place: Place) -> Ending:
    command = _memplan("optimize", LARGE, "-o", "disk/out.onnx", "--no-validate", "-q")
    ending = _in_a_mount(place, "size=64k", command)
    return judged(
        ending, 2, "No space left on device", [*_left(ending), *place.rubbish("disk")]
    )


def full_disk_for_weights(place: Place) -> Ending:
    heavy = with_weights(place.folder)
    command = _memplan("optimize", heavy, "-o", "disk/out.onnx", "--no-validate", "-q")
    ending = _in_a_mount(place, "size=64k", command)
    wrong = [*_left(ending), *place.rubbish("disk", "heavy.onnx", "heavy.bin")]
    return judged(ending, 2, "No space left on device", wrong)


def full_temporary_folder(place: Place) -> Ending:
    command = _memplan("optimize", LARGE, "-o", "out.onnx", "-q")
    ending = _in_a_mount(place, "size=4k", command, temporary=True)
    return judged(ending, 2, "no room for temporary files", [*_left(ending), *place.rubbish()])


def read_only_folder(place: Place) -> Ending:
    command = _memplan("optimize", "model.onnx", "-o", "disk/out.onnx", "--no-validate", "-q")
    ending = _in_a_mount(place, "ro", command)
    return judged(ending, 2, "Read-only file system", place.rubbish("disk"))


def full_output(place: Place) -> Ending:
    with Path("/dev/full").open("w") as full:
        ending = place.end("why", "model.onnx", stdout=full)
    return judged(ending, 2, "No space left on device", place.rubbish())


def reader_that_leaves(place: Place) -> Ending:
    with place.start("why", "model.onnx", "--format", "json") as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        said = process.stderr.read()
    ending = Ending(f"exit {process.returncode}", said.strip())
    return judged(ending, 1, "", place.rubbish())


def _onto_itself(place: Place, out: str) -> Ending:
    ending = place.end("optimize", "model.onnx", "-o", out, "--no-validate", "-q")
    same = place.model.read_bytes() == SAMPLE.read_bytes()
    wrong = place.rubbish(out) if same else ["the model is another one", *place.rubbish(out)]
    return judged(ending, 2, "a file that this command reads", wrong)


def output_is_input(place: Place) -> Ending:
    return _onto_itself(place, "model.onnx")


def output_links_to_input(place: Place) -> Ending:
    (place.folder / "link.onnx").symlink_to(place.model)
    return _onto_itself(place, "link.onnx")


def output_is_a_hard_link_of_input(place: Place) -> Ending:
    os.link(place.model, place.folder / "link.onnx")
    return _onto_itself(place, "link.onnx")


def plan_is_input(place: Place) -> Ending:
    words = ("optimize", "model.onnx", "-o", "o.onnx", "--plan", "model.onnx", "-q")
    ending = place.end(*words, "--no-validate")
    same = place.model.read_bytes() == SAMPLE.read_bytes()
    wrong = place.rubbish() if same else ["the model is another one"]
    return judged(ending, 2, "a file that this command reads", wrong)


def kills(place: Place) -> Ending:
    """Kill a run at twenty random moments: the old files or whole new ones, every time.

    Every second kill comes while the files are written, as soon as a temporary one is there.
    """
    rng = random.Random(0)
    words = ("optimize", "model.onnx", "-o", "out.onnx", "--no-validate", "-q")
    place.end(*words)
    started = time.perf_counter()
    place.end(*words)
    whole = time.perf_counter() - started
    out, plan = place.folder / "out.onnx", place.folder / "out.json"
    new = (out.read_bytes(), plan.read_bytes())
    wrong, found = [], []
    for at in range(KILLS):
        out.write_bytes(b"old")
        plan.write_bytes(b"old")
        process = place.start(*words)
        if at % 2:
            while process.poll() is None and not any(place.folder.glob(".*.tmp")):
                time.sleep(0.0005)
            time.sleep(rng.uniform(0, 0.004))
        else:
            time.sleep(rng.uniform(0, whole))
        process.kill()
        process.communicate()
        after = (out.read_bytes(), plan.read_bytes())
        halves = [one not in (b"old", other) for one, other in zip(after, new, strict=True)]
        wrong += ["half a file"] * any(halves)
        found.append(sum(one != b"old" for one in after))
        partial = list(place.folder.glob(".*.tmp"))
        found[-1] += 10 * bool(partial)
        for path in partial:
            path.unlink()
    ending = place.end(*words)
    if (out.read_bytes(), plan.read_bytes()) != new:
        wrong.append("the next run does not mend it")
    old, both = (sum(count % 10 == wanted for count in found) for wanted in (0, 2))
    left = sum(count >= 10 for count in found)
    said = (
        f"{old} times both files old, {both} times both new, {KILLS - old - both} times one; "
        f"{left} times a temporary file was left"
    )
    return Ending(ending.ended, said, tuple(wrong), time.perf_counter() - started)


def two_runs(place: Place) -> Ending:
    """Run twice at once onto one output, in different ways: one whole result of either."""
    started = time.perf_counter()
    runs = [
        place.start("optimize", "model.onnx", "-o", "out.onnx", "--no-validate", "-q",
                    "--level", level)
        for level in (1, 2)
    ]  # fmt: skip
    codes = [(run.communicate(), run.returncode)[1] for run in runs]
    load_model(place.folder / "out.onnx")
    read_plan(place.folder / "out.json")
    wrong = place.rubbish("out.onnx", "out.json")
    wrong += ["one failed"] * (codes != [0, 0])
    ended = f"exit {codes[0]} and {codes[1]}"
    return Ending(ended, "", tuple(wrong), time.perf_counter() - started)


def long_chain(path: Path, nodes: int) -> Path:
    """Write a model that takes many seconds to plan."""
    ops = [helper.make_node("Relu", [f"v{at}"], [f"v{at + 1}"]) for at in range(nodes)]
    given = helper.make_tensor_value_info("v0", TensorProto.FLOAT, [64])
    made = helper.make_tensor_value_info(f"v{nodes}", TensorProto.FLOAT, [64])
    graph = helper.make_graph(ops, "chain", [given], [made])
    onnx.save(helper.make_model(graph, ir_version=10), path)
    return path


def with_weights(folder: Path) -> Path:
    """Write a model of 256 KiB of external data."""
    weights = helper.make_tensor("w", TensorProto.FLOAT, [65536], bytes(262144), raw=True)
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [65536])
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, [65536])
    nodes = [helper.make_node("Add", ["x", "w"], ["a"]), helper.make_node("Neg", ["a"], ["y"])]
    graph = helper.make_graph(nodes, "heavy", [given], [made], [weights])
    path = folder / "heavy.onnx"
    opsets = [helper.make_opsetid("", 21)]  # one that every runtime knows
    made_up = helper.make_model(graph, ir_version=10, opset_imports=opsets)
    onnx.save(made_up, path, save_as_external_data=True,
              location="heavy.bin", size_threshold=0)  # fmt: skip
    return path


def _interrupted(
    place: Place, words: tuple[object, ...], ready: Callable[[int], bool], *expected: str
) -> Ending:
    """Send what Ctrl-C sends to everything in the foreground, as soon as it is ``ready``."""
    before = _worked_by_children()
    process = place.start(*words)
    limit = time.perf_counter() + 300
    while process.poll() is None and not ready(process.pid) and time.perf_counter() < limit:
        time.sleep(0.02)
    if process.poll() is not None:
        return Ending("before it could be interrupted", wrong=("nothing was interrupted",))
    before += _worked(process.pid)
    sent = time.perf_counter()
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=300)
    seconds = time.perf_counter() - sent
    worked = _worked_by_children() - before
    ending = Ending(f"exit {process.returncode}", said.strip(), (), seconds, worked)
    return judged(ending, 130, "interrupted", place.rubbish(*expected))


def _worked_by_children() -> float:
    """Return the processor seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _worked(process: int) -> float:
    """Return the processor seconds of a process, which a busy machine does not stretch."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def interrupt_while_planning(place: Place) -> Ending:
    model = long_chain(place.folder / "chain.onnx", 60_000)
    return _interrupted(
        place, ("optimize", model, "--no-validate"),
        lambda process: _worked(process) > 1.5, "chain.onnx",
    )  # fmt: skip


def interrupt_while_the_runtime_runs(place: Place) -> Ending:
    return _interrupted(
        place, ("optimize", "model.onnx", "-o", "out.onnx"),
        lambda _: any(place.temporary.rglob("job.json")),
    )  # fmt: skip


def full_temporary_folder_for_inputs(place: Place) -> Ending:
    words = given(place, 100_000)
    ending = _in_a_mount(place, "size=64k", _memplan(*words), temporary=True)
    wrong = [*_left(ending), *place.rubbish(*GIVEN)]
    return judged(ending, 2, "no room for the inputs", wrong)


def full_disk_for_a_certificate(place: Place) -> Ending:
    command = _memplan("optimize", LARGE, "-o", "out.onnx", "--no-validate", "-q",
                       "--certificate", "disk/c.json")  # fmt: skip
    ending = _in_a_mount(place, "size=4k,nr_inodes=1", command)
    return judged(
        ending, 2, "No space left on device", [*_left(ending), *place.rubbish("disk")]
    )


def interrupt_while_a_certificate_is_checked(place: Place) -> Ending:
    words = long_certificate(place)
    made = ("out.onnx", "out.json", "c.json")
    return _interrupted(place, words, lambda process: _worked(process) > 0.8, *made)


def interrupt_while_inputs_are_read(place: Place) -> Ending:
    words = given(place, 1 << 22)
    stored = place.temporary.rglob
    return _interrupted(place, words, lambda _: any(stored("memplan-inputs-*/*.npy")), *GIVEN)


FAULTS: Mapping[str, Callable[[Place], Ending]] = {
    "the disk is full": full_disk,
    "the disk is full when the weights go along": full_disk_for_weights,
    "the folder for temporary files is full": full_temporary_folder,
    "the folder is read-only": read_only_folder,
    "stdout is a full device": full_output,
    "the reader of stdout is gone": reader_that_leaves,
    "the output is the input": output_is_input,
    "the output is a symbolic link to the input": output_links_to_input,
    "the output is a hard link of the input": output_is_a_hard_link_of_input,
    "the plan is the input": plan_is_input,
    f"SIGKILL at {KILLS} random moments": kills,
    "two runs onto one output": two_runs,
    "Ctrl-C while a plan is made": interrupt_while_planning,
    "Ctrl-C while the runtime runs": interrupt_while_the_runtime_runs,
    "the runtime crashes on the written model": runtime_crashes,
    "the runtime hangs on the written model": runtime_hangs,
    "SIGKILL while the runtime hangs": kill_while_the_runtime_hangs,
    "the runtime refuses the written model": runtime_raises,
    "the runtime cannot be imported": no_runtime,
    "the folder for temporary files is full of inputs": full_temporary_folder_for_inputs,
    "the disk is full when a certificate goes along": full_disk_for_a_certificate,
    "the inputs are not all there yet": inputs_that_go,
    "Ctrl-C while inputs are read": interrupt_while_inputs_are_read,
    "Ctrl-C while a certificate is checked": interrupt_while_a_certificate_is_checked,
    "a certificate of an earlier plan": certificate_of_another_moment,
}


def run(fault: Callable[[Place], Ending]) -> Ending:
    """Make a fault happen in an empty place."""
    with tempfile.TemporaryDirectory() as name:
        return fault(Place(Path(name)))


def main() -> int:
    words = asked(__doc__)
    endings = run_all(FAULTS, run, words)
    lines = [
        "# Faults",
        "",
        "Made by `make faults`: each fault really happens to a command in its own process.",
        "Survived means: the old file or the whole new one, no temporary file (but of a run",
        "that was killed), the exit code that belongs to it, and a message that names it.",
        "Seconds of Ctrl-C count from the signal, the others from the start.",
        "",
        "| fault | ended | seconds | said | survived |",
        "|---|---|---:|---|---|",
    ]
    for name, ending in endings.items():
        said = cell(ending.said.replace(f"{ROOT}/", ""), 160)
        verdict = "yes" if not ending.wrong else f"NO: {'; '.join(ending.wrong)}"
        row = (name, ending.ended, f"{ending.seconds:.1f}", said, verdict)
        lines.append(f"| {' | '.join(row)} |")
    wrong = sum(bool(ending.wrong) for ending in endings.values())
    sums = f"{len(endings)} faults, {len(endings) - wrong} survived"
    lines += ["", sums]
    publish_check("make faults", lines, sums, words)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
