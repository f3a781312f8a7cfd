"""Agent factory: open what `--agent` names: a model, a server, a scripted agent, or a YAML file such as

url: http://127.0.0.1:8000
tokenizer: models/policy          # the model's folder; without it the server is asked for text
protocol: search-r1
prompt_template: default
server: {dialect: vllm, model: policy, key_env: MY_KEY}
"""

import hashlib
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pydantic import Field

from coseek.agents.agent_card import CARD, AgentCard
from coseek.agents.drivers import Agent
from coseek.agents.grammar import Grammar, as_json
from coseek.agents.limits import Limits
from coseek.agents.prompt_template import InputMode
from coseek.agents.protocol import Protocol, known_protocol, load_protocol, tool_files
from coseek.agents.scripted_agent import ScriptedAgent, ScriptedAgentModel
from coseek.agents.tag import Action
from coseek.core.connections import is_url
from coseek.core.errors import DataError, SettingError, UserError, nearest
from coseek.core.files import JsonObject, read_yaml
from coseek.core.fingerprint import CHAT_TEMPLATES, TOKENIZER, fingerprint
from coseek.core.plugins import PluginSpec, find_plugin, is_plugin_path, plugin_names, running
from coseek.core.prompt_file import without_role_marks
from coseek.core.settings import Settings, make_settings, set_path
from coseek.data.run import Run
from coseek.hardware.device import memory_gib
from coseek.hardware.placement import Place, Placement, S, resolve_here, warning
from coseek.models.chat import ChatTemplate
from coseek.models.dialect import ServerTurn, dialect_of
from coseek.models.model import Model, Tokenizer
from coseek.models.model_folder import check_is_model, fetch_command, hidden_size, missing, model_path, shipped_models
from coseek.models.remote import RemoteModel, RemoteModelSettings, open_remote
from coseek.models.server import split_settings
from coseek.models.tokenizer import ByteTokenizer, HfTokenizer
from coseek.models.written import calls_in, message_of, read_turn, reasoning_in, split_reasoning

if TYPE_CHECKING:
    from coseek.data.trajectory_checks import Decode

log = logging.getLogger(__name__)

SCRIPTED = ("coseek.agents.scripted", "coseek.lab.agents")
"""The packages of scripted agents; a file's name is the agent's name."""
CONTRACT: PluginSpec = {"PROMPT_TEMPLATE": str, "make": None}
"""What a user's scripted agent must offer."""
BYTES = "bytes"
"""The name of the tokenizer whose tokens are bytes."""


class AgentSettings(Placement):
    """The agent, and how it samples."""

    name: str
    """A model folder, a server's address, or a scripted agent: `rules`, `expert` …, or the path of its `.py` file."""
    protocol: str
    """A protocol by name, or a YAML file."""
    prompt_template: str
    """A prompt template by name (`default`, `declining`, `base`, `data`, `laptop`, `laptop-typed`), or a YAML file."""
    chat_template: ChatTemplate = "auto"
    """Whether to put the prompt into the model's chat template; `auto`: as the prompt template says, by default if the
    tokenizer has one. A server that takes chat messages applies its own template."""
    temperature: float = Field(default=0.0, ge=0.0)
    """0 selects the most likely token; no effect on scripted agents."""
    tokenizer: str | None = None
    """The folder of the tokenizer of a scripted agent or a server, or `bytes` (the default), with which a server is
    asked for text. A model folder has its own tokenizer."""
    server: RemoteModelSettings | None = None
    """Settings of the requests to a server; only for servers."""

    @property
    def is_remote(self) -> bool:
        return is_url(self.name)

    @property
    def tokenizer_name(self) -> str:
        """The folder of the tokenizer, or `bytes`."""
        return self.tokenizer or (BYTES if self.is_remote or is_scripted(self.name) else self.name)


def is_scripted(name: str) -> bool:
    """Whether this is the name of a scripted agent."""
    return is_plugin_path(name) or name in plugin_names(SCRIPTED)


