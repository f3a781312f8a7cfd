"""Archive: the files inside zip and tar archives, mailboxes and mails, one by one, in memory. Nothing is unpacked onto
the disk, and names are only labels. Limits hold for what is really read, whatever an archive says of itself."""

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
from typing import IO, cast

from pydantic import Field

from coseek.core.settings import Settings
from coseek.data.documents.document import DocumentFault, clean
from coseek.data.documents.readers import parse_mail

_FREE_BYTES = 10 << 20
"""Bytes that any archive may unpack to, whatever the ratio."""
BROKEN = (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError,
          NotImplementedError, RuntimeError, KeyError)  # fmt: skip
"""What the libraries raise for broken and for locked archives."""


class DocumentSettings(Settings):
    """Settings of `coseek data import documents`."""

    size: int = Field(default=200, ge=5)
    """Words of a passage, at most; two Chinese, Japanese or Korean characters count as one."""
    overlap: int = Field(default=0, ge=0)
    """Words of the passage before it that a passage of the same section begins with."""
    tokenizer: str | None = None
    """An encoder or language model (`minilm`, `base`, a folder): `size` and `overlap` count its tokens, not words."""
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

    @property
    def max_file_bytes(self) -> int:
        return int(self.max_file_mb * 1e6)


@dataclass(frozen=True, slots=True)
class Member:
    """A file on its way to a reader: its bytes, or why there are none."""

    name: str
    """Its path below what was given, through archives: `mail/june.zip/notes.md`."""
    data: bytes = b""
    fault: str = ""


@dataclass
class Budget:
    """What one given archive may still unpack to, with all archives inside it."""

    settings: DocumentSettings
    packed: int
    """Bytes of the archive itself."""
    unpacked: int = 0
    files: int = 0
    depth: int = 0

    def read(self, label: str, file: IO[bytes]) -> Member:
        """Read and count a file. Raises `DocumentFault` beyond a limit of the archive."""
        settings = self.settings
        data = file.read(settings.max_file_bytes + 1)
        self.files += 1
        self.unpacked += len(data)
        if self.files > settings.max_archive_files:
            raise DocumentFault(f"it holds more than {settings.max_archive_files} files (max_archive_files)")
        if self.unpacked > settings.max_archive_mb * 1e6:
            raise DocumentFault(f"it unpacks to more than {settings.max_archive_mb:g} MB (max_archive_mb)")
        if self.unpacked > max(_FREE_BYTES, settings.max_ratio * self.packed):
            raise DocumentFault(f"it unpacks to more than {settings.max_ratio:g} times its size (max_ratio)")
        return Member(label, data) if len(data) <= settings.max_file_bytes else too_large(label, settings)


def too_large(label: str, settings: DocumentSettings) -> Member:
    return Member(label, fault=f"it is larger than {settings.max_file_mb:g} MB (max_file_mb)")


def members(kind: str, name: str, file: IO[bytes], budget: Budget) -> Iterator[Member]:
    """The files of an archive. One that cannot be read is a `Member` with a fault, and so is the rest of an archive
    that is broken or beyond a limit."""
    try:
        if budget.depth > budget.settings.max_nesting:
            raise DocumentFault(f"archives are nested more than {budget.settings.max_nesting} deep (max_nesting)")
        yield from _KINDS[kind](name, file, budget)
    except DocumentFault as fault:
        yield Member(name, fault=str(fault))
    except BROKEN as error:
        yield Member(name, fault=f"it is no whole {kind} archive ({clean(str(error))[:100]}); what follows is not read")


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
    """The name of a file in an archive, without what leads out of it."""
    parts = clean(name).replace("\n", " ").replace("\\", "/").split("/")
    return "/".join(part for part in parts if part not in ("", ".", "..")) or "unnamed"


def _packed(name: str, file: IO[bytes], budget: Budget) -> Iterator[Member]:
    """A single file behind `.gz`, `.bz2` or `.xz`."""
    stem, _, suffix = name.rpartition(".")
    module = {"gz": gzip, "bz2": bz2, "xz": lzma}[suffix.lower()]
    with cast(IO[bytes], module.open(file, "rb")) as unpacked:
        yield budget.read(f"{name}/{stem.rpartition('/')[2]}", unpacked)


def _mbox(name: str, file: IO[bytes], budget: Budget) -> Iterator[Member]:
    """The mails of a mailbox, which begin at lines `From …` after blank lines."""
    mail, number, is_blank = io.BytesIO(), 0, True
    for line in file:
        if is_blank and line.startswith(b"From "):
            if number:
                yield budget.read(f"{name}/{number}.eml", io.BytesIO(mail.getvalue()))
            mail, number = io.BytesIO(), number + 1
        elif not number:
            raise DocumentFault("it is no mailbox (it does not begin with a line `From …`)")
        elif mail.tell() <= budget.settings.max_file_bytes:
            mail.write(line[1:] if re.match(rb">+From ", line) else line)
        is_blank = not line.strip(b"\r\n")
    if number:
        yield budget.read(f"{name}/{number}.eml", io.BytesIO(mail.getvalue()))


def _attachments(name: str, file: IO[bytes], budget: Budget) -> Iterator[Member]:
    """The attachments of a mail that have a file name."""
    try:
        mail = parse_mail(file.read())
    except DocumentFault:  # reported by the reader of the mail
        return
    for number, part in enumerate(mail.iter_attachments(), start=1):
        inner = part.get_payload(0) if part.get_content_type() == "message/rfc822" else None
        if called := part.get_filename() or ("mail.eml" if inner is not None else ""):
            payload = inner.as_bytes() if isinstance(inner, EmailMessage) else part.get_payload(decode=True)
            data = payload if isinstance(payload, bytes) else b""
            label = f"{name}/{number}-{clean(called).replace('/', '_').replace(chr(92), '_')}"
            yield budget.read(label, io.BytesIO(data))


_KINDS: dict[str, Callable[[str, IO[bytes], Budget], Iterator[Member]]] = {
    "zip": _zip, "tar": _tar, "packed": _packed, "mbox": _mbox, "mail": _attachments,
}  # fmt: skip
