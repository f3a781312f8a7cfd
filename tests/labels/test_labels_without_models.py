"""Fears about labels without a model: an unused passage as a positive, an answer in a negative."""

from dataclasses import replace
from pathlib import Path

from tests.labels.small import make, parts, runs, turns

from coseek.agents.search_turns import SearchTurn
from coseek.core.settings import make_settings
from coseek.data.answers import cover_match
from coseek.data.passage import Hit, Passage
from coseek.data.question import Question
from coseek.data.trajectory import Call, Search, Visit
from coseek.labels.label_set import Candidate, LabelSet
from coseek.labels.maker import maker_module
from coseek.labels.makers import answer_in_passage, opened_next
from coseek.labels.makers.opened_next import candidate_of, used
from coseek.labels.rule_maker import RuledTurn, RuleMaker, RuleSettings, shown_before
from coseek.retrieval.query import Query

FILM = Passage("film", "Night Train", "Night Train was directed by Ada Byron.")
SEA = Passage("sea", "Night sea", "A sea at night, with a train of waves.")
ADA = Passage("ada", "Ada Byron", "Ada Byron was born in Orn.")
OTHER = Passage("other", "Orn", "Orn is a town.")


def run_of(*searches: Search, visits: tuple[Visit, ...] = (), answer: str | None = None) -> list[SearchTurn]:
    """The turns of a run with these searches."""
    question = Question("q", "Where was the director of Night Train born?", ("Orn",))
    made = replace(runs()[0], question=question, searches=searches, visits=visits, answer=answer, selected_ids=())
    return [SearchTurn(made, number, Query(search.query, question.question)) for number, search in enumerate(searches)]


def search_of(query: str, turn: int, *passages: Passage, selected: tuple[str, ...] | None = None) -> Search:
    return Search(query, tuple(Hit(passage, 1.0) for passage in passages), turn=turn, selected=selected)


def ids(passages: list[Passage]) -> list[str]:
    return [passage.id for passage in passages]


def test_a_passage_is_used_if_the_next_query_has_words_that_only_it_can_have_given() -> None:
    first, last = run_of(
        search_of("Night Train", 1, SEA, FILM), search_of("Ada Byron born", 2, OTHER, ADA), answer="Orn"
    )
    assert ids(used(first, "query")) == ["film"] and not used(last, "query")
    assert ids(used(last, "answer")) == ["other", "ada"] and not used(first, "answer")
    (alone,) = run_of(search_of("Night Train", 1, SEA, FILM), answer="no")
    assert not used(alone, "answer") and not used(alone, "query")


def test_words_of_the_question_and_of_every_passage_show_no_use() -> None:
    first, _ = run_of(search_of("Night Train", 1, FILM, ADA), search_of("director born Ada Byron", 2, ADA))
    assert not used(first, "query")  # both passages hold the new words


def test_of_a_turns_searches_at_once_none_is_the_next_and_the_next_turns_are_it_together() -> None:
    searches = (
        search_of("Train", 1, SEA, FILM),
        search_of("Night", 1, FILM, SEA),
        search_of("Ada Orn", 2, ADA),
        search_of("sea", 2, OTHER),
    )
    left, right, last, *_ = run_of(*searches, search_of("Byron waves", 3, ADA), answer="Orn")
    # `Ada`, `Orn` and `sea` are new: of FILM the first, of SEA the last; the later `Byron` and `waves` show nothing.
    assert ids(used(left, "query")) == ["sea", "film"] and ids(used(right, "query")) == ["film", "sea"]
    assert ids(used(last, "query")) == ["ada"]
    many, _ = run_of(search_of("Night Train", 1, SEA, FILM, OTHER), search_of("Byron Ada sea", 2, OTHER))
    assert ids(used(many, "query")) == ["film", "sea"]  # more new words come first
    (only, _) = run_of(search_of("Night Train", 1, FILM), search_of("Ada", 2, OTHER))
    assert ids(used(only, "query")) == ["film"]  # a single passage counts, though all passages have the word
    _, again, _ = run_of(search_of("a", 1), search_of("waves", 2, SEA, OTHER), search_of("waves", 3), answer="Orn")
    assert not used(again, "query") and not used(again, "answer")  # it repeated the query and continued


def test_what_earlier_turns_searched_or_visited_was_shown_and_what_this_one_did_was_not() -> None:
    searches = search_of("a", 1, SEA), search_of("b", 2, FILM), search_of("c", 2, ADA)
    visits = (Visit(1, "other", (OTHER,)), Visit(2, "late", (replace(OTHER, id="late"),)))
    _, second, third = run_of(*searches, visits=visits)
    assert [*shown_before(second)] == [*shown_before(third)] == ["sea", "other"]


