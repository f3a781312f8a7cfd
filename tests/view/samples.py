"""Runs with texts of every kind, for tests of the viewer."""

import base64
import gzip
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from tests.html_page import HtmlPage

from coseek.agents.search_turns import TurnId
from coseek.core.files import Json, JsonObject, write_jsonl
from coseek.data.grade_cache import GradeCache
from coseek.data.passage import Hit, Passage
from coseek.data.question import Question
from coseek.data.run import Run
from coseek.data.token_data import FILE, TokenData, Values
from coseek.data.trajectory import Author, Call, Search, Segment, StopReason, Trajectory
from coseek.labels.label_folder import LabelFolder, Score
from coseek.labels.label_set import Candidate, DroppedTurn, LabelSet
from coseek.retrieval.query import Query

_PAYLOADS = (
    "</script><script>window.hacked=1</script>", "<img src=x onerror=window.hacked=1>", "<!--<script>", "--><b>x</b>",
    "</style><style>*{display:none}</style>", "<svg onload=window.hacked=1>",
    "<iframe src='javascript:window.hacked=1'>",
    "<link rel=stylesheet href=http://127.0.0.1:9/x.css>", "javascript:window.hacked=1", "&lt;script&gt;&#60;b&#62;",
    "{{script}}{{data}}{{title}}", "\u2028window.hacked=1\u2029", "\u202egnp.exe\u202c", "\u2066a\u2069 \u200f\u200e",
    "\x1b[2J\x1b]0;title\x07", "\x00\x08\x7f\x9b", "]]><![CDATA[x",
    "<a href='data:text/html,<script>1</script>'>", "${1}`",
    "\\u003c/script\\u003e \\\"'",
)  # fmt: skip
_FRAMES = ("{}", "x{}y", '"{}', "'{}'", "{0}{0}", "</p>{}", "<{}", "\n{}\n", "[{}](http://127.0.0.1:9/)", "é漢{}🙂")
HOSTILE = [frame.replace("{0}", "{}").replace("{}", payload) for frame in _FRAMES for payload in _PAYLOADS]
"""200 texts that try to be markup, script, requests, terminal codes or another direction."""


def trajectory(ident: str = "q1", text: str = "I look", *, right: bool = True, seed: int = 7, k: int = 3) -> Trajectory:
    """An episode of one search, with `text` in every untrusted text."""
    passages = [Passage(f"p{at} {text}" if at else "p0", f"title {at} {text}", f"text {at} {text}") for at in range(k)]
    agent = Segment(Author.AGENT, "search", f"<search>{text}</search>", (65, 66), (-0.25, -2.0))
    return Trajectory(
        question=Question(ident, f"Who {text}?", ("Ada", text), ("p0",), 2, {"dataset": f"set {text}"}),
        protocol="search-r1",
        segments=(
            Segment(Author.ENVIRONMENT, "prompt", f"Question: {text}", (1, 2, 3)),
            agent,
            Segment(Author.ENVIRONMENT, "information", f"found {text}", (4, 5)),
            replace(agent, tag="answer", text=f"<answer>{text}</answer>"),
        ),
        searches=(Search(text, tuple(Hit(passage, 3.25 - at) for at, passage in enumerate(passages)), turn=1),),
        stop=StopReason.ANSWERED,
        answer="Ada" if right else f"not {text}",
        format_error=text,
        seed=seed,
        timings={"wall_s": 0.5},
        calls=(Call(1, f"tool {text}", {text: text}, text),),
    )


def make_run(folder: Path, trajectories: Iterable[Trajectory], settings: JsonObject | None = None) -> Path:
    """A run folder with these trajectories."""
    agent: JsonObject = {"name": "rules", "protocol": "search-r1", "prompt_template": "default"}
    run = Run.create(folder, settings or {"agent": agent})
    with run.open_for_append() as file:
        for trajectory in trajectories:
            run.append(file, trajectory)
    return folder


def token_data(trajectory: Trajectory, advantages: Values = (-1.5, -1.5, 0.5, None)) -> TokenData:
    """Token data of `trajectory()`, with every kind of value."""
    return TokenData(
        question_id=trajectory.question.id,
        seed=trajectory.seed,
        group=3,
        reward=0.75,
        parts={f"part {trajectory.searches[0].query}": 0.5, "nothing": None},
        trained=True,
        spans=((3, 5), (7, 9)),
        advantages=advantages,
        trainer_logprobs=(-0.25, -2.75, -0.25, None),
        updates=1,
        entropies=(0.25, 1.5, 0.0, 2.5),
    )


def make_rollouts(training: Path, trajectories: Sequence[Trajectory], values: Sequence[TokenData]) -> Path:
    """Stored rollouts of a training step."""
    folder = make_run(training / "rl" / "rollouts" / "step-000010", trajectories)
    write_jsonl(folder / FILE, (data.to_json() for data in values))
    return folder


def make_labels(folder: Path, trajectory: Trajectory) -> Path:
    """A label folder: the first search has a positive and a negative, a question `b` has none."""
    labels = LabelFolder.create(folder, {}, "identity")
    made = tuple(Candidate(Passage(name, name, "text"), at, {"lr": 80.0}) for at, name in enumerate(("good", "bad"), 1))
    turn = TurnId(trajectory.question.id, trajectory.seed, 0)
    with labels.appending() as append:
        append(LabelSet(turn, trajectory.question, Query(trajectory.searches[0].query), made, "good", ("bad",)))
        append(DroppedTurn(TurnId("b", trajectory.seed, 0), "no-positive"))
    labels.release()
    cache = GradeCache(folder / "scores" / "gac.0.jsonl", Score, "identity", {})
    with cache.appending() as scores:
        cache.append(scores, Score(turn, "p0", "digest", 1.0, "Ada"))
        cache.append(scores, Score(turn, "good", "digest", 0.0, "token_limit"))
        cache.append(scores, Score(turn, "bad", "digest", None, fault="timed out"))
    return folder


def data_of(page: HtmlPage) -> JsonObject:
    """The data block, decompressed."""
    block = cast(JsonObject, json.loads(page.contents[1]))
    chunks = cast("list[str]", block["chunks"])
    bodies = [body for chunk in chunks for body in cast("list[Json]", unpacked(chunk))]
    return {**block, "index": unpacked(str(block["index"])), "bodies": bodies}


def unpacked(text: str) -> Json:
    return cast(Json, json.loads(gzip.decompress(base64.b64decode(text))))