def settings_for(
    name: str,
    protocol: str | None = None,
    prompt_template: str | None = None,
    tokenizer: str | None = None,
    device: str | None = None,
    untrained: str | None = None,
) -> AgentSettings:
    """Build an agent's settings, with its own protocol and prompt template as defaults.

    `untrained` is the default protocol of a model without a card. Raises `UserError` for an unknown agent, and for a
    protocol with tools in Python files that only the model's folder names.
    """
    file = Path(name) if name.endswith((".yaml", ".yml")) else None
    tree: JsonObject = _read_agent_file(file) if file else {"name": name}
    options = {"protocol": protocol, "prompt_template": prompt_template, "tokenizer": tokenizer, "device": device}
    given_options = {key: value for key, value in options.items() if value is not None}
    tree |= given_options
    if is_url(url := tree["name"]):
        tree["name"], server = split_settings(url)
        if server:
            set_path(tree, ["server"], server, AgentSettings)
    agent = str(tree["name"])
    card = card_of(agent, cast("str | None", tree.get("tokenizer")))
    defaults = {"protocol": card.protocol, "prompt_template": card.prompt_template, "chat_template": card.chat_template}
    if untrained is not None and card == AgentCard() and not is_scripted(agent):
        defaults["protocol"] = untrained
    if "protocol" not in tree and (tools := tool_files(card.protocol)):  # a pulled folder never causes execution
        raise SettingError(
            f"{agent} was trained with a protocol whose tool {tools[0].name} is a Python file, which is run only if "
            f"you name it: --protocol {card.protocol}, or where there is no such option a FILE.yaml with the lines "
            f"name: {agent} and protocol: {card.protocol}"
        )
    settings = make_settings(AgentSettings, {**defaults, **tree}, file or "", tuple(given_options))
    if settings.is_remote and settings.server is None:
        return settings.model_copy(update={"server": RemoteModelSettings()})
    return settings


def card_of(name: str, tokenizer: str | None = None) -> AgentCard:
    """The default protocol and prompt template of an agent."""
    if is_scripted(name):
        return AgentCard(prompt_template=str(find_plugin("scripted agent", SCRIPTED, name, CONTRACT).PROMPT_TEMPLATE))
    if is_url(name):
        return AgentCard() if tokenizer in (None, BYTES) else AgentCard.read(model_path(tokenizer))
    folder = model_path(name)
    if not folder.is_dir():
        if fetch_command(name):
            raise DataError(missing("model folder", name))
        known = [*plugin_names(SCRIPTED), *shipped_models()]
        raise UserError(
            f"no agent named {name!r}{nearest(name, known)} Known: {', '.join(known)}, the path of a model folder or "
            "a YAML file, or the address of a server"
        )
    check_is_model(folder)
    return AgentCard.read(folder)


def former_protocol(folder: Path, protocol: Protocol) -> str | None:
    """The protocol that a model was trained with, if it lacks tags of `protocol` or has another order of the same
    tags."""
    name = AgentCard.read(folder).protocol
    if not (folder / CARD).is_file() or (former := known_protocol(name)) is None:
        return None
    old_grammar, new_grammar = former.grammar, protocol.grammar
    lacks_tags = bool(set(new_grammar.special_tokens) - set(old_grammar.special_tokens))
    reordered = old_grammar.special_tokens == new_grammar.special_tokens and old_grammar.order != new_grammar.order
    return name if lacks_tags or reordered else None


def _read_agent_file(path: Path) -> JsonObject:
    """The settings in an agent file. Beside a `url` it may hold settings of the server, as the file of a text model
    does."""
    lines = "`name: value` lines, `name` itself, or the `url` of a server, among them"
    tree = read_yaml(path, "agent file", lines)
    if isinstance(url := tree.get("url"), str):
        if "name" in tree:
            raise SettingError(f"{path} has a url and a name; write model: {tree['name']} for the server's model")
        group = tree.pop("server", None)
        server = {name: tree.pop(name) for name in [*tree] if name in RemoteModelSettings.model_fields}
        del tree["url"]
        tree = {"name": url, **tree, "server": server}
        if group is not None:
            set_path(tree, ["server"], group, AgentSettings)
    if not isinstance(tree.get("name"), str):
        raise DataError(f"{path} must hold {lines}")
    return tree


