"""Broken files: every reader takes them or refuses them with a sentence, and never ends in another error."""

import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.data.test_imports import HOTPOT, MUSIQUE, QED, SQUAD
from tests.source_tree import PACKAGE

from coseek.agents.factory import settings_for
from coseek.agents.protocol import load_protocol
from coseek.cli.main import main
from coseek.core.errors import UserError
from coseek.core.files import Json, json_line, read_yaml, write_json
from coseek.data.corpus_file import CorpusFile
from coseek.data.dataset import Dataset
from coseek.data.grade_cache import GradeCache, Verdict
from coseek.data.imports import import_data
from coseek.data.passage import Corpus
from coseek.data.question import load_questions
from coseek.data.run import Run
from coseek.data.trec import read_qrels, read_run
from coseek.graders.generator import GeneratorSettings, load_generator_prompt
from coseek.hub.card import read_card
from coseek.lab.world.oracle import Oracle
from coseek.lab.world.settings import WorldSettings
from coseek.lab.world.world import make_world
from coseek.labels.label_folder import LabelFolder
from coseek.pipelines.agent_recipe import load_recipe
from coseek.pipelines.audit import audit_run
from coseek.retrieval.factory import open_retriever
from coseek.retrieval.index import open_index
from coseek.traces.importing import import_traces, trace_settings
from coseek.training.encoder.recipe import load_retriever_recipe

Read = Callable[[Path], object]


def exhausted(rows: Iterable[object]) -> None:
    for _ in rows:
        pass


def imported(format_name: str) -> Read:
    return lambda path: import_data(format_name, [path], path.parent / "out")


def traces(path: Path) -> object:
    return import_traces([path], path.parent / "out", trace_settings({"answers": "gold"}))


def verdicts(path: Path) -> object:
    return GradeCache(path, Verdict, "one judge", {}).entries()


def run_of(path: Path) -> None:
    run = Run(path.parent)
    assert run.settings is not None
    exhausted(run.trajectories())
    exhausted(run.by_question())


def labels_of(path: Path) -> None:
    labels = LabelFolder(path.parent)
    exhausted(labels.sets())
    exhausted(labels.dropped())
    labels.recover()


def searched(path: Path) -> None:
    open_index(path.parent).search(["who"], 3)


READERS: dict[str, tuple[Read, ...]] = {
    "set/questions.test.jsonl": (load_questions, lambda path: Dataset(path.parent).questions("test")),
    "set/corpus.jsonl": (CorpusFile.scan, Corpus.load, lambda path: open_index(path.parent.parent / "bm25")),
    "set/world.json": (lambda path: Oracle.load(path.parent),),
    "set/README.md": (lambda path: read_card(path.parent),),
    "run/run.yaml": (run_of, lambda path: audit_run(path.parent)),
    "run/trajectories.jsonl": (run_of, lambda path: audit_run(path.parent)),
    "labels/labels.jsonl": (labels_of,),
    "labels/dropped.jsonl": (labels_of,),
    "verdicts.jsonl": (verdicts,),
    "bm25/index.json": (searched,),
    "bm25/checksums.json": (searched,),
    "bm25/vocabulary.json": (searched,),
    "recipe.yaml": (lambda path: load_recipe(str(path), []),),
    "retriever.yaml": (lambda path: load_retriever_recipe(str(path), [], ["labels"]),),
    "hybrid.yaml": (lambda path: open_retriever(path).search(["who"], 2),),
    "protocol.yaml": (lambda path: load_protocol(str(path)),),
    "template.yaml": (lambda path: load_protocol("search-r1", str(path)),),
    "agent.yaml": (lambda path: settings_for(str(path)),),
    "prompt.yaml": (lambda path: load_generator_prompt(GeneratorSettings(model="m", prompt=str(path))),),
    "plain.yaml": (lambda path: read_yaml(path, "file"),),
    "qrels.txt": (read_qrels,),
    "found.run": (read_run,),
    "hotpot.json": (imported("hotpotqa"),),
    "musique.jsonl": (imported("musique"),),
    "squad.json": (imported("squad"),),
    "qed.jsonl": (imported("qed"),),
    "flashrag.csv": (imported("flashrag"),),
    "log.jsonl": (traces,),
}
"""File of the small home below → what reads it."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small real file for every reader."""
    home = tmp_path_factory.mktemp("malformed") / "home"
    make_world(WorldSettings(size="tiny", train=0, dev=0, test=2)).save(home / "set")
    for words in (
        ("index", "{}/set", "--out", "{}/bm25"),
        ("run", "{}/set", "--agent", "rules", "--retriever", "{}/bm25", "--out", "{}/run", "--split", "test"),
        ("label", "{}/run", "--method", "gold", "--out", "{}/labels"),
    ):
        assert main([word.format(home) for word in words]) == 0
    (home / "set" / "README.md").write_text("---\nlicense: mit\n---\nMine.\n", encoding="utf-8")
    with (cache := GradeCache(home / "verdicts.jsonl", Verdict, "one judge", {})).appending() as file:
        cache.append(file, Verdict("q", "Ada", True))
    for name, text in TEXTS.items():
        (home / name).write_text(text, encoding="utf-8")
    for name, source in COPIED.items():
        shutil.copy(PACKAGE / source, home / name)
    for name, value in PUBLISHED.items():
        write_json(home / name, value)
    return home


