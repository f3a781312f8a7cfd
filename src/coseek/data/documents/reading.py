"""Reading: the files of a source, through archives, each read by a worker process that is started again where it hangs
or dies.

A request to the worker is a line of JSON (`name`, `kind`, `size`, `settings`) and the bytes of the file; the answer is
one line: the `rows` of `corpus.jsonl` and the `record` of the file, or the library that is `missing`.
"""

import hashlib
import io
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, cast

import coseek
from coseek.core.errors import MissingExtra
from coseek.core.files import Json, JsonObject
from coseek.core.settings import dump_settings, make_settings
from coseek.data.documents.archive import Budget, DocumentSettings, Member, members, too_large
from coseek.data.documents.document import Document, DocumentFault, clean
from coseek.data.documents.readers import ARCHIVES, kind_of, read_document
from coseek.data.documents.split import count_words, counter, split
from coseek.data.passage import Passage

_WORKER = "import sys; sys.path.insert(0, sys.argv[1]); from coseek.data.documents.reading import main; main()"


class DocumentReader:
    """Reads files in a worker process. A context manager, which ends the process."""

    def __init__(self, settings: DocumentSettings) -> None:
        self.settings = settings
        self.records: list[JsonObject] = []
        """What came of each file: `path`, `kind`, `outcome` (read, in part, failed, left out), `reasons`, `passages`,
        `words`, `sha256`."""
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "DocumentReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def read(self, path: Path, name: str) -> Iterator[Passage]:
        """The passages of a file, or of the files in an archive. Raises `MissingExtra`."""
        for member in _distinct(self._files(path, name)):
            kind = None if member.fault else kind_of(member.name, member.data[:8192])
            if kind is None:
                outcome = "failed" if member.fault else "left out"
                reasons = [member.fault or "there is no reader for files of this kind"]
                self.records.append({"path": member.name, "kind": "other", "outcome": outcome, "reasons": [*reasons]})
                continue
            answer = self._ask(kind, member)
            if "missing" in answer:
                raise MissingExtra(str(answer["missing"]), f"reading {member.name}", "documents")
            self.records.append(cast(JsonObject, answer["record"]))
            for row in cast(list[JsonObject], answer["rows"]):
                yield Passage.from_json(row)

    def _files(self, path: Path, name: str) -> Iterator[Member]:
        """A file, or the files in it, through archives."""
        try:
            size = path.stat().st_size
            with path.open("rb") as file:
                head = file.read(8192)
                file.seek(0)
                budget = Budget(self.settings, size)
                if kind_of(name, head) in ARCHIVES:
                    yield from _inside(name, head, file, budget)
                elif size > self.settings.max_file_bytes:
                    yield too_large(name, self.settings)
                else:
                    yield (member := Member(name, file.read()))
                    if kind_of(name, head) == "mail":
                        yield from _inside(name, head, io.BytesIO(member.data), budget)
        except OSError as error:
            yield Member(name, fault=f"it cannot be opened ({error.strerror or error})")

    def _ask(self, kind: str, member: Member) -> JsonObject:
        """The worker's answer for a file; a failed record where it hangs or dies."""
        process = self._process = self._process or _started()
        assert process.stdin is not None and process.stdout is not None
        settings = dump_settings(self.settings)
        request = {"name": member.name, "kind": kind, "size": len(member.data), "settings": settings}
        is_late = threading.Event()

        def end() -> None:
            is_late.set()
            process.kill()

        timer = threading.Timer(self.settings.seconds, end)
        timer.start()
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n" + member.data)
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError:  # it died while the file was sent
            line = b""
        timer.cancel()
        if line.endswith(b"\n"):
            return cast(JsonObject, json.loads(line))
        self._stop()
        crashed = f"its reader crashed (exit status {process.returncode})"
        reason = f"it takes longer than {self.settings.seconds:g} seconds (seconds)" if is_late.is_set() else crashed
        return {"rows": [], "record": {"path": member.name, "kind": kind, "outcome": "failed", "reasons": [reason]}}

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def _started() -> "subprocess.Popen[bytes]":
    # -P: a folder of documents may hold Python files, and none of them is to be imported from the working folder.
    command = [sys.executable, "-P", "-c", _WORKER, str(Path(coseek.__file__).parents[1])]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()  # the time for its start is no file's
    return process


def _distinct(files: Iterator[Member]) -> Iterator[Member]:
    """The same files, of which no two have one name: archives may hold a name twice."""
    taken: set[str] = set()
    for member in files:
        folder, _, last = member.name.rpartition("/")
        name, number = member.name, 1
        while name in taken:
            number += 1
            name = f"{folder}/{number}-{last}"
        taken.add(name)
        yield replace(member, name=name)


