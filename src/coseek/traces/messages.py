"""Messages: a trajectory as a list of chat messages with tool calls, in the form of OpenAI's chat completions.

An imported run keeps its own messages. In a run of coseek, the prompt becomes a user message, and each turn becomes an
assistant message with the sampled text and with its searches and calls as `tool_calls`, followed by their results. The
first result of a turn has the text that the agent read for all its searches; `hits` are the passages of each search,
and `selected` the ids of those that the agent chose.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import takewhile, zip_longest
from typing import cast

from coseek.agents.sources import reply_of
from coseek.agents.tag import texts_of
from coseek.core.files import Json, JsonObject
from coseek.data.trajectory import COMMON_TAGS, TOOL, Author, Segment, Trajectory, evidence_of
from coseek.models.written import calls_in
from coseek.traces.calls import as_json, tool_call

OF_RESULT = ("hits", "fault", "selected")
"""Fields of a search in our own results, beside the text."""


def messages_of(run: Trajectory) -> list[JsonObject]:
    """The messages of a trajectory."""
    if run.messages:
        return list(run.messages)
    messages: list[JsonObject] = []
    turn = 0
    for index, segment in enumerate(run.segments):
        if segment.author is Author.AGENT:
            turn += 1
            write = _turn if segment.message is None else _native_turn
            following = takewhile(lambda later: later.author is not Author.AGENT, run.segments[index + 1 :])
            messages += write(run, turn, segment, list(following))
        elif turn == 0:
            messages.append(_user(segment.text))
    return messages or [_user(run.question.question)]  # naive RAG has no segments, and a log needs a message


def message_row(run: Trajectory) -> JsonObject:
    """One line of a file of conversations: the messages, the question with its gold answers, and how the run ended."""
    return {"messages": [*messages_of(run)], **about(run)}


def about(run: Trajectory) -> JsonObject:
    """The facts about a run that its messages lack, as an import reads them."""
    answer = reply_of(run) if run.declined else run.answer  # the words of a declined run, to recognise it again
    run_record: JsonObject = {"protocol": run.agent_protocol, "seed": run.seed, "stop": str(run.stop), "answer": answer}
    if run.stop.is_fault:
        run_record["fault"] = run.stop_detail or str(run.stop)
    if opening := [search.to_json() for search in run.searches if search.turn == 0]:
        run_record["opening"] = cast(list[Json], opening)
    if run.visits:
        run_record["visits"] = [visit.to_json() for visit in run.visits]
    run_record |= {"evidence": [*evidence_of(run)], "selected_ids": [*run.selected_ids]}
    return {"question": run.question.to_json(), "run": run_record}


def _turn(run: Trajectory, turn: int, segment: Segment, following: Sequence[Segment]) -> list[JsonObject]:
    """The messages of a turn and of the environment's segments after it."""
    searches = [search for search in run.searches if search.turn == turn]
    shown = "\n".join(later.text for later in following if later.tag not in COMMON_TAGS)
    texts = iter(later.text for later in following if later.tag == TOOL)
    calls: list[Json] = []
    results: list[JsonObject] = []

    def add(name: str, arguments: JsonObject, result: JsonObject) -> None:
        ident = f"call_{turn}_{len(calls) + 1}"
        calls.append(tool_call(ident, name, as_json(arguments)))
        results.append({"role": "tool", "tool_call_id": ident, **result})

    for search in searches:
        add("search", {"query": search.query}, {"content": "" if calls else shown, **_result_fields(search.to_json())})
    for call in (call for call in run.calls if call.turn == turn):
        result = {"content": next(texts, "")} if call.fault is None else {"content": "", "fault": call.fault}
        add(call.tool, call.arguments, cast(JsonObject, result))
    others = [later for later in following if later.tag != TOOL and (later.tag in COMMON_TAGS or not searches)]
    called: JsonObject = {"tool_calls": calls} if calls else {}
    return [{"role": "assistant", "content": segment.text, **called}, *results, *(_user(each.text) for each in others)]


def _native_turn(run: Trajectory, turn: int, segment: Segment, following: Sequence[Segment]) -> list[JsonObject]:
    """A turn with native calls, each followed by its result. A call with several queries becomes a call for each."""
    assistant = dict(segment.message or {})
    remaining = [search for search in run.searches if search.turn == turn]
    faults = iter(call.fault or "" for call in run.calls if call.turn == turn and call.fault is not None)
    calls: list[Json] = []
    results: list[JsonObject] = []
    for call, result in zip_longest(calls_in(assistant), following[: len(calls_in(assistant))]):
        queries = [text for value in call.object.values() for text in texts_of(value)]
        count, left = 0, Counter(queries)
        while count < len(remaining) and left[remaining[count].query]:
            left[remaining[count].query] -= 1
            count += 1
        if result is not None and result.tag in COMMON_TAGS:  # a call that did not search; failed searches show nothing
            count = 0
        searches, remaining = remaining[:count], remaining[count:]
        rows = [search.to_json() for search in searches] or [{} if result else {"fault": next(faults, "")}]
        for number, row in enumerate(rows):
            ident = f"call_{turn}_{len(results) + 1}"
            arguments = call.arguments if len(rows) == 1 else {"query": row["query"]}
            calls.append(tool_call(ident, call.name, as_json(arguments)))
            content = result.text if result and not number else ""
            results.append({"role": "tool", "tool_call_id": ident, "content": content, **_result_fields(row)})
    message: JsonObject = {"role": "assistant", "content": "", **assistant, **({"tool_calls": calls} if calls else {})}
    return [message, *results, *(_user(later.text) for later in following[len(calls_in(assistant)) :])]


def _result_fields(search: JsonObject) -> JsonObject:
    return {name: search[name] for name in OF_RESULT if name in search}


def _user(text: str) -> JsonObject:
    return {"role": "user", "content": text}
