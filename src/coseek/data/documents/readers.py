"""Readers by kind: what kind a file is, by its name or its first bytes, and which function reads it. PDF is read by
pdfium, office files are read in `office`. A row (CSV, JSON lines, JSON) or a mail is a
section of its own."""

import csv
import email
import email.policy
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from email.message import EmailMessage
from email.utils import parsedate_to_datetime
from itertools import pairwise, takewhile

from coseek.core.files import Json, JsonObject
from coseek.core.strict_json import InvalidJson, parse_strict
from coseek.core.text import DecodedText, declared_encoding
from coseek.data.documents.document import Document, DocumentFault, Section, clean, decoded_text, paragraphs
from coseek.data.documents.markup import read_html, read_markdown, read_rst
from coseek.data.documents.office import read_office

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
    head_text = decoded_text(head)
    headers = email.message_from_string(head_text.text, policy=email.policy.default)
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
    document.encoding = head_text.encoding if head_text.is_guess else ""
    blocks = ["\n".join(lines)] if lines else []
    # After the body, texts between attachments, as Apple Mail writes them.
    parts = mail.iter_parts() if mail.get_content_type() == "multipart/mixed" else ()
    unnamed = [part for part in parts if part.get_filename() is None]
    for part in dict.fromkeys(whole.get_body(("plain", "html")) for whole in (mail, *unnamed)):
        payload = None if part is None else part.get_payload(decode=True)
        if part is None or not isinstance(payload, bytes):
            continue
        text = _decoded(payload, part.get_content_charset() or "utf-8")
        document.encoding = document.encoding or (text.encoding if text.is_guess else "")
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


_PDF_DATE = re.compile(r"(?:D:)?(\d{4})(\d{2})?(\d{2})?")
_SENTENCE = tuple(".!?:;…。！？")
_FULL = 0.7
"""Share of the third quartile of the lengths of lines from which a line is full, so that its paragraph goes on."""


def read_pdf(data: bytes, name: str) -> Document:
    """The text of every page. A PDF of pictures has none."""
    import pypdfium2  # type: ignore[import-untyped]

    try:
        pdf = pypdfium2.PdfDocument(data)
        fields = pdf.get_metadata_dict(skip_empty=True)
        count = len(pdf)
    except pypdfium2.PdfiumError as error:
        locked = "password" in str(error).lower()
        raise DocumentFault("it needs a password" if locked else f"it is no whole PDF ({error})") from None
    document = Document(" ".join(clean(fields.get("Title", "")).split()), [])
    if author := clean(fields.get("Author", "")).strip():
        document.meta["author"] = author[:1000]
    if date := _PDF_DATE.match(fields.get("ModDate") or fields.get("CreationDate") or ""):
        document.meta["date"] = "-".join(takewhile(bool, date.groups("")))
    for number in range(1, count + 1):
        try:
            page = pdf[number - 1]
            text = page.get_textpage().get_text_bounded()
            page.close()
        except pypdfium2.PdfiumError as error:
            document.faults.append(f"page {number}: {error}")
            continue
        if blocks := tuple(map(_unwrapped, paragraphs(text))):
            document.sections.append(Section(blocks, (), {"page": number}))
    return document


def _unwrapped(text: str) -> str:
    """Paragraphs of printed lines: a full line that ends no sentence goes on in the next one."""
    lines = [line.strip() for line in text.replace("\x02\n", "").split("\n")]
    usual = sorted(map(len, lines))[len(lines) * 3 // 4]
    text = lines[0]
    for before, line in pairwise(lines):
        goes_on = len(before) >= _FULL * usual and not before.endswith(_SENTENCE)
        text += f"{' ' if goes_on else chr(10)}{line}"
    return text


def read_text(text: str, name: str) -> Document:
    """Paragraphs between blank lines."""
    return Document("", [Section(tuple(paragraphs(text)))])


TEXTS: dict[str, Callable[[str, str], Document]] = {
    "text": read_text, "markdown": read_markdown, "html": read_html, "rst": read_rst, "csv": read_csv,
    "jsonl": read_jsonl, "json": read_json,
}  # fmt: skip
"""Kind → its reader, which takes the text and the name of a file and raises `DocumentFault`."""
BINARIES: dict[str, Callable[[bytes, str], Document]] = {"pdf": read_pdf, "office": read_office, "mail": read_mail}
"""The same for kinds that are no text in one encoding."""
ARCHIVES = ("zip", "tar", "packed", "mbox")
"""Kinds that hold files; a mail does, too."""
_SUFFIXES = {
    "text": "txt text log", "markdown": "md markdown mdown", "html": "html htm xhtml", "rst": "rst rest", "pdf": "pdf",
    "office": "docx pptx xlsx epub", "csv": "csv tsv", "jsonl": "jsonl jsonlines ndjson", "json": "json",
    "mail": "eml", "zip": "zip", "tar": "tar tgz tbz2 txz tar.gz tar.bz2 tar.xz", "packed": "gz bz2 xz",
    "mbox": "mbox",
}  # fmt: skip
_KIND_OF = {suffix: kind for kind, suffixes in _SUFFIXES.items() for suffix in suffixes.split()}
_FOREIGN = re.compile(
    r"\.(png|jpe?g|gif|webp|ico|bmp|tiff?|svg|mp[34]|wav|ogg|avi|mov|webm|ttf|otf|woff2?|exe|dll|so|dylib|o|a|pyc|pyd|"
    r"class|jar|whl|xls|ppt|doc|odt|ods|odp|rtf|msg|pst|7z|rar|zst|npy|npz|pt|bin|safetensors|parquet|sqlite|db)\Z",
    re.IGNORECASE,
)
_HTML = re.compile(rb"\A\s*+(?:<\?xml[^>]{0,200}>\s*+)?<(?:!doctype html|html)\b", re.IGNORECASE)


def kind_of(name: str, head: bytes) -> str | None:
    """The kind of a file; without a known suffix by its first bytes, text at last. `None` where there is no reader."""
    lower = name.lower().rpartition("/")[2]
    for suffix in (".".join(lower.split(".")[-2:]), lower.rpartition(".")[2]):
        if "." in lower and suffix in _KIND_OF:
            return _KIND_OF[suffix]
    if head.startswith(b"%PDF-"):
        return "pdf"
    if _FOREIGN.search(lower) or b"\x00" in head[:8192]:
        return None
    return "html" if _HTML.match(head) else "text"


def read_document(kind: str, data: bytes, name: str) -> Document:
    """Read a file of a kind. Raises `DocumentFault`."""
    if kind in BINARIES:
        return BINARIES[kind](data, name)
    text = decoded_text(data, is_page=kind == "html")
    document = TEXTS[kind](text.text, name)
    document.encoding = text.encoding if text.is_guess else ""
    document.faults += undecoded(text)
    return document
