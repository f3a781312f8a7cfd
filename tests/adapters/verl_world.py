"""Shared by tests of verl: a retriever that fails for some queries, and a model for verl and our driver."""

import asyncio
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import dedent
from typing import TypedDict

from tests.agents.playing import Typist

from coseek.models.dialect import turn_seed
from coseek.models.model import Request, Tokenizer, Turn, TurnEnd
from coseek.models.tokenizer import stopped_after

BROKEN = """
    from coseek.core.errors import RetrieverError
    from coseek.core.settings import Settings


    class BrokenSettings(Settings):
        over: str


    SETTINGS = BrokenSettings


    class Broken:
        def __init__(self, inner):
            self.inner, self.name, self.corpus, self.identity = inner, inner.name, inner.corpus, "broken"

        def seen(self, query):
            return self.inner.seen(query)

        def search(self, queries, k):
            if any("lost" in str(query) for query in queries):
                raise RetrieverError("the disk is gone")
            return self.inner.search(queries, k)


    def open(settings, opening):
        return Broken(opening.open(settings.over))
"""
"""A retriever that fails for queries with `lost`."""


def broken_retriever(folder: Path, index: Path) -> dict[str, object]:
    (folder / "broken.py").write_text(dedent(BROKEN), encoding="utf-8")
    return {"retriever": str(folder / "broken.py"), "over": str(index)}


class Scribe:
    """Writes turns drawn by a turn's seed and its context: good and broken ones, too long ones, and faults."""

    def __init__(
        self, tokenizer: Tokenizer, texts: Sequence[str], stops: Sequence[str], answers: Mapping[str, str]
    ) -> None:
        """`answers`: question → right answer, which replaces half of the drawn 1815s."""
        self.tokenizer, self.texts, self.stops, self.answers = tokenizer, texts, stops, answers

    def write(self, seed: int, context: Sequence[int], most: int) -> tuple[list[int], list[float]]:
        """Ids and log-probabilities. Sometimes raises `RuntimeError`."""
        rng = random.Random(f"{seed}/{len(context)}/{sum(context)}")
        if rng.random() < 0.03:
            raise RuntimeError("out of memory")
        text = rng.choice(self.texts)
        if "1815" in text and rng.random() < 0.5:
            seen = self.tokenizer.decode(context)
            text = text.replace("1815", next(right for question, right in self.answers.items() if question in seen))
        ids = [*self.tokenizer.encode(text)][:most]
        ids = ids[: stopped_after(ids, self.stops, self.tokenizer)]
        return ids, [-rng.random() for _ in ids]


class ScribeModel(Typist):
    """The scribe as a model of the batch driver."""

    def __init__(self, scribe: Scribe) -> None:
        super().__init__(scribe.tokenizer, ())
        self.scribe = scribe

    def _write(self, request: Request) -> Turn:
        context = self.read[request.key]
        try:
            ids, logprobs = self.scribe.write(turn_seed(request.seed, len(context)), context, request.max_tokens)
        except RuntimeError as error:
            return Turn(request.key, (), (), TurnEnd.FAULT, str(error))
        self.read[request.key] += tuple(ids)
        stopped = stopped_after(ids, self.scribe.stops, self.tokenizer) is not None
        return Turn(request.key, tuple(ids), tuple(logprobs), TurnEnd.STOP if stopped else TurnEnd.LENGTH)


class Asked(TypedDict):
    """What an agent loop asks a vLLM for."""

    logprobs: bool
    include_stop_str_in_output: bool
    skip_special_tokens: bool
    stop: list[str]
    seed: int
    max_tokens: int


class ScribeClient:
    """The scribe behind what an agent loop asks."""

    def __init__(self, scribe: Scribe) -> None:
        self.scribe = scribe

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: Asked, **_: object) -> object:
        from verl.workers.rollout.replica import TokenOutput

        await asyncio.sleep(0)
        assert sampling_params["logprobs"] and sampling_params["include_stop_str_in_output"]
        assert not sampling_params["skip_special_tokens"] and sampling_params["stop"] == [*self.scribe.stops]
        ids, logprobs = self.scribe.write(sampling_params["seed"], prompt_ids, sampling_params["max_tokens"])
        fields = {"min_global_steps": 7, "max_global_steps": 7, "global_steps": 7}
        return TokenOutput(token_ids=ids, log_probs=logprobs, stop_reason="completed", extra_fields=fields)
