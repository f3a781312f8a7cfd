"""Changed files beside runs: label folders, grade caches, metrics and checkpoints, each harmed and audited in a copy.

Values, keys, rows, bits and whole files are changed, lost, doubled and moved. A change after which the files say the
same does not count, nor does a row that a grade cache lost or holds twice: it is asked for again.
"""

import json
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, cast

import yaml
from bench.kill_commands import AGENT, ENCODER, settings
from bench.tampering_changes import leaf, other_value

from coseek.cli.main import main
from coseek.core.files import Json, JsonObject, read_jsonl, read_yaml
from coseek.core.strict_json import parse_strict
from coseek.core.strict_yaml import parse_yaml
from coseek.data.run_seal import DIGEST, SEAL, record_digest, row_digest
from coseek.pipelines.folder_audit import audits_of

STEPS = (
    ("world", "make", "world", "--size", "tiny", "train=30", "dev=12", "test=6"),
    ("index", "world", "--out", "bm25"),
    ("run", "world", "--split", "dev", "--agent", "expert", "--retriever", "bm25", "--out", "run"),
    ("label", "run", "--method", "gold", "--out", "gold"),
    ("label", "run", "--method", "agentic-r", "--scorer", "oracle", "--out", "agentic-r"),
    ("score", "run", "--answer-with", "base", "--judge", "world"),
    ("train", "agent", "from-nothing", "--out", "agent", *settings({k: v for k, v in AGENT.items() if k != "extends"})),
    ("train", "retriever", "encoder.yaml", "--out", "encoder"),
)
TRAINED = ("metrics.jsonl", "checkpoints/*/*")
FOLDERS = {
    "gold": ("*.*",),
    "agentic-r": ("*.*", "scores/*"),
    "run": ("reply.*", "verdict.*"),
    "agent/rl": TRAINED,
    "agent/warm-start/round-1": TRAINED,
    "encoder": TRAINED,
}
"""Folder → which of its files are harmed: those of runs are harmed by `tampering_changes`."""
ORDERED = "metrics.jsonl"
SHEETS = ("reply", "verdict")
"""How the names of grade caches beside a run begin."""


def make_folders(base: Path) -> None:
    """Make everything that is harmed. Raises `RuntimeError` where a command fails."""
    with chdir(base):
        (base / "encoder.yaml").write_text(yaml.safe_dump(ENCODER), encoding="utf-8")
        for words in STEPS:
            if main([*words]) != 0:
                raise RuntimeError(f"coseek {' '.join(words)} failed")


@dataclass
class Harmed:
    """One file in a copy of its folder."""

    name: str
    folder: Path
    path: Path

    @classmethod
    def copied(cls, base: Path, name: str, place: Path, rng: random.Random) -> "Harmed":
        """A copy of a folder at `place`, and one of its files."""
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(base / name, place, ignore=shutil.ignore_patterns(".lock", "table", "policy", "encoder"))
        files = [path for pattern in FOLDERS[name] for path in sorted(place.glob(pattern)) if path.is_file()]
        return cls(name, place, rng.choice(files))

    @property
    def kind(self) -> str:
        """What the file is, for the table."""
        if "checkpoints" in self.path.parts:
            return f"checkpoint, {'its manifest' if self.path.name == 'manifest.json' else 'a file'}"
        beside = self.path.parent.name if self.path.parent.name == "scores" else ""
        return beside or self.path.name.split(".")[0]

    def rows(self) -> list[JsonObject]:
        return [row for _, row in read_jsonl(self.path)] if self.path.suffix == ".jsonl" else []

    def write_rows(self, rows: Sequence[JsonObject]) -> None:
        self.path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")

    def tree(self) -> JsonObject | None:
        """The content of a file with one object."""
        if self.path.suffix == ".yaml":
            return read_yaml(self.path, "record")
        return cast(JsonObject, json.loads(self.path.read_text())) if self.path.suffix == ".json" else None

    def write_tree(self, tree: JsonObject) -> None:
        text = yaml.safe_dump(tree, sort_keys=False) if self.path.suffix == ".yaml" else json.dumps(tree)
        self.path.write_text(text, encoding="utf-8")

    def says(self) -> object:
        """What all files of the folder say, digests aside."""
        return [(path.name, _content(path)) for path in sorted(self.folder.rglob("*")) if path.is_file()]

    def violations(self) -> int:
        return sum(audit.count for _, audit in audits_of(self.folder))


def _content(path: Path) -> object:
    data = path.read_bytes()
    try:
        if path.suffix == ".yaml":
            return record_digest(cast(JsonObject, parse_yaml(data.decode())))
        if path.suffix == ".json":
            return row_digest(cast(JsonObject, parse_strict(data.decode())))
        if path.suffix == ".jsonl" and data.endswith(b"\n"):
            rows = [
                row_digest(cast(JsonObject, parse_strict(line))) for line in data.decode().splitlines() if line.strip()
            ]
            if path.name.startswith(SHEETS):
                return frozenset(rows)
            return rows if path.name == ORDERED else sorted(rows)
    except (ValueError, AttributeError):
        pass
    return data


Harm: TypeAlias = Callable[[Harmed, random.Random], None]


# --- harmful changes


def a_value(one: Harmed, rng: random.Random) -> None:
    rows, tree = one.rows(), one.tree()
    if rows:
        _change_leaf(rng.choice(rows), rng)
        one.write_rows(rows)
    elif tree is not None:
        _change_leaf(tree, rng)
        one.write_tree(tree)


