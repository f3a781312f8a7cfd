"""Chat messages, in and out."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.agents.playing import QUESTION, SCRIPTS, WIDE, Shelf, play
from tests.agents.test_tools import tool
from tests.agents.test_visits import visited
from tests.traces.chats import HOSTILE, imported, own_runs, random_chat, search_chat, stored, write_log

from coseek.agents.actions import NOT_FOUND
from coseek.agents.branching import ReplayPoint
from coseek.agents.protocol import load_protocol
from coseek.agents.search_turns import replay_queries
from coseek.agents.sources import served_context
from coseek.core.errors import DataError, SettingError
from coseek.core.files import Json, JsonObject, read_jsonl
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
from coseek.traces.conversation import PROTOCOL
from coseek.traces.exporting import export_run
from coseek.traces.found_passages import found_by_query
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


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_conversations_come_back_as_they_were_and_are_sound_runs(tmp_path: Path, count: int) -> None:
    rng = random.Random(count)
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
    with pytest.raises(DataError, match="server or log that it is from does not hold the ids"):
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
    with pytest.raises(SettingError, match="no record has anything at answers=gold"):
        import_traces([log], tmp_path / "c", TraceSettings(answers="gold"))


def test_a_gold_answer_beside_the_messages_is_not_taken_for_the_agents(tmp_path: Path) -> None:
    (run,), _ = imported(tmp_path, [{"messages": [*search_chat("Schiller")], "answer": "Goethe"}])
    assert run.answer == "Schiller"


def test_a_run_that_failed_is_a_fault_after_import_too(tmp_path: Path) -> None:
    chat = search_chat()[:4]
    (run,), _ = imported(tmp_path, [{"messages": [*chat], "error": "timeout"}], fault="error")
    assert run.fault == (StopReason.MODEL_ERROR, "timeout") and run.answer is None


def test_a_run_of_coseek_survives_the_way_through_messages(tmp_path: Path) -> None:
    runs = own_runs()
    export_run(stored(tmp_path / "own", runs), "messages", tmp_path / "out.jsonl")
    import_traces([tmp_path / "out.jsonl"], tmp_path / "again")
    assert audit_run(tmp_path / "again").violations == ()
    again = list(Run(tmp_path / "again").trajectories())
    assert any(run.stop is not StopReason.ANSWERED for run in runs) or len(runs) > 5
    for before, after in zip(runs, again, strict=True):
        assert (after.question, after.searches, after.answer) == (before.question, before.searches, before.answer)
        assert not after.exact
        kept = ("em", "f1", "recall", "searches", "turns", "recall@5")
        assert {k: v for k, v in score_trajectory(after).items() if k in kept} == {
            k: v for k, v in score_trajectory(before).items() if k in kept
        }


@pytest.mark.parametrize("name", ["messages", "atif"])
@pytest.mark.parametrize(
    ("stop", "protocol", "turns"),
    [
        (StopReason.TURN_LIMIT, "search-r1", [SEARCH, "<think>or 1815?</think><search>Bob</search>"]),
        (StopReason.INVALID, "search-r1", ["<think>It must be 1815, and I need no tag"]),
        (StopReason.INVALID, "search-r1", [""]),
        (StopReason.DECLINED, "search-r1", [SEARCH, f"<think>b</think><answer>{NOT_FOUND}</answer>"]),
        (StopReason.ANSWERED, "search-r1", SCRIPTS["search-r1"]),
        (StopReason.COMPLETE, "s3", SCRIPTS["s3"]),
        (StopReason.COMPLETE, "deepretrieval", SCRIPTS["deepretrieval"]),
    ],
)
def test_a_run_without_an_answer_has_none_after_the_way_through_messages_and_atif(
    tmp_path: Path, stop: StopReason, protocol: str, turns: Sequence[str], name: str
) -> None:
    before = play(protocol, *turns, limits=ONE_TURN)
    after = there_and_back(tmp_path, before, name)
    assert (before.stop, after.stop, after.answer) == (stop, stop, before.answer)
    scores = score_trajectory(after)
    for metric, value in score_trajectory(before).items():
        assert metric not in ("em", "cover_em", "f1") or scores[metric] == value
    assert audit_run(tmp_path / "again").violations == ()


@pytest.mark.parametrize("name", ["messages", "atif"])
@pytest.mark.parametrize("protocol", ["s3", "rag", "rag-rerank"])
def test_the_search_that_opens_a_run_and_what_the_agent_chose_survive_export(
    tmp_path: Path, protocol: str, name: str
) -> None:
    before = play(protocol, *SCRIPTS[protocol])
    assert before.searches[0].turn == 0 and (before.selected_ids or protocol != "s3")
    once = there_and_back(tmp_path / "once", before, name)
    for after in (once, there_and_back(tmp_path / "twice", once, name)):
        assert after.searches == before.searches and after.selected_ids == before.selected_ids
        assert after.evidence == before.evidence
        assert served_context(after) == served_context(before)


@pytest.mark.parametrize("name", ["messages", "atif"])
def test_the_ranking_of_an_agents_own_survives_export(tmp_path: Path, name: str) -> None:
    """That of the rule-based agent, which ranks what it found when it has finished."""
    found = next(run for run in own_runs() if len(run.evidence or ()) > 2)
    assert found.evidence is not None
    before = replace(found, evidence=found.evidence[::-1], selected_ids=found.evidence[-2:])
    after = there_and_back(tmp_path, before, name)
    assert (after.evidence, after.selected_ids) == (before.evidence, before.selected_ids)
    assert served_context(after) == served_context(before)


@pytest.mark.parametrize("name", ["messages", "atif"])
@pytest.mark.parametrize("protocol", ["s3", "deepretrieval"])
def test_a_search_that_was_cut_off_is_after_import_no_wrong_answer_either(
    tmp_path: Path, protocol: str, name: str
) -> None:
    before = play(protocol, SCRIPTS["s3"][0] if protocol == "s3" else "<think>a</think>", limits=ONE_TURN)
    assert before.stop is not StopReason.COMPLETE
    once = there_and_back(tmp_path / "once", before, name)
    for after in (once, there_and_back(tmp_path / "twice", once, name)):
        assert (after.stop, after.agent_protocol, after.protocol) == (before.stop, protocol, PROTOCOL)
        scores = score_trajectory(after)
        assert after.question.answers and not {"em", "cover_em", "f1", "declined"} & scores.keys()
        assert (scores["answer_hit"], scores["searches"]) == (len(before.searches) > 0, len(before.searches))
    assert audit_run(tmp_path / "twice" / "again").violations == ()


def test_a_log_makes_no_file_the_protocol_of_a_run(tmp_path: Path) -> None:
    named: list[Json] = [f"{tmp_path}/own.yaml", f"{'x' * 5000}.yml", 7, "", "unknown", "s3"]
    rows: list[JsonObject] = [{"messages": [*search_chat()[:4]], "run": {"protocol": one}} for one in named]
    runs, _ = imported(tmp_path, [row | {"answers": ["Goethe"]} for row in rows])
    assert [run.logged_protocol for run in runs] == [None, None, None, None, "unknown", "s3"]
    assert ["em" in score_trajectory(run) for run in runs] == [True] * 5 + [False]


@pytest.mark.parametrize("name", ["messages", "atif"])
def test_what_only_a_visit_showed_is_evidence_after_export_too(tmp_path: Path, name: str) -> None:
    before = visited(tool("visit", id="n4"), tool("visit", id="n5"), tool("visit", id="n9"))
    assert len(before.visits) == 2 and before.evidence == ("n4", "n3", "n5", "n6")
    once = there_and_back(tmp_path / "once", before, name)
    for after in (once, there_and_back(tmp_path / "twice", once, name)):
        assert (after.visits, after.evidence) == (before.visits, before.evidence)
        assert served_context(after) == served_context(before)
    assert audit_run(tmp_path / "twice" / "again").violations == ()


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


def test_a_title_alone_of_another_system_is_a_title_unless_more_is_said() -> None:
    ((_, (title, more)),) = found_by_query([{"title": "Ada", "text": ""}, {"name": "Ada", "born": 1815}], 1)
    assert (title.passage.title, title.passage.text) == ("Ada", "")
    assert more.passage.text == '{"name": "Ada", "born": 1815}'
