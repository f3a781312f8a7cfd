"""Records of logs: of several lists, fields and lines, which are one conversation and which are others."""

import json
from pathlib import Path

import pytest
from tests.traces.chats import imported
from tests.traces.test_log_forms import ASK, FOUND, SAID, TOLD, Q, called, only

from coseek.core.files import Json, JsonObject
from coseek.data.trajectory import StopReason

CUT: list[Json] = [called({"query": "a"}), TOLD]
ROLLOUT = f"<search>a</search><information>{FOUND}</information><answer>Tave</answer>"
OTHER: list[Json] = [{**ASK, "content": "Which sea?"}, {**SAID, "content": "North"}]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("row", "answer", "unread"),
    [
        ({"prompt": [ASK], "completion": CUT, "answer": "Rhine"}, None, 0),
        ({"input": json.dumps([ASK]), "output": json.dumps(CUT)}, None, 0),
        ({"messages": [ASK, *CUT], "output": {"choices": [{"message": CUT[0]}]}}, None, 0),
        ({"inputs": {"messages": [ASK, *CUT]}, "outputs": {"messages": [
            {"type": "human", "content": ASK["content"], "id": "x"}, *CUT, {"type": "ai", "content": "Tave"},
        ]}}, "Tave", 0),
        ({"prompt": [ASK], "chosen": [*CUT, SAID], "rejected": OTHER[1:]}, "Tave", 1),
        ({"attempt_1": [ASK, *CUT, SAID], "attempt_2": [ASK, OTHER[1]]}, "Tave", 1),
        ({"main": {"messages": [ASK, *CUT, SAID]}, "sub": {"messages": OTHER}}, "Tave", 1),
        ({"messages": [ASK, *CUT], "answer": "Tave", "golden_answers": ["Tave", "the Tave"]}, None, 1),
        ({"messages": [ASK, *CUT], "answer": "Rhine", "golden_answers": ["Tave"]}, "Rhine", 1),
        ({"question": ASK["content"], "response": ROLLOUT}, "Tave", 0),
        ({"events": [
            {"event": "on_chain_start", "data": {"input": {"messages": [ASK, *CUT]}}},
            {"event": "on_chat_model_end", "data": {"output": [SAID]}},
        ]}, "Tave", 0),
    ],
)  # fmt: skip
def test_a_record_with_several_lists_or_fields_is_one_run_read_once(
    tmp_path: Path, row: JsonObject, answer: str | None, unread: int
) -> None:
    run, report = only(tmp_path, **row)
    assert (run.question.question, run.answer, len(run.searches)) == (ASK["content"], answer, 1)
    assert sum(report.unread.values()) == unread


def test_gold_answers_in_a_text_are_several_and_errors_of_records_are_not_passed_over(tmp_path: Path) -> None:
    chat: list[Json] = [ASK, *CUT, SAID]
    rows: list[JsonObject] = [
        {"messages": chat, "answers": "['Tave', \"the Tave\"]", "gold_ids": '["1", "2"]'},
        {"messages": chat, "answers": '["Tave", "the Tave"]', "error": "timeout"},
        {"id": "x", "epoch": 1, "messages": chat, "error": {"message": "timeout", "traceback": ""}},
    ]
    (first, second, failed), report = imported(tmp_path, rows)
    assert first.question.answers == second.question.answers == ("Tave", "the Tave")
    assert first.question.gold_ids == ("1", "2") and second.answer == "Tave" and sum(report.unread.values()) == 1
    assert failed.fault == (StopReason.MODEL_ERROR, "timeout")


def test_a_log_of_calls_with_their_growing_history_is_one_run_of_each_conversation(tmp_path: Path) -> None:
    whole: list[Json] = [ASK, *CUT, SAID]
    calls: list[JsonObject] = [
        {"request": {"messages": whole[:at]}, "response": {"message": whole[at]}} for at in (1, 3)
    ]
    rows: list[JsonObject] = [
        calls[0],
        {"messages": OTHER},
        calls[1],
        {"messages": [ASK, SAID]},
        {"messages": [ASK, SAID]},
    ]
    runs, report = imported(tmp_path, rows)
    assert [(run.question.question, len(run.searches)) for run in runs] == [
        ("Which sea?", 0), (Q, 1), (Q, 0), (Q, 0),
    ]  # fmt: skip
    assert [count for name, count in report.unread.items() if "shorter" in name] == [1]


def test_one_question_has_one_set_of_gold_answers(tmp_path: Path) -> None:
    rows: list[JsonObject] = [{"id": 1, "messages": [ASK, SAID], "answers": [gold]} for gold in ("Tave", "Rhine")]
    _, report = imported(tmp_path, [*rows, rows[0]])
    assert report.imported == 2 and "of another set of gold answers; name another field" in report.left_out[0].reason


@pytest.mark.parametrize(("name", "is_search"), [("ConductResearch", False), ("ReSearch_web_search", True)])
def test_a_research_agent_is_no_search(tmp_path: Path, name: str, is_search: bool) -> None:
    run, _ = only(tmp_path, ASK, called({"query": "a"}, name), TOLD, SAID)
    assert bool(run.searches) is is_search
