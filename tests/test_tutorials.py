"""The tutorials: every line of their code blocks runs, in order. Trainings take a few small steps."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from tests.pipelines.test_agent import FEW, OF_A_MODEL
from tests.source_tree import ROOT

from coseek.cli.main import main

BASE = [
    *OF_A_MODEL, *FEW, "warm_start.worlds=1",
    "warm_start.sft={steps: 1, repeat_steps: 0, rounds: 1, tokens_per_step: 600}",
    "limits={max_turns: 1, max_turn_tokens: 8}", "rl={steps: 1, questions_per_step: 2, group_size: 2}",
    "table={questions: 2, dev_questions: 2}",
]  # fmt: skip
"""The shipped base is larger than what the other tests train, and so far writes to the end of its limits."""
SHORT: dict[tuple[str, ...], list[str]] = {
    ("quickstart",): BASE,
    ("train", "agent", "quickstart"): BASE,
    ("world", "make"): ["--size", "tiny", "train=40", "dev=10", "test=10"],
    ("train", "retriever", "laptop"): [
        "synthetic={worlds: 1, tokenizer_worlds: 1, world: {size: tiny, train: 20}, held_out: {size: tiny, dev: 10}}",
        "laptop={hidden: 32, feed_forward: 32, vocabulary: 1500}",
        "training={steps: 2, batch_size: 8}",
        "held_out={turns: 10, passages: 50}",
    ],
    ("train", "retriever", "two-cores"): ["training={steps: 2, batch_size: 8}"],
}
"""First words of a command → settings behind its own, so that it ends in seconds."""
IN_THE_SHELL = ". .venv/bin/activate"


def lines_of(page: Path) -> list[list[str]]:
    """The words of every line of a page's code blocks; a line that goes on is one."""
    blocks = re.findall(r"```(\w*)\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert {language for language, _ in blocks} == {"sh"}
    text = "\n".join(code for _, code in blocks).replace("\\\n", " ")
    return [words for line in text.splitlines() if line != IN_THE_SHELL and (words := shlex.split(line, comments=True))]


def commands_of(words: list[str]) -> list[str]:
    """The arguments behind `coseek` of a line; those of its last command where the line is a target of make."""
    if words[0] == "make":
        shown = subprocess.run(["make", "-n", "-C", ROOT, *words[1:]], capture_output=True, text=True, check=True)
        words = shlex.split([line for line in shown.stdout.splitlines() if "/coseek " in line][-1])
    assert Path(words[0]).name == "coseek"
    return words[1:]


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "tutorials").glob("*.md")), ids=lambda page: page.stem)
def test_every_line_of_a_tutorial_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = lines_of(page)
    assert len(lines) > 8
    for words in map(commands_of, lines):
        short = next((more for first, more in SHORT.items() if tuple(words[: len(first)]) == first), [])
        assert main([*words, *short]) == 0, " ".join(words)
