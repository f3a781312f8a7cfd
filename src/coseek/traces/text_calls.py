"""Text calls: tool calls and results in the text of a message, in the marks of several models.

A call is a tag with a query (Search-R1, Search-o1, R1-Searcher), elements with parameters (Claude, MiniMax, Qwen
Coder), JSON after a mark, with the tool's name inside or before it (Mistral, Kimi, DeepSeek, Granite, Command R), or a
step of ReAct. Calls that `coseek.models.written` parses stay in the text.
"""

import ast
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import cast

from coseek.core.files import Json, JsonObject
from coseek.core.strict_json import InvalidJson, parse_lenient_values
from coseek.traces.calls import MOST_PYTHON, is_finish, python_value
from coseek.traces.shapes import tool_use_in

_PREFIX = r"(?:\w{1,16}:|[|\uff5c]DSML[|\uff5c])?"
"""Prefix of an element's name in some models: `minimax:`, `seed:`."""
_BAR, _GAP = r"[|\uff5c]", r"[_\u2581]"
_QUERIES = r"<search>|<\|begin_(?:search|of)_query\|>"
_RESULTS = (
    r"<(?:tool_response|information|results?|search_results?|function_results|observation)>|\[TOOL_RESULTS\]"
    rf"|<\|begin_(?:search_result|of_documents)\|>|<{_BAR}tool{_GAP}outputs{_GAP}begin{_BAR}>|```tool_output\s"
)
_MARKS = (
    rf"<{_PREFIX}(?:tool_?calls?|function_calls)>|<{_PREFIX}invoke name=|<function[= ]|<\|python_tag\|>|\[TOOL_CALLS\]"
    rf"|<{_BAR}tool{_GAP}calls?(?:_section)?(?:{_GAP}(?:begin|start))?{_BAR}>|<\|(?:START_ACTION|action_start)\|>"
)
_FENCES = r"```(?:json|tool_calls?)?\s*(?=[\[{])|```tool_code\s|\bCalling tools:"
_OPENING = re.compile(f"(?P<query>{_QUERIES})|(?P<result>{_RESULTS})|(?P<calls>{_MARKS}|{_FENCES})", re.I)
_CALL_MARK = re.compile(
    rf"{_QUERIES}|{_MARKS}|^[ \t]*Action(?: \d+)?[ \t]*:|```tool_code\s"
    rf"|<[|/\uff5c]?[\w:]{{0,16}}(?:tool|plugin)[\w:\u2581]{{0,24}}{_BAR}?>"
    r'|"(?:name|tool|tool_name|action)"\s*:\s*"\w*(?:search|retriev)',
    re.MULTILINE | re.I,
)
"""Begins a call in a text, even in a form that cannot be parsed."""
_RESULT = re.compile(_RESULTS, re.I)
_USER_RESULT = re.compile("<(?:tool_response|information)>")
"""Results in a user's message that need no call before them."""
_SPECIAL_QUERY = re.compile(r"<\|begin_(?:search|of)_query\|>")
_HEADING = re.compile(
    r"\A\s*+(?:Call id: ?\S*\s+)?(?:Observation|Results?|Tool (?:output|result|response))(?: \d+)?\s*:", re.I
)
_TOKEN = re.compile(
    r"\[CALL_ID\]\s*\w+|\[/?(?:TOOL_CALLS|ARGS)\]|<[|/\uff5c]{1,2}[^<>]{1,40}>"
    r"|</?[\w:]*(?:tool_?calls?|function_calls?)>",
    re.I,
)
"""Separates the parts of a call."""
_NAME = re.compile(r"(?:functions\.)?([A-Za-z_][\w.-]{0,127}?)(?::\d+)?\Z")
"""The name of a tool. Kimi appends the number of the call."""
_IN_CODE = re.compile(r"\A```tool|\"(?:arguments|parameters|action_input)\"\s*:")
"""Marks a block of code as a call rather than an answer in JSON."""
_STEP = re.compile(
    r"^[ \t]*(Thought|Action Input|Action|Observation|Final Answer)(?: \d{1,4})?[ \t]*:", re.MULTILINE | re.I
)
"""Opens a step of ReAct."""
_BRACKET = re.compile(r"([\w-]{1,64})\[(.*)\]", re.DOTALL)
_FENCE = re.compile(r"```\w*")
_PYTHONIC = re.compile(r"[\[\s]*[A-Za-z_][\w.]{0,127}\(")


