"""`coseek new` and `coseek check`: every written part works, and a broken contract is refused in one sentence."""

import runpy
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Type

from coseek.cli.commands.new import TEMPLATES
from coseek.core.errors import UserError


@pytest.mark.medium
@pytest.mark.parametrize("part", sorted(TEMPLATES))
def test_a_new_part_works_as_written(part: str, tmp_path: Path, coseek: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    if part in ("algorithm", "policy-loss"):
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    made = coseek("new", part, "My-own")
    (path,) = [file for file in tmp_path.iterdir() if not file.name.startswith("test_")]
    assert made.code == 0 and path.stem == "my_own" and f"Next: coseek check {path.name}" in made.out
    assert "My part" not in path.read_text(encoding="utf-8")
    checked = coseek("check", path.name)
    first, *lines, use = checked.out.splitlines()
    assert first == f"{path.name}: {part.replace('-', ' ')}" and lines and path.name in use, checked.err


def test_the_test_of_a_new_part_passes_and_fails_with_it(tmp_path: Path, coseek: Type) -> None:
    assert coseek("new", "reward", "brevity", "--out", tmp_path).code == 0
    test = runpy.run_path(str(tmp_path / "test_brevity.py"))["test_brevity_keeps_its_contract_and_runs"]
    test()
    (tmp_path / "brevity.py").write_text("x = 1\n", encoding="utf-8")
    with pytest.raises(UserError):
        test()


def test_a_new_part_never_replaces_a_file(tmp_path: Path, coseek: Type) -> None:
    (tmp_path / "brevity.py").write_text("mine", encoding="utf-8")
    assert "already exists" in coseek("new", "reward", "brevity", "--out", tmp_path).sentence
    assert "did you mean 'reward'" in coseek("new", "rewrd", "brevity").sentence
    assert "'../x'" in coseek("new", "reward", "../x", "--out", tmp_path).sentence
    assert (tmp_path / "brevity.py").read_text(encoding="utf-8") == "mine"


BACKWARDS = """
from coseek.core.settings import Settings as SETTINGS
from coseek.data.passage import Hit, Passage
class Backwards:
    name, identity, corpus = "backwards", "1", None
    def seen(self, query): return "q"
    def search(self, queries, k):
        return [[Hit(Passage("a", "", ""), 1.0), Hit(Passage("b", "", ""), 2.0)] for _ in queries]
def open(settings, opening): return Backwards()
"""
REWARD = "from coseek.rewards.reward import PartSettings as SETTINGS\n"
FORMAT = "EXAMPLE = 'a'\ndef read(sources): return "
BROKEN = {
    "nothing of a part": ("x = 1\n", "defines none of the names of a part"),
    "a name that is missing": (REWARD, "has no 'reward', so it is no reward"),
    "a reward that is no number": (REWARD + "def reward(run, settings): return 'much'\n", "let it return a number"),
    "a reward that fails": (
        REWARD + "def reward(run, settings): return run.gold[9]\n",
        "IndexError: tuple index out of range (line 2)",
    ),
    "a format that fails": (FORMAT + "1 / 0\n", "ZeroDivisionError: division by zero (line 2)"),
    "a format that returns rows": (FORMAT + "[]\n", "returns an ImportedData, not list"),
    "hits that rise": (BACKWARDS, "return hits by falling score"),
    "a file that cannot be read": ("def (\n", "SyntaxError"),
}


@pytest.mark.medium
@pytest.mark.parametrize("fear", BROKEN)
def test_a_part_that_breaks_its_contract_is_reported_in_a_sentence(fear: str, tmp_path: Path, coseek: Type) -> None:
    text, message = BROKEN[fear]
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    assert message in coseek("check", tmp_path / "mine.py").sentence


def test_a_missing_library_is_no_fault_of_a_part(tmp_path: Path, coseek: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    assert coseek("new", "algorithm", "mine", "--out", tmp_path).code == 0
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "pip install 'coseek[train]'" in coseek("check", tmp_path / "mine.py").sentence