def _inside(name: str, head: bytes, file: IO[bytes], budget: Budget) -> Iterator[Member]:
    """The files in an archive or a mail, and in archives and mails among them."""
    budget.depth += 1
    for member in members(cast(str, kind_of(name, head)), name, file, budget):
        head = member.data[:8192]
        kind = None if member.fault else kind_of(member.name, head)
        if kind not in ARCHIVES:
            yield member
        if kind in ARCHIVES or kind == "mail":
            yield from _inside(member.name, head, io.BytesIO(member.data), budget)
    budget.depth -= 1


TITLE_STEP = " › "
_MAX_TITLE = 300
_MAX_REASONS = 20


def read_file(kind: str, data: bytes, name: str, settings: DocumentSettings) -> JsonObject:
    """The answer for one file. The record has `outcome`: read, in part or failed."""
    rows: list[JsonObject] = []
    reasons: list[str] = []
    record: JsonObject = {"path": name, "kind": kind}
    try:
        document = read_document(kind, data, name)
        rows, reasons = list(_passages(document, name, settings)), document.faults
        if document.encoding:
            record["encoding"] = document.encoding.replace("cp125", "windows-125")
    except DocumentFault as fault:
        reasons = [str(fault)]
    except ModuleNotFoundError as error:
        return {"missing": (error.name or "").partition(".")[0]}
    except MemoryError:
        reasons = ["it needs more memory than there is (max_memory_mb)"]
    except RecursionError:
        reasons = ["it is nested too deeply"]
    except Exception as error:  # noqa: BLE001 (a parser's bug is that file's fault)
        reasons = [f"its reader failed ({type(error).__name__}: {str(error)[:200]})"]
    if len(reasons) > _MAX_REASONS:
        reasons = [*reasons[:_MAX_REASONS], f"and {len(reasons) - _MAX_REASONS} more"]
    if not rows and not reasons:
        reasons = ["there is no text in it"]
    outcome = "read" if not reasons else "in part" if rows else "failed"
    words = sum(count_words(str(row["text"])) for row in rows)
    shown: list[Json] = [" ".join(reason.split()) for reason in reasons]
    record |= {"outcome": outcome, "reasons": shown, "passages": len(rows), "words": words}
    return {"rows": [*rows], "record": {**record, "sha256": hashlib.sha256(data).hexdigest()}}


def _passages(document: Document, path: str, settings: DocumentSettings) -> Iterator[JsonObject]:
    """The rows of `corpus.jsonl`. `previous` and `next` are the ids of a passage's neighbours.

    An id is a digest of path, title and text, so that it does not depend on the other passages.
    """
    seen: Counter[str] = Counter()
    last: JsonObject | None = None
    name = path.rpartition("/")[2]
    stem = document.title or name.rpartition(".")[0] or name
    own = {clean(key): _cleaned(value) for key, value in document.meta.items() if key not in ("previous", "next")}
    for section in document.sections:
        steps = [step for place, step in enumerate(section.headings) if place or step != stem]
        title = " ".join(clean(TITLE_STEP.join([stem, *steps])).split())[:_MAX_TITLE]
        for text in split(section.blocks, settings.size, settings.overlap, counter(settings.tokenizer)):
            base = f"{path}\0{title}\0{text}"
            seen[base] += 1
            ident = hashlib.sha256(f"{base}\0{seen[base]}".encode()).hexdigest()[:16]
            meta: JsonObject = {**own, **section.meta, "path": path}
            if last is not None:
                cast(JsonObject, last["meta"])["next"] = ident
                meta["previous"] = last["id"]
                yield last
            last = {"id": ident, "title": title, "text": text, "meta": meta}
    if last is not None:
        yield last


def _cleaned(value: Json) -> Json:
    if isinstance(value, list):
        return [_cleaned(one) for one in value]
    return clean(value) if isinstance(value, str) else value


def main() -> None:
    # What libraries print must not stand among the answers.
    out, silence = os.fdopen(os.dup(1), "wb"), os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    out.write(b"ready\n")
    out.flush()
    for line in iter(sys.stdin.buffer.readline, b""):
        request = json.loads(line)
        settings = make_settings(DocumentSettings, request["settings"])
        with suppress(ImportError, ValueError, OSError):  # Windows has no such limits, and macOS none that hold
            import resource

            resource.setrlimit(resource.RLIMIT_AS, (settings.max_memory_mb << 20,) * 2)
        answer = read_file(request["kind"], sys.stdin.buffer.read(request["size"]), request["name"], settings)
        out.write(json.dumps(answer).encode() + b"\n")
        out.flush()
