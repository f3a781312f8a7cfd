"""Tiny tokenizers whose chat templates take tools in the manner of a family of models, and what such a model writes."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from tests.models.networks import TEXTS

from coseek.core.files import JsonObject
from coseek.models.tokenizer import HfTokenizer, train_tokenizer

Calls = Sequence[tuple[str, JsonObject]]
"""Names and arguments."""


@dataclass(frozen=True, eq=False)
class Style:
    """One family."""

    name: str
    template: str
    special: tuple[str, ...]
    """Special tokens; the first one is the end-of-text token."""
    write: Callable[[str, str, Calls], str]
    """(reasoning, words, calls) → a whole turn, with the token that ends it."""
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


_SYSTEM = """\
{%- if tools %}{{- '<|im_start|>system\n# Tools\n' }}
{%- for tool in tools %}{{- tool | tojson + '\n' }}{%- endfor %}{{- '<|im_end|>\n' }}{%- endif %}
"""
_HERMES_LOOP = """\
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{{- '<|im_start|>assistant\n' }}THOUGHT{{- m.content }}
{%- for call in m.tool_calls or [] %}
{{- '\n' if m.content or not loop.first else '' }}
{{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson }}
{{- '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- elif m.role == 'tool' %}
{{- '<|im_start|>user' if loop.first or messages[loop.index0 - 1].role != 'tool' else '' }}
{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}
{{- '<|im_end|>\n' if loop.last or messages[loop.index0 + 1].role != 'tool' else '' }}
{%- else %}
{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}
"""
_LATE_THOUGHT = """\
{%- if loop.index0 > asked.at and (loop.last or m.reasoning_content) %}
{{- '<think>\n' + (m.reasoning_content or '') + '\n</think>\n\n' }}{%- endif %}
"""
_ASKED = """\
{%- set asked = namespace(at=0) %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set asked.at = loop.index0 %}{%- endif %}{%- endfor %}
"""
_NEXT = "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
_LLAMA = """\
{{- '<|begin_of_text|>' }}
{%- for m in messages %}
{%- if m.tool_calls and m.tool_calls | length > 1 %}{{- raise_exception('one call a turn') }}{%- endif %}
{%- set head = '<|start_header_id|>' + ('ipython' if m.role == 'tool' else m.role) + '<|end_header_id|>\n\n' %}
{%- if m.tool_calls %}
{{- head + '{"name": "' + m.tool_calls[0].function.name + '", "parameters": ' }}
{{- m.tool_calls[0].function.arguments | tojson + '}<|eom_id|>' }}
{%- elif m.role == 'tool' %}{{- head + m.content | tojson + '<|eot_id|>' }}
{%- else %}
{{- head }}
{%- if loop.first and tools %}{%- for tool in tools %}{{- tool | tojson + '\n' }}{%- endfor %}{%- endif %}
{{- m.content | trim + '<|eot_id|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}
"""
_HARMONY = """\
{{- '<|start|>developer<|message|># Tools\n' }}
{%- for tool in tools or [] %}{{- 'type ' + tool.function.name + ' = ' + tool.function | tojson + '\n' }}{%- endfor %}
{{- '<|end|>' }}
{%- set last = namespace(name='') %}
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{%- if m.content and m.tool_calls %}{{- raise_exception('words or calls') }}{%- endif %}
{%- if m.reasoning_content %}
{{- '<|start|>assistant<|channel|>analysis<|message|>' + m.reasoning_content + '<|end|>' }}{%- endif %}
{%- for call in m.tool_calls or [] %}
{%- set last.name = call.function.name %}
{{- '<|start|>assistant<|channel|>commentary to=functions.' + call.function.name }}
{{- ' <|constrain|>json<|message|>' + call.function.arguments | tojson + '<|call|>' }}
{%- endfor %}
{%- if not m.tool_calls %}
{{- '<|start|>assistant<|channel|>final<|message|>' + m.content }}
{{- '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}{%- endif %}
{%- elif m.role == 'tool' %}
{{- '<|start|>functions.' + (m.name or last.name) + ' to=assistant<|channel|>commentary<|message|>' }}
{{- m.content | tojson + '<|end|>' }}
{%- else %}{{- '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}
"""
_GLM = """\
{{- '[gMASK]<sop>' }}
{%- if tools %}{{- '<|system|>\n' }}{%- for tool in tools %}{{- tool | tojson + '\n' }}{%- endfor %}{%- endif %}
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{{- '<|assistant|>\n<think>' + (m.reasoning_content or '') + '</think>' }}
{{- '\n' + m.content | trim if m.content | trim or not m.tool_calls else '\n' }}
{%- for call in m.tool_calls or [] %}
{{- '\n<tool_call>' + call.function.name + '\n' }}
{%- for key, value in call.function.arguments.items() %}
{{- '<arg_key>' + key + '</arg_key>\n<arg_value>' }}
{{- value if value is string else value | tojson }}{{- '</arg_value>\n' }}
{%- endfor %}
{{- '</tool_call>' }}
{%- endfor %}
{%- elif m.role == 'tool' %}
{{- '\n<|observation|>' if messages[loop.index0 - 1].role != 'tool' else '' }}
{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}
{%- else %}{{- '<|' + m.role + '|>\n' + m.content }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}
"""
_BRACKETED = """\
{{- '<s>' }}
{%- if tools %}{{- '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{%- endif %}
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{%- if m.reasoning_content %}{{- '[THINK]' + m.reasoning_content + '[/THINK]' }}{%- endif %}
{{- m.content }}
{%- for call in m.tool_calls or [] %}
{%- if call.id | length != 9 %}{{- raise_exception('an id has nine characters') }}{%- endif %}
{{- '[TOOL_CALLS]' + call.function.name + '[ARGS]' }}
{{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}
{%- endfor %}
{{- '</s>' }}
{%- elif m.role == 'tool' %}{{- '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' }}
{%- else %}{{- '[INST]' + m.content + '[/INST]' }}
{%- endif %}
{%- endfor %}
"""
_BRACKETED_READ: JsonObject = {
    "start_anchor": "[/INST]",
    "fields": {
        "thinking": {"open": "[THINK]", "close": "[/THINK]"},
        "tool_calls": {
            "open_pattern": r"\[TOOL_CALLS\](?P<name>[^\[]+)\[ARGS\]",
            "close_pattern": r"(?=\[TOOL_CALLS\])|$",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
        "content": {},
    },
}
_OPENED = _NEXT.replace("assistant\n", "assistant\n<think>\n")
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
STYLES = {
    style.name: style
    for style in (
        Style("hermes", _SYSTEM + _HERMES_LOOP.replace("THOUGHT", "") + _NEXT, _CHATML, _hermes, _MARKED[2:4],
              as_rendered=False),
        Style("thinking", _SYSTEM + _ASKED + _HERMES_LOOP.replace("THOUGHT", _LATE_THOUGHT) + _NEXT, _CHATML, _hermes,
              _MARKED),
        Style("opened", _SYSTEM + _HERMES_LOOP.replace("THOUGHT", "") + _OPENED, _CHATML, _opened, _MARKED,
              as_rendered=False),
        Style("llama3", _LLAMA, _HEADERS, _llama),
        Style("harmony", _HARMONY, _CHANNELS, _harmony),
        Style("glm", _GLM, _ROLES, _glm, (*_MARKED, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")),
        Style("bracketed", _BRACKETED, _BRACKETS, _bracketed, responses=_BRACKETED_READ),
    )
}  # fmt: skip
