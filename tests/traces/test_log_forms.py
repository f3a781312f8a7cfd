"""Logs in the forms of other systems: what a reader sees in them is read, and what is not read is counted."""

import json
from pathlib import Path

import pytest
from tests.traces.chats import imported, search_chat, write_log

from coseek.agents.sources import served_context
from coseek.core.errors import SettingError
from coseek.core.files import Json, JsonObject
from coseek.data.run import Run
from coseek.data.trajectory import StopReason, Trajectory
from coseek.measure.score import score_trajectory
from coseek.pipelines.audit import audit_run
from coseek.traces.found_passages import found_by_query
from coseek.traces.importing import TraceReport, import_traces, trace_settings

PAGES: list[Json] = [{"id": "1", "title": "Orlen", "text": "Orlen lies on the Tave."}]
FOUND = json.dumps(PAGES)
ASK: JsonObject = {"role": "user", "content": "Which river is Orlen on?"}
SAID: JsonObject = {"role": "assistant", "content": "Tave"}


def text(words: str) -> JsonObject:
    return {"type": "text", "text": words}


def message_of(role: str, *parts: Json) -> JsonObject:
    return {"role": role, "content": [*parts]}


def called(arguments: Json, name: str = "search") -> JsonObject:
    call: JsonObject = {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


TOLD: JsonObject = {"role": "tool", "tool_call_id": "c", "content": FOUND}


def only(tmp_path: Path, *messages: Json, **row: Json) -> tuple[Trajectory, TraceReport]:
    (run,), report = imported(tmp_path, [{"messages": [*messages], **row} if messages else row])
    assert audit_run(tmp_path / "run").violations == ()
    return run, report


LOGS: dict[str, list[Json]] = json.loads(Path(__file__).with_name("program_logs.json").read_text(encoding="utf-8"))
"""Program → its log of one question, one search and one answer."""
CALL: JsonObject = {"name": "search", "arguments": {"query": "Orlen river"}}


def test_a_response_with_input_and_output_is_a_record(tmp_path: Path) -> None:
    run, _ = only(tmp_path, input=str(ASK["content"]), output=LOGS["responses"][1:])
    assert (run.question.question, run.answer, len(run.searches)) == (ASK["content"], "Tave", 1)


def test_parallel_calls_of_responses_are_one_turn(tmp_path: Path) -> None:
    call: JsonObject = {"type": "function_call", "name": "search"}
    calls: list[Json] = [{**call, "call_id": ident, "arguments": json.dumps({"query": ident})} for ident in "ab"]
    outputs: list[Json] = [{"type": "function_call_output", "call_id": ident, "output": FOUND} for ident in "ab"]
    run, report = only(tmp_path, ASK, *calls, *outputs, SAID)
    assert [(search.turn, search.query) for search in run.searches] == [(1, "a"), (1, "b")]
    assert report.counts["calls_without_result"] == 0


def test_a_second_question_is_never_answered_under_the_first(tmp_path: Path) -> None:
    second: JsonObject = {"role": "user", "content": "And which sea?"}
    north: JsonObject = {"role": "assistant", "content": "North"}
    chat: list[Json] = [ASK, SAID, second, called('{"query": "sea of the Tave"}'), TOLD, north]
    run, report = only(tmp_path, *chat)
    assert (run.question.question, run.answer) == ("And which sea?", "North")
    assert [search.query for search in run.searches] == ["sea of the Tave"] and sum(report.unread.values()) == 1
    for number, named in enumerate((str(ASK["content"]), f" {ASK['content']}\n".lower())):
        (folder := tmp_path / str(number)).mkdir()
        first, report = only(folder, *chat, question=named)
        assert (first.question.question, first.answer, first.searches) == (named, "Tave", ())
        assert sum(report.unread.values()) == 1
    (tmp_path / "nudged").mkdir()
    nudge: JsonObject = {"role": "user", "content": "Please continue."}
    nudged, _ = only(
        tmp_path / "nudged", ASK, {**SAID, "content": "I look."}, nudge, *chat[3:], question=ASK["content"]
    )
    assert (nudged.answer, len(nudged.searches)) == ("North", 1)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("arguments", "query"),
    [
        ('{"query": "a"}{"query": "a"}', None), ('{"query": "a', None), ('query": "a"}', None),
        ('{"page": 1, "n": 2}', None),
        (json.dumps('{"query": "a"}'), "a"), ("plain words", "plain words"), ({"query": "a"}, "a"),
    ],
)  # fmt: skip
def test_arguments_that_are_no_json_are_counted_and_never_a_query(
    tmp_path: Path, arguments: Json, query: str | None
) -> None:
    run, report = only(tmp_path, ASK, called(arguments), TOLD, SAID)
    assert [search.query for search in run.searches] == ([] if query is None else [query])
    assert sum(report.unread.values()) == (query is None) and run.answer == "Tave"


