"""Tiny tokenizers whose chat templates take tools in the manner of a family of models, and what such a model writes."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.models.networks import TEXTS

from coseek.core.files import JsonObject, read_json_object
from coseek.models.tokenizer import HfTokenizer, train_tokenizer

Calls = Sequence[tuple[str, JsonObject]]
"""Names and arguments."""
Write = Callable[[str, str, Calls], str]
"""(reasoning, words, calls) → a whole turn, with the token that ends it."""


@dataclass(frozen=True, eq=False)
class Style:
    """One family."""

    name: str
    template: str
    special: tuple[str, ...]
    """Special tokens; the first one is the end-of-text token."""
    write: Write
    plain: tuple[str, ...] = ()
    """Added tokens that are not special."""
    responses: JsonObject | None = None
    """transformers' description of what the model writes."""
    as_rendered: bool = True
    """Whether a turn is written exactly as the template renders it, reasoning included."""


@cache
def tokenizer_of(style: Style) -> HfTokenizer:
    fast = train_tokenizer(TEXTS, style.special, 500)
    fast.add_tokens(list(style.plain))
    fast.eos_token = style.special[0]
    fast.chat_template = style.template
    if style.responses is not None:
        fast.response_template = style.responses
    return HfTokenizer(fast, style.name)


def as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _hermes(reasoning: str, words: str, calls: Calls) -> str:
    thought = f"<think>\n{reasoning}\n</think>\n\n" if reasoning else ""
    return thought + _called(words, calls) + "<|im_end|>"


def _opened(reasoning: str, words: str, calls: Calls) -> str:
    return f"{reasoning}\n</think>\n\n{_hermes('', words, calls)}"


def _called(words: str, calls: Calls) -> str:
    rows = [as_json({"name": name, "arguments": arguments}) for name, arguments in calls]
    return "\n".join([*([words] if words else []), *(f"<tool_call>\n{row}\n</tool_call>" for row in rows)])


def _llama(reasoning: str, words: str, calls: Calls) -> str:
    rows = [as_json({"name": name, "parameters": arguments}) for name, arguments in calls]
    return "; ".join(rows) + "<|eom_id|>" if rows else f"{words}<|eot_id|>"


def _harmony(reasoning: str, words: str, calls: Calls) -> str:
    text = f"<|channel|>analysis<|message|>{reasoning}<|end|><|start|>assistant" if reasoning else ""
    heads = (f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{as_json(a)}" for name, a in calls)
    called = "<|call|><|start|>assistant".join(heads)
    return text + (f"{called}<|call|>" if called else f"<|channel|>final<|message|>{words}<|return|>")


def _glm(reasoning: str, words: str, calls: Calls) -> str:
    text = f"\n<think>{reasoning}</think>\n{words}"
    for name, arguments in calls:
        pairs = "".join(
            f"<arg_key>{key}</arg_key>\n<arg_value>{value if isinstance(value, str) else as_json(value)}</arg_value>\n"
            for key, value in arguments.items()
        )
        text += f"\n<tool_call>{name}\n{pairs}</tool_call>"
    return text + ("\n<|observation|>" if calls else "<|user|>")


def _bracketed(reasoning: str, words: str, calls: Calls) -> str:
    thought = f"[THINK]{reasoning}[/THINK]" if reasoning else ""
    return f"{thought}{words}{''.join(f'[TOOL_CALLS]{name}[ARGS]{as_json(a)}' for name, a in calls)}</s>"


_CHATML = ("<|im_end|>", "<|im_start|>", "<|endoftext|>")
_MARKED = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_HEADERS = (
    "<|eot_id|>", "<|eom_id|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>",
)  # fmt: skip
_CHANNELS = ("<|return|>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>")
_ROLES = ("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
_BRACKETS = (
    *("</s>", "<s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
)
FOLDER = Path(__file__).with_name("chat_templates")


def _style(
    name: str, special: Sequence[str], write: Write, plain: Sequence[str] = (), *, as_rendered: bool = True
) -> Style:
    template = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    responses = FOLDER / f"{name}.response.json"
    read = read_json_object(responses) if responses.exists() else None
    return Style(name, template, tuple(special), write, tuple(plain), read, as_rendered)


STYLES = {
    style.name: style
    for style in (
        _style("hermes", _CHATML, _hermes, _MARKED[2:4], as_rendered=False),
        _style("thinking", _CHATML, _hermes, _MARKED),
        _style("opened", _CHATML, _opened, _MARKED, as_rendered=False),
        _style("llama3", _HEADERS, _llama),
        _style("harmony", _CHANNELS, _harmony),
        _style("glm", _ROLES, _glm, (*_MARKED, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")),
        _style("bracketed", _BRACKETS, _bracketed),
    )
}
