"""Fears about DR-Synth: an agent that read another list than its labels say, labels of wrong runs, a kill that shows.

The checks recompute every rule from the run and the world."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from tests.agents.playing import typist
from tests.labels.small import Away, bm25, parts, world
from tests.scripted import Failing, Scripted

from coseek.agents.drivers import Agent
from coseek.agents.protocol import load_protocol
from coseek.agents.run_questions import row_keys_of
from coseek.agents.search_turns import SearchTurn
from coseek.core.errors import DataError, ModelError, SettingError
from coseek.core.files import JsonObject
from coseek.core.settings import make_settings
from coseek.data.answers import exact_match
from coseek.data.grade_cache import Verdict
from coseek.data.passage import Passage
from coseek.data.question import Question
from coseek.data.run import Run
from coseek.data.trajectory import Trajectory
from coseek.graders.judge import Claim
from coseek.labels.label_set import DroppedTurn, LabelSet
from coseek.labels.maker import Labelled
from coseek.labels.makers.dr_synth import DrSynth, DrSynthSettings, open
from coseek.labels.oracle_retriever import OracleRetriever
from coseek.retrieval.retriever import Retriever

pytestmark = pytest.mark.medium


def questions() -> list[Question]:
    return world().questions["train"]


def maker(
    folder: Path, retriever: Retriever | None = None, scorer: str = "oracle", who: Agent | None = None, **given: object
) -> DrSynth:
    return open(make_settings(DrSynthSettings, given), parts(folder, scorer, retriever, who))


def labels_of(made: DrSynth, chosen: Sequence[Question] = ()) -> list[Labelled]:
    turns = made.roll_out(chosen or questions(), lambda done, total: None)
    return list(made.label(turns))


def runs_of(folder: Path) -> dict[tuple[str, int], Trajectory]:
    return {(run.question.id, run.seed): run for run in Run(folder / "run").trajectories()}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Labelled]]:
    folder = tmp_path_factory.mktemp("dr-synth")
    return folder, labels_of(maker(folder))


def test_the_positive_is_the_oracles_first_and_the_negatives_are_its_last_seven(
    made: tuple[Path, list[Labelled]],
) -> None:
    sets = [label for label in made[1] if isinstance(label, LabelSet)]
    put_in = 0
    for label in sets:
        hop = world().oracle.hop_of(label.question, label.query.text)
        retrieved = [hit.passage for hit in bm25().search([label.query], 50)[0]]
        gold = [world().corpus.by_id(ident) for ident in label.question.gold_ids]
        pool = gold + [passage for passage in retrieved if passage not in gold]
        expected = sorted(pool, key=lambda passage: -world().oracle.relevance(label.question, passage, hop))
        assert [candidate.passage for candidate in label.candidates] == expected
        assert label.positive == expected[0].id
        assert label.negatives == tuple(passage.id for passage in expected[1:][-7:])
        for candidate in label.candidates:
            rank = retrieved.index(candidate.passage) + 1 if candidate.passage in retrieved else 0
            assert candidate.rank == rank
            assert rank or candidate.passage in gold
            assert candidate.scores["relevance"] == world().oracle.relevance(label.question, candidate.passage, hop)
            put_in += not rank
    assert len(sets) > 20 and put_in > 0


def test_the_agent_goes_on_with_the_first_five_of_the_order(made: tuple[Path, list[Labelled]]) -> None:
    runs = runs_of(made[0])
    for label in made[1]:
        if isinstance(label, LabelSet):
            hits = runs[label.turn.question_id, label.turn.seed].searches[label.turn.search].hits
            assert [hit.passage for hit in hits] == [candidate.passage for candidate in label.candidates[:5]]


def test_only_turns_of_runs_with_a_wrong_answer_and_orders_of_one_passage_are_dropped(
    made: tuple[Path, list[Labelled]],
) -> None:
    runs = runs_of(made[0])
    assert {run.question.id for run in runs.values()} == {question.id for question in questions()}
    wanted = {(key, search): run for key, run in runs.items() for search in range(len(run.searches))}
    by_turn = {((label.turn.question_id, label.turn.seed), label.turn.search): label for label in made[1]}
    assert by_turn.keys() == wanted.keys()
    for key, label in by_turn.items():
        right = exact_match(wanted[key].answer, wanted[key].question.answers)
        reason = ("too-few", "1 passages were found") if right else ("wrong-answer", wanted[key].answer or "")
        assert label == DroppedTurn(label.turn, *reason) or (right and isinstance(label, LabelSet))
    dropped = {label.reason for label in made[1] if isinstance(label, DroppedTurn)}
    assert dropped == {"too-few", "wrong-answer"} and len(dropped) < len(made[1])


def test_rejection_can_be_left_out(made: tuple[Path, list[Labelled]], tmp_path: Path) -> None:
    everything = labels_of(maker(tmp_path, reject=False))
    assert len(everything) == len(made[1])
    assert {label.reason for label in everything if isinstance(label, DroppedTurn)} == {"too-few"}


@pytest.mark.slow
def test_a_killed_start_goes_on_to_the_same_labels(made: tuple[Path, list[Labelled]], tmp_path: Path) -> None:
    """Files are truncated in the middle of a line, as by a kill."""
    labels_of(maker(tmp_path))
    for path in (tmp_path / "run" / "trajectories.jsonl", *(tmp_path / "scores").iterdir()):
        data = path.read_bytes()
        path.write_bytes(data[: len(data) * 2 // 5])
    assert labels_of(maker(tmp_path)) == made[1]


def test_a_finished_start_asks_nobody_again(made: tuple[Path, list[Labelled]]) -> None:
    again = maker(made[0])
    object.__setattr__(again.parts, "found_by", Failing(bm25()))  # same identity, and no search succeeds
    assert labels_of(again) == made[1]


def test_labels_of_a_question_do_not_depend_on_the_others(made: tuple[Path, list[Labelled]], tmp_path: Path) -> None:
    some = questions()[5:9]
    idents = {question.id for question in some}
    assert labels_of(maker(tmp_path), some) == [label for label in made[1] if label.turn.question_id in idents]


@pytest.mark.slow
def test_a_run_that_a_fault_ended_leaves_its_turns_undone(made: tuple[Path, list[Labelled]], tmp_path: Path) -> None:
    broken = maker(tmp_path, Failing(bm25(), lambda query: bool(query.history)))  # at every search but a run's first
    turns = broken.roll_out(questions(), lambda done, total: None)
    labels = list(broken.label(turns))
    faulty = {key for key, run in runs_of(tmp_path).items() if run.stop.is_fault}
    assert faulty and broken.parts.tally.faults["run"] == len(faulty)
    assert {turn.id for turn in turns} - {label.turn for label in labels} == {
        turn.id for turn in turns if (turn.question.id, turn.trajectory.seed) in faulty
    }
    assert labels_of(maker(tmp_path)) == made[1]


def unreadable_for(word: str) -> Scripted:
    """A model that keeps the order, but refuses to rank for queries with this word."""

    def says(prompt: str) -> str:
        if word in prompt.partition("Search query: ")[2].partition("\n")[0]:
            return "I would rather not."
        count = prompt.partition(" passages, each")[0].rpartition(" ")[2]
        return " > ".join(f"[{number}]" for number in range(1, int(count) + 1))

    return Scripted(says)


def test_an_unreadable_ranking_drops_the_turn_and_the_agent_reads_the_retrievers_list(
    tmp_path: Path,
) -> None:
    made = maker(tmp_path, scorer="some model", reject=False)
    made.parts.__dict__["writer"] = unreadable_for("birthplace")
    labels = [label for label in labels_of(made) if getattr(label, "reason", "") != "too-few"]
    runs = runs_of(tmp_path)
    dropped = [label for label in labels if isinstance(label, DroppedTurn)]
    assert dropped and {label.reason for label in dropped} == {"unreadable"} and all(label.detail for label in dropped)
    for label in labels:
        search = runs[label.turn.question_id, label.turn.seed].searches[label.turn.search]
        own = [hit.passage for hit in bm25().search([search.query], 5)[0]]
        assert isinstance(label, DroppedTurn) == ("birthplace" in search.query)
        if isinstance(label, DroppedTurn):
            assert [hit.passage for hit in search.hits] == own
        else:
            assert label.positive == label.question.gold_ids[0]  # gold passages were put first


def forgetful(prompt: str) -> str:
    """An order that names passage 2 twice and leaves out the last two."""
    return " > ".join(f"[{number}]" for number in (2, *range(1, passages_in(prompt) - 1)))


def passages_in(prompt: str) -> int:
    return int(prompt.partition(" passages, each")[0].rpartition(" ")[2])


@pytest.mark.slow
def test_an_order_that_misses_a_few_passages_is_repaired_if_lenient_and_else_drops_its_turn(
    tmp_path: Path,
) -> None:
    strict = maker(tmp_path / "strict", scorer="some model", reject=False)
    strict.parts.__dict__["writer"] = Scripted(forgetful)
    assert {label.reason for label in labels_of(strict) if isinstance(label, DroppedTurn)} == {"unreadable", "too-few"}
    lenient = maker(tmp_path / "lenient", scorer="some model", reject=False, lenient_orders=True)
    model = Scripted(forgetful)
    lenient.parts.__dict__["writer"] = model
    labels = [label for label in labels_of(lenient) if isinstance(label, LabelSet)]
    assert len(labels) > 20
    for label in labels:
        pool = [passage.id for passage in _pool(label)]
        assert [candidate.passage.id for candidate in label.candidates] == [pool[1], pool[0], *pool[2:]]
    prompts = [prompt for call in model.calls for prompt in call]
    # With fewer than ten passages, two are more than a fifth, so that the order is requested again.
    assert lenient.parts.tally.counts["orders_repaired"] == sum(passages_in(prompt) >= 10 for prompt in prompts)
    assert strict.identity != lenient.identity


def _pool(label: LabelSet) -> list[Passage]:
    """Gold passages, then the retriever's hits."""
    gold = [world().corpus.by_id(ident) for ident in label.question.gold_ids]
    return list(dict.fromkeys([*gold, *(hit.passage for hit in bm25().search([label.query], 50)[0])]))


