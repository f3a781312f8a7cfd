"""Protocol: the grammar and loop of one kind of agent, described in a YAML file, with its prompt template."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from pydantic import Field

from coseek.agents.actions import QueryFormat
from coseek.agents.grammar import Action, Grammar, Tag
from coseek.agents.limits import Limits
from coseek.agents.prompt_template import PromptTemplate, PromptTemplateFile
from coseek.agents.tools.tool import Tool, open_tool, tool_path
from coseek.core.errors import DataError, SettingError
from coseek.core.files import JsonObject, read_yaml
from coseek.core.plugins import file_digest, is_plugin_path
from coseek.core.registry import find_yaml
from coseek.core.settings import Settings, make_settings
from coseek.data.identities import digest
from coseek.data.trajectory import Author

FOLDER = Path(__file__).parent / "protocols"


class TagFile(Settings):
    """One tag of a protocol file."""

    author: Author
    """Who writes it."""
    action: Action = Action.NONE
    """What closing it sets off: `search`, `answer`, `tool`, `select` (documents of the latest block), `complete` (a
    flag that ends the run when it is true), or `none`."""
    open: str = ""
    """How it is opened, where that is not `<name>`."""
    close: str = ""
    """How it is closed, where that is not `</name>`."""
    query_format: QueryFormat = QueryFormat.TEXT
    """How a search is read: `text`, `items` (each inner tag is a query), `json`, or `sentence`."""
    item: str = "query"
    """The inner tag, or the JSON key, that holds a query."""
    max_items: int | None = Field(default=None, ge=1)
    """Queries in one search, or documents in one selection; more are left out, and are not the form."""
    stop: list[str] | None = None
    """Strings that the sampler halts on; the closing of a search, tool call or answer when nothing is said. An empty
    list is for an answer behind which the agent goes on writing: then the last one counts."""


class ProtocolFile(Settings):
    """A protocol as a user writes it."""

    about: str = ""
    """One line for people."""
    tags: dict[str, TagFile]
    """The tags, by name. The first one that the environment writes holds what searches found."""
    order: dict[str, list[str]]
    """What may follow `start` and each tag; `end` means that the run may end here. What follows a flag may depend on
    what it says: `name=true`, `name=false`."""
    free_text: bool = False
    """Text outside of the tags is part of the form: reasoning without a tag of its own."""
    tools: dict[str, dict[str, object]] = Field(default={})
    """Tools by the name that the agent calls, for a tag whose action is `tool`: `{tool: NAME OR FILE, …settings}`."""
    opens_with_search: bool = False
    """The environment first searches the question itself and shows what it found."""
    retries: bool = False
    """A turn that asks for nothing that can be done is answered with a request to try again, which counts as a turn;
    otherwise it ends the run."""
    ends_after_search: bool = False
    """The first search ends the run: what it finds is the result."""
    reason_in_documents: bool = False
    """The agent's model first reads what a search found in a context of its own, and its notes are shown instead."""
    retrievers: list[str] = Field(default=[])
    """Kinds of retrievers that it is meant for; a run with another one is refused. Any will do when none is named."""
    limits: dict[str, int] = Field(default={})
    """Budgets that suit this protocol, such as `max_turns: 20`, where a run does not set its own."""
    prompt_template: PromptTemplateFile | None = None
    """Its prompt and templates; a prompt template file of the user overrides them, and the package's own do not."""


@dataclass(frozen=True)
class Protocol:
    """How an agent of this kind writes, and what the environment answers."""

    name: str
    grammar: Grammar
    template: PromptTemplate
    opens_with_search: bool = False
    retries: bool = False
    ends_after_search: bool = False
    reason_in_documents: bool = False
    retrievers: tuple[str, ...] = ()
    """Kinds of retrievers that it is meant for; empty for any."""
    suggested_limits: dict[str, int] = field(default_factory=dict)
    """Budgets that suit it, by the name of the limit."""
    identity: str = ""
    """A digest of the file's tags, order, switches and tools; the prompt template has its own."""
    not_run: tuple[str, ...] = ()
    """Tool files that were not run, because nobody who named them loaded this protocol. It cannot be rolled out."""

    def tag_for(self, author: Author, action: Action = Action.NONE) -> Tag | None:
        """The first tag with this author and action."""
        return next((tag for tag in self.grammar.tags if tag.author is author and tag.action is action), None)

    @property
    def observation_tag(self) -> str:
        """The tag that the environment's segments carry."""
        return self.grammar.observation

    def check_retriever(self, kind: str) -> None:
        """Refuse a kind of retriever that this protocol is not meant for."""
        if self.retrievers and kind not in self.retrievers:
            raise SettingError(
                f"the protocol {self.name} is meant for a retriever of the kind {' or '.join(self.retrievers)}, and "
                f"this one is {kind!r}; put one over it in a YAML file (docs/reference/retrievers.md)"
            )

    def check_tools(self) -> None:
        """Refuse a rollout without all of the protocol's tools."""
        if self.not_run:
            raise SettingError(
                f"the protocol {self.name} has the tool {self.not_run[0]}, which is run only where a command or a "
                "recipe names the protocol"
            )

    def limits_over(self, base: Limits) -> Limits:
        """The budgets that suit this protocol in place of the defaults: counts as it has them, tokens as many as the
        larger of the two (a scripted agent's tokens are bytes)."""
        suited = {
            name: value if name in ("max_turns", "passages_per_search") else max(value, getattr(base, name))
            for name, value in self.suggested_limits.items()
        }
        return base.model_copy(update=suited)


