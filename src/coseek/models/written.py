"""Written: parses the output of a model: visible text, reasoning, refusal and tool calls. All users of models' texts
parse them here: agents on servers, generators, judges, rankers, simulators, label methods, imported logs.

Models mark their reasoning in different ways, and a chat template may write the opening mark itself, so that only the
closing one appears. Reasoning that the token limit cut is not closed. Harmony (gpt-oss) writes channels instead; a
server that drops special tokens leaves only the channels' names.

`read_turn` parses a whole turn as an assistant's message: its reasoning, its words and its tool calls, in order. The
format follows from the text: `<tool_call>` with JSON (Hermes, Qwen) or with a name and `<arg_key>` (GLM), JSON alone
or after `<|python_tag|>` (Llama 3), or Harmony's channels (gpt-oss). Calls inside reasoning are ignored.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from coseek.core.files import Json, JsonObject
from coseek.core.prompt_file import harmless
from coseek.core.strict_json import InvalidJson, fault_in, parse_lenient, parse_lenient_values, parse_strict

REASONING_MARKS = (
    ("<think>", "</think>"),  # DeepSeek-R1, Qwen3, GLM, MiniMax
    ("<thought>", "</thought>"),  # EXAONE Deep
    ("<seed:think>", "</seed:think>"),  # Seed-OSS
    ("<longcat_think>", "</longcat_think>"),
    ("[THINK]", "[/THINK]"),  # Mistral
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Cohere
    ("<|begin_of_thought|>", "<|end_of_thought|>"),  # OpenThinker
    ("◁think▷", "◁/think▷"),  # Kimi
    ("<|channel>thought", "<channel|>"),  # Gemma
    ("<unused94>thought", "<unused95>"),  # MedGemma
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),  # gpt-oss
    ("Here is my thought process:", "Here is my response:"),  # Granite
    ("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),  # Apriel
)
"""Opening and closing marks of the reasoning of published models, as their chat templates write them."""
_NAME = r"(?:\w{1,12}[:_])?(?:think(?:ing|_fast|_faster)?|thoughts?|reasoning)"
"""A tag of reasoning, which some models prefix: `seed:think`, `longcat_think`."""
_FINAL = r"(?:<\|start\|>assistant)?<\|channel\|>(?:final|commentary)(?:[^<]|<\|constrain\|>){0,40}<\|message\|>"
"""The head of Harmony's visible text."""
_ANSWER_MARK = re.compile(rf"<\|START_(?:RESPONSE|TEXT)\|>|<\|begin_of_(?:solution|box)\|>|{_FINAL}")
"""What models write in front of their visible text."""
_OPENS = (
    rf"<\s?{_NAME}(?:\s[^<>]{{0,80}})?>",
    rf"<\|(?:(?:start|begin)_(?:of_)?)?{_NAME}(?:_start)?\|>",
    *(re.escape(start) for start, _ in REASONING_MARKS),
)
_CLOSES = (
    rf"<\s?/\s?{_NAME}\s?>",
    rf"<\|(?:/|end_(?:of_)?){_NAME}\|>",
    rf"<\|{_NAME}_end\|>",
    rf"<\|end\|>{_FINAL}",
    *(re.escape(end) for _, end in REASONING_MARKS),
)
_STARTS = re.compile("(?:start|begin)(?=_)|(?<=_)start", re.I)
"""The word in an opening mark that is `end` in its closing mark."""
_MAX_MARK_CHARS = 64
"""Maximum number of characters of a mark at the end of a text."""
MARK = re.compile(f"(?P<closes>{'|'.join(_CLOSES)})|{'|'.join(_OPENS)}", re.I)
"""A mark of reasoning; the group `closes` is one that closes it."""
MARK_IN_DATA = "|".join(mark for mark in (*_CLOSES, *_OPENS) if not mark[0].isalpha())
"""Pattern of such a mark in text from outside, for `re.IGNORECASE`: without the marks that are ordinary sentences."""
_BEGINS = re.compile(rf"\s*+({'|'.join(re.escape(start) for start, _ in REASONING_MARKS)})")
_FRAMES = re.compile(
    r"<\|(?:begin|end)_of_(?:solution|box)\|>|<\|(?:START|END)_(?:RESPONSE|TEXT)\|>|\[END FINAL RESPONSE\]"
    r"|<\|(?:im_end|eot_id|eom_id|endoftext|end_of_text|end|return)\|>\s*+\Z|(?:</s>|<end_of_turn>|<eos>)\s*+\Z"
)
"""Marks around an answer, and the token that ends a turn if a server leaves it in the text."""
_ARGUMENTS = ("arguments", "args", "input", "parameters")
"""Fields with the arguments of a call, in order of preference."""
_TEXTS = ("thinking", "text", "content", "value", "summary")
"""Fields with the text of a content part, in order of preference."""
_REASONING = ("reasoning_content", "reasoning", "thinking", "reasoning_details", "thinking_blocks")
"""Fields of a message with its reasoning, in order of preference."""
_NAMESPACE = re.compile(r"(?:functions|default_api|tools)[.:]")
"""Prefixes that some models put before a tool's name."""
_CALL_PARTS = ("tool_use", "tool_call", "function_call")
"""Types of content parts that are tool calls."""
_JSON_LIKE = re.compile(r'^\s*["\[{]|["\]}]\s*$|":')
CHANNEL_END = re.compile(r"<\|(?:end|return|call|start)\|>")
_BARE_CHANNELS = re.compile(r"\A\s*+(?:(?:analysis(.*))?assistantfinal|analysis(?=[A-Z][a-z' ])(.*)\Z)", re.DOTALL)
"""Harmony's channels where the server dropped the special tokens; the token limit may have cut the first."""