def _element_pattern(opening: str, names: str) -> re.Pattern[str]:
    """Pattern of an element's name and contents. It ends before the next such element, so that unclosed elements take
    linear time."""
    contents = f"(?:(?!<{_PREFIX}(?:{names})[ =]).)*?"
    name = r"[\"']?([\w.:/-]{1,128})[\"']?[^<>]{0,64}"
    return re.compile(f"<{_PREFIX}(?:{opening}){name}>({contents})</{_PREFIX}(?:{names})>", re.DOTALL)


_INVOKE = _element_pattern("invoke name=|function(?: name)?=", "invoke|function")
_PARAMETER = _element_pattern("parameter(?: name)?=", "parameter")


def parts_in_text(text: str, words: str) -> list[JsonObject]:
    """A text as content blocks: texts, calls and results; empty if no call can be parsed.

    `words` is the text without reasoning, in which calls are not made.
    """
    if words.lstrip()[:1] in ("[", "{") and (calls := list(_pythonic(words)) or list(_json_calls(words))):
        return calls
    if (bracket := _BRACKET.fullmatch(words.strip())) and is_finish(bracket[1]):
        return [_call(bracket[1], {"query": bracket[2]})]
    if any(head[1].lower() == "action" for head in _STEP.finditer(words)):
        parts = list(_steps(text))
    else:
        parts = list(_parts(text)) if _SPECIAL_QUERY.search(text) or _OPENING.search(words) else []
    return parts if any(part["type"] == "tool_use" for part in parts) else []


def call_mark_in(text: str) -> str:
    """The first mark of a call in a text; "" without one."""
    mark = _CALL_MARK.search(text)
    return mark[0].strip() if mark else ""


def results_in_text(text: str, follows_call: bool) -> tuple[list[str], str]:
    """The results in a user's message, and its other text. Without marks, a message after a call is its result."""
    parts = list(_parts(text)) if follows_call or _USER_RESULT.search(text) else []
    results = [str(part["content"]).strip() for part in parts if part["type"] == "tool_result"]
    if follows_call and not results:
        return [without_heading(text)], ""
    return results, "".join(str(part["text"]).strip() for part in parts if part["type"] == "text")


def without_heading(text: str) -> str:
    """A result without a heading such as `Observation:`, or the tag around it."""
    return _HEADING.sub("", text, count=1).strip() if _HEADING.match(text) else without_tag(text)


def without_tag(text: str) -> str:
    """A result without the tag around it."""
    if not _RESULT.match(text.lstrip()):
        return text
    results = [str(part["content"]).strip() for part in _parts(text) if part["type"] == "tool_result"]
    return "\n".join(results) or text


def _parts(text: str) -> Iterator[JsonObject]:
    """The parts of a text in order. An unclosed mark is text, except for calls, which may end the text."""
    position, tried, unclosed = 0, 0, set[str]()
    for mark in _OPENING.finditer(text):
        if mark.start() < (tried if mark["calls"] else position):  # inside a part, or a region without a call
            continue
        closing = _closing_of(mark[0])
        end = -1 if closing in unclosed else text.find(closing, mark.end())
        if end < 0:
            unclosed.add(closing)
            if mark["calls"] is None or mark[0].startswith("```"):
                continue
            next_result = _RESULT.search(text, mark.end())
            end, closing = next_result.start() if next_result else len(text), ""
        body, part_end = text[mark.end() : end], end + len(closing)
        parts: list[JsonObject] = [{"type": "tool_result", "content": body}]
        if mark["query"]:
            parts = [_call("search", {"query": body.strip()})]
        elif mark["calls"]:
            is_code = mark[0].startswith("```") and not _IN_CODE.search(mark[0] + body)
            parts = [] if is_code else list(_calls_in(text[mark.start() : part_end]))
            tried = part_end
        if parts:
            yield {"type": "text", "text": text[position : mark.start()]}
            yield from parts
            position = tried = part_end
    yield {"type": "text", "text": text[position:]}


def _call(name: str, arguments: Json) -> JsonObject:
    return {"type": "tool_use", "name": name, "input": arguments}