def test_a_passage_that_holds_an_answer_says_why_it_is_no_label() -> None:
    first, second = run_of(search_of("town", 1, OTHER), search_of("Orn", 2, OTHER))
    held = (Candidate(FILM, 1), Candidate(OTHER, 2))
    ruled = answer_in_passage.judge(first, held)
    assert ruled == RuledTurn([held[1]], [OTHER])
    assert answer_in_passage.judge(second, held) == "all-shown"
    assert answer_in_passage.judge(first, held[:1]) == "not-found"
    logged = replace(second.trajectory.searches[0], hits=(Hit(replace(OTHER, id="0f3a"), 1.0),))
    run = replace(second.trajectory, searches=(logged, second.trajectory.searches[1]))
    assert answer_in_passage.judge(replace(second, trajectory=run), held) == "all-shown"  # in a log without ids
    assert candidate_of(replace(OTHER, id="elsewhere"), held) is held[1]
    assert candidate_of(ADA, held) == Candidate(ADA, 0)


def test_a_visit_counts_for_the_last_search_before_it_that_found_the_passage() -> None:
    searches = search_of("a", 1, SEA, FILM), search_of("b", 2, FILM, ADA), search_of("c", 5, FILM)
    opened = (3, FILM), (4, ADA), (4, SEA), (5, FILM), (6, OTHER)
    made = run_of(*searches, visits=tuple(Visit(turn, passage.id, (passage,)) for turn, passage in opened))
    assert [ids(used(turn, "opened")) for turn in made] == [["sea"], ["film", "ada"], []]


def test_a_page_that_a_tool_of_a_log_fetched_was_opened() -> None:
    page = replace(SEA, meta={"url": "https://x.org/sea"})
    (first,) = run_of(search_of("a", 1, page, FILM))
    calls = Call(2, "fetch", {"urls": ["https://x.org/sea"]}, "A sea."), Call(3, "fetch", {"id": "film"}, "", "timeout")
    (first,) = [replace(first, trajectory=replace(first.trajectory, calls=calls))]
    assert ids(used(first, "opened")) == ["sea"]


def test_function_words_show_no_use() -> None:
    first, _ = run_of(search_of("Night Train", 1, SEA, OTHER), search_of("is it with Ada", 2, ADA))
    assert not used(first, "query")


def test_a_part_of_a_used_result_is_no_negative(tmp_path: Path) -> None:
    text = "Night Train is a film of 1936 that was directed by Ada Byron."
    blob = Passage("blob", "", f"[1] Night Train\n{text}\n\n[3] Orn\nOrn is a town on the Tave.")
    candidates = (Candidate(Passage("film", "Night Train", text), 1), Candidate(OTHER, 2))
    (turn,) = run_of(search_of("Night Train", 1, blob))
    maker = RuleMaker("x", RuleSettings(), parts(tmp_path), lambda *_: RuledTurn([Candidate(blob, 0)], []))
    (label,) = maker._labels(turn, candidates)
    assert isinstance(label, LabelSet) and label.negatives == ("other",)


def test_the_first_kind_of_use_that_there_is_gives_the_positives_and_no_used_passage_is_a_negative() -> None:
    first, _ = run_of(search_of("Night Train", 1, SEA, FILM, OTHER, selected=("sea",)), search_of("Ada Byron", 2, ADA))
    ruled = opened_next.judge(("opened", "selected", "query", "answer"), first, ())
    assert not isinstance(ruled, str)
    assert ([good.passage.id for good in ruled.positives], ids([*ruled.not_negative])) == (["sea"], ["sea", "film"])
    assert opened_next.judge(("opened",), first, ()) == "not-used"
    copies = SEA, replace(SEA, id="copy")
    twice, _ = run_of(search_of("Night Train", 1, *copies, selected=("sea", "copy")), search_of("Ada", 2))
    ruled = opened_next.judge(("selected",), twice, (Candidate(SEA, 1), Candidate(FILM, 2)))
    assert not isinstance(ruled, str) and [good.passage.id for good in ruled.positives] == ["sea"]


def sets_of(folder: Path, method: str, **settings: object) -> tuple[list[LabelSet], dict[str, int]]:
    made_of, module = parts(folder), maker_module(method)
    labels, report = make(folder, module.open(make_settings(module.SETTINGS, settings), made_of), made_of)
    assert report.left == 0
    return list(labels.sets()), dict(report.dropped)


def test_positives_hold_an_answer_that_no_earlier_turn_had_shown_and_negatives_hold_none(tmp_path: Path) -> None:
    sets, dropped = sets_of(tmp_path, "answer-in-passage")
    by_turn = {turn.id: turn for turn in turns()}
    for label in sets:
        earlier = by_turn[label.turn].trajectory.searches[: label.turn.search]
        assert cover_match(label.passage(label.positive).contents, label.question.answers)
        assert label.positive not in {hit.passage.id for search in earlier for hit in search.hits}
        assert not any(cover_match(label.passage(ident).contents, label.question.answers) for ident in label.negatives)
    assert len(sets) > 15 and dropped["no-answer"] > 0  # yes and no


def test_what_an_agent_used_is_nearly_always_what_it_needed(tmp_path: Path) -> None:
    sets, _ = sets_of(tmp_path, "opened-next", every=True)
    first = [label for label in sets if label.copy == 0]
    assert len(first) > 30
    assert sum(label.positive in label.question.gold_ids for label in first) > 0.9 * len(first)
    assert max(label.copy for label in sets) > 0
