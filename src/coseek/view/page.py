"""Page: one HTML file that contains its style, script and data. It loads nothing, and its policy forbids every request.

All text of runs is data, in one JSON block in which `<`, `>`, `&` and non-ASCII characters are escaped, so that no text
can close the block. The script makes only text nodes of it.
"""

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from threading import Lock
from typing import cast

from coseek.core.connections import names_this_machine
from coseek.core.errors import CoseekError, DataError, SettingError
from coseek.core.files import Json, JsonObject, atomic_write
from coseek.core.text import as_written
from coseek.data.answers import cover_match
from coseek.data.passage import Passage
from coseek.data.token_data import TokenData, Values, read_token_data
from coseek.data.trajectory import Author, Call, Search, Segment, Trajectory
from coseek.measure.score import score_trajectory
from coseek.rewards.reward import Reward
from coseek.view.run_source import Curves, RunSource

# Token values: values of each token in a training's rollout, by segment.
#
# Numbers are integers: advantages and entropies in thousandths, gaps (trainer's minus sampler's log-probability) in
# hundred thousandths. `None` if a value is unknown.


def segment_values(trajectory: Trajectory, data: TokenData | None) -> list[JsonObject]:
    """For each segment, fields to add: values of the agent's tokens, or ids of the environment's. Empty without token
    data. Raises `DataError` if the data are of other tokens."""
    if data is None:
        return [{} for _ in trajectory.segments]
    data.check(trajectory)
    rows: list[JsonObject] = []
    start = 0
    for segment in trajectory.segments:
        if segment.author is not Author.AGENT:
            rows.append({"read": list(segment.ids)})
            continue
        end = start + len(segment.ids)
        fields: dict[str, list[Json]] = {
            "advantages": _thousandths(data.advantages[start:end]),
            "gaps": [
                None if value is None else round((value - sampled) * 1e5)
                for value, sampled in zip(data.trainer_logprobs[start:end], segment.logprobs, strict=False)
            ],
            "entropies": _thousandths(data.entropies[start:end]),
        }
        rows.append({name: cast(Json, values) for name, values in fields.items() if values})
        start = end
    return rows


def reward_of_training(data: TokenData) -> Reward | None:
    """The reward that the training step used; `None` if it is not finite."""
    parts = {name: value for name, value in data.parts.items() if value is not None}
    return None if data.reward is None else Reward(data.reward, parts)


def _thousandths(values: Values) -> list[Json]:
    return [None if value is None else round(value * 1000) for value in values]


# Episode table: the data of every episode. Columns for the list, bodies in compressed chunks.
#
# A column has one value per episode. A chunk is a list of bodies; a passage's title, text and place are at its first
# occurrence in the chunk. Texts of laptop worlds are spelled as people write; ids and tokens are exact.
# Log-probabilities are in thousandths of a nat, the precision that the page shows.

CHUNK_CHARS = 256 * 1024
"""Minimum number of characters of JSON in a chunk, which the page decodes in some milliseconds."""
COLUMNS = (
    "run", "question", "seed", "stop", "fault", "right", "reward", "searches", "turns", "tokens", "answer", "queries",
    "parts",
)  # fmt: skip


