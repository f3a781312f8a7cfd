"""Reading: reads the files of a source, including those in zip and tar archives, mailboxes and mails, in a worker
process, which is restarted if it hangs or dies.

Files in archives are read one by one, in memory. Nothing is unpacked to disk, and names are only labels. Limits apply
to the bytes actually read, whatever an archive declares.

A request to the worker is a line of JSON (`name`, `kind`, `size`, `settings`) and the bytes of the file. The answer is
one line: the `rows` of `corpus.jsonl` and the `record` of the file, or the library that is `missing`.
"""

import bz2
import gzip
import hashlib
import io
import json
import lzma
import mimetypes
import os
import re
import subprocess
import sys
import tarfile
import threading
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from email.message import EmailMessage
from pathlib import Path
from typing import IO, cast

from pydantic import Field

import coseek
from coseek.core.errors import MissingExtra
from coseek.core.files import Json, JsonObject
from coseek.core.settings import Settings, dump_settings, make_settings
from coseek.data.documents.document import Document, DocumentFault, clean, count_words, counter, split
from coseek.data.documents.readers import ARCHIVES, MAIL_BEGIN, kind_of, mail_parts, parse_mail, read_document
from coseek.data.passage import Passage

BROKEN = (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError,
          NotImplementedError, RuntimeError, KeyError)  # fmt: skip
"""Exceptions of the libraries for broken and for locked archives."""


class DocumentSettings(Settings):
    """Settings of `coseek data import documents`."""

    size: int = Field(default=200, ge=5)
    """Maximum number of words of a passage; two Chinese, Japanese or Korean characters count as one word."""
    overlap: int = Field(default=0, ge=0)
    """Number of words that a passage repeats from the previous passage of its section."""
    tokenizer: str | None = None
    """An encoder or language model (`minilm`, `base`, a folder): `size` and `overlap` count its tokens, not words."""
    max_file_mb: float = Field(default=50.0, gt=0)
    """Maximum size of a file, unpacked, in megabytes. Larger files are reported, not read."""
    max_archive_mb: float = Field(default=2000.0, gt=0)
    """Megabytes that one archive may unpack to."""
    max_nesting: int = Field(default=3, ge=0)
    """Maximum nesting depth of archives, and of attachments in mails."""
    seconds: float = Field(default=60.0, gt=0)
    """Maximum number of seconds for one file. Slower files are reported, and the rest is read."""
    max_memory_mb: int = Field(default=2000, ge=256)
    """Megabytes of address space for reading (not on Windows and macOS)."""

    @property
    def max_file_bytes(self) -> int:
        return int(self.max_file_mb * 1e6)


@dataclass(frozen=True, slots=True)
class Member:
    """A file to read: its bytes, or the reason why they are missing."""

    name: str
    """Its path below the source, through archives: `mail/june.zip/notes.md`."""
    data: bytes = b""
    fault: str = ""

    @classmethod
    def of(cls, name: str, file: IO[bytes], settings: DocumentSettings) -> "Member":
        """The rest of an open file, unless it is too large."""
        data = file.read(settings.max_file_bytes + 1)
        if len(data) > settings.max_file_bytes:
            return cls(name, fault=f"it is larger than {settings.max_file_mb:g} MB (max_file_mb)")
        return cls(name, data)

    @property
    def kind(self) -> str | None:
        """The kind of the file; `None` if there is no reader or nothing to read."""
        return None if self.fault else kind_of(self.name, self.data[:8192])


@dataclass
class Budget:
    """Limits of an archive and all archives inside it."""

    settings: DocumentSettings
    unpacked: int = 0
    depth: int = 0

    def read(self, label: str, file: IO[bytes]) -> Member:
        """Read and count a file. Raises `DocumentFault` if the archive exceeds a limit."""
        member = Member.of(label, file, self.settings)
        self.unpacked += self.settings.max_file_bytes if member.fault else len(member.data)
        if self.unpacked > self.settings.max_archive_mb * 1e6:
            raise DocumentFault(f"it unpacks to more than {self.settings.max_archive_mb:g} MB (max_archive_mb)")
        return member


def _members(kind: str, name: str, file: IO[bytes], budget: Budget) -> Iterator[Member]:
    """The files in an archive or a mail, at any depth. A file that cannot be read becomes a `Member` with a fault, and
    so does the rest of an archive that is broken or exceeds a limit."""
    budget.depth += 1
    try:
        if budget.depth > budget.settings.max_nesting:
            raise DocumentFault(f"archives are nested more than {budget.settings.max_nesting} deep (max_nesting)")
        for member in _KINDS[kind](name, file, budget):
            yield from _with_inner(member, budget)
    except DocumentFault as fault:
        yield Member(name, fault=str(fault))
    except BROKEN as error:
        yield Member(name, fault=f"it is no whole {kind} archive ({clean(str(error))[:100]}); what follows is not read")
    budget.depth -= 1


def _with_inner(member: Member, budget: Budget) -> Iterator[Member]:
    """A file, with the attachments of a mail, or in place of an archive the files in it."""
    kind = member.kind
    if kind not in ARCHIVES:
        yield member
    if kind in ARCHIVES or kind == "mail":
        yield from _members(kind, member.name, io.BytesIO(member.data), budget)


