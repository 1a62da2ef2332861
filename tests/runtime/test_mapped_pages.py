"""Pages of mapped files are let go where they are the file's still."""

from __future__ import annotations

import mmap
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from memplan_cli import Check, api
from memplan_cli.onnx_io.traversal import graphs
from memplan_cli.runtime.workers.memory_release import drop_new_file_pages
from memplan_cli.settings.settings import Settings

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")

PAGES = 64
HIDDEN = 256


def resident(path: Path) -> int:
    """Return the bytes of a file that lie in this process."""
    text = Path("/proc/self/smaps").read_text(encoding="utf-8")
    pattern = rf"{re.escape(str(path))}\n(?:[A-Z].*\n)*?Rss: +(\d+) kB"
    return sum(1024 * int(found) for found in re.findall(pattern, text))


def mapped(folder: Path, access: int) -> tuple[Path, mmap.mmap]:
    """Return a file with its pages in this process, all of them read."""
    folder.mkdir(exist_ok=True)
    path = folder / "wéights.data"
    path.write_bytes(b"w" * PAGES * mmap.PAGESIZE)
    with path.open("r+b") as file:
        pages = mmap.mmap(file.fileno(), 0, access=access)
    assert pages[:] == b"w" * len(pages)
    assert resident(path) == len(pages)
    return path, pages


def test_what_was_read_is_let_go_and_there_when_read_again(tmp_path: Path) -> None:
    with drop_new_file_pages(tmp_path):
        path, pages = mapped(tmp_path, mmap.ACCESS_READ)
    assert resident(path) == 0
    assert pages[:] == b"w" * len(pages)


def test_what_was_mapped_before_stays(tmp_path: Path) -> None:
    path, pages = mapped(tmp_path, mmap.ACCESS_READ)
    with drop_new_file_pages(tmp_path):
        other, others = mapped(tmp_path / "other", mmap.ACCESS_READ)
    assert (resident(path), resident(other)) == (len(pages), 0)
    assert len(others) == len(pages)


def test_what_was_changed_stays(tmp_path: Path) -> None:
    with drop_new_file_pages(tmp_path):
        path, pages = mapped(tmp_path, mmap.ACCESS_COPY)
    assert resident(path) == 0
    with drop_new_file_pages(tmp_path):
        path, pages = mapped(tmp_path, mmap.ACCESS_COPY)
        pages[mmap.PAGESIZE] = 0
    assert resident(path) > 0
    assert pages[mmap.PAGESIZE - 1 : mmap.PAGESIZE + 2] == b"w\0w"


def test_files_of_other_folders_stay(tmp_path: Path) -> None:
    with drop_new_file_pages(tmp_path / "there"):
        path, pages = mapped(tmp_path / "here", mmap.ACCESS_READ)
    assert resident(path) == len(pages)


def test_what_another_thread_may_still_be_loading_stays(tmp_path: Path) -> None:
    with drop_new_file_pages(tmp_path):
        with drop_new_file_pages(tmp_path):
            path, pages = mapped(tmp_path, mmap.ACCESS_READ)
        assert resident(path) == len(pages)
    assert resident(path) == 0
    with pytest.raises(OSError, match="lost"), drop_new_file_pages(tmp_path):
        raise OSError("lost")
    with drop_new_file_pages(tmp_path):
        other, _ = mapped(tmp_path / "other", mmap.ACCESS_READ)
    assert resident(other) == 0


def test_code_stays_where_a_model_lies_above_it(tmp_path: Path) -> None:
    with drop_new_file_pages(tmp_path):
        path, pages = mapped(tmp_path, mmap.ACCESS_READ)
        rights = mmap.PROT_READ | mmap.PROT_EXEC
        with path.open("rb") as file:
            code = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, rights)
    assert resident(path) == len(pages)
    assert len(code) == len(pages)


SHOW = """
import sys
from pathlib import Path
import numpy as np
import memplan
from runtime.test_mapped_pages import resident
model = Path(sys.argv[1])
session = memplan.load(model)
print(resident(Path(f"{model}.data")))
outputs = session.run(None, {"x": np.ones((1, 1, 256), np.float32), "go": np.array(True)})
print(resident(Path(f"{model}.data")))
"""


def recurrent(depth: int) -> onnx.ModelProto:
    """Return a GRU whose weights are its own branch's, so many branches deep."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(
            rng.uniform(-0.1, 0.1, (1, 3 * HIDDEN, HIDDEN)).astype(np.float32), name
        )
        for name in ("W", "R")
    ]
    result = helper.make_tensor_value_info("y0", TensorProto.FLOAT, [1, 1, HIDDEN])
    node = helper.make_node("GRU", ["x", "W", "R"], ["", "y0"], hidden_size=HIDDEN)
    for level in range(1, depth + 1):
        then = helper.make_graph([node], f"t{level}", [], [result], weights)
        other = helper.make_tensor_value_info(f"e{level}", TensorProto.FLOAT, [1, 1, HIDDEN])
        copy = helper.make_node("Identity", ["x"], [other.name])
        els = helper.make_graph([copy], f"e{level}", [], [other])
        result = helper.make_tensor_value_info(f"y{level}", TensorProto.FLOAT, [1, 1, HIDDEN])
        node = helper.make_node("If", ["go"], [result.name], then_branch=then, else_branch=els)
        weights = []
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, HIDDEN])
    go = helper.make_tensor_value_info("go", TensorProto.BOOL, [])
    graph = helper.make_graph([node], "g", [given, go], [result])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_subgraphs_weights_are_mapped_once_and_when_a_run_reads_them(
    tmp_path: Path, depth: int
) -> None:
    model, out = tmp_path / "m.onnx", tmp_path / "out.onnx"
    onnx.save(recurrent(depth), model)
    done = api.optimize(model, Settings(target="cpu"), out=out, check=Check("cpu"))
    assert done.passed
    written = onnx.load(out, load_external_data=False)
    counts = [
        len([t for t in g.initializer if t.external_data]) for g in graphs(written.graph)
    ]
    assert (counts[0] >= 2) == (depth == 1)
    run = subprocess.run(
        [sys.executable, "-c", SHOW, str(out)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    loaded, ran = map(int, run.stdout.split())
    packed = 2 * 3 * HIDDEN * HIDDEN * 4
    assert loaded < 64 << 10
    assert packed <= ran < 1.25 * packed
