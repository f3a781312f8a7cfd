"""Protocol: the grammar, tools and loop of one kind of agent, read from a YAML file, with its prompt template."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import cast

from pydantic import Field

from coseek.agents.grammar import Grammar
from coseek.agents.limits import Limits
from coseek.agents.prompt_template import InputMode, PromptTemplate, PromptTemplateFile, warn_once
from coseek.agents.tag import Action, Tag, TagFile
from coseek.agents.tool import Tool, open_tool, tool_path
from coseek.agents.tools.visit import VisitSettings
from coseek.core.errors import DataError, SettingError, UserError
from coseek.core.files import Json, JsonObject, read_yaml
from coseek.core.fingerprint import file_digest
from coseek.core.plugins import find_yaml, is_function, is_plugin_path, own_function, plugin_name
from coseek.core.settings import Settings, make_settings
from coseek.data.digests import digest
from coseek.data.run import Run
from coseek.data.trajectory import Author
from coseek.models.chat import ChatTemplate
from coseek.models.model import Tokenizer
from coseek.models.written import CALL, RESPONSE

FOLDER = Path(__file__).parent / "protocols"
COUNTS = ("max_turns", "passages_per_search", "opening_passages")
"""Limits that count turns or passages; the others count tokens."""


class ProtocolFile(Settings):
    """The content of a protocol file."""

    about: str = ""
    """One line for people."""
    extends: str = ""
    """A protocol by name, or a YAML file relative to this one, which this protocol extends."""
    tags: dict[str, TagFile]
    """The tags, by name. The first one that the environment writes holds search results."""
    order: dict[str, list[str]]
    """The tags that may follow `start` and each tag; `end` means that the run may end there. What follows a flag can
    depend on its value: `name=true`, `name=false`."""
    free_text: bool = False
    """Text outside the tags is valid: reasoning without a tag."""
    native_calls: bool = False
    """The model's chat template, or its server, frames tools, calls and results; the tags are used for models without
    a template. Turns end with the end-of-text token and may hold several calls."""
    tools: dict[str, dict[str, object]] = Field(default={})
    """Tools by the name that the agent calls, for a tag whose action is `tool`: `{tool: NAME OR FILE, …settings}`."""
    opens_with_search: bool = False
    """The environment first searches the question and shows the results."""
    retries: bool = False
    """A turn without a valid action is followed by a request to try again, which counts as a turn. Otherwise it ends
    the run, and so does a turn that a limit cut."""
    ends_after_search: bool = False
    """The first search ends the run, and its passages are the result."""
    reason_in_documents: bool = False
    """The model first reads search results in a side context, and its notes are shown to the agent instead."""
    last_word: str = ""
    """Text shown at a limit instead of a result; one more turn follows, which can only answer. At most half of
    `max_tokens` is reserved for both. Empty: a limit ends the run."""
    retrievers: tuple[str, ...] = ()
    """Kinds of retrievers that it can run with; empty: all."""
    limits: dict[str, int] = Field(default={})
    """Default budgets of this protocol, such as `max_turns: 20`."""
    prompt_template: PromptTemplateFile | None = None
    """Its prompt and templates. A user's prompt template file overrides them, a built-in template does not."""


@dataclass(frozen=True)
class Protocol:
    """How an agent writes and how the environment answers."""

    name: str
    grammar: Grammar
    template: PromptTemplate
    file: ProtocolFile
    identity: str = ""
    """Digest of the file's tags, order, switches and tools; the prompt template has a separate digest."""
    root: str = ""
    """The protocol that it extends in the end, or its own name."""
    not_run: tuple[str, ...] = ()
    """Tool files left out because the protocol was loaded without `run_files`. It can then not be rolled out."""

    def __repr__(self) -> str:
        return f"Protocol({self.name!r})"

    @property
    def visits(self) -> bool:
        """Whether its agents can open documents."""
        return any(isinstance(tool.settings, VisitSettings) for tool in self.grammar.tools.values())

    def stops_for(self, tokenizer: Tokenizer) -> tuple[str, ...]:
        """The stop strings of the sampler, of the tags or, with native calls, of the model's chat template."""
        chat = self.template.tool_chat(tokenizer)
        openings = [tag.opening for tag in self.grammar.tags if tag.author is Author.ENVIRONMENT]
        result_mark = openings[:1] if self.grammar.native_calls and chat is None else []
        return (*self.grammar.stops, *(chat.stops if chat else ()), *result_mark)

    def with_input_mode(self, mode: InputMode) -> "Protocol":
        """The same protocol for a model that takes its input in this form."""
        return replace(self, template=replace(self.template, input_mode=mode))

    def check_retriever(self, kind: str) -> None:
        """Raise `SettingError` for a kind of retriever that this protocol cannot run with."""
        kinds = self.file.retrievers
        if kinds and kind not in kinds:
            raise SettingError(
                f"the protocol {self.name} is meant for a retriever of the kind {' or '.join(kinds)}, and "
                f"this one is {kind!r}; put one over it in a YAML file (docs/reference/retrievers.md)"
            )

    def check_tools(self) -> None:
        """Raise `SettingError` when tool files were left out."""
        if self.not_run:
            raise SettingError(
                f"the protocol {self.name} has the tool {self.not_run[0]}, which is run only where a command or a "
                "recipe names the protocol"
            )

    def limits_over(self, base: Limits) -> Limits:
        """Apply the protocol's default budgets to `base`: its counts, and the larger of both numbers of tokens (a
        scripted agent's tokens are bytes). A document keeps its share of an observation."""
        defaults = self.file.limits
        limits = {
            name: value if name in COUNTS else max(value, getattr(base, name) or 0) for name, value in defaults.items()
        }
        if "max_document_tokens" in defaults and "max_observation_tokens" in defaults:
            growth = limits["max_observation_tokens"] // defaults["max_observation_tokens"]
            limits["max_document_tokens"] = defaults["max_document_tokens"] * max(1, growth)
        return base.model_copy(update=limits)


