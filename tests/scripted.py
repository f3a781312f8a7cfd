"""Models for tests: a text model that writes what a function says, with a generator and a judge over it, a `Model` that
replays given turns, and a retriever that fails."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from coseek.core.errors import ModelError, RetrieverError
from coseek.data.passage import Hit
from coseek.graders.generator import Generator, GeneratorSettings, load_generator_prompt
from coseek.graders.judge import JudgeSettings, ModelJudge, load_judge_prompt
from coseek.models.model import EpisodeState, Request, Tokenizer, Turn, TurnEnd
from coseek.models.text_model import Output, TextModel, texts_of
from coseek.models.tokenizer import ByteTokenizer
from coseek.retrieval.query import Query, QueryLike
from coseek.retrieval.retriever import LayeredRetriever, Retriever


@dataclass
class Scripted:
    """Writes `says(prompt)`, or fails; remembers what it was told."""

    says: Callable[[str], str]
    fault: str = ""
    identity: str = "scripted"
    calls: list[list[str]] = field(default_factory=list)

    def write(self, prompts: Sequence[str], max_tokens: int) -> list[str]:
        if self.fault:
            raise ModelError(self.fault)
        self.calls.append(list(prompts))
        return texts_of(list(map(self._output, prompts)))

    def _output(self, prompt: str) -> Output:
        try:
            return self.says(prompt)
        except ModelError as error:
            return error


def generator(model: TextModel, **settings: object) -> Generator:
    """A frozen generator that asks the model in the shipped prompt, or as the settings say."""
    chosen = GeneratorSettings.model_validate({"model": "scripted", **settings})
    return Generator(model, load_generator_prompt(chosen), chosen)


def judge(model: TextModel, **settings: object) -> ModelJudge:
    """A judge that asks the model in the shipped prompt."""
    chosen = JudgeSettings.model_validate({"model": "scripted", **settings})
    return ModelJudge(model, load_judge_prompt(chosen), chosen)


class Failing(LayeredRetriever):
    """A retriever that fails for a batch with a query of which `refuses` is true. Remembers what it was asked."""

    def __init__(self, over: Retriever, refuses: Callable[[Query], bool] = lambda query: True) -> None:
        super().__init__(over)
        self.name, self.identity, self.refuses = over.name, over.identity, refuses
        self.asked: list[Query] = []

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        self.asked += map(Query.of, queries)
        if any(self.refuses(Query.of(query)) for query in queries):
            raise RetrieverError("the disk is gone")
        return self.over.search(queries, k)


Script: TypeAlias = Mapping[str, Sequence[str]] | Callable[[EpisodeState], str]
"""The turns by question id, or a function of the episode's state."""


class ScriptedModel:
    """Returns the next text of a row's script, with log-probability 0 per token. A missing turn is a fault."""

    def __init__(self, script: Script, tokenizer: Tokenizer | None = None) -> None:
        self.tokenizer: Tokenizer = tokenizer or ByteTokenizer()
        self._script = script
        self._turn: dict[int, int] = {}
        self._waiting: list[Request] = []

    def start(self, request: Request) -> None:
        if request.key in self._turn:
            raise ValueError(f"a row with the key {request.key} is open already; close it first")
        self._turn[request.key] = len(request.written)
        self._waiting.append(request)

    def extend(self, request: Request) -> None:
        if request.key not in self._turn:
            raise ValueError(f"row {request.key} is not open, so it cannot be extended")
        self._turn[request.key] += 1
        self._waiting.append(request)

    def step(self) -> list[Turn]:
        turns = [self._write(request) for request in self._waiting]
        self._waiting = []
        return turns

    def close(self, key: int) -> None:
        self._turn.pop(key, None)
        self._waiting = [request for request in self._waiting if request.key != key]

    def _write(self, request: Request) -> Turn:
        number = self._turn[request.key]
        if callable(self._script):
            text = self._script(request.state)
        else:
            texts = self._script.get(request.state.question.id, ())
            if number >= len(texts):
                fault = f"the script for question {request.state.question.id!r} has no turn {number + 1}"
                return Turn(request.key, (), (), TurnEnd.FAULT, fault)
            text = texts[number]
        ids = self.tokenizer.encode(text)
        written = tuple(ids[: request.max_tokens])
        if len(written) < len(ids):
            end = TurnEnd.LENGTH
        else:
            end = TurnEnd.EOS if ids and ids[-1] == self.tokenizer.eos_id else TurnEnd.STOP
        return Turn(request.key, written, (0.0,) * len(written), end)