@dataclass(frozen=True, slots=True)
class ToolCallText:
    """A tool call that a server or a log keeps separate from the text."""

    ident: str | None = field(compare=False)
    name: str
    arguments: Json
    """The arguments; a text where they are not valid JSON."""

    @property
    def is_malformed(self) -> bool:
        """Whether the arguments are invalid JSON rather than plain text."""
        return isinstance(self.arguments, str) and _JSON_LIKE.search(self.arguments) is not None

    @property
    def object(self) -> JsonObject:
        """The arguments as an object, as formats and tools need them."""
        return self.arguments if isinstance(self.arguments, dict) else {"arguments": self.arguments}


def split_reasoning(text: str) -> tuple[str, str]:
    """The reasoning and the visible text in a model's output, without their marks. Runs in linear time."""
    if "<|channel|>" in text:  # Harmony: the last `final` channel is the text, all other channels but calls reasoning
        message = _harmony(text) if _HEAD.search(text) else {"reasoning_content": text.strip()}
        return str(message.get("reasoning_content", "")), str(message.get("content", ""))
    if bare := _BARE_CHANNELS.match(text):
        return (bare[1] or bare[2] or "").strip(), text[bare.end() :].strip()
    reasoning: list[str] = []
    visible_pieces: list[str] = []
    is_reasoning, start = False, 0
    for mark in MARK.finditer(text):
        piece, start = text[start : mark.start()], mark.end()
        closes = mark["closes"] is not None
        if closes and not is_reasoning:  # the template opened it: all text before is reasoning
            reasoning += [*visible_pieces, piece]
            visible_pieces = []
        else:
            (reasoning if is_reasoning else visible_pieces).append(piece)
        is_reasoning = not closes
    (reasoning if is_reasoning else visible_pieces).append(text[start:])
    return "\n".join(filter(None, map(str.strip, reasoning))), _FRAMES.sub("", _join(visible_pieces)).strip()


def _join(pieces: list[str]) -> str:
    """Join the pieces of an answer that reasoning interrupts; a line break separates their words."""
    text = ""
    for piece in pieces:
        needs_break = text and piece and not text[-1].isspace() and not piece[0].isspace()
        text += f"\n{piece}" if needs_break else piece
    return text


def without_reasoning(text: str) -> str:
    """A text without reasoning; empty if the tokens ran out before an answer. A text without marks is unchanged."""
    if "<|channel|>" not in text and not MARK.search(text) and not _BARE_CHANNELS.match(text):
        return _FRAMES.sub("", text) if "<" in text or "[" in text else text
    return split_reasoning(text)[1]


def opens_reasoning(mark: str) -> bool:
    """Whether a mark opens reasoning."""
    match = MARK.fullmatch(mark.strip())
    return match is not None and match["closes"] is None


def opened_at_end(text: str) -> str:
    """The mark that opens reasoning at the end of a text, as some chat templates end their prompts; "" without one."""
    end = text.rstrip()
    marks = [mark for mark in MARK.finditer(end[-_MAX_MARK_CHARS:]) if opens_reasoning(mark[0])]
    return marks[-1][0] if marks and marks[-1].end() == len(end[-_MAX_MARK_CHARS:]) else ""


