"""Hostile load, the servers: how each is started, what good clients ask of it, and what the library answers to that."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import cast

from torch import Tensor

from coseek.agents.factory import limits_for, open_agent, settings_for, settled_for
from coseek.agents.limits import Limits
from coseek.agents.rollout import Agent, rollout
from coseek.agents.sources import reply_of
from coseek.core.files import Json, JsonObject
from coseek.data.dataset import Dataset
from coseek.data.question import Question
from coseek.data.trajectory import Trajectory
from coseek.hardware.placement import FLOAT32
from coseek.models.model import EpisodeState, Request
from coseek.models.pretrained import load_model
from coseek.models.sampler import Sampler, SamplerSettings
from coseek.models.shipped import model_path
from coseek.models.tokenizer import HfTokenizer
from coseek.retrieval.index import build_index, open_index
from coseek.serve.agent_chat import reasoning
from coseek.serve.contract import document
from coseek.world.world import WorldSettings, make_world

TOKEN_ENV = "COSEEK_HOSTILE_LOAD_TOKEN"
MODEL = "base"
CLOSE = 1e-4
"""Two logits that differ by less may change places: their last bits, some 1e-5, depend on the size of the batch."""
_TOKENS = 24
_ASKED = 24
_COMMAND = [sys.executable, "-m", "coseek", "serve"]
_SERVED = ["--port", "0", "--quiet", "--token-env", TOKEN_ENV]


@dataclass(frozen=True)
class Target:
    """One server, and what clients send to it."""

    name: str
    command: list[str]
    path: str
    asked: list[tuple[JsonObject, Json]]
    """Requests of good clients, each with what the library gives."""
    read: Callable[[JsonObject], Json]
    """What of an answer is compared with that."""
    large: list[bytes]
    """Bodies at or beyond a limit, or a product of limits."""
    wrong: list[bytes]
    """JSON of the wrong types."""
    streams: bool = False
    quick: bool = True
    """Whether dozens of requests take less than a minute."""
    token: bool = True
    headers: str = ""


def target_of(name: str, folder: Path, model: str = MODEL) -> Target:
    """`model`: what the model's and the agent's server serve."""
    return {"retriever": _retriever, "model": _model, "agent": _agent, "mcp": _mcp}[name](folder, model)


@cache
def _data(folder: Path) -> tuple[Path, tuple[str, ...]]:
    """An index over a small world, and its questions."""
    world, index = folder / "world", folder / "index"
    make_world(WorldSettings(size="tiny", train=0, dev=_ASKED, test=0)).save(world)
    build_index(world, "bm25", index)
    return index, tuple(question.question.strip() for question in Dataset(world).questions("dev"))


def _retriever(folder: Path, _: str) -> Target:
    index, questions = _data(folder)
    asked: list[tuple[JsonObject, Json]] = []
    for place, text in enumerate(questions):
        queries, k = [text, questions[place - 1]], 1 + place % 5
        found: list[Json] = [
            [{"document": document(hit), "score": hit.score} for hit in hits]
            for hits in open_index(index).search(queries, k)
        ]
        asked.append(({"queries": [*queries], "topk": k, "return_scores": True}, found))
    words = questions[0]
    most: list[JsonObject] = [
        {"queries": [words] * 4_096, "topk": 16},
        {"queries": [words] * 200, "topk": 1_000, "return_scores": True},
        {"queries": [words] * 4_096, "topk": 1_000},
        {"queries": ["x" * 32_768] * 64},
        {"queries": ["a"] * 8, "contexts": [{"question": "q" * 999_999}] * 8},
        {"queries": ["x" * 2_000_000]},
    ]
    return Target(
        "retriever", [*_COMMAND, "retriever", str(index), *_SERVED], "/retrieve", asked,
        lambda row: row["result"], [*_bodies(most), *_vast("queries")], _odd("queries"),
    )  # fmt: skip


def _model(folder: Path, model: str) -> Target:
    _, questions = _data(folder)
    sampler = _CloseDraws.of(model, ())
    tokenizer = sampler.tokenizer
    nobody = EpisodeState(Question("asked", ""))
    for key, text in enumerate(questions):
        sampler.start(Request(key, tuple(tokenizer.encode(text)), _TOKENS, 0, nobody))
    ids: dict[int, Sequence[int]] = {}
    while len(ids) < len(questions):
        ids |= {turn.key: turn.ids for turn in sampler.step()}
    row: JsonObject = {"max_tokens": _TOKENS, "temperature": 0, "return_token_ids": True, "add_special_tokens": False}
    asked: list[tuple[JsonObject, Json]] = [
        ({"prompt": text, **row}, [[*ids[key]]]) for key, text in enumerate(questions) if key not in sampler.close_rows
    ]
    most: list[JsonObject] = [
        {"prompt": [questions[0]] * 64, "max_tokens": 256, "logprobs": 1, "return_token_ids": True},
        {"prompt": [questions[0]] * 64, "max_tokens": 10**9},
        {"prompt": "x y " * 499_000, "max_tokens": 1},
        {"prompt": [[5] * 4_000] * 64, "max_tokens": 1},
        {"prompt": "a", "max_tokens": 64, "stop": ["y" * 256] * 64, "temperature": 0.37},
        {"prompt": "a", **{f"field{number}": 1 for number in range(200_000)}},
    ]
    command = [*_COMMAND, "model", model, "--precision", "float32", *_SERVED]
    return Target(
        "model", command, "/v1/completions", asked,
        lambda row: [cast(JsonObject, one)["token_ids"] for one in cast(list[Json], row["choices"])],
        [*_bodies(most), *_vast("prompt")], _odd("prompt"), quick=False,
    )  # fmt: skip


def _agent(folder: Path, model: str) -> Target:
    index, questions = _data(folder)
    chosen = settings_for(model)
    opened = open_agent(settled_for(chosen, chosen))
    sampler = _CloseDraws.of(model, opened.protocol.grammar.stops)
    runs = _played(replace(opened, model=sampler), index, questions, limits_for(chosen))
    asked: list[tuple[JsonObject, Json]] = [
        ({"messages": [{"role": "user", "content": text}], "seed": 0}, [reasoning(run), reply_of(run)])
        for key, (text, run) in enumerate(zip(questions, runs, strict=True))
        if key not in sampler.close_rows
    ]

    def read(row: JsonObject) -> Json:
        said = cast(dict[str, Json], cast(dict[str, Json], cast(list[Json], row["choices"])[0])["message"])
        return [said["reasoning_content"], said["content"]]

    most: list[JsonObject] = [
        {"messages": [{"role": "user", "content": "x" * 32_768}] * 400},
        {"messages": [{"role": "user", "content": "who " * 8_192}], "stream": True},
        {"messages": [{"role": "user", "content": "x" * 40_000}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 80_000}]},
        {"messages": [{"role": "user", "content": "a", **{f"field{number}": 1 for number in range(200_000)}}]},
    ]
    command = [*_COMMAND, "agent", model, "--retriever", str(index), *_SERVED]
    return Target(
        "agent", command, "/v1/chat/completions", asked, read, [*_bodies(most), *_vast("messages")],
        _odd("messages"), streams=True, quick=False,
    )  # fmt: skip


def _mcp(folder: Path, _: str) -> Target:
    index, questions = _data(folder)
    retriever = open_index(index)
    asked: list[tuple[JsonObject, Json]] = []
    for text, run in zip(questions, _runs("rules", index, questions), strict=True):
        passages = [hit.passage for hit in retriever.search([text], 10)[0]]
        results: list[Json] = [{"id": one.id, "title": one.title, "url": one.url} for one in passages]
        asked.append((_call("search", query=text), {"results": results}))
        whole = passages[0]
        page: JsonObject = {"id": whole.id, "title": whole.title, "url": whole.url, "text": whole.text}
        asked.append((_call("fetch", id=whole.id), {**page, "metadata": dict(whole.meta)}))
        asked.append((_call("ask", question=text), {"answer": reply_of(run), "stop": str(run.stop)}))

    def read(row: JsonObject) -> Json:
        told = dict(cast(dict[str, Json], cast(dict[str, Json], row["result"])["structuredContent"]))
        told.pop("sources", None)
        return told

    most: list[Json] = [
        _call("search", query="x y " * 8_000),
        _call("search", query="x" * 2_000_000),
        [_call("search", query="x")] * 10_000,
        _call("search", query="a", **{f"field{number}": "1" for number in range(100_000)}),
    ]
    command = [*_COMMAND, "mcp", str(index), "--agent", "rules", "--http", "0"]
    headers = "Accept: application/json, text/event-stream\r\nMcp-Protocol-Version: 2025-06-18\r\n"
    return Target(
        "mcp", command, "/mcp", asked, read, [*_bodies(most), *_vast("params")], _odd("params"),
        token=False, headers=headers,
    )  # fmt: skip


def _call(tool: str, **arguments: str) -> JsonObject:
    params: JsonObject = {"name": tool, "arguments": {**arguments}}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


def _runs(agent: str, index: Path, questions: Sequence[str]) -> list[Trajectory]:
    """What a run answers."""
    chosen = settings_for(agent)
    return _played(open_agent(settled_for(chosen, chosen)), index, questions, limits_for(chosen))


def _played(agent: Agent, index: Path, questions: Sequence[str], limits: Limits) -> list[Trajectory]:
    asked = [Question("asked", text) for text in questions]
    return rollout(agent, open_index(index), asked, [0] * len(asked), limits)


class _CloseDraws(Sampler):
    """Greedy rows of the model; notes those in which two tokens were so close that the rest of the batch decides: the
    services do not promise the one or the other, so such a question is not asked."""

    @classmethod
    def of(cls, model: str, stops: Sequence[str]) -> "_CloseDraws":
        path = model_path(model)
        settings = SamplerSettings(temperature=0.0, dtype="float32")
        made = cls(load_model(path, FLOAT32), HfTokenizer.load(path), stops, settings)
        made.close_rows = set()
        return made

    close_rows: set[int]
    """Keys of the rows, which are the places of their questions."""

    def _drawn(self, logits_BV: Tensor, uniform_B: Tensor) -> tuple[Tensor, Tensor]:
        best_B2 = logits_BV.topk(2, dim=-1).values
        close_B = best_B2[:, 0] - best_B2[:, 1] < CLOSE
        keys = self._table.key[close_B.nonzero()[:, 0].numpy()].tolist()
        self.close_rows |= {key if key >= 0 else ~key for key in keys}  # a side context is of the row ~key
        return super()._drawn(logits_BV, uniform_B)


def _bodies(rows: Sequence[Json]) -> list[bytes]:
    return [json.dumps(row).encode() for row in rows]


def _vast(field: str) -> list[bytes]:
    """JSON that takes long to read, or to complain about."""
    begin = b'{"' + field.encode() + b'":'
    return [
        begin + b"[" * 100_000 + b"]" * 100_000 + b"}",
        begin + b"[" + b"[]," * 5_000_000 + b"0]}",
        begin + b'["a",' + b"1," * 2_000_000 + b"1]}",
        begin + b"[" + b"{}," * 200_000 + b"{}]}",
        begin + b'["' + rb"\u0041" * 2_500_000 + b'"]}',
        begin + b'"' + b"x" * 17_000_000 + b'"}',
        begin + b"1" * 1_000_000 + b"}",
    ]


def _odd(field: str) -> list[bytes]:
    values = ["null", "0", "-1e999", "[]", "[null]", "[[]]", "[[1],2]", "{}", '[{"a":{}}]', '"\\ud800"', '["\\udfff"]']
    rows = [f'{{"{field}": {value}}}'.encode() for value in values]
    return [*rows, b"", b"null", b"[]", b'"x"', b"{", b"\xff\xfe", b'{"a": NaN}', b"{}" * 50, b'{"stream": true}']
