"""Synthetic labels: label sets for an encoder, made from the plans of questions in laptop worlds.

Each step of a plan is a search. Its query is one of several kinds, and the passage that states the fact is the
positive. The negatives are the other top passages of BM25: look-alikes, namesakes, former values, and other passages
that name the entity. A passage that also states the fact (the other spouse's, for a marriage) is not a negative.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Literal

from pydantic import Field

from coseek.agents.search_turns import TurnId
from coseek.core.settings import Settings
from coseek.data.passage import Corpus, Hit
from coseek.data.question import Question, Step, plan_of
from coseek.lab.world.oracle import SUPPORT
from coseek.lab.world.rationales import kind_of
from coseek.lab.world.settings import LexiconName, WorldSettings
from coseek.lab.world.world import World, make_world
from coseek.labels.label_set import Candidate, LabelSet
from coseek.retrieval.query import Query
from coseek.retrieval.retrievers.bm25 import Bm25
from coseek.training.learner.data_order import derive_seed


def _short_name(step: Step) -> str:
    """Return the last capitalised word of the mention, a name that several entities share."""
    names = [word for word in step.mention.split() if word[0].isupper()]
    return names[-1] if names else step.mention


KINDS: Mapping[str, Callable[[Step], str]] = {
    "name+type": lambda step: f"{step.mention} {step.word}",
    "name": lambda step: step.mention,
    "name+relation": lambda step: f"{step.mention} {step.relation}",
    "sub-question": lambda step: step.sub_question,
    "short name+relation": lambda step: f"{_short_name(step)} {step.relation}",
}
"""Kinds of query for a step of a plan. The last one is ambiguous."""


class SyntheticSettings(Settings):
    """Synthetic labels from laptop worlds made for training. Every step of a question's plan is a search, its gold
    passage is the positive, and the other passages that BM25 finds are the negatives."""

    worlds: int = Field(default=16, ge=1)
    """Number of worlds. They share no fact with a world used for evaluation."""
    tokenizer_worlds: int = Field(default=6, ge=1)
    """Worlds whose texts a new tokenizer is trained on. Six hold every word of the laptop lexicon."""
    world: WorldSettings = WorldSettings(size="compact", train=500, dev=0, test=0)
    """Settings of a world; each has a different seed."""
    lexicons: tuple[LexiconName, ...] = ()
    """Lexicons of the worlds, which take them in turn; empty: that of `world` alone."""
    held_out: WorldSettings = WorldSettings(seed=8, size="small", train=0, dev=400, test=0)
    """World for the evaluation, on its split dev; the pool is its corpus."""
    kinds: dict[Literal["name+type", "name", "name+relation", "sub-question", "short name+relation"], float] = Field(
        default={"name+type": 1.0, "name": 1.0, "name+relation": 1.0, "sub-question": 2.0, "short name+relation": 1.0}
    )
    """Kinds of query, and the weight with which each is drawn for a step of a plan."""
    candidates: int = Field(default=12, ge=2)
    """Maximum number of passages from BM25, without the positive."""


SETTINGS = SyntheticSettings


def throw_away_worlds(settings: SyntheticSettings, seed: int) -> Iterator[World]:
    """Make worlds that share no facts; those of one lexicon share its vocabulary."""
    lexicons = settings.lexicons or (settings.world.lexicon,)
    for number in range(settings.worlds):
        world_seed = derive_seed(seed, "retriever world", number) % 2**31
        lexicon = lexicons[number % len(lexicons)]
        yield make_world(settings.world.model_copy(update={"seed": world_seed, "lexicon": lexicon}))


def texts(settings: SyntheticSettings, seed: int) -> Iterator[str]:
    """Yield the texts that a new tokenizer is trained on."""
    reduced_settings = settings.model_copy(update={"worlds": min(settings.tokenizer_worlds, settings.worlds)})
    for world in throw_away_worlds(reduced_settings, seed):
        yield from texts_of(world)


def training_labels(settings: SyntheticSettings, seed: int) -> Iterator[list[LabelSet]]:
    """Yield the label sets of one world after the other."""
    for world in throw_away_worlds(settings, seed):
        yield list(chain.from_iterable(synthetic_labels(world, "train", settings, seed).values()))


def held_out_labels(settings: SyntheticSettings, seed: int) -> tuple[dict[str, list[LabelSet]], Corpus]:
    """Return label sets of the held-out world by kind of query, and its corpus."""
    world = make_world(settings.held_out)
    return synthetic_labels(world, "dev", settings, seed), world.corpus


def texts_of(world: World) -> Iterator[str]:
    """Yield the texts that the tokenizer is trained on."""
    yield from (f"{passage.title} {passage.text}" for passage in world.corpus)
    yield from (question.question for of_split in world.questions.values() for question in of_split)


def synthetic_labels(world: World, split: str, settings: SyntheticSettings, seed: int) -> dict[str, list[LabelSet]]:
    """Return label sets by kind of query: one per step of every plan, of a random kind."""
    rng = random.Random(f"{seed}/lessons/{world.settings.seed}")
    kinds, weights = list(settings.kinds), list(settings.kinds.values())
    # A constraint has no mention, so that its query would be the question itself.
    questions = [
        question for question in world.questions[split] if question.answerable and kind_of(question) != "constraint"
    ]
    steps = ((question, hop, step) for question in questions for hop, step in enumerate(plan_of(question)))
    searches = [(rng.choices(kinds, weights)[0], *step) for step in steps]
    queries = [KINDS[kind](step) for kind, _, _, step in searches]
    hit_lists = Bm25.over(world.corpus).search(queries, settings.candidates + 1)
    by_kind: dict[str, list[LabelSet]] = {kind: [] for kind in kinds}
    for (kind, question, hop, step), query, hits in zip(searches, queries, hit_lists, strict=True):
        by_kind[kind].append(_label(world, question, hop, step, query, hits))
    return {kind: labels for kind, labels in by_kind.items() if labels}


def _label(world: World, question: Question, hop: int, step: Step, query: str, hits: list[Hit]) -> LabelSet:
    gold = world.corpus.by_id(step.gold_id)
    ranks = {hit.passage.id: rank for rank, hit in enumerate(hits, start=1)}
    # The gold passage supports the fact, too.
    others = [
        Candidate(hit.passage, ranks[hit.passage.id])
        for hit in hits
        if world.oracle.relevance(question, hit.passage, hop) < SUPPORT
    ]
    return LabelSet(
        turn=TurnId(question.id, 0, hop),
        question=question,
        query=Query(query, question.question),
        candidates=(Candidate(gold, ranks.get(gold.id, 0)), *others),
        positive=gold.id,
        negatives=tuple(other.passage.id for other in others),
    )
