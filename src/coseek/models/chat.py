"""Chat: messages as ids, by a folder's chat template, or a plain one. What people say in them is data.

The template is filled with marks instead of what was said, and cut at them: its own words may be special tokens, and
what was said never is.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from coseek.core.errors import DataError
from coseek.models.tokenizer import HfTokenizer

ROLES = ("system", "user", "assistant")
_MARK = re.compile("\ue000([0-9]+)\ue001")
"""No template holds these private-use characters, and nothing that was said goes through one."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a chat."""

    role: str
    content: str


def chat_ids(tokenizer: HfTokenizer, messages: Sequence[Message]) -> tuple[int, ...]:
    """The ids that an assistant's answer comes after."""
    framed = _templated(tokenizer, messages) if tokenizer.fast.chat_template is not None else _plain(messages)
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


def _marks(messages: Sequence[Message]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": f"\ue000{place}\ue001"} for place, message in enumerate(messages)]


def _templated(tokenizer: HfTokenizer, messages: Sequence[Message]) -> str:
    from jinja2 import TemplateError

    try:
        marked = tokenizer.fast.apply_chat_template(_marks(messages), tokenize=False, add_generation_prompt=True)
    except (TemplateError, ValueError, TypeError) as error:
        raise DataError(f"the model's chat template does not take these messages: {str(error)[:200]}") from None
    return str(marked)


def _plain(messages: Sequence[Message]) -> str:
    lines = [f"{message['role']}: {message['content']}\n" for message in _marks(messages)]
    return "".join(lines) + "assistant:"
