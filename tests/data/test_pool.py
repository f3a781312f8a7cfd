"""A pool: nothing of the test is in the training, whatever the sets share."""

import json
import tempfile
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from coseek.core.errors import DataError, SettingError
from coseek.core.files import Json, JsonObject, write_jsonl
from coseek.data.answers import normalise
from coseek.data.dataset import Dataset
from coseek.data.imports import import_data
from coseek.data.pool import SHARES, Pooled, PoolSource, deal, make_pool, parse_source
from coseek.data.question import PathStep, Question, gold_path

POOLED = st.builds(
    lambda number, text, passages, published: Pooled(Question(f"q{number}", f"Who is {text}?"), published, passages),
    st.integers(0, 10**6),
    st.integers(0, 12),
    st.frozensets(st.integers(0, 12).map(str), max_size=2),
    st.sampled_from(["", "", "train", "dev", "test"]),
)


@pytest.mark.parametrize("shares", [SHARES, {"test": 1.0}, {"train": 0.0, "test": 1.0}])
@given(pooled=st.lists(POOLED, max_size=40))
def test_no_tested_question_and_no_passage_of_one_is_trained_on(shares: dict[str, float], pooled: list[Pooled]) -> None:
    splits, left_out = deal(pooled, shares)
    split_of = {id(question): split for split, questions in splits.items() for question in questions}
    kept = [(entry, split_of[id(entry.question)]) for entry in pooled if id(entry.question) in split_of]
    for (entry, here), (other, there) in product(kept, kept):
        if here != there:
            assert entry.text != other.text
            assert not entry.passages & other.passages
    assert all(split == "test" for entry, split in kept if entry.is_tested)
    assert all(split != "test" for entry, split in kept if entry.published == "train")
    assert len(kept) + left_out.total() == len(pooled)


def test_shares_are_met_and_a_split_of_one_question_does_not_depend_on_the_others() -> None:
    pooled = [Pooled(Question(f"q{number}", f"Who is {number}?")) for number in range(1000)]
    splits, _ = deal(pooled, SHARES)
    assert {name: round(len(questions) / 1000, 1) for name, questions in splits.items()} == SHARES
    some, _ = deal(pooled[:100], SHARES)
    assert all(question in splits[name] for name, questions in some.items() for question in questions)


def oracle_file(path: Path, *rows: tuple[str, str, str]) -> Path:
    """Questions with their title and passage, in DPR's layout."""
    lines: list[JsonObject] = [
        {"question": question, "answers": ["x"], "ctxs": [{"title": title, "text": text, "isgold": True}]}
        for question, title, text in rows
    ]
    write_jsonl(path, lines)
    return path


def test_the_same_id_of_another_passage_is_not_taken_for_it_and_paths_follow(tmp_path: Path) -> None:
    first = oracle_file(tmp_path / "a.jsonl", ("Who made Rome?", "Rome", "Rome was made by one."))
    second = tmp_path / "b.json"
    second.write_text(json.dumps([{
        "_id": "w", "question": "Where was the maker of Rome born?", "answer": "Alba", "type": "bridge",
        "supporting_facts": [["Rome", 0], ["Rem", 0]],
        "context": [["Rome", ["Rome is another text."]], ["Rem", ["Rem was born in Alba."]]],
        "evidences": [["Rome", "maker", "Rem"], ["Rem", "place of birth", "Alba"]],
    }]))  # fmt: skip
    made = make_pool(
        [PoolSource("nq", "dpr", (first,)), PoolSource("", "2wiki", (second,))], tmp_path / "pool", {"train": 1.0}
    )
    assert made.questions == {"nq": {"train": 1}, "2wiki": {"train": 1}}
    pool = Dataset(tmp_path / "pool")
    former, latter = pool.questions("train")
    assert [pool.corpus.by_id(ident).text for ident in former.gold_ids] == ["Rome was made by one."]
    texts = [pool.corpus.by_id(ident).text for ident in latter.gold_ids]
    assert texts == ["Rome is another text.", "Rem was born in Alba."]
    assert tuple(step.passage for step in gold_path(latter)) == latter.gold_ids