def test_a_thought_that_was_cut_off_is_no_answer(tmp_path: Path) -> None:
    run, _ = only(tmp_path, ASK, {"role": "assistant", "content": "<think>The Tave, or"})
    assert run.answer is None and run.stop is not StopReason.ANSWERED


def test_a_call_without_a_result_leaves_the_final_words_the_answer(tmp_path: Path) -> None:
    run, report = only(tmp_path, ASK, called('{"query": "a"}'), SAID)
    assert (run.answer, run.stop, run.searches) == ("Tave", StopReason.ANSWERED, ())
    assert report.counts["calls_without_result"] == 1
    texts = [segment.text for segment in run.segments]
    assert "tool_call" in texts[1] and "Tave" in texts[-1]


def test_what_is_not_read_is_counted_by_name(tmp_path: Path) -> None:
    picture: JsonObject = {"type": "image", "source": {}}
    message: JsonObject = {"role": "user", "content": [text(str(ASK["content"])), picture]}
    run, report = only(tmp_path, message, {"type": "computer_call", "call_id": "x"}, *search_chat()[2:])
    assert run.searches and sorted(report.unread) == [
        "content blocks of the type 'image'", "items of the type 'computer_call'",
    ]  # fmt: skip
    failed: JsonObject = {"type": "tool_result", "tool_use_id": "t", "is_error": True, "content": "timeout"}
    (tmp_path / "b").mkdir()
    (lost,), _ = imported(
        tmp_path / "b", [{"messages": [*LOGS["anthropic"][:2], {"role": "user", "content": [failed]}, SAID]}]
    )
    assert lost.searches[0].fault == "timeout" and not lost.searches[0].hits


ASKED: JsonObject = {"id": "c", "type": "function", "function": CALL}


INFORMED = f"<information>{FOUND}</information>"


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "assistant", "content": None, "tool_calls": json.dumps([ASKED])}, TOLD, SAID],
        [{"role": "assistant", "content": "", "additional_kwargs": {"tool_calls": [ASKED]}}, TOLD, SAID],
        [
            {"role": "assistant", "content": "", "tool_calls": [ASKED], "additional_kwargs": {"function_call": CALL}},
            TOLD,
            SAID,
        ],
        [{"role": "model", "content": "", "tool_calls": [ASKED]}, TOLD, {**SAID, "role": "Assistant"}],
        [
            {**SAID, "content": "<think>x</think><search> Orlen river </search>"},
            {"role": "user", "content": f"\n{INFORMED}\n"},
            {**SAID, "content": "<think>y</think><answer> Tave </answer>"},
        ],
        [{**SAID, "content": f"<search>Orlen river</search>\n{INFORMED}<answer>Tave</answer>"}],
    ],
)
def test_a_search_in_another_spelling_is_not_lost(tmp_path: Path, messages: list[Json]) -> None:
    run, report = only(tmp_path, ASK, *messages)
    assert [(search.query, [hit.passage.id for hit in search.hits]) for search in run.searches] == [
        ("Orlen river", ["1"])
    ]
    assert (run.answer, run.stop, report.unread) == ("Tave", StopReason.ANSWERED, {})


def test_thanks_behind_the_answer_do_not_take_it_away(tmp_path: Path) -> None:
    run, report = only(tmp_path, ASK, called({"query": "a"}), TOLD, SAID, {"role": "user", "content": "Thanks!"})
    assert (run.question.question, run.answer) == (ASK["content"], "Tave") and sum(report.unread.values()) == 1


def test_an_error_that_only_the_status_of_a_result_tells_is_no_passage(tmp_path: Path) -> None:
    run, _ = only(tmp_path, ASK, called({"query": "a"}), {**TOLD, "content": "timeout", "status": "error"}, SAID)
    assert run.searches[0].fault and not run.searches[0].hits


SEEN: list[Json] = [{"type": "SPAN", "name": "search", "input": {"query": "a"}, "output": PAGES}]
STEPS: list[Json] = [[{"tool": "search", "tool_input": "Orlen"}, "Orlen lies."]]