def _zip(name: str, file: IO[bytes], budget: Budget) -> Iterator[Member]:
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            label = f"{name}/{_label(info.filename)}"
            if (info.external_attr >> 16) & 0o170000 == 0o120000:
                yield Member(label, fault="a link, which is not followed")
            elif not info.is_dir():
                try:
                    with archive.open(info) as member:
                        yield budget.read(label, member)
                except BROKEN as error:
                    yield Member(label, fault=f"it cannot be unpacked ({clean(str(error))[:100]})")


def _tar(name: str, file: IO[bytes], budget: Budget) -> Iterator[Member]:
    with tarfile.open(fileobj=file, mode="r|*") as archive:
        for info in archive:
            label = f"{name}/{_label(info.name)}"
            if info.isfile() and (member := archive.extractfile(info)) is not None:
                yield budget.read(label, member)
            elif not info.isdir():
                yield Member(label, fault="a link or a device, which is not followed")


def _label(name: str) -> str:
    """The name of a file in an archive, without parts that lead out of the archive."""
    parts = clean(name).replace("\n", " ").replace("\\", "/").split("/")
    return "/".join(part for part in parts if part not in ("", ".", "..")) or "unnamed"


def _packed(name: str, file: IO[bytes], budget: Budget) -> Iterator[Member]:
    """The single file in a `.gz`, `.bz2` or `.xz` file."""
    stem, _, suffix = name.rpartition(".")
    module = {"gz": gzip, "bz2": bz2, "xz": lzma}[suffix.lower()]
    with cast(IO[bytes], module.open(file, "rb")) as unpacked_file:
        yield budget.read(f"{name}/{stem.rpartition('/')[2]}", unpacked_file)


def _mbox(name: str, file: IO[bytes], budget: Budget) -> Iterator[Member]:
    """The mails of a mailbox. Each begins at a line `From …` with a date, or if the first line has no date, at any
    `From …` after a blank line."""
    mail, number, is_blank, is_dated = io.BytesIO(), 0, True, True
    for line in file:
        if line.startswith(b"From ") and (bool(MAIL_BEGIN.match(line)) if number and is_dated else is_blank):
            if number:
                yield budget.read(f"{name}/{number}.eml", io.BytesIO(mail.getvalue()))
            else:
                is_dated = bool(MAIL_BEGIN.match(line))
            mail, number = io.BytesIO(), number + 1
        elif not number and line.strip():
            raise DocumentFault("it is no mailbox (it does not begin with a line `From …`)")
        elif mail.tell() <= budget.settings.max_file_bytes:
            mail.write(line[1:] if re.match(rb">+From ", line) else line)
        is_blank = not line.strip(b"\r\n")
    if number:
        yield budget.read(f"{name}/{number}.eml", io.BytesIO(mail.getvalue()))


def _attachments(name: str, file: IO[bytes], budget: Budget) -> Iterator[Member]:
    """The attachments of a mail, without unnamed pictures. Other unnamed ones get a name by their type."""
    try:
        mail = parse_mail(file.read())
    except DocumentFault:  # reported by the reader of the mail
        return
    for number, part in enumerate(mail_parts(mail)[1], start=1):
        kind = part.get_content_type()
        if file_name := part.get_filename() or _name_by_kind(kind):
            message = part.get_payload(0) if kind == "message/rfc822" else None
            payload = message.as_bytes() if isinstance(message, EmailMessage) else part.get_payload(decode=True)
            data = payload if isinstance(payload, bytes) else part.as_bytes()
            label = f"{name}/{number}-{clean(file_name).replace('/', '_').replace(chr(92), '_')}"
            yield budget.read(label, io.BytesIO(data))


def _name_by_kind(kind: str) -> str:
    """A name for an unnamed attachment; empty for pictures, which belong to the text."""
    if kind.startswith("image/"):
        return ""
    return "mail.eml" if kind == "message/rfc822" else f"attachment{mimetypes.guess_extension(kind) or ''}"


_KINDS: dict[str, Callable[[str, IO[bytes], Budget], Iterator[Member]]] = {
    "zip": _zip, "tar": _tar, "packed": _packed, "mbox": _mbox, "mail": _attachments,
}  # fmt: skip


_ENDINGS = re.compile(r"(?<=[^/])((\.[^./\s]+)?\.(gz|bz2|xz)|\.[^./\s]+)\Z", re.IGNORECASE)
_WORKER = "import sys; sys.path.insert(0, sys.argv[1]); from coseek.data.documents.reading import main; main()"


