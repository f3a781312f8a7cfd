"""Where a paper and its published program differ: each difference by the example that showed it."""

import pytest
from tests.agents.playing import QUESTION, WIDE, Shelf, play

from coseek.agents.protocol import load_protocol
from coseek.agents.sources import served_context
from coseek.data.passage import Corpus, Passage
from coseek.data.trajectory import StopReason
from coseek.models.tokenizer import ByteTokenizer, StopStrings, stopped_after

FOUR = [Passage(f"d{number}", f"T{number}", f"text {number}") for number in range(1, 9)]
DONE = "<search_complete>True</search_complete>"


def shelf() -> Shelf:
    every = [passage.id for passage in FOUR]
    return Shelf(Corpus(FOUR), {QUESTION.question: every, "Ada": every[::-1]})


def served(name: str, text: str) -> list[str]:
    return [passage.id for passage in served_context(play(name, text, retriever=shelf(), limits=WIDE))]


# --- asking again


@pytest.mark.parametrize("turn", ["<think>I do not know</think>", "<think>a</think><search>  </search>"])
def test_a_turn_without_an_action_ends_the_paper_s_search_r1_and_is_asked_again_in_its_program_s(turn: str) -> None:
    answer = "<think>b</think><answer>1815</answer>"
    paper, code = play("search-r1", turn, answer), play("search-r1-code", turn, answer)
    assert (paper.stop, code.stop) == (StopReason.INVALID, StopReason.ANSWERED)
    assert [segment.tag for segment in code.segments if segment.author == "environment"] == ["prompt", "retry"]


@pytest.mark.parametrize("turn", ["I wonder", '<search_complete>False</search_complete><query>{"query": ""}</query>'])
def test_an_empty_query_ends_the_paper_s_s3_and_is_asked_again_by_its_program(turn: str) -> None:
    paper, code = play("s3", turn, DONE), play("s3-code", turn, DONE)
    assert (paper.stop, code.stop) == (StopReason.INVALID, StopReason.COMPLETE)


# --- flags


def halted(name: str, text: str) -> str:
    """What a sampler keeps of a text that would go on."""
    stops, tokenizer = load_protocol(name).grammar.stops, ByteTokenizer()
    ids = tokenizer.encode(text)
    length = stopped_after(ids, stops, tokenizer)
    stepwise = StopStrings(stops, tokenizer, tokenizer.size)
    first = next((count for count in range(1, len(ids) + 1) if stepwise.completed(ids[:count])), None)
    assert first == length
    return tokenizer.decode(ids[:length])


@pytest.mark.parametrize("name", ["s3", "s3-think", "s3-code"])
@pytest.mark.parametrize("flag", ["True\n", "true", "\ntrue\n", "1", " True ", "TRUE"])
def test_a_true_flag_on_a_line_of_its_own_halts_the_sampler(name: str, flag: str) -> None:
    text = f"<search_complete>{flag}</search_complete>"
    assert halted(name, f"{text} and on<query>") == text
    assert play(name, f"<think>a</think>{text}" if name == "s3-think" else text).stop is StopReason.COMPLETE


@pytest.mark.parametrize("name", ["s3", "s3-code"])
@pytest.mark.parametrize("flag", ["step 1", "it is True", "False", "not 1"])
def test_a_sentence_that_ends_in_1_is_no_true_flag(name: str, flag: str) -> None:
    text = f"<search_complete>{flag}</search_complete>"
    whole = f'{text}<query>{{"query": "Ada"}}</query>'
    assert halted(name, f"{whole} and on") == whole
    run = play(name, whole, DONE)
    assert len(run.searches) == 2 and run.stop is StopReason.COMPLETE


def test_the_program_also_takes_yes_for_true() -> None:
    flag = "<search_complete>Yes</search_complete>"
    assert play("s3-code", flag).stop is StopReason.COMPLETE
    assert play("s3", flag).stop is StopReason.INVALID


# --- selections


@pytest.mark.parametrize("name", ["s3", "s3-code"])
def test_a_selection_that_is_no_list_serves_the_documents_it_names_and_not_everything(name: str) -> None:
    assert served(name, f"<important_info>[Doc 1, Doc 3]</important_info>{DONE}") == ["d1", "d3"]
    assert served(name, f"<important_info>none of them</important_info>{DONE}") == []
    assert len(served(name, DONE)) == 3  # only a missing tag serves all that were found
    assert not play(name, f"<important_info>[Doc 1, Doc 3]</important_info>{DONE}").valid


def test_of_two_selections_the_program_takes_the_first_and_the_paper_s_agent_may_correct_itself() -> None:
    twice = f"<important_info>[1]</important_info><important_info>[2]</important_info>{DONE}"
    assert served("s3", twice) == ["d2"]
    assert served("s3-code", twice) == ["d1"]


def test_the_paper_selects_at_most_three() -> None:
    wide = WIDE.model_copy(update={"passages_per_search": 8})
    text = f"<important_info>[1, 2, 3, 4, 5]</important_info>{DONE}"
    found = {name: play(name, text, retriever=shelf(), limits=wide) for name in ("s3", "s3-code")}
    assert [len(served_context(run)) for run in found.values()] == [3, 5]
