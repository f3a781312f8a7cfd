"""Fears about the naive-RAG baseline: another generator's, a missing one, a fault that counts as a failure of RAG."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.measure.samples import MIRA, ORBO, OTHER, QUESTION
from tests.scripted import Failing, Scripted, generator, judge

from coseek.core.errors import DataError, SettingError
from coseek.data.passage import Corpus
from coseek.graders.rag_baseline import FILE, baseline_cache, is_closed, make_baselines, unsolved_by_rag
from coseek.retrieval.retriever import FixedRetriever
from coseek.rewards.grades import Accuracy

FIRST = QUESTION
SECOND = replace(QUESTION, id="q2", question="who founded Orbo?", answers=("Mira Tan",))
CLOSED = replace(QUESTION, id="q3", question="is Orbo a film?", answers=("No",))
CORPUS = Corpus([ORBO, MIRA, OTHER])
RESULTS = {FIRST.question: ["other", "orbo"], SECOND.question: ["orbo", "mira", "other"], CLOSED.question: ["other"]}
RETRIEVER = FixedRetriever(CORPUS, RESULTS)


def reads(prompt: str) -> str:
    return "Mira Tan" if "founded by Mira Tan" in prompt and "who founded" in prompt else "a town"


def test_naive_rag_is_one_search_for_the_question_and_its_first_k_passages_in_order(tmp_path: Path) -> None:
    made = make_baselines(tmp_path, [FIRST, SECOND], RETRIEVER, generator(Scripted(reads)), 2)
    assert made.of(FIRST).passage_ids == ("other", "orbo") and made.of(FIRST).answer == "a town"
    assert made.of(SECOND).passage_ids == ("orbo", "mira") and made.of(SECOND).answer == "Mira Tan"


def test_a_second_start_asks_only_what_is_missing_and_a_killed_line_is_dropped(tmp_path: Path) -> None:
    make_baselines(tmp_path, [FIRST], RETRIEVER, generator(Scripted(reads)), 2)
    with (tmp_path / FILE).open("a") as file:
        file.write('{"question_id": "q2", "se')
    model = Scripted(reads)
    made = make_baselines(tmp_path, [FIRST, SECOND, SECOND], RETRIEVER, generator(model), 2)
    assert [len(batch) for batch in model.calls] == [1]
    assert {ident for ident, _ in made.replies} == {"q1", "q2"}
    model.calls.clear()
    assert make_baselines(tmp_path, [SECOND], RETRIEVER, generator(model), 2).replies == made.replies
    assert not model.calls


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"k": 3}, "another passages;"),
        ({"max_context_tokens": 9}, "another generator, max_context_tokens;"),
        ({"prompt": "generator-laptop"}, "another generator, prompt;"),
        ({"model": "else"}, "another generator, model_identity;"),
        ({"corpus": "else"}, "another retriever;"),
    ],
)
def test_a_baseline_of_another_part_is_refused_by_name(tmp_path: Path, changed: dict[str, object], says: str) -> None:
    """Trap 27: same generator, prompt, k, order and retriever, or no gain."""
    make_baselines(tmp_path, [FIRST], RETRIEVER, generator(Scripted(reads)), 2)
    model = Scripted(reads, identity=str(changed.get("model", "scripted")))
    other = generator(model, **{name: value for name, value in changed.items() if name not in ("k", "model", "corpus")})
    retriever = FixedRetriever(Corpus([ORBO]), RESULTS) if "corpus" in changed else RETRIEVER
    with pytest.raises(DataError, match=says):
        baseline_cache(tmp_path, retriever, other, 3 if "k" in changed else 2)


def test_a_question_without_a_baseline_is_an_error_with_the_way_out(tmp_path: Path) -> None:
    """Trap 27: never zero-shot."""
    made = make_baselines(tmp_path, [FIRST], RETRIEVER, generator(Scripted(reads)), 2)
    with pytest.raises(DataError, match=r"'q2' has no baseline in .*compute the baselines"):
        made.of(SECOND)
    with pytest.raises(DataError, match="'q1' has no baseline"):
        made.of(replace(FIRST, question="worded otherwise?"))


def test_a_baseline_of_another_question_with_this_id_is_not_taken(tmp_path: Path) -> None:
    model, other = Scripted(reads), replace(SECOND, id=FIRST.id)
    make_baselines(tmp_path, [FIRST], RETRIEVER, generator(model), 2)
    for _ in range(2):  # both are kept, so neither is paid for twice
        assert make_baselines(tmp_path, [other], RETRIEVER, generator(model), 2).of(other).answer == "Mira Tan"
        assert make_baselines(tmp_path, [FIRST], RETRIEVER, generator(model), 2).of(FIRST).answer == "a town"
    assert sum(map(len, model.calls)) == 2


def test_questions_of_two_splits_with_one_id_have_a_baseline_each(tmp_path: Path) -> None:
    both = [FIRST, replace(SECOND, id=FIRST.id)]
    made = make_baselines(
        tmp_path, both, RETRIEVER, generator(Scripted(reads)), 2, judge(Scripted(lambda _: "no")), "judge"
    )
    assert [made.of(question).answer for question in both] == ["a town", "Mira Tan"]
    assert [len(made.verdicts_on(question) or ()) for question in both] == [1, 1]


def test_a_part_that_failed_is_no_failure_of_rag(tmp_path: Path) -> None:
    broken = {FIRST.question}
    made = make_baselines(
        tmp_path, [FIRST, SECOND], Failing(RETRIEVER, lambda query: query.text in broken), generator(Scripted(reads)), 2
    )
    assert made.of(FIRST).fault == "search: the disk is gone" and made.of(SECOND).fault is None
    chosen = unsolved_by_rag([FIRST, SECOND], made, "cover_match")
    assert (chosen.kept, chosen.solved, chosen.failed) == ((), 1, 1)
    broken.clear()
    mended = make_baselines(
        tmp_path, [FIRST, SECOND], Failing(RETRIEVER, lambda query: query.text in broken), generator(Scripted(reads)), 2
    )
    assert mended.of(FIRST).fault is None
    assert unsolved_by_rag([FIRST, SECOND], mended, "cover_match").kept == (FIRST,)


def test_trained_on_is_what_naive_rag_fails(tmp_path: Path) -> None:
    made = make_baselines(tmp_path, [FIRST, SECOND], RETRIEVER, generator(Scripted(reads)), 2)
    chosen = unsolved_by_rag([FIRST, SECOND], made, "cover_match")
    assert (chosen.kept, chosen.solved, chosen.failed) == ((FIRST,), 1, 0)
    with pytest.raises(SettingError, match="needs a judge"):
        unsolved_by_rag([FIRST], made)


@pytest.mark.parametrize(("says", "kept", "failed"), [("yes", 0, 0), ("no", 1, 0), ("perhaps", 0, 1)])
def test_the_judge_has_his_say_on_what_rag_solves(tmp_path: Path, says: str, kept: int, failed: int) -> None:
    made = make_baselines(tmp_path, [FIRST], RETRIEVER, generator(Scripted(reads)), 2, judge(Scripted(lambda _: says)))
    chosen = unsolved_by_rag([FIRST], made)
    assert (len(chosen.kept), chosen.failed) == (kept, failed)


@pytest.mark.parametrize(
    ("accuracy", "asked"), [("gen_acc", ["q1"]), ("judge", ["q1", "q2"]), ("cover_match", []), ("exact_match", [])]
)
def test_a_judge_is_shown_no_baseline_that_words_settle(tmp_path: Path, accuracy: Accuracy, asked: list[str]) -> None:
    who = judge(Scripted(lambda _: "yes"))
    made = make_baselines(tmp_path, [FIRST, SECOND], RETRIEVER, generator(Scripted(reads)), 2, who, accuracy)
    assert made.verdicts is not None and sorted(ident for ident, *_ in made.verdicts) == asked


@pytest.mark.parametrize(("answer", "closed"), [("Yes.", True), ("no", True), ("False", True), ("Nora", False)])
def test_closed_questions_are_known_by_their_gold_answers(answer: str, closed: bool) -> None:
    """Trap 25: their gold answers stand in anything."""
    assert is_closed(replace(QUESTION, answers=("Velora", answer))) is closed
