"""Proof of the rollout: 304 trajectories over protocols, scripted agents and two retrievers, with injected faults."""

import zlib
from collections.abc import Sequence

from tests.agents.playing import OURS, SCRIPTS, Shelf, Typist, play, typist
from tests.proof.canonical import Proof, digest
from tests.proof.material import Material

import coseek
from coseek.agents.factory import SCRIPTED
from coseek.agents.protocol import load_protocol
from coseek.core.errors import RetrieverError
from coseek.core.plugins import plugin_names
from coseek.models.model import Turn, TurnEnd
from coseek.retrieval.retriever import LayeredRetriever

PROTOCOLS = [name for name in OURS if not name.endswith("-paper")]
"""Those that differ in more than their limits. Seeds go by their number."""


class Flaky(LayeredRetriever):
    """Fails for about one query in eight, which its text decides."""

    def __init__(self, over: coseek.Retriever) -> None:
        super().__init__(over)
        self.name, self.identity = over.name, f"flaky {over.identity}"

    def search(self, queries: Sequence[str | coseek.Query], k: int) -> list[list[coseek.Hit]]:
        texts = [query if isinstance(query, str) else query.text for query in queries]
        if any(zlib.crc32(text.encode()) % 8 == 0 for text in texts):
            raise RetrieverError("the shelf fell down")
        return self.over.search(queries, k)


class Failing(Typist):
    """Writes its first turn, and fails in the second."""

    def step(self) -> list[Turn]:
        return [
            turn if self.count[turn.key] == 1 else Turn(turn.key, (), (), TurnEnd.FAULT, "out of memory")
            for turn in super().step()
        ]


def proof(material: Material) -> Proof:
    """Digests by protocol, agent and retriever, of one trajectory each."""
    return {**scripted(material), **typed()}


def scripted(material: Material) -> Proof:
    """Every protocol with every scripted agent, over both retrievers that fail at times."""
    items: Proof = {}
    number = 0
    for protocol in PROTOCOLS:
        for agent in plugin_names(SCRIPTED):
            speaker = coseek.open_agent(agent, protocol=protocol)
            for index, over in material.indexes.items():
                retriever = Flaky(over)
                if speaker.protocol.file.retrievers:
                    retriever.name = speaker.protocol.file.retrievers[0]
                question = material.questions[number % len(material.questions)]
                (trajectory,) = coseek.rollout(speaker, question, retriever, seed=number)
                items[f"{protocol} · {agent} · {index}"] = digest(trajectory.to_json())
                number += 1
    return items


def typed() -> Proof:
    """Every protocol with turns as they should be and cut short, and with a model that fails."""
    items: Proof = {}
    for protocol in PROTOCOLS:
        turns = SCRIPTS[protocol.removesuffix("-code")]
        broken = [turns[0][:-3], turns[0].replace("Ada", "bad"), "", *turns]
        items[f"{protocol} · typed"] = digest(play(protocol, *turns).to_json())
        items[f"{protocol} · broken turns"] = digest(play(protocol, *broken).to_json())
        failing = play(protocol, model=Failing(typist(load_protocol(protocol)).tokenizer, turns))
        items[f"{protocol} · failing model"] = digest(failing.to_json())
        lost = play(protocol, *(turn.replace("Ada", "bad") for turn in turns), retriever=Shelf())
        items[f"{protocol} · failing search"] = digest(lost.to_json())
    return items
