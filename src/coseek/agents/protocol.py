"""Protocol: the grammar and loop of one kind of agent, described in a YAML file, with its wording."""

from dataclasses import dataclass
from pathlib import Path

import yaml

from coseek.agents.grammar import Action, Grammar, Tag
from coseek.agents.wording import Wording
from coseek.agents.writer import Move
from coseek.data.registry import yaml_file
from coseek.data.settings import Settings, make_settings
from coseek.data.trajectory import Author
from coseek.models.model import Tokenizer


class TagFile(Settings):
    """One tag of a protocol file."""

    author: Author
    """Who writes it."""
    action: Action = Action.NONE
    """What closing it sets off."""


class ProtocolFile(Settings):
    """A protocol as a user writes it."""

    about: str = ""
    """One line for people."""
    tags: dict[str, TagFile]
    """The tags, by name."""
    order: dict[str, list[str]]
    """What may follow `start` and each tag; `end` means that the run may end here."""
    opens_with_search: bool = False
    """The environment first searches the question itself and shows what it found."""


@dataclass(frozen=True)
class Protocol:
    """How an agent of this kind writes, and what the environment answers."""

    name: str
    grammar: Grammar
    wording: Wording
    opens_with_search: bool

    def tag_for(self, author: Author, action: Action = Action.NONE) -> Tag | None:
        """The first tag with this author and action."""
        return next((tag for tag in self.grammar.tags if tag.author is author and tag.action is action), None)

    @property
    def observation_tag(self) -> str:
        """The tag that the environment's segments carry."""
        tag = self.tag_for(Author.ENVIRONMENT)
        return tag.name if tag else "observation"

    def move_ids(self, move: Move, tokenizer: Tokenizer) -> tuple[int, ...]:
        """A writer's move as this protocol writes it. The words in it are data: they may quote passages."""
        asked = Action.ANSWER if move.answer is not None else Action.SEARCH
        texts = [(self.tag_for(Author.AGENT), move.thought)]
        texts += [(self.tag_for(Author.AGENT, asked), text) for text in (move.queries or (move.answer or "",))]
        ids: list[int] = []
        for tag, text in texts:
            if tag is not None:
                ids += tokenizer.encode(tag.opening)
                ids += tokenizer.encode_data(self.grammar.disarm(text))
                ids += tokenizer.encode(tag.closing)
        return tuple(ids)


def load_protocol(name: str, wording: str = "default") -> Protocol:
    """Open a protocol by name (`search-r1`, `rag`, `direct`) or by the path of a YAML file.

    `wording` is `default`, `laptop`, or the path of a YAML file with the user's own prompt.
    """
    path = yaml_file("protocol", Path(__file__).parent / "protocols", name)
    file = make_settings(ProtocolFile, yaml.safe_load(path.read_text(encoding="utf-8")) or {})
    tags = tuple(Tag(tag, described.author, described.action) for tag, described in file.tags.items())
    grammar = Grammar(tags, {state: frozenset(followers) for state, followers in file.order.items()})
    return Protocol(path.stem, grammar, Wording.load(wording, grammar, path.stem), file.opens_with_search)
