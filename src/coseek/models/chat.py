"""Chat: encodes messages with a tokenizer's chat template, or a plain one. Message contents are data.

The template is rendered with placeholders instead of contents and split at them, so that only the template's own text
may contain special tokens.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, groupby
from typing import Annotated, Literal, TypeAlias, cast

from pydantic import BeforeValidator

from coseek.core.errors import DataError, SettingError
from coseek.core.files import JsonObject
from coseek.models.model import Tokenizer
from coseek.models.tokenizer import HfTokenizer
from coseek.models.written import closing_of, opened_at_end

ROLES = ("system", "user", "assistant")
_MARK = re.compile("(\u2003?)\ue000([0-9]+)\ue001(\u2003?)")
"""A placeholder with a space on either side, which templates that trim contents remove. No template contains these
characters, and contents never pass through one."""
_DAY = datetime(2025, 1, 1)
"""The day for templates that write today's date into a prompt (gpt-oss, Llama 3.2): with the real one a run could be
neither resumed nor audited on another day."""
_CLOCK = "".join(f"|replace('%{code}', '{_DAY.strftime(f'%{code}')}')" for code in "YymBbdAaHMSfj")
_ON_THAT_DAY = f"{{%- macro strftime_now(form) -%}}{{{{ form{_CLOCK} }}}}{{%- endmacro -%}}"
"""In front of a template, which then knows no other clock. The library hands no function into a template."""


def _spelt(value: object) -> object:
    return {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value


ChatTemplate: TypeAlias = Annotated[Literal["auto", "on", "off"], BeforeValidator(_spelt)]
"""Whether a policy's prompt stands in its tokenizer's chat template: `auto` where the tokenizer has one. YAML reads
`on` and `off` as booleans."""


@dataclass(frozen=True, slots=True)
class TextPart:
    """A part of the text of a prompt."""

    text: str
    trusted: bool = False
    """Whether it is ours or the template's, so that special tokens in it are tokens."""


Content: TypeAlias = Sequence[TextPart | tuple[int, ...]]
"""What a message says, in pieces of text or as ids."""


@dataclass(frozen=True, slots=True)
class Message:
    """A chat message."""

    role: str
    content: str


def encode_content(tokenizer: Tokenizer, content: Content) -> tuple[int, ...]:
    """Encode adjacent pieces of text as one text, as if the whole were encoded. Where data spell a special token, each
    piece is encoded alone, so that they stay characters."""
    ids: list[int] = []
    for is_text, group in groupby(content, lambda piece: isinstance(piece, TextPart)):
        pieces = [*group]
        texts = [piece for piece in pieces if isinstance(piece, TextPart)]
        if not is_text:
            ids += chain.from_iterable(piece for piece in pieces if isinstance(piece, tuple))
        elif all(one.trusted or tokenizer.encode(one.text) == tokenizer.encode_data(one.text) for one in texts):
            ids += tokenizer.encode("".join(one.text for one in texts))
        else:
            for one in texts:
                ids += tokenizer.encode(one.text) if one.trusted else tokenizer.encode_data(one.text)
    return tuple(ids)


def has_chat_template(tokenizer: Tokenizer) -> bool:
    """Whether a tokenizer comes with a chat template."""
    return isinstance(tokenizer, HfTokenizer) and tokenizer.fast.chat_template is not None


def uses_chat_template(tokenizer: Tokenizer, wanted: ChatTemplate) -> bool:
    """Whether prompts are framed. Raises `SettingError` where a chat template is wanted and there is none."""
    if wanted == "on" and not has_chat_template(tokenizer):
        raise SettingError("chat_template=on, and the model's tokenizer has no chat template; take auto or off")
    return wanted != "off" and has_chat_template(tokenizer)


