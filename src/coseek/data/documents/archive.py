"""Archive: the files inside zip and tar archives, mailboxes and mails, one by one, in memory. Nothing is unpacked onto
the disk, and names only label what was found. Limits hold for what is really read, whatever an archive says of itself.
"""

import bz2
import gzip
import io
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.message import EmailMessage
from functools import partial
from typing import IO

from pydantic import Field

from coseek.core.settings import Settings
from coseek.data.documents.converted import Convertible
from coseek.data.documents.document import DocumentFault, clean
from coseek.data.documents.rows import parse_mail

_FREE_BYTES = 10 << 20
"""Bytes that any archive may unpack to, whatever the ratio."""
BROKEN = (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError,
          NotImplementedError, RuntimeError, KeyError)  # fmt: skip
"""What the libraries raise for broken and for locked archives."""
_QUOTED_FROM = re.compile(rb"\A>+From ")
_DRIVE = re.compile(r"[A-Za-z]:")


class DocumentSettings(Settings):
    """Settings of `coseek data import documents`."""

    size: int = Field(default=200, ge=5)
    """Words of a passage, at most; two Chinese, Japanese or Korean characters count as one."""
    overlap: int = Field(default=0, ge=0)
    """Words of the passage before it that a passage of the same section begins with."""
    tokenizer: str | None = None
    """An encoder or language model (`minilm`, `base`, a folder): `size` and `overlap` count its tokens, not words."""
    convert: tuple[Convertible, ...] = ()
    """Endings that markitdown reads (`coseek[layout]`): docx, epub, pdf, pptx, xlsx."""
    max_file_mb: float = Field(default=50.0, gt=0)
    """Megabytes of one file, unpacked; a larger one is reported, not read."""
    max_archive_mb: float = Field(default=2000.0, gt=0)
    """Megabytes that one archive may unpack to."""
    max_archive_files: int = Field(default=100_000, ge=1)
    """Files in one archive."""
    max_ratio: float = Field(default=200.0, gt=1)
    """How many times its own size an archive larger than 10 MB unpacked may unpack to."""
    max_nesting: int = Field(default=3, ge=0)
    """Archives inside archives, and attachments of mails in them."""
    seconds: float = Field(default=60.0, gt=0)
    """Seconds for one file; a slower one is reported, and the rest is read."""
    max_memory_mb: int = Field(default=2000, ge=256)
    """Megabytes of address space for reading (not on Windows and macOS)."""


@dataclass(frozen=True, slots=True)
class Member:
    """A file on its way to a reader: its bytes, or why there are none."""

    name: str
    """Its path below what was given, through archives: `mail/june.zip/notes.md`."""
    data: bytes = b""
    fault: str = ""


@dataclass
class ArchiveBudget:
    """What one archive that was given may still unpack to, with all archives inside it."""

    settings: DocumentSettings
    packed: int
    """Bytes of the archive itself."""
    unpacked: int = 0
    files: int = 0
    depth: int = 0

    def take(self, size: int) -> None:
        """Count a file of this size. Raises `DocumentFault` beyond a limit."""
        self.files += 1
        self.unpacked += size
        if self.files > self.settings.max_archive_files:
            raise DocumentFault(f"it holds more than {self.settings.max_archive_files} files (max_archive_files)")
        if self.unpacked > self.settings.max_archive_mb * 1e6:
            raise DocumentFault(f"it unpacks to more than {self.settings.max_archive_mb:g} MB (max_archive_mb)")
        if self.unpacked > max(_FREE_BYTES, self.settings.max_ratio * self.packed):
            raise DocumentFault(f"it unpacks to more than {self.settings.max_ratio:g} times its size (max_ratio)")

    @property
    def most(self) -> int:
        """Bytes of one file."""
        return int(self.settings.max_file_mb * 1e6)


def members(kind: str, name: str, file: IO[bytes], budget: ArchiveBudget) -> Iterator[Member]:
    """The files of an archive. One that cannot be read is a `Member` with a fault, and so is the rest of an archive
    that is broken or beyond a limit."""
    try:
        if budget.depth >= budget.settings.max_nesting + 1:
            raise DocumentFault(f"archives are nested more than {budget.settings.max_nesting} deep (max_nesting)")
        yield from _KINDS[kind](name, file, budget)
    except DocumentFault as fault:
        yield Member(name, fault=str(fault))
    except BROKEN as error:
        yield Member(name, fault=f"it is no whole {kind} archive ({clean(str(error))[:100]}); what follows is not read")


