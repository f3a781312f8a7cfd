"""Fears about gold labels: a passage that an earlier turn had shown, a gold passage as a negative, a rank made up."""

from pathlib import Path

import pytest
from tests.labels.small import LIMITS, Away, agent, bm25, make, parts, protocol, turns, world

from coseek.agents.drivers import rollout
from coseek.agents.search_turns import SearchTurn, search_turns
from coseek.core.errors import SettingError
from coseek.data.passage import Passage
from coseek.labels.label_folder import LabelFolder
from coseek.labels.label_set import LabelSet
from coseek.labels.makers import gold
from coseek.labels.makers.gold import GoldSettings
from coseek.retrieval.lexical.analyzer import words
from coseek.retrieval.retrievers.random import RandomRetriever, RandomSettings


def sets_of(folder: Path, **settings: object) -> tuple[list[LabelSet], dict[str, int]]:
    made_of = parts(folder)
    labels, said = make(folder, gold.open(GoldSettings.model_validate(settings), made_of), made_of)
    assert said.left == 0
    return list(labels.sets()), dict(said.dropped)


def still_open(turn: SearchTurn) -> list[str]:
    shown = {hit.passage.id for search in turn.trajectory.searches[: turn.search] for hit in search.hits}
    return [ident for ident in turn.question.gold_ids if ident not in shown]


def matches(turn: SearchTurn, passage: Passage) -> int:
    asked = set(words(f"{turn.query.text} {turn.query.reasoning}"))
    return len(asked & set(words(f"{passage.title} {passage.text}")))


def test_the_positive_is_the_open_gold_passage_that_the_retriever_has_highest_or_else_that_shares_most_words(
    tmp_path: Path,
) -> None:
    sets, dropped = sets_of(tmp_path)
    by_turn = {turn.id: turn for turn in turns()}
    put_in = 0
    for one in sets:
        turn = by_turn[one.turn]
        found = [hit.passage.id for hit in bm25().search([turn.query], 20)[0]]
        wanted = still_open(turn)
        best = next((ident for ident in found if ident in wanted), None)
        if best is None:
            best = max(wanted, key=lambda ident: matches(turn, world().corpus.by_id(ident)))
            put_in += 1
        assert one.positive == best == one.candidates[0].passage.id
        assert one.candidates[0].rank == (found.index(best) + 1 if best in found else 0)
        assert not set(one.negatives) & set(one.question.gold_ids) and set(one.negatives) <= set(found)
        assert len(one.negatives) == min(15, len(set(found) - set(one.question.gold_ids)))
    assert len(sets) > 20 and put_in > 0
    assert len(sets) + sum(dropped.values()) == len(turns())


def test_every_open_gold_passage_can_have_a_set_of_its_own(tmp_path: Path) -> None:
    sets, _ = sets_of(tmp_path, every=True)
    by_turn = {turn.id: turn for turn in turns()}
    positives: dict[object, list[str]] = {}
    for one in sets:
        positives.setdefault(one.turn, []).append(one.positive)
        assert one.copy == len(positives[one.turn]) - 1
    assert all(sorted(found) == sorted(still_open(by_turn[turn])) for turn, found in positives.items())  # type: ignore[index]
    assert max(map(len, positives.values())) > 1


def test_a_corpus_that_is_not_at_hand_cannot_give_missing_passages(tmp_path: Path) -> None:
    made_of = parts(tmp_path, retriever=Away("nothing"))
    with pytest.raises(SettingError, match="corpus of the retriever 'bm25' is unknown"):
        gold.open(GoldSettings(), made_of)
    labels, said = make(tmp_path, gold.open(GoldSettings(add_missing=False), made_of), made_of)
    assert said.labelled == len(list(labels.sets())) > 0


def test_labels_of_a_run_that_was_made_anew_are_not_taken_for_its_own(tmp_path: Path) -> None:
    made_of, maker = parts(tmp_path), gold.open(GoldSettings(), parts(tmp_path))
    before, other = turns(), RandomRetriever(world().corpus, RandomSettings(seed=1))
    asked = [*{turn.question.id: turn.question for turn in before[:9]}.values()]
    remade = rollout(agent(), other, asked, list(range(len(asked))), LIMITS)
    anew = [turn for run in remade for turn in search_turns(run, protocol())]
    kept = [turn for turn in before if turn.question not in asked]
    folder, fresh = tmp_path / "labels", tmp_path / "fresh"
    labels, _ = make(folder, maker, made_of, before)
    old = {one.turn: one for one in labels.sets()}
    make(folder, maker, made_of, [*anew, *kept])
    make(fresh, maker, made_of, [*anew, *kept])
    for name in ("labels.jsonl", "dropped.jsonl"):
        assert (folder / name).read_bytes() == (fresh / name).read_bytes()
    assert any(old.get(one.turn, one) != one for one in LabelFolder(folder).sets())
