"""Chat: encodes messages with a tokenizer's chat template, or a plain one. Message contents are data.

The template is rendered with placeholders instead of contents and split at them, so that only the template's own text
may contain special tokens.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator

from coseek.core.errors import DataError, SettingError
from coseek.models.model import Tokenizer
from coseek.models.tokenizer import HfTokenizer

ROLES = ("system", "user", "assistant")
_MARK = re.compile("\ue000([0-9]+)\ue001")
"""A placeholder. No template contains these private-use characters, and contents never pass through one."""


def _spelt(value: object) -> object:
    return {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value


ChatTemplate: TypeAlias = Annotated[Literal["auto", "on", "off"], BeforeValidator(_spelt)]
"""Whether a policy's prompt stands in its tokenizer's chat template: `auto` where the tokenizer has one. YAML reads
`on` and `off` as booleans."""


@dataclass(frozen=True, slots=True)
class Message:
    """A chat message."""

    role: str
    content: str


def chat_ids(tokenizer: HfTokenizer, messages: Sequence[Message]) -> tuple[int, ...]:
    """The ids of a chat up to the assistant's answer. A template that drops a message is a `DataError`."""
    marks = [{"role": message.role, "content": f"\ue000{place}\ue001"} for place, message in enumerate(messages)]
    if tokenizer.fast.chat_template is not None:
        framed = _templated(tokenizer, marks)
    else:
        framed = "".join(f"{mark['role']}: {mark['content']}\n" for mark in marks) + "assistant:"
    ids: list[int] = []
    said: set[int] = set()
    for at, piece in enumerate(_MARK.split(framed)):
        if at % 2:
            said.add(int(piece))
            ids += tokenizer.encode_data(messages[int(piece)].content)
        elif piece:
            ids += tokenizer.encode(piece)
    for place, message in enumerate(messages):
        if place not in said and message.content:
            raise DataError(f"the model's chat template drops what the {message.role} says in message {place}")
    return tuple(ids)


def has_chat_template(tokenizer: Tokenizer) -> bool:
    """Whether a tokenizer comes with a chat template."""
    return isinstance(tokenizer, HfTokenizer) and tokenizer.fast.chat_template is not None


def uses_chat_template(tokenizer: Tokenizer, wanted: ChatTemplate) -> bool:
    """Whether prompts are framed. Raises `SettingError` where a chat template is wanted and there is none."""
    if wanted == "on" and not has_chat_template(tokenizer):
        raise SettingError("chat_template=on, and the model's tokenizer has no chat template; take auto or off")
    return wanted != "off" and has_chat_template(tokenizer)


def chat_frame(
    tokenizer: Tokenizer, wanted: ChatTemplate = "auto", roles: Sequence[str] = ("user",)
) -> tuple[tuple[int, ...], ...]:
    """Ids around the contents of messages with these roles: before the first, between, and behind the last, up to the
    assistant's answer.

    Without a chat template: the beginning-of-text token if the tokenizer puts one in front of texts, and line breaks.
    Raises `DataError` for a template that drops, repeats or reorders messages.
    """
    if not uses_chat_template(tokenizer, wanted):
        between = tuple(tokenizer.encode("\n"))
        return (begin_ids(tokenizer), *[between] * (len(roles) - 1), ())
    assert isinstance(tokenizer, HfTokenizer)
    marks = [{"role": role, "content": f"\ue000{place}\ue001"} for place, role in enumerate(roles)]
    pieces = _MARK.split(_templated(tokenizer, marks))
    if pieces[1::2] != list(map(str, range(len(roles)))):
        raise DataError(f"the chat template of {tokenizer.source} drops what a user says; correct its chat_template")
    return tuple(tuple(tokenizer.encode(piece)) if piece else () for piece in pieces[::2])


def begin_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The beginning-of-text token, if the tokenizer puts one in front of texts."""
    bos_id = tokenizer.fast.bos_token_id if isinstance(tokenizer, HfTokenizer) else None
    if not isinstance(tokenizer, HfTokenizer) or not isinstance(bos_id, int):
        return ()
    return (bos_id,) if list(tokenizer.fast("").input_ids)[:1] == [bos_id] else ()


def _templated(tokenizer: HfTokenizer, marks: list[dict[str, str]]) -> str:
    from jinja2 import TemplateError

    try:
        marked = tokenizer.fast.apply_chat_template(marks, tokenize=False, add_generation_prompt=True)
    except (TemplateError, ValueError, TypeError) as error:
        raise DataError(f"the model's chat template does not take these messages: {str(error)[:200]}") from None
    return str(marked)
