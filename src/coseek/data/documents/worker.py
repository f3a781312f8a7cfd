"""Worker: reads files in a process of its own, which may hang, run out of memory or crash and harms no import.

`main` takes one JSON object a line from stdin and answers each with lines of one key, the last of them `end`:

    {"member": name}        a file that will be read now
    {"passage": {…}}        a passage of it, as in `corpus.jsonl`
    {"document": {…}}       what came of the file (`DocumentReader.records`)
    {"missing": [library, what needs it]}
    {"end": true}
"""

import hashlib
import io
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import IO, TypeAlias, cast, get_args

from coseek.core.files import Json, JsonObject
from coseek.core.settings import make_settings
from coseek.data.documents.archive import ArchiveBudget, DocumentSettings, Member, members
from coseek.data.documents.converted import Convertible
from coseek.data.documents.document import Document, DocumentFault, clean, decoded_text, undecoded
from coseek.data.documents.readers import ARCHIVES, TEXTS, converted_kind, kind_of, reader_of
from coseek.data.documents.split import count_words, split
from coseek.data.documents.token_count import counter

Message: TypeAlias = JsonObject
TITLE_STEP = " › "
NO_READER = "there is no reader for files of this kind"
_LONGEST_TITLE = 300
_MOST_REASONS = 20


def answer(request: JsonObject) -> Iterator[Message]:
    """What comes of one given file: `path`, its `name` below what was given, files to `skip`, `settings`."""
    settings = make_settings(DocumentSettings, cast(JsonObject, request["settings"]))
    path, name, skip = Path(str(request["path"])), str(request["name"]), cast(int, request["skip"])
    found = _distinct(_all(path, name, settings))
    for member in islice(found, skip, None):
        yield {"member": member.name}
        yield from _read(member, settings)


def _distinct(found: Iterator[Member]) -> Iterator[Member]:
    """The same files, of which no two have one name: archives may hold a name twice."""
    taken: set[str] = set()
    for member in found:
        folder, _, last = member.name.rpartition("/")
        name, number = member.name, 1
        while name in taken:
            number += 1
            name = f"{folder}/{number}-{last}"
        taken.add(name)
        yield replace(member, name=name)


