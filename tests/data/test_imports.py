import gzip
import json
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, strategies as st
from tests.agents.playing import WIDE, Shelf, typist

from coseek.agents.drivers import Agent, rollout
from coseek.agents.protocol import load_protocol
from coseek.cli.main import main
from coseek.core.errors import DataError, SettingError
from coseek.core.files import Json, JsonObject, read_json, write_jsonl
from coseek.data.dataset import Dataset
from coseek.data.grade_cache import GeneratedAnswer, Verdict
from coseek.data.imports import import_data, parse_shares, split_by_shares
from coseek.data.imports._sources import NOT_READ, PassageCollector, SplitAssignment
from coseek.data.passage import Corpus, Passage
from coseek.data.question import Question
from coseek.data.trajectory import StopReason, Trajectory
from coseek.measure.score import judged
from coseek.measure.searched import search_questions
from coseek.retrieval.query import Query
from coseek.rewards.grades import Grades, is_right, left_to_judge
from coseek.rewards.parts import gbr, gen_acc

PUBLISHED = Path(__file__).with_name("published")
"""Miniatures of published files: the same fields, other contents."""
HOTPOT, MUSIQUE = (cast(list[Json], read_json(PUBLISHED / f"{name}.json")) for name in ("hotpot", "musique"))
SQUAD, QED = (read_json(PUBLISHED / f"{name}.json") for name in ("squad", "qed"))


def write(path: Path, value: Json) -> Path:
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def write_lines(path: Path, *values: Json) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")
    return path


def questions_of(
    format_name: str, sources: list[Path], out: Path, *, settings: Mapping[str, object] | None = None
) -> list[Question]:
    """The questions of an import, which `out` holds."""
    import_data(format_name, sources, out, settings=settings)
    return Dataset(out).questions("test")


def test_hotpotqa_without_a_corpus_uses_the_questions_own_passages(tmp_path: Path) -> None:
    made = import_data("hotpotqa", [write(tmp_path / "q.json", HOTPOT)], tmp_path / "out", split="dev")
    assert (made.passages, made.questions) == (3, {"dev": 1})
    assert Dataset(tmp_path / "out").questions("dev")[0].gold_ids == ("Ada", "Bob")
    assert Dataset(tmp_path / "out").corpus.by_id("Ada").text == "Ada is a film. It has songs."


def test_hotpotqa_with_a_titled_corpus_finds_gold_by_title(tmp_path: Path) -> None:
    corpus = write(tmp_path / "corpus.json", {"Zoe": ["First."], "Bob": ["A man."], "Ada": ["A film."]})
    (question,) = questions_of("hotpotqa", [corpus, write(tmp_path / "q.json", HOTPOT)], tmp_path / "out")
    assert [passage.id for passage in Dataset(tmp_path / "out").corpus] == ["Zoe", "Bob", "Ada"]
    assert question.gold_ids == ("Ada", "Bob")


def test_a_pool_takes_gold_from_the_table_and_answers_by_question(tmp_path: Path) -> None:
    passages: list[Json] = [{"title": title, "text": "…"} for title in ("Ada", "Bob", "Cy")]
    with gzip.open(tmp_path / "results.csv.gz", "wt") as file:
        file.write('example_id,question,question_type,gold_titles\nq1,"Who, then?",bridge,Ada | Cy\n')
        file.write('q1,"Who, then?",bridge,Ada | Cy\n')
    sources = [
        write_lines(tmp_path / "pool.jsonl", *passages),
        tmp_path / "results.csv.gz",
        write(tmp_path / "answers.json", [{"question": "Who, then?", "answer": "Bob"}]),
    ]
    (question,) = questions_of("hotpotqa", sources, tmp_path / "out")
    assert (question.answers, question.gold_ids, question.meta["type"]) == (("Bob",), ("Ada", "Cy"), "bridge")
    with pytest.raises(DataError, match="row 1: no answer is given for 'Who, then\\?'"):
        import_data("hotpotqa", sources[:2], tmp_path / "other")


def test_2wiki_adds_distractors_once(tmp_path: Path) -> None:
    another: Json = {"title": "Cy", "text": "Another Cy."}
    more: list[Json] = [{"title": "Cy", "text": "Cy is not."}, another, another]
    sources = [write(tmp_path / "q.json", HOTPOT), write(tmp_path / "more.json", more)]
    made = import_data("2wiki", sources, tmp_path / "out")
    assert made.passages == 4
    assert made.notes == {"own passages": 3, "distractors": 3, "distractors that are own passages": 1}
    assert Dataset(tmp_path / "out").corpus.by_id("Cy #2").text == "Another Cy."