@pytest.mark.medium
@pytest.mark.parametrize(
    "row",
    [
        *({"messages": [ASK, {"role": "assistant", "content": "", **odd}, SAID]} for odd in (
            {"role": "critic", "content": "x"}, {"content": "<|plugin_call|>search: a"},
            {"content": "<tool_call>\n<function=search>\n</function></tool_call>"},
            {"tool_calls": [{"query": "a"}]}, {"tool_calls": "search(a)"},
        )),
        {"messages": [ASK, SAID], "observations": SEEN}, {"messages": [ASK, SAID], "intermediate_steps": STEPS},
        {"messages": [ASK, {**SAID, "toolRun": {"which": "search", "q": "Orlen"}}]},
    ],
)  # fmt: skip
def test_a_role_or_call_that_nobody_reads_is_counted(tmp_path: Path, row: JsonObject) -> None:
    run, report = only(tmp_path, **row)
    assert not run.searches and sum(report.unread.values()) == 1


@pytest.mark.parametrize(
    "result",
    [
        [{"page_content": "Orlen lies.", "metadata": {"source": "a.pdf"}}],
        [{"node": {"id_": "1", "text": "Orlen lies.", "metadata": {"source": "a.pdf"}}, "score": 0.8}],
        {"hits": {"total": 1, "hits": [{"_id": "1", "_score": 2, "_source": {"text": "Orlen lies."}}]}},
        {"response": {"results": [{"id": "1", "text": "Orlen lies."}]}},
        {"webPages": {"value": [{"name": "", "url": "https://x.org", "snippet": "Orlen lies."}]}},
        {"matches": [{"id": "1", "score": 0.9, "metadata": {"text": "Orlen lies.", "source": "a.pdf"}}]},
        [{"chunk": "Orlen lies.", "doc": "a"}],
    ],
)
def test_a_passage_of_a_known_store_is_its_text_and_not_json(result: Json) -> None:
    ((_, (hit,)),) = found_by_query(json.dumps(result), 1)
    assert hit.passage.text == "Orlen lies." and hit.passage.meta.get("source", "a.pdf") == "a.pdf"


# --- logs of any form by paths


ROW: JsonObject = {
    "uid": "q1",
    "input": {"q": "Who wrote Faust?"},
    "gold": ["Goethe"],
    "trace": [
        {"thought": "</tool_call> I search.", "action": {"query": "Faust"}, "obs": [{"pid": 3, "body": "By Goethe."}]},
        {"thought": "Two at once.", "action": {"query": ["Faust", "Goethe"]}, "obs": [["one"], ["two"]]},
        {"thought": "Lost.", "action": {"query": "late"}},
    ],
    "out": "Goethe",
}
MAP = """
id: uid
question: input.q
answers: gold
steps: trace
reasoning: thought
query: action.query
results: obs
answer: out
"""