BYTE_LIMITS = Limits(max_turn_tokens=4000, max_observation_tokens=8000, max_tokens=64000)
"""Budgets for tokens that are bytes, of which a text has more."""
TEXT_LIMITS = Limits(max_turn_tokens=16_000, max_observation_tokens=8000, max_tokens=128_000)
"""Budgets in bytes for a server that is asked for text without its tokenizer."""
CACHE_SHARE = 0.25
"""Share of a device's memory for the key-value cache of a stand-alone agent. Episodes beyond it wait."""
BYTES_PER_TOKEN = 4
"""Bytes of text for which a server without a tokenizer may write one token."""


def limits_for(settings: AgentSettings) -> Limits:
    """The budgets that an agent was trained with, else the defaults of the agent and its protocol."""
    if (trained := _trained_limits(settings)) is not None:
        return trained
    in_bytes = settings.tokenizer_name == BYTES
    base = Limits() if not in_bytes else TEXT_LIMITS if settings.is_remote else BYTE_LIMITS
    agent = open_scripted_agent(settings.name) if is_scripted(settings.name) else None
    protocol = load_protocol(settings.protocol, settings.prompt_template)
    return protocol.limits_over(base).model_copy(update=getattr(agent, "LIMITS", {}))


def limits_of(agent: Agent) -> Limits:
    """The budgets of an open agent; for one that a program made, the defaults of its protocol."""
    in_bytes = isinstance(agent.model.tokenizer, ByteTokenizer)
    return agent.limits or agent.protocol.limits_over(BYTE_LIMITS if in_bytes else Limits())


def _trained_limits(settings: AgentSettings) -> Limits | None:
    """The budgets on an agent's card, which apply only to the card's protocol."""
    folder = settings.tokenizer if settings.is_remote else settings.name
    if folder is None or folder == BYTES or is_scripted(folder):
        return None
    card = AgentCard.read(model_path(folder))
    if card.limits is None or card.protocol == settings.protocol:
        return card.limits
    try:  # the model's folder may hold a copy of the protocol
        first = load_protocol(card.protocol, card.prompt_template)
        second = load_protocol(settings.protocol, settings.prompt_template)
    except UserError:
        return None
    return card.limits if (first.identity, first.file.limits) == (second.identity, second.file.limits) else None


def open_agent(settings: AgentSettings) -> Agent:
    """Open an agent from a user's settings. Files that they name are run."""
    limits = limits_for(settings)
    protocol = load_protocol(settings.protocol, settings.prompt_template, settings.chat_template, run_files=True)
    tokenizer = open_tokenizer(settings, protocol)
    protocol.template.framed(tokenizer)  # refuses a missing chat template before the model is loaded
    if is_scripted(settings.name):
        model: Model = ScriptedAgentModel(open_scripted_agent(settings.name), protocol, tokenizer)
    elif settings.is_remote:
        model = open_server(settings, protocol, tokenizer)
        protocol = protocol.with_input_mode(input_mode_of(model.served.dialect))
    else:
        model = open_model(settings, protocol, tokenizer)
    return Agent(protocol, model, turn_identities(settings, model), limits)


def input_mode_of(dialect: str) -> InputMode:
    """The form of input that a server of this dialect takes."""
    if dialect_of(dialect).EXACT:
        return "ids"
    return "messages" if dialect in ("chat", "tools") else "text"


def turn_identities(settings: AgentSettings, model: Model) -> dict[str, str]:
    """Identities of an agent (`Agent.identities`). A server's weights are unknown, so the model's name is used. The
    chat template beside a tokenizer is a part of its own."""
    agent = f"{model.served.model} at {settings.name}" if isinstance(model, RemoteModel) else content_of(settings.name)
    sampling = [f"temperature {settings.temperature:g}"]
    if not (is_scripted(settings.name) or settings.is_remote):
        sampling.append(f"precision {settings.precision}")
    template = {}
    if settings.is_remote and settings.tokenizer is not None:
        template["chat_template"] = content_of(settings.tokenizer, CHAT_TEMPLATES)
    return {
        "agent": agent,
        "tokenizer": content_of(settings.tokenizer_name, TOKENIZER),
        **template,
        "sampling": ", ".join(sampling),
    }


def content_of(name: str, files: str = "*") -> str:
    """Digest of the folder (its `files`) or Python file with this name; else the name itself (`rules`, `bytes`)."""
    path = model_path(name)
    if is_plugin_path(name) and path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return fingerprint(path, files) if not is_scripted(name) and path.is_dir() else name


