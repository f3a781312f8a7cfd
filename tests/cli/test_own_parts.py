"""Parts of one's own on the command line: files that a user names are run, files that only data names are not."""

from pathlib import Path

import pytest
from tests.cli.conftest import Type

RULES = """
from coseek.agents.scripted.rules import PROMPT_TEMPLATE
from coseek.agents.scripted.rules import make
open({mark!r}, "a").close()
"""
FORMAT = """
from coseek.data.imports._sources import ImportedData
from coseek.data.passage import Passage
from coseek.data.question import Question

def read(sources):
    lines = sources[0].read_text(encoding="utf-8").splitlines()
    return ImportedData(tuple(Passage(line, line, line) for line in lines), (Question("q", "Which?", (lines[0],)),))
"""


@pytest.fixture
def ran(world: Path, index: Path, tmp_path: Path, coseek: Type) -> Path:
    """A run of a writer of one's own, with the mark that it was run taken away."""
    (tmp_path / "mine.py").write_text(RULES.format(mark=str(tmp_path / "was-run")), encoding="utf-8")
    words = ("run", world, "--split", "dev", "--count", 2, "--agent", tmp_path / "mine.py", "--retriever", index)
    outcome = coseek(*words, "--out", tmp_path / "run")
    assert outcome.code == 0, outcome.err
    (tmp_path / "was-run").unlink()
    return tmp_path / "run"


def test_a_writer_of_ones_own_is_not_run_because_a_run_names_it(ran: Path, tmp_path: Path, coseek: Type) -> None:
    source = (tmp_path / "mine.py").read_text(encoding="utf-8")
    (tmp_path / "mine.py").write_text(f"{source}# by somebody else\n", encoding="utf-8")
    assert coseek("audit", ran).code == 0
    refusal = coseek("label", ran, "--method", "gold", "--out", tmp_path / "labels").sentence
    assert refusal.endswith(f"which is run only if you name it: --agent {tmp_path / 'mine.py'}")
    assert not (tmp_path / "was-run").exists()
    named = ("label", ran, "--method", "gold", "--agent", tmp_path / "mine.py", "--out", tmp_path / "labels")
    assert coseek(*named).code == 0
    assert (tmp_path / "was-run").exists()


def test_a_retriever_of_ones_own_is_not_run_because_a_run_did(
    ran: Path, index: Path, tmp_path: Path, coseek: Type
) -> None:
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'was-run')!r}, 'a').close()\n", encoding="utf-8")
    (tmp_path / "evil.yaml").write_text("retriever: evil.py\n", encoding="utf-8")
    card = ran / "run.yaml"
    card.write_text(
        card.read_text(encoding="utf-8").replace(f"retriever: {index}\n", f"retriever: {tmp_path / 'evil.yaml'}\n"),
        encoding="utf-8",
    )
    named = ("label", ran, "--method", "gold", "--agent", "rules", "--out", tmp_path / "labels")
    assert coseek(*named).sentence.endswith(f"run only if you name it: --retriever {tmp_path / 'evil.yaml'}")
    assert not (tmp_path / "was-run").exists()


def test_a_format_and_a_method_of_ones_own_are_found_by_their_paths(ran: Path, tmp_path: Path, coseek: Type) -> None:
    (tmp_path / "lines.py").write_text(FORMAT, encoding="utf-8")
    (tmp_path / "some.txt").write_text("Ada\nBob\n", encoding="utf-8")
    made = coseek("data", "import", tmp_path / "lines.py", tmp_path / "some.txt", "--out", tmp_path / "made")
    assert "2 passages, 1 test question" in made.out, made.err
    (tmp_path / "way.py").write_text("from coseek.labels.makers.gold import *\n", encoding="utf-8")
    words = ("label", ran, "--agent", "rules", "--method", tmp_path / "way.py", "--out", tmp_path / "labels")
    assert coseek(*words).code == 0
    assert "has no 'read'" in coseek("data", "import", tmp_path / "way.py", ran, "--out", tmp_path / "x").sentence


def test_a_command_is_no_file_of_ones_own(tmp_path: Path, coseek: Type) -> None:
    (tmp_path / "do.py").write_text("raise SystemExit(9)\n", encoding="utf-8")
    assert "no command named" in coseek(tmp_path / "do.py").sentence


def test_a_fault_in_a_part_of_ones_own_is_one_sentence_with_its_line(index: Path, tmp_path: Path, coseek: Type) -> None:
    head = "from coseek.core.settings import Settings\nclass SETTINGS(Settings):\n    over: str\n"
    (tmp_path / "mine.py").write_text(f"{head}def open(settings, opening):\n    return opning\n", encoding="utf-8")
    (tmp_path / "mine.yaml").write_text(f"retriever: mine.py\nover: {index}\n", encoding="utf-8")
    sentence = coseek("search", tmp_path / "mine.yaml", "who").sentence
    assert "mine.py failed: NameError" in sentence and "(line 5); mend it" in sentence
    (tmp_path / "cut.py").write_text("def read(sources):\n    pass\n", encoding="utf-8")
    imported = coseek("data", "import", tmp_path / "cut.py", tmp_path / "mine.yaml", "--out", tmp_path / "set")
    assert "cut.py returns an ImportedData, not NoneType" in imported.sentence
