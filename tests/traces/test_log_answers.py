"""The answer of a logged run, wherever the log has it: in its last act, beside its messages, or nowhere."""

from pathlib import Path

import pytest
from tests.traces.chats import imported
from tests.traces.test_log_forms import ASK, SAID, TOLD, called, message_of, only, text

from coseek.core.files import Json, JsonObject
from coseek.data.trajectory import StopReason


@pytest.mark.medium
@pytest.mark.parametrize(
    "acts",
    [
        *([{**SAID, "content": words}] for words in (
            "Thought: I know.\nAction: Finish[Tave]", "Finish[Tave]", "Action: finish\nAction Input: Tave",
            '```json\n{"action": "Final Answer", "action_input": "Tave"}\n```', '{"answer": "Tave", "sure": 0.9}',
            "It is the\n$\\boxed{Tave}$.", "So:\n**Final Answer:** Tave", "### Final Answer\n\nTave",
            "**Final Answer: Tave**", "Thought: I know.\nFinal Answer: Tave", "<think>Rhine? No.</think>Tave",
            "Rhine? No.</think>\n\nTave", "[THINK]x[/THINK] Tave", "No <answer>a</answer> <answer>Tave</answer>",
        )),
        [called('{"answer": "Tave"}', "final_answer")],
        [called({"answer": "Tave"}, "submit_answer"), {**TOLD, "content": "ok"}],
        [{**SAID, "content": "Finish[Tave]"}, {"role": "user", "content": "Observation: Episode finished"}],
        [SAID, {"role": "system", "content": "done"}],
    ],
)  # fmt: skip
def test_the_act_that_ends_a_run_is_its_answer_without_thoughts_and_marks(tmp_path: Path, acts: list[Json]) -> None:
    run, report = only(tmp_path, ASK, called({"query": "a"}), TOLD, *acts)
    assert (run.answer, run.stop, run.valid, len(run.searches)) == ("Tave", StopReason.ANSWERED, True, 1)
    assert report.counts == {"searches": 1, "calls_without_result": 0} and not run.calls


def test_a_question_after_such_an_act_is_the_one_that_is_answered(tmp_path: Path) -> None:
    act: JsonObject = {"role": "assistant", "content": "Finish[Tave]"}
    run, _ = only(
        tmp_path, ASK, act, {"role": "user", "content": "And which sea?"}, {**act, "content": "Finish[North]"}
    )
    assert (run.question.question, run.answer) == ("And which sea?", "North")


SERVED: JsonObject = {"choices": [{"message": SAID}, {"message": {**SAID, "content": "Rhine"}}]}


@pytest.mark.medium
@pytest.mark.parametrize(
    "beside",
    [
        *({name: "Tave"} for name in ("response", "output", "completion", "answer", "final_answer")),
        *({"response": value} for value in (SAID, SERVED, {"body": SERVED}, {"message": SAID}, [SAID])),
        {"choices": [{"text": "Tave"}]}, {"output": {"message": message_of("assistant", {"text": "Tave"})}},
        {"response": {"type": "message", **message_of("assistant", text("Tave"))}}, SERVED,
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["messages", "input", "request"])
def test_an_answer_beside_the_messages_is_not_lost(tmp_path: Path, name: str, beside: JsonObject) -> None:
    chat: list[Json] = [ASK, called({"query": "a"}), TOLD]
    logged: Json = {"messages": chat} if name == "request" else chat
    run, report = only(tmp_path, **{name: logged}, **beside)
    assert (run.answer, run.stop, len(run.searches)) == ("Tave", StopReason.ANSWERED, 1)
    assert sum(report.unread.values()) == 1 or name != "messages"  # a list of messages anywhere is one of its lists


def test_a_gold_answer_is_never_that_of_a_run_without_one_and_such_runs_are_counted(tmp_path: Path) -> None:
    row: JsonObject = {"messages": [ASK, called({"query": "a"}), TOLD], "answer": "Tave", "output": {"gold": "x"}}
    (run,), report = imported(tmp_path, [row], answers="answer")
    assert (run.answer, run.question.answers, report.counts["without_answer"]) == (None, ("Tave",), 1)


@pytest.mark.parametrize("content", [None, [{"type": "refusal", "refusal": "I cannot."}]])
def test_a_refusal_is_a_fault_as_that_of_a_live_agent(tmp_path: Path, content: Json) -> None:
    run, _ = only(tmp_path, ASK, {"role": "assistant", "content": content, "refusal": "I cannot."})
    assert run.fault == (StopReason.MODEL_ERROR, "the model refused: I cannot.") and run.answer is None
