"""Prompt template: the text around a grammar (prompt, documents, observations), in a YAML file that a user can replace.

Text from outside fills a template's `{fields}`. It is escaped and tokenised as plain characters, so it can neither
close a tag nor become a special token. If the model has a chat template, the prompt is a user's message in it.
"""

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias, cast

from pydantic import Field

from coseek.agents.episode import shown_documents
from coseek.agents.grammar import Grammar
from coseek.agents.limits import Limits
from coseek.agents.tool import DocumentPage
from coseek.core.errors import SettingError, closest
from coseek.core.files import JsonObject, read_yaml
from coseek.core.plugins import find_yaml, yaml_names
from coseek.core.prompt_file import without_role_marks
from coseek.core.settings import Settings, make_settings
from coseek.core.text import separated
from coseek.data.passage import Passage
from coseek.data.question import Question
from coseek.data.trajectory import Search
from coseek.models.chat import (
    ROLES,
    ChatTemplate,
    Content,
    TextPart,
    ToolChat,
    begin_ids,
    chat_pieces,
    encode_content,
    uses_chat_template,
    written_for_assistant,
)
from coseek.models.model import Tokenizer
from coseek.models.tokenizer import HfTokenizer
from coseek.models.written import is_read_before_answer

warn_once = cache(logging.getLogger(__name__).warning)
"""Log a warning once in this process."""
FOLDER = Path(__file__).parent / "prompt_templates"
_FIELD = re.compile(r"(?<!\{)\{(\w+)\}(?!\})")
_BRACES = re.compile(rf"{_FIELD.pattern}|\{{\{{|\}}\}}")
_PROMPT = "prompt"
EARLIER = "earlier_messages"
"""Key of a question's `meta`: the messages of the conversation before it, each `{"role", "content"}`."""


InputMode: TypeAlias = Literal["ids", "text", "messages"]
"""What a model takes: token ids, a text (its server adds the beginning-of-text token), or chat messages (its server
applies the chat template)."""


class PromptTemplateFile(Settings):
    """The templates of one prompt template."""

    about: str = ""
    """One line for people."""
    prompt: str
    """The first segment of an episode, with the field `{question}`."""
    prompts: dict[str, str] = Field(default={})
    """Prompts of single protocols by name, which replace `prompt`. A file that extends a template adds to them."""
    protocols: tuple[str, ...] = ()
    """Protocols that the prompts are written for; empty: any."""
    chat_template: ChatTemplate = "auto"
    """Whether to put the prompt into the model's chat template as a user's message; `auto`: if the tokenizer has a
    template. Use `off` for a prompt that already holds a model's chat marks."""
    prompt_column: bool = False
    """Use the prompt in the data (`meta.prompt`, from the `prompt` column of Search-R1's files), and `prompt` only for
    questions without it."""
    tools: str = ""
    """Inserted before the prompt of an agent with native tool calls whose model has no chat template; `{tools}` holds
    one JSON schema per line."""
    observation: str = ""
    """Text around the documents of a search, with the field `{documents}`."""
    document: str = ""
    """One passage, with the fields `{rank}` (from 1 within its block), `{number}` (from 1 within the run), `{id}`,
    `{title}` and `{text}`."""
    question_spelling: Literal["as_typed", "separated"] = "as_typed"
    """How the question is spelled in the prompt: as typed, or as in laptop worlds, with blanks around every mark
    (`coseek.core.text`)."""
    space_before: bool = False
    """Insert a space before a field that has none, so that its first word has the same token as inside a sentence."""
    nothing_found: str = ""
    """Shown instead of the documents when a search found nothing."""
    failed: str = "\n(no result: the search for {query} failed)\n"
    """Shown instead of the documents of a failed query when other queries succeeded, with the field `{query}`."""
    retry: str = ""
    """Response to a turn without a valid action, with the field `{problem}`."""
    page: str = "\n{title} (page {page} of {pages})\n{text}\n"
    """A page of an opened document, with the fields `{id}`, `{title}`, `{page}`, `{pages}` and `{text}`."""
    part: str = "\n{title} (id: {id})\n{text}\n"
    """One of several passages that together are the `{text}` of `page`, with the fields `{id}`, `{title}` and
    `{text}`."""
    missing: str = "\n(there is no page {page} of a document {id} among those that were found)\n"
    """Shown instead of a page that does not exist, with the fields `{id}` and `{page}`."""
    result: str = "\n{text}\n"
    """The result of a tool other than search and visit, with the field `{text}`."""
    notes: str = ""
    """Prompt of the side context in which the model writes notes on search results, with the fields `{question}`,
    `{reasoning}` (the text before the query), `{query}` and `{documents}`."""


