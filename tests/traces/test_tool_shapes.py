"""Logs of many programs and models: a search is one search with its passage, however call and result are written."""

import json
from pathlib import Path

import pytest
from tests.traces.chats import imported
from tests.traces.test_log_forms import ASK, FOUND, PAGES, SAID, only

from coseek.core.files import Json, JsonObject
from coseek.data.trajectory import StopReason
from coseek.traces.importing import import_traces

Q, A = str(ASK["content"]), "Tave"
ARGS: JsonObject = {"query": "Orlen river"}
TYPED = json.dumps(ARGS)
ORIGIN: JsonObject = {"tool_name": "search", "arguments": ARGS, "id": "c"}
OPENAI: JsonObject = {"id": "c", "type": "function", "function": {"name": "web_search", "arguments": ARGS}}
KWARGS: JsonObject = {"tool_name": "search", "tool_kwargs": ARGS, "tool_id": "c"}
HUMAN: JsonObject = {"type": "human", "content": Q}
AI: JsonObject = {"type": "ai", "content": A}
AI_CALL: JsonObject = {"type": "ai", "content": "", "tool_calls": [{"name": "search", "args": ARGS, "id": "c"}]}
TOOL: JsonObject = {"type": "tool", "content": FOUND, "tool_call_id": "c"}


def said(role: str, *parts: Json, under: str = "content") -> JsonObject:
    return {"role": role, under: [*parts]}


def dumped(name: str, value: JsonObject) -> JsonObject:
    return {"__is_pydantic": True, "value": value, "qualified_name": f"llama_index.core.agent.workflow.{name}"}


