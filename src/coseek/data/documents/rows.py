"""Readers of rows (CSV, JSON lines, JSON) and of mail: a row or a mail is a section of its own."""

import csv
import email
import email.policy
import io
import json
from collections.abc import Iterable, Iterator
from email.message import EmailMessage
from email.utils import parsedate_to_datetime

from coseek.core.files import Json, JsonObject
from coseek.core.strict_json import InvalidJson, parse_strict
from coseek.core.text import DecodedText, declared_encoding
from coseek.data.documents.document import Document, DocumentFault, Section, clean, decoded_text, paragraphs
from coseek.data.documents.markup import read_html

_TITLES = ("title", "name", "subject", "headline")
_TEXTS = ("text", "body", "content", "contents", "abstract", "description", "passage")
_FIELDS = ("url", "date", "author", "id")


def read_csv(text: str, name: str) -> Document:
    """Rows under a header of names; the delimiter is found out, or named by Excel's first line `sep=;`."""
    first, _, rest = clean(text).partition("\n")
    named = first[4:] if first.startswith("sep=") and len(first) == 5 else ""
    source = rest if named else f"{first}\n{rest}"
    common = "\t" if name.lower().endswith(".tsv") else max(",;\t|", key=first.count)
    csv.field_size_limit(1 << 30)
    lines = csv.reader(io.StringIO(source, newline=""), delimiter=named or common, strict=True)
    document = Document("", [])

    def rows() -> Iterator[tuple[int, list[tuple[str, Json]]]]:
        try:
            header = next(lines, [])
            for number, cells in enumerate(lines, start=1):
                names = [*header, *[""] * (len(cells) - len(header))]
                cells_at = enumerate(zip(names, cells, strict=False), start=1)
                yield number, [(key.strip() or f"column {place}", cell) for place, (key, cell) in cells_at]
        except csv.Error as error:
            document.faults.append(f"line {lines.line_num}: {error}")

    document.sections = list(_sections(rows()))
    return document


def read_jsonl(text: str, name: str) -> Document:
    """One object per line. Invalid lines are skipped and reported."""
    document = Document("", [])

    def rows() -> Iterator[tuple[int, list[tuple[str, Json]]]]:
        for number, line in enumerate(text.split("\n"), start=1):
            try:
                value = parse_strict(line) if line.strip() else {}
                if not isinstance(value, dict):
                    raise InvalidJson("no object")
                yield number, [*value.items()]
            except InvalidJson as error:
                document.faults.append(f"line {number}: {error}")

    document.sections = list(_sections(rows()))
    return document


def read_json(text: str, name: str) -> Document:
    """A list of objects as rows; any other document as one row."""
    try:
        value = parse_strict(text)
    except InvalidJson as error:
        raise DocumentFault(f"it is not JSON ({error})") from None
    items = value if isinstance(value, list) else [value]
    rows: list[list[tuple[str, Json]]]
    rows = [[*item.items()] if isinstance(item, dict) else [("", item)] for item in items]
    return Document("", list(_sections(enumerate(rows, start=1))))


def _sections(rows: Iterable[tuple[int, list[tuple[str, Json]]]]) -> Iterator[Section]:
    """The title is a column of that name, the text one of that name, else `column: value` lines."""
    for number, row in rows:
        cells = [(key, clean(_shown(value)).strip("\n")) for key, value in row]
        cells = [(key, value) for key, value in cells if value.strip()]
        places = {key.strip().lower(): place for place, (key, _) in reversed([*enumerate(cells)])}
        title = next((places[name] for name in _TITLES if name in places), None)
        body = next((places[name] for name in _TEXTS if name in places), None)
        rest = [cell for place, cell in enumerate(cells) if place not in (title, body)]
        others = [f"{key}: {value}" if key else value for key, value in rest]
        blocks = [*(paragraphs(cells[body][1]) if body is not None else ()), *(["\n".join(others)] if others else [])]
        heading = () if title is None else (" ".join(cells[title][1].split())[:300],)
        meta: JsonObject = {name: cells[places[name]][1][:1000] for name in _FIELDS if name in places}
        if blocks or heading:
            yield Section(tuple(blocks) or heading, heading, {"row": number, **meta})


def _shown(value: Json) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def read_mail(data: bytes, name: str) -> Document:
    """Subject, sender, date and text of one mail; its attachments are files of their own."""
    mail = parse_mail(data)
    head, _, _ = data.replace(b"\r\n", b"\n").partition(b"\n\n")
    # Parsed apart, since letters of a header without an encoding are decoded like those of a file.
    headers = email.message_from_string(decoded_text(head).text, policy=email.policy.default)
    lines, meta = list[str](), dict[str, Json]()
    for field in ("from", "to", "cc", "date"):
        if value := clean(str(headers.get(field, ""))).strip()[:2000]:
            lines.append(f"{field.capitalize()}: {value}")
            meta["author" if field == "from" else field] = value
    try:
        meta |= {"date": parsedate_to_datetime(str(meta["date"])).isoformat()} if "date" in meta else {}
    except (ValueError, TypeError, IndexError):
        meta["date"] = str(meta["date"])[:40]
    document = Document(" ".join(clean(str(headers.get("subject", ""))).split()), [], meta)
    blocks = ["\n".join(lines)] if lines else []
    part = mail.get_body(("plain", "html"))
    payload = None if part is None else part.get_payload(decode=True)
    if part is not None and isinstance(payload, bytes):
        text = _decoded(payload, part.get_content_charset() or "utf-8")
        document.encoding = text.encoding if text.is_guess else ""
        document.faults += undecoded(text)
        is_page = part.get_content_subtype() == "html"
        blocks += [block for section in read_html(text.text).sections for block in section.blocks] if is_page else ()
        blocks += () if is_page else paragraphs(text.text)
    document.sections = [Section(tuple(blocks))]
    return document


def parse_mail(data: bytes) -> EmailMessage:
    """Raises `DocumentFault` for what has no headers of a mail."""
    mail = email.message_from_bytes(data, _class=EmailMessage, policy=email.policy.default)
    if not {"from", "subject", "date", "to", "received", "message-id"} & {key.lower() for key in mail}:
        raise DocumentFault("it has no headers of a mail")
    return mail


def _decoded(payload: bytes, charset: str) -> DecodedText:
    try:
        name = declared_encoding(payload, charset)
        return DecodedText(payload.decode(name), name)
    except (LookupError, UnicodeDecodeError):
        return decoded_text(payload)


def undecoded(text: DecodedText) -> list[str]:
    """The fault of a text that lost bytes; empty for any other."""
    return [f"{text.lost:,} bytes are no {text.encoding or 'UTF-8'} text"] if text.lost else []
