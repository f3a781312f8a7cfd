"""Fears about labels by likelihood: numbers for other prompts, targets that do not add up, a fault that passes as 0."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, strategies as st
from tests.scripted import Failing

from coseek.agents.search_turns import SearchTurn, TurnId
from coseek.core.errors import SettingError
from coseek.core.settings import make_settings
from coseek.data.passage import Corpus, Passage
from coseek.data.question import Question
from coseek.data.trajectory import Search, StopReason, Trajectory
from coseek.graders.generator import ContextBudget, GeneratorSettings, context_of, load_generator_prompt
from coseek.labels.answer_likelihood import LikelihoodMaker, distinct, softmax
from coseek.labels.label_set import Candidate, DroppedTurn, LabelSet
from coseek.labels.maker import Labelled, maker_module
from coseek.labels.makers.scarlet import upper_group
from coseek.labels.resources import LabelResources
from coseek.models.laptop import LaptopSettings, make_policy
from coseek.models.likelihood import Continuation, ContinuationLogprob, open_local_likelihood
from coseek.models.tokenizer import PAD
from coseek.retrieval.query import Query
from coseek.retrieval.retriever import FixedRetriever

PASSAGES = [
    Passage("p1", "Ada", "Ada was born in 1815 ."),
    Passage("p2", "Bob", "Bob is a cat ."),
    Passage("p3", "Eve", "Eve knows Bob ."),
    Passage("p4", "Kim", "Kim was born in 1900 ."),
]
QUESTION = Question("q1", "When was Ada born ?", ("1815", "the year 1815"))
CLOSED = -5.0
WORTH = {"Ada": -0.5, "Bob": -6.0, "Eve": -4.0, "Kim": -9.0}
"""Log-likelihood of the answer with one passage, by a made-up model."""


class Table:
    """A likelihood model that is a function of the titles in the prompt, and records its calls."""

    uses_chat_template = False
    folder = "a folder"

    def __init__(self, nats: Callable[[list[str]], float | None], identity: str = "table") -> None:
        self.nats, self.identity = nats, identity
        self.asked: list[list[Continuation]] = []

    def score(self, rows: Sequence[Continuation]) -> list[ContinuationLogprob]:
        self.asked.append(list(rows))
        return [self._weighed(row) for row in rows]

    def _weighed(self, row: Continuation) -> ContinuationLogprob:
        nats = self.nats([title for title in WORTH if f"{title} |" in row.prompt])
        if nats is None:
            return ContinuationLogprob(None, 1, "out of memory")
        return ContinuationLogprob(nats - (0.1 if "year" in row.text else 0.0), 1)


def single(titles: list[str]) -> float:
    return WORTH[titles[0]] if titles else CLOSED


ALL = [passage.id for passage in PASSAGES]
FOUND = FixedRetriever(Corpus(PASSAGES), {"Ada": ALL, "one": ["p2"], "none": [], QUESTION.question: ["p2", "p1"]})
SHELF = Failing(FOUND, lambda query: "bad" in query.text)


def turn(query: str = "Ada", search: int = 0, question: Question = QUESTION, seed: int = 7) -> SearchTurn:
    run = Trajectory(question, "search-r1", (), (Search(query),) * (search + 1), StopReason.ANSWERED, seed=seed)
    return SearchTurn(run, search, Query(query, question.question, "I need it ."))


METHODS = ("replug", "llm-embedder", "scarlet")


def opened(method: str, parts: LabelResources, given: dict[str, object]) -> LikelihoodMaker:
    module = maker_module(method)
    return cast(LikelihoodMaker, module.open(make_settings(module.SETTINGS, given), parts))


def maker(method: str, folder: Path, table: Table, **given: object) -> LikelihoodMaker:
    parts = LabelResources(folder, SHELF, likelihood_name="a folder")
    parts.__dict__["likelihood"] = table
    return opened(method, parts, given)


def only_set(labels: Sequence[Labelled]) -> LabelSet:
    assert len(labels) == 1 and isinstance(labels[0], LabelSet)
    return labels[0]


def label(method: str, folder: Path, nats: Callable[[list[str]], float | None] = single, **given: object) -> LabelSet:
    return only_set(list(maker(method, folder, Table(nats), **given).label([turn()])))


def reason(method: str, folder: Path, wanted: SearchTurn, nats: Callable[[list[str]], float | None] = single) -> str:
    labels = list(maker(method, folder, Table(nats)).label([wanted]))
    assert len(labels) == 1 and isinstance(labels[0], DroppedTurn)
    return labels[0].reason


@given(st.lists(st.floats(-50, 0), min_size=2, max_size=8), st.floats(0.5, 5), st.floats(-100, 100))
def test_targets_are_the_softmax_whatever_the_shift(nats: list[float], temperature: float, shift: float) -> None:
    plain = [math.exp(value / temperature) for value in nats]
    assert softmax(nats, temperature) == pytest.approx([value / sum(plain) for value in plain])
    assert softmax([value + shift for value in nats], temperature) == pytest.approx(softmax(nats, temperature))
    far = softmax([200 * value for value in nats], temperature)  # where each exponential underflows
    assert math.fsum(far) == pytest.approx(1, abs=1e-12)


def test_replug_ranks_by_likelihood_and_its_targets_are_their_softmax(tmp_path: Path) -> None:
    label_set = label("replug", tmp_path, temperature=2.0)
    assert [candidate.passage.id for candidate in label_set.candidates] == ["p1", "p3", "p2", "p4"]
    assert [candidate.scores["logp"] for candidate in label_set.candidates] == [-0.5, -4.0, -6.0, -9.0]
    assert [candidate.rank for candidate in label_set.candidates] == [1, 3, 2, 4]
    assert (label_set.positive, label_set.negatives) == ("p1", ("p3", "p2", "p4"))
    weights = [math.exp(value / 2) for value in (-0.5, -4.0, -6.0, -9.0)]
    assert label_set.targets == pytest.approx([weight / sum(weights) for weight in weights])
    assert label_set.query == turn().query


def test_replug_by_the_papers_letter_takes_the_softmax_of_probabilities(tmp_path: Path) -> None:
    label_set = label("replug", tmp_path, temperature=0.1, utility="probability")
    weights = [math.exp(math.exp(value) / 0.1) for value in (-0.5, -4.0, -6.0, -9.0)]
    assert label_set.targets == pytest.approx([weight / sum(weights) for weight in weights])


@given(st.lists(st.integers(-20, 20), min_size=1, max_size=9))
def test_the_two_groups_are_the_ones_with_the_least_squares(values: list[int]) -> None:
    falling = sorted(values, reverse=True)
    upper = upper_group(falling)

    def squares(group: list[int]) -> float:
        return sum((value - sum(group) / len(group)) ** 2 for value in group)

    if len(set(falling)) == 1:
        assert upper == len(falling)
    else:
        assert falling[upper - 1] > falling[upper]
        best = min(squares(falling[:cut]) + squares(falling[cut:]) for cut in range(1, len(falling)))
        assert squares(falling[:upper]) + squares(falling[upper:]) == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_the_model_reads_the_generators_prompt_with_these_passages_and_no_others(method: str, tmp_path: Path) -> None:
    table = Table(lambda titles: -float(len(titles)))
    made = maker(method, tmp_path, table, candidates=3)
    list(made.label([turn()]))
    prompt = load_generator_prompt(GeneratorSettings(model="a folder"))
    some = PASSAGES[:3]
    lists = {
        "replug": [[passage] for passage in some],
        "llm-embedder": [[], *([passage] for passage in some)],
        "scarlet": [some, some[1:], [some[0], some[2]], some[:2]],
    }[method]
    contexts = [context_of(prompt, ContextBudget(2048), QUESTION.question, tuple(each)) for each in lists]
    assert table.asked == [[Continuation(context.prompt, " 1815", "") for context in contexts]]


def test_the_answer_is_the_first_one_or_the_likeliest(tmp_path: Path) -> None:
    def longer_is_likelier(row: Continuation) -> ContinuationLogprob:
        return ContinuationLogprob(-1.0 if "year" in row.text else -2.0, 1)

    table = Table(single)
    table._weighed = longer_is_likelier  # type: ignore[method-assign]
    first = only_set(list(maker("replug", tmp_path, table).label([turn()])))
    best = only_set(list(maker("replug", tmp_path, table, answers="best").label([turn()])))
    assert {candidate.scores["logp"] for candidate in first.candidates} == {-2.0}
    assert {candidate.scores["logp"] for candidate in best.candidates} == {-1.0}


def test_labels_may_be_for_the_users_question_once_a_run(tmp_path: Path) -> None:
    made = maker("replug", tmp_path, Table(single), queries="question")
    labels = {each.turn.search: each for each in made.label([turn("Ada"), turn("Ada", 1)])}
    label_set = labels[0]
    assert isinstance(label_set, LabelSet) and label_set.query == Query(QUESTION.question, QUESTION.question)
    assert {candidate.passage.id for candidate in label_set.candidates} == {"p1", "p2"}
    dropped = labels[1]
    assert isinstance(dropped, DroppedTurn) and dropped.reason == "same-question"

    failed = (Search("bad", fault="it is down"), Search("Ada"), Search("Ada"))
    run = Trajectory(QUESTION, "search-r1", (), failed, StopReason.ANSWERED, seed=7)
    after_failure = [SearchTurn(run, number, Query("Ada", QUESTION.question)) for number in (1, 2)]
    assert only_set([each for each in made.label(after_failure) if isinstance(each, LabelSet)]).turn.search == 1


@pytest.mark.parametrize("method", METHODS)
def test_a_fault_labels_nothing_is_counted_and_is_asked_again(method: str, tmp_path: Path) -> None:
    made = maker(method, tmp_path, Table(lambda titles: None if "Eve" in titles else -1.0))
    assert list(made.label([turn()])) == []
    assert made.parts.tally.faults["likelihood"] == 1
    table = Table(lambda titles: -float(len(titles)))
    list(maker(method, tmp_path, table).label([turn()]))
    assert len(table.asked) == 1


def test_a_failed_search_labels_nothing_is_counted_and_costs_no_other_turn_its_label(tmp_path: Path) -> None:
    made = maker("replug", tmp_path, Table(single))
    labels = list(made.label([turn(), turn("bad one", 1)]))
    assert only_set(labels).turn == TurnId("q1", 7, 0)
    assert made.parts.tally.faults["retriever"] == 1


def test_turns_without_an_answer_or_with_too_few_passages_are_dropped(tmp_path: Path) -> None:
    assert reason("replug", tmp_path / "1", turn(question=replace(QUESTION, answers=()))) == "no-answer"
    assert reason("replug", tmp_path / "2", turn("one")) == "too-few"
    assert reason("replug", tmp_path / "3", turn("none")) == "too-few"


@pytest.mark.parametrize(("method", "whole"), [("scarlet", 25), ("replug", 7), ("llm-embedder", 7)])
def test_a_passage_that_was_cut_is_not_weighed_as_if_whole(method: str, whole: int, tmp_path: Path) -> None:
    given: dict[str, object] = {} if method == "replug" else {"above": -99.0}
    table = Table(lambda titles: -float(len(titles)))
    (fits,) = maker(method, tmp_path / "fits", table, max_context_tokens=whole, **given).label([turn()])
    (cut,) = maker(method, tmp_path / "cut", table, max_context_tokens=whole - 1, **given).label([turn()])
    assert not (isinstance(fits, DroppedTurn) and fits.reason == "too-long")
    assert isinstance(cut, DroppedTurn) and cut.reason == "too-long" and len(table.asked) == 1


def test_copies_of_a_passage_are_one_candidate() -> None:
    copy = Passage("p9", " Ada", "Ada was  born in 1815 .")
    candidates = distinct([Candidate(passage, rank) for rank, passage in enumerate([*PASSAGES[:2], copy], start=1)])
    assert [candidate.passage.id for candidate in candidates] == ["p1", "p2"]


@pytest.mark.parametrize("method", METHODS)
def test_what_was_weighed_is_kept_for_its_model_prompt_and_settings(method: str, tmp_path: Path) -> None:
    def fresh(identity: str = "table", **given: object) -> Table:
        table = Table(lambda titles: -float(len(titles)), identity)
        list(maker(method, tmp_path, table, **given).label([turn(), turn(seed=8)]))
        return table

    assert [len(rows) > 1 for rows in fresh().asked] == [True]  # the second run needs the same likelihoods
    assert fresh().asked == []
    assert len(fresh("other").asked) == len(fresh(prompt="generator-laptop").asked) == 1
    assert len(fresh(max_context_tokens=100).asked) == 1


def test_identities_follow_every_setting(tmp_path: Path) -> None:
    changes: list[dict[str, object]] = [{}, {"temperature": 0.5}, {"candidates": 9}, {"prompt": "generator-laptop"}]
    kinds = [maker("replug", tmp_path, Table(single), **given).identity for given in changes]
    kinds += [maker(name, tmp_path, Table(single), above=1.0).identity for name in ("llm-embedder", "scarlet")]
    kinds += [maker("replug", tmp_path, Table(single, "other")).identity]
    assert len(set(kinds)) == len(kinds)
    assert maker("replug", tmp_path, Table(single)).identity == kinds[0]


def test_without_a_model_there_is_a_sentence(tmp_path: Path) -> None:
    made = opened("replug", LabelResources(tmp_path, SHELF), {})
    with pytest.raises(SettingError, match="--likelihood"):
        list(made.label([turn()]))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["replug", "scarlet"])
def test_a_real_network_labels_as_its_likelihoods_say_alone_and_among_other_turns(method: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    texts = [f" {passage.title} {passage.text} 1815" for passage in PASSAGES]
    make_policy(LaptopSettings(hidden=32, feed_forward=48, vocabulary=300), texts, [PAD], folder, seed=1)

    def labels(name: str, turns: Sequence[SearchTurn]) -> list[Labelled]:
        parts = LabelResources(tmp_path / name, SHELF, likelihood_name=str(folder))
        given: dict[str, object] = {} if method == "replug" else {"above": -99.0}
        return list(opened(method, parts, given).label(turns))

    other = Question("q2", "Who knows Bob ?", ("Eve",))
    together = labels("together", [turn(question=other), turn(), turn("one")])
    alone = only_set(labels("alone", [turn()]))
    assert alone in together
    if method == "replug":
        prompt = load_generator_prompt(GeneratorSettings(model=str(folder)))
        likelihood = open_local_likelihood(folder)
        for candidate in alone.candidates:
            context = context_of(prompt, ContextBudget(2048), QUESTION.question, (candidate.passage,))
            nats = likelihood.score([Continuation(context.prompt, " 1815")])[0].nats
            assert candidate.scores["logp"] == pytest.approx(nats, abs=2e-4)