def test_runs_whose_answer_is_a_sentence_can_be_kept_by_cover_match_or_by_a_judge(tmp_path: Path) -> None:
    def reasons(turns: Sequence[SearchTurn], made: DrSynth) -> set[str]:
        return {label.reason for label in made.label(turns) if isinstance(label, DroppedTurn)}

    strict = maker(tmp_path / "em")
    turns = [turn for turn in strict.roll_out(questions()[:8], lambda done, total: None) if turn.trajectory.answer]
    reworded = [
        replace(
            turn,
            trajectory=replace(turn.trajectory, answer=f"I believe that it is {turn.question.answers[0]}, as told."),
        )
        for turn in turns
    ]
    assert reasons(reworded, strict) == {"wrong-answer"} and not [
        label for label in strict.label(reworded) if isinstance(label, LabelSet)
    ]
    cover = maker(tmp_path / "em", outcome="cover")
    assert reasons(reworded, cover) == set()
    judged = maker(tmp_path / "judge", outcome="judge", judge=str(tmp_path / "em" / "world"))
    right = [world().oracle.judge(turn.question, turn.trajectory.answer or "") for turn in turns]
    kept = {label.turn for label in judged.label(turns) if isinstance(label, LabelSet)}
    assert kept == {turn.id for turn, correct in zip(turns, right, strict=True) if correct} and not all(right)
    with pytest.raises(SettingError, match="need each other"):
        maker(tmp_path / "none", outcome="judge")
    silent = replace(turns[-1], trajectory=replace(turns[-1].trajectory, answer=None))  # no judge is asked
    assert list(judged.label([silent])) == [DroppedTurn(silent.id, "wrong-answer")]