def load_protocol(
    name: str,
    prompt_template: str = "default",
    chat_template: ChatTemplate = "auto",
    *,
    run_files: bool = False,
    tools: Sequence[str] = (),
) -> Protocol:
    """Load a protocol by name (`search-r1`, `qagent`, `s3`, …) or by the path of a YAML file.

    `prompt_template` is a name (`default`, `declining`, `base`, `data`, `laptop`) or a user's YAML file; only a file
    overrides templates in the protocol file. `chat_template` overrides the prompt template's setting unless it is
    `auto`. `run_files` runs the `.py` files of its tools: pass it only if the user named the protocol, never for a
    protocol that a stored run names. Without it these tools are left out, which is enough to read stored trajectories.
    `tools` are further tools by name or path for a protocol with native calls.
    """
    paths, file = _read_file(name)
    path, root = paths[0], paths[-1].stem  # a protocol takes the prompts of the one that it extends in the end
    if tools:
        file = _with_tools(file, name, tools)
    make_settings(Limits, {**file.limits}, path)  # refuses a misspelt budget here, not in the middle of a run
    opened = {
        tool_name: open_tool(tool_name, cast(JsonObject, tree), str(path), path.parent, run_files=run_files)
        for tool_name, tree in file.tools.items()
    }
    try:
        grammar = _grammar(file, path, {tool_name: tool for tool_name, tool in opened.items() if tool is not None})
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    needs = [name for name, is_needed in (("retry", file.retries), ("notes", file.reason_in_documents)) if is_needed]
    if file.prompt_template is not None and not prompt_template.endswith((".yaml", ".yml")):
        find_yaml("prompt_template", FOLDER.parent / "prompt_templates", prompt_template)  # refuses a misspelt name
        template = PromptTemplate.of(file.prompt_template, grammar, root, needs, str(path))
    else:
        template = PromptTemplate.load(prompt_template, grammar, root, needs)
    _check_together(file, path)
    content = file.model_dump_json(exclude={"about", "extends", "limits", "prompt_template"}, exclude_defaults=True)
    tool_paths = _tool_files(file, path)
    functions = (own_function(str(tree.get("tool"))) for tree in file.tools.values())
    digests = [file_digest(tool_file) for tool_file in tool_paths if tool_file.is_file()]
    digests += [function.digest for function in functions if function is not None]
    not_run = () if run_files else tuple(map(str, tool_paths))
    identity = digest(content + "".join(digests))
    template = template.with_chat(chat_template)
    _loaded[path.stem] = Protocol(path.stem, grammar, template, file, identity, root, not_run)
    return _loaded[path.stem]


_loaded: dict[str, Protocol] = {}
"""The protocol loaded last, by name: a trajectory holds a name and no path."""


def known_protocol(name: str) -> Protocol | None:
    """A built-in protocol, or a user's that this process has loaded, by a trajectory's name for it; else `None`."""
    return _built_in(name) or _loaded.get(name)


@cache
def _built_in(name: str) -> Protocol | None:
    try:
        return load_protocol(name)
    except UserError:
        return None


def stored_protocol(run: Run) -> Protocol | None:
    """Load the protocol of a run's settings, for `known_protocol`; `None` without one. A missing file is reported."""
    agent = run.settings.get("agent")
    if not isinstance(agent, dict) or not isinstance(name := agent.get("protocol"), str):
        return None
    try:
        return load_protocol(name, str(agent.get("prompt_template")))
    except UserError as error:
        if known_protocol(Path(name).stem) is None:
            warn_once(f"{run.folder}: every run without an answer counts as wrong, since its protocol is gone: {error}")
        return None


def _with_tools(file: ProtocolFile, name: str, tools: Sequence[str]) -> ProtocolFile:
    """The protocol with further tools, which are called by their own names."""
    if not file.native_calls:
        raise SettingError(f"the protocol {name} shows the agent no further tools; take the protocol tools")
    added_tools: dict[str, dict[str, object]] = {
        plugin_name(tool): {"tool": str(Path(tool).expanduser().absolute()) if tool.endswith(".py") else tool}
        for tool in tools
    }
    all_names = [*file.tools, *map(plugin_name, tools)]
    if repeated_names := [tool for tool in added_tools if all_names.count(tool) > 1]:
        raise SettingError(f"the protocol {name} would have two tools called {repeated_names[0]!r}; rename yours")
    return file.model_copy(update={"tools": {**file.tools, **added_tools}})


