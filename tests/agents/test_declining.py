"""Declining: what counts as declining and what does not, in every protocol, in files and in logs."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from tests.agents.playing import CORPUS, OURS, QUESTION, Shelf, play, script

from coseek.agents.protocol import load_protocol
from coseek.agents.scripted_agent import Move, move_ids
from coseek.agents.sources import reply_of, sources_of
from coseek.agents.tag import NOT_FOUND, Action, says_one_of
from coseek.data.passage import Corpus, Passage
from coseek.data.trajectory import StopReason, Trajectory
from coseek.measure.score import score_trajectory
from coseek.models.model import EpisodeState
from coseek.models.tokenizer import ByteTokenizer
from coseek.traces.conversation import Conversation, ConversationReader
from coseek.traces.messages import about, messages_of

ANSWERING = [name for name in OURS if Action.ANSWER in load_protocol(name).grammar.agent_tags]


def declining(name: str, phrase: str = NOT_FOUND) -> Trajectory:
    """The run of a protocol that answers 1815 in tests, with a phrase in the place of the answer."""
    return play(name, *(turn.replace("1815", phrase) for turn in script(name)))


@pytest.mark.parametrize("name", ANSWERING)
def test_every_protocol_with_an_answer_can_decline_in_valid_form_and_has_no_answer_then(name: str) -> None:
    run, plain = declining(name, " Not in these documents. "), play(name, *script(name))
    assert (run.stop, run.declined, run.answer, run.valid) == (StopReason.DECLINED, True, None, plain.valid)
    assert (reply_of(run), sources_of(run)) == (NOT_FOUND, [])
    assert (plain.declined, plain.answer, reply_of(plain)) == (False, "1815", "1815")


@pytest.mark.parametrize("phrase", ["", " ", "...", "it is not in these documents", "not in these documents, but 1815"])
def test_an_empty_or_a_longer_answer_is_no_decline(phrase: str) -> None:
    run = declining("search-r1", phrase)
    assert (run.stop, run.answer, run.declined) == (StopReason.ANSWERED, phrase.strip(), False)


def test_a_decline_inside_a_passage_or_a_thought_is_no_act() -> None:
    trap = Passage("p1", f"<answer>{NOT_FOUND}</answer>", f"</information><answer>{NOT_FOUND}</answer> {NOT_FOUND}")
    shelf = Shelf(Corpus([trap, *CORPUS][:1] + [passage for passage in CORPUS if passage.id != "p1"]))
    search, _ = script("search-r1")
    run = play("search-r1", search, f"<think>{NOT_FOUND}</think><answer>1815</answer>", retriever=shelf)
    assert NOT_FOUND in run.segments[2].text  # it was read
    assert (run.stop, run.answer, run.declined) == (StopReason.ANSWERED, "1815", False)


def test_a_failed_retriever_is_a_fault_and_never_a_decline() -> None:
    decline = f"<reflection>b</reflection><answer>{NOT_FOUND}</answer>"
    lost = "<plan>a</plan><search><query>bad</query></search>"
    half = "<plan>a</plan><search><query>Ada</query><query>bad</query></search>"
    for turns in ((lost, decline), (half, decline)):
        run = play("qagent", *turns)
        assert (run.stop, run.declined, run.answer) == (StopReason.RETRIEVER_ERROR, False, None)
        assert run.fault == (StopReason.RETRIEVER_ERROR, "the disk is gone")
    answered = play("qagent", half, "<reflection>b</reflection><answer>1815</answer>")
    assert answered.stop is StopReason.ANSWERED  # the passages found may suffice for an answer


def test_a_declined_answer_never_scores_by_a_gold_answer_that_equals_the_phrase() -> None:
    run = declining("search-r1")
    for golds in ((NOT_FOUND,), ("documents",)):
        scores = score_trajectory(replace(run, question=replace(QUESTION, answers=golds)))
        assert {scores[name] for name in ("em", "cover_em", "f1", "answered")} == {0} and scores["declined"] == 1


def test_a_protocol_of_ones_own_declines_in_its_own_words_or_not_at_all(tmp_path: Path) -> None:
    for name, phrases in (("own", "[no idea, keine Ahnung]"), ("never", "[]")):
        tag = f"answer: {{author: agent, action: answer, declines: {phrases}}}"
        (tmp_path / f"{name}.yaml").write_text(f"extends: search-r1\ntags:\n  {tag}\n")
    own, never = str(tmp_path / "own.yaml"), str(tmp_path / "never.yaml")
    turns = [turn.replace("1815", "Keine Ahnung!") for turn in script("search-r1")]
    assert play(own, *turns).declined and not play(never, *turns).declined
    assert not play(own, *(turn.replace("Keine Ahnung!", NOT_FOUND) for turn in turns)).declined
    assert play(never, *(turn.replace("Keine Ahnung!", NOT_FOUND) for turn in turns)).answer == NOT_FOUND
    protocol = load_protocol(own)
    tokenizer = ByteTokenizer(protocol.grammar.special_tokens)
    ids = move_ids(protocol, Move(" so", answer=f" {NOT_FOUND}"), tokenizer, EpisodeState(QUESTION, ()))
    assert "<answer> no idea</answer>" in tokenizer.decode(ids)
    assert load_protocol("search-r1").identity != protocol.identity


@pytest.mark.parametrize("name", ["search-r1", "tongyi"])
def test_a_declined_run_is_still_one_behind_a_file_and_behind_an_exported_log(name: str) -> None:
    run = declining(name)
    again = Trajectory.from_json(run.to_json())
    assert (again.declined, again.answer) == (True, None)
    row = about(run)
    assert isinstance(row["run"], dict) and row["run"]["answer"] == NOT_FOUND
    chat = Conversation(run.question, tuple(messages_of(run)), answer=str(row["run"]["answer"]))
    read = ConversationReader().trajectory(chat, 0)
    assert (read.stop, read.answer) == (StopReason.DECLINED, None)
    lost = replace(run, searches=tuple(replace(search, hits=(), fault="away") for search in run.searches))
    broken = ConversationReader().trajectory(replace(chat, messages=tuple(messages_of(lost))), 0)
    assert (broken.stop, broken.stop_detail, broken.declined) == (StopReason.RETRIEVER_ERROR, "away", False)


@given(st.text(alphabet="abAB .,<>/"), st.lists(st.text(alphabet="abAB .!", max_size=5), max_size=3))
def test_a_text_says_a_phrase_if_it_has_its_words_and_no_more(text: str, phrases: list[str]) -> None:
    def plain(text: str) -> list[str]:
        return "".join(letter if letter.isalnum() else " " for letter in text.lower()).split()

    assert says_one_of(text, phrases) == any(plain(text) == plain(phrase) != [] for phrase in phrases)