def test_a_log_of_any_form_is_read_by_paths_in_a_file_or_typed(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", [ROW])
    (tmp_path / "map.yaml").write_text(MAP)
    import_traces([log], tmp_path / "a", trace_settings({"map": str(tmp_path / "map.yaml")}))
    (run,) = Run(tmp_path / "a").trajectories()
    assert (run.question.id, run.question.question, run.question.answers) == ("q1", "Who wrote Faust?", ("Goethe",))
    assert run.answer == "Goethe" and run.stop is StopReason.ANSWERED and not run.exact
    searches = [(search.turn, search.query, [hit.passage.text for hit in search.hits]) for search in run.searches]
    assert searches == [(1, "Faust", ["By Goethe."]), (2, "Faust", ["one"]), (2, "Goethe", ["two"])]
    assert audit_run(tmp_path / "a").violations == ()
    typed = dict(line.split(": ") for line in MAP.strip().splitlines())
    import_traces([log], tmp_path / "b", trace_settings(typed))
    assert list(Run(tmp_path / "b").trajectories()) == [run]


PAIRS: list[Json] = [[{"tool": "search", "tool_input": CALL["arguments"], "log": "I look."}, FOUND]]
PARTS: list[Json] = [ASK, message_of("assistant", {"type": "tool_call", "id": "c", **CALL}), TOLD]


@pytest.mark.parametrize(
    ("row", "paths"),
    [
        ({"a": {"gen.in": PARTS, "gen.out": [SAID]}}, {"messages": "a.gen.in", "answer": "a.gen.out"}),
        ({"a": json.dumps({"gen.in": PARTS, "gen.out": "Tave"})}, {"messages": "a.gen.in", "answer": "a.gen.out"}),
        ({"a": {"gen.in": json.dumps(PARTS), "gen.out": json.dumps([SAID])}}, {}),
        ({"messages": json.dumps([*PARTS, SAID])}, {}),
        ({"input": ASK["content"], "output": "Tave", "intermediate_steps": PAIRS},
         {"steps": "intermediate_steps", "question": "input"}),
    ],
)  # fmt: skip
def test_keys_with_dots_texts_of_json_and_pairs_are_read(
    tmp_path: Path, row: JsonObject, paths: dict[str, str]
) -> None:
    (run,), _ = imported(tmp_path, [row], **paths)
    assert [(search.query, [hit.passage.id for hit in search.hits]) for search in run.searches] == [
        ("Orlen river", ["1"])
    ]
    assert (run.question.question, run.answer, run.stop) == (ASK["content"], "Tave", StopReason.ANSWERED)


def test_a_path_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", [ROW])
    (tmp_path / "map.yaml").write_text(MAP.replace("gold", "golden"))
    with pytest.raises(SettingError, match=r"no record has anything at answers=golden; check the path"):
        import_traces([log], tmp_path / "run", trace_settings({"map": str(tmp_path / "map.yaml")}))
    (tmp_path / "map.yaml").write_text("qestion: q")
    with pytest.raises(SettingError, match="question"):
        trace_settings({"map": str(tmp_path / "map.yaml")})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("result", "passages"),
    [
        ("plain text", [("", "plain text")]),
        ("", []),
        (None, []),
        ([{"title": "A", "snippet": "b", "link": "http://x"}], [("A", "b")]),
        ('{"results": [{"name": "A", "content": "b"}]}', [("A", "b")]),
        ([{"document": {"id": 1, "title": "A", "contents": "b"}, "score": 2}], [("A", "b")]),
        (["one", "two", "one", " "], [("", "one"), ("", "two")]),
        ("[1] Faust: a play", [("", "[1] Faust: a play")]),
        ("[1] Faust\nA play.\n\n[2] Egmont", [("Faust", "A play."), ("", "Egmont")]),
        ('{"title": "A", "text": "b"}\n{"title": "C", "text": "d"}', [("A", "b"), ("C", "d")]),
        ({"answer": "b", "sources": [{"title": "A", "text": "b"}]}, [("A", "b")]),
        (' Doc 1(Title: "A") b c\nDoc 2(Title: "D (e)") f\n', [("A", "b c"), ("D (e)", "f")]),
        ({"title": "A", "metadata": {"source": "a.pdf"}}, [("A", "")]),
        ([{"title": "A", "text": ""}, {"name": "A", "born": 1815}], [("A", ""), ("", '{"name": "A", "born": 1815}')]),
        ({"odd": 1}, [("", '{"odd": 1}')]),
    ],
)
def test_passages_are_found_in_results_of_any_form(result: Json, passages: list[tuple[str, str]]) -> None:
    ((_, hits),) = found_by_query(result, 1)
    assert [(hit.passage.title, hit.passage.text) for hit in hits] == passages


def test_scores_are_kept_only_where_they_rank() -> None:
    rows: list[Json] = [{"id": str(n), "text": "t", "score": score} for n, score in enumerate((3, 2.5))]
    assert [hit.score for hit in found_by_query(rows, 1)[0][1]] == [3, 2.5]
    assert [hit.score for hit in found_by_query(rows[::-1], 1)[0][1]] == [1, 0.5]
    assert [hit.score for hit in found_by_query(json.dumps(["a", "b"]), 1)[0][1]] == [1, 0.5]


def test_different_passages_that_a_log_gives_one_id_stay_apart_in_a_run(tmp_path: Path) -> None:
    first, last = "A play.", "It is by Goethe."
    results: list[list[Json]] = [[{"id": 1, "text": first}], [{"id": 1, "text": last}, {"id": 2, "text": first}]]
    steps: list[Json] = [{"query": f"q{number}", "results": rows} for number, rows in enumerate([*results, results[0]])]
    row: JsonObject = {"question": "Who wrote Faust?", "answers": ["Goethe"], "gold_ids": ["1"], "steps": steps}
    (run,), _ = imported(tmp_path, [row], steps="steps")
    ids = [[hit.passage.id for hit in search.hits] for search in run.searches]
    assert ids[0] == ids[2] == ["1"] and ids[1][0].startswith("1#") and ids[1][1] == "2"
    assert run.evidence == ("1", *ids[1])
    scores = score_trajectory(run)
    assert (scores["passages"], scores["answer_hit"], scores["recall"]) == (3, 1, 1)
    assert [passage.text for passage in served_context(run)] == [first, last]
    (tmp_path / "unnamed").mkdir()
    steps = [{"query": "q", "results": [{"text": f"{first}\n\n{last}"}]}]
    _, report = imported(tmp_path / "unnamed", [{**row, "steps": steps}], steps="steps")
    assert any("recall cannot be measured" in name for name in report.unread)
    assert audit_run(tmp_path / "run").violations == ()