def test_a_fault_of_the_judge_is_counted_and_leaves_the_turns_of_its_run_alone_undone(tmp_path: Path) -> None:
    class Forgets:
        identity = "forgets"
        card: ClassVar[JsonObject] = {}

        def judge(self, claims: Sequence[Claim]) -> list[Verdict]:
            first = claims[0].question.id
            return [
                Verdict(*claim.key[:2], None, fault="gone", asked=claim.asked)
                if claim.question.id == first
                else Verdict(*claim.key[:2], True, asked=claim.asked)
                for claim in claims
            ]

    made = maker(tmp_path, outcome="judge", judge="a judge", scorer="gold")
    made.__dict__["judge"] = Forgets()
    turns = [turn for turn in made.roll_out(questions()[:4], lambda done, total: None) if turn.trajectory.answer]
    lost = {turn.id for turn in turns if turn.question.id == turns[0].question.id}
    labelled = [label.turn for label in made.label(turns)]
    assert labelled == [turn.id for turn in turns if turn.id not in lost] != []
    assert made.parts.tally.faults["judge"] == 1


def test_runs_are_sampled_from_the_seed_on_and_only_those_that_are_asked_for(tmp_path: Path) -> None:
    some, told = questions()[:2], list[tuple[int, int]]()
    made = maker(tmp_path, scorer="gold", samples=2, seed=7)
    rows = made.left(some)
    assert rows == row_keys_of(some, 7, 2) and len(set(rows)) == 4
    made.roll_out(some, lambda done, total: told.append((done, total)), rows[1:2])
    assert list(runs_of(tmp_path)) == rows[1:2] and told == [(0, 1), (1, 1)]
    made.roll_out(some, lambda done, total: None)
    assert list(runs_of(tmp_path)) == rows and made.left(some) == []


