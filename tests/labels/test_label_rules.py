"""Label rules on a few passages that can be ranked by eye, and the requirements of each method."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.labels.small import LIMITS, Away, agent, bm25, make, parts, protocol, turns, world
from tests.measure.samples import MIRA, ORBO, OTHER, QUESTION, run, search_of

from coseek.agents.drivers import rollout
from coseek.agents.search_turns import SearchTurn, TurnId, search_turns
from coseek.core.errors import DataError, SettingError, UnknownName
from coseek.core.settings import make_settings
from coseek.data.passage import Corpus, Passage
from coseek.data.question import Question
from coseek.data.trajectory import Author, Search, StopReason, Trajectory
from coseek.labels.label_folder import LabelFolder
from coseek.labels.label_set import (
    SCHEMA,
    Candidate,
    DroppedTurn,
    LabelSet,
    label_sets,
    pick_negatives,
    tevatron_row,
    trajectory_digest,
    write_tevatron,
)
from coseek.labels.maker import Labelled, MakerRequirements, maker_module
from coseek.labels.makers import gold
from coseek.labels.makers.gold import GoldSettings, unseen
from coseek.labels.makers.llm_embedder import LlmEmbedder, LlmEmbedderSettings
from coseek.labels.makers.scarlet import Scarlet, ScarletSettings
from coseek.labels.resources import LabelResources
from coseek.retrieval.query import Query
from coseek.retrieval.retriever import FixedRetriever
from coseek.retrieval.retrievers.random import RandomRetriever, RandomSettings

PASSAGES = (ORBO, MIRA, OTHER)
CANDIDATES = [Candidate(passage, rank, {"retriever": 9.0 - rank}) for rank, passage in enumerate(PASSAGES, start=1)]
MANY = tuple(Passage(f"p{number}", f"P {number}", f"text {number}") for number in range(30))


def turn_of(*searches: Search, position: int = -1) -> SearchTurn:
    """The last search, or another one, of a run whose searches are turns of their own unless they say otherwise."""
    made = run(*(replace(search, turn=search.turn or number) for number, search in enumerate(searches, start=1)))
    return SearchTurn(made, range(len(searches))[position], Query("orbo", QUESTION.question))


TURN = turn_of(search_of("orbo", ORBO))


# --- likelihoods


def test_llm_embedder_takes_the_greatest_change_and_the_lowest_ones_against_it() -> None:
    """Without a passage −2; with them −3, −1 and −2.5: changes of −1, 1 and −.5."""

    def decided(above: float, negatives: int) -> Labelled:
        settings = LlmEmbedderSettings(above=above, negatives=negatives)
        return LlmEmbedder(settings, LabelResources(Path(), bm25())).decide(TURN, CANDIDATES, [-2.0, -3.0, -1.0, -2.5])

    made = decided(0.0, 1)
    assert isinstance(made, LabelSet) and (made.positive, made.negatives) == ("mira", ("orbo",))
    assert [(item.passage.id, item.scores["change"], item.scores["logp"]) for item in made.candidates] == [
        ("mira", 1.0, -1.0),
        ("other", -0.5, -2.5),
        ("orbo", -1.0, -3.0),
    ]
    more = decided(0.0, 7)
    assert isinstance(more, LabelSet) and more.negatives == ("other", "orbo")
    for above in (1.0, 1.5):
        assert decided(above, 7) == DroppedTurn(TURN.id, "no-positive", "the greatest change is 1.000")


def test_scarlet_takes_what_costs_most_to_leave_out_and_the_lower_group_against_it() -> None:
    """With all −1; without each −3, −1 and −1.5: utilities of 2, 0 and .5."""

    def decided(above: float, *nats: float) -> Labelled:
        return Scarlet(ScarletSettings(above=above), LabelResources(Path(), bm25())).decide(TURN, CANDIDATES, nats)

    made = decided(1.0, -1.0, -3.0, -1.0, -1.5)
    assert isinstance(made, LabelSet) and (made.positive, made.negatives) == ("orbo", ("other", "mira"))
    assert [candidate.scores["utility"] for candidate in made.candidates] == [2.0, 0.5, 0.0]
    low = DroppedTurn(TURN.id, "no-positive", "the highest utility is 2.000")
    assert decided(2.0, -1.0, -3.0, -1.0, -1.5) == low
    same = DroppedTurn(TURN.id, "no-negatives", "all passages have the same utility")
    assert decided(0.0, -1.0, -2.0, -2.0, -2.0) == same


# --- negatives


def test_negatives_are_drawn_by_seed_and_copy_and_stand_in_the_pools_order() -> None:
    pool = [passage.id for passage in MANY]
    drawn = {(seed, copy): pick_negatives(TURN.id, pool, 5, seed, copy) for seed in (0, 1) for copy in (0, 1)}
    assert len(set(drawn.values())) == 4 and pick_negatives(TURN.id, pool, 5, 0) == drawn[0, 0]
    for chosen in drawn.values():
        assert len(chosen) == 5 and sorted(chosen, key=pool.index) == list(chosen)
    assert pick_negatives(TURN.id, pool, 30, 0) == tuple(pool)
    candidates = [Candidate(passage, rank) for rank, passage in enumerate((ORBO, MIRA, *MANY), start=1)]
    sets = list(label_sets(TURN, candidates, [ORBO, MIRA], pool, 5, 1))
    assert [(label.positive, label.copy, label.negatives) for label in sets] == [
        ("orbo", 0, drawn[1, 0]),
        ("mira", 1, drawn[1, 1]),
    ]


# --- gold passages


def gold_labels(
    folder: Path, turn: SearchTurn, *passages: Passage, missed: Sequence[Passage] = (), **settings: object
) -> list[LabelSet | DroppedTurn]:
    """The labels of a turn that finds these passages in a corpus of them and the `missed` ones."""
    own = GoldSettings.model_validate({"add_missing": bool(missed), "candidates": 40} | settings)
    fixed = FixedRetriever(Corpus([*passages, *missed]), {turn.query.text: [passage.id for passage in passages]})
    return list(gold.open(own, parts(folder, retriever=fixed)).label([turn]))


def test_a_gold_passage_is_seen_once_an_earlier_turn_has_shown_it() -> None:
    first, second = search_of("orbo", ORBO), search_of("mira", MIRA)
    assert unseen(turn_of(first, second)) == ["mira"]
    assert unseen(turn_of(first, second, position=0)) == ["orbo", "mira"]
    assert unseen(turn_of(replace(first, turn=1), replace(second, turn=1))) == ["orbo", "mira"]


def test_a_turn_without_a_gold_label_says_why(tmp_path: Path) -> None:
    done = turn_of(search_of("both", ORBO, MIRA), search_of("more", OTHER))
    assert gold_labels(tmp_path, done, OTHER) == [DroppedTurn(done.id, "all-shown")]
    bare = replace(TURN, trajectory=replace(TURN.trajectory, question=replace(QUESTION, gold_ids=())))
    assert gold_labels(tmp_path, bare, OTHER) == [DroppedTurn(bare.id, "no-gold")]
    assert gold_labels(tmp_path, TURN, OTHER) == [DroppedTurn(TURN.id, "not-found")]
    assert gold_labels(tmp_path, TURN, ORBO, MIRA) == [DroppedTurn(TURN.id, "no-negatives")]
    copied = replace(MIRA, id="a copy of mira")
    assert gold_labels(tmp_path, TURN, ORBO, MIRA, copied) == [DroppedTurn(TURN.id, "no-negatives")]


def test_gold_negatives_are_neither_gold_nor_copies_and_are_drawn_by_the_seed(tmp_path: Path) -> None:
    copied = replace(ORBO, id="a copy of orbo")
    pool = [passage.id for passage in MANY]
    for seed in (0, 5):
        (made,) = gold_labels(tmp_path, TURN, copied, *MANY[:20], MIRA, *MANY[20:], ORBO, negatives=6, seed=seed)
        assert isinstance(made, LabelSet) and made.positive == "mira"
        assert made.negatives == pick_negatives(TURN.id, pool, 6, seed)
        assert [candidate.passage.id for candidate in made.candidates[:3]] == ["mira", "a copy of orbo", "p0"]


def test_gold_passages_that_were_missed_follow_those_that_were_found_by_words_of_query_and_reasoning(
    tmp_path: Path,
) -> None:
    def positives(text: str, *passages: Passage, reasoning: str = "", every: bool = False) -> list[tuple[str, int]]:
        turn = replace(TURN, query=Query(text, QUESTION.question, reasoning))
        missed = [passage for passage in (ORBO, MIRA) if passage not in passages]
        sets = gold_labels(tmp_path, turn, *MANY[:3], *passages, missed=missed, every=every)
        ranks = {each.passage.id: each.rank for label in sets for each in label.candidates}  # type: ignore[union-attr]
        return [(label.positive, ranks[label.positive]) for label in sets if isinstance(label, LabelSet)]

    assert positives("it") == positives("a company") == [("orbo", 0)]
    assert positives("a person") == positives("it", reasoning="a person") == [("mira", 0)]
    assert positives("a person", every=True) == [("mira", 0), ("orbo", 0)]
    assert positives("a person", ORBO) == [("orbo", 4)]
    assert positives("a person", ORBO, every=True) == [("orbo", 4), ("mira", 0)]


# --- requirements


def test_what_agentic_r_and_dr_synth_need_follows_their_settings() -> None:
    def terms(method: str, **settings: object) -> MakerRequirements:
        return maker_module(method).terms(make_settings(maker_module(method).SETTINGS, settings))

    assert terms("agentic-r") == MakerRequirements(scorer=True, answers="gac=false")
    assert terms("agentic-r", gac=False) == MakerRequirements(scorer=True)
    assert terms("agentic-r", lr=False) == MakerRequirements(answers="gac=false")
    assert terms("dr-synth") == MakerRequirements(scorer=True, answers="reject=false", rolls_out=True)
    assert terms("dr-synth", reject=False) == MakerRequirements(scorer=True, rolls_out=True)
    assert terms("replug") == MakerRequirements(likelihood=True, targets=True)
    assert terms("llm-embedder") == terms("scarlet") == MakerRequirements(likelihood=True)


def test_a_corpus_that_is_not_at_hand_cannot_give_missing_passages(tmp_path: Path) -> None:
    made_of = parts(tmp_path, retriever=Away("nothing"))
    with pytest.raises(SettingError, match="corpus of the retriever 'bm25' is unknown"):
        gold.open(GoldSettings(), made_of)
    labels, report = make(tmp_path, gold.open(GoldSettings(add_missing=False), made_of), made_of)
    assert report.labelled == len(list(labels.sets())) > 0


@pytest.mark.medium
def test_labels_of_a_replaced_run_are_not_taken_for_its_own(tmp_path: Path) -> None:
    made_of, maker = parts(tmp_path), gold.open(GoldSettings(), parts(tmp_path))
    before, other = turns(), RandomRetriever(world().corpus, RandomSettings(seed=1))
    questions = [*{turn.question.id: turn.question for turn in before[:9]}.values()]
    remade = rollout(agent(), other, questions, list(range(len(questions))), LIMITS)
    new_turns = [turn for run in remade for turn in search_turns(run, protocol())]
    kept = [turn for turn in before if turn.question not in questions]
    folder, fresh = tmp_path / "labels", tmp_path / "fresh"
    labels, _ = make(folder, maker, made_of, before)
    old = {label.turn: label for label in labels.sets()}
    make(folder, maker, made_of, [*new_turns, *kept])
    make(fresh, maker, made_of, [*new_turns, *kept])
    for name in ("labels.jsonl", "dropped.jsonl"):
        assert (folder / name).read_bytes() == (fresh / name).read_bytes()
    assert any(old.get(label.turn, label) != label for label in LabelFolder(folder).sets())


# --- label folders: a lost text that is read as another, rows that are misread


PAGES = [Passage(f"p{n}", f"Page {n}", f"word{n} " * 100) for n in range(3)]
LABEL = LabelSet(
    TurnId("q", 0, 0), Question("q", "Who?", ("Ada",)), Query("who"),
    tuple(Candidate(page, rank) for rank, page in enumerate(PAGES, start=1)), "p0", ("p1", "p2"),
)  # fmt: skip


def made(folder: Path) -> LabelFolder:
    with LabelFolder.create(folder, {}, "by hand").appending() as append:
        append(LABEL)
    return LabelFolder(folder)


def test_a_text_that_was_lost_is_missed_and_nothing_takes_its_place(tmp_path: Path) -> None:
    labels = made(tmp_path)
    kept = labels.texts.path.read_text(encoding="utf-8").splitlines(keepends=True)
    labels.texts.path.write_text("".join(kept[:2]), encoding="utf-8")
    with pytest.raises(DataError, match=r"texts\.jsonl lacks the text [0-9a-f]{32}, which a row names"):
        list(LabelFolder(tmp_path).sets())
    with pytest.raises(DataError, match="lacks the text"):
        LabelFolder(tmp_path).arrange([LABEL.turn])
    assert labels.texts.path.read_text(encoding="utf-8") == "".join(kept[:2])


def test_rows_of_turns_that_the_runs_do_not_have_are_refused_before_anything_is_removed(tmp_path: Path) -> None:
    labels = made(tmp_path)
    labels.arrange([LABEL.turn])
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(DataError, match="which the runs do not have; choose another --out"):
        labels.recover({TurnId("another", 0, 0): ""})
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_rows_of_a_run_that_was_made_anew_and_searches_no_more_are_removed(tmp_path: Path) -> None:
    with LabelFolder.create(tmp_path, {}, "by hand").appending() as append:
        append(replace(LABEL, trajectory="of the run before"))
    labels = LabelFolder(tmp_path)
    with pytest.raises(DataError, match="which the runs do not have"):
        labels.recover({}, lambda: {("q", 1): "another"})
    with pytest.raises(DataError, match="which the runs do not have"):  # it exists, but is not labelled now
        labels.recover({}, lambda: {("q", 0): "of the run before"})
    assert labels.recover({}, lambda: {("q", 0): "the run was made again"}) == set() and not list(labels.sets())


def test_a_row_of_another_schema_is_refused_by_its_number(tmp_path: Path) -> None:
    labels = made(tmp_path)
    labels.sets_path.write_text(json.dumps({**LABEL.to_json(), "schema": 1}) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=f"schema 1; this coseek reads schema {SCHEMA}: label it again"):
        list(LabelFolder(tmp_path).sets())


# --- rows of labels


@pytest.mark.parametrize("targets", [None, (0.5, 0.25, 0.25)])
def test_a_row_reads_back_as_what_was_written(targets: tuple[float, ...] | None) -> None:
    for made in (LABEL, replace(LABEL, targets=targets, copy=2, trajectory="a digest")):
        row = json.loads(json.dumps(made.to_json()))
        assert LabelSet.from_json(row) == made and ("trajectory" in row) == bool(made.trajectory)
        assert row.get("targets") == (None if made.targets is None else list(made.targets))


def test_labels_are_kept_where_only_clocks_and_likelihoods_differ_and_by_nothing_else() -> None:
    made = run(search_of("orbo", ORBO))
    # The value in stored label folders: a change would recreate all their labels.
    assert trajectory_digest(made) == "beb3d1b72b281cbc97f94c4e08495ce2"
    first, *rest = made.segments
    (search,) = made.searches
    others: list[Trajectory] = [
        replace(made, question=replace(QUESTION, answers=("Zun",))),
        replace(made, segments=(replace(first, text="?"), *rest)),
        replace(made, segments=(replace(first, author=Author.AGENT, logprobs=(0.0,) * len(first.ids)), *rest)),
        replace(made, searches=(replace(search, hits=search_of("orbo", MIRA).hits),)),
        replace(made, searches=(Search("mira", search.hits, turn=1),)),
        replace(made, stop=StopReason.TURN_LIMIT),
        replace(made, answer="Zun"),
    ]
    assert len({trajectory_digest(trajectory) for trajectory in [made, *others]}) == 8
    unsure = [replace(segment, logprobs=tuple(-1.0 for _ in segment.logprobs)) for segment in made.segments]
    assert trajectory_digest(replace(made, segments=tuple(unsure))) == trajectory_digest(made)


@pytest.mark.parametrize(
    ("method", "view"), [("dr-synth", "reasoning+query@code"), ("agentic-r", "question+query"), ("mine.py", "query")]
)
def test_exported_queries_are_those_of_the_methods_own_retriever(method: str, view: str, tmp_path: Path) -> None:
    assert LabelFolder.create(tmp_path / "labels", {"method": method}, "").view == view


def test_rows_of_tevatron_name_the_turn_and_hold_positive_and_negatives_by_text(tmp_path: Path) -> None:
    pages = [{"docid": page.id, "title": page.title, "text": page.text} for page in PAGES]
    row = {"query_id": "q/0/0", "query": "who", "positive_passages": pages[:1], "negative_passages": pages[1:]}
    assert tevatron_row(LABEL, "query") == row
    assert write_tevatron(tmp_path / "rows.jsonl", [LABEL, replace(LABEL, copy=1)], "query") == 2
    written = (tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in written] == [row, row | {"query_id": "q/0/0/1"}]
    with pytest.raises(UnknownName):
        write_tevatron(tmp_path / "none.jsonl", [], "no such view")
    assert not (tmp_path / "none.jsonl").exists()