class DocumentReader:
    """Reads files in a worker process, until it is closed."""

    def __init__(self, settings: DocumentSettings) -> None:
        self.settings = settings
        self.records: list[JsonObject] = []
        """The outcome of each file: `path`, `kind`, `outcome` (read, in part, failed, left out), `reasons`, `passages`,
        `words`, `sha256`."""
        self._process: subprocess.Popen[bytes] | None = None

    def read(self, path: Path, name: str) -> Iterator[Passage]:
        """The passages of a file, or of the files in an archive. Raises `MissingExtra`."""
        taken = Counter[str]()
        for file in self._files(path, name):
            member = replace(file, name=free_name(file.name, taken))  # archives may contain a name twice
            if (kind := member.kind) is None:
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
        """A file, or the files in an archive, at any depth."""
        try:
            with path.open("rb") as file:
                kind = kind_of(name, file.read(8192))
                file.seek(0)
                budget = Budget(self.settings)
                if kind in ARCHIVES:  # which may be larger than memory
                    yield from _members(kind, name, file, budget)
                else:
                    yield from _with_inner(Member.of(name, file, self.settings), budget)
        except OSError as error:
            yield Member(name, fault=f"it cannot be opened ({error.strerror or error})")

    def _ask(self, kind: str, member: Member) -> JsonObject:
        """The worker's answer for a file; a failed record if the worker hangs or dies."""
        process = self._process = self._process or _start_process()
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
        self.close()
        crashed = f"its reader crashed (exit status {process.returncode})"
        reason = f"it takes longer than {self.settings.seconds:g} seconds (seconds)" if is_late.is_set() else crashed
        return {"rows": [], "record": {"path": member.name, "kind": kind, "outcome": "failed", "reasons": [reason]}}

    def close(self) -> None:
        """End the worker process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def _start_process() -> "subprocess.Popen[bytes]":
    # -P: a folder of documents may hold Python files, which must not be imported from the working folder.
    command = [sys.executable, "-P", "-c", _WORKER, str(Path(coseek.__file__).parents[1])]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()  # the start does not count towards a file's seconds
    return process


def free_name(name: str, taken: Counter[str], is_folder: bool = False) -> str:
    """Number a name that is taken, before its endings, which determine the kind: the second `a.md` is `a 2.md`."""
    match = None if is_folder else _ENDINGS.search(name)
    stem, ending = (name, "") if match is None else (name[: match.start()], name[match.start() :])
    candidate = name
    while taken[candidate]:
        taken[name] += 1
        candidate = f"{stem} {taken[name]}{ending}"
    taken[candidate] += 1
    return candidate


TITLE_STEP = " › "
_MAX_TITLE = 300
_MAX_REASONS = 20


def read_file(kind: str, data: bytes, name: str, settings: DocumentSettings) -> JsonObject:
    """The worker's answer for one file. The record's `outcome` is read, in part or failed."""
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
    reason_texts: list[Json] = [" ".join(reason.split()) for reason in reasons]
    record |= {"outcome": outcome, "reasons": reason_texts, "passages": len(rows), "words": words}
    return {"rows": [*rows], "record": {**record, "sha256": hashlib.sha256(data).hexdigest()}}


def _passages(document: Document, path: str, settings: DocumentSettings) -> Iterator[JsonObject]:
    """The rows of `corpus.jsonl`, linked to their neighbours by `previous` and `next`.

    An id is a digest of path, title and text, so it does not depend on other passages.
    """
    counts: Counter[str] = Counter()
    previous_row: JsonObject | None = None
    name = path.rpartition("/")[2]
    stem = document.title or name.rpartition(".")[0] or name
    fields = {clean(key): _clean_text(value) for key, value in document.meta.items() if key not in ("previous", "next")}
    for section in document.sections:
        steps = [step for level, step in enumerate(section.headings) if level or step != stem]
        title = " ".join(clean(TITLE_STEP.join([stem, *steps])).split())[:_MAX_TITLE]
        for text in split(section.blocks, settings.size, settings.overlap, counter(settings.tokenizer)):
            base = f"{path}\0{title}\0{text}"
            counts[base] += 1
            ident = hashlib.sha256(f"{base}\0{counts[base]}".encode()).hexdigest()[:16]
            meta: JsonObject = {**fields, **section.meta, "path": path}
            if previous_row is not None:
                cast(JsonObject, previous_row["meta"])["next"] = ident
                meta["previous"] = previous_row["id"]
                yield previous_row
            previous_row = {"id": ident, "title": title, "text": text, "meta": meta}
    if previous_row is not None:
        yield previous_row


def _clean_text(value: Json) -> Json:
    if isinstance(value, list):
        return [_clean_text(item) for item in value]
    return clean(value) if isinstance(value, str) else value


def main() -> None:
    # Keep the output of libraries out of the answers.
    output, silence = os.fdopen(os.dup(1), "wb"), os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    output.write(b"ready\n")
    output.flush()
    for line in iter(sys.stdin.buffer.readline, b""):
        request = json.loads(line)
        settings = make_settings(DocumentSettings, request["settings"])
        with suppress(ImportError, ValueError, OSError):  # Windows has no such limits, and macOS none that hold
            import resource

            resource.setrlimit(resource.RLIMIT_AS, (settings.max_memory_mb << 20,) * 2)
        answer = read_file(request["kind"], sys.stdin.buffer.read(request["size"]), request["name"], settings)
        output.write(json.dumps(answer).encode() + b"\n")
        output.flush()
