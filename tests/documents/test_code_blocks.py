"""Code blocks of the documentation work: command lines, settings, JSON and Python."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from typing import TYPE_CHECKING

import click
import pytest

from documents.pages import DOCS, PAGES, ROOT, CodeBlock, blocks_of, code_blocks
from memplan_cli.cli import main
from memplan_cli.errors import SettingsError
from memplan_cli.settings.sources import SettingsLayer, read_config

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SETTINGS_FILES = {
    "yaml": "memplan.yaml",
    "toml": "pyproject.toml",
    "prototxt": "net.prototxt",
}
SHELL = code_blocks("sh")
SETTINGS = code_blocks(*SETTINGS_FILES)
PYTHON = code_blocks("python")
RUN = tuple(block for block in PYTHON if block.remark == "runs")


def command_lines(block: CodeBlock) -> Iterator[list[str]]:
    """Yield the words of each command in a shell block, without pipes and redirections."""
    for line in block.text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        for word in lexer:
            if re.fullmatch(r"[();<>|&]+", word):
                break
            words.append(word)
        if words:
            yield words


def parse(words: list[str]) -> None:
    """Parse ``memplan ...`` with the real command line, without running anything.

    Raises:
        click.UsageError: there is no such command, argument, option or choice.
    """
    with main.make_context("memplan", words[1:]) as context:
        name, command, rest = main.resolve_command(context, words[1:])
        assert command is not None
        command.make_context(name, rest, parent=context)


def read_settings(block: CodeBlock, folder: Path) -> SettingsLayer:
    path = folder / SETTINGS_FILES[block.language]
    path.write_text(block.text, encoding="utf-8")
    return read_config(path)


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_commands_parse_on_the_real_command_line(block: CodeBlock) -> None:
    for words in command_lines(block):
        if words[0] == "memplan":
            parse(words)


@pytest.mark.parametrize(
    "text",
    [
        "memplan optimise model.onnx",
        "memplan optimize model.onnx --levle 1",
        "memplan optimize model.onnx --order best",
        "memplan diff old.onnx",
        "memplan fit model.onnx --dim batch=?",
    ],
)
def test_wrong_commands_are_refused(text: str) -> None:
    (words,) = command_lines(CodeBlock(DOCS, 1, "sh", text))
    with pytest.raises(click.UsageError):
        parse(words)


def test_words_of_a_command_end_at_shell_operators() -> None:
    text = "memplan report 'a b.onnx' \\\n  --level 1 > out.txt  # why\n\n# nothing\nmake demo"
    commands = list(command_lines(CodeBlock(DOCS, 1, "sh", text)))
    assert commands == [["memplan", "report", "a b.onnx", "--level", "1"], ["make", "demo"]]


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_targets_of_make_exist(block: CodeBlock) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = [words[1] for words in command_lines(block) if words[0] == "make"]
    assert [target for target in named if target not in targets] == []


@pytest.mark.parametrize("block", SETTINGS, ids=str)
def test_settings_are_accepted(block: CodeBlock, tmp_path: Path) -> None:
    assert read_settings(block, tmp_path).values


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("yaml", "levle: 1\n"),
        ("toml", "[tool.memplan]\nlevel = 3\n"),
        ("prototxt", "mem_param { optimise_train: true }\n"),
    ],
)
def test_wrong_settings_are_refused(language: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError):
        read_settings(CodeBlock(DOCS, 1, language, text), tmp_path)


@pytest.mark.parametrize("block", code_blocks("json"), ids=str)
def test_json_is_valid(block: CodeBlock) -> None:
    json.loads(block.text)


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_compiles(block: CodeBlock) -> None:
    compile(block.text, str(block), "exec")


@pytest.mark.parametrize("block", RUN, ids=str)
def test_python_blocks_marked_runs_run(
    block: CodeBlock, tmp_path: Path, samples: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(samples / "dynamic_batch.onnx", tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    exec(compile(block.text, str(block), "exec"), {"__name__": "documents"})  # noqa: S102 - ours


def test_there_are_blocks_of_every_kind() -> None:
    languages = {block.language for block in SETTINGS}
    assert languages == set(SETTINGS_FILES)
    assert len(RUN) >= 3
    assert sum(words[0] == "memplan" for block in SHELL for words in command_lines(block)) > 30


def test_blocks_have_languages_that_are_tested() -> None:
    """No test would read a block called ``bash`` or ``yml``."""
    tested = {"", "sh", "python", "json", "text", "{toctree}", *SETTINGS_FILES}
    blocks = [block for page in PAGES for block in blocks_of(page)]
    assert [str(block) for block in blocks if block.language not in tested] == []


def test_settings_page_shows_the_defaults_as_they_are() -> None:
    text = (DOCS / "settings.md").read_text()
    after_begin = text.partition("<!-- default.yaml: begin -->\n```yaml\n")[2]
    block = after_begin.partition("```\n<!-- default.yaml: end -->")[0]
    assert block == (ROOT / "configs" / "default.yaml").read_text()