def test_musique_tells_namesakes_apart_and_keeps_steps_and_aliases(tmp_path: Path) -> None:
    (question,) = questions_of("musique", [write(tmp_path / "q.json", MUSIQUE)], tmp_path / "out")
    assert (question.gold_ids, question.answers, question.hops) == (("Ada", "Elm #2"), ("Bob", "Robert"), 2)
    assert question.meta["decomposition"] == [
        {"question": "Where did Ada live?", "answer": "Elm", "gold_id": "Ada"},
        {"question": "Who was born in #1?", "answer": "Bob", "gold_id": "Elm #2"},
    ]


def test_squad_leaves_out_what_cannot_be_answered_and_says_so(tmp_path: Path) -> None:
    made = import_data("squad", [write(tmp_path / "q.json", SQUAD)], tmp_path / "out")
    assert (made.passages, made.questions, made.notes) == (2, {"test": 1}, {"unanswerable questions left out": 1})
    (question,) = Dataset(tmp_path / "out").questions("test")
    assert (question.answers, question.gold_ids) == (("x",), ("Super Bowl",))


def test_qed_joins_an_answer_of_several_spans(tmp_path: Path) -> None:
    (question,) = questions_of("qed", [write_lines(tmp_path / "q.jsonlines", QED)], tmp_path / "out")
    assert question.answers == ("Ada, Bob", "Ada")


def test_flashrag_and_search_r1_lines_give_the_same_question(tmp_path: Path) -> None:
    corpus = write_lines(tmp_path / "corpus.jsonl", {"id": "7", "contents": '"Ada"\nA film.'})
    flashrag: Json = {"id": "test_3", "question": "Who?", "golden_answers": ["Bob"], "gold_ids": ["7"]}
    search_r1: Json = {
        "data_source": "nq",
        "prompt": [{"role": "user", "content": "Answer. Question: what? is an example.\nQuestion: Who?\n"}],
        "reward_model": {"style": "rule", "ground_truth": {"target": ["Bob"]}},
        "extra_info": {"split": "test", "index": 3},
    }
    (first,) = questions_of("flashrag", [corpus, write_lines(tmp_path / "nq/test.jsonl", flashrag)], tmp_path / "a")
    (other,) = questions_of("search-r1", [corpus, write_lines(tmp_path / "b.jsonl", search_r1)], tmp_path / "b")
    for question in (first, other):
        assert (question.id, question.question, question.answers) == ("nq/test_3", "Who?", ("Bob",))
    assert first.gold_ids == ("7",)
    assert Dataset(tmp_path / "a").corpus.by_id("7").title == "Ada"


def search_r1_rows(split: str, count: int, *sources: str) -> list[JsonObject]:
    """Lines as Search-R1 publishes them: FlashRAG's fields, and those for training with verl."""
    return [
        {
            "id": f"{split}_{number}",
            "question": f"{source} {number}?",
            "golden_answers": ["Bob"],
            "data_source": source,
            "prompt": [{"role": "user", "content": f"Answer. Question: {source} {number}?\n"}],
            "reward_model": {"style": "rule", "ground_truth": {"target": ["Bob"]}},
            "extra_info": {"split": split, "index": number},
        }
        for source in sources
        for number in range(count)
    ]


def parquet(path: Path, *rows: Mapping[str, object]) -> Path:
    pyarrow = pytest.importorskip("pyarrow", reason="comes with coseek[encoder]")
    names = dict.fromkeys(name for row in rows for name in row)
    table = pyarrow.table({name: [row.get(name) for row in rows] for name in names})
    pytest.importorskip("pyarrow.parquet").write_table(table, path)
    return path


def test_two_sets_in_one_search_r1_file_do_not_share_their_ids(tmp_path: Path) -> None:
    corpus = write_lines(tmp_path / "corpus.jsonl", {"id": "7", "contents": '"Ada"\nA film.'})
    lines = write_lines(tmp_path / "train.jsonl", *search_r1_rows("train", 1, "nq", "hotpotqa"))
    questions = questions_of("search-r1", [corpus, lines], tmp_path / "out")
    assert [question.id for question in questions] == ["nq/train_0", "hotpotqa/train_0"]