@dataclass
class EpisodeTable:
    """Columns, questions and packed bodies of the episodes of several runs."""

    columns: dict[str, list[Json]] = field(default_factory=lambda: {name: [] for name in COLUMNS})
    questions: list[Json] = field(default_factory=list)
    pieces: list[Json] = field(default_factory=list)
    """For each run, token id → text: of the agent's tokens, and in rollouts of training of all tokens."""
    chunks: list[str] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    """Number of the first episode of each chunk."""
    _places: dict[str, int] = field(default_factory=dict)
    _bodies: list[str] = field(default_factory=list)
    _known: dict[str, Passage] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.columns["run"])

    def add_run(self, source: RunSource) -> None:
        """Add every episode of a run."""
        number = len(self.pieces)
        answers, verdicts = source.grades()
        decode, token_data = source.decode(), read_token_data(source.folder)
        render, ranks = source.rendered_queries(), source.other_ranks()
        ids: set[int] = set()
        for trajectory in source.trajectories():
            key = trajectory.question.id, trajectory.seed
            data = token_data.get(key)
            reward = None if data is None else reward_of_training(data)
            with suppress(DataError):  # a question of a table may lack what the reward compares with
                reward = source.reward(trajectory) if data is None and source.reward else reward
            body = self._body(trajectory, data)
            for index, text in enumerate(render(trajectory) if render else ()):
                cast("list[JsonObject]", body["searches"])[index]["looked_up"] = text
            if ranks:
                body["ranks"] = cast(Json, ranks(trajectory))
            if labels := labels_for(trajectory, source.labels.get(key, ())):
                body["labels"] = cast(Json, labels)
            responses = [trajectory.answer, *(reply["answer"] for reply in answers.get(key, ()))]
            judged = [verdict for verdict in verdicts.get(key[0], ()) if verdict["response"] in responses]
            if grades := [*answers.get(key, ()), *judged]:
                body["grades"] = cast(Json, grades)
            self._add(number, trajectory, reward, body)
            ids.update(i for part in trajectory.segments if data or part.author is Author.AGENT for i in part.ids)
        self._flush()
        self.pieces.append({} if decode is None else {str(ident): decode((ident,)) for ident in sorted(ids)})

    def index(self) -> JsonObject:
        """Everything except the bodies."""
        return {"columns": cast(Json, self.columns), "questions": self.questions, "pieces": self.pieces}

    def _add(self, run: int, trajectory: Trajectory, reward: Reward | None, body: JsonObject) -> None:
        scores = cast(JsonObject, body["scores"])
        right = scores.get("em")
        row: JsonObject = {
            "run": run,
            "question": self._question(trajectory),
            "seed": str(trajectory.seed),  # JavaScript's numbers are doubles, too short for 64 bits
            "stop": str(trajectory.stop),
            "fault": int(trajectory.fault is not None),
            "right": None if right is None else int(cast(float, right)),
            "reward": None if reward is None else _rounded(reward.value),
            "searches": len(trajectory.searches),
            "turns": sum(part.author is Author.AGENT for part in trajectory.segments),
            "tokens": len(trajectory.ids),
            "answer": None if trajectory.answer is None else as_written(trajectory.answer),
            "queries": "\n".join(as_written(search.query) for search in trajectory.searches),
            "parts": None if reward is None else {name: _rounded(value) for name, value in reward.parts.items()},
        }
        if not self._bodies:
            self.starts.append(len(self))
        for name in COLUMNS:
            self.columns[name].append(row[name])
        self._bodies.append(compact(body))
        if sum(map(len, self._bodies)) > CHUNK_CHARS:
            self._flush()

    def _flush(self) -> None:
        """Close the chunk. Each run begins a new one."""
        if self._bodies:
            self.chunks.append(packed(f"[{','.join(self._bodies)}]"))
        self._bodies, self._known = [], {}

    def _question(self, trajectory: Trajectory) -> int:
        """The number of the question. The same id with another text is another question."""
        question = trajectory.question
        gold: list[Json] = [*map(as_written, question.answers)]
        row: list[Json] = [question.id, as_written(question.question), gold, [*question.gold_ids], question.hops]
        key = compact([*row, question.dataset])
        if key not in self._places:
            self._places[key] = len(self.questions)
            self.questions.append([*row, question.dataset])
        return self._places[key]

    def _body(self, trajectory: Trajectory, data: TokenData | None) -> JsonObject:
        scores = score_trajectory(trajectory) if trajectory.fault is None else {}
        values = segment_values(trajectory, data)
        row: JsonObject = {
            "protocol": trajectory.agent_protocol,
            "valid": trajectory.valid,
            "exact": trajectory.exact,
            "scores": {name: _rounded(value) for name, value in scores.items()},
            "timings": {name: _rounded(value) for name, value in trajectory.timings.items()},
            "segments": [_segment_json(part) | more for part, more in zip(trajectory.segments, values, strict=True)],
            "searches": [self._search_json(search, trajectory) for search in trajectory.searches],
        }
        optional: dict[str, object] = {
            "format_error": trajectory.format_error,
            "stop_detail": trajectory.stop_detail,
            "selected": trajectory.selected_ids,
            "calls": list(map(Call.to_json, trajectory.calls)),
            "training": {name: getattr(data, name) for name in ("group", "trained", "updates")} if data else {},
            "side": [[_segment_json(part) for part in context] for context in trajectory.side_contexts],
        }
        return row | {name: cast(Json, value) for name, value in optional.items() if value}

    def _search_json(self, search: Search, trajectory: Trajectory) -> JsonObject:
        golds, given_answers = trajectory.question.answers, (trajectory.answer or "",)
        hits: list[Json] = []
        for hit in search.hits:
            passage = hit.passage
            held = [_contains_answer(passage.title, passage.text, texts) for texts in (golds, given_answers)]
            row: list[Json] = [passage.id, _rounded(hit.score), held[0] + 2 * held[1]]
            if self._known.get(passage.id) != passage:  # one id of a web search may have two texts
                self._known[passage.id] = passage
                place = [passage.place] if passage.place not in ("", passage.id) else []
                row += [as_written(passage.title), as_written(passage.text), *place]
            hits.append(row)
        return {**search.to_json(), "query": as_written(search.query), "hits": hits}


def labels_for(trajectory: Trajectory, labels: Sequence[JsonObject]) -> list[JsonObject]:
    """The labels of this trajectory's searches. Others with its question and seed are of another run."""
    queries = [search.query for search in trajectory.searches]
    places = [(label, cast(int, label["search"])) for label in labels]
    return [label for label, at in places if at < len(queries) and label.get("query", queries[at]) == queries[at]]