def is_read_before_answer(text: str) -> bool:
    """Whether a text in front of an answer holds nothing but closed reasoning."""
    marks = [*MARK.finditer(text)]
    return not without_reasoning(text).strip() and (not marks or marks[-1]["closes"] is not None)


def closing_of(mark: str) -> str:
    """The closing mark of one that opens reasoning."""
    if pair := next((pair for pair in REASONING_MARKS if pair[0] == mark), None):
        return pair[1]
    if mark.startswith("<|"):
        end_mark = _STARTS.sub("end", mark)
        return end_mark if end_mark != mark else f"<|/{mark[2:]}"
    return f"</{mark[1:-1].split()[0]}>"


def ending_empty_reasoning(mark: str) -> str:
    """What chat templates write after an opening mark for a turn without reasoning; "" without a mark."""
    return f"\n{closing_of(mark)}\n\n" if mark else ""


def begun_reasoning(text: str) -> tuple[str, str]:
    """The mark of a published model with which a text begins its reasoning, and the text after it; "" without one."""
    start = _BEGINS.match(text)
    return (start[1], text[start.end() :]) if start else ("", text)


def split_opened(text: str, mark: str) -> tuple[str, str] | None:
    """Split a text after `mark`, which opens reasoning, at the end of this reasoning; `None` if it is not closed.

    Without the mark that closes it, any other closing mark counts, since the prompt may ask for `</think>`.
    """
    ends = [end for end in MARK.finditer(text) if end["closes"] is not None]
    end = next((end for end in ends if end[0] == closing_of(mark)), ends[0] if ends else None)
    return (text[: end.start()], text[end.end() :]) if end else None


def without_answer_mark(text: str) -> str:
    """A text without the mark that some models write in front of their visible text."""
    start = _ANSWER_MARK.match(text.lstrip())
    return text.lstrip()[start.end() :] if start else text


def unmarked(text: str) -> str:
    """A text with blanks in place of all marks of reasoning and of visible text."""
    return _ANSWER_MARK.sub(" ", MARK.sub(" ", text))


def visible_after(text: str, mark: str) -> str | None:
    """The visible text after the last `mark`, which may also be one that closes reasoning; `None` without the mark. An
    empty mark stands for the whole visible text."""
    if (end := MARK.fullmatch(mark.strip())) and end["closes"] is not None:
        return without_reasoning(text) if mark in text else None
    text = without_reasoning(text)
    if mark and mark not in text:
        return None
    return text.rpartition(mark)[2] if mark else text


def repeatable(text: str) -> str:
    """A text for a prompt that a model may repeat in its answer: marks of reasoning in it are neutralised."""
    return MARK.sub(harmless, text)


def content_of(content: Json) -> tuple[str, str]:
    """The text and the reasoning in a message's content: a text, a list of parts, or nothing. Raises `ValueError` for
    other content."""
    if content is None or isinstance(content, str):
        return content or "", ""
    if not isinstance(content, list):
        raise ValueError("its answer holds no text")
    texts: list[str] = []
    reasoning: list[str] = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict):
            (reasoning if _is_reasoning(part) else texts).append(_part_text(part))
    return "".join(texts), "\n".join(filter(None, reasoning))


def _is_reasoning(part: JsonObject) -> bool:
    """Whether a part of a content holds reasoning: `thinking`, `reasoning_text`, `redacted_thinking`, or Gemini's."""
    kind = part.get("type")
    return part.get("thought") is True or (isinstance(kind, str) and ("thinking" in kind or "reasoning" in kind))


def _part_text(value: Json) -> str:
    """The text of a part, which may itself be a list of parts."""
    if isinstance(value, list):
        return "".join(map(_part_text, value))
    if isinstance(value, dict):
        return _part_text(next((value[name] for name in _TEXTS if value.get(name) is not None), None))
    return value if isinstance(value, str) else ""


def reasoning_in(message: JsonObject) -> str:
    """The reasoning that a server returns in a field of its own or in the content of a message."""
    for key in _REASONING:
        if text := _part_text(message.get(key)):
            return text
    content = message.get("content")
    return content_of(content)[1] if isinstance(content, list) else ""


def reasoning_field(message: JsonObject) -> str:
    """The field of a server's message with its reasoning as a text, and in which it accepts it; "" without one."""
    for name in _REASONING[:2]:
        if isinstance(message.get(name), str) and message[name]:
            return name
    content = message.get("content")
    return "content" if isinstance(content, str) and split_reasoning(content)[0] else ""


