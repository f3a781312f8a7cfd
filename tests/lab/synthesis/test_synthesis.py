"""Synthesis: gates, splits, twins and files of questions made from passages alone."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest
from tests.lab.synthesis.truth import Truth
from tests.scripted import generator

from coseek.agents.drivers import Agent
from coseek.agents.factory import limits_of
from coseek.agents.protocol import load_protocol
from coseek.agents.scripted.rules import RuleAgent
from coseek.agents.scripted_agent import ScriptedAgentModel
from coseek.core.cache import TextCache
from coseek.core.errors import DataError, ModelError, RunError
from coseek.core.files import JsonObject
from coseek.core.settings import make_settings
from coseek.data.dataset import Dataset
from coseek.data.passage import Corpus, Passage
from coseek.data.question import Question, gold_path
from coseek.lab.parts.synthesis import SynthesisSettings, training_questions
from coseek.lab.synthesis.gates import Solver, rule_verdicts, solved
from coseek.lab.synthesis.graph import HopGraph
from coseek.lab.synthesis.proposals import Proposal, QuestionProposer
from coseek.lab.synthesis.synthesis import RECORD, UNANSWERABLE, SynthesisSummary, synthesize
from coseek.lab.world.settings import WorldSettings
from coseek.lab.world.world import World, make_world
from coseek.models.text_model import CachedTextModel, texts_of
from coseek.models.tokenizer import ByteTokenizer
from coseek.retrieval.retrievers.bm25 import Bm25

SETTINGS = SynthesisSettings(count=60)


@pytest.fixture(scope="module")
def world() -> World:
    return make_world(WorldSettings(size="tiny", train=0, dev=0, test=0))


@pytest.fixture(scope="module")
def made(world: World, tmp_path_factory: pytest.TempPathFactory) -> tuple[Dataset, SynthesisSummary]:
    folder = tmp_path_factory.mktemp("synthesis")
    world.corpus.save(folder / "in" / "corpus.jsonl")
    summary = synthesize(folder / "in", folder / "out", SETTINGS)
    return Dataset(folder / "out"), summary


def everything(dataset: Dataset) -> list[Question]:
    return [question for split in dataset.splits for question in dataset.questions(split)]


def test_questions_are_true_and_need_their_hops(world: World, made: tuple[Dataset, SynthesisSummary]) -> None:
    questions, truth = everything(made[0]), Truth(world)
    assert {question.hops for question in questions} == {1, 2}
    assert len(questions) > 40 and all(map(truth.is_true, questions))
    of_two = [question for question in questions if question.hops == 2]
    # A second name, which only its own passage tells of, may join what seems apart.
    assert sum(map(truth.needs_all, of_two)) > 0.9 * len(of_two)


def test_no_passage_of_a_test_path_is_in_a_path_of_another_split(made: tuple[Dataset, SynthesisSummary]) -> None:
    dataset, _ = made
    paths = {
        split: {gold for question in dataset.questions(split) for gold in question.gold_ids} for split in dataset.splits
    }
    assert set(paths) == {"train", "dev", "test"}
    assert not paths["test"] & (paths["train"] | paths["dev"])
    assert not paths["dev"] & paths["train"]


def test_no_passage_of_a_held_out_question_is_in_a_path_to_train_on(
    made: tuple[Dataset, SynthesisSummary], tmp_path: Path
) -> None:
    own, _ = made  # whose own questions are those that would be made again
    synthesize(own.folder, tmp_path / "out", SETTINGS, train="train")
    again = Dataset(tmp_path / "out")
    alone = training_questions(own, "train", SETTINGS.model_copy(update={"dev": 0.0, "test": 0.0}))

    def passages(*questions: Question) -> set[str]:
        return {gold for question in questions for gold in question.gold_ids}

    held_out = passages(*own.questions("dev"), *own.questions("test"))
    for train in (again.questions("train"), alone):
        assert train and not passages(*train) & held_out
    assert not passages(*again.questions("test")) & passages(*own.questions("train"))


def test_the_same_seed_gives_the_same_bytes(
    world: World, made: tuple[Dataset, SynthesisSummary], tmp_path: Path
) -> None:
    world.corpus.save(tmp_path / "in" / "corpus.jsonl")
    synthesize(tmp_path / "in", tmp_path / "out", SETTINGS)
    files = sorted(path.relative_to(tmp_path / "out") for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert len(files) == 9
    for name in files:
        assert (tmp_path / "out" / name).read_bytes() == (made[0].folder / name).read_bytes()


@pytest.mark.parametrize("name", ["questions.mine.jsonl", "notes/a.md", "unanswerable/b.md"])
def test_a_synthesis_replaces_no_folder_with_a_file_of_somebody_else(world: World, tmp_path: Path, name: str) -> None:
    world.corpus.save(tmp_path / "in" / "corpus.jsonl")
    (tmp_path / "out/unanswerable").mkdir(parents=True)
    (tmp_path / "out" / RECORD).write_text("{}")
    mine = tmp_path / "out" / name
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("mine")
    with pytest.raises(DataError, match=f"holds {name}, which is no part of a synthesis"):
        synthesize(tmp_path / "in", tmp_path / "out", SETTINGS)
    assert mine.read_text() == "mine"


def test_a_hard_negative_neither_answers_nor_is_gold(made: tuple[Dataset, SynthesisSummary]) -> None:
    dataset, _ = made
    for question in everything(dataset):
        negatives = cast(list[str], question.meta["negatives"])
        assert negatives and not set(negatives) & set(question.gold_ids)
        assert not any(f" {question.answers[0]} " in f"{dataset.corpus.by_id(ident).text} " for ident in negatives)


def test_a_twin_lacks_a_passage_that_it_needs_and_nothing_else_changes(made: tuple[Dataset, SynthesisSummary]) -> None:
    dataset, summary = made
    twins = Dataset(dataset.folder / UNANSWERABLE)
    whole = {question.id: question for question in everything(dataset)}
    lost = 0
    for question in everything(twins):
        if "unanswerable" in question.meta:
            lost += 1
            withheld = cast(list[str], question.meta["withheld"])
            assert question.answers == () and not question.answerable
            assert withheld and not any(map(twins.corpus.has, withheld))
            assert {*question.gold_ids, *withheld} == set(whole[str(question.meta["twin_of"])].gold_ids)
        else:
            assert (question.question, question.gold_ids) == (
                whole[question.id].question, whole[question.id].gold_ids
            )  # fmt: skip
    assert lost == summary.unanswerable > 0.2 * len(whole)


FILM = "{} is a film directed by {}."
BORN = "{} is a director born in {}."
PAIRS = (("Red Hour", "Ada Stone", "Ulm"), ("Ferry", "Bert Moss", "Graz"), ("Glass Night", "Cora Hill", "Bern"))


def corpus_of(*more: tuple[str, str], **instead: str) -> Corpus:
    """Films, directors and some more passages; `instead` replaces a passage's text by its id."""
    films = [Passage(f"f{row}", film, FILM.format(film, who)) for row, (film, who, _) in enumerate(PAIRS)]
    people = [Passage(f"p{row}", who, BORN.format(who, place)) for row, (_, who, place) in enumerate(PAIRS)]
    added = [Passage(f"m{row}", *each) for row, each in enumerate(more)]
    return Corpus(replace(passage, text=instead.get(passage.id, passage.text)) for passage in (*films, *people, *added))


