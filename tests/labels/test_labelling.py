"""Fears about concurrent turns: labels that depend on timing, a prompt paid for twice, a turn that blocks others."""

import json
import random
import re
import threading
import time
import zlib
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from tests.labels.small import LIMITS, bm25, labelled, protocol, turns
from tests.models.http_site import Asked, Said, Site, site

from coseek.agents.drivers import Agent
from coseek.agents.search_turns import SearchTurn
from coseek.core.http import HttpSettings
from coseek.data.trajectory import Trajectory
from coseek.labels.resources import AgentWithLimits, LabelResources
from coseek.models.remote import RemoteModelSettings, open_remote
from coseek.models.tokenizer import ByteTokenizer

pytestmark = pytest.mark.medium

# A rule-based server acts as scorer, sub-answer model and agent of label makers.

SLOTS = 8


def prompt_of(request: Asked) -> str:
    body = request.body
    return str(body["prompt"] if "prompt" in body else body["messages"][0]["content"])  # type: ignore[index,call-overload]


def body_of(request: Asked) -> str:
    return json.dumps(request.body, sort_keys=True)


def number_of(request: Asked) -> int:
    return zlib.crc32(prompt_of(request).encode())


def answer(request: Asked) -> Said:
    """Scores that are often high enough, and turns that search again or answer, often correctly."""
    prompt, number = prompt_of(request), number_of(request)
    if request.path.endswith("/chat/completions"):
        count = int(re.findall(r"(\d+) (?:passages|searches)", prompt)[-1])
        fact = "the fact" in prompt and "square brackets and then the fact" in prompt
        lines = [f"[{n}] some fact" if fact else f"[{n}] {(number // n + 17 * n) % 90}" for n in range(1, count + 1)]
        return Said({"choices": [{"message": {"content": "\n".join(lines)}, "finish_reason": "stop"}]})
    if number % 3 == 0:
        text = "<think> more is needed </think> <search> founder of it </search>"
    else:
        text = f"<think> it is known </think> <answer> {'yes' if number % 2 else 'no'} </answer>"
    return Said({"choices": [{"text": text, "finish_reason": "stop"}]})


def refusing(request: Asked) -> Said:
    """Refuses one prompt in ten."""
    return Said({"error": "not this"}, 400) if number_of(request) % 10 == 1 else answer(request)


def paid(there: Site) -> Counter[str]:
    """The number of times that each request was sent."""
    return Counter(body_of(request) for request in there.asked)


def served_parts(folder: Path, url: str) -> LabelResources:
    """Resources whose scorer and agent are the server."""
    folder.mkdir(parents=True, exist_ok=True)
    patience = HttpSettings(concurrency=SLOTS, attempts=1)
    scorer = folder.with_name(f"{folder.name}.yaml")
    scorer.write_text(f"url: {url}\nmodel: m\npatience: {{concurrency: {SLOTS}, attempts: 1}}\n", encoding="utf-8")
    settings = RemoteModelSettings(dialect="completions", model="m", patience=patience)
    grammar = protocol().grammar
    model = open_remote(url, settings, ByteTokenizer(grammar.special_tokens), grammar.stops)
    model.lost_stop = grammar.lost_stop
    speaker = AgentWithLimits(Agent(protocol(), model), LIMITS, "the server")
    return LabelResources(folder, bm25(), lambda: speaker, str(scorer))


@cache
def some() -> tuple[SearchTurn, ...]:
    """Turns whose questions have the answer that the server's agent gives at times."""
    runs: dict[int, Trajectory] = {}
    for turn in turns(24):
        question = replace(turn.question, answers=("yes",))
        runs.setdefault(id(turn.trajectory), replace(turn.trajectory, question=question))
    return tuple(replace(turn, trajectory=runs[id(turn.trajectory)]) for turn in turns(24))


def rows(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in ("labels.jsonl", "dropped.jsonl")]


@pytest.mark.slow
def test_labels_have_the_same_bytes_whatever_the_timing(tmp_path: Path) -> None:
    made = []
    for seed in range(2):
        rng = random.Random(seed)

        def late(request: Asked, rng: random.Random = rng) -> Said:
            time.sleep(rng.random() * 0.02)
            return answer(request)

        with site(late) as there:
            folder = tmp_path / str(seed)
            _, report = labelled(folder, served_parts(folder, there.url), some())
            assert report.labelled > 3 and report.left == 0
        made.append(rows(folder))
    assert made[0] == made[1]


def test_refused_prompts_are_counted_and_no_prompt_is_paid_twice(tmp_path: Path) -> None:
    """The next start sends only the refused prompts."""
    ways = [refusing]
    with site(lambda request: ways[-1](request)) as there:
        _, report = labelled(tmp_path, served_parts(tmp_path, there.url), some())
        before = paid(there)
        refused = {body_of(request) for request in there.asked if number_of(request) % 10 == 1}
        assert max(before.values()) == 1
        assert report.left > 0 and report.labelled > 0 and "it answered " in report.reason
        assert report.counts["fault/scorer"] + report.counts["fault/agent"] == len(refused)
        ways.append(answer)
        _, healed = labelled(tmp_path, served_parts(tmp_path, there.url), some())
        assert healed.left == 0
        assert all(times == 1 for body, times in paid(there).items() if "messages" in body and body not in refused)


def test_a_turn_that_waits_for_its_server_keeps_no_other_turn_from_its_label(tmp_path: Path) -> None:
    """One answer is held back until all other turns are labelled; with turns in waves this would never end."""
    pytest.importorskip("httpx")
    hold = threading.Event()
    held: list[int] = []

    def answer_but_one(request: Asked) -> Said:
        if not held and request.path.endswith("/v1/completions"):
            held.append(request.number)
            return replace(answer(request), hold=hold)
        return answer(request)

    with site(answer_but_one) as there:
        worker = threading.Thread(
            target=lambda: labelled(tmp_path, served_parts(tmp_path, there.url), some()), daemon=True
        )
        worker.start()
        deadline = time.monotonic() + 15
        while _done(tmp_path) < len(some()) - 1 and time.monotonic() < deadline:
            time.sleep(0.02)
        done = _done(tmp_path)
        hold.set()
        worker.join(20)
    assert done == len(some()) - 1
    assert _done(tmp_path) == len(some())


def _done(folder: Path) -> int:
    return sum(len(path.read_bytes().splitlines()) for path in folder.glob("*.jsonl"))


def test_at_most_as_many_calls_are_open_at_a_server_as_it_has_slots(tmp_path: Path) -> None:
    """The scorer's client and the agent's share them."""

    def slow(request: Asked) -> Said:
        time.sleep(0.01)
        return answer(request)

    with site(slow) as there:
        labelled(tmp_path, served_parts(tmp_path, there.url), some())
    assert SLOTS / 2 < there.most_at_once <= SLOTS


def test_a_turn_whose_passages_are_all_continued_waits_for_the_last_of_them(tmp_path: Path) -> None:
    with site(answer) as there:
        lazy, _ = labelled(tmp_path / "lazy", served_parts(tmp_path / "lazy", there.url), some()[:6])
        every, report = labelled(
            tmp_path / "all", served_parts(tmp_path / "all", there.url), some()[:6], exhaustive=True
        )
    assert report.left == 0 and report.counts["branches"] > report.turns
    assert [(label.turn, label.positive) for label in every.sets()] == [
        (label.turn, label.positive) for label in lazy.sets()
    ]
