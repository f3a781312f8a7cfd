"""Changes to stored runs: what accidents, editors and other programs do to them.

A harmful change alters what a run says. Several are made with care, in all places that show the same thing but one. A
harmless change alters the spelling of the files alone.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias, cast

import yaml

from coseek.core.files import Json, JsonObject
from coseek.data.run_seal import DIGEST, SEAL, record_digest, value_digest
from coseek.models.model import Tokenizer

Row: TypeAlias = JsonObject


@dataclass
class Stored:
    """The files of a run, as values."""

    rows: list[Row]
    record: JsonObject
    tokenizer: Tokenizer
    other: list[Row] = field(default_factory=list)
    """The rows of another run."""
    raw: bytes | None = None
    """The bytes of the trajectories, where they are not those of `rows`."""
    yaml: str | None = None
    """The text of `run.yaml`, where it is not that of `record`."""

    def lines(self) -> bytes:
        return b"".join(_line(row) for row in self.rows) if self.raw is None else self.raw

    def spelt_record(self) -> str:
        return yaml.safe_dump(self.record, sort_keys=False, allow_unicode=True) if self.yaml is None else self.yaml

    def content(self) -> object:
        """What the files say, digests aside; their bytes where they say nothing."""
        try:
            rows = [json.loads(line) for line in self.lines().splitlines() if line.strip()]
            bare = [value_digest({k: v for k, v in row.items() if k != DIGEST}) for row in rows]
        except (ValueError, AttributeError):
            return self.lines()
        whole = b"" if self.lines().endswith(b"\n") else b"cut"
        keys = self.lines().count(b'":') - self.lines().count(b'"digest":')  # one may stand twice
        return sorted(bare), record_digest(self.record), whole, keys


Change: TypeAlias = Callable[[Stored, random.Random], None]


# --- parts of a row


def _line(row: Row) -> bytes:
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"


def _row(one: Stored, rng: random.Random) -> Row:
    return rng.choice(one.rows)


def _parts(row: Row, name: str) -> list[JsonObject]:
    return cast(list[JsonObject], row[name])


def _segments(row: Row, author: str) -> list[JsonObject]:
    return [part for part in _parts(row, "segments") if part["author"] == author]


def _hits(row: Row) -> list[JsonObject]:
    return [hit for search in _parts(row, "searches") for hit in _parts(search, "hits")]


def _write(one: Stored, part: JsonObject, text: str, rng: random.Random) -> None:
    """Give a segment another text with its tokens, and log-probabilities where it has some."""
    ids = one.tokenizer.encode(text)
    part.update(ids=list(ids), text=one.tokenizer.decode(ids))
    if "logprobs" in part:
        part["logprobs"] = [-rng.random() for _ in ids]


def _edited(text: str, rng: random.Random) -> str:
    """A text with one character or word other than it was."""
    at = rng.randrange(len(text) + 1)
    return rng.choice([text[:at] + "x" + text[at:], text[:at] + text[at + 1 :], text[:at] + "7" + text[at + 1 :]])


def other_value(value: Json, rng: random.Random) -> Json:
    """Another value of the same kind."""
    match value:
        case bool():
            return not value
        case int():
            return value + rng.choice([-1, 1, 7])
        case float():
            return rng.choice([value + 0.01, value - 0.01, value * 1.5 + 1e-3])
        case str():
            return _edited(value, rng)
    return "x"


def leaf(tree: Json, rng: random.Random) -> tuple[list[Json] | JsonObject, "int | str"] | None:
    """A value that holds no others, by its place; fields are drawn evenly, however long their lists are."""
    found: tuple[list[Json] | JsonObject, int | str] | None = None
    while isinstance(tree, dict | list) and tree:
        if isinstance(tree, dict):
            name = rng.choice(sorted(set(tree) - {DIGEST, SEAL}) or [""])
            found, tree = (tree, name), tree.get(name)
        else:
            at = rng.randrange(len(tree))
            found, tree = (tree, at), tree[at]
    return found


# --- harmful changes


def any_value(one: Stored, rng: random.Random) -> None:
    if (place := leaf(_row(one, rng), rng)) is not None:
        inside, at = cast("tuple[JsonObject, str]", place)
        inside[at] = other_value(inside.get(at) if isinstance(inside, dict) else inside[at], rng)


def any_key_lost(one: Stored, rng: random.Random) -> None:
    row = _row(one, rng)
    nested = [part for name in ("segments", "searches") for part in _parts(row, name)]
    inside = rng.choice([row, *nested, cast(JsonObject, row["question"])])
    del inside[rng.choice(sorted(set(inside) - {DIGEST}))]


def any_item_lost_doubled_or_moved(one: Stored, rng: random.Random) -> None:
    row = _row(one, rng)
    lists = [value for name in sorted(row) if isinstance(value := row[name], list) and value]
    lists += [value for part in _parts(row, "segments") for value in part.values() if isinstance(value, list)]
    lists += [value for part in _parts(row, "searches") for value in part.values() if isinstance(value, list)]
    items = rng.choice([each for each in lists if each])
    at, other = rng.randrange(len(items)), rng.randrange(len(items))
    match rng.randrange(3):
        case 0:
            del items[at]
        case 1:
            items.insert(at, json.loads(json.dumps(items[at])))
        case _:
            items[at], items[other] = items[other], items[at]


def a_flipped_bit(one: Stored, rng: random.Random) -> None:
    data = bytearray(one.lines())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    one.raw = bytes(data)


def answer_alone(one: Stored, rng: random.Random) -> None:
    row = _row(one, rng)
    row["answer"] = _edited(str(row["answer"]), rng) if row["answer"] is not None else None


def answer_in_the_text_alone(one: Stored, rng: random.Random) -> None:
    row = _row(one, rng)
    answer, last = row["answer"], _parts(row, "segments")[-1]
    if isinstance(answer, str) and answer:
        _write(one, last, str(last["text"]).replace(answer, _edited(answer, rng)), rng)


def answer_everywhere(one: Stored, rng: random.Random) -> None:
    row = _row(one, rng)
    answer, last = row["answer"], _parts(row, "segments")[-1]
    if isinstance(answer, str) and answer in str(last["text"]):
        new = answer + " too"
        _write(one, last, str(last["text"]).replace(answer, new), rng)
        row["answer"] = new


def query_alone(one: Stored, rng: random.Random) -> None:
    if searches := _parts(_row(one, rng), "searches"):
        search = rng.choice(searches)
        search["query"] = _edited(str(search["query"]), rng)


def query_in_the_text_alone(one: Stored, rng: random.Random) -> None:
    row = _row(one, rng)
    wrote, searches = _segments(row, "agent"), _parts(row, "searches")
    for search in searches:
        for part in wrote:
            if str(search["query"]) in str(part["text"]):
                _write(one, part, str(part["text"]).replace(str(search["query"]), "something else"), rng)
                return


def observation_with_its_tokens(one: Stored, rng: random.Random) -> None:
    part = rng.choice(_segments(_row(one, rng), "environment"))
    _write(one, part, _edited(str(part["text"]), rng), rng)


def thought_with_its_tokens(one: Stored, rng: random.Random) -> None:
    if wrote := _segments(_row(one, rng), "agent"):
        part = rng.choice(wrote)
        _write(one, part, _edited(str(part["text"]), rng), rng)


def tokens_to_another_author(one: Stored, rng: random.Random) -> None:
    parts = _parts(_row(one, rng), "segments")
    places = [at for at in range(1, len(parts)) if parts[at - 1]["author"] != parts[at]["author"]]
    if places:
        at = rng.choice(places)
        before, behind = parts[at - 1], parts[at]
        ids, more = cast(list[int], before["ids"]), cast(list[int], behind["ids"])
        count = rng.randint(1, max(1, len(ids) - 1))
        for part, now in ((before, ids[:-count]), (behind, [*ids[-count:], *more])):
            part.update(ids=list(now), text=one.tokenizer.decode(now))
            if "logprobs" in part:
                part["logprobs"] = [-0.5] * len(now)


def other_tokens_of_the_same_text(one: Stored, rng: random.Random) -> None:
    if wrote := _segments(_row(one, rng), "agent"):
        part = rng.choice(wrote)
        ids = one.tokenizer.encode_data(str(part["text"]))
        if one.tokenizer.decode(ids) == part["text"] and ids != part["ids"]:
            part.update(ids=list(ids), logprobs=[-0.5] * len(ids))


def a_hit_for_another_one(one: Stored, rng: random.Random) -> None:
    row = _row(one, rng)
    pool = [hit for other in one.rows for hit in _hits(other)]
    if hits := _hits(row):
        hit, new = rng.choice(hits), rng.choice(pool)
        hit.update(id=new["id"], title=new["title"], text=new["text"])


def a_passage_with_another_text(one: Stored, rng: random.Random) -> None:
    if hits := _hits(_row(one, rng)):
        hit = rng.choice(hits)
        name = rng.choice(["id", "title", "text"])
        hit[name] = _edited(str(hit[name]), rng)


def a_score(one: Stored, rng: random.Random) -> None:
    if hits := _hits(_row(one, rng)):
        hit = rng.choice(hits)
        hit["score"] = cast(float, hit["score"]) * rng.choice([1.001, 0.999, 1.5, 0.5])


def a_log_probability(one: Stored, rng: random.Random) -> None:
    if wrote := _segments(_row(one, rng), "agent"):
        values = cast(list[float], rng.choice(wrote)["logprobs"])
        at = rng.randrange(len(values))
        values[at] = values[at] * 1.1 - 0.001


def a_time_or_a_cost(one: Stored, rng: random.Random) -> None:
    row = _row(one, rng)
    spent = cast(dict[str, float], row["timings"])
    match rng.randrange(3):
        case 0:
            row["cost_usd"] = rng.choice([-1.0, 0.25])
        case 1:
            spent["wall_s"] *= -1
        case _:
            spent["wall_s"] += 1.5


def stop_and_answer(one: Stored, rng: random.Random) -> None:
    row = _row(one, rng)
    stop = rng.choice(["answered", "complete", "turn_limit", "token_limit", "invalid", "model_error"])
    row.update(stop=stop, answer="yes" if stop == "answered" else None)


def validity(one: Stored, rng: random.Random) -> None:
    row = _row(one, rng)
    now = not row["valid"]
    row.update(valid=now, format_error="" if now else "it ends too early")


def selection(one: Stored, rng: random.Random) -> None:
    row = _row(one, rng)
    if hits := _hits(row):
        chosen = [str(rng.choice(hits)["id"])]
        row["selected_ids"] = [] if row["selected_ids"] == chosen else list(chosen)
        for search in _parts(row, "searches"):
            found = [hit["id"] for hit in _parts(search, "hits")]
            search["selected"] = [ident for ident in chosen if ident in found]


def evidence_in_another_order(one: Stored, rng: random.Random) -> None:
    rng.shuffle(cast(list[Json], _row(one, rng)["evidence"]))


def another_seed(one: Stored, rng: random.Random) -> None:
    _row(one, rng)["seed"] = rng.randrange(2**48)


def gold_answers_and_passages(one: Stored, rng: random.Random) -> None:
    question = cast(JsonObject, _row(one, rng)["question"])
    match rng.randrange(4):
        case 0:
            question["answers"] = [*cast(list[Json], question["answers"]), "yes"]
        case 1:
            question["gold_ids"] = cast(list[Json], question.get("gold_ids", []))[1:]
        case 2:
            question["hops"] = cast(int, question.get("hops") or 0) + 1
        case _:
            question["question"] = _edited(str(question["question"]), rng)


def rows_lost(one: Stored, rng: random.Random) -> None:
    kept = rng.choice([0, 1, len(one.rows) - 1])
    one.rows = rng.sample(one.rows, kept)


def a_row_twice_or_of_another_run(one: Stored, rng: random.Random) -> None:
    one.rows.append(rng.choice(rng.choice([one.rows, one.other])))


def a_cut_file(one: Stored, rng: random.Random) -> None:
    data = one.lines()
    one.raw = data[: rng.randrange(1, len(data) - 1)]


def a_key_twice(one: Stored, rng: random.Random) -> None:
    lines = one.lines().splitlines(keepends=True)
    at = rng.randrange(len(lines))
    row = one.rows[at]
    name = rng.choice(["answer", "stop", "valid", "seed"])
    extra = f'{{"{name}": {json.dumps(rng.choice([row[name], 1]))}, '.encode()
    lines[at] = extra + lines[at][1:]
    one.raw = b"".join(lines)


def a_setting_lost(one: Stored, rng: random.Random) -> None:
    settings = cast(JsonObject, one.record["settings"])
    group = rng.choice([settings, cast(JsonObject, settings["agent"]), cast(JsonObject, settings["limits"])])
    del group[rng.choice(sorted(group))]


def a_setting(one: Stored, rng: random.Random) -> None:
    if (place := leaf(one.record["settings"], rng)) is not None:
        inside, at = cast("tuple[JsonObject, str]", place)
        inside[at] = other_value(inside[at], rng)


HARMFUL: tuple[Change, ...] = (
    any_value,
    any_key_lost,
    any_item_lost_doubled_or_moved,
    a_flipped_bit,
    answer_alone,
    answer_in_the_text_alone,
    answer_everywhere,
    query_alone,
    query_in_the_text_alone,
    observation_with_its_tokens,
    thought_with_its_tokens,
    tokens_to_another_author,
    other_tokens_of_the_same_text,
    a_hit_for_another_one,
    a_passage_with_another_text,
    a_score,
    a_log_probability,
    a_time_or_a_cost,
    stop_and_answer,
    validity,
    selection,
    evidence_in_another_order,
    another_seed,
    gold_answers_and_passages,
    rows_lost,
    a_row_twice_or_of_another_run,
    a_cut_file,
    a_key_twice,
    a_setting_lost,
    a_setting,
)


# --- harmless changes


def other_blanks(one: Stored, rng: random.Random) -> None:
    texts = [json.dumps(row, separators=rng.choice([(",", ":"), (" , ", " :  ")])) for row in one.rows]
    one.raw = "".join(f"{text}{rng.choice(['', ' '])}\r\n{rng.choice(['', chr(10)])}" for text in texts).encode()


def other_order_of_keys(one: Stored, rng: random.Random) -> None:
    def mixed(value: Json) -> Json:
        if isinstance(value, dict):
            return {name: mixed(value[name]) for name in rng.sample(sorted(value), len(value))}
        return [mixed(each) for each in value] if isinstance(value, list) else value

    one.rows = [cast(Row, mixed(row)) for row in one.rows]


def other_order_of_rows(one: Stored, rng: random.Random) -> None:
    rng.shuffle(one.rows)


def other_spelling(one: Stored, rng: random.Random) -> None:
    """Escaped characters; whole numbers with and without a fraction, as programs in other languages write them."""

    def spelt(value: Json) -> Json:
        if isinstance(value, dict):
            return {name: spelt(each) for name, each in value.items()}
        if isinstance(value, list):
            return [spelt(each) for each in value]
        return int(value) if isinstance(value, float) and value.is_integer() else value

    one.raw = b"".join(json.dumps(spelt(row), ensure_ascii=True).encode() + b"\n" for row in one.rows)


def other_yaml(one: Stored, rng: random.Random) -> None:
    text = yaml.safe_dump(one.record, sort_keys=rng.random() < 0.5, default_flow_style=rng.random() < 0.5, width=4000)
    one.yaml = f"# a note\n{text}"


HARMLESS: tuple[Change, ...] = (other_blanks, other_order_of_keys, other_order_of_rows, other_spelling, other_yaml)
