"""Written: reads what a model wrote: visible text, reasoning, refusal and tool calls. Everything that takes a model's
words reads them here: agents on servers, generators, judges, rankers, simulators, label methods, imported logs.

Models mark their reasoning in different spellings, and a chat template may write the opening mark itself, so that only
the closing one appears. Reasoning that the token limit cut is not closed. Harmony (gpt-oss) writes channels instead; a
server that drops special tokens leaves only the channels' names.
"""

import re
from contextlib import suppress
from dataclasses import dataclass, field

from coseek.core.files import Json, JsonObject
from coseek.core.role_marks import harmless
from coseek.core.strict_json import InvalidJson, parse_strict

_PAIRS = (
    *((f"<{name}>", f"</{name}>") for name in ("think", "thinking", "thought", "seed:think", "reasoning", "mm:think")),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought", "<channel|>"),
    ("<unused94>thought", "<unused95>"),
)
"""Opening and closing marks of reasoning."""
_ENDS = frozenset(end.lower() for _, end in _PAIRS)
_STARTS = frozenset(start.lower() for start, _ in _PAIRS)
_LONGEST = 64
"""Characters in which a mark at the end of a text lies."""
MARK = re.compile("|".join(re.escape(mark) for pair in _PAIRS for mark in pair), re.I)
"""A mark of reasoning."""
_FRAMES = re.compile(r"<\|(?:begin|end)_of_(?:solution|box)\|>|<\|(?:START|END)_(?:RESPONSE|TEXT)\|>")
"""Marks around an answer."""
_ARGUMENTS = ("arguments", "args", "input", "parameters")
"""Fields that hold the arguments of a call, the first that is there."""
_JSON_LIKE = re.compile(r'^\s*["\[{]|["\]}]\s*$|":')
_CHANNEL = re.compile(r"<\|channel\|>\s*+(\w++)[^<]*+(?:<\|constrain\|>[^<]*+)?<\|message\|>")
_CHANNEL_END = re.compile(r"<\|(?:end|return|call|start)\|>")
_BARE_CHANNELS = re.compile(r"\s*+analysis(?=[A-Z\s\"'])(.*)assistantfinal", re.DOTALL)
"""Harmony's channels where the server dropped the special tokens."""


@dataclass(frozen=True, slots=True)
class ToolCallText:
    """A tool call that a server or a log holds apart from the text."""

    ident: str | None = field(compare=False)
    name: str
    arguments: Json
    """The arguments; a text where they are not valid JSON."""

    @property
    def is_malformed(self) -> bool:
        """Whether the arguments are a broken piece of JSON, and no words."""
        return isinstance(self.arguments, str) and _JSON_LIKE.search(self.arguments) is not None

    @property
    def object(self) -> JsonObject:
        """The arguments as an object, as formats and tools want them."""
        return self.arguments if isinstance(self.arguments, dict) else {"arguments": self.arguments}


def split_reasoning(text: str) -> tuple[str, str]:
    """The reasoning and the visible text of what a model wrote, without their marks. Runs in linear time."""
    if "<|channel|>" in text:
        return _split_channels(text)
    if bare := _BARE_CHANNELS.match(text):
        return bare[1].strip(), text[bare.end() :].strip()
    reasoning: list[str] = []
    shown: list[str] = []
    thinks, at = False, 0
    for mark in MARK.finditer(text):
        piece, at = text[at : mark.start()], mark.end()
        closes = mark[0].lower() in _ENDS
        if closes and not thinks:  # the template opened it: all before is reasoning
            reasoning += [*shown, piece]
            shown = []
        else:
            (reasoning if thinks else shown).append(piece)
        thinks = not closes
    (reasoning if thinks else shown).append(text[at:])
    return "\n".join(filter(None, map(str.strip, reasoning))), _FRAMES.sub("", "".join(shown)).strip()


def _split_channels(text: str) -> tuple[str, str]:
    """Harmony: the last `final` channel is the text, all other channels are reasoning."""
    reasoning: list[str] = []
    shown = ""
    found = list(_CHANNEL.finditer(text))
    if not found:
        return text.strip(), ""
    ends = [*(one.start() for one in found[1:]), len(text)]
    for one, end in zip(found, ends, strict=True):
        message = text[one.end() : end]
        if closed := _CHANNEL_END.search(message):
            message = message[: closed.start()]
        if one[1] == "final":
            shown = message
        else:
            reasoning.append(message)
    return "\n".join(filter(None, map(str.strip, reasoning))), shown.strip()