def test_parquet_is_read_as_the_same_lines_are(tmp_path: Path) -> None:
    rows = search_r1_rows("train", 1, "nq", "hotpotqa")
    corpus = write_lines(tmp_path / "corpus.jsonl", {"id": "7", "contents": '"Ada"\nA film.'})
    packed = questions_of("search-r1", [corpus, parquet(tmp_path / "train.parquet", *rows)], tmp_path / "a")
    assert packed == questions_of("search-r1", [corpus, write_lines(tmp_path / "q.jsonl", *rows)], tmp_path / "b")
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "train.parquet").read_bytes()[:200])
    with pytest.raises(DataError, match=r"cut\.parquet is not a whole parquet file"):
        import_data("search-r1", [corpus, tmp_path / "cut.parquet"], tmp_path / "c")


def test_tables_with_dates_bytes_and_missing_numbers_give_golds_as_people_write_them(tmp_path: Path) -> None:
    day, numbers = datetime(2020, 1, 2), enumerate([[5.0], [2.5], [2.0**60]])
    rows = [{"question": f"q{number}?", "answer": value, "extra": float("nan")} for number, value in numbers]
    days = enumerate([day, day.replace(hour=7)])
    files = [
        parquet(tmp_path / "numbers.parquet", *rows),
        parquet(tmp_path / "times.parquet", *({"question": f"d{number}?", "answer": value} for number, value in days)),
        parquet(tmp_path / "b.parquet", {"question": "b?", "answer": "Köln".encode(), "picture": b"\xff\xd8"}),
    ]
    answers = {each.question: each.answers for each in questions_of("questions", files, tmp_path / "out")}
    assert answers == {
        "q0?": ("5",), "q1?": ("2.5",), "q2?": ("1.152921504606847e+18",), "b?": ("Köln",),
        "d0?": ("2020-01-02",), "d1?": ("2020-01-02T07:00:00",),
    }  # fmt: skip


def test_parquet_without_its_library_says_how_to_convert_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # as if it were not installed
    (tmp_path / "train.parquet").write_bytes(b"PAR1\xff")
    with pytest.raises(DataError, match=r"pip install pyarrow; or turn it into JSON lines .*'train\.jsonl'"):
        import_data("search-r1", [tmp_path / "train.parquet"], tmp_path / "out")


def test_a_gold_passage_outside_the_corpus_is_an_error(tmp_path: Path) -> None:
    corpus = write_lines(tmp_path / "corpus.jsonl", {"id": "7", "contents": "x"})
    lines = write_lines(tmp_path / "q.jsonl", {"id": "q", "question": "?", "golden_answers": [], "gold_ids": ["8"]})
    with pytest.raises(DataError, match="question 'q' names the gold passage '8', which is not in the corpus"):
        import_data("flashrag", [corpus, lines], tmp_path / "out")
    titled = write(tmp_path / "corpus.json", {"Ada": ["A film."]})
    with pytest.raises(DataError, match="item 1: the gold title 'Bob' names no passage of the corpus"):
        import_data("hotpotqa", [titled, write(tmp_path / "h.json", HOTPOT)], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("format_name", "value", "sentence"),
    [
        ("qed", [{"example_id": "1"}], "item 1: there is no 'title_text'"),
        ("qed", ["not an object"], "item 1: an object is needed, not str"),
        ("qed", {"a": 1}, "a list of objects is needed, not dict"),
        ("squad", [], "no passages found"),
        ("squad", [{"title": "x"}], "item 1: there is no 'context'"),
        ("squad", {"data": [{"title": "x", "paragraphs": "none"}]}, "data 1: 'paragraphs' must be a list"),
        ("musique", [], "no passages found"),
        ("2wiki", [{"title": "Ada", "text": "A film."}], "no questions found"),
        ("2wiki", [{"_id": "1", "context": [["Ada"]]}], "'context' must be a list of"),
    ],
)
def test_a_file_of_another_form_ends_in_a_sentence(
    tmp_path: Path, format_name: str, value: Json, sentence: str
) -> None:
    with pytest.raises(DataError, match=sentence):
        import_data(format_name, [write(tmp_path / "q.json", value)], tmp_path / "out")


