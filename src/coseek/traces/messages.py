"""Messages: a trajectory as a list of chat messages with tool calls, in the form of OpenAI's chat completions.

An imported run gives back its own messages. For a run of coseek, the prompt is the user's message, each turn one of the
assistant with its text as sampled and with its searches and calls as `tool_calls`, and their results follow. The first
result of a turn has the text that the agent was shown, for all its searches; `hits` are the passages of each, and
`selected` the ids of those that the agent chose.
"""

import json
from collections.abc import Sequence
from itertools import takewhile, zip_longest
from typing import cast

from coseek.agents.actions import texts_of
from coseek.agents.sources import reply_of
from coseek.core.files import Json, JsonObject
from coseek.data.trajectory import (
    LAST_WORD,
    MESSAGE,
    MISSING,
    PAGE,
    PROMPT,
    RETRY,
    TOOL,
    Author,
    Segment,
    Trajectory,
    evidence_of,
)
from coseek.models.written import calls_in

OF_RESULT = ("hits", "fault", "selected")
"""Fields of a search that our own results have beside their text."""
_NO_RESULT = (PROMPT, RETRY, PAGE, MISSING, MESSAGE, LAST_WORD)
"""Tags of environment segments that answer neither a search nor a call of another tool."""


def messages_of(run: Trajectory) -> list[JsonObject]:
    """The messages of a trajectory."""
    if run.messages:
        return list(run.messages)
    messages: list[JsonObject] = []
    turn = 0
    for at, segment in enumerate(run.segments):
        if segment.author is Author.AGENT:
            turn += 1
            write = _turn if segment.message is None else _native_turn
            messages += write(run, turn, segment, _behind(run.segments, at))
        elif turn == 0:
            messages.append(_user(segment.text))
    return messages or [_user(run.question.question)]  # naive RAG writes and reads nothing, and a log needs a message


def message_row(run: Trajectory) -> JsonObject:
    """One line of a file of conversations: the messages, the question with its gold answers, and how the run ended."""
    return {"messages": [*messages_of(run)], **about(run)}


def about(run: Trajectory) -> JsonObject:
    """What a conversation does not say of its run. Importing the file again reads it."""
    answer = reply_of(run) if run.declined else run.answer  # a declined run is read back by what it said
    ended: JsonObject = {"protocol": run.agent_protocol, "seed": run.seed, "stop": str(run.stop), "answer": answer}
    if run.stop.is_fault:
        ended["fault"] = run.stop_detail or str(run.stop)
    if opening := [search.to_json() for search in run.searches if search.turn == 0]:
        ended["opening"] = cast(list[Json], opening)
    if run.visits:
        ended["visits"] = [visit.to_json() for visit in run.visits]
    ended |= {"evidence": [*evidence_of(run)], "selected_ids": [*run.selected_ids]}
    return {"question": run.question.to_json(), "run": ended}


def _behind(segments: Sequence[Segment], at: int) -> list[Segment]:
    """The environment's segments up to the next turn."""
    found: list[Segment] = []
    for segment in segments[at + 1 :]:
        if segment.author is Author.AGENT:
            break
        found.append(segment)
    return found


def _turn(run: Trajectory, turn: int, segment: Segment, behind: Sequence[Segment]) -> list[JsonObject]:
    # Runs that are older than `Search.turn` made one search a turn.
    turns = [number if one.turn is None else one.turn for number, one in enumerate(run.searches, start=1)]
    searches = [search for search, made_in in zip(run.searches, turns, strict=True) if made_in == turn]
    made = [call for call in run.calls if call.turn == turn]
    idents = [f"call_{turn}_{number}" for number in range(1, len(searches) + len(made) + 1)]
    asked = [("search", {"query": search.query}) for search in searches]
    called = [*asked, *((call.tool, call.arguments) for call in made)]
    shown = [one.text for one in behind if one.tag not in (*_NO_RESULT, TOOL)]
    results: list[JsonObject] = []
    for search in searches:
        row = search.to_json()
        found = {name: row[name] for name in OF_RESULT if name in row}
        results.append({"content": "\n".join(shown) if not results else "", **found})
    texts = iter(one.text for one in behind if one.tag == TOOL)
    for call in made:
        results.append({"content": next(texts, "")} if call.fault is None else {"content": "", "fault": call.fault})
    message: JsonObject = {"role": "assistant", "content": segment.text}
    if called:
        message["tool_calls"] = [
            {
                "id": ident,
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
            }
            for ident, (name, arguments) in zip(idents, called, strict=True)
        ]
    others = [one.text for one in behind if one.tag in _NO_RESULT or (one.tag != TOOL and not searches)]
    answered: list[JsonObject] = [
        {"role": "tool", "tool_call_id": ident, **result} for ident, result in zip(idents, results, strict=True)
    ]
    return [message, *answered, *map(_user, others)]


def _native_turn(run: Trajectory, turn: int, segment: Segment, behind: Sequence[Segment]) -> list[JsonObject]:
    """A turn with native calls, each followed by its own result. A call with several queries becomes one for each."""
    said = dict(segment.message or {})
    left = [search for search in run.searches if search.turn == turn]
    failed = iter(call.fault or "" for call in run.calls if call.turn == turn and call.fault is not None)
    calls: list[Json] = []
    results: list[JsonObject] = []
    for call, shown in zip_longest(calls_in(said), behind[: len(calls_in(said))]):
        queries = [text for value in call.object.values() for text in texts_of(value)]
        mine = takewhile(lambda one: one[1], ((search, search.query in queries) for search in left))
        searches = [search for search, _ in mine] if _searched(shown) else []
        left = left[len(searches) :]
        rows = [search.to_json() for search in searches] or [{} if shown else {"fault": next(failed, "")}]
        for place, row in enumerate(rows):
            ident = f"call_{turn}_{len(results) + 1}"
            arguments = call.arguments if len(rows) == 1 else {"query": row["query"]}
            function: JsonObject = {"name": call.name, "arguments": json.dumps(arguments, ensure_ascii=False)}
            calls.append({"id": ident, "type": "function", "function": function})
            content = shown.text if shown and not place else ""
            found = {name: row[name] for name in OF_RESULT if name in row}
            results.append({"role": "tool", "tool_call_id": ident, "content": content, **found})
    message: JsonObject = {"role": "assistant", "content": "", **said, **({"tool_calls": calls} if calls else {})}
    return [message, *results, *(_user(one.text) for one in behind[len(calls_in(said)) :])]


def _searched(shown: Segment | None) -> bool:
    """Whether a call searched, whose result is shown, or not where the search failed."""
    return shown is None or shown.tag not in (*_NO_RESULT, TOOL)


def _user(text: str) -> JsonObject:
    return {"role": "user", "content": text}