def refusal_in(message: JsonObject) -> str:
    """The model's refusal, which a server returns instead of content; "" without one."""
    if isinstance(refusal := message.get("refusal"), str):
        return refusal
    refusals = (part.get("refusal") for part in _parts(message))
    return next((text for text in refusals if isinstance(text, str)), "")


def calls_in(message: JsonObject) -> list[ToolCallText]:
    """The tool calls of an assistant message, those of the older form `function_call` and of LangChain (`args`) too."""
    tool_calls = message.get("tool_calls")
    rows = [row for row in tool_calls if isinstance(row, dict)] if isinstance(tool_calls, list) else []
    rows += [part for part in _parts(message) if part.get("type") in _CALL_PARTS]
    if isinstance(message.get("function_call"), dict):
        rows.append({"function": message["function_call"]})
    calls: list[ToolCallText] = []
    for row in rows:
        function, ident = row.get("function", row.get("custom", row)), row.get("id")
        if isinstance(function, dict) and isinstance(name := function.get("name"), str):
            name = name[prefix.end() :] if (prefix := _NAMESPACE.match(name)) else name
            calls.append(ToolCallText(ident if isinstance(ident, str) else None, name, _arguments(function)))
    return calls


def _parts(message: JsonObject) -> list[JsonObject]:
    """The parts of a message's content; empty if it is a text."""
    content = message.get("content")
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


def _arguments(function: JsonObject) -> Json:
    arguments = next((function[name] for name in _ARGUMENTS if function.get(name) is not None), None)
    for _ in range(2):  # some programs encode the arguments twice
        if isinstance(arguments, str):
            with suppress(InvalidJson):
                arguments = parse_strict(arguments)
    return arguments


CALL = ("<tool_call>", "</tool_call>")
RESPONSE = ("<tool_response>", "</tool_response>")
"""Marks of a result in coseek's own format, for models without a template for it."""
MAX_CALLS = 32
"""Calls in one turn; a model in a loop writes thousands."""
_PYTHON_TAG = "<|python_tag|>"
_HEAD = re.compile(r"<\|channel\|>([^<]*+(?:<\|constrain\|>[^<]*+)?)<\|message\|>")
_RECIPIENT = re.compile(r"\bto=([\w.:-]{1,128})")
_PAIR = re.compile(
    r"<arg_key>((?:(?!<arg_key>).)*?)</arg_key>\s*+<arg_value>((?:(?!<arg_value>).)*?)</arg_value>", re.DOTALL
)
"""A tag ends before the next one of its name, so that tags without an end are read in linear time."""
_CALL_NAME = re.compile(r"[\w.:-]{1,128}")


def read_turn(text: str, opened: str = "", tools: Sequence[JsonObject] = ()) -> JsonObject:
    """Parse the assistant's message in a turn: `content`, `reasoning_content` and `tool_calls`, each if present.

    `opened` is the mark of reasoning at the end of the prompt. `tools` are the schemas in the prompt: they determine
    which plain JSON is a call, and the types of GLM's arguments. An unreadable call has no name, and its text as
    arguments.
    """
    text = opened + text
    if _HEAD.search(text):
        return _harmony(text)
    reasoning, words = split_reasoning(text)
    content, calls = _marked_calls(words, tools) if CALL[0] in words else _bare_calls(words, tools)
    return message_of(content, reasoning, calls)


def message_of(content: str, reasoning: str, calls: Sequence[ToolCallText]) -> JsonObject:
    """An assistant's message with its non-empty parts. Of more than `MAX_CALLS` calls the first are kept, and the
    others are replaced by an unreadable one."""
    if len(calls) > MAX_CALLS:
        calls = [*calls[:MAX_CALLS], unread(f"more than {MAX_CALLS} calls in one turn")]
    message: JsonObject = {"content": content.strip()} if content.strip() else {}
    if reasoning.strip():
        message["reasoning_content"] = reasoning.strip()
    if calls:
        message["tool_calls"] = [{"name": call.name, "arguments": call.arguments} for call in calls]
    return message


def parameters_of(tools: Sequence[JsonObject]) -> dict[str, Mapping[str, Json]]:
    """The properties of each tool's parameters, by the tool's name."""
    parameters: dict[str, Mapping[str, Json]] = {}
    for tool in tools:
        function = tool.get("function")
        if isinstance(function, dict) and isinstance(name := function.get("name"), str):
            schema = function.get("parameters")
            properties = schema.get("properties") if isinstance(schema, dict) else None
            parameters[name] = properties if isinstance(properties, dict) else {}
    return parameters