_WAY_OUT = {_PROMPT: "take a prompt template without prompt_column", EARLIER: "correct it, or rename the key"}
_FIELDS = {
    "prompt": {"question"},
    "tools": {"tools"},
    "observation": {"documents"},
    "document": {"rank", "number", "id", "title", "text"},
    "failed": {"query"},
    "retry": {"problem"},
    "page": {"id", "title", "page", "pages", "text"},
    "part": {"id", "title", "text"},
    "missing": {"id", "page"},
    "result": {"text"},
    "notes": {"question", "reasoning", "query", "documents"},
}
_NEEDED = {"prompt": "question", "tools": "tools", "result": "text", "notes": "documents"}
"""The field without which a template would show nothing."""


@dataclass(frozen=True)
class PromptTemplate:
    """Renders prompts and observations as token ids."""

    file: PromptTemplateFile
    grammar: Grammar
    input_mode: InputMode = "ids"

    @classmethod
    def load(cls, name: str, grammar: Grammar, protocol: str, needs: Sequence[str] = ()) -> "PromptTemplate":
        """Load `default`, `laptop` or the path of a YAML file.

        `protocol` chooses the prompt, or the file `NAME/PROTOCOL.yaml` where there is one. `needs` names templates
        that must not be empty. Raises `SettingError` for a template that does not fit the grammar.
        """
        path, tree = _read_template(name, protocol)
        return cls.of(make_settings(PromptTemplateFile, tree, path), grammar, protocol, needs, str(path))

    @classmethod
    def of(
        cls, file: PromptTemplateFile, grammar: Grammar, protocol: str, needs: Sequence[str], source: str
    ) -> "PromptTemplate":
        """Check templates against a grammar."""
        if file.protocols and protocol not in file.protocols:
            raise SettingError(
                f"{source} is written for the protocols {', '.join(file.protocols)}, not for {protocol}; take "
                "prompt_template=default, or a YAML file of your own"
            )
        file = file.model_copy(update={"prompt": file.prompts.get(protocol, file.prompt), "prompts": {}})
        for template, fields in _FIELDS.items():
            used = set(_FIELD.findall(getattr(file, template)))
            if unknown := used - fields:
                known_fields = ", ".join(sorted(fields))
                raise SettingError(f"{source}: {template} names {{{min(unknown)}}}; it may hold {known_fields}")
            if getattr(file, template) and (needed := _NEEDED.get(template, "")) not in {"", *used}:
                raise SettingError(f"{source}: {template} lacks {{{needed}}}; write it in single braces")
        tag = None if grammar.native_calls else grammar.by_name.get(grammar.observation)
        needs = (*needs, "tools", "document") if grammar.native_calls else needs
        for template in (*needs, *(("observation", "document") if tag else ())):
            if not getattr(file, template):
                raise SettingError(f"{source} has no {template!r}, and the protocol {protocol} needs it")
        if tag and not _contains_in_order(file.observation, tag.opening, "{documents}", tag.closing):
            expected_text = f"{tag.opening}{{documents}}{tag.closing}"
            raise SettingError(f"{source}: the observation of the protocol {protocol} must hold {expected_text}")
        return cls(file, grammar)

    def with_chat(self, chat_template: ChatTemplate) -> "PromptTemplate":
        """The same with this setting; `auto` keeps the setting of the file."""
        if chat_template == "auto":
            return self
        return replace(self, file=self.file.model_copy(update={"chat_template": chat_template}))

    def framed(self, tokenizer: Tokenizer) -> bool:
        """Whether prompts are put into the tokenizer's chat template. Raises `SettingError` for `on` without one."""
        return uses_chat_template(tokenizer, self.file.chat_template) and self.input_mode != "messages"

    def prompt_ids(
        self, tokenizer: Tokenizer, question: Question, goes_on: bool = False
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The prompt. If search results continue the user's message (`goes_on`), the second part is what the chat
        template writes between that message and the answer."""
        messages = _messages_in_meta(question, _PROMPT) if self.file.prompt_column else None
        if messages is None:
            prompt = self._fill_parts(self.file.prompt, {"question": self._question_text(tokenizer, question)})
            contents: list[tuple[str, Content]] = [("user", prompt)]
        else:
            contents = [(role, self._instruction(tokenizer, text, question.question)) for role, text in messages]
        if self.grammar.native_calls and self.input_mode != "messages" and not self.framed(tokenizer):
            schemas = "\n".join(json.dumps(schema, ensure_ascii=False) for schema in self.grammar.schemas)
            contents[0] = (contents[0][0], [*self._fill_parts(self.file.tools, {"tools": schemas}), *contents[0][1]])
        return self._messages(tokenizer, contents, goes_on)

    def roles(self, question: Question) -> tuple[str, ...]:
        """The roles of the prompt's messages."""
        messages = _messages_in_meta(question, _PROMPT) if self.file.prompt_column else None
        return ("user",) if messages is None else tuple(role for role, _ in messages)

    def tool_chat(self, tokenizer: Tokenizer) -> ToolChat | None:
        """How the tokenizer's chat template frames turns with native tool calls; `None` if no template does."""
        if not (self.grammar.native_calls and self.framed(tokenizer)):
            return None
        assert isinstance(tokenizer, HfTokenizer)
        return ToolChat(tokenizer, self.grammar.schemas)

    def opened_mark(self, tokenizer: Tokenizer) -> str:
        """The mark of the agent with which the chat template ends a prompt (`<think>`), which the agent then does not
        write; "" without a mark."""
        return self.grammar.opened_mark(tokenizer.decode(self._messages(tokenizer, [("user", [()])], goes_on=True)[1]))

    def unread_opening(self, tokenizer: Tokenizer) -> str:
        """Why every turn would be invalid: the chat template ends prompts with text that the grammar cannot parse. ""
        otherwise."""
        if self.grammar.free_text or not self.framed(tokenizer) or self.opened_mark(tokenizer):
            return ""
        assert isinstance(tokenizer, HfTokenizer)
        opening = written_for_assistant(tokenizer)
        if is_read_before_answer(opening):
            return ""
        return (
            f"the chat template of {tokenizer.source} ends prompts with {opening.strip()!r}, which is no known mark of "
            "reasoning: what the model writes after it counts as text outside the tags; remove it from the template, "
            "or set chat_template=off"
        )

    def _messages(
        self, tokenizer: Tokenizer, messages: Sequence[tuple[str, Content]], goes_on: bool = False
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Encode messages in their frame. If the last message `goes_on`, the frame after it is returned separately."""
        framed = self.framed(tokenizer)
        if framed:
            assert isinstance(tokenizer, HfTokenizer)
            tools = self.grammar.schemas if self.grammar.native_calls else ()
            pieces = chat_pieces(tokenizer, messages, goes_on=goes_on, tools=tools)
        else:
            pieces = [piece for _, content in messages for piece in (*content, TextPart("\n", trusted=True))]
            pieces[-1:] = [TextPart("", trusted=True)]
        tail = [pieces.pop()] if goes_on else []
        ids, begin = encode_content(tokenizer, pieces), begin_ids(tokenizer)
        if self.input_mode != "ids" and ids[: len(begin)] == begin:
            ids = ids[len(begin) :]  # the server adds it
        elif self.input_mode == "ids" and not framed and ids[: len(begin)] != begin:
            ids = begin + ids
        return ids, encode_content(tokenizer, tail)

    def _instruction(self, tokenizer: Tokenizer, text: str, question: str) -> list[TextPart]:
        """A message of the data. The protocol's marks are trusted if the tokenizer has a token for them; the question
        and role marks are neutralised."""
        marks = frozenset(self.grammar.special_tokens)
        before, matched, after = text.rpartition(question)
        neutral = without_role_marks(before, marks) + self.grammar.escape(matched) + without_role_marks(after, marks)
        return [*self._split_at_marks(tokenizer, neutral)]

    def text_ids(self, tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
        """Tokenise a text in which only the protocol's marks can be special tokens."""
        return encode_content(tokenizer, [*self._split_at_marks(tokenizer, text)])

    def _split_at_marks(self, tokenizer: Tokenizer, text: str) -> Iterator[TextPart]:
        """Split a text at the protocol's marks that are single tokens, and trust only these."""
        plain_text = ""
        for piece in self.grammar.cut_at_marks(text):
            if piece in self.grammar.special_tokens and len(tokenizer.encode(piece)) == 1:
                yield from (TextPart(plain_text), TextPart(piece, trusted=True))
                plain_text = ""
            else:
                plain_text += piece
        yield TextPart(plain_text)

    def block_ids(
        self, tokenizer: Tokenizer, searches: Sequence[Search], max_tokens: int, each: int | None = None,
        before: int = 0,
    ) -> tuple[int, ...]:  # fmt: skip
        """Render one turn's searches: their documents, each once, and a failure notice per failed query. `before` is
        the number of documents that earlier turns showed."""
        return self._observation_ids(tokenizer, self._documents(tokenizer, searches, max_tokens, each, before))

    def _documents(
        self, tokenizer: Tokenizer, searches: Sequence[Search], max_tokens: int, max_each: int | None = None,
        offset: int = 0,
    ) -> list[int]:  # fmt: skip
        """Render each document, cut to `max_each` tokens, or to an equal share of `max_tokens`."""
        block = shown_documents(searches)
        max_each = max_each or max_tokens // max(1, len(block))
        ids: list[int] = [] if block else tokenizer.encode(self.file.nothing_found)
        for index, search in enumerate(searches):
            if search.fault is not None:
                ids += self._fill(tokenizer, self.file.failed, query=search.query)
            for rank, (owner, hit) in enumerate(block, start=1):
                if owner == index:
                    numbers = {"rank": tokenizer.encode(str(rank)), "number": tokenizer.encode(str(offset + rank))}
                    ids += self._passage(tokenizer, self.file.document, hit.passage, **numbers)[:max_each]
        return ids

    def _passage(self, tokenizer: Tokenizer, template: str, passage: Passage, **numbers: list[int]) -> list[int]:
        texts = {"id": passage.id, "title": passage.title, "text": passage.text}
        return self._fill(tokenizer, template, **texts, **numbers)

    def page_ids(self, tokenizer: Tokenizer, opened: DocumentPage, size: int) -> tuple[int, ...]:
        """Render a page of a passage, cut into pages of `size` tokens, or its document, which is one page of any size.
        Renders a notice if there is no such page."""
        passage, page = opened.passage, opened.page
        text = self._data(tokenizer, passage.text) if passage else []
        if opened.document:
            text = [token for piece in opened.document for token in self.part_ids(tokenizer, piece)]
            size = max(1, len(text))
        pages = max(1, -(-len(text) // size))
        ids = self._fill(
            tokenizer,
            self.file.page if passage and 1 <= page <= pages else self.file.missing,
            id=opened.ident,
            title=passage.title if passage else "",
            page=tokenizer.encode(str(page) if abs(page) < 10**9 else "?"),
            pages=tokenizer.encode(str(pages)),
            text=text[(page - 1) * size : page * size],
        )
        return self._observation_ids(tokenizer, ids)

    def part_ids(self, tokenizer: Tokenizer, passage: Passage) -> list[int]:
        """Render one passage among others of its document."""
        return self._passage(tokenizer, self.file.part, passage)

    def result_ids(self, tokenizer: Tokenizer, text: str, max_tokens: int) -> tuple[int, ...]:
        """Render a tool's result, cut to `max_tokens`."""
        shown = self._data(tokenizer, text)[:max_tokens]
        return self._observation_ids(tokenizer, self._fill(tokenizer, self.file.result, text=shown))

    def retry_ids(self, tokenizer: Tokenizer, problem: str) -> tuple[int, ...]:
        return tuple(self._fill(tokenizer, self.file.retry, problem=problem))

    def notes_prompt_ids(
        self, tokenizer: Tokenizer, question: str, reasoning: str, searches: Sequence[Search], limits: Limits
    ) -> tuple[int, ...]:
        """Render the prompt for notes on one turn's searches."""
        prompt = self._fill(
            tokenizer,
            self.file.notes,
            question=question,
            reasoning=reasoning,
            query=" · ".join(search.query for search in searches),
            documents=self._documents(tokenizer, searches, limits.max_observation_tokens, limits.max_document_tokens),
        )
        return self._messages(tokenizer, [("user", [tuple(prompt)])])[0]

    def notes_ids(self, tokenizer: Tokenizer, notes: str, max_tokens: int) -> tuple[int, ...]:
        """Render the observation with notes in place of documents."""
        ids = self._data(tokenizer, notes)[:max_tokens] if notes else tokenizer.encode(self.file.nothing_found)
        return self._observation_ids(tokenizer, ids)

    def _observation_ids(self, tokenizer: Tokenizer, documents: list[int]) -> tuple[int, ...]:
        if self.grammar.native_calls:  # framed with the other results of the turn
            return tuple(documents)
        return tuple(self._fill(tokenizer, self.file.observation, documents=documents))

    def _question_text(self, tokenizer: Tokenizer, question: Question) -> str:
        """The question, after the earlier messages of its conversation, each as a line `role: content`."""
        text = question.question
        if self.file.question_spelling == "separated":
            text = separated(text, lambda word: len(tokenizer.encode_data(f" {word}")) == 1)
        if not (earlier_messages := _messages_in_meta(question, EARLIER)):
            return text
        lines = [f"{role}: {' '.join(content.split())}\n" for role, content in earlier_messages]
        return f"{''.join(lines)}user: {text}"

    def _data(self, tokenizer: Tokenizer, text: str) -> list[int]:
        return tokenizer.encode_data(self._data_text(text))

    def _data_text(self, text: str) -> str:
        blank = " " if self.file.space_before and not text.startswith(" ") else ""
        return self.grammar.escape(blank + text)

    def _fill_parts(self, template: str, fields: Mapping[str, str]) -> list[TextPart]:
        """A template with texts from outside in its fields."""
        pieces = _pieces(template)
        return [
            TextPart(self._data_text(fields[text])) if is_field else TextPart(text, True) for is_field, text in pieces
        ]

    def _fill(self, tokenizer: Tokenizer, template: str, **fields: str | list[int]) -> list[int]:
        """A template with texts from outside, or ids, in its fields."""
        ids: list[int] = []
        for is_field, text in _pieces(template):
            value = fields[text] if is_field else tokenizer.encode(text)
            ids += self._data(tokenizer, value) if isinstance(value, str) else value
        return ids


def _read_template(name: str, protocol: str) -> tuple[Path, JsonObject]:
    """The path and the fields of a prompt template, merged with those of the template that it extends."""
    path = FOLDER / name / f"{protocol}.yaml"
    if not path.is_file():
        path = find_yaml("prompt_template", FOLDER, name)
    tree = read_yaml(path, "prompt_template file")
    own = prompts if isinstance(prompts := tree.get("prompts"), dict) else {}
    for key in () if protocol in own else own.keys() - set(yaml_names(FOLDER.parent / "protocols")):
        if closest(str(key), [protocol]):
            raise SettingError(f"{path}: prompts names {key!r} and not {protocol!r}; correct it, or add {protocol!r}")
    if not (base := str(tree.pop("extends", None) or "")):
        return path, tree
    if base not in {file.stem for file in FOLDER.glob("*.yaml")} or path == FOLDER / f"{base}.yaml":
        raise SettingError(f"{path}: extends names a prompt template of the package, not {base!r}")
    base_tree = _read_template(base, protocol)[1]
    inherited = cast(JsonObject, base_tree.get("prompts", {}))
    if "prompt" in tree and protocol in inherited.keys() - own.keys():
        # Not an error: beside a trained agent with this prompt a table has baselines, which have theirs.
        warn_once(f"{path}: {protocol} takes its prompt from {base}; to replace it, write prompts: {{{protocol}: …}}")
    return path, {**base_tree, **tree, "prompts": {**inherited, **own} if own or not prompts else prompts}


def _pieces(template: str) -> Iterator[tuple[bool, str]]:
    """Yield (is a field, text) in order. Doubled braces become single braces. A `}}` without `{{` is kept, so that JSON
    needs no doubled braces."""
    literal, depth, start = "", 0, 0
    for braces in _BRACES.finditer(template):
        literal += template[start : braces.start()]
        start = braces.end()
        if (field := braces[1]) is not None:
            if literal:
                yield False, literal
            yield True, field
            literal = ""
        elif braces[0] == "{{":
            depth += 1
            literal += "{"
        else:
            literal += "}" if depth else "}}"
            depth -= bool(depth)
    if literal + template[start:]:
        yield False, literal + template[start:]


def _messages_in_meta(question: Question, key: str) -> list[tuple[str, str]] | None:
    """(role, content) of each message in `meta`, which holds a text or a list of messages; `None` without messages."""
    stored = question.meta.get(key)
    if stored is None:
        return None
    messages: list[tuple[str, str]] = []
    for message in stored if isinstance(stored, list) else [{"role": "user", "content": stored}]:
        role, content = (message.get("role"), message.get("content")) if isinstance(message, dict) else (None, None)
        if role not in ROLES or not isinstance(role, str) or not isinstance(content, str):
            raise SettingError(
                f"question {question.id!r} has a meta.{key} that is no text and no list of messages with a role "
                f"({', '.join(ROLES)}) and a content; {_WAY_OUT[key]}"
            )
        messages.append((role, content))
    return messages or None


def _contains_in_order(text: str, *pieces: str) -> bool:
    """Whether the pieces occur in the text in this order without overlap."""
    return re.search(".*?".join(map(re.escape, pieces)), text, re.DOTALL) is not None
