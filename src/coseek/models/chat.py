"""Chat: encodes messages with a folder's chat template, or a plain one. Message contents are data.

The template is rendered with placeholders instead of contents and split at them, so that only the template's own text
may contain special tokens.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from coseek.core.errors import DataError
from coseek.models.tokenizer import HfTokenizer

ROLES = ("system", "user", "assistant")
_MARK = re.compile("\ue000([0-9]+)\ue001")
"""A placeholder. No template contains these private-use characters, and contents never pass through one."""


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


def _templated(tokenizer: HfTokenizer, marks: list[dict[str, str]]) -> str:
    from jinja2 import TemplateError

    try:
        marked = tokenizer.fast.apply_chat_template(marks, tokenize=False, add_generation_prompt=True)
    except (TemplateError, ValueError, TypeError) as error:
        raise DataError(f"the model's chat template does not take these messages: {str(error)[:200]}") from None
    return str(marked)