def compact(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def packed(text: str) -> str:
    """Compress a text, as base64 of gzip. The same text gives the same bytes."""
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=9, mtime=0)).decode()


def _segment_json(segment: Segment) -> JsonObject:
    row: JsonObject = {"tag": segment.tag, "text": as_written(segment.text), "tokens": len(segment.ids)}
    if segment.author is not Author.AGENT:
        return row
    return {**row, "ids": list(segment.ids), "logprobs": [round(value * 1000) for value in segment.logprobs]}


def _rounded(value: float) -> float:
    """Round to five significant digits, and to an integer if nothing is lost."""
    rounded = float(f"{value:.5g}")
    return int(rounded) if rounded.is_integer() else rounded


@lru_cache(maxsize=65536)
def _contains_answer(title: str, text: str, golds: tuple[str, ...]) -> bool:
    return cover_match(f"{title} {text}", golds)


SCRIPTS = ("page.js", "tokens.js", "episode.js", "curves.js", "list.js")
"""Files of the page's script, in order."""
_PLACE = re.compile(r"\{\{(\w+)\}\}")


def write_page(path: Path, runs: Sequence[RunSource], curves: Sequence[Curves]) -> int:
    """Write the page atomically. Returns the number of episodes."""
    table, page = page_of(runs, curves)
    with atomic_write(path) as file:
        file.write(page)
    return len(table)


def page_of(runs: Sequence[RunSource], curves: Sequence[Curves]) -> tuple[EpisodeTable, str]:
    """Make the episode table and the page's text. Raises `DataError` if there is nothing to show yet."""
    table = EpisodeTable()
    for run in runs:
        table.add_run(run)
    if not len(table) and not curves:
        empty = ", ".join(run.name for run in runs)
        raise DataError(f"{empty}: no episode has ended yet; wait for the first one, or go on with --resume")
    data: dict[str, Json] = {
        "runs": cast(Json, [run.name for run in runs]),
        "prefix": _prefix([run.name for run in runs]),
        "starts": cast(Json, table.starts),
        "index": packed(compact(table.index())),
        "curves": packed(compact([cast(Json, vars(stage)) for stage in curves])),
        "stages": len(curves),
        "chunks": cast(Json, table.chunks),
    }
    names = [*(run.name for run in runs), *(stage.run for stage in curves)]
    folders = dict.fromkeys(name.partition("/")[0] for name in names)
    return table, html_of(f"coseek view: {', '.join(folders)}", data)


def _prefix(names: Sequence[str]) -> str:
    """The folder that all names begin with, which the page omits."""
    folders = {name.partition("/")[0] if "/" in name else "" for name in names}
    return f"{folder}/" if len(folders) == 1 and (folder := folders.pop()) else ""


def html_of(title: str, data: Json) -> str:
    """Make the page of a data block."""
    style, script = part("page.css"), "\n".join(map(part, SCRIPTS))
    policy = (
        f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {"title": escape(title), "policy": policy, "style": style, "script": script, "data": inert_json(data)}
    # In one pass, so that inserted text is not searched for placeholders.
    return _PLACE.sub(lambda match: parts[match[1]], part("page.html"))


def inert_json(data: Json) -> str:
    """Serialise to JSON that HTML and JavaScript read as text only."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def part(name: str) -> str:
    """A file of this package."""
    return files("coseek.view").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# Live page: serves the page on loopback, and makes it again at every load, for unfinished runs.

HOST = "127.0.0.1"


class LivePage(ThreadingHTTPServer):
    """Answers GET / with the page that `make` returns. Port 0 takes a free port."""

    daemon_threads = True

    def __init__(self, port: int, make: Callable[[], str]) -> None:
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            raise SettingError(f"port {port} cannot be listened at ({error}); choose another --port, or 0") from None
        self.make = make
        self.lock = Lock()
        """One page at a time: each reads whole runs."""

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: LivePage

    def do_GET(self) -> None:
        if not names_this_machine(self.headers.get("Host", "")):
            self.answer(HTTPStatus.MISDIRECTED_REQUEST, f"open {self.server.url}", "text/plain")
        elif self.path.partition("?")[0] != "/":
            self.answer(HTTPStatus.NOT_FOUND, f"the only page is {self.server.url}", "text/plain")
        else:
            try:
                with self.server.lock:
                    page = self.server.make()
            except CoseekError as error:
                self.answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n", "text/plain")
            else:
                self.answer(HTTPStatus.OK, page, "text/html")

    def answer(self, status: HTTPStatus, text: str, kind: str) -> None:
        body = text.encode()
        headers = {
            "Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body)), "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff", "Content-Security-Policy": "frame-ancestors 'none'",
        }  # fmt: skip
        with suppress(ConnectionError):  # the browser closed the connection before the page was ready
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""
