"""Bad input: each mistake is answered with one sentence and exit code 2, and nothing that was there is lost."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from tests.cli.conftest import Type

from coseek.retrieval.index import build_index

CORPUS = [
    {"id": "ada", "title": "Ada", "text": "Ada was born in 1815."},
    {"id": "bob", "title": "Bob", "text": "Bob knew Ada."},
    {"id": "cat", "title": "Cat", "text": "Cats sleep."},
]
QUESTIONS = [
    {"id": "q1", "question": "When was Ada born?", "answers": ["1815"], "gold_ids": ["ada"]},
    {"id": "q2", "question": "Who knew Ada?", "answers": ["Bob"], "gold_ids": ["bob"]},
]


def write(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a small data set `set`, its index `bm25`, and a file `notes.txt`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "set").mkdir()
    write(tmp_path / "set" / "corpus.jsonl", CORPUS)
    write(tmp_path / "set" / "questions.test.jsonl", QUESTIONS)
    build_index(Path("set"), "bm25", Path("bm25"))
    (tmp_path / "notes.txt").write_text("precious", encoding="utf-8")
    return tmp_path


def contents(folder: Path) -> dict[str, str]:
    """Path → digest of every file in a folder."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


Refused = Callable[..., str]
"""Type a command that must be refused; returns the sentence."""


@pytest.fixture
def refused(home: Path, coseek: Type) -> Refused:
    def type_in(*words: object) -> str:
        before = contents(home)
        outcome = coseek(*words)
        assert outcome.code == 2, outcome
        assert contents(home) == before
        return outcome.sentence

    return type_in


RUN = ("run", "set", "--agent", "rules", "--retriever", "bm25", "--out", "new")
ASK = ("ask", "who", "--agent", "rules", "--retriever", "bm25")

