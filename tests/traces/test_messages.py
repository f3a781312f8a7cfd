"""Chat messages, in and out."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import atif
import pytest
from tests.agents.playing import QUESTION, SCRIPTS, WIDE, Shelf, play
from tests.agents.test_tools import tool
from tests.agents.test_visits import visited
from tests.traces.chats import HOSTILE, imported, own_runs, random_chat, search_chat, stored, write_log

from coseek.agents.branching import ReplayPoint
from coseek.agents.protocol import load_protocol
from coseek.agents.search_turns import replay_queries
from coseek.agents.sources import served_context
from coseek.agents.tag import NOT_FOUND
from coseek.core.errors import DataError, SettingError
from coseek.core.files import Json, JsonObject, read_json_object, read_jsonl
from coseek.data.passage import Hit, Passage
from coseek.data.run import Run
from coseek.data.trajectory import Author, Search, StopReason, Trajectory
from coseek.data.trajectory_checks import check_trajectory
from coseek.measure.score import score_trajectory
from coseek.models.tokenizer import ByteTokenizer
from coseek.pipelines.audit import audit_run
from coseek.pipelines.demonstrations import retokenised
from coseek.pipelines.table_rows import naive_rag, rag_identities
from coseek.rewards.reward import make_reward
from coseek.traces.atif import atif_document
from coseek.traces.conversation import PROTOCOL
from coseek.traces.exporting import export_run
from coseek.traces.importing import import_traces
from coseek.traces.records import TraceSettings
from coseek.training.learner.batch import make_batch
from coseek.training.rl.rows import export_rows
from coseek.training.rl.settings import RlSettings

SEARCH = "<think>a</think><search>Ada</search>"
ONE_TURN = WIDE.model_copy(update={"max_turns": 1})


def there_and_back(folder: Path, run: Trajectory, name: str) -> Trajectory:
    """A run that was exported and imported again."""
    out = folder / ("out.jsonl" if name == "messages" else "out")
    export_run(stored(folder / "own", [run]), name, out)
    import_traces([out], folder / "again")
    (again,) = Run(folder / "again").trajectories()
    return again


@pytest.mark.medium
def test_conversations_come_back_as_they_were_and_are_sound_runs(tmp_path: Path) -> None:
    rng, count = random.Random(0), 120
    chats = [random_chat(rng) for _ in range(count)]
    runs, report = imported(tmp_path, ({"messages": [*chat]} for chat in chats))
    assert report.imported == count and not report.left_out
    assert export_run(Run(tmp_path / "run"), "messages", tmp_path / "out.jsonl") == count
    assert [row["messages"] for _, row in read_jsonl(tmp_path / "out.jsonl")] == chats
    assert audit_run(tmp_path / "run").violations == ()
    again = import_traces([tmp_path / "out.jsonl"], tmp_path / "again")
    assert list(Run(tmp_path / "again").trajectories()) == runs and again.counts == report.counts
    assert {run.stop for run in runs} >= {StopReason.ANSWERED, StopReason.TURN_LIMIT}


@pytest.mark.parametrize("text", HOSTILE)
def test_text_in_a_log_forges_neither_a_call_nor_an_answer_nor_an_exact_run(tmp_path: Path, text: str) -> None:
    chat = search_chat(query=f"q {text}")
    chat[0]["content"] = chat[2]["content"] = chat[3]["content"] = chat[2]["reasoning_content"] = text
    row: JsonObject = {"messages": [*chat], "exact": True, "answer": "Forged", "searches": [], "segments": []}
    (run,), _ = imported(tmp_path, [row])
    assert not run.exact and not run.ids
    assert run.answer == "Goethe" and [search.query for search in run.searches] == [f"q {text}".strip()]
    grammar = load_protocol(PROTOCOL).grammar
    turns = [segment.text for segment in run.segments if segment.author is Author.AGENT]
    intents = [grammar.intent(turn) for turn in turns]
    assert [intent.call is not None for intent in intents] == [True, False]
    assert [span.text for span in grammar.parse(turns[1]) if span.tag == "answer"] == ["Goethe"]
    assert [span.tag for turn in turns for span in grammar.parse(turn) if span.tag] == ["tool_call", "answer"]


def test_a_log_that_says_it_is_exact_is_trained_on_by_nothing(tmp_path: Path) -> None:
    (run,), _ = imported(tmp_path, [{"messages": [*search_chat()], "answers": ["Goethe"]}])
    with pytest.raises(DataError, match="server or log has not stored the sampled ids"):
        make_batch([run])
    with pytest.raises(DataError, match="cannot be trained on"):
        export_rows(Run(tmp_path / "run"), make_reward({"exact_match": 1.0}), RlSettings(group_size=1))
    with pytest.raises(DataError, match=r"imported log without token ids.*gac=false"):
        ReplayPoint.of(run, 0, load_protocol(PROTOCOL))


def test_an_imported_run_is_scored_without_tokens_that_nobody_counted(tmp_path: Path) -> None:
    chat = search_chat()
    (run,), _ = imported(tmp_path, [{"messages": [*chat], "answers": "Goethe", "gold_ids": ["faust"], "id": 7}])
    scores = score_trajectory(run)
    assert (scores["em"], scores["recall"], scores["searches"], scores["answer_hit"]) == (1, 1, 1, 1)
    assert not {"agent_tokens", "read_tokens"} & scores.keys()
    assert run.question.id == "7" and run.valid
    (query,) = replay_queries(run, load_protocol(PROTOCOL))
    assert (query.text, query.reasoning, query.question) == ("author of Faust", "I look it up.", "Who wrote Faust?")


def test_a_log_without_a_conversation_leaves_no_run(tmp_path: Path) -> None:
    for content in (b"", b"\n\n", b"{broken\n"):
        (tmp_path / "log.jsonl").write_bytes(content)
        with pytest.raises(DataError, match="no conversation found"):
            import_traces([tmp_path / "log.jsonl"], tmp_path / "run")
        assert not (tmp_path / "run").exists()
    with pytest.raises(DataError, match="there is no file"):
        import_traces([tmp_path / "none.jsonl"], tmp_path / "run")
    imported(tmp_path, [{"messages": [*search_chat()]}])
    with pytest.raises(DataError, match="holds a run already"):
        import_traces([tmp_path / "log.jsonl"], tmp_path / "run")
    stored(tmp_path / "empty", [])
    for name, out in (("messages", "out.jsonl"), ("atif", "out")):
        with pytest.raises(DataError, match="nothing to export"):
            export_run(Run(tmp_path / "empty"), name, tmp_path / out)
        assert not (tmp_path / out).exists()


def test_a_search_tool_of_any_name_is_found_when_it_is_named(tmp_path: Path) -> None:
    chat = json.loads(json.dumps(search_chat()).replace("web_search", "lookup").replace('\\"query\\"', '\\"what\\"'))
    log = write_log(tmp_path / "log.jsonl", [{"messages": chat}])
    report = import_traces([log], tmp_path / "a")
    (run,) = Run(tmp_path / "a").trajectories()
    assert not run.searches and run.calls[0].tool == "lookup" and report.tools == {"lookup": 1}
    import_traces([log], tmp_path / "b", TraceSettings(search_tools=["lookup"]))
    (run,) = Run(tmp_path / "b").trajectories()
    assert run.searches[0].query == "author of Faust" and not run.calls
    with pytest.raises(SettingError, match="no call is to such a tool, but to lookup"):
        import_traces([log], tmp_path / "c", TraceSettings(search_tools=["look_up"]))
    assert not (tmp_path / "c").exists()
    with pytest.raises(SettingError, match="no record has anything at answers=gold"):
        import_traces([log], tmp_path / "c", TraceSettings(answers="gold"))


def test_a_run_that_failed_is_a_fault_after_import_too(tmp_path: Path) -> None:
    chat = search_chat()[:4]
    (run,), _ = imported(tmp_path, [{"messages": [*chat], "error": "timeout"}], fault="error")
    assert run.fault == (StopReason.MODEL_ERROR, "timeout") and run.answer is None


def ranked() -> Trajectory:
    """A run of the rule-based agent, which ranks what it found when it has finished."""
    run = next(run for run in own_runs() if len(run.evidence or ()) > 2)
    assert run.evidence is not None
    return replace(run, evidence=run.evidence[::-1], selected_ids=run.evidence[-2:])


def limited(protocol: str, *turns: str) -> Callable[[], Trajectory]:
    return lambda: play(protocol, *turns, limits=ONE_TURN)


RUNS: dict[str, tuple[StopReason, Callable[[], Trajectory]]] = {
    "a search too many": (StopReason.TURN_LIMIT, limited("search-r1", SEARCH, "<think>b?</think><search>Bob</search>")),
    "no tag": (StopReason.INVALID, limited("search-r1", "<think>It must be 1815, and I need no tag")),
    "not a word": (StopReason.INVALID, limited("search-r1", "")),
    "declined": (StopReason.DECLINED, limited("search-r1", SEARCH, f"<think>b</think><answer>{NOT_FOUND}</answer>")),
    "answered": (StopReason.ANSWERED, limited("search-r1", *SCRIPTS["search-r1"])),
    "a search that opens it, and a selection": (StopReason.COMPLETE, limited("s3", *SCRIPTS["s3"])),
    "a search that opens it": (StopReason.ANSWERED, limited("rag", *SCRIPTS["rag"])),
    "a reranked search": (StopReason.ANSWERED, limited("rag-rerank", *SCRIPTS["rag-rerank"])),
    "a rewritten query": (StopReason.COMPLETE, limited("deepretrieval", *SCRIPTS["deepretrieval"])),
    "a rewritten query, cut off": (StopReason.INVALID, limited("deepretrieval", "<think>a</think>")),
    "a selection, cut off": (StopReason.TURN_LIMIT, limited("s3", SCRIPTS["s3"][0])),
    "a ranking of its own": (StopReason.ANSWERED, ranked),
    "what only a visit showed": (
        StopReason.ANSWERED,
        lambda: visited(tool("visit", id="n4"), tool("visit", id="n5"), tool("visit", id="n9")),
    ),
}


@pytest.mark.medium
@pytest.mark.parametrize("name", ["messages", "atif"])
@pytest.mark.parametrize("kind", RUNS)
def test_a_run_is_what_it_was_after_the_way_through_messages_and_atif(tmp_path: Path, kind: str, name: str) -> None:
    stop, make = RUNS[kind]
    before = make()
    assert before.stop is stop
    check_way(tmp_path, before, name)


def check_way(folder: Path, before: Trajectory, name: str) -> None:
    """A run that was exported and imported, once and twice, is the run it was."""
    once = there_and_back(folder / "once", before, name)
    scores = score_trajectory(before)
    for after in (once, there_and_back(folder / "twice", once, name)):
        assert (after.stop, after.answer, after.agent_protocol) == (before.stop, before.answer, before.agent_protocol)
        assert (after.question, after.searches, after.visits) == (before.question, before.searches, before.visits)
        assert (after.selected_ids, after.evidence) == (before.selected_ids, before.evidence)
        assert served_context(after) == served_context(before)
        for metric in ("em", "cover_em", "f1", "declined", "answer_hit", "searches"):
            assert score_trajectory(after).get(metric) == scores.get(metric), metric
    assert audit_run(folder / "twice" / "again").violations == ()


@pytest.mark.medium
@pytest.mark.parametrize("arguments", ['{"query": "brok', "plain words", '["a"]'])
@pytest.mark.parametrize("name", ["messages", "atif"])
def test_a_broken_query_is_one_after_the_way_through_messages_and_atif(
    tmp_path: Path, arguments: str, name: str
) -> None:
    chat = search_chat()
    chat[2]["tool_calls"] = [{"id": "a", "function": {"name": "search", "arguments": arguments}}]
    (run,), _ = imported(tmp_path, [{"messages": [*chat]}])
    again = there_and_back(tmp_path, run, name)
    assert (again.searches, again.calls, again.stop) == (run.searches, run.calls, run.stop)


def test_a_log_makes_no_file_the_protocol_of_a_run(tmp_path: Path) -> None:
    named: list[Json] = [f"{tmp_path}/own.yaml", f"{'x' * 5000}.yml", 7, "", "unknown", "s3"]
    rows: list[JsonObject] = [{"messages": [*search_chat()[:4]], "run": {"protocol": protocol}} for protocol in named]
    runs, _ = imported(tmp_path, [row | {"answers": ["Goethe"]} for row in rows])
    assert [run.logged_protocol for run in runs] == [None, None, None, None, "unknown", "s3"]
    assert ["em" in score_trajectory(run) for run in runs] == [True] * 5 + [False]


def test_an_imported_run_with_visits_is_sound_in_a_learners_tokens_too(tmp_path: Path) -> None:
    run = there_and_back(tmp_path, visited(tool("visit", id="n4")), "messages")
    protocol = load_protocol(PROTOCOL)
    learned = retokenised(run, protocol, ByteTokenizer(protocol.grammar.special_tokens), WIDE)
    assert learned.visits and list(check_trajectory(learned)) == []
    assert (run.agent_protocol, learned.agent_protocol) == ("react", PROTOCOL)


@pytest.mark.parametrize("name", ["messages", "atif"])
def test_a_cell_of_naive_rag_comes_back_with_what_it_found(tmp_path: Path, name: str) -> None:
    run = Run.create(tmp_path / "cell", {})
    run.bind(rag_identities(Shelf(), [QUESTION], 2, 0))
    naive_rag(run, Shelf(), [QUESTION], 2, 0)
    (before,) = run.trajectories()
    once = there_and_back(tmp_path / "once", before, name)
    for after in (once, there_and_back(tmp_path / "twice", once, name)):
        assert (after.question, after.searches) == (before.question, before.searches)
        assert score_trajectory(after)["answer_hit"] == 1
        assert served_context(after) == served_context(before)
    assert audit_run(tmp_path / "twice" / "again").violations == ()
    lost = replace(before, stop=StopReason.RETRIEVER_ERROR, searches=(Search("Ada", fault="away", turn=0),))
    assert there_and_back(tmp_path / "lost", lost, name).fault is not None


def test_a_result_without_an_id_takes_no_call_from_the_result_that_names_it(tmp_path: Path) -> None:
    chat = search_chat()
    told: JsonObject = {"role": "tool", "content": "The tool server has restarted."}
    (named,), _ = imported(tmp_path, [{"messages": [*chat[:3], told, *chat[3:]]}])
    assert [hit.passage.id for hit in named.searches[0].hits] == ["faust", "egmont"]
    assert [segment.text for segment in named.segments if segment.tag == "message"] == [told["content"]]
    (tmp_path / "b").mkdir()
    bare = {key: value for key, value in chat[3].items() if key != "tool_call_id"}
    (unnamed,), _ = imported(tmp_path / "b", [{"messages": [*chat[:3], bare, chat[4]]}])
    assert unnamed.searches == named.searches


def test_a_log_cannot_choose_what_nobody_found(tmp_path: Path) -> None:
    hit = Hit(Passage("p1", "Ada", "1815"), 1.0).to_json()
    chat = search_chat()
    chat[3] |= {"hits": [hit], "selected": ["p2", "p1", 7]}
    opening: JsonObject = {"query": "Ada", "hits": [hit], "turn": 3, "selected": ["p9"]}
    told: JsonObject = {"opening": [opening], "evidence": ["p9", "p1", 7], "selected_ids": "p9"}
    (run,), _ = imported(tmp_path, [{"messages": [*chat], "run": told}])
    assert run.evidence == run.selected_ids == ("p1",)
    assert [(search.turn, search.selected) for search in run.searches] == [(0, ()), (1, ("p1",))]
    (tmp_path / "b").mkdir()
    (other,), _ = imported(tmp_path / "b", [{"messages": [*chat], "run": {"opening": [{"query": 7}]}}])
    assert [search.turn for search in other.searches] == [1]


# --- ATIF documents, against the published models


def read(folder: Path) -> list[atif.Trajectory]:
    """The documents of a folder, as the published models read them."""
    return [atif.Trajectory.model_validate_json(path.read_bytes()) for path in sorted(folder.glob("*.json"))]


def agent_ids(run: Trajectory) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
    return [(segment.ids, segment.logprobs) for segment in run.segments if segment.author is Author.AGENT]


def test_exact_runs_hold_what_was_read_and_sampled_there_and_back(tmp_path: Path) -> None:
    runs = own_runs()
    assert export_run(stored(tmp_path / "own", runs), "atif", tmp_path / "out") == len(runs)
    for run, document in zip(runs, read(tmp_path / "out"), strict=True):
        assert document.schema_version == "ATIF-v1.7"
        metrics = [step.metrics for step in document.steps if step.source == "agent"]
        sampled = [(tuple(step.completion_token_ids or ()), tuple(step.logprobs or ())) for step in metrics if step]
        assert sampled == agent_ids(run)
        last = metrics[-1]
        assert last is not None and [*(last.prompt_token_ids or ()), *(last.completion_token_ids or ())] == [*run.ids]
        calls = [call for step in document.steps for call in step.tool_calls or ()]
        assert [call.arguments for call in calls] == [{"query": search.query} for search in run.searches]
    import_traces([tmp_path / "out"], tmp_path / "again")
    assert audit_run(tmp_path / "again").violations == ()
    for before, after in zip(runs, Run(tmp_path / "again").trajectories(), strict=True):
        assert (after.question, after.searches, after.answer) == (before.question, before.searches, before.answer)
        assert agent_ids(after) == agent_ids(before) and not after.exact
        assert after.ids == before.ids


def test_ids_that_nobody_sampled_are_not_written_as_sampled() -> None:
    run = replace(own_runs()[0], exact=False)  # as of a server that returns text
    steps = atif.Trajectory.model_validate(atif_document(run)).steps
    assert all(step.metrics is None for step in steps)


@pytest.mark.medium
def test_any_conversation_is_a_valid_document_and_loses_no_search(tmp_path: Path) -> None:
    rng = random.Random(7)
    runs, _ = imported(tmp_path, ({"messages": [*random_chat(rng)]} for _ in range(60)))
    export_run(Run(tmp_path / "run"), "atif", tmp_path / "out")
    assert len(read(tmp_path / "out")) == 60
    report = import_traces([tmp_path / "out"], tmp_path / "again")
    assert report.imported == 60 and audit_run(tmp_path / "again").violations == ()
    again = list(Run(tmp_path / "again").trajectories())
    assert [run.question for run in again] == [run.question for run in runs]


FOREIGN = read_json_object(Path(__file__).with_name("foreign.atif.json"))


def test_a_document_of_another_system_is_scored_by_a_path_to_its_gold_answer(tmp_path: Path) -> None:
    atif.Trajectory.model_validate(FOREIGN)
    (tmp_path / "one.json").write_text(json.dumps({**FOREIGN, "extra": {"gold": "Goethe", "run": {"exact": True}}}))
    import_traces([tmp_path / "one.json"], tmp_path / "run", TraceSettings(answers="extra.gold"))
    (run,) = Run(tmp_path / "run").trajectories()
    assert run.answer == "Goethe" and run.question.answers == ("Goethe",) and not run.exact
    assert [search.query for search in run.searches] == ["Faust"]
    assert agent_ids(run) == [((5, 6), (-0.5, -1.5)), ((), ())]  # -1 is no id
    assert run.segments[0].ids == (1, 2) and "‹answer›it‹/answer›" in run.segments[1].text
    assert audit_run(tmp_path / "run").violations == ()


def test_what_a_system_event_says_is_no_result_of_a_search(tmp_path: Path) -> None:
    document = json.loads(json.dumps(FOREIGN))
    results = document["steps"][1]["observation"]["results"]
    results.insert(0, {"source_call_id": None, "content": "Container restarted."})
    atif.Trajectory.model_validate(document)
    (tmp_path / "one.json").write_text(json.dumps(document))
    import_traces([tmp_path / "one.json"], tmp_path / "run")
    (run,) = Run(tmp_path / "run").trajectories()
    assert [hit.passage.text for hit in run.searches[0].hits] == ["A play by Goethe."]
    assert "Container restarted." in [segment.text for segment in run.segments]


@pytest.mark.parametrize("steps", [None, [], [{"source": "robot"}], ["x"]])
def test_a_broken_document_is_left_out_with_its_reason(tmp_path: Path, steps: object) -> None:
    (tmp_path / "bad.json").write_text(json.dumps({**FOREIGN, "steps": steps}))
    (tmp_path / "half.json").write_text('{"schema_version": "ATIF-v1.7"')
    (tmp_path / "good.jsonl").write_text(json.dumps(FOREIGN) + "\n")
    report = import_traces([tmp_path], tmp_path.with_name(f"{tmp_path.name}-run"))
    assert report.imported == 1 and [entry.where for entry in report.left_out] == ["bad.json", "half.json"]