def open_scripted_agent(name: str, *settings: Settings) -> ScriptedAgent:
    """Make a scripted agent, by default with its default settings."""
    with running("scripted agent", name):
        return cast(ScriptedAgent, find_plugin("scripted agent", SCRIPTED, name, CONTRACT).make(*settings))


def open_tokenizer(settings: AgentSettings, protocol: Protocol) -> Tokenizer:
    """Open a model's tokenizer, or the tokenizer named for a scripted agent or a server; default: bytes."""
    folder = settings.tokenizer_name
    if folder == BYTES or is_scripted(folder):
        return ByteTokenizer(protocol.grammar.special_tokens)
    return HfTokenizer.load(model_path(folder))


def open_server(settings: AgentSettings, protocol: Protocol, tokenizer: Tokenizer) -> RemoteModel:
    """Connect to a server's model. Its dialect is detected unless the settings name it. Without the model's tokenizer
    vLLM and SGLang are asked for text."""
    grammar, in_bytes = protocol.grammar, settings.tokenizer_name == BYTES
    model = open_remote(
        settings.name,
        settings.server or RemoteModelSettings(),
        tokenizer,
        protocol.stops_for(tokenizer),
        settings.temperature,
        text_only=in_bytes,
        tools=grammar.schemas if grammar.native_calls else (),
    )
    model.lost_stop, model.text_stops = grammar.lost_stop, grammar.closing_stops
    model.neutral = partial(without_role_marks, kept=frozenset(grammar.special_tokens))
    model.words_of = TurnWriter(grammar, reopens=model.served.dialect in ("chat", "tools"))
    if in_bytes and dialect_of(model.served.dialect).EXACT:
        raise SettingError(
            f"{settings.name} exchanges token ids, which are not bytes; name the model's own folder with --tokenizer"
        )
    if in_bytes:
        model.ids_per_token = BYTES_PER_TOKEN
    return model


def spent(model: Model, settings: AgentSettings) -> str:
    """Usage and cost of a server's model in one line; "" for others."""
    if not isinstance(model, RemoteModel):
        return ""
    usage, calls = model.usage, model.calls.stats
    prices = (settings.server or RemoteModelSettings()).prices
    parts = [f"{usage.answers} answers", f"{usage.read_tokens} tokens read", f"{usage.written_tokens} written"]
    parts += [f"${usage.cost_usd(prices):.4f}"] if prices.read or prices.written else []
    parts += [f"{usage.uncounted} answers did not count their tokens"] if usage.uncounted else []
    parts += [f"{calls.retries} calls repeated"] if calls.retries else []
    parts += [f"{calls.failed} calls failed"] if calls.failed else []
    return f"{settings.name}: {', '.join(parts)}"


def open_model(settings: AgentSettings, protocol: Protocol, tokenizer: Tokenizer) -> Model:
    # Imported here because they import torch, which scripted agents do not need.
    from coseek.models.pretrained import load_model
    from coseek.models.sampler import Sampler, SamplerSettings, pick_dtype, rows_that_fit

    if line := warning(settings):
        log.warning("%s", line)
    model = load_model(model_path(settings.name), settings).requires_grad_(False)
    sampling = SamplerSettings(temperature=settings.temperature, dtype=settings.precision)
    with suppress(DataError):  # a model of unknown size
        gib, tokens = CACHE_SHARE * memory_gib(model.device), limits_for(settings).max_tokens
        fitting_rows = max(2, rows_that_fit(gib, model, pick_dtype(sampling.dtype, model), tokens))
        sampling = sampling.model_copy(update={"max_rows": min(sampling.max_rows, fitting_rows)})
    return Sampler(model, tokenizer, protocol.stops_for(tokenizer), sampling)


def settled_for(
    settings: S, agent: AgentSettings | None, began: Path | None = None, others: Sequence[str | None] = ()
) -> S:
    """Resolve the precision `auto` to the precision recorded in the file `began` when work is resumed, else to the
    fastest on the device. `others` are the models of a group `placement`."""
    recorded_settings = read_yaml(began, "record").get("settings") if began is not None and began.exists() else None
    width = hidden_size(model_path(agent.name)) if agent is not None else 0
    other_width = min(filter(None, (hidden_size(model_path(name)) for name in others if name)), default=0)

    def width_at(path: Place) -> int:
        return other_width if path[0] == "placement" else width

    return resolve_here(settings, recorded_settings if isinstance(recorded_settings, dict) else None, width_at)