def chat_frame(tokenizer: Tokenizer, given: bool = False) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids before and after a user's message, up to the assistant's answer. In front of an answer that is `given`, and
    follows no thought, reasoning that the template opens is closed.

    Without a chat template: the beginning-of-text token if the tokenizer puts one in front of texts. Raises `DataError`
    for a template that drops or repeats the message.
    """
    if not isinstance(tokenizer, HfTokenizer) or not has_chat_template(tokenizer):
        return begin_ids(tokenizer), ()
    before, *middle, after = chat_pieces(tokenizer, [("user", [()])])
    if middle != [()]:
        raise DataError(f"the chat template of {tokenizer.source} repeats what a user says; correct its chat_template")
    end = encode_content(tokenizer, [after])
    opened = opened_at_end(tokenizer.decode(end)) if given else ""
    return encode_content(tokenizer, [before]), (
        *end,
        *tokenizer.encode(f"\n{closing_of(opened)}\n\n" if opened else ""),
    )


def chat_pieces(
    tokenizer: HfTokenizer,
    messages: Sequence[tuple[str, Content]],
    *,
    goes_on: bool = False,
    tools: Sequence[JsonObject] = (),
) -> list[TextPart | tuple[int, ...]]:
    """Put messages, (role, content) each, into the chat template, up to the assistant's answer. The last piece is the
    text after the last content. The template is given `tools`, the JSON schemas of what the assistant can call.

    Contents are trimmed where the template trims them, except the end of one that `goes_on`. A system message that the
    template refuses or drops opens the user's message, as in Gemma 3's template. Raises `DataError` for a template
    that does not take the messages, or drops one that is not empty.
    """
    roles = [role for role, _ in messages]
    marks: list[JsonObject] = [
        {"role": role, "content": f"\u2003\ue000{place}\ue001\u2003"} for place, role in enumerate(roles)
    ]
    try:
        split = _MARK.split(templated(tokenizer, marks, tools))
        shown = set(map(int, split[2::4]))
        for dropped in (role for place, (role, content) in enumerate(messages) if content and place not in shown):
            raise DataError(
                f"the chat template of {tokenizer.source} drops what the {dropped} says; correct its chat_template"
            )
    except DataError:
        if roles[:2] != ["system", "user"]:
            raise
        user = ("user", [*messages[0][1], TextPart("\n\n"), *messages[1][1]])
        return chat_pieces(tokenizer, [user, *messages[2:]], goes_on=goes_on, tools=tools)
    pieces: list[TextPart | tuple[int, ...]] = [TextPart(split[0], trusted=True)]
    for at in range(1, len(split), 4):
        before, place, after, text = split[at : at + 4]
        ends = not after and not (goes_on and int(place) == len(messages) - 1)
        pieces += [*_stripped(messages[int(place)][1], not before, ends), TextPart(text, trusted=True)]
    return pieces


def _stripped(content: Content, start: bool, end: bool) -> list[TextPart | tuple[int, ...]]:
    """The content without white space at its start and its end, as far as that is text."""
    pieces = [*content]
    while start and pieces and isinstance(first := pieces[0], TextPart):
        pieces[:1] = [TextPart(text, first.trusted)] if (text := first.text.lstrip()) else []
        start = not text
    while end and pieces and isinstance(last := pieces[-1], TextPart):
        pieces[-1:] = [TextPart(text, last.trusted)] if (text := last.text.rstrip()) else []
        end = not text
    return pieces


def begin_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The beginning-of-text token, if the tokenizer puts one in front of texts."""
    bos_id = tokenizer.fast.bos_token_id if isinstance(tokenizer, HfTokenizer) else None
    if not isinstance(tokenizer, HfTokenizer) or not isinstance(bos_id, int):
        return ()
    return (bos_id,) if list(tokenizer.fast("").input_ids)[:1] == [bos_id] else ()


def templated(
    tokenizer: HfTokenizer,
    messages: Sequence[JsonObject],
    tools: Sequence[JsonObject] = (),
    *,
    answers: bool = True,
) -> str:
    """Render messages with the chat template, where it `answers` up to the assistant's answer. Raises `DataError` for a
    template that does not take them."""
    from jinja2 import TemplateError

    given = cast("list[dict[str, str]]", [*messages])  # what the library declares; templates take any JSON
    try:
        template = tokenizer.fast.get_chat_template(tools=[*tools] or None)
        template = template if "strftime_now" not in template else _ON_THAT_DAY + template
        text = tokenizer.fast.apply_chat_template(
            given, [*tools] or None, chat_template=template, tokenize=False, add_generation_prompt=answers
        )
    except (TemplateError, ValueError, TypeError) as error:
        raise DataError(f"the model's chat template does not take these messages: {str(error)[:200]}") from None
    return str(text)