def _all(path: Path, name: str, settings: DocumentSettings) -> Iterator[Member]:
    """A file, or the files in it, through archives."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(8192)
            file.seek(0)
            budget = ArchiveBudget(settings, size)
            if kind_of(name, head) in ARCHIVES:
                yield from _inside(name, head, file, budget)
            elif size > budget.most:
                yield Member(name, fault=f"it is larger than {settings.max_file_mb:g} MB (max_file_mb)")
            else:
                data = file.read()
                yield Member(name, data)
                if kind_of(name, head) == "mail":
                    yield from _inside(name, head, io.BytesIO(data), budget)
    except OSError as error:
        yield Member(name, fault=f"it cannot be opened ({error.strerror or error})")


def _inside(name: str, head: bytes, file: IO[bytes], budget: ArchiveBudget) -> Iterator[Member]:
    budget.depth += 1
    for member in members(cast(str, kind_of(name, head)), name, file, budget):
        kind = None if member.fault else kind_of(member.name, member.data[:8192])
        if kind not in ARCHIVES:
            yield member
        if kind in ARCHIVES or kind == "mail":
            yield from _inside(member.name, member.data[:8192], io.BytesIO(member.data), budget)
    budget.depth -= 1


def _read(member: Member, settings: DocumentSettings) -> Iterator[Message]:
    """The passages of a file, then its record."""
    kind = converted_kind(member.name, settings.convert) or kind_of(member.name, member.data[:8192])
    record: JsonObject = {"path": member.name, "kind": kind or "other"}
    counts: Counter[str] = Counter()
    reasons: list[str] = [member.fault] if member.fault else []
    if kind is None and not reasons:
        reasons, outcome = [NO_READER], "left out"
        if could := converted_kind(member.name, get_args(Convertible)):
            reasons = [f"{NO_READER} but markitdown: convert=[{could}]"]
    else:
        outcome = "failed"
    if kind is not None and not reasons:
        try:
            data, guessed, lost = _as_utf8(kind, member.data)
            document = reader_of(kind, settings.convert)(data, member.name)
            if encoding := guessed or document.guessed:
                record["encoding"] = encoding.replace("cp125", "windows-125")
            for passage, words in _passages(document, member.name, settings):
                counts.update(passages=1, words=words)
                yield {"passage": passage}
            reasons = [*document.faults, *lost]
        except DocumentFault as fault:
            reasons = [str(fault)]
        except ModuleNotFoundError as error:
            yield {"missing": [(error.name or "").partition(".")[0], f"reading {member.name}"]}
            return
        except MemoryError:
            reasons = ["it needs more memory than there is (max_memory_mb)"]
        except RecursionError:
            reasons = ["it is nested too deeply"]
        except Exception as error:  # noqa: BLE001 (a parser's bug is that file's fault)
            reasons = [f"its reader failed ({type(error).__name__}: {str(error)[:200]})"]
        if not counts["passages"] and not reasons:
            reasons = ["there is no text in it"]
        outcome = "read" if not reasons else "in part" if counts["passages"] else "failed"
    sha = hashlib.sha256(member.data).hexdigest()
    shown: list[Json] = [" ".join(reason.split()) for reason in reasons[:_MOST_REASONS]]
    yield {"document": {**record, "outcome": outcome, "reasons": shown, **counts, "sha256": sha}}


def _as_utf8(kind: str, data: bytes) -> tuple[bytes, str, list[str]]:
    """The bytes of a text as UTF-8, its encoding where that is guessed, and what of it could not be decoded."""
    if kind not in TEXTS:
        return data, "", []
    found = decoded_text(data, is_page=kind == "html")
    if not found.is_guess:
        return data, "", undecoded(found)
    return found.text.encode("utf-8", "replace"), found.encoding, undecoded(found)


def _passages(document: Document, path: str, settings: DocumentSettings) -> Iterator[tuple[JsonObject, int]]:
    """(row of `corpus.jsonl`, words) of each passage. `previous` and `next` are the ids of its neighbours.

    An id is a digest of path, title and text, so that it does not depend on the other passages.
    """
    seen: Counter[str] = Counter()
    last: JsonObject | None = None
    words = 0
    name = path.rpartition("/")[2]
    stem = document.title or name.rpartition(".")[0] or name
    own = {clean(key): _cleaned(value) for key, value in document.meta.items() if key not in ("previous", "next")}
    for section in document.sections:
        steps = [step for place, step in enumerate(section.headings) if place or step != stem]
        title = " ".join(clean(TITLE_STEP.join([stem, *steps])).split())[:_LONGEST_TITLE]
        for text in split(section.blocks, settings.size, settings.overlap, counter(settings.tokenizer)):
            base = f"{path}\0{title}\0{text}"
            seen[base] += 1
            ident = hashlib.sha256(f"{base}\0{seen[base]}".encode()).hexdigest()[:16]
            meta: JsonObject = {**own, **section.meta, "path": path}
            row: JsonObject = {"id": ident, "title": title, "text": text, "meta": meta}
            if last is not None:
                cast(JsonObject, last["meta"])["next"] = ident
                meta["previous"] = last["id"]
                yield last, words
            last, words = row, count_words(text)
    if last is not None:
        yield last, words


def _cleaned(value: Json) -> Json:
    if isinstance(value, list):
        return [_cleaned(one) for one in value]
    return clean(value) if isinstance(value, str) else value


def _limit_memory(megabytes: int) -> None:
    with suppress(ImportError, ValueError, OSError):  # Windows has no such limits, and macOS none that hold
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))


def main() -> None:
    # What libraries print must not stand among the answers.
    out = os.fdopen(os.dup(1), "wb")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    for line in sys.stdin.buffer:
        request = cast(JsonObject, json.loads(line))
        _limit_memory(cast(int, cast(JsonObject, request["settings"])["max_memory_mb"]))
        for message in answer(request):
            out.write(json.dumps(message).encode() + b"\n")
            if "passage" not in message:
                out.flush()
        out.write(b'{"end": true}\n')
        out.flush()