def failed(corpus: Corpus, question: str = "Where was the maker of Red Hour born?", depth: int = 1) -> str:
    """The gate that a question about the first film and its director does not pass."""
    proposal = Proposal((0, len(PAIRS)), question, "Ulm", link="Ada Stone")
    verdicts = rule_verdicts(HopGraph(corpus), proposal, depth)
    return next((name for name, verdict in verdicts.items() if not verdict.passed), "")


@pytest.mark.parametrize(
    "corpus",
    [
        corpus_of(("Red Hour festival", "Red Hour festival shows Red Hour in Ulm.")),
        corpus_of(("Stone family", "Stone family has a plaque for Ada Stone in Ulm.")),
        corpus_of(("Mail", "Mail to Ada Stone on Red Hour was lost.")),
        corpus_of(p0="Ada Stone is a director born in Ulm. She made Red Hour."),
    ],
    ids=["start and answer", "link and answer", "start and link", "start again"],
)
def test_a_passage_that_makes_another_needless_ends_a_path(corpus: Corpus) -> None:
    assert failed(corpus) == "follows"
    assert not failed(corpus_of())


def test_a_question_that_holds_its_answer_or_that_one_search_answers_is_dropped() -> None:
    assert failed(corpus_of(), "Where in Ulm was the director of Red Hour born?") == "closed_book"
    assert failed(corpus_of(), "Where was Ada Stone, who directed Red Hour, born?") == "closed_book"
    assert failed(corpus_of(), "Which director was born in a town, by Red Hour?", depth=4) == "one_search"