def stored_tokenizer(settings: AgentSettings) -> Tokenizer | None:
    """Open the tokenizer of a stored run's agent; `None` if its folder or protocol file no longer exists."""
    folder = settings.tokenizer_name
    if folder != BYTES and not is_scripted(folder):
        path = model_path(folder)
        return HfTokenizer.load(path) if path.is_dir() else None
    try:
        return open_tokenizer(settings, load_protocol(settings.protocol, settings.prompt_template))
    except UserError:  # without the protocol file its marks, which are one token each, are unknown
        return None


def decoder_of(run: Run) -> "Decode | None":
    """A function that decodes a run's ids to text; `None` if its agent or protocol file no longer exists.

    A tokenizer folder in a common parent folder with the run is also found after both were moved."""
    recorded_settings = run.settings.get("agent")
    if not isinstance(recorded_settings, dict):
        return None
    settings = make_settings(AgentSettings, recorded_settings)
    tokenizer = stored_tokenizer(settings)
    parts = Path(settings.tokenizer_name).parts
    for parent in run.folder.resolve().parents:
        if tokenizer is None and parent.name in parts[:-1]:
            candidate = parent.joinpath(*parts[parts.index(parent.name) + 1 :])
            tokenizer = stored_tokenizer(settings.model_copy(update={"tokenizer": str(candidate)}))
    return None if tokenizer is None else tokenizer.decode


@dataclass(frozen=True)
class TurnWriter:
    """Writes the turns of one protocol."""

    grammar: Grammar
    reopens: bool = False
    """Whether the server applies a chat template, which may open each turn's thought, so that the text only closes
    it."""

    @cached_property
    def _thought(self) -> tuple[str, str] | None:
        """The marks of a thought; `None` if the protocol has no place for it."""
        if tag := self.grammar.thought:
            return tag.opening, tag.closing
        return ("<think>", "</think>") if self.grammar.free_text else None

    def __call__(self, turn: ServerTurn) -> str:
        """The text of a turn. Raises `ValueError` for tool calls that the protocol cannot write."""
        if self.grammar.native_calls:
            message = read_turn(turn.text, tools=self.grammar.schemas)  # what the server left in the text
            reasoning = "\n".join(filter(None, (turn.reasoning.strip(), reasoning_in(message))))
            content = str(message.get("content", ""))
            return self.grammar.spell(message_of(content, reasoning, turn.calls or calls_in(message)))
        return self._text_with_thought(turn) + self._missing_calls(turn)

    def _text_with_thought(self, turn: ServerTurn) -> str:
        """The text with its reasoning in the protocol's marks, or without it."""
        opening, closing = self._thought or ("", "")
        text, reasoning = turn.text, turn.reasoning
        if not (opening or self.reopens):
            return text  # it may close the reasoning that the prompt has opened, which the grammar parses
        if opening and (opening in text or closing in text):
            reopened = self.reopens and closing in text.partition(opening)[0]
            return f"{opening}{text}" if reopened else text
        inline_reasoning, words = split_reasoning(text)
        text = words if inline_reasoning else text
        reasoning = self.grammar.escape("\n".join(filter(None, (reasoning.strip(), inline_reasoning))))
        return f"{opening}{reasoning}{closing}\n{text}" if opening and reasoning else text

    def _missing_calls(self, turn: ServerTurn) -> str:
        """The calls that the server removed from the text, in the protocol's marks."""
        if not turn.calls or self.grammar.intent(turn.text).span is not None:
            return ""
        if (tag := self.grammar.agent_tags.get(Action.TOOL)) is None:
            raise ValueError(
                f"the server took a call of the tool {turn.calls[0].name!r} out of the text, and this protocol has no "
                "tool calls; start the server without its tool parser (vLLM: without --enable-auto-tool-choice)"
            )
        return "".join(f"{tag.opening}{self.grammar.escape(as_json(call))}{tag.closing}" for call in turn.calls)