MESSAGES: list[Json] = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Ada"}]
TEXTS = {
    "hybrid.yaml": "retriever: hybrid\nparts: [bm25, bm25]\nweights: [0.4, 0.6]\n",
    "agent.yaml": "name: rules\nprotocol: search-r1\nlimits: {max_turns: 3}\n",
    "prompt.yaml": "prompt: '{passages} {question}'\npassage: '[{number}] {title} {text}'\nno_passages: '-'\n",
    "plain.yaml": "a: &x {b: [1, 2.5, text, null, 2020-01-01]}\nc: {<<: *x, d: true}\n",
    "qrels.txt": "q1 0 d1 1\nq1 0 d2 0\n",
    "found.run": "q1 Q0 d1 1 2.5 bm25\nq1 Q0 d2 2 1.5 bm25\n",
    "flashrag.csv": "id,question,golden_answers\na,Who?,\"['Ada']\"\n",
    "log.jsonl": json_line({"messages": MESSAGES, "gold": "Ada"}) * 2,
    "musique.jsonl": json_line(MUSIQUE[0]) if isinstance(MUSIQUE[0], dict) else "",
    "qed.jsonl": json_line(QED) if isinstance(QED, dict) else "",
}
COPIED = {
    "recipe.yaml": "recipes/terse-laptop.yaml",
    "retriever.yaml": "recipes/retriever/laptop.yaml",
    "protocol.yaml": "agents/protocols/search-r1.yaml",
    "template.yaml": "agents/prompt_templates/default.yaml",
}
PUBLISHED: dict[str, Json] = {"hotpot.json": HOTPOT, "squad.json": SQUAD}


@pytest.fixture(scope="module")
def broken(home: Path) -> Path:
    """A copy of the small home, of which one part is broken at a time."""
    return Path(shutil.copytree(home, home.with_name("broken")))


def mended(part: str, home: Path, broken: Path) -> None:
    """Bring a file or folder of the copy back to what it was."""
    for there in (broken / part, broken / "out"):
        if there.is_dir() and not there.is_symlink():
            shutil.rmtree(there)
        else:
            there.unlink(missing_ok=True)
    copy = shutil.copytree if (home / part).is_dir() else shutil.copy2
    copy(home / part, broken / part)


def harmed(data: bytes) -> Iterator[tuple[str, bytes]]:
    """(what was done, the bytes) of the accidents that happen to files."""
    first = data.partition(b"\n")[0]
    yield "emptied", b""
    yield "cut off", data[: len(data) // 2]
    yield "a byte that is no text", data[: len(data) // 3] + b"\xff" + data[len(data) // 3 :]
    yield "a first line twice", first + b"\n" + data
    yield "a list", b"[1, 2]\n"
    yield "numbers for strings", re.sub(rb'"[^"]*"(?=\s*[,}\]])', b"7", data)
    yield "nothing for numbers", re.sub(rb"\b\d+\b", b"null", data)
    yield "other names of fields", re.sub(rb"\b([a-z_]+)(\"?:)", rb"x\1\2", data)


@pytest.mark.parametrize("name", READERS)
def test_no_reader_ends_in_another_error_than_a_sentence(name: str, home: Path, broken: Path) -> None:
    for done, data in harmed((broken / name).read_bytes()):
        (broken / name).write_bytes(data)
        try:
            for read in READERS[name]:
                with suppress(UserError):
                    read(broken / name)
        except Exception as error:
            error.add_note(f"{name}: {done}")
            raise
        finally:
            mended(name.partition("/")[0], home, broken)