TYPED_WRONG: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "command": (("serch", "bm25", "Ada"), ("'serch'", "'search'")),
    "command in a group": (("world", "mke", "w"), ("'mke'", "'make'")),
    "option": (("search", "bm25", "Ada", "--jsn"), ("--jsn", "--json")),
    "missing argument": (("search",), ("RETRIEVER", "coseek search --help")),
    "zero passages": (("search", "bm25", "Ada", "-k", "0"), ("got '0'", "coseek search --help")),
    "verified into a folder": (("index", "bm25", "--verify", "--out", "new"), ("--verify takes an index folder",)),
    "missing index": (("search", "bm26", "Ada"), ("bm26", "coseek index")),
    "not an index": (("search", "set", "Ada"), ("set is not an index", "coseek index")),
    "missing data set": (("index", "sett", "--out", "new"), ("sett",)),
    "folder without corpus": (("index", "bm25", "--out", "new"), ("bm25 holds no corpus.jsonl",)),
    "not over a data set": (("index", "set", "--out", "set"), ("set exists and is not an index",)),
    "retriever": (("index", "set", "--retriever", "bm52", "--out", "new"), ("'bm52'", "'bm25'")),
    "retriever setting": (("index", "set", "kk1=2", "--out", "new"), ("'kk1'", "'k1'")),
    "retriever setting's value": (("index", "set", "k1=-1", "--out", "new"), ("'k1'", "-1")),
    "missing questions": (("run", "sets", *RUN[2:]), ("sets", "check the path")),
    "split": ((*RUN, "--split", "tset"), ("'tset'", "'test'")),
    "agent": (("run", "set", "--agent", "rulse", *RUN[4:]), ("'rulse'", "'rules'")),
    "agent without a model": (("run", "set", "--agent", "set", *RUN[4:]), ("set is not a model folder", "config.json")),
    "protocol": ((*RUN, "--protocol", "serach-r1"), ("'serach-r1'", "'search-r1'")),
    "prompt_template": ((*RUN, "--prompt-template", "laptp"), ("'laptp'", "'laptop'")),
    "run setting": ((*RUN, "limits.max_turn=2"), ("'limits.max_turn'", "'limits.max_turns'")),
    "run setting without its group": ((*RUN, "max_turns=2"), ("'max_turns'", "'limits.max_turns'")),
    "no budget of tokens": ((*RUN, "limits.max_tokens=0"), ("'limits.max_tokens' needs at least 1, got 0",)),
    "split of a file": (("run", "set/questions.test.jsonl", *RUN[2:], "--split", "dev"), ("is a file", "--split")),
    "run over a data set": ((*RUN[:-1], "set"), ("set holds something else", "corpus.jsonl", "choose")),
    "run over a file": ((*RUN[:-1], "notes.txt"), ("notes.txt is a file; choose a folder",)),
    "run where no folder can be": ((*RUN[:-1], "/proc/none/new"), ("/proc/none", "choose")),
    "question for the expert": (("ask", "who", "--agent", "expert", *ASK[4:]), ("'expert' needs the plan", "rules")),
    "ask setting": ((*ASK, "max_turnz=2"), ("'max_turnz'", "'max_turns'")),
    "scores over a data set": (
        ("score", "run", "--out", "set"),
        ("set holds something else", "corpus.jsonl", "choose"),
    ),
    "audit without a run": (("audit", "runs/none"), ("none is not a run", "coseek run")),
    "data format": (("data", "import", "hotpot", "set", "--out", "new"), ("'hotpot'", "'hotpotqa'")),
    "missing source": (("data", "import", "qed", "qed.jsonl", "--out", "new"), ("qed.jsonl", "check the path")),
    "beir folder": (("data", "import", "beir", "set", "--out", "new"), ("qrels/SPLIT.tsv",)),
    "measured retriever": (("measure", "set", "bm26"), ("bm26", "check the path")),
    "measured twice": (("measure", "set", "bm25", "bm25"), ("named twice",)),
    "metric of retrieval": (("measure", "set", "bm25", "--metrics", "recal@5"), ("'recal@5'", "'recall@5'")),
    "no metric": (("measure", "set", "bm25", "--metrics", ","), ("recall", "ndcg")),
    "metric deeper than the search": (("measure", "set", "bm25", "--metrics", "mrr@500"), ("mrr@500", "--depth 500")),
    "seed of a run": ((*RUN, "--seed", "9" * 40), ("'seed' has more than 64 bits", "smaller")),
    "encoder of no retriever": (("index", "set", "--out", "new", "--encoder", "minilm"), ("bm25", "--retriever dense")),
    "group of questions": (("measure", "set", "bm25", "--by", "hop"), ("'hop'", "'hops'")),
    "run file of another form": (("measure", "set", "set/corpus.jsonl"), ("corpus.jsonl, line 1", "columns")),
    "recipe": (("train", "agent", "quickstrat"), ("'quickstrat'", "'quickstart'")),
    "recipe setting": (("quickstart", "rl.stepz=3", "--out", "new"), ("'rl.stepz'", "'rl.steps'")),
    "learning rate": (("quickstart", "rl.policy.optimizer.lr=-1"), ("'rl.policy.optimizer.lr' needs at least 0",)),
    "data of one's own": (("quickstart", "data.folder=set"), ("exactly one", "data.world=null data.unseen=null")),
    "option in a group": (("train", "generator", "--dry-run"), ("--dry-run", "`coseek train generator --help`")),
    "kind of training": (("train", "agnet", "quickstart"), ("'agnet'", "'agent'")),
    "world size": (("world", "make", "new", "--size", "smal"), ("'size'", "'small'", "'smal'")),
}
"""Mistake → the words of the command, and texts that its sentence must contain."""


@pytest.mark.medium
@pytest.mark.parametrize("what", TYPED_WRONG)
def test_what_is_mistyped_is_named_with_the_way_out(what: str, refused: Refused) -> None:
    words, named = TYPED_WRONG[what]
    sentence = refused(*words)
    assert all(name in sentence for name in named), sentence