def visible(text: str) -> str:
    """A text without reasoning; empty where the tokens ran out before an answer. A text without marks stays as it
    is."""
    if "<|channel|>" not in text and not MARK.search(text) and not _BARE_CHANNELS.match(text):
        return _FRAMES.sub("", text) if "<|" in text else text
    return split_reasoning(text)[1]


def opens_reasoning(mark: str) -> bool:
    """Whether a mark opens reasoning."""
    return mark.lower() in _STARTS


def opened_at_end(text: str) -> str:
    """The mark that opens reasoning at the end of a text, as some chat templates end their prompts; "" for another
    end."""
    end = text.rstrip()
    marks = [mark for mark in MARK.finditer(end[-_LONGEST:]) if opens_reasoning(mark[0])]
    return marks[-1][0] if marks and marks[-1].end() == len(end[-_LONGEST:]) else ""


def after_opened(text: str, mark: str) -> str | None:
    """What stands after the reasoning that `mark` opened in front of a text; `None` where it is not closed."""
    end = next(end for start, end in _PAIRS if start.lower() == mark.lower())
    _, closed, after = text.partition(end)
    return after if closed else None


def visible_after(text: str, mark: str) -> str | None:
    """The visible text after the last `mark`, which may also be one that closes reasoning; `None` without the mark. An
    empty mark stands for the whole visible text."""
    if mark.strip().lower() in _ENDS:
        return visible(text) if mark in text else None
    text = visible(text)
    _, found, after = text.rpartition(mark) if mark else ("", "", text)
    return after if found or not mark else None


def repeatable(text: str) -> str:
    """A text for a prompt that a model may repeat in its answer: marks of reasoning in it are made harmless."""
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
            kind = part.get("type")
            to = reasoning if kind in ("thinking", "reasoning") else texts
            to.append(_part_text(part.get("thinking", part.get("text", part.get("content")))))
    return "".join(texts), "\n".join(filter(None, reasoning))


def _part_text(value: Json) -> str:
    """The text of a part, which may itself be a list of parts."""
    if isinstance(value, list):
        return "".join(_part_text(one.get("text") if isinstance(one, dict) else one) for one in value)
    return value if isinstance(value, str) else ""


def reasoning_in(message: JsonObject) -> str:
    """The reasoning that a server returns beside or inside the content of a message."""
    beside = (text for key in ("reasoning_content", "reasoning") if isinstance(text := message.get(key), str) and text)
    if found := next(beside, ""):
        return found
    content = message.get("content")
    return content_of(content)[1] if isinstance(content, list) else ""


def refusal_in(message: JsonObject) -> str:
    """The model's refusal, which a server returns instead of content."""
    if isinstance(refusal := message.get("refusal"), str):
        return refusal
    parts = message.get("content")
    refusals = (part.get("refusal") for part in parts if isinstance(part, dict)) if isinstance(parts, list) else ()
    return next((text for text in refusals if isinstance(text, str)), "")


def calls_in(message: JsonObject) -> list[ToolCallText]:
    """The tool calls of an assistant message, those of the older form `function_call` and of LangChain (`args`) too."""
    listed = message.get("tool_calls")
    rows = listed if isinstance(listed, list) else []
    if isinstance(message.get("function_call"), dict):
        rows = [*rows, {"function": message["function_call"]}]
    found: list[ToolCallText] = []
    for row in rows:
        function = row.get("function", row.get("custom", row)) if isinstance(row, dict) else None
        if isinstance(row, dict) and isinstance(function, dict) and isinstance(name := function.get("name"), str):
            ident = row.get("id")
            found.append(ToolCallText(ident if isinstance(ident, str) else None, name, _arguments(function)))
    return found


def _arguments(function: JsonObject) -> Json:
    given = next((function[name] for name in _ARGUMENTS if function.get(name) is not None), None)
    for _ in range(2):  # some programs encode the arguments twice
        if isinstance(given, str):
            with suppress(InvalidJson):
                given = parse_strict(given)
    return given
