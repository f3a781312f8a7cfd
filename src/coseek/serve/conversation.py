"""QuestionInContext: the messages of a request to an agent, as its question and what was said before. Knows no HTTP."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

from pydantic import ConfigDict, Field

from coseek.core.errors import SettingError
from coseek.core.settings import Settings, make_settings
from coseek.models.chat import Message
from coseek.serve.contract import RefusedRequest

_SENTENCE = 400


class LenientSettings(Settings):
    """Fields that are not known are passed over: clients send sampling fields, and how an agent samples is its own."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True, strict=True)


class MessagePart(LenientSettings):
    """A part of a message."""

    type: str
    """`text`, `input_text` or `output_text`; another one is refused."""
    text: str | None = None
    """The text."""


_TEXTS = ("text", "input_text", "output_text")
_WORDS = {
    "image_url": "a picture", "input_image": "a picture", "image": "a picture", "input_audio": "a sound",
    "file": "a file", "input_file": "a file", "video_url": "a video",
}  # fmt: skip


class AgentMessage(LenientSettings):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    """The author."""
    content: str | Annotated[list[MessagePart], Field(fail_fast=True)] | None = None
    """The text, whole or in parts."""

    @property
    def text(self) -> str:
        """Raises `RefusedRequest` (400) for a part that is not text."""
        if isinstance(self.content, str | None):
            return (self.content or "").strip()
        return "".join(map(_text_of, self.content)).strip()


def _text_of(part: MessagePart) -> str:
    if part.type == "refusal":
        return ""
    if part.type not in _TEXTS:
        what = _WORDS.get(part.type, f"a part of the type {part.type[:50]!r}")
        raise RefusedRequest(
            400, f"the content of one of the messages holds {what}, and the agent reads text alone; leave it out"
        )
    if part.text is None:
        raise RefusedRequest(400, f"a part of the type {part.type!r} has no 'text'; add it")
    return part.text


class AgentRequest(LenientSettings):
    """What requests of both APIs have."""

    model: str | None = None
    """The agent's name; may be left out."""
    stream: bool | None = None
    """Send the tokens as they come."""
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    """The samples depend on it and on the conversation alone; 0 when not set."""


@dataclass(frozen=True)
class QuestionInContext:
    """The question, and the messages before it."""

    question: str
    earlier: tuple[Message, ...] = ()

    @classmethod
    def of(cls, messages: Sequence[AgentMessage]) -> "QuestionInContext":
        """The last message is the question; those of the system and of tools are passed over. Raises `RefusedRequest`
        (400)."""
        *before, last = messages
        if last.role != "user" or not last.text:
            raise RefusedRequest(400, "the last message is the question: one of the user's, with text")
        said = (Message(one.role, one.text) for one in before if one.role in ("user", "assistant") and one.text)
        return cls(last.text, tuple(said))


R = TypeVar("R", bound=AgentRequest)
Messages = Annotated[list[AgentMessage], Field(min_length=1, fail_fast=True)]


def read_request(kind: type[R], body: bytes) -> R:
    """Read a request. Raises `RefusedRequest` (400)."""
    try:
        row = json.loads(body)
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise RefusedRequest(400, "the request holds half of a surrogate pair, which is no text") from None
    except (ValueError, RecursionError):
        raise RefusedRequest(400, "the request is not JSON in UTF-8") from None
    if not isinstance(row, dict):
        raise RefusedRequest(400, "the request is a JSON object")
    return checked(kind, row)


S = TypeVar("S", bound=Settings)


def checked(kind: type[S], row: dict[str, object]) -> S:
    """Check an object of a request. Raises `RefusedRequest` (400)."""
    try:
        return make_settings(kind, row)
    except SettingError as error:
        raise RefusedRequest(400, str(error)[:_SENTENCE]) from None