def test_a_training_named_for_a_part_of_it_is_answered_with_that_part(home: Path, refused: Refused) -> None:
    for folder in ("data", "data.index", "encoder"):
        (home / "trained" / folder).mkdir(parents=True)
    (home / "trained" / "recipe.yaml").write_text("recipe: {}\n")
    encoder = ("--retriever", "dense", "--encoder")
    assert refused("index", "set", *encoder, "trained", "--out", "new").endswith("is trained/encoder")
    assert refused("index", "trained", "--out", "new").endswith("is trained/data")
    assert refused("run", "trained", *RUN[2:], "--split", "test").endswith("is trained/data")
    assert refused("search", "trained", "Ada").endswith("is trained/data.index")
    command = ("ask", "Who?", "--agent", "trained", "--retriever", "index")
    (home / "trained" / "generator").mkdir()
    assert refused(*command).endswith("is trained/generator")
    (home / "trained" / "policy" / "warm").mkdir(parents=True)
    assert refused(*command).endswith("is trained/policy/warm")
    (home / "trained" / "encoder" / "modules.json").write_text("[]")
    assert "coseek index DATA --retriever dense" in refused("search", "trained/encoder", "Ada")
    assert refused("index", "set", "k1=2", "--update", "--out", "bm25").endswith("make another")


def test_a_gold_passage_that_the_index_lacks_is_named(home: Path, refused: Refused) -> None:
    write(home / "other.jsonl", [{"id": "q", "question": "?", "answers": ["x"], "gold_ids": ["dog"]}])
    sentence = refused("run", "other.jsonl", *RUN[2:])
    assert "'dog'" in sentence and "bm25" in sentence


def test_a_run_file_alone_has_no_answers_to_be_hit(home: Path, refused: Refused) -> None:
    (home / "mine").write_text("q1 Q0 ada 1 1 x\n", encoding="utf-8")
    sentence = refused("measure", "set/questions.test.jsonl", "mine", "--metrics", "answer_hit@1")
    assert "ids alone" in sentence and "data-set folder" in sentence


def test_an_index_of_another_corpus_is_refused(home: Path, refused: Refused) -> None:
    write(home / "set" / "corpus.jsonl", [*CORPUS, {"id": "dog", "title": "Dog", "text": "Barks."}])
    for words in (("search", "bm25", "Ada"), RUN, ASK):
        sentence = refused(*words)
        assert "another corpus" in sentence and "coseek index" in sentence


def test_a_damaged_index_is_named_and_a_whole_one_is_verified(home: Path, refused: Refused, coseek: Type) -> None:
    assert "as they were written" in coseek("index", "bm25", "--verify").out
    file = home / "bm25" / "weights.npy"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + b"!")
    assert "weights.npy is damaged" in refused("index", "bm25", "--verify")
    file.write_bytes(whole[:-1])
    for words in (("search", "bm25", "Ada"), RUN, ASK, ("index", "bm25", "--verify")):
        sentence = refused(*words)
        assert "weights.npy is damaged" in sentence and "coseek index" in sentence
    assert coseek("index", "set", "--out", "bm25").code == 0
    assert coseek("index", "bm25", "--verify").code == 0


def test_a_run_goes_on_only_with_its_own_settings(refused: Refused, coseek: Type) -> None:
    assert coseek(*RUN).code == 0
    assert "seed = 0, and now 1" in refused(*RUN, "--resume", "--seed", 1)


def test_words_that_are_no_text_are_refused(refused: Refused) -> None:
    assert "argument 2 ('who \ufffd') is not UTF-8 text" in refused("ask", "who \udcff", *ASK[2:])


def test_the_name_of_a_model_on_a_hub_is_answered_with_the_line_that_fetches_it(refused: Refused) -> None:
    pytest.importorskip("transformers")
    words = ("index", "set", "--retriever", "dense", "--encoder", "BAAI/bge-small-en-v1.5", "--out", "new")
    line = "hf download BAAI/bge-small-en-v1.5 --local-dir models/bge-small-en-v1.5, then name models/bge-small-en-v1.5"
    assert line in refused(*words)
    line = "hf download Qwen/Qwen2.5-3B-Instruct --local-dir models/Qwen2.5-3B-Instruct"
    assert line in refused("ask", "who", "--agent", "Qwen/Qwen2.5-3B-Instruct", "--retriever", "bm25")
    assert line in refused(*RUN, "--tokenizer", "Qwen/Qwen2.5-3B-Instruct")
