"""Ways to break a file: what crashes, disks, editors, other programs and attackers leave behind.

`break_file` changes one file and says whether it is malformed by construction (`BROKEN`: no reader may take it as
whole) or may still be a valid file with another content (`OTHER`). An independent check of the bytes (`is_broken`)
decides for changes of single bytes.
"""

import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import yaml

from coseek.core.files import Json

BROKEN, OTHER = True, False
Place: TypeAlias = tuple[str | int, ...]
Bytes: TypeAlias = Callable[[bytes, random.Random], bytes]
DEEP = 5_000
MANY = 20_000
"""Digits of a number."""

RAW = (
    "null", "true", "-1", "0", "1e308", "1e999", "-1e999", "NaN", "Infinity", '"x"', '""', "[]", "{}", "[[]]",
    '[{"a": 1}]',
    "1" * 400, "1" * MANY, "9007199254740993", "-9223372036854775809", "1.5", '"\\ud800"', '"\\u0000"', '"\\u202e"',
    "[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP, "'x'", "", "[1,", '"' + "x" * 100_000 + '"', '["x", 3]',
)  # fmt: skip
"""JSON texts that take the place of a value; some are none."""
YAML_RAW = (
    *(text for text in RAW if text),
    "2020-99-99", "2020-01-01", "!!python/object/apply:os.getcwd []", "!!binary x", "!!float x", "*unknown",
    "&a [*a]", "{? [a]: b}", "~",
    ".nan", ".inf", "0x1F", "0o9", "1_000", "12:30:45", "|\n  text", "@x", "%x", "\t- x", "- x", "x: y: z",
    "<<: {a: 1}", "!!set {a}",
    "2020-01-01T00:00:00Z", "yes", "!!timestamp x", "!!bool x", "!!int ''", "!!int x", "!!null x", "!!omap x",
    "!!pairs [1]", "!!set [1]", "!!map x", "!!str [1]",
    "99999999999:60", "0b2", "!x y", "!!seq {}", "2020-01-01 99:99:99", "? x", "- - - x", "\"\\uD800\"", "\"\\x\"",
    "? {a: 1}\n: 2",
)  # fmt: skip
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
"""Aliases of aliases: 9¹² texts where a reader follows them."""
MERGES = "m0: &m0 {k0: 1, k1: 2}\n" + "".join(
    f"m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 9)}], n{n}: 1}}\n" for n in range(1, 8)
)
"""Merge keys of merge keys."""


# --- bytes of any file


def cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))] if data else data


def emptied(data: bytes, rng: random.Random) -> bytes:
    return b""


def flipped(data: bytes, rng: random.Random) -> bytes:
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 8)) if data else 0):
        made[rng.randrange(len(made))] ^= 1 << rng.randrange(8)
    return bytes(made)


def block_zeroed(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) or 1)
    size = min(len(data) - at, rng.choice((1, 16, 512)))
    return data[:at] + bytes(size) + data[at + size :]


def drawn(data: bytes, rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice((1, 100, 5000)))