def test_a_folder_gives_the_files_that_begin_with_the_formats_name(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    write(tmp_path / "src" / "hotpotqa_train.json", HOTPOT)
    write(tmp_path / "src" / "musique_train.json", MUSIQUE)
    made = import_data("hotpotqa", [tmp_path / "src"], tmp_path / "out")
    assert (made.passages, made.named) == (3, {NOT_READ: ["musique_train.json"]})


@pytest.mark.parametrize("options", [["--split", "dev"], ["--shares", "train=1"], ["--dev-share", "0.2"]])
def test_options_that_change_nothing_are_refused(
    tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.md").write_text("Herons nest in Velora.")
    assert main(["data", "import", "documents", str(tmp_path / "a.md"), "--out", str(tmp_path / "out"), *options]) == 2
    assert "leave" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_another_split_joins_a_folder_of_the_same_corpus_and_no_other(tmp_path: Path) -> None:
    source = write(tmp_path / "q.json", HOTPOT)
    import_data("hotpotqa", [source], tmp_path / "out", split="dev")
    import_data("hotpotqa", [source], tmp_path / "out", split="test")
    assert Dataset(tmp_path / "out").splits == ["dev", "test"]
    with pytest.raises(DataError, match="holds another corpus"):
        import_data("musique", [write(tmp_path / "m.json", MUSIQUE)], tmp_path / "out")
    with pytest.raises(DataError, match=r"holds [mq]\.json, which is no part of an imported data set"):
        import_data("hotpotqa", [source], tmp_path)
    assert Dataset(tmp_path / "out").splits == ["dev", "test"]


@pytest.mark.parametrize("split", ["", "a/b", "..", "dev.jsonl"])
def test_a_split_has_a_plain_name(tmp_path: Path, split: str) -> None:
    with pytest.raises(SettingError, match="cannot name a split"):
        import_data("hotpotqa", [write(tmp_path / "q.json", HOTPOT)], tmp_path / "out", split=split)


QUESTIONS = [Question(str(number), "?") for number in range(2_000)]


def test_questions_are_dealt_out_by_their_ids_alone() -> None:
    shares = parse_shares("train=.7, dev=.1,test=.2")
    dealt = split_by_shares(QUESTIONS, shares)
    assert sorted(question.id for split in dealt.values() for question in split) == sorted(q.id for q in QUESTIONS)
    assert all(abs(len(dealt[name]) / 2_000 - share) < 0.04 for name, share in shares.items())
    half = split_by_shares(QUESTIONS[::2], shares)
    assert all({q.id for q in half[name]} <= {q.id for q in dealt[name]} for name in shares)


@pytest.mark.parametrize("text", ["train", "train=x", "=.5,dev=.5", "train=.5,dev=.4", "train=1.5,dev=-.5", ""])
def test_shares_that_do_not_sum_to_one_are_refused(text: str) -> None:
    with pytest.raises(SettingError, match=r"write for example train=\.7,dev=\.1,test=\.2"):
        parse_shares(text)


@given(st.lists(st.tuples(st.sampled_from(["", "Ada", "Ada #2", "Bob"]), st.sampled_from("xyz")), max_size=12))
def test_every_title_and_text_gets_one_id_of_its_own(pairs: list[tuple[str, str]]) -> None:
    shelf = PassageCollector()
    ids = [shelf.add(title, text) for title, text in pairs]
    assert len(set(ids)) == len(set(pairs)) == len(shelf.passages)
    assert [(passage.title, passage.text) for passage in shelf.passages] == list(dict.fromkeys(pairs))
    assert all(ids)


# --- MIRAGE in files of its real shape: options are asked and never searched, and only a judge says what is right


FOUR = {"A": "Iron", "B": "Vitamin B12", "C": "Folate", "D": "None of these"}
SETS: dict[str, tuple[dict[str, str], list[str]]] = {
    "medqa": (FOUR, [f"{number:04d}" for number in range(5)]),
    "medmcqa": (FOUR, [f"{number}a5c-77d1-4d2e" for number in range(5)]),
    "pubmedqa": ({"A": "yes", "B": "no", "C": "maybe"}, [f"1747700{number}" for number in range(5)]),
    "bioasq": ({"A": "yes", "B": "no"}, [f"5be44bef133db5eb7800000{number}" for number in range(5)]),
    "mmlu": (FOUR, [f"anatomy-{number:03d}" for number in range(4)] + ["0000"]),
}


@pytest.fixture
def sources(tmp_path: Path) -> list[Path]:
    rows: dict[str, Json] = {
        name: {
            ident: {"question": f"{name} {ident}: which?", "options": {**options}, "answer": "B"} for ident in idents
        }
        for name, (options, idents) in SETS.items()
    }
    benchmark, chunks, wiki = tmp_path / "benchmark.json", tmp_path / "textbooks", tmp_path / "wiki.jsonl"
    benchmark.write_text(json.dumps(rows, indent=4), encoding="utf-8")
    chunks.mkdir()
    body = "Lack of cobalamin."
    whole = {"title": "Blood", "content": body, "contents": f"Blood. {body}"}
    write_jsonl(chunks / "Blood.jsonl", ({"id": f"Blood_{number}", **whole} for number in range(2)))
    write_jsonl(wiki, [{"id": "7", "contents": '"Anaemia"\nA decrease of red cells.'}])
    return [benchmark, chunks, wiki]


def test_five_sets_are_imported_over_the_chunks_of_several_corpora(sources: list[Path], tmp_path: Path) -> None:
    made = import_data("mirage", sources, tmp_path / "out")
    assert (made.passages, made.questions) == (3, {"test": 25})
    data = Dataset(tmp_path / "out")
    assert data.corpus.by_id("Blood_0") == Passage("Blood_0", "Blood", "Lack of cobalamin.")
    assert (data.corpus.by_id("7").title, data.corpus.by_id("7").text) == ("Anaemia", "A decrease of red cells.")
    questions = {question.id: question for question in data.questions("test")}
    assert {question.dataset for question in questions.values()} == set(SETS)
    first = questions["medqa/0000"]
    assert first.question == ("medqa 0000: which?\nOptions:\nA. Iron\nB. Vitamin B12\nC. Folate\nD. None of these")
    assert first.searched == "medqa 0000: which?" and first.judge_only
    assert first.answers == ("Vitamin B12", "B. Vitamin B12")
    assert questions["bioasq/5be44bef133db5eb78000004"].answers == ("no", "B. no")
    assert Question.from_json(first.to_json()) == first
    dealt = import_data("mirage", sources, tmp_path / "two", deal=SplitAssignment(test=("mmlu", "pubmedqa")))
    assert dealt.questions == {"test": 10}


def test_an_answer_that_is_no_option_is_refused_with_its_place(sources: list[Path], tmp_path: Path) -> None:
    text = sources[0].read_text(encoding="utf-8")
    sources[0].write_text(text.replace('"answer": "B"', '"answer": "E"', 1), encoding="utf-8")
    with pytest.raises(DataError, match=r"medqa, 0000: the answer 'E' is none of the options A, B, C, D"):
        import_data("mirage", sources, tmp_path / "out")


ASKED = Question(
    "medqa/1", "Which lack?\nOptions:\nA. Iron\nB. Cobalamin", ("Iron", "A. Iron"), meta={"judge_only": True},
    search_text="Which lack?",
)  # fmt: skip


@pytest.mark.parametrize("name", ["s3", "ircot", "rag"])
def test_the_options_are_read_and_not_searched(name: str) -> None:
    shelf = Shelf(Corpus([Passage("p1", "Iron", "text")]), {"Which lack?": ["p1"]})
    protocol = load_protocol(name, "default")
    turn = "<search_complete>True</search_complete>" if name == "s3" else "<answer>Iron</answer>"
    (run,) = rollout(Agent(protocol, typist(protocol, turn)), shelf, [ASKED], [7], WIDE)
    assert "B. Cobalamin" in run.segments[0].text
    assert [search.query for search in run.searches] == ["Which lack?"]
    assert shelf.asked == [Query("Which lack?", "Which lack?")]
    ((_, search),) = next(search_questions(shelf, [ASKED], 1))
    assert search.ids == ("p1",) and "Cobalamin" not in str(shelf.asked)


def test_only_the_judge_says_what_is_right_about_options() -> None:
    response = "Not A. Iron, but B."  # holds the gold answer
    wrong = Verdict(ASKED.id, response, False)
    assert left_to_judge("gen_acc", ASKED, response) and left_to_judge("gen_acc_span", ASKED, response)
    assert not is_right("gen_acc", ASKED, response, Grades(verdicts={response: wrong}))
    assert judged(ASKED, response, {(ASKED.id, response): wrong})["gen_acc"] == 0
    assert "gen_acc" not in judged(ASKED, response, {})
    reply = GeneratedAnswer(ASKED.id, 0, "", response)
    grades = Grades(reply, GeneratedAnswer(ASKED.id, 0, "", "B"), {response: wrong, "B": Verdict(ASKED.id, "B", False)})
    run = Trajectory(ASKED, "s3", (), (), StopReason.COMPLETE, valid=True)
    assert gbr.to_judge(run, gbr.GbrSettings(), grades) == [response, "B"]
    assert gbr.reward(run, gbr.GbrSettings(), grades).value == 0
    assert gen_acc.reward(run, gen_acc.GenAccSettings(), grades).value == 0