def tool_files(name: str) -> list[Path]:
    """List the `.py` files among the tools of a protocol, without running them."""
    paths, file = _read_file(name)
    return _tool_files(file, paths[0])


def own_files(name: str) -> list[Path]:
    """List the user's YAML files of a protocol, which may extend another, and the `.py` files of its tools."""
    paths, file = _read_file(name)
    return [*(path for path in paths if path.parent != FOLDER), *_tool_files(file, paths[0])]


def _read_file(name: str) -> tuple[list[Path], ProtocolFile]:
    """A protocol's file and those that it extends in turn, and the settings."""
    paths: list[Path] = []
    tree = _tree(find_yaml("protocol", FOLDER, name), paths)
    return paths, make_settings(ProtocolFile, tree, paths[0])


def _tree(path: Path, paths: list[Path]) -> JsonObject:
    """The content of a file over that of the file that it extends. Both are added to `paths`."""
    if path in paths:
        raise SettingError(f"{path} extends itself; leave out one `extends`")
    paths.append(path)
    tree = read_yaml(path, "protocol file", "`tags: …` and `order: …`")
    if not (base := str(tree.get("extends") or "")):
        return tree
    base_name = str(path.parent / base) if base.endswith((".yaml", ".yml")) else base
    base_tree = _tree(find_yaml("protocol", FOLDER, base_name), paths)
    merged = {**base_tree, **tree}
    for group in ("tags", "tools", "order", "limits", "prompt_template"):
        inherited, own_group = base_tree.get(group), tree.get(group)
        if isinstance(inherited, dict) and isinstance(own_group, dict):
            merged[group] = inherited | {name: _merge(inherited.get(name), value) for name, value in own_group.items()}
    if isinstance(tools := merged.get("tools"), dict):
        merged["tools"] = {name: tool for name, tool in tools.items() if tool is not None}
    return merged


def _merge(base: Json, override: Json) -> Json:
    return {**base, **override} if isinstance(base, dict) and isinstance(override, dict) else override


def _tool_files(file: ProtocolFile, path: Path) -> list[Path]:
    names = (str(tree.get("tool")) for tree in file.tools.values())
    return [Path(tool_path(name, path.parent)) for name in names if is_plugin_path(name) and not is_function(name)]


def _grammar(file: ProtocolFile, path: Path, tools: Mapping[str, Tool]) -> Grammar:
    tags = tuple(Tag(name=name, **dict(tag)) for name, tag in file.tags.items())
    if any(tag.action is Action.TOOL for tag in tags) != bool(file.tools):
        raise SettingError(f"{path}: `tools` and a tag with `action: tool` belong together")
    if tag_name := next((tag.name for tag in tags if tag.action is Action.TOOL and tag.max_items is not None), ""):
        raise SettingError(
            f"{path}: tags.{tag_name}.max_items has no effect on tool calls; set max_queries of the search tool"
        )
    order = {state: frozenset(followers) for state, followers in file.order.items()}
    return Grammar(tags, order, tools, file.free_text, file.native_calls)


def _check_together(file: ProtocolFile, path: Path) -> None:
    """Raise `SettingError` for settings that exclude or lack each other."""
    tags = {(tag.author, tag.action) for tag in file.tags.values()}
    shows_results = file.opens_with_search or not {Action.SEARCH, Action.TOOL}.isdisjoint(action for _, action in tags)
    if file.ends_after_search:  # results of other tools are shown nevertheless
        shows_results = any(tree.get("tool") != "search" for tree in file.tools.values())
    if shows_results and Author.ENVIRONMENT not in {author for author, _ in tags}:
        raise SettingError(
            f"{path}: the protocol has searches or tools and no tag for their results; add one with "
            "`author: environment`, or set ends_after_search where a search ends the run"
        )
    if file.native_calls:
        missing = sorted({Action.NONE, Action.TOOL, Action.ANSWER} - {tag[1] for tag in tags if tag[0] is Author.AGENT})
        if missing:
            raise SettingError(f"{path}: native_calls needs a tag by the agent with the action {missing[0]}")
        if not {CALL[0], RESPONSE[0]} <= {tag.open or f"<{name}>" for name, tag in file.tags.items()}:
            raise SettingError(f"{path}: native_calls keeps the marks {CALL[0]} and {RESPONSE[0]}; extend tools")
    if file.last_word and not {(Author.AGENT, Action.ANSWER), (Author.ENVIRONMENT, Action.NONE)} <= tags:
        raise SettingError(f"{path}: last_word needs a tag by the environment, and one by the agent that answers")
    for setting in ("native_calls", "last_word"):
        for other_setting in ("opens_with_search", "ends_after_search", "reason_in_documents"):
            if getattr(file, setting) and getattr(file, other_setting):
                raise SettingError(f"{path}: {setting} cannot be combined with {other_setting}; leave one of them out")
