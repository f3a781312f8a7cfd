"""Readers of rows (CSV, JSON lines, JSON) and of mail: a row or a mail is a section of its own."""

import codecs
import csv
import email
import email.policy
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from email.message import EmailMessage
from email.utils import parsedate_to_datetime

from coseek.core.files import Json, JsonObject
from coseek.core.plain_text import DecodedText, declared_encoding, decode
from coseek.core.strict_json import InvalidJson, parse_strict
from coseek.data.documents.document import (
    Document,
    DocumentFault,
    Section,
    clean,
    decoded_text,
    paragraphs,
    text_of,
    undecoded,
)
from coseek.data.documents.free_name import free_name
from coseek.data.documents.markup import read_html

_TITLES = ("title", "name", "subject", "headline")
_TEXTS = ("text", "body", "content", "contents", "abstract", "description", "passage")
_FIELDS = ("url", "date", "author", "id")
_SEPARATOR = re.compile(r"\ufeff?sep=([,;\t|])\r?\n")
"""A first line of Excel, which names the delimiter and is no header."""
_MOST_FAULTS = 20
"""Faults of one file that are told one by one."""


def read_csv(data: bytes, name: str) -> Document:
    """Rows under a header of names; the delimiter is found out."""
    text = text_of(data)
    csv.field_size_limit(1 << 30)
    if said := _SEPARATOR.match(text):
        text = text[said.end() :]
    header = text.split("\n", 1)[0]
    found = max(",;\t|", key=header.count) if not name.lower().endswith(".tsv") else "\t"
    delimiter = said[1] if said else found
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    document = Document("", ())

    def rows() -> Iterator[tuple[int, JsonObject]]:
        try:
            header, used = next(lines, []), Counter[str]()
            names: list[str] = []
            for number, cells in enumerate(lines, start=1):
                for place in range(len(names), max(len(header), len(cells))):
                    given = header[place] if place < len(header) else ""
                    names.append(free_name(given if given.strip() else f"column {place + 1}", used))
                yield number, dict(zip(names, cells, strict=False))
        except csv.Error as error:
            document.faults.append(f"line {lines.line_num}: {error}")

    document.sections = _sections(rows())
    return document


def read_jsonl(data: bytes, name: str) -> Document:
    """One object a line; a line that is none is left out and told."""
    document = Document("", ())

    def rows() -> Iterator[tuple[int, JsonObject]]:
        wrong = 0
        for number, line in enumerate(text_of(data).split("\n"), start=1):
            if not line.strip():
                continue
            try:
                value = parse_strict(line)
                if not isinstance(value, dict):
                    raise InvalidJson("no object")
                yield number, value
            except InvalidJson as error:
                wrong += 1
                if wrong <= _MOST_FAULTS:
                    document.faults.append(f"line {number}: {error}")
        if wrong > _MOST_FAULTS:
            document.faults.append(f"and {wrong - _MOST_FAULTS} more lines")

    document.sections = _sections(rows())
    return document


def read_json(data: bytes, name: str) -> Document:
    """A list of objects as rows; any other document as one row."""
    try:
        value = parse_strict(text_of(data))
    except InvalidJson as error:
        raise DocumentFault(f"it is not JSON ({error})") from None
    items = value if isinstance(value, list) else [value]
    return Document("", _sections(enumerate((one if isinstance(one, dict) else {"": one} for one in items), start=1)))


def _sections(rows: Iterable[tuple[int, JsonObject]]) -> Iterator[Section]:
    """The title is a column of that name, the text one of that name, else `column: value` lines."""
    for number, row in rows:
        said = {str(key): clean(_shown(value)) for key, value in row.items()}
        said = {key: value for key, value in said.items() if value.strip()}
        by_name = {key.strip().lower(): key for key in reversed(said)}
        title = next((by_name[name] for name in _TITLES if name in by_name), None)
        body = next((by_name[name] for name in _TEXTS if name in by_name), None)
        others = [f"{key}: {value}" if key else value for key, value in said.items() if key not in (title, body)]
        blocks = [*(paragraphs(said[body]) if body else ()), *(["\n".join(others)] if others else [])]
        if not blocks and title:
            blocks = [said[title]]
        meta: JsonObject = {name: said[by_name[name]][:1000] for name in _FIELDS if name in by_name}
        if blocks:
            yield Section(
                tuple(blocks), (" ".join(said[title].split())[:300],) if title else (), {"row": number, **meta}
            )


def _shown(value: Json) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def read_mail(data: bytes, name: str) -> Document:
    """Subject, sender, date and text of one mail; its attachments are files of their own."""
    mail = parse_mail(data)
    text = mail.get_body(("plain", "html"))
    meta: JsonObject = {}
    heads = []
    for field in ("from", "to", "cc", "date"):
        if said := clean(_header(mail, field)).strip()[:2000]:
            heads.append(f"{field.capitalize()}: {said}")
            meta[{"from": "author"}.get(field, field)] = said
    if "date" in meta:
        try:
            meta["date"] = parsedate_to_datetime(str(mail["date"])).isoformat()
        except (ValueError, TypeError, IndexError):
            meta["date"] = str(meta["date"])[:40]
    blocks, body = ["\n".join(heads)] if heads else [], DecodedText("", "")
    if text is not None:
        payload = text.get_payload(decode=True)
        if not isinstance(payload, bytes):
            raise DocumentFault("its text cannot be decoded")
        body = _decoded(payload, text.get_content_charset())
        if text.get_content_subtype() == "html":
            page = codecs.BOM_UTF8 + body.text.encode("utf-8", "replace")
            blocks += [block for section in read_html(page, name).sections for block in section.blocks]
        else:
            blocks += paragraphs(clean(body.text))
    title = " ".join(clean(_header(mail, "subject")).split())
    guessed = body.encoding if body.is_guess else ""
    return Document(title, [Section(tuple(blocks))], meta, undecoded(body), guessed)


def _header(mail: EmailMessage, name: str) -> str:
    """A header's text; letters that it has without an encoding are decoded like those of a file."""
    raw = next((value for key, value in mail.raw_items() if key.lower() == name), "")
    if any("\udc80" <= letter <= "\udcff" for letter in raw):
        return decode(raw.encode("utf-8", "surrogateescape"), "")
    return str(mail.get(name, ""))


def parse_mail(data: bytes) -> EmailMessage:
    """Raises `DocumentFault` for what has no headers of a mail."""
    mail = email.message_from_bytes(data, _class=EmailMessage, policy=email.policy.default)
    if not {"from", "subject", "date", "to", "received", "message-id"} & {key.lower() for key in mail}:
        raise DocumentFault("it has no headers of a mail")
    return mail


def _decoded(payload: bytes, charset: str | None) -> DecodedText:
    try:
        name = declared_encoding(payload, charset or "utf-8")
        return DecodedText(payload.decode(name), name)
    except (LookupError, UnicodeDecodeError):
        return decoded_text(payload)
