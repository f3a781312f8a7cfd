"""Picture: one question of a training run answered step by step, beside the run's learning curve, as an SVG file.

    python bench/picture.py runs/quickstart --out docs/picture.svg

Shown are a stored trajectory of the run's table and the run's `rl/metrics.jsonl`. All text of the run is data: it is
escaped, and characters that XML cannot hold are left out.
"""

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from coseek.core.errors import DataError
from coseek.core.files import JsonObject, read_jsonl
from coseek.core.spelling import as_written
from coseek.data.passage import Hit
from coseek.data.trajectory import Author, Segment, Trajectory

WIDTH, LEFT, RIGHT = 1180, 700, 416
"""Pixels: the whole picture, the column of the trajectory, the column of the curve."""
PAD, LINE = 24, 19
COLOURS = {"think": "#6b7280", "search": "#1d4ed8", "found": "#92400e", "answer": "#047857"}
FILLS = {"think": "#f3f4f6", "search": "#dbeafe", "found": "#fef3c7", "answer": "#d1fae5"}
OUTCOMES = ("exact_match", "reward/exact_match", "outcome", "reward")
"""Metrics of a step's right answers, the first that the run has."""
TAGGED = re.compile(r"<(\w{1,30})>([^<]{0,2000})</\1>")
INVALID = re.compile(r"[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Card:
    """One step of the trajectory: what it is, and its lines."""

    kind: str
    label: str
    lines: tuple[str, ...]

    @property
    def height(self) -> int:
        return 14 + LINE * len(self.lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a folder of `coseek train agent` or `coseek quickstart`")
    parser.add_argument("--out", type=Path, default=Path("docs/picture.svg"))
    parser.add_argument("--question", help="id of the question to show; else a two-hop question answered right")
    args = parser.parse_args(arguments)
    trajectory = chosen(args.run, args.question)
    steps = [row for _, row in read_jsonl(args.run / "rl" / "metrics.jsonl")]
    args.out.write_text(picture(trajectory, steps), encoding="utf-8")
    print(f"{args.out}: question {trajectory.question.id}, {len(steps)} steps")
    return 0


def chosen(run: Path, question: str | None) -> Trajectory:
    """The trajectory to show: the named one, else the first by id that is telling."""
    files = [*sorted(run.glob("table/after.test.*/trajectories.jsonl")), *run.glob("trajectories.jsonl")]
    if not files:
        raise DataError(f"{run} holds no table/after.test.*; finish the run, or name another")
    stored = sorted(
        (Trajectory.from_json(row) for _, row in read_jsonl(files[0])), key=lambda one: (one.question.id, one.seed)
    )
    fits = [one for one in stored if (one.question.id == question if question else is_telling(one))]
    if not fits:
        raise DataError(f"{files[0]} holds no such question; name one of its ids with --question")
    return fits[0]


def is_telling(one: Trajectory) -> bool:
    """Answered right in as many searches as hops, two, with all gold passages found."""
    found = {hit.passage.id for search in one.searches for hit in search.hits}
    right = one.answer is not None and one.answer.strip() in {gold.strip() for gold in one.question.answers}
    return right and one.question.hops == 2 == len(one.searches) and set(one.question.gold_ids or ()) <= found


def cards(one: Trajectory) -> Iterator[Card]:
    """The steps in order: what the agent wrote, tag by tag, and behind each search what it found."""
    turn = 0
    for segment in one.segments:
        if segment.author is not Author.AGENT:
            continue
        turn += 1
        for tag, text in pieces(segment):
            kind = tag if tag in COLOURS else "search" if "search" in tag or "query" in tag else "think"
            yield Card(kind, tag, tuple(wrapped(text, 76, 2)))
        gold = set(one.question.gold_ids or ())
        for search in one.searches:
            if search.turn == turn:
                lines = [
                    line
                    for hit in search.hits[:3]
                    for line in wrapped(shown(hit, hit.passage.id in gold), 76, 3 if hit.passage.id in gold else 1)
                ]
                yield Card("found", "found", tuple(lines))


def shown(hit: Hit, gold: bool) -> str:
    """A passage on one line, its title only where the text does not begin with it."""
    title, text = as_written(hit.passage.title).strip(), as_written(hit.passage.text).strip()
    return f"{'★' if gold else '·'} {text if text.startswith(title) else f'{title}: {text}'}"


def pieces(segment: Segment) -> list[tuple[str, str]]:
    """(tag, text) of each tagged part of an agent's turn; the whole turn where it has no tags."""
    found = [(tag, " ".join(as_written(text).split())) for tag, text in TAGGED.findall(segment.text)]
    return found or [(segment.tag or "think", " ".join(as_written(segment.text).split()))]


def wrapped(text: str, width: int, most: int) -> list[str]:
    """Lines of at most `width` characters, at most `most` of them; what is left out is an ellipsis."""
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()[:width]
    return lines if len(lines) <= most else [*lines[: most - 1], lines[most - 1][: width - 2] + " …"]


def words(text: str, x: float, y: float, size: int = 14, colour: str = "#111827", extra: str = "") -> str:
    safe = escape(INVALID.sub("", text))
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" {extra}>{safe}</text>'


def picture(one: Trajectory, steps: Sequence[JsonObject]) -> str:
    """The SVG document."""
    drawn, y = [words("One question, step by step", PAD, 36, 17, extra='font-weight="600"')], 62
    for line in wrapped(as_written(one.question.question).strip(), 80, 2):
        drawn.append(words(line, PAD, y, 16, extra='font-weight="600"'))
        y += 22
    y += 2
    for card in cards(one):
        drawn.append(
            f'<rect x="{PAD}" y="{y}" width="{LEFT - PAD}" height="{card.height}" rx="6" fill="{FILLS[card.kind]}"/>'
        )
        drawn.append(words(card.label[:10], PAD + 12, y + 21, 13, COLOURS[card.kind], 'font-weight="600"'))
        drawn += [words(line, PAD + 84, y + 21 + LINE * place) for place, line in enumerate(card.lines)]
        y += card.height + 8
    gold = " or ".join(one.question.answers[:2])
    drawn.append(words(f"gold answer: {gold}   ★ gold passage", PAD, y + 14, 13, "#6b7280"))
    height = max(y + 36, 430)
    drawn += curve(steps, LEFT + 64, 62, RIGHT - 24, height - 62 - 84)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="Helvetica, Arial, DejaVu Sans, sans-serif">\n<rect width="{WIDTH}" height="{height}" rx="10" '
        f'fill="#ffffff" stroke="#e5e7eb"/>\n' + "\n".join(drawn) + "\n</svg>\n"
    )


def curve(steps: Sequence[JsonObject], left: int, top: int, width: int, height: int) -> list[str]:
    """The learning curve: each step's share of right answers, its mean over five steps, and the dev evaluations."""
    name = next((key for key in OUTCOMES if any(key in row for row in steps)), None)
    if name is None:
        raise DataError(f"the metrics hold none of {', '.join(OUTCOMES)}; choose a run of reinforcement learning")
    sampled = [(number(row, "step"), number(row, name)) for row in steps if name in row]
    greedy = [(number(row, "step"), number(row, f"eval/{name}")) for row in steps if f"eval/{name}" in row]
    last = max(step for step, _ in sampled)
    most = min(1.0, (int(max(value for _, value in [*sampled, *greedy]) * 10) + 1) / 10)

    def at(step: float, value: float) -> tuple[float, float]:
        return left + width * step / last, top + height * (1 - value / most)

    out = [words("The agent learns by reinforcement", left - 32, 36, 17, extra='font-weight="600"')]
    for tenth in range(int(most * 10) + 1):
        _, y = at(0, tenth / 10)
        out.append(f'<line x1="{left}" x2="{left + width}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e5e7eb"/>')
        out.append(words(f"{tenth / 10:.1f}", left - 30, y + 5, 13, "#6b7280"))
    for part in range(6):
        step = last * part / 5
        out.append(words(f"{step:.0f}", at(step, 0)[0], top + height + 20, 13, "#6b7280", 'text-anchor="middle"'))
    out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="#93c5fd"/>' for x, y in (at(*point) for point in sampled)]
    means = []
    for place in range(len(sampled)):
        window = [value for _, value in sampled[max(0, place - 4) : place + 1]]
        means.append(at(sampled[place][0], sum(window) / len(window)))
    out.append(f'<path d="{line_through(means)}" fill="none" stroke="#1d4ed8" stroke-width="2.5"/>')
    if greedy:
        points = [at(*point) for point in greedy]
        out.append(f'<path d="{line_through(points)}" fill="none" stroke="#047857" stroke-width="2"/>')
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="#047857"/>' for x, y in points]
    foot = top + height + 44
    label = name.rsplit("/", 1)[-1].replace("_", " ")
    out.append(words(f"● {label}, sampled training runs; line: mean of five steps", left - 30, foot, 13, "#1d4ed8"))
    return [
        *out,
        *([words(f"● {label}, dev questions, greedy", left - 30, foot + 20, 13, "#047857")] if greedy else []),
    ]


def line_through(points: Sequence[tuple[float, float]]) -> str:
    return "M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in points)


def number(row: JsonObject, key: str) -> float:
    value = row[key]
    if not isinstance(value, int | float):
        raise DataError(f"the metric {key} is {value!r}, which is no number")
    return float(value)


if __name__ == "__main__":
    raise SystemExit(main())