def _closing_of(mark: str) -> str:
    if mark.startswith("```"):
        return "```"
    if mark.startswith("<") and not mark.endswith(">"):
        return f"</{mark[1:].split('=')[0].split(' ')[0]}>"
    end = re.sub("begin|start", lambda word: "END" if word[0].isupper() else "end", mark, flags=re.I)
    return end if end != mark else f"{mark[:2]}/{mark[2:]}" if mark[1] in "|\uff5c" else f"{mark[0]}/{mark[1:]}"


def _calls_in(region: str) -> Iterator[JsonObject]:
    """The calls between the marks of a text, each as a block."""
    invocations = _INVOKE.findall(region)
    for name, body in invocations:
        pairs: JsonObject = {key: value.strip() for key, value in _PARAMETER.findall(body)}
        yield _call(name, pairs or next(iter(_values(body)), {}))
    name = ""
    for piece in () if invocations else _TOKEN.split(_FENCE.sub(" ", region)):
        start = min((position for position in map(piece.find, "[{") if position >= 0), default=len(piece))
        for word in piece[:start].split():
            if match := _NAME.fullmatch(word):
                name = match[1]
        if pythonic := list(_pythonic(piece)):
            yield from pythonic
            continue
        for value in _values(piece[start:]):
            if call := _call_in(value):
                yield call
            elif name and isinstance(value, dict):
                yield _call(name, value)


def _call_in(value: Json) -> JsonObject | None:
    use = tool_use_in(value) if isinstance(value, dict) else None
    if use is None or use.call is None:
        return None
    function = cast(JsonObject, use.call["function"])
    return {"type": "tool_use", "id": use.call["id"], "name": function["name"], "input": function["arguments"]}


def _json_calls(text: str) -> Iterator[JsonObject]:
    """The calls in a text that is only JSON."""
    yield from filter(None, map(_call_in, _values(text) if _IN_CODE.search(text) else ()))


def _steps(text: str) -> Iterator[JsonObject]:
    """The parts of a text with steps of ReAct: `Action: search[Ada]`, or a name before `Action Input: Ada`."""
    heads = list(_STEP.finditer(text))
    yield {"type": "text", "text": text[: heads[0].start()]}
    name = ""
    for head, end in zip(heads, [*(head.start() for head in heads[1:]), len(text)], strict=True):
        step, body = head[1].lower(), text[head.end() : end].strip()
        bracket = _BRACKET.fullmatch(body) if step == "action" else None
        if bracket:
            yield _call(bracket[1], {"query": bracket[2]})
        elif step == "action":
            name = body.partition("\n")[0]
            yield from _json_calls(_FENCE.sub("", body).strip())
        elif step == "action input" and name:
            arguments = next(iter(_values(_FENCE.sub("", body))), None)
            yield _call(name, arguments if isinstance(arguments, dict) else {"query": body.strip("\"'")})
        elif step == "observation":
            if body:
                yield {"type": "tool_result", "content": body}
        else:
            yield {"type": "text", "text": f"{head[0].strip()} {body}\n"}


def _values(text: str) -> list[Json]:
    """The values of a text in JSON or as Python prints them; a list counts as several values."""
    values: list[Json] = []
    with suppress(InvalidJson):
        values = parse_lenient_values(text)
    if not values:
        values = [value] if (value := python_value(text)) is not None else []
    return [item for value in values for item in (value if isinstance(value, list) else [value])]


def _pythonic(text: str) -> Iterator[JsonObject]:
    """Calls as Llama and LFM write them: `[search(query="Ada")]`, `brave_search.call(query="Ada")`."""
    if not _PYTHONIC.match(text) or len(text) > MOST_PYTHON:
        return
    with suppress(SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        tree = ast.parse(text.strip(), mode="eval").body
        for call in tree.elts if isinstance(tree, ast.List) else [tree]:
            if isinstance(call, ast.Call):
                pairs = {keyword.arg or "": keyword.value for keyword in call.keywords}
                if call.args:
                    pairs["query"] = call.args[0]
                arguments = json.dumps({name: ast.literal_eval(value) for name, value in pairs.items()})
                yield _call(ast.unparse(call.func).removesuffix(".call"), json.loads(arguments))
