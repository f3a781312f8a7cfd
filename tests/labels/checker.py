"""An independent checker of Agentic-R's labels: reads the files alone, and derives every rule of SPEC §6 anew.

It shares no code with the maker. `violations` names whatever is not as the paper has it, in words.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import yaml

from coseek.core.files import JsonObject

Key = tuple[str, int, int]


@dataclass
class Folder:
    """A label folder as its files tell it."""

    settings: JsonObject
    sets: dict[Key, list[JsonObject]] = field(default_factory=lambda: defaultdict(list))
    dropped: dict[Key, list[str]] = field(default_factory=lambda: defaultdict(list))
    relevance: dict[Key, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    correct: dict[Key, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))


def violations(folder: Path, run: Path, least: int = 60, negatives: int = 15) -> list[str]:
    """What is wrong with the labels of this run."""
    read = read_folder(folder)
    turns = dict(turns_in(run))
    wrong = [f"{key}: labelled, and no search of the run" for key in {*read.sets, *read.dropped} - set(turns)]
    for key, query in turns.items():
        rows, reasons = read.sets.get(key, []), read.dropped.get(key, [])
        if bool(rows) + len(reasons) != 1:
            wrong.append(f"{key}: {len(rows)} label sets and {len(reasons)} reasons")
        wrong += [f"{key}: {said}" for row in rows for said in of_set(row, rows, query, read, key, least, negatives)]
        if len(rows) > (3 if read.settings["ties"] == "code" else 1):
            wrong.append(f"{key}: {len(rows)} label sets of one turn")
        if rows and read.settings["ties"] == "code":
            wrong += [f"{key}: {said}" for said in of_ties(rows)]
        for reason in reasons:
            if reason == "no-positive" and (ident := passed_over(read, key, least)):
                wrong.append(f"{key}: dropped, and {ident} has or may have a GAC of 1 and enough LR")
    return wrong


def of_set(
    row: JsonObject, rows: list[JsonObject], query: str, read: Folder, key: Key, least: int, negatives: int
) -> Iterator[str]:
    """What is wrong with one label set."""
    candidates = cast(list[JsonObject], row["candidates"])
    by_id = {str(one["id"]): one for one in candidates}
    scores = {ident: cast(dict[str, float], one["scores"]) for ident, one in by_id.items()}
    rank = {ident: cast(int, one["rank"]) for ident, one in by_id.items()}
    positive, chosen = str(row["positive"]), cast(list[str], row["negatives"])
    if len(by_id) != len(candidates) or len(by_id) > 20 or sorted(rank.values()) != list(range(1, len(rank) + 1)):
        yield "the candidates are not the retriever's first twenty, each once"
    if positive not in by_id:
        yield "the positive is no candidate"
        return
    by_rank = sorted(by_id, key=lambda ident: rank[ident])
    if [scores[i]["retriever"] for i in by_rank] != sorted((s["retriever"] for s in scores.values()), reverse=True):
        yield "the candidates are not in the retriever's order"
    if cast(JsonObject, row["query"])["text"] != query:
        yield "the query is not what was searched"
    for ident, own in scores.items():
        if own["lr"] != read.relevance[key].get(ident) or own.get("gac") != read.correct[key].get(ident):
            yield f"{ident} has other scores in the sheets"
        if not 0 <= own["lr"] <= 100 or own.get("gac", 1) not in (0, 1):
            yield f"{ident} has scores out of range"
    best = scores[positive]
    if best.get("gac") != 1 or best["lr"] < least:
        yield f"the positive has the scores {best}"
    tied = {str(other["positive"]) for other in rows}
    for ident, own in scores.items():
        above = own["lr"] > best["lr"] or (own["lr"] == best["lr"] and rank[ident] < rank[positive])
        if above and own.get("gac") != 0 and ident not in tied:
            yield f"{ident} may rank above the positive"
    words = {(by_id[ident]["title"], by_id[ident]["text"]) for ident in tied}
    pool = {i for i, one in by_id.items() if (one["title"], one["text"]) not in words}
    if not set(chosen) <= pool or len(set(chosen)) != len(chosen) or len(chosen) != min(negatives, len(pool)):
        yield f"{len(chosen)} negatives, not {min(negatives, len(pool))} of those that rank below"


def of_ties(rows: list[JsonObject]) -> Iterator[str]:
    """The rule of the published program: every tie with the best, at most three."""
    candidates = cast(list[JsonObject], rows[0]["candidates"])
    scores = {str(one["id"]): cast(dict[str, float], one["scores"]) for one in candidates}
    rank = {str(one["id"]): cast(int, one["rank"]) for one in candidates}
    positives = [str(row["positive"]) for row in rows]
    top = scores[positives[0]]["lr"]
    equal = sorted((i for i in scores if scores[i]["lr"] == top and scores[i].get("gac") == 1), key=lambda i: rank[i])
    if positives != equal[: len(positives)] or (len(positives) < 3 and len(equal) > len(positives)):
        yield f"the positives are {positives}, and the ties {equal}"
    if len(positives) < 3 and any(own["lr"] == top and "gac" not in own for own in scores.values()):
        yield "a candidate that may tie with the best was not continued"


def passed_over(read: Folder, key: Key, least: int) -> str:
    """A candidate of a dropped turn that should have been its positive, or of which nobody knows."""
    return next((i for i, lr in read.relevance[key].items() if lr >= least and read.correct[key].get(i) != 0), "")


def read_folder(folder: Path) -> Folder:
    record = yaml.safe_load((folder / "labels.yaml").read_text(encoding="utf-8"))
    read = Folder(record["settings"]["agentic-r"])
    for row in rows_of(folder / "labels.jsonl"):
        read.sets[
            str(cast(JsonObject, row["question"])["id"]), cast(int, row["seed"]), cast(int, row["search"])
        ].append(row)
    for row in rows_of(folder / "dropped.jsonl"):
        read.dropped[key_of(row)].append(str(row["reason"]))
    for path in (folder / "scores").glob("lr.*.jsonl"):
        for row in rows_of(path)[1:]:
            read.relevance[key_of(row)].update(cast(dict[str, float], row["scores"] or {}))
    for path in (folder / "scores").glob("gac.*.jsonl"):
        for row in rows_of(path)[1:]:
            if row["value"] is not None:
                read.correct[key_of(row)][str(row["passage_id"])] = cast(float, row["value"])
    return read


def turns_in(run: Path) -> Iterator[tuple[Key, str]]:
    """Every search that did not fail, with its query."""
    for row in rows_of(run / "trajectories.jsonl"):
        question = cast(JsonObject, row["question"])
        for place, search in enumerate(cast(list[JsonObject], row["searches"])):
            if "fault" not in search:
                yield (str(question["id"]), cast(int, row["seed"]), place), str(search["query"])


def key_of(row: JsonObject) -> Key:
    return str(row["question_id"]), cast(int, row["seed"]), cast(int, row["search"])


def rows_of(path: Path) -> list[JsonObject]:
    return [cast(JsonObject, json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