FORMS: dict[str, Json] = {
    "bedrock": [
        said("user", {"text": Q}),
        said("assistant", {"text": "I look."}, {"toolUse": {"toolUseId": "c", "name": "search", "input": ARGS}}),
        said(
            "user", {"toolResult": {"toolUseId": "c", "content": [{"json": {"results": PAGES}}], "status": "success"}}
        ),
        said("assistant", {"text": A}),
    ],
    "haystack": [
        {"_role": "user", "_content": [{"text": Q}], "_meta": {}},
        {"_role": "assistant", "_content": [{"tool_call": ORIGIN}], "_meta": {}},
        {"_role": "tool", "_content": [{"tool_call_result": {"result": FOUND, "origin": ORIGIN, "error": False}}]},
        {"_role": "assistant", "_content": [{"text": A}], "_meta": {}},
    ],
    "haystack, by attributes": [
        {"role": "user", "text": Q},
        {"role": "assistant", "text": None, "tool_calls": [{**ORIGIN, "id": None}]},
        {"role": "tool", "tool_call_results": [{"result": FOUND, "origin": {**ORIGIN, "id": None}, "error": False}]},
        {"role": "assistant", "text": A},
    ],
    "ai sdk 4": [
        ASK,
        {
            "role": "assistant",
            "content": A,
            "toolInvocations": [
                {"state": "result", "toolCallId": "c", "toolName": "search", "args": ARGS, "result": PAGES}
            ],
        },
    ],
    "ai sdk 5": [
        said("user", {"type": "text", "text": Q}, under="parts"),
        said(
            "assistant",
            {"type": "step-start"},
            {"type": "tool-search", "toolCallId": "c", "state": "output-available", "input": ARGS, "output": PAGES},
            {"type": "text", "text": A},
            under="parts",
        ),
    ],
    "ai sdk, messages of the model": [
        ASK,
        said("assistant", {"type": "tool-call", "toolCallId": "c", "toolName": "search", "input": ARGS}),
        said("tool", {"type": "tool-result", "toolCallId": "c", "output": {"type": "json", "value": PAGES}}),
        SAID,
    ],
    "langchain, to dict": [
        {"type": "human", "data": HUMAN},
        {
            "type": "ai",
            "data": {**AI_CALL, "content": [{"type": "tool_use", "id": "c", "name": "search", "input": ARGS}]},
        },
        {"type": "tool", "data": TOOL},
        {"type": "ai", "data": AI},
    ],
    "langgraph, updates": [
        {"agent": {"messages": [HUMAN]}},
        {"agent": {"messages": [AI_CALL]}},
        {"tools": {"messages": [TOOL]}},
        {"agent": {"messages": [AI]}},
    ],
    "langgraph, events": [
        {"event": "on_chain_start", "data": {"input": {"messages": [HUMAN]}}},
        {"event": "on_tool_end", "name": "search", "data": {"input": ARGS, "output": TOOL}},
        {"event": "on_chat_model_end", "data": {"output": AI}},
    ],
    "gemini": [
        said("user", {"text": Q}, under="parts"),
        said("model", {"text": None, "function_call": {"name": "search", "args": ARGS}}, under="parts"),
        said("user", {"functionResponse": {"name": "search", "response": {"result": FOUND}}}, under="parts"),
        said("model", {"text": A}, under="parts"),
    ],
    "smolagents, steps": [
        {"task": Q, "task_images": None},
        {"step_number": 1, "tool_calls": [OPENAI], "observations": FOUND, "model_output": "", "error": None},
        {"output": A},
    ],
    "smolagents, messages": [
        ASK,
        said("tool-call", {"type": "text", "text": f"Calling tools:\n{[OPENAI]}"}),
        said("tool-response", {"type": "text", "text": f"Call id: c\nObservation:\n{FOUND}"}),
        SAID,
    ],
    "llamaindex, events": [
        dumped("AgentInput", {"input": [said("user", {"block_type": "text", "text": Q}, under="blocks")]}),
        dumped("ToolCall", KWARGS),
        dumped(
            "ToolCallResult", {**KWARGS, "tool_output": {"content": FOUND, "tool_name": "search", "is_error": False}}
        ),
        dumped("AgentOutput", {"response": said("assistant", {"block_type": "text", "text": A}, under="blocks")}),
    ],
    "autogen": [
        {"source": "user", "type": "TextMessage", "content": Q},
        {"source": "a", "type": "ToolCallRequestEvent", "content": [{"id": "c", "name": "search", "arguments": TYPED}]},
        {
            "source": "a",
            "type": "ToolCallExecutionEvent",
            "content": [{"call_id": "c", "content": FOUND, "is_error": False}],
        },
        {"source": "a", "type": "TextMessage", "content": A},
    ],
    "pydantic ai": [
        {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": Q}]},
        {"kind": "response", "parts": [{"part_kind": "tool-call", "tool_name": "search", "args": ARGS}]},
        {"kind": "request", "parts": [{"part_kind": "tool-return", "tool_name": "search", "content": FOUND}]},
        {"kind": "response", "parts": [{"part_kind": "text", "content": A}]},
    ],
    "mcp of responses": [
        ASK,
        {"type": "mcp_call", "id": "c", "name": "search", "arguments": TYPED, "output": FOUND},
        SAID,
    ],
}


@pytest.mark.parametrize("name", FORMS)
def test_a_call_and_its_result_are_found_in_the_log_of_any_program(tmp_path: Path, name: str) -> None:
    run, report = only(tmp_path, trace={"items": FORMS[name]})
    assert [(one.query, [hit.passage.text for hit in one.hits]) for one in run.searches] == [
        ("Orlen river", ["Orlen lies on the Tave."])
    ]
    assert (run.question.question, run.answer, run.stop, report.unread) == (Q, A, StopReason.ANSWERED, {})
    assert report.counts == {"searches": 1, "calls_without_result": 0}


def test_a_program_that_uses_the_ids_of_calls_again_loses_none(tmp_path: Path) -> None:
    found: JsonObject = {"toolUseId": "c", "content": [{"json": {"results": PAGES}}]}
    turn: list[Json] = [
        said("assistant", {"toolUse": {"toolUseId": "c", "name": "search", "input": ARGS}}),
        said("user", {"toolResult": found}),
    ]
    run, report = only(tmp_path, ASK, *turn, *turn, SAID)
    assert [search.turn for search in run.searches] == [1, 2] and report.counts["calls_without_result"] == 0


TEXTS = [
    f"<|tool_calls_section_begin|><|tool_call_begin|>functions.search:0<|tool_call_argument_begin|>{TYPED}"
    "<|tool_call_end|><|tool_calls_section_end|>",
    '<minimax:tool_call>\n<invoke name="search">\n<parameter name="query">Orlen river</parameter>\n</invoke>\n'
    "</minimax:tool_call>",
    "<\uff5ctool\u2581calls\u2581begin\uff5c><\uff5ctool\u2581call\u2581begin\uff5c>function<\uff5ctool\u2581sep\uff5c>search"
    f"\n```json\n{TYPED}\n```<\uff5ctool\u2581call\u2581end\uff5c><\uff5ctool\u2581calls\u2581end\uff5c>",
    '<\uff5cDSML\uff5cfunction_calls><\uff5cDSML\uff5cinvoke name="search"><\uff5cDSML\uff5cparameter name="query" '
    'string="true">Orlen river</\uff5cDSML\uff5cparameter></\uff5cDSML\uff5cinvoke></\uff5cDSML\uff5cfunction_calls>',
    f'I look. [TOOL_CALLS] [{{"name": "search", "arguments": {TYPED}, "id": "abc123def"}}]',
    f"[TOOL_CALLS]search[CALL_ID]abc123def[ARGS]{TYPED}",
    '<|python_tag|>search.call(query="Orlen river")',
    f'<|python_tag|>{{"name": "search", "parameters": {TYPED}}}',
    f"<function=search>{TYPED}</function>",
    "<tool_call>\n<function=search>\n<parameter=query>\nOrlen river\n</parameter>\n</function>\n</tool_call>",
    f'<|START_ACTION|>[{{"tool_call_id": "0", "tool_name": "search", "parameters": {TYPED}}}]<|END_ACTION|>',
    f'<|tool_call|>[{{"name": "search", "arguments": {TYPED}}}]',
    '[search(query="Orlen river")]',
    "Thought: A river.\nAction: search\nAction Input: Orlen river",
    f'Action:\n```json\n{{"action": "search", "action_input": {TYPED}}}\n```',
    "Thought 1: A river.\nAction 1: Search[Orlen river]\nObservation 1:",
    "<think>A river: <|begin_of_query|>Orlen river<|end_of_query|></think>",
]


@pytest.mark.parametrize("words", TEXTS)
def test_a_call_in_the_marks_of_any_model_is_read(tmp_path: Path, words: str) -> None:
    called: JsonObject = {"role": "assistant", "content": words}
    told: JsonObject = {"role": "tool", "content": FOUND, "tool_call_id": "functions.search:0"}
    (run,), report = imported(tmp_path, [{"messages": [ASK, called, told, SAID]}])
    assert [(one.query, [hit.passage.id for hit in one.hits]) for one in run.searches] == [("Orlen river", ["1"])]
    assert (run.answer, report.unread) == (A, {})
    (tmp_path / "user").mkdir()
    (other,), _ = imported(tmp_path / "user", [{"messages": [ASK, called, {"role": "user", "content": FOUND}, SAID]}])
    assert other.searches == run.searches or words in (TEXTS[7],)  # such a call is read by its turn


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [ASK, SAID], "intermediate_steps": [[{"tool": "search", "tool_input": "Orlen"}, "Orlen lies."]]},
        {"messages": [ASK, {**SAID, "toolRun": {"which": "search", "q": "Orlen"}}]},
        {"messages": [ASK, {"role": "assistant", "content": "<|plugin_call|>search: Orlen"}, SAID]},
    ],
)
def test_a_run_whose_calls_nobody_reads_is_never_one_without_calls(tmp_path: Path, row: JsonObject) -> None:
    (run,), report = imported(tmp_path, [row])
    assert not run.searches and sum(report.unread.values()) == 1


@pytest.mark.parametrize(
    "words", ['```json\n{"name": "Orlen", "input": 3}\n```', "Use <function=f> in C.", "Action: see [1]", "[Orlen]"]
)
def test_an_answer_with_code_is_no_call(tmp_path: Path, words: str) -> None:
    schema: JsonObject = {"type": "function", "function": {"name": "search", "parameters": {}}}
    beside: JsonObject = {"tools": [schema], "usage": {"server_tool_use": {"web_search_requests": 0}}}
    (run,), report = imported(tmp_path, [{"messages": [ASK, {"role": "assistant", "content": words}], **beside}])
    assert run.answer == words and not report.counts["calls_without_result"] and not report.tools
    assert not any("fields of tools" in name for name in report.unread)


def test_a_file_of_records_is_not_one_conversation(tmp_path: Path) -> None:
    pairs: list[Json] = [{"from": "human", "value": Q}, {"from": "gpt", "value": A}]
    for number, rows in enumerate([[{"conversations": pairs}] * 2, [{"task": Q, "traj": [ASK, SAID]}] * 2]):
        (folder := tmp_path / str(number)).mkdir()
        (folder / "log.json").write_text(json.dumps(rows))
        assert import_traces([folder / "log.json"], folder / "run").imported == 2
