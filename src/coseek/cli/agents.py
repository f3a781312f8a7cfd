"""Agents by name: what stands behind `--agent`. A model folder, or the name of a writer that needs no model."""

from pathlib import Path
from typing import Literal, cast

from coseek.agents.card import AgentCard
from coseek.agents.protocol import Protocol, load_protocol
from coseek.agents.rollout import Agent, Limits
from coseek.agents.writer import Writer
from coseek.agents.writing import WriterModel
from coseek.data.audit import Decode
from coseek.data.errors import DataError, UserError, nearest
from coseek.data.registry import find, names
from coseek.data.run import Run
from coseek.data.settings import Settings, make_settings
from coseek.models.model import Model, Tokenizer
from coseek.models.tokenizer import ByteTokenizer, HfTokenizer

WRITERS = "coseek.agents.writers"
"""The package of agents that need no model; its files' names are theirs."""


class AgentSettings(Settings):
    """Which agent runs, and how it writes."""

    name: str
    """A model folder, or the name of a writer: `rules`, `expert`, …"""
    protocol: str
    """A protocol by name, or a YAML file."""
    wording: str
    """`default`, `laptop`, or a YAML file with a prompt of your own."""
    temperature: float = 0.0
    """0 takes the most likely token; no effect on writers."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Of weights and cache; no effect on writers."""
    tokenizer: str | None = None
    """A model folder in whose ids a writer writes; plain bytes when not given. A model has its own."""


def settings_for(name: str, protocol: str | None = None, wording: str | None = None) -> AgentSettings:
    """Fill in the protocol and wording that belong to an agent; a name that is none is refused."""
    card = card_of(name)
    return AgentSettings(name=name, protocol=protocol or card.protocol, wording=wording or card.wording)


def card_of(name: str) -> AgentCard:
    """The protocol and wording that belong to an agent unless one asks for others."""
    if name in names(WRITERS):
        return AgentCard(wording=str(find("writer", WRITERS, name).WORDING))
    folder = Path(name)
    if not folder.is_dir():
        known = names(WRITERS)
        raise UserError(
            f"no agent named {name!r}{nearest(name, known)} Known: {', '.join(known)}, or the path of a model folder"
        )
    if not (folder / "config.json").is_file():  # said here, before torch is woken to say the same
        raise DataError(f"{folder} is not a model folder: it has no config.json")
    return AgentCard.read(folder)


def limits_for(name: str) -> Limits:
    """The budgets of an agent unless one asks for others. A writer's tokens are bytes, of which text has more."""
    if name in names(WRITERS):
        return Limits(max_turn_tokens=4000, max_observation_tokens=8000, max_tokens=64000)
    return Limits()


def open_agent(settings: AgentSettings) -> Agent:
    """The agent, ready to run."""
    protocol = load_protocol(settings.protocol, settings.wording)
    tokenizer = open_tokenizer(settings, protocol)
    if settings.name in names(WRITERS):
        return Agent(protocol, WriterModel(open_writer(settings.name), protocol, tokenizer))
    return Agent(protocol, open_model(settings, protocol, tokenizer))


def open_writer(name: str) -> Writer:
    """Make a writer with its ordinary settings."""
    return cast(Writer, find("writer", WRITERS, name).make())


def open_tokenizer(settings: AgentSettings, protocol: Protocol) -> Tokenizer:
    """A model's own tokenizer; for a writer the one it was given, or plain bytes when no model reads its words."""
    folder = settings.tokenizer or settings.name
    if folder in names(WRITERS):
        return ByteTokenizer(protocol.grammar.special_tokens)
    return HfTokenizer.load(Path(folder))


def open_model(settings: AgentSettings, protocol: Protocol, tokenizer: Tokenizer) -> Model:
    # Here and not above: these bring torch, which writers do without.
    from coseek.models.loading import load_model
    from coseek.models.sampler import Sampler, SamplerSettings

    sampling = SamplerSettings(temperature=settings.temperature, dtype=settings.precision)
    return Sampler(load_model(Path(settings.name)), tokenizer, protocol.grammar.stops, sampling)


def decoder_of(run: Run) -> Decode | None:
    """How to turn a run's ids into text again; `None` when its agent is no longer there."""
    recorded = run.settings.get("agent")
    if not isinstance(recorded, dict):
        return None
    settings = make_settings(AgentSettings, recorded)
    folder = settings.tokenizer or settings.name
    if folder not in names(WRITERS) and not Path(folder).is_dir():
        return None
    return open_tokenizer(settings, load_protocol(settings.protocol, settings.wording)).decode