def test_two_chunks_of_one_page_are_two_passages_of_its_address() -> None:
    page = "https://x.org/faust"
    rows: list[Json] = [{"url": page, "content": "one"}, {"id": page, "content": "two"}, {"url": page, "text": "one"}]
    ((_, hits),) = found_by_query(rows, 1)
    assert [hit.passage.text for hit in hits] == ["one", "two"] and len({hit.passage.id for hit in hits}) == 2
    assert [hit.passage.url for hit in hits] == [page, page]


def test_an_id_of_coseeks_own_hits_goes_to_no_passage_of_another_tool(tmp_path: Path) -> None:
    chat = search_chat()
    own: list[Json] = [{"id": "faust", "title": "", "text": "Ours.", "score": 1.0}]
    call: JsonObject = {"id": "b", "function": {"name": "search", "arguments": {"query": "Faust"}}}
    more: list[JsonObject] = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "b", "content": "Ours.", "hits": own},
    ]
    (run,), _ = imported(tmp_path, [{"messages": [*chat[:4], *more, chat[4]]}])
    ((theirs, egmont), (ours,)) = ([hit.passage.id for hit in search.hits] for search in run.searches)
    assert (ours, egmont) == ("faust", "egmont") and theirs.startswith("faust#")


# --- programs and models: however call and result are written


Q, A = str(ASK["content"]), "Tave"
ARGS: JsonObject = {"query": "Orlen river"}
TYPED = json.dumps(ARGS)


@pytest.mark.medium
@pytest.mark.parametrize("program", LOGS)
def test_a_call_and_its_result_are_found_in_the_log_of_any_program(tmp_path: Path, program: str) -> None:
    for folder, row in (("trace", {"trace": {"items": LOGS[program]}}), ("chat", {"messages": LOGS[program]})):
        (tmp_path / folder).mkdir()
        run, report = only(tmp_path / folder, **row)
        ((query, (hit,)),) = [(search.query, search.hits) for search in run.searches]
        assert query == "Orlen river" and hit.passage.text in ("Orlen lies on the Tave.", "")  # or only its address
        assert (run.question.question, run.answer, run.stop, report.unread) == (Q, A, StopReason.ANSWERED, {})
        assert report.counts == {"searches": 1, "calls_without_result": 0}


def test_a_program_that_uses_the_ids_of_calls_again_loses_none(tmp_path: Path) -> None:
    result: JsonObject = {"toolUseId": "c", "content": [{"json": {"results": PAGES}}]}
    turn: list[Json] = [
        message_of("assistant", {"toolUse": {"toolUseId": "c", "name": "search", "input": ARGS}}),
        message_of("user", {"toolResult": result}),
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


@pytest.mark.medium
@pytest.mark.parametrize("words", TEXTS)
def test_a_call_in_the_marks_of_any_model_is_read(tmp_path: Path, words: str) -> None:
    call = {**SAID, "content": words}
    (run,), report = imported(
        tmp_path, [{"messages": [ASK, call, {**TOLD, "tool_call_id": "functions.search:0"}, SAID]}]
    )
    assert [(search.query, [hit.passage.id for hit in search.hits]) for search in run.searches] == [
        ("Orlen river", ["1"])
    ]
    assert (run.answer, report.unread) == (A, {})
    (tmp_path / "user").mkdir()
    (other,), _ = imported(tmp_path / "user", [{"messages": [ASK, call, {"role": "user", "content": FOUND}, SAID]}])
    assert other.searches == run.searches or words in (TEXTS[7],)  # such a call is read by its turn


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
    samples: JsonObject = {"version": 2, "eval": {"task": "x"}, "samples": [{"messages": [ASK, SAID]}] * 2}
    for number, rows in enumerate([[{"conversations": pairs}] * 2, [{"task": Q, "traj": [ASK, SAID]}] * 2, samples]):
        (folder := tmp_path / str(number)).mkdir()
        (folder / "log.json").write_text(json.dumps(rows))
        assert import_traces([folder / "log.json"], folder / "run").imported == 2
