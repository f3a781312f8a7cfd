"""A rule-based server that acts as scorer, sub-answer model and agent of label makers."""

import json
import re
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.labels.small import LIMITS, bm25, protocol
from tests.models.http_site import Asked, Said, Site

from coseek.agents.drivers import Agent
from coseek.core.http import HttpSettings
from coseek.labels.resources import AgentWithLimits, LabelResources
from coseek.models.remote import RemoteModelSettings, open_remote
from coseek.models.tokenizer import ByteTokenizer

SLOTS = 8
COUNTED = re.compile(r"(\d+) (?:passages|searches)")


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
        count = int(COUNTED.findall(prompt)[-1])
        fact = "the fact" in prompt and "square brackets and then the fact" in prompt
        lines = [f"[{n}] some fact" if fact else f"[{n}] {(number // n + 17 * n) % 90}" for n in range(1, count + 1)]
        return Said({"choices": [{"message": {"content": "\n".join(lines)}, "finish_reason": "stop"}]})
    if number % 3 == 0:
        text = "<think> more is needed </think> <search> founder of it </search>"
    else:
        text = f"<think> it is known </think> <answer> {'yes' if number % 2 else 'no'} </answer>"
    return Said({"choices": [{"text": text, "finish_reason": "stop"}]})


def refusing(share: int, otherwise: Callable[[Asked], Said] = answer) -> Callable[[Asked], Said]:
    """Refuses one prompt in `share`."""
    return lambda request: Said({"error": "not this"}, 400) if number_of(request) % share == 1 else otherwise(request)


def paid(there: Site) -> Counter[str]:
    """The number of times that each request was sent."""
    return Counter(body_of(request) for request in there.asked)


def served_parts(folder: Path, url: str, slots: int = SLOTS) -> LabelResources:
    """Resources whose scorer and agent are the server."""
    folder.mkdir(parents=True, exist_ok=True)
    patience = HttpSettings(concurrency=slots, attempts=1)
    scorer = folder.with_name(f"{folder.name}.yaml")
    scorer.write_text(f"url: {url}\nmodel: m\npatience: {{concurrency: {slots}, attempts: 1}}\n", encoding="utf-8")
    settings = RemoteModelSettings(dialect="completions", model="m", patience=patience)
    grammar = protocol().grammar
    model = open_remote(url, settings, ByteTokenizer(grammar.special_tokens), grammar.stops, 0.0, grammar.lost_stop)
    speaker = AgentWithLimits(Agent(protocol(), model), LIMITS, "the server")
    return LabelResources(folder, bm25(), lambda: speaker, str(scorer))