@dataclass
class Told:
    """A text model that says one thing, or answers from its prompt."""

    answers: dict[str, str]
    """Words of a prompt → answer; all of them must stand in the prompt."""
    identity: str = "told"
    asked: list[str] = field(default_factory=list)

    def write(self, prompts: Sequence[str], max_tokens: int) -> list[str]:
        self.asked += prompts
        return [
            next((text for held, text in self.answers.items() if all(word in prompt for word in held.split("|"))), "no")
            for prompt in prompts
        ]


def with_model(tmp_path: Path, proposer: Told | None, reader: Told | None, **given: object) -> list[Question]:
    """Two-hop questions of the three films, with models."""
    corpus_of().save(tmp_path / "in" / "corpus.jsonl")
    plain: JsonObject = {"hop_mix": [0, 1], "depth": 1, "dev": 0, "test": 0, "unanswerable": 0}
    settings = make_settings(SynthesisSettings, cast(JsonObject, {**plain, **given}))
    checking = None if reader is None else generator(reader)
    proposing = None if proposer is None else QuestionProposer.over(proposer)
    synthesize(tmp_path / "in", tmp_path / "out", settings, proposing, checking)
    return everything(Dataset(tmp_path / "out"))


FOLLOWED = {"by Ada Stone|born in Ulm": "Ulm", "by Bert Moss|born in Graz": "Graz"}


def test_a_model_that_needs_the_whole_path_keeps_a_question_and_its_words_are_stored(tmp_path: Path) -> None:
    questions = with_model(tmp_path, None, Told(FOLLOWED))
    matching = [question for question in questions if question.gold_ids == ("f0", "p0")]
    gates = cast(dict[str, JsonObject], matching[0].meta["gates"])
    assert gates["follows (model)"]["said"] == ["Ulm", "no", "no"]
    assert gates["closed_book (model)"] == {"passed": True, "said": ["no"]}


@pytest.mark.parametrize("knows", [{"Red Hour": "Ulm"}, {"born in Ulm": "Ulm"}, {"nowhere at all": "Ulm"}])
def test_a_question_that_a_model_answers_with_less_is_dropped(tmp_path: Path, knows: dict[str, str]) -> None:
    try:
        kept = with_model(tmp_path, None, Told({**knows, "by Bert Moss|born in Graz": "Graz"}))
    except DataError:
        kept = []
    assert not [question for question in kept if question.answers[0] == "Ulm"]


def reply_of(*rows: tuple[str, str], **more: object) -> str:
    """A reply with proposals."""
    return json.dumps({"questions": [{"question": question, "answer": span, **more} for question, span in rows]})


def test_a_model_proposes_questions_of_linked_passages_with_their_steps(tmp_path: Path) -> None:
    steps = ["Who directed Red Hour?", "In which town was Ada Stone born?"]
    model = Told(
        {"directed by Ada Stone|born in Ulm": reply_of(("Where was the maker of Red Hour born?", "Ulm"), steps=steps)}
    )
    (question,) = with_model(tmp_path, model, None)
    assert (question.question, question.answers, question.gold_ids) == (
        "Where was the maker of Red Hour born?", ("Ulm",), ("f0", "p0")
    )  # fmt: skip
    first, last = gold_path(question)
    assert [first.target, last.source, last.target] == ["Ada Stone", "Ada Stone", "Ulm"]
    assert [first.question, last.question] == steps


@pytest.mark.parametrize(
    ("row", "gate"),
    [
        (("Which director was born in a town on the Danube?", "Neu-Ulm"), "verbatim"),
        (("Where was Ada Stone born, in Ulm or elsewhere?", "Ulm"), "closed_book"),
        (("Where was the director in this passage born?", "Ulm"), "self_contained"),
        (("Tell me where Ada Stone was born", "Ulm"), "self_contained"),
        (("Which river flows through Paraguay?", "Ulm"), "retrievable"),
    ],
)
def test_an_unfair_proposal_is_dropped_and_counted(row: tuple[str, str], gate: str, tmp_path: Path) -> None:
    good = ("Where was Cora Hill born?", "Bern")
    model = Told({"born in Ulm": reply_of(row), "born in Bern": reply_of(good, good)})
    (question,) = with_model(tmp_path, model, None, hop_mix=[1])
    assert question.question == good[0]
    dropped = json.loads((tmp_path / "out" / RECORD).read_text(encoding="utf-8"))["dropped"]
    assert [name.partition(":")[0] for name in dropped] == [gate, "duplicate"]


