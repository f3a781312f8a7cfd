"""Tools and other parts in a user's files: run if the user named them, and never because stored data do."""

import json
import shutil
from pathlib import Path

import pytest
from tests.cli.conftest import Type

from coseek.agents.agent_card import AgentCard
from coseek.agents.factory import settings_for
from coseek.agents.protocol import FOLDER, load_protocol
from coseek.core.errors import SettingError
from coseek.data.digests import changed_parts
from coseek.data.run import Run
from coseek.pipelines.agent_recipe import load_recipe
from coseek.pipelines.labelling import identity_of
from coseek.pipelines.run_record import agent_identities

CALCULATOR = Path(__file__).parents[2] / "examples" / "tools" / "calculator.py"
AGENT = """
from coseek.agents.scripted_agent import Move
PROMPT_TEMPLATE = "default"

class Calculates:
    def write(self, so_far, rng):
        if so_far.calls:
            return Move("done", answer=str(so_far.calls[-1].result))
        if so_far.searches:
            return Move("now compute", call=("calculator", {"expression": f"{len(so_far.searches[0].hits)} * 7"}))
        return Move("look it up", queries=(so_far.question.question,))

def make():
    return Calculates()
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with a calculator, `react` with that calculator, and a scripted agent that searches and calls it."""
    shutil.copy(CALCULATOR, tmp_path / "calculator.py")
    react = (FOLDER / "react.yaml").read_text(encoding="utf-8")
    more = "tools:\n  calculator: {tool: calculator.py, max_calls: 3}\n"
    (tmp_path / "react.yaml").write_text(react.replace("tools:\n", more), encoding="utf-8")
    (tmp_path / "agent.py").write_text(AGENT, encoding="utf-8")
    return tmp_path


@pytest.fixture
def words(home: Path, world: Path, index: Path) -> tuple[object, ...]:
    """The command that runs this agent."""
    named = ("--agent", home / "agent.py", "--protocol", home / "react.yaml", "--retriever", index)
    return ("run", world, "--split", "dev", "--count", 4, *named, "--out", home / "run")


def marked(home: Path) -> Path:
    """Make the tool's file create a file, which is returned, whenever it is run."""
    source = (home / "calculator.py").read_text(encoding="utf-8")
    (home / "calculator.py").write_text(f"{source}open({str(home / 'was-run')!r}, 'a').close()\n", encoding="utf-8")
    return home / "was-run"


@pytest.mark.medium
def test_audit_and_score_never_run_the_tool_of_a_run(home: Path, words: tuple[object, ...], coseek: Type) -> None:
    mark = marked(home)
    assert coseek(*words).code == 0 and mark.exists()
    mark.unlink()
    assert coseek("audit", home / "run").code == coseek("score", home / "run").code == 0
    assert not mark.exists()
    (home / "calculator.py").unlink()
    audit = coseek("audit", home / "run")
    assert audit.code == 0 and "4 trajectories checked" in audit.out and "ids against text" not in audit.err
    assert coseek("score", home / "run").code == 0
    (home / "react.yaml").unlink()
    assert coseek("audit", home / "run").code == coseek("score", home / "run").code == 0


def test_labelling_a_run_with_a_tool_does_not_run_its_file(home: Path, words: tuple[object, ...], coseek: Type) -> None:
    mark = marked(home)
    assert coseek(*words).code == 0
    path = home / "run" / "run.yaml"  # as if an agent of ours had run it: only the protocol names a file now
    path.write_text(path.read_text(encoding="utf-8").replace(str(home / "agent.py"), "rules"), encoding="utf-8")
    mark.unlink()
    label = ("label", home / "run", "--method", "gold", "--out", home / "labels")
    refusal = coseek(*label).sentence
    assert f"made with {home / 'calculator.py'}, which is run only if you name it: --agent FILE.yaml" in refusal
    assert coseek(*label, "--agent", "rules").code == 0
    assert not mark.exists()


def test_a_run_with_a_changed_tool_does_not_go_on(home: Path, words: tuple[object, ...], coseek: Type) -> None:
    assert coseek(*words).code == 0
    path = Run(home / "run").trajectories_path
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:2]))
    source = (home / "calculator.py").read_text(encoding="utf-8")
    (home / "calculator.py").write_text(source.replace(".12g", ".3g"), encoding="utf-8")
    refused = coseek(*words, "--resume")
    assert refused.code == 2 and "what differs: protocol" in refused.sentence
    (home / "calculator.py").write_text(source, encoding="utf-8")
    assert coseek(*words, "--resume").code == 0
    ids = [[segment["ids"] for segment in json.loads(line)["segments"]] for line in path.read_bytes().splitlines()]
    assert ids == [[segment["ids"] for segment in json.loads(line)["segments"]] for line in whole]


def test_a_training_remembers_the_tools_of_its_protocols(home: Path) -> None:
    recipe = load_recipe("from-nothing", [f"protocol={home / 'react.yaml'}"])
    before = agent_identities(recipe, None)
    assert str(home / "calculator.py") in before
    marked(home)
    assert changed_parts(dict(before), agent_identities(recipe, None)) == [str(home / "calculator.py")]
    assert not (home / "was-run").exists()


def test_agents_with_different_tools_share_no_cached_text(home: Path) -> None:
    agent = settings_for("rules", str(home / "react.yaml"))
    before = identity_of(agent)
    assert identity_of(agent) == before
    marked(home)
    assert identity_of(agent) != before


def test_a_policy_takes_its_protocol_along_and_its_tool_is_run_only_if_named(
    home: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "mine.yaml").write_text("extends: react.yaml\nabout: mine\n", encoding="utf-8")
    (home / "words.yaml").write_text("prompt: '{question}'\n", encoding="utf-8")
    monkeypatch.chdir(home)
    policy, moved = home / "policy", tmp_path_factory.mktemp("moved") / "policy"
    policy.mkdir()
    (policy / "config.json").write_text("{}", encoding="utf-8")
    AgentCard(protocol="mine.yaml", prompt_template="words.yaml").write(policy)
    policy.rename(moved)
    for gone in home.glob("*.*"):
        gone.unlink()
    protocol = moved / "protocol" / "mine.yaml"
    refusal = rf"tool calculator\.py is a Python file.*--protocol {protocol}, or where .* a FILE\.yaml"
    with pytest.raises(SettingError, match=refusal):
        settings_for(str(moved))
    settings = settings_for(str(moved), str(protocol))
    assert load_protocol(settings.protocol, run_files=True).grammar.tools.keys() == {"search", "visit", "calculator"}
    assert Path(settings.prompt_template).read_text(encoding="utf-8") == "prompt: '{question}'\n"


# --- parts of one's own: files that a user names are run, files that only data names are not


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
    """A run of a scripted agent in a user's file. The file `was-run` shows whether it was run again."""
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


def test_an_own_retriever_is_not_run_because_a_run_did(ran: Path, index: Path, tmp_path: Path, coseek: Type) -> None:
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'was-run')!r}, 'a').close()\n", encoding="utf-8")
    (tmp_path / "evil.yaml").write_text("retriever: evil.py\n", encoding="utf-8")
    record = (ran / "run.yaml").read_text(encoding="utf-8")
    changed = record.replace(f"retriever: {index}\n", f"retriever: {tmp_path / 'evil.yaml'}\n")
    (ran / "run.yaml").write_text(changed, encoding="utf-8")
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