def _change_leaf(tree: JsonObject, rng: random.Random) -> None:
    if (place := leaf(tree, rng)) is not None:
        inside, at = cast("tuple[JsonObject, str]", place)
        inside[at] = other_value(inside[at], rng)


def a_key_lost(one: Harmed, rng: random.Random) -> None:
    rows, tree = one.rows(), one.tree()
    inside = rng.choice(rows) if rows else tree
    if inside is not None:
        del inside[rng.choice(sorted(set(inside) - {DIGEST, SEAL}))]
        one.write_rows(rows) if tree is None else one.write_tree(tree)


def a_row_lost(one: Harmed, rng: random.Random) -> None:
    if (rows := one.rows()) and not one.path.name.startswith(SHEETS):
        del rows[rng.randrange(len(rows))]
        one.write_rows(rows)


def a_row_twice(one: Harmed, rng: random.Random) -> None:
    if rows := one.rows():
        rows.insert(rng.randrange(1, len(rows) + 1), rng.choice(rows))
        one.write_rows(rows)


def two_rows_in_one_anothers_place(one: Harmed, rng: random.Random) -> None:
    if len(rows := one.rows()) > 2:
        a, b = rng.sample(range(1, len(rows)), 2)
        rows[a], rows[b] = rows[b], rows[a]
        one.write_rows(rows)


def values_of_another_row(one: Harmed, rng: random.Random) -> None:
    if len(rows := one.rows()) > 2:
        a, b = rng.sample(range(1, len(rows)), 2)
        if shared := sorted(set(rows[a]) & set(rows[b]) - {DIGEST}):
            name = rng.choice(shared)
            rows[a][name] = rows[b][name]
            one.write_rows(rows)


def a_flipped_bit(one: Harmed, rng: random.Random) -> None:
    if data := bytearray(one.path.read_bytes()):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        one.path.write_bytes(data)


def a_cut_file(one: Harmed, rng: random.Random) -> None:
    data = one.path.read_bytes()
    one.path.write_bytes(data[: rng.randrange(max(1, len(data)))])


def a_key_twice(one: Harmed, rng: random.Random) -> None:
    if rows := one.rows():
        at = rng.randrange(len(rows))
        lines = [json.dumps(row) for row in rows]
        name = rng.choice(sorted(rows[at]))
        lines[at] = f"{{{json.dumps(name)}: 7, {lines[at][1:]}"
        one.path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def a_file_lost(one: Harmed, rng: random.Random) -> None:
    if not one.path.name.startswith(SHEETS) and one.path.name != "labels.yaml":
        one.path.unlink()


HARMFUL: tuple[Harm, ...] = (
    a_value,
    a_value,
    a_value,
    a_key_lost,
    a_row_lost,
    a_row_twice,
    two_rows_in_one_anothers_place,
    values_of_another_row,
    a_flipped_bit,
    a_cut_file,
    a_key_twice,
    a_file_lost,
)


# --- harmless changes


def other_spelling(one: Harmed, rng: random.Random) -> None:
    """Blanks, the order of keys, escapes, and whole numbers without a fraction. Not in a file of a checkpoint: its
    manifest names their bytes, and a checkpoint with others is not loaded."""

    def spelt(value: Json) -> Json:
        if isinstance(value, dict):
            return {name: spelt(value[name]) for name in rng.sample(sorted(value), len(value))}
        if isinstance(value, list):
            return [spelt(each) for each in value]
        return int(value) if isinstance(value, float) and value.is_integer() else value

    rows, tree = one.rows(), one.tree()
    if one.kind == "checkpoint, a file":
        return
    if rows:
        separators = rng.choice([(",", ":"), (" , ", " :  ")])
        lines = (json.dumps(spelt(row), separators=separators) for row in rows)
        one.path.write_bytes("".join(f"{line}\r\n{rng.choice(['', chr(10)])}" for line in lines).encode())
    elif tree is not None:
        one.write_tree(cast(JsonObject, spelt(tree)))


def other_order_of_rows(one: Harmed, rng: random.Random) -> None:
    if one.path.name in ("labels.jsonl", "dropped.jsonl", "texts.jsonl"):
        one.write_rows(rng.sample(rows := one.rows(), len(rows)))


HARMLESS: tuple[Harm, ...] = (other_spelling, other_order_of_rows)


Audited: TypeAlias = Callable[[Harmed], int]
"""The number of violations."""


def trials(base: Path, place: Path, changes: int, seed: int, audited: Audited) -> Iterator[tuple[str, Harm, bool, int]]:
    """Make changes, one in eleven harmless: the kind of file, the change, whether it is harmful, and what `audited`
    found. Relative names in the folders are read from `base`."""
    number = made = 0
    with chdir(base):
        for name in FOLDERS:
            as_made = Harmed.copied(base, name, place, random.Random(0))
            yield as_made.kind, other_spelling, False, audited(as_made)
        while made < changes:
            number += 1
            rng = random.Random(f"{seed}/files/{number}")
            harmful = number % 11 != 0
            one = Harmed.copied(base, rng.choice(sorted(FOLDERS)), place, rng)
            kind, before, change = one.kind, one.says(), rng.choice(HARMFUL if harmful else HARMLESS)
            change(one, rng)
            if harmful and one.says() == before:
                continue
            made += harmful
            yield kind, change, harmful, audited(one)