def _zip(name: str, file: IO[bytes], budget: ArchiveBudget) -> Iterator[Member]:
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            link = (info.external_attr >> 16) & 0o170000 == 0o120000
            if not info.is_dir():
                yield _member(name, info.filename, info.file_size, link, budget, partial(archive.open, info))


def _tar(name: str, file: IO[bytes], budget: ArchiveBudget) -> Iterator[Member]:
    with tarfile.open(fileobj=file, mode="r|*") as archive:
        for info in archive:
            if not info.isdir():
                special = not info.isfile()
                yield _member(name, info.name, info.size, special, budget, partial(archive.extractfile, info))


def _member(
    archive: str, name: str, size: int, special: bool, budget: ArchiveBudget, opened: Callable[[], IO[bytes] | None]
) -> Member:
    budget.take(size)
    name = clean(name).replace("\\", "/").replace("\n", " ")
    label = f"{archive}/{name}"
    if name.startswith("/") or _DRIVE.match(name) or ".." in name.split("/"):
        return Member(f"{archive}/{name.replace('..', '__').lstrip('/')}", fault="its name leads out of the archive")
    if special:
        return Member(label, fault="a link or a device, which is not followed")
    if size > budget.most:
        return Member(label, fault=_too_large(budget))
    try:
        file = opened()
        if file is None:
            return Member(label, fault="a link or a device, which is not followed")
        with file:
            data = file.read(budget.most + 1)
    except BROKEN as error:
        return Member(label, fault=f"it cannot be unpacked ({clean(str(error))[:100]})")
    budget.take(max(0, len(data) - size))  # a header may say less than there is
    return Member(label, data) if len(data) <= budget.most else Member(label, fault=_too_large(budget))


def _too_large(budget: ArchiveBudget) -> str:
    return f"it is larger than {budget.settings.max_file_mb:g} MB (max_file_mb)"


def _packed(name: str, file: IO[bytes], budget: ArchiveBudget) -> Iterator[Member]:
    """A single file behind `.gz`, `.bz2` or `.xz`."""
    stem, _, suffix = name.rpartition(".")
    openers: dict[str, Callable[[IO[bytes]], io.BufferedIOBase]]
    openers = {"gz": lambda one: gzip.GzipFile(fileobj=one), "bz2": bz2.BZ2File, "xz": lzma.LZMAFile}
    with openers[suffix.lower()](file) as unpacked:
        data = unpacked.read(budget.most + 1)
    budget.take(len(data))
    label = f"{name}/{stem.rpartition('/')[2]}"
    yield Member(label, data) if len(data) <= budget.most else Member(label, fault=_too_large(budget))


def _mbox(name: str, file: IO[bytes], budget: ArchiveBudget) -> Iterator[Member]:
    """The mails of a mailbox, which begin at lines `From …` behind blank lines."""
    lines: list[bytes] = []
    number, size, blank = 0, 0, True
    for line in file:
        if blank and line.startswith(b"From "):
            if number:
                yield _mail(name, number, lines, size, budget)
            number, lines, size = number + 1, [], 0
        elif not number:
            raise DocumentFault("it is no mailbox (it does not begin with a line `From …`)")
        else:
            size += len(line)
            if size <= budget.most:
                lines.append(line[1:] if _QUOTED_FROM.match(line) else line)
        blank = not line.strip(b"\r\n")
    if number:
        yield _mail(name, number, lines, size, budget)


def _mail(name: str, number: int, lines: list[bytes], size: int, budget: ArchiveBudget) -> Member:
    budget.take(size)
    label = f"{name}/{number}.eml"
    return Member(label, b"".join(lines)) if size <= budget.most else Member(label, fault=_too_large(budget))


def _attachments(name: str, file: IO[bytes], budget: ArchiveBudget) -> Iterator[Member]:
    """The attachments of a mail that have a file name."""
    try:
        mail = parse_mail(file.read())
    except DocumentFault:  # which the reader of the mail tells
        return
    for number, part in enumerate(mail.iter_attachments(), start=1):
        inner = part.get_payload(0) if part.get_content_type() == "message/rfc822" else None
        called = part.get_filename() or ("mail.eml" if inner is not None else "")
        if called:
            payload = inner.as_bytes() if isinstance(inner, EmailMessage) else part.get_payload(decode=True)
            data = payload if isinstance(payload, bytes) else b""
            safe = called.replace("/", "_").replace("\\", "_")
            yield _member(name, f"{number}-{safe}", len(data), False, budget, partial(io.BytesIO, data))


_KINDS: dict[str, Callable[[str, IO[bytes], ArchiveBudget], Iterator[Member]]] = {
    "zip": _zip, "tar": _tar, "packed": _packed, "mbox": _mbox, "mail": _attachments,
}  # fmt: skip
