"""The commands in README and the tutorials, and the outputs that these pages show.

    PYTHONPATH=tests:tests/e2e python -m documents.page_outputs [PAGE...]

runs the commands of the named pages, or of all, on real models, and writes what they print into the
text blocks below them. A block marked ``<!-- first 9 lines -->`` gets that many. A block marked
``<!-- excerpt -->`` is left as it is.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from documents.pages import DOCS, README, ROOT, blocks_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from documents.pages import CodeBlock

TUTORIALS = tuple(
    sorted(page for page in (DOCS / "tutorials").glob("*.md") if page.stem != "index")
)
PAGES_WITH_OUTPUTS = (README, *TUTORIALS)

_FIELD = ROOT / "out" / "field" / "models"
_SHARED = ROOT.parent / "shared" / "models"
MODELS = {
    "branchy_cnn": ROOT / "sample_models" / "branchy_cnn.onnx",
    "dynamic_batch": ROOT / "sample_models" / "dynamic_batch.onnx",
    "resnet50": _SHARED / "resnet50.onnx",
    "rec": _FIELD / "rapidocr-onnxruntime" / "ch_PP-OCRv4_rec_infer.onnx",
    "cls": _FIELD / "rapidocr-onnxruntime" / "ch_ppocr_mobile_v2.0_cls_infer.onnx",
    "ocr": _FIELD / "ddddocr" / "common.onnx",
    "eeg": _FIELD / "brainmaze-eeg-models" / "spindle-detector-eeg.onnx",
}
"""The models of the pages. `make field` collects those that lie inside packages."""

COLUMNS = 80
"""Width of the terminal in which the outputs are printed."""

_PROGRESS = re.compile(r"memplan: [a-z ]+ \(\d+ s\)")


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a shell block, or one file of settings to write.

    Attributes:
        words: the words of the command; ``write``, a file name and its text; or ``python`` and a program.
        code: the exit code that the page states.
        output: the text block below with the output of the command; None if there is none.
        line: where the block begins in the page.
    """

    words: tuple[str, ...]
    code: int
    output: CodeBlock | None
    page: Path
    line: int


def steps(page: Path) -> Iterator[Step]:
    """Yield the steps of a page in order; a block of settings is the file memplan.yaml.

    Programs that write a model are steps. Commands other than ``memplan`` and ``cp``, such as ``pip``, are no steps.
    """
    blocks = list(blocks_of(page))
    for index, block in enumerate(blocks):
        if block.language == "yaml":
            yield Step(("write", "memplan.yaml", block.text), 0, None, page, block.line)
        if block.language == "python" and "onnx.save(" in block.text:
            yield Step(("python", block.text), 0, None, page, block.line)
        if block.language != "sh":
            continue
        next_block = blocks[index + 1] if index + 1 < len(blocks) else None
        output = next_block if next_block and next_block.language == "text" else None
        code = int(block.remark.removeprefix("exit ")) if block.remark else 0
        for line in block.text.splitlines():
            words = tuple(shlex.split(line, comments=True))
            if words and words[0] in {"memplan", "cp"}:
                yield Step(words, code, output, page, block.line)


def prepare_files(step: Step, folder: Path) -> bool:
    """Write or copy a file, or run a program, as a step says; False if it is a memplan command."""
    kind, *rest = step.words
    if kind == "write":
        (folder / rest[0]).write_text(rest[1], encoding="utf-8")
    elif kind == "cp":
        shutil.copy(folder / rest[0], folder / rest[1])
    elif kind == "python":
        subprocess.run([sys.executable, "-c", rest[0]], cwd=folder, check=True)
    return kind in {"write", "cp", "python"}


def printed_by(words: tuple[str, ...], folder: Path, code: int) -> str:
    """Return what ``memplan ...`` prints in a folder, without its progress lines.

    Raises:
        RuntimeError: the command ended with another exit code.
    """
    environment = os.environ | {
        "COLUMNS": str(COLUMNS), "NO_COLOR": "1", "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip
    process = subprocess.run(
        [sys.executable, "-m", "memplan_cli", *words[1:]], cwd=folder, check=False, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment,
    )  # fmt: skip
    if process.returncode != code:
        raise RuntimeError(f"{shlex.join(words)}: exit {process.returncode}\n{process.stdout}")
    lines = (line.rstrip() for line in process.stdout.splitlines())
    return "\n".join(line for line in lines if not _PROGRESS.fullmatch(line)).strip()


def copy_models(page: Path, folder: Path) -> None:
    """Copy the models that a page names into a folder; those without weights get seeded ones."""
    text = page.read_text(encoding="utf-8")
    for name, source in MODELS.items():
        if f"{name}.onnx" not in text:
            continue
        in_clone = source.relative_to(ROOT) if source.is_relative_to(ROOT) else source
        target = folder / (in_clone if str(in_clone) in text else f"{name}.onnx")
        target.parent.mkdir(exist_ok=True)
        if source.is_relative_to(_SHARED):
            fill = [sys.executable, str(_SHARED / "fill_weights.py"), str(source), str(target)]
            subprocess.run(fill, check=True, stdout=subprocess.DEVNULL)
            # Most exports have their weights inside; what is filled has them in a file beside it.
            onnx.save(onnx.load(target), target)
        else:
            shutil.copyfile(source, target)


def write_outputs(page: Path, folder: Path) -> None:
    """Run the commands of a page in a folder, and write what they print into the page."""
    copy_models(page, folder)
    outputs: dict[int, str] = {}
    for step in steps(page):
        if prepare_files(step, folder):
            continue
        print(f"{page.name}:{step.line} {shlex.join(step.words)}", flush=True)
        printed = printed_by(step.words, folder, step.code)
        if step.output and step.output.remark != "excerpt":
            outputs[step.output.line] = shown_part(printed, step.output.remark)
    lines = page.read_text(encoding="utf-8").split("\n")
    for line, printed in sorted(outputs.items(), reverse=True):
        end = lines.index("```", line)
        lines[line:end] = printed.splitlines()
    page.write_text("\n".join(lines), encoding="utf-8")


def shown_part(printed: str, remark: str) -> str:
    """Return an output, or the first lines of it if the remark asks for these alone."""
    first = re.fullmatch(r"first (\d+) lines", remark)
    return "\n".join(printed.splitlines()[: int(first[1])]) if first else printed


def main(names: list[str]) -> None:
    """Write the outputs of the named pages, or of all."""
    for page in PAGES_WITH_OUTPUTS:
        if names and page.stem not in names:
            continue
        folder = ROOT / "out" / "documents" / page.stem
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        write_outputs(page, folder)


if __name__ == "__main__":
    main(sys.argv[1:])