@pytest.mark.parametrize(
    "reply",
    [
        "Sure! Here are some questions.",
        '{"questions": [{"question": "Who?", "answer": null}]}',
        '{"questions": {"question": "Who?"}}',
        "<think>born in Ulm …",
    ],
)
def test_a_reply_that_is_no_list_of_questions_is_asked_for_once_more(reply: str, tmp_path: Path) -> None:
    good = reply_of(("Where was Ada Stone born?", "Ulm"))
    model = Told({"born in Ulm|could not be read": f"<think>{{</think>```json\n{good}\n```", "born in Ulm": reply})
    (question,) = with_model(tmp_path, model, None, hop_mix=[1])
    assert question.answers == ("Ulm",)
    calls = json.loads((tmp_path / "out" / RECORD).read_text(encoding="utf-8"))["calls"]
    assert calls["requests"] == 6 and calls["failed"] == 0
    assert calls["unreadable"] == 5, "the stand-in says `no` of the other passages, twice"


class Failing(Told):
    """A text model whose server fails for some prompts, until it is repaired."""

    broken: str = "born in Ulm"

    def write(self, prompts: Sequence[str], max_tokens: int) -> list[str]:
        texts = super().write(prompts, max_tokens)
        replies = [
            ModelError("HTTP 500") if self.broken in prompt else text
            for prompt, text in zip(prompts, texts, strict=True)
        ]
        return texts_of(replies)


def test_a_failure_of_the_server_is_counted_and_the_next_start_asks_only_what_failed(tmp_path: Path) -> None:
    rows = {f"born in {town}": reply_of((f"Where was {who} born?", town)) for _, who, town in PAIRS}
    model = Failing(rows)
    cached = CachedTextModel(model, TextCache(tmp_path / "said.sqlite"))
    assert len(with_model(tmp_path, cast(Told, cached), None, hop_mix=[1])) == 2
    assert json.loads((tmp_path / "out" / RECORD).read_text(encoding="utf-8"))["calls"]["failed"] == 1
    model.broken, before = "no such words", len(model.asked)
    assert len(with_model(tmp_path, cast(Told, cached), None, hop_mix=[1])) == 3
    assert len(model.asked) == before + 1
    model.broken = ""  # of every prompt: the server fails throughout
    with pytest.raises(RunError, match="HTTP 500"):
        with_model(tmp_path / "all", model, None, hop_mix=[1])
    assert not (tmp_path / "all" / "out").exists()


def test_a_corpus_without_names_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    Corpus([Passage("a", "", "nothing is said here"), Passage("b", "", "nor here")]).save(tmp_path / "in/corpus.jsonl")
    with pytest.raises(DataError, match="give no questions"):
        synthesize(tmp_path / "in", tmp_path / "out", SETTINGS)
    assert not (tmp_path / "out").exists()


# --- questions that a solver leaves


def skilled(skill: dict[int, float | None]) -> Solver:
    """A solver that answers a question of n hops in a known share of its tries."""
    return lambda questions: [skill[question.hops or 0] for question in questions]


def at_edge(world: World, folder: Path, solver: Solver) -> SynthesisSummary:
    world.corpus.save(folder / "in" / "corpus.jsonl")
    settings = SynthesisSettings(count=40, hop_mix=(1.0, 1.0), unanswerable=0)
    return synthesize(folder / "in", folder / "out", settings, solver=solver)


@pytest.mark.medium
def test_only_questions_at_the_edge_are_kept_and_the_rest_is_counted(world: World, tmp_path: Path) -> None:
    for share, reason in ((1.0, "nearly always"), (0.0, "seldom")):
        summary = at_edge(world, tmp_path / reason, skilled({1: share, 2: 0.4}))
        dataset = Dataset(tmp_path / reason / "out")
        questions = everything(dataset)
        assert {question.hops for question in questions} == {2}
        assert "'solved in 40% of the tries'" in str(questions[0].meta["gates"])
        assert summary.dropped[f"edge: the solver {reason} answers it"] > 0


def test_a_solver_that_always_fails_is_a_sentence_and_nothing_is_written(world: World, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the solver failed in every try"):
        at_edge(world, tmp_path, skilled({1: None, 2: None}))
    assert not (tmp_path / "out").exists()


def test_an_agent_tries_each_question_in_its_retriever() -> None:
    world = make_world(WorldSettings(size="tiny", train=0, dev=30, test=0))
    protocol = load_protocol("search-r1")
    model = ScriptedAgentModel(RuleAgent(), protocol, ByteTokenizer(protocol.grammar.special_tokens))
    agent = Agent(protocol, model)
    rates = solved(world.questions["dev"], agent, Bm25.over(world.corpus), limits_of(agent), tries=2, seed=0)
    assert len(rates) == len(world.questions["dev"])
    assert {*rates} == {0.0, 1.0}  # the rules draw nothing: all tries are alike