def test_a_question_that_two_sets_ask_counts_once_and_its_passage_too(tmp_path: Path) -> None:
    first = oracle_file(tmp_path / "a.jsonl", ("Who made Rome?", "Rome", "Rome was made by one."))
    rows = [("who made rome", "rome", "Rome was made, by one"), ("who made Ostia", "Ostia", "By three.")]
    second = oracle_file(tmp_path / "nq-dev.jsonl", *rows)
    sources = [PoolSource("one", "dpr", (first,)), PoolSource("two", "dpr", (second,))]
    made = make_pool(sources, tmp_path / "pool", {"train": 1.0})
    assert made.questions == {"one": {"train": 1}, "two": {"train": 1}}
    assert made.passages == 2
    assert made.evaluation_sets == {"nq-dev.jsonl": 2}


def test_published_tests_stay_whole_and_are_left_out_of_the_training(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    write_jsonl(corpus, [{"id": "1", "contents": '"Rome"\nOne.'}, {"id": "2", "contents": '"Ostia"\nTwo.'}])
    for name, split, texts in [
        ("nq", "train", ["who made Rome", "who made Ostia", "who made Alba"]),
        ("nq", "test", ["who made Ostia"]),
        ("popqa", "test", ["Who made Ostia?"]),
    ]:
        (tmp_path / name).mkdir(exist_ok=True)
        write_jsonl(
            tmp_path / name / f"{split}.jsonl",
            ({"id": f"{split}_{n}", "question": text, "golden_answers": ["x"]} for n, text in enumerate(texts)),
        )
    made = make_pool([PoolSource("", "flashrag", (tmp_path,))], tmp_path / "pool", {"train": 0.5, "dev": 0.5})
    questions = {name: Dataset(tmp_path / "pool").questions(name) for name in Dataset(tmp_path / "pool").splits}
    assert sorted(question.id for question in questions["test"]) == ["nq/test_0", "popqa/test_0"]
    trained = {normalise(question.question) for name in ("train", "dev") for question in questions.get(name, [])}
    assert trained == {"who made rome", "who made alba"}
    assert not made.evaluation_sets


def test_a_published_validation_split_is_tested(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    write_jsonl(tmp_path / "corpus.jsonl", [{"_id": "1", "title": "Rome", "text": "One."}])
    write_jsonl(tmp_path / "queries.jsonl", [{"_id": "q", "text": "Who made Rome?"}])
    (tmp_path / "qrels" / "validation.tsv").write_text("query-id\tcorpus-id\tscore\nq\t1\t1\n")
    made = make_pool([PoolSource("", "beir", (tmp_path,))], tmp_path / "pool", {"train": 1.0})
    assert made.questions == {"beir": {"test": 1}}


def test_two_files_of_a_set_may_share_their_ids(tmp_path: Path) -> None:
    for language, context in (("en", "One made Rome."), ("de", "Einer hat Rom gemacht.")):
        asked: JsonObject = {"id": "s1", "question": f"{language}?", "answers": [{"text": context[:3]}]}
        article: JsonObject = {"title": "Rome", "paragraphs": [{"context": context, "qas": [asked]}]}
        (tmp_path / f"{language}.json").write_text(json.dumps({"data": [article]}))
    files = (tmp_path / "en.json", tmp_path / "de.json")
    make_pool([PoolSource("xquad", "squad", files)], tmp_path / "pool", {"train": 1.0})
    questions = Dataset(tmp_path / "pool").questions("train")
    assert [question.id for question in questions] == ["xquad/s1", "xquad/s1 #2"]


def test_a_share_names_no_file_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="cannot name a split"):
        make_pool([], tmp_path / "pool", {"../train": 1.0})


@pytest.mark.parametrize("text", ["hotpotqa", "=dpr:a", "nq=:a", "dpr:", "nq=dpr"])
def test_a_data_set_that_is_written_wrongly_is_one_sentence(text: str) -> None:
    with pytest.raises(SettingError, match="is not a data set"):
        parse_source(text)


def test_nothing_is_written_when_a_source_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no file"):
        make_pool([PoolSource("", "hotpotqa", (tmp_path / "nothing.json",))], tmp_path / "pool")
    assert not (tmp_path / "pool").exists()


# --- gold paths of questions: as they were written, and nothing of what others call a path


STEP: dict[str, Json] = {
    "passage": "a", "from": "Dark Hunter", "to": "Galo ( singer )", "phrase": "with … as voice", "back": False,
    "question": "Dark Hunter is with whom as voice?",
}  # fmt: skip


def test_a_path_without_what_newer_ones_hold_is_read() -> None:
    (step,) = gold_path(Question("q", "?", meta={"path": [STEP]}))
    assert step == PathStep(
        "a", "Dark Hunter", "Galo ( singer )", "Galo ( singer )", "with … as voice", False, str(STEP["question"]), ""
    )
    (newer,) = gold_path(Question("q", "?", meta={"path": [{**STEP, "written": "Galo", "rest": "Galo is what?"}]}))
    assert (newer.written, newer.rest) == ("Galo", "Galo is what?")


@pytest.mark.parametrize("path", [None, "notes/a.md", ["a", "b"], [{"passage": "a"}], [STEP, None]])
def test_what_others_call_a_path_is_none(path: Json) -> None:
    assert gold_path(Question("q", "?", meta={"path": path})) == ()


def wiki(question: str, evidences: list[list[str]], **texts: str) -> Question:
    """A question of 2WikiMultihopQA whose gold passages are `texts`."""
    row: dict[str, Json] = {
        "_id": "q", "question": question, "answer": "x",
        "context": [[title.replace("_", " "), [text]] for title, text in texts.items()],
        "supporting_facts": [[title.replace("_", " "), 0] for title in texts],
        "evidences": [[*each] for each in evidences],
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "2wiki.json")
        source.write_text(json.dumps([row]), encoding="utf-8")
        import_data("2wiki", [source], Path(folder, "out"))
        return Dataset(Path(folder, "out")).questions("test")[0]


def test_evidence_triples_are_a_path_and_names_are_spelt_as_they_are_read() -> None:
    first, last = gold_path(
        wiki(
            "Where was the director of THE SUN born?",
            [["The Sun", "director", "Ada Lovel"], ["Ada Lovel", "place of birth", "Bree"]],
            **{"The_Sun_(film)": "Made by ada lovel.", "Ada_Lovel": "Born in Bree."},
        )
    )
    assert (first.source, first.phrase, first.target) == ("THE SUN", "director", "Ada Lovel")
    assert first.written == "ada lovel"
    assert (last.source, last.target) == ("Ada Lovel", "Bree")
    assert (first.question, first.passage) == ("What is the director of THE SUN?", "The Sun (film)")


FILMS = ["Up director A", "Down director B"]
PATHS: dict[str, tuple[list[str], str, str]] = {
    "each of two entities is followed to its end": (
        [*FILMS, "A born 1900", "B born 1901", "B born 1902"], "Up Down A B", "Up-A A-1900 Down-B B-1901"
    ),
    "all facts about an object follow it": (
        [*FILMS, "A born 1900", "A country X"], "Up Down A", "Up-A A-1900 A-X Down-B"
    ),
    "an evidence about another passage leaves no path": (["Up director A", "A born 1900", "C born 1901"], "Up A", ""),
    "facts that name each other end": (["A spouse B", "B spouse A"], "A B", "A-B B-A"),
}  # fmt: skip


@pytest.mark.parametrize("name", PATHS)
def test_facts_become_steps_in_the_order_of_a_path(name: str) -> None:
    evidences, titles, steps = PATHS[name]
    made = wiki("Which?", [each.split() for each in evidences], **{title: f"On {title}." for title in titles.split()})
    assert " ".join(f"{step.source}-{step.target}" for step in gold_path(made)) == steps