def load_protocol(name: str, prompt_template: str = "default", *, run_files: bool = False) -> Protocol:
    """Open a protocol by name (`search-r1`, `qagent`, `s3`, …) or by the path of a YAML file.

    `prompt_template` is `default`, `laptop`, or a YAML file with the user's prompt. A protocol file that holds
    its own prompt template keeps it under our names. With `run_files` the `.py` files of its tools are run: pass it
    only where the user named the protocol, never where a stored run does. Without, those tools are left out, which is
    enough to read stored trajectories.
    """
    path = find_yaml("protocol", FOLDER, name)
    file = make_settings(ProtocolFile, read_yaml(path, "protocol file", "`tags: …` and `order: …`"), path)
    make_settings(Limits, {**file.limits}, path)  # a misspelt budget is refused here and not in the middle of a run
    opened = {
        called: open_tool(called, cast(JsonObject, tree), str(path), path.parent, run_files=run_files)
        for called, tree in file.tools.items()
    }
    try:
        grammar = _grammar(file, path, {called: tool for called, tool in opened.items() if tool is not None})
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    needs = [name for name, wanted in (("retry", file.retries), ("notes", file.reason_in_documents)) if wanted]
    if file.prompt_template is not None and not prompt_template.endswith((".yaml", ".yml")):
        words = PromptTemplate.of(file.prompt_template, grammar, path.stem, needs, str(path))
    else:
        words = PromptTemplate.load(prompt_template, grammar, path.stem, needs)
    content = file.model_dump_json(exclude={"about", "limits", "prompt_template"}, exclude_defaults=True)
    own = _tool_files(file, path)
    return Protocol(
        path.stem,
        grammar,
        words,
        file.opens_with_search,
        file.retries,
        file.ends_after_search,
        file.reason_in_documents,
        tuple(file.retrievers),
        dict(file.limits),
        digest(content + "".join(file_digest(one) for one in own if one.is_file())),
        () if run_files else tuple(map(str, own)),
    )


def tool_files(name: str) -> list[Path]:
    """The users' `.py` files among the tools of a protocol; none of them is run."""
    path = find_yaml("protocol", FOLDER, name)
    return _tool_files(make_settings(ProtocolFile, read_yaml(path, "protocol file"), path), path)


def _tool_files(file: ProtocolFile, path: Path) -> list[Path]:
    named = (str(tree.get("tool")) for tree in file.tools.values())
    return [Path(tool_path(part, path.parent)) for part in named if is_plugin_path(part)]


def _grammar(file: ProtocolFile, path: Path, tools: Mapping[str, Tool]) -> Grammar:
    tags = tuple(
        Tag(
            name,
            tag.author,
            tag.action,
            tag.open,
            tag.close,
            tag.query_format,
            tag.item,
            tag.max_items,
            None if tag.stop is None else tuple(tag.stop),
        )
        for name, tag in file.tags.items()
    )
    if any(tag.action is Action.TOOL for tag in tags) != bool(file.tools):
        raise SettingError(f"{path}: `tools` and a tag with `action: tool` belong together")
    if odd := next((tag.name for tag in tags if tag.action is Action.TOOL and tag.max_items is not None), ""):
        raise SettingError(
            f"{path}: tags.{odd}.max_items has no effect on tool calls; set max_queries of the search tool"
        )
    return Grammar(
        tags, {state: frozenset(followers) for state, followers in file.order.items()}, tools, file.free_text
    )