def _harmony(text: str) -> JsonObject:
    """Channels: a message with a recipient is a call, the last `final` one the content, all others reasoning."""
    reasoning: list[str] = []
    calls: list[ToolCallText] = []
    content = ""
    between, *parts = _HEAD.split(text)
    for head, channel in zip(parts[::2], parts[1::2], strict=True):
        body, *rest = CHANNEL_END.split(channel, 1)
        if recipient := _RECIPIENT.search(head) or _RECIPIENT.search(between):
            calls += _read_call({"name": recipient[1], "arguments": body}) or [unread(body)]
        elif re.match(r"\s*final\b", head):
            content = body
        else:
            reasoning.append(body.strip())
        between = "".join(rest)
    return message_of(content, "\n".join(filter(None, reasoning)), calls)


def _marked_calls(words: str, tools: Sequence[JsonObject]) -> tuple[str, list[ToolCallText]]:
    """The words outside `<tool_call>`, and the calls. The last one may lack its closing mark, if it ended the turn."""
    content, *pieces = words.split(CALL[0], MAX_CALLS + 1)
    calls: list[ToolCallText] = []
    for number, piece in enumerate(pieces, start=1):
        body, closed, rest = piece.partition(CALL[1])
        is_complete = closed or number == len(pieces)
        calls += (is_complete and (_json_calls(body) or _tag_calls(body, tools))) or [unread(body)]
        content += rest if rest.strip() else ""
    return content, calls


def _json_calls(text: str) -> list[ToolCallText]:
    with suppress(InvalidJson):
        value = parse_lenient(text)
        rows = value if isinstance(value, list) else [value]
        return [call for row in rows for call in (_read_call(row) or [unread(json.dumps(row, ensure_ascii=False))])]
    return []


def _tag_calls(text: str, tools: Sequence[JsonObject]) -> list[ToolCallText]:
    name = text.partition("<arg_key>")[0].strip()
    if not _CALL_NAME.fullmatch(name):
        return []
    types = parameters_of(tools).get(name, {})
    pairs = ((key.strip(), value) for key, value in _PAIR.findall(text))
    return _read_call({"name": name, "arguments": {key: _argument_of(value, types.get(key)) for key, value in pairs}})


def _argument_of(text: str, schema: Json) -> Json:
    """Parse an argument in plain text as JSON, unless its type may be a string."""
    kinds = schema.get("type") if isinstance(schema, dict) else None
    if kinds == "string" or (isinstance(kinds, list) and "string" in kinds):
        return text.strip()
    with suppress(InvalidJson):
        return parse_lenient(text)
    return text.strip()


def _bare_calls(words: str, tools: Sequence[JsonObject]) -> tuple[str, list[ToolCallText]]:
    """Llama 3: JSON objects after the tag, or as the whole text if each is a call."""
    content, tag, text = words.rpartition(_PYTHON_TAG)
    if not tag and words.lstrip()[:1] not in ("{", "["):
        return words, []
    rows = _values(text)
    calls = [call for row in rows for call in _read_call(row)]
    if tag:
        return content, calls or [unread(text)]
    all_calls = len(calls) == len(rows) and all(_is_call(row, [*parameters_of(tools)]) for row in rows)
    return ("", calls) if calls and all_calls else (words, [])


def _is_call(row: Json, tools: Sequence[str]) -> bool:
    """Whether JSON without any mark calls one of the tools, or has exactly a name and arguments."""
    if not isinstance(row, dict):
        return False
    return row.get("name") in tools or any({"name", field} == row.keys() for field in ("parameters", "arguments"))


def _values(text: str) -> list[Json]:
    """The JSON values of a text, those in lists too; empty if it has any other text."""
    with suppress(InvalidJson):
        return [row for value in parse_lenient_values(text) for row in (value if isinstance(value, list) else [value])]
    return []


def _read_call(row: Json) -> list[ToolCallText]:
    """A call in an object with a name and arguments; empty for values that cannot be stored."""
    if not isinstance(row, dict) or not isinstance(row.get("name"), str):
        return []
    calls = calls_in({"tool_calls": [{"function": row}]})
    return [call for call in calls if call.name and not fault_in({"": call.arguments, "name": call.name})]


def unread(text: str) -> ToolCallText:
    """A call that cannot be parsed: no name, and the text as arguments."""
    return ToolCallText(None, "", text.strip())
