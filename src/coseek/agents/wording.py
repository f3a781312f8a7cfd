"""Wording: the words around a grammar (prompt, documents, observation). Files that a user can replace.

Text from outside goes into a template's `{fields}`. It is disarmed and tokenised as plain characters, so it can
neither close a tag nor become a special token.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import Field

from coseek.agents.grammar import Grammar
from coseek.data.errors import SettingError
from coseek.data.passage import Hit
from coseek.data.registry import yaml_file
from coseek.data.settings import Settings, make_settings
from coseek.models.model import Tokenizer

_FIELD = re.compile(r"\{(\w+)\}")


class WordingFile(Settings):
    """The templates of one wording."""

    about: str = ""
    """One line for people."""
    prompt: str
    """What the agent reads first; `{question}` is filled in."""
    prompts: dict[str, str] = Field(default={})
    """Prompts of single protocols, by name, in place of `prompt`: each must be told apart from the others."""
    observation: str
    """Around the documents of a search; `{documents}` is filled in."""
    document: str
    """One passage; `{rank}` from 1, `{title}` and `{text}` are filled in."""
    space_before: bool = False
    """Put a space in front of a field that has none, so that its first word is the token it is inside a sentence."""
    nothing_found: str = ""
    """Stands for the documents when a search found none."""


_FIELDS = {"prompt": {"question"}, "observation": {"documents"}, "document": {"rank", "title", "text"}}


@dataclass(frozen=True)
class Wording:
    """Turns questions and passages into token ids."""

    file: WordingFile
    grammar: Grammar

    @classmethod
    def load(cls, name: str, grammar: Grammar, protocol: str) -> "Wording":
        """`name` is one of ours (`default`, `laptop`) or the path of a YAML file; `protocol` chooses the prompt."""
        path = yaml_file("wording", Path(__file__).parent / "wordings", name)
        file = make_settings(WordingFile, yaml.safe_load(path.read_text(encoding="utf-8")) or {})
        file = file.model_copy(update={"prompt": file.prompts.get(protocol, file.prompt), "prompts": {}})
        for template, fields in _FIELDS.items():
            for field in _FIELD.findall(getattr(file, template)):
                if field not in fields:
                    raise SettingError(f"{path}: {template} names {{{field}}}; it may hold {', '.join(sorted(fields))}")
        return cls(file, grammar)

    def prompt_ids(self, tokenizer: Tokenizer, question: str) -> tuple[int, ...]:
        return tuple(self._fill(self.file.prompt, {"question": self._data(tokenizer, question)}, tokenizer))

    def observation_ids(self, tokenizer: Tokenizer, hits: Sequence[Hit], max_tokens: int) -> tuple[int, ...]:
        """The observation with each document cut to an equal share of `max_tokens` (TRAPS 4: before wrapping)."""
        documents: list[int] = []
        for rank, hit in enumerate(hits, start=1):
            fields = {
                "rank": tokenizer.encode(str(rank)),
                "title": self._data(tokenizer, hit.passage.title),
                "text": self._data(tokenizer, hit.passage.text),
            }
            documents += self._fill(self.file.document, fields, tokenizer)[: max_tokens // len(hits)]
        if not hits:
            documents = tokenizer.encode(self.file.nothing_found)
        return tuple(self._fill(self.file.observation, {"documents": documents}, tokenizer))

    def _data(self, tokenizer: Tokenizer, text: str) -> list[int]:
        if self.file.space_before and not text.startswith(" "):
            text = f" {text}"
        return tokenizer.encode_data(self.grammar.disarm(text))

    def _fill(self, template: str, fields: Mapping[str, list[int]], tokenizer: Tokenizer) -> list[int]:
        ids: list[int] = []
        for at, part in enumerate(_FIELD.split(template)):
            ids += fields[part] if at % 2 else tokenizer.encode(part) if part else []
        return ids