def inserted(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    odd = rng.choice(
        (b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\xc3", b"\r", b"\x1b[2J", b"\xe2\x80\xa8", b'"', b"}", b"\\", b"\t")
    )
    return data[:at] + odd + data[at:]


def marked(data: bytes, rng: random.Random) -> bytes:
    """A byte-order mark, which editors write."""
    return b"\xef\xbb\xbf" + data


def wide(data: bytes, rng: random.Random) -> bytes:
    return data.decode("utf-8", "replace").encode(rng.choice(("utf-16", "utf-16-be", "utf-32")))


def latin(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + "caf\xe9".encode("latin-1") + data[at:]


def doubled(data: bytes, rng: random.Random) -> bytes:
    return data + data


def lengthened(data: bytes, rng: random.Random) -> bytes:
    """Something behind the end that does not belong there."""
    return data + rng.choice((b"}", b"\x00" * 512, b"{", b"\n[1]\n", b"garbage", b"\n" + b"[" * DEEP))


def one_long_line(data: bytes, rng: random.Random) -> bytes:
    return rng.choice((b" " * 3_000_000, b"[" * 300_000, b"a" * 3_000_000, b'{"a":' * 200_000, b"- " * 100_000))


BYTES: tuple[Bytes, ...] = (
    cut, cut, cut, flipped, flipped, block_zeroed, emptied, drawn, inserted, inserted, marked, wide, latin, doubled,
    lengthened, one_long_line,
)  # fmt: skip


# --- the place of a file


def gone(path: Path, rng: random.Random) -> None:
    path.unlink()


def folder_there(path: Path, rng: random.Random) -> None:
    path.unlink()
    path.mkdir()


def loop(path: Path, rng: random.Random) -> None:
    path.unlink()
    path.symlink_to(path.name)


def dangling(path: Path, rng: random.Random) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def closed(path: Path, rng: random.Random) -> None:
    path.chmod(0)


PLACES = (gone, folder_there, loop, dangling) + (() if os.geteuid() == 0 else (closed,))
"""Root reads what is closed."""


# --- values of JSON and YAML


def places_of(value: Json, at: Place = ()) -> Iterator[Place]:
    """The place of every value, the outermost first."""
    yield at
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in parts:
        yield from places_of(each, (*at, key))


def spelt(value: Json, at: Place, raw: str | None, twice: bool = False) -> str:
    """JSON text in which `raw` stands at a place; `None` leaves its key out; `twice` names its key a second time."""
    if not at:
        return json.dumps(value, ensure_ascii=False) if raw is None else raw
    if isinstance(value, dict):
        parts: list[str] = []
        for key, each in value.items():
            if key != at[0]:
                parts.append(f"{json.dumps(key)}: {json.dumps(each, ensure_ascii=False)}")
            elif len(at) > 1:
                parts.append(f"{json.dumps(key)}: {spelt(each, at[1:], raw, twice)}")
            else:
                parts += [f"{json.dumps(key)}: {json.dumps(each, ensure_ascii=False)}"] if twice else []
                parts += [] if raw is None else [f"{json.dumps(key)}: {raw}"]
        return "{" + ", ".join(parts) + "}"
    assert isinstance(value, list)
    texts = [
        spelt(each, at[1:], raw, twice) if place == at[0] else json.dumps(each, ensure_ascii=False)
        for place, each in enumerate(value)
        if not (place == at[0] and len(at) == 1 and raw is None)
    ]
    return "[" + ", ".join(texts) + "]"


def _place(value: Json, rng: random.Random) -> Place:
    """A place in a value; shallow ones as often as deep ones."""
    places = list(places_of(value))
    depth = rng.choice(sorted({len(place) for place in places if place} or {0}))
    return rng.choice([place for place in places if len(place) == depth])


def changed_json(text: str, rng: random.Random, raws: tuple[str, ...] = RAW) -> tuple[str, str]:
    """One JSON text with a value replaced, left out or named twice; and what was done."""
    value = json.loads(text)
    at = _place(value, rng)
    way = rng.random()
    shown = ".".join(map(str, at)) or "the whole"
    if way < 0.15:
        return spelt(value, at, None), f"{shown} left out"
    raw = rng.choice(raws)
    if way < 0.25 and at and isinstance(at[-1], str):
        return spelt(value, at, raw, twice=True), f"{shown} twice, then {raw[:20]!r}"
    return spelt(value, at, raw), f"{shown} = {raw[:20]!r}"


def changed_lines(data: bytes, rng: random.Random) -> tuple[bytes, str]:
    """JSON lines of which one is changed, repeated, or moved."""
    lines = data.decode().splitlines()
    number = rng.randrange(len(lines))
    if rng.random() < 0.1:
        lines.insert(rng.randrange(len(lines) + 1), lines[number])
        said = f"line {number + 1} twice"
    else:
        lines[number], said = changed_json(lines[number], rng)
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogatepass"), said


def changed_yaml(data: bytes, rng: random.Random) -> tuple[bytes, str]:
    """YAML with a value replaced, left out or named twice, or with a bomb behind it."""
    way = rng.random()
    if way < 0.15:
        bomb = rng.choice((BOMB, MERGES, "loop: &l {again: *l}\n", "a: &x [1]\nb: *x\n"))
        return data + b"\n" + bomb.encode(), f"with {bomb[:12]!r} behind it"
    if way < 0.25:
        text = data.decode()
        lines = text.splitlines()
        at = rng.randrange(len(lines))
        odd = rng.choice(("\t", "  ", "- ", "? ", ": ", "%YAML 9.9\n---\n", "--- \n", "...\n", "&a ", "{", "'"))
        lines[at] = odd + lines[at]
        return "\n".join(lines).encode(), f"{odd!r} before line {at + 1}"
    tree = yaml.safe_load(data)
    plain = json.dumps(tree, ensure_ascii=False, default=str)
    text, said = changed_json(plain, rng, YAML_RAW)
    return text.encode("utf-8", "surrogatepass"), said


def changed_values(path: Path, data: bytes, rng: random.Random) -> tuple[bytes, str]:
    if path.suffix in (".yaml", ".yml"):
        return changed_yaml(data, rng)
    if path.suffix == ".jsonl":
        return changed_lines(data, rng)
    text, said = changed_json(data.decode(), rng)
    return text.encode("utf-8", "surrogatepass"), said


VALUES = (".yaml", ".yml", ".jsonl", ".json")
"""Endings of files whose values are changed."""


def break_file(path: Path, rng: random.Random) -> tuple[str, bool]:
    """Change a file in place; says what was done, and whether the file is malformed by construction."""
    way, data = rng.random(), path.read_bytes()
    if path.suffix in VALUES and way < 0.6 and data.strip():
        made, said = changed_values(path, data, rng)
        path.write_bytes(made)
        return said, is_broken(path, made)
    if way > 0.9:
        place = rng.choice(PLACES)
        place(path, rng)
        return place.__name__, BROKEN
    change = rng.choice(BYTES)
    made = change(data, rng)
    path.write_bytes(made)
    return change.__name__, made != data and is_broken(path, made)


# --- an independent check of the bytes


def is_broken(path: Path, data: bytes) -> bool:
    """Whether no strict reader takes these bytes for a file of this ending, whatever its fields. False where the ending
    has no text form."""
    if path.suffix in (".npy", ".safetensors", ".pt", ".parquet", ".gz", ".sqlite", ".zip", ".tar"):
        return not data
    try:
        text = data.decode("utf-8-sig")
        if path.suffix == ".json":
            _strict(text)
        elif path.suffix == ".jsonl":
            for line in text.split("\n"):
                if line.strip() and not isinstance(_strict(line), dict):
                    return BROKEN
        elif path.suffix in (".yaml", ".yml"):
            # Merges of merges would take this machine's memory here, and a long text minutes.
            if text.count("<<:") > 4 or len(text) > 1_000_000:
                return BROKEN
            return not isinstance(yaml.safe_load(text) or {}, dict) or _has_odd(yaml.safe_load(text), set())
    except (ValueError, LookupError, AttributeError, TypeError, RecursionError, yaml.YAMLError):
        return BROKEN  # PyYAML raises all of them
    return OTHER


def _strict(text: str) -> Json:
    value: Json = json.loads(text, parse_constant=_refuse, parse_float=_finite, object_pairs_hook=_once)
    if _has_odd(value, set()):
        raise ValueError("odd")
    return value


def _refuse(name: str) -> Json:
    raise ValueError(name)


def _finite(text: str) -> float:
    if abs(number := float(text)) == float("inf"):
        raise ValueError(text)
    return number


def _once(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key twice")
    return dict(pairs)


def _has_odd(value: object, met: set[int], depth: int = 0) -> bool:
    """Whether a value nests too deep, in itself, or holds half of a surrogate pair."""
    if isinstance(value, str):
        return any("\ud800" <= letter <= "\udfff" for letter in value)
    if not isinstance(value, dict | list):
        return False
    if depth > 200:
        return True
    if id(value) in met:
        return False
    met.add(id(value))
    parts = [*value.keys(), *value.values()] if isinstance(value, dict) else value
    return any(_has_odd(each, met, depth + 1) for each in parts)


TYPED = (
    "", " ", "-1", "0", "1e400", "nan", "NaN", "inf", "1" * MANY, "[" * DEEP, "{", "[1,", "&a [*a]",
    "!!python/name:os.system", "2020-99-99",
    "x", "null", "[]", "{}", "true", "\x00", "\ud800", "\x1b[2J", "*a", "a: b: c", "1" * 19, "9" * 30, "0.5",
    "[1, 2]", "'", '"', "\t", "%", "=", "=x", "../..",
    "/", "~", "/dev/null", "x" * 5000,
)  # fmt: skip
"""What is typed in the place of a value."""