def test_a_corpus_is_needed_for_gold_passages_alone_and_missed_before_the_first_search(tmp_path: Path) -> None:
    assert maker(tmp_path / "without", Away("nothing"), gold=False).left(questions()[:1])
    with pytest.raises(SettingError, match="the corpus of the retriever 'bm25' is unknown"):
        maker(tmp_path / "with", Away("nothing")).left(questions()[:1])


def test_a_run_with_a_query_that_could_not_be_ranked_is_made_again_before_it_is_labelled(
    tmp_path: Path,
) -> None:
    def says(prompt: str) -> str:
        if "Search query: born" in prompt:
            raise ModelError("the server is gone")
        return backwards(prompt)

    some = questions()[:2]
    made = maker(tmp_path, who=asks_two(), scorer="some model", reject=False)
    made.parts.__dict__["writer"] = Scripted(says)
    assert labels_of(made, some) == [] and made.parts.tally.faults["run"] == 2
    for run in runs_of(tmp_path).values():
        assert [search.fault for search in run.searches] == [None, "the server is gone"] and not run.stop.is_fault
    again = maker(tmp_path, who=asks_two(), scorer="some model", reject=False)
    again.parts.__dict__["writer"] = Scripted(backwards)
    assert len(again.left(some)) == 2
    labels = labels_of(again, some)
    assert len(labels) == 4
    assert_labels_of_what_was_read(labels, tmp_path)


def backwards(prompt: str) -> str:
    """Rank in reverse order."""
    return " > ".join(f"[{number}]" for number in range(passages_in(prompt), 0, -1))


def asks_two() -> Agent:
    """An agent that asks two queries in its one turn with searches."""
    protocol = load_protocol("react")
    call = '<tool_call>{"name": "search", "arguments": {"query": ["film", "born"]}}</tool_call>'
    model = typist(protocol, f"<think>a</think>{call}", "<think>b</think><answer>1815</answer>")
    return Agent(protocol, model)


def assert_labels_of_what_was_read(labels: Sequence[Labelled], folder: Path) -> None:
    runs = runs_of(folder)
    for label in labels:
        assert isinstance(label, LabelSet)
        hits = runs[label.turn.question_id, label.turn.seed].searches[label.turn.search].hits
        assert [candidate.passage for candidate in label.candidates[: len(hits)]] == [hit.passage for hit in hits] != []


def test_gold_evidence_can_rank_and_questions_without_it_are_refused(tmp_path: Path) -> None:
    for label in labels_of(maker(tmp_path, scorer="gold")):
        assert isinstance(label, DroppedTurn) or label.positive in label.question.gold_ids
    bare = [replace(questions()[0], gold_ids=())]
    with pytest.raises(DataError, match="names no gold passages"):
        labels_of(maker(tmp_path / "bare", scorer="gold"), bare)


def test_a_gold_passage_that_is_not_at_hand_is_a_sentence(tmp_path: Path) -> None:
    strange = [replace(questions()[0], gold_ids=("elsewhere",))]
    with pytest.raises(DataError, match="'elsewhere'"):
        labels_of(maker(tmp_path), strange)


def test_two_questions_of_the_same_words_and_other_gold_are_refused(tmp_path: Path) -> None:
    first = questions()[0]
    twin = replace(first, id="twin")
    rankings = maker(tmp_path).rankings
    OracleRetriever(rankings, [first, twin])
    with pytest.raises(DataError, match="'twin'"):
        OracleRetriever(rankings, [first, replace(twin, answers=("somebody else",))])


def test_impossible_settings_and_a_run_of_other_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="shown=9"):
        maker(tmp_path, shown=9, depth=5)
    with pytest.raises(SettingError, match="window=10"):
        maker(tmp_path, window=10, step=10)
    labels_of(maker(tmp_path), questions()[:1])
    with pytest.raises(SettingError, match="begun with other settings"):
        labels_of(maker(tmp_path, depth=30), questions()[:1])
