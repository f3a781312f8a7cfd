"""The road of somebody with documents: import, questions by a language model, a retriever and an agent trained on them.

    python -m bench.own_documents [--documents 200] [--out runs/own-documents]
    python -m bench.own_documents --serve            the stand-in for the language model alone; prints its URL

The documents are Markdown files of four Wikipedia passages each (hotpotqa-pool500). The commands are those of
docs/how-to/use-your-own-data.md, with fewer updates. The language model is a stand-in behind HTTP that knows only what
it is sent: it turns sentences of the passages into questions, and answers a question by the sentence that is most like
it. Exit 1 when a bar is missed: 150 questions kept, no command fails, no process above 2.5 GB.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

from bench.real_sets import RAW, ROOT, SETS

from coseek.data.dataset import Dataset
from coseek.measure.table import Table

QUESTIONS, MOST_GB = 150, 2.5
PASSAGES = 4
"""Passages of a document."""
RETRIEVER = ("training.steps=10", "held_out.turns=50")
AGENT = (
    "warm_start.sft.steps=10", "rl.steps=1", "rl.evaluate_every=0", "table.questions=20", "table.dev_questions=10",
)  # fmt: skip

# --- the stand-in for a language model

_PASSAGE = re.compile(r"^\[\d+\] (.*?) \| (.*)$", re.MULTILINE)
_SENTENCE = re.compile(r"(?<=[a-z0-9)][.!?])\s+(?=[A-Z])")
_SPAN = re.compile(
    r"(?:[A-Z][\w'-]+(?: (?:of|the|and|de|von) (?=[A-Z])| (?=[A-Z\d])|(?= |[.,;)]|$)))+|\b1\d{3}\b|\b20\d\d\b"
)
_OPENING = re.compile(r"^(?:He|She|It|They|The (?:film|book|album|song|band|series|show|novel))\b")
_WORD = re.compile(r"\w+")
_LINK = re.compile(r'^Both mention: (.*)$|leads to "(.*?)"', re.MULTILINE)
_SOME = "somebody or something"
_THAT = " And that one "
UNKNOWN = "unknown"


class Fact(NamedTuple):
    """A sentence of a passage, cut at a span that it states of its subject."""

    before: str
    span: str
    behind: str

    def asked(self, who: str = "") -> str:
        return f"{who or self.before} what{self.behind}?"


def facts(title: str, text: str) -> Iterator[Fact]:
    """The sentences about a title, each cut at its last name or year."""
    subject = title.rpartition(" › ")[2].partition(" (")[0]
    for sentence in _SENTENCE.split(text):
        whole = _OPENING.sub(subject, sentence.strip()).rstrip(".!?")
        spans = [found for found in _SPAN.finditer(whole) if found.start() > len(subject)]
        if whole.startswith(subject) and spans and 5 <= len(whole.split()) <= 30:
            start, end = spans[-1].span()
            end -= len(whole[start:end]) - len(whole[start:end].rstrip())
            if whole[start:end] in text and whole[start:end] not in whole[:start]:
                yield Fact(whole[:start].rstrip(), whole[start:end], whole[end:])


def propose(prompt: str) -> list[dict[str, object]]:
    """Questions about the passage or the two passages of a prompt."""
    shown = _PASSAGE.findall(prompt)
    if len(shown) == 1:
        return [{"question": one.asked(), "answer": one.span} for one in facts(*shown[0])]
    found = _LINK.search(prompt)
    link = next(filter(None, found.groups()), "") if found else ""
    (title, text), (_, other) = shown
    leading = [one for one in facts(title, text) if link and one.span == link]
    asked = [one for one in facts(link, other) if one.span not in text]
    return [
        {
            "question": f"{first.before} {_SOME}{first.behind}.{_THAT}{last.asked(last.before[len(link) :].strip())}",
            "answer": last.span,
            "steps": [first.asked(), last.asked()],
        }
        for first in leading
        for last in asked
    ]


def answer(question: str, passages: Sequence[tuple[str, str]]) -> str:
    """The span of the sentence that has most words of a question, if it has nearly all; a second sentence of a question
    is about what the first one leads to."""
    first, that, last = question.partition(_THAT)
    if that:
        link = answer(first.replace(_SOME, "what").rstrip(".") + "?", passages)
        return UNKNOWN if link == UNKNOWN else answer(f"{link} {last}", passages)
    wanted = set(_WORD.findall(question.lower())) - {"what"}
    scored = [
        (len(wanted & set(_WORD.findall(f"{one.before} {one.behind}".lower()))) / max(1, len(wanted)), one.span)
        for title, text in passages
        for one in facts(title, text)
    ]
    score, span = max(scored, default=(0.0, UNKNOWN))
    return span if score > 0.85 else UNKNOWN


def reply(prompt: str) -> str:
    """What the stand-in writes."""
    if '{"questions"' in prompt:
        return json.dumps({"questions": propose(prompt)}, ensure_ascii=False)
    asked = re.findall(r"^Question: (.*)$", prompt, re.MULTILINE)
    return answer(asked[-1], _PASSAGE.findall(prompt)) if asked else UNKNOWN


class StandIn(BaseHTTPRequestHandler):
    """Speaks OpenAI's chat form."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._send({"object": "list", "data": [{"id": "stand-in", "object": "model"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        text = reply(body["messages"][-1]["content"])
        usage = {"prompt_tokens": 1, "completion_tokens": 1}
        self._send({"choices": [{"message": {"content": text}, "finish_reason": "stop"}], "usage": usage})

    def _send(self, answer: dict[str, object]) -> None:
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@contextmanager
def stand_in() -> Iterator[str]:
    """The URL of the stand-in, until the block ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), StandIn)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


# --- the road


def write_documents(folder: Path, count: int) -> None:
    """Markdown files of four passages each."""
    corpus = SETS["hotpotqa-pool500"].imported(RAW, ROOT / "build" / "real" / "hotpotqa-pool500" / "data").corpus
    folder.mkdir(parents=True)
    for number in range(count):
        shown = (corpus[row] for row in range(number * PASSAGES, (number + 1) * PASSAGES))
        text = "\n\n".join(f"# {one.title}\n\n{one.text}" for one in shown)
        (folder / f"{number:03}.md").write_text(f"{text}\n", encoding="utf-8")


def typed(folder: Path, *words: str) -> tuple[float, float]:
    """Run a command of coseek in a folder. Returns its seconds and the GB of its largest process."""
    print(f"\n$ coseek {' '.join(words)}", flush=True)
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "coseek", *words], cwd=folder)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"coseek {' '.join(words)} ended with {os.waitstatus_to_exitcode(status)}")
    return time.monotonic() - began, used.ru_maxrss * 1024 / 1e9


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("runs/own-documents"))
    parser.add_argument("--serve", action="store_true")
    given = parser.parse_args(arguments)
    with stand_in() as url:
        if given.serve:
            print(url, flush=True)
            threading.Event().wait()
        write_documents(given.out / "notes", given.documents)
        commands = (
            ("data", "import", "documents", "notes", "--out", "mine"),
            ("data", "synthesize", "mine", "--out", "asked", "--generator", url),
            ("train", "retriever", "documents", "data.folder=asked", *RETRIEVER, "--out", "runs/finder"),
            ("train", "agent", "documents", "data.folder=asked", "data.index=runs/finder/hybrid.yaml", *AGENT,
             "--out", "runs/mine"),
            ("ask", "what is the oldest of these", "--retriever", "runs/finder/hybrid.yaml"),
        )  # fmt: skip
        spent = [(words, *typed(given.out, *words)) for words in commands]
    asked = Dataset(given.out / "asked")
    kept = sum(len(asked.questions(split)) for split in asked.splits)
    rows = tuple((" ".join(words[:3]), f"{seconds:.0f}", f"{used:.2f}") for words, seconds, used in spent)
    bar = f"{kept:,} questions kept (bar: {QUESTIONS}); at most {MOST_GB} GB a process."
    print(Table(("command", "seconds", "GB"), rows, (bar,)).markdown())
    return 0 if kept >= QUESTIONS and all(used <= MOST_GB for *_, used in spent) else 1


if __name__ == "__main__":
    sys.exit(main())
