"""Readers by kind of file, which is recognised by its name or its first bytes. PDF is read by pdfium, office files by
`office`. Each row (CSV, JSON lines, JSON) and each mail is a section."""

import codecs
import csv
import email
import email.policy
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from email.message import EmailMessage
from email.utils import parsedate_to_datetime
from itertools import pairwise, takewhile, zip_longest
from typing import TypeAlias

from coseek.core.files import Json, JsonObject
from coseek.core.strict_json import InvalidJson, parse_strict
from coseek.core.text import DecodedText, counted, declared_encoding
from coseek.data.documents.document import Document, DocumentFault, Section, clean, decoded_text, paragraphs
from coseek.data.documents.markup import FENCE, read_html, read_markdown, read_rst
from coseek.data.documents.office import read_office

_TITLES = ("title", "name", "subject", "headline")
_TEXTS = ("text", "body", "content", "contents", "abstract", "description", "passage")
_FIELDS = ("url", "date", "author", "id")
_MAX_HEADING = 300
"""Maximum number of characters of a title; a longer one is text."""
_FORM = re.compile(r"\s*+(?:(?=\D{0,3}\d)[\d.,:/ TZ%€$+-]++|\S+ \S+ .*([.?!])\s*)", re.DOTALL)
"""A number or a date, or a sentence with its last sign."""
_Row: TypeAlias = list[tuple[str, Json]]
"""Names and values of the cells of a row."""


def read_csv(text: str, name: str) -> Document:
    """Read rows below a header, if any. The delimiter is the one that makes most rows equally long, or the one in
    Excel's first line `sep=;`. Shorter lines before the header are rows without names."""
    csv.field_size_limit(1 << 30)
    first, _, rest = clean(text).partition("\n")
    document = Document("", [])
    if match := re.fullmatch('"?sep=(.)"?', first):
        delimiter = match[1]
    else:
        rest = f"{first}\n{rest}"
        start = [line for line in rest.split("\n", 50)[:50] if line.strip()]
        common = "\t" if name.lower().endswith(".tsv") else ",;\t|"
        counts = {mark: _commonest_length(csv.reader(start, delimiter=mark))[0] for mark in common}
        delimiter = max(counts, key=lambda mark: counts[mark])
        if delimiter not in first and 2 * counts[delimiter] <= len(start):
            delimiter = "\x1f"  # a single column, whose texts contain commas
    lines = csv.reader(io.StringIO(rest, newline=""), delimiter=delimiter, strict=True)
    try:
        rows = [*lines]
    except csv.Error as error:
        document.faults.append(f"line {lines.line_num}: {error}; its quotes are read as they fit the columns")
        readings = [
            [*csv.reader(io.StringIO(rest, newline=""), delimiter=delimiter, quoting=quoting)]
            for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_NONE)
        ]
        rows = max(readings, key=lambda rows: _commonest_length(rows)[0])
    length = _commonest_length(rows)[1]
    is_head = [len(cells) > 1 and 2 * sum(map(bool, map(str.strip, cells))) >= length for cells in rows]
    head = is_head.index(True) if True in is_head else 0
    body = head + _is_header(rows[head : head + 100])
    document.faults += ["the first row looks like the others; it is read as data without names"] * (body == head)

    def named_rows() -> Iterator[_Row]:
        yield from ([("", cell) for cell in cells] for cells in rows[:head])
        for cells in rows[body:]:
            pairs = enumerate(zip_longest(rows[head], cells, fillvalue=""), start=1)
            yield [(key.strip() or f"column {number}" if body > head else "", cell) for number, (key, cell) in pairs]

    document.sections = [*_sections(enumerate(named_rows(), start=1))]
    return document


def _is_header(rows: Sequence[list[str]]) -> bool:
    """Whether the first row names columns: it does not begin with a number or date above others, and no cell is a
    sentence that ends like most below it (answers to a questionnaire do not end like their questions)."""
    matches = [[_FORM.fullmatch(cell) for cell in cells] for cells in rows]
    forms = [[(match[1] or "number") if match else "" for match in cells] for cells in matches]
    for column, form in enumerate(forms[0] if forms else ()):
        count = sum(other[column : column + 1] == [form] for other in forms[1:])
        if form and (column == 0 or form != "number") and 2 * count > len(forms) - 1:
            return False
    return True


def _commonest_length(rows: Iterable[list[str]]) -> tuple[int, int]:
    """The number of rows of the most common length above 1, and that length."""
    lengths = Counter(len(cells) for cells in rows if len(cells) > 1)
    return max(((count, length) for length, count in lengths.items()), default=(0, 1))


def read_jsonl(text: str, name: str) -> Document:
    """One object per line. Invalid lines are skipped and reported."""
    document = Document("", [])

    def rows() -> Iterator[tuple[int, _Row]]:
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
    """Read a list of objects, or lines of objects, as rows; a Jupyter notebook as Markdown; any other document as one
    row."""
    try:
        value = parse_strict(text)
    except InvalidJson as error:
        lines = read_jsonl(text, name)
        if len(lines.sections) > len(lines.faults):
            return lines
        raise DocumentFault(f"it is not JSON ({error})") from None
    cells = value.get("cells") if isinstance(value, dict) and "nbformat" in value else None
    if isinstance(cells, list):
        return read_markdown("\n\n".join(map(_cell, cells)), name)
    items = value if isinstance(value, list) else [value]
    rows: list[_Row] = [[*item.items()] if isinstance(item, dict) else [("", item)] for item in items]
    return Document("", list(_sections(enumerate(rows, start=1))))


def _cell(cell: Json) -> str:
    """A cell of a Jupyter notebook as Markdown: its text, or its code without outputs."""
    source = cell.get("source") if isinstance(cell, dict) else None
    text = "".join(map(str, source)) if isinstance(source, list | str) else ""
    is_text = isinstance(cell, dict) and cell.get("cell_type") == "markdown"
    return text if is_text else f"{FENCE}\n{text}\n{FENCE}"


def _sections(rows: Iterable[tuple[int, _Row]]) -> Iterator[Section]:
    """Convert rows to sections. Columns with usual names are title and text; others become `column: value` lines."""
    for number, row in rows:
        cells = [(key, clean(_cell_text(value)).strip("\n")) for key, value in row]
        cells = [(key, value) for key, value in cells if value.strip()]
        positions = {key.strip().lower(): position for position, (key, _) in reversed([*enumerate(cells)])}
        title = next((positions[name] for name in _TITLES if name in positions), None)
        body = next((positions[name] for name in _TEXTS if name in positions), None)
        if title is not None and len(cells[title][1]) > _MAX_HEADING:
            title = None
        other_cells = [cell for position, cell in enumerate(cells) if position not in (title, body)]
        lines = [f"{key}: {value}" if key else value for key, value in other_cells]
        blocks = [*(paragraphs(cells[body][1]) if body is not None else ()), *(["\n".join(lines)] if lines else [])]
        heading = () if title is None else (" ".join(cells[title][1].split()),)
        meta: JsonObject = {name: cells[positions[name]][1][:1000] for name in _FIELDS if name in positions}
        if blocks or heading:
            yield Section(tuple(blocks) or heading, heading, {"row": number, **meta})


def _cell_text(value: Json) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def read_mail(data: bytes, name: str) -> Document:
    """Read subject, sender, date and text of a mail. Attachments are separate files."""
    data = _without_envelope(data)
    mail = parse_mail(data)
    # Headers without an encoding are decoded like the text of a file.
    head_text = decoded_text(data.replace(b"\r\n", b"\n").partition(b"\n\n")[0])
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
    for part in mail_parts(mail)[0]:
        text = _part_text(part)
        document.encoding = document.encoding or (text.encoding if text.is_guess else "")
        document.faults += undecoded(text)
        blocks += _part_blocks(part, text)
    document.sections = [Section(tuple(blocks))]
    return document


def parse_mail(data: bytes) -> EmailMessage:
    """Parse a mail. Raises `DocumentFault` if it has no mail headers."""
    mail = email.message_from_bytes(_without_envelope(data), _class=EmailMessage, policy=email.policy.default)
    if not {"from", "subject", "date", "to", "received", "message-id"} & {key.lower() for key in mail}:
        raise DocumentFault("it has no headers of a mail")
    return mail


def _without_envelope(data: bytes) -> bytes:
    """Strip a byte order mark, and Apple Mail's byte count before a mail and property list after it."""
    size, line_end, mail = data.removeprefix(codecs.BOM_UTF8).partition(b"\n")
    return mail[: int(size)] if size.strip().isdigit() else size + line_end + mail


def mail_parts(mail: EmailMessage) -> tuple[list[EmailMessage], list[EmailMessage]]:
    """The texts and the attachments of a mail, in order, at any depth. One format is chosen of alternatives."""
    kind = mail.get_content_type()
    if kind.startswith("multipart/") and mail.is_multipart():
        parts = [mail_parts(part) for part in mail.iter_parts() if isinstance(part, EmailMessage)]
        texts, attached = [texts for texts, _ in parts if texts], [part for _, group in parts for part in group]
        chosen = _best_texts(texts) if kind == "multipart/alternative" else [part for group in texts for part in group]
        return chosen, attached
    if kind in ("text/css", "text/javascript"):
        return [], []
    is_text = kind.startswith(("text/", "multipart/")) and not (mail.get_filename() or mail.is_attachment())
    return ([mail], []) if is_text else ([], [mail])


def _best_texts(alternatives: list[list[EmailMessage]]) -> list[EmailMessage]:
    """The plain text of a mail. If it lacks most words of the HTML page, the page is added, since the plain text of
    some mails only refers to the page."""
    by_kind = {texts[0].get_content_subtype(): texts for texts in alternatives}
    plain, page = by_kind.get("plain", []), by_kind.get("html", [])
    if not (plain and page):
        return plain or page or (alternatives[-1] if alternatives else [])
    words = [
        {word for part in texts for block in _part_blocks(part, _part_text(part)) for word in re.findall(r"\w+", block)}
        for texts in (plain, page)
    ]
    return plain if 2 * len(words[1] - words[0]) <= len(words[1]) else [*plain, *page]


def _part_text(part: EmailMessage) -> DecodedText:
    payload = part.get_payload(decode=True)
    body = payload if isinstance(payload, bytes) else b""
    charset = part.get_content_charset() or ""
    try:
        # Mail programs declare ASCII by default, whatever the text.
        name = declared_encoding(body, charset if charset not in ("ascii", "us-ascii") else "")
        return DecodedText(body.decode(name), name)
    except (LookupError, ValueError):
        return decoded_text(body, is_page=part.get_content_subtype() == "html")


def _part_blocks(part: EmailMessage, text: DecodedText) -> list[str]:
    if part.get_content_subtype() != "html":
        return [*paragraphs(text.text)]
    return [block for section in read_html(text.text).sections for block in section.blocks]


def undecoded(text: DecodedText) -> list[str]:
    """The faults of a text that lost bytes; empty for other texts."""
    notes = [f"{text.lost:,} bytes are no {text.encoding or 'UTF-8'} text"] if text.lost else []
    return [*notes, f"{counted(nuls, 'NUL byte')} left out"] if (nuls := text.text.count("\0")) else notes


_PDF_DATE = re.compile(r"(?:D:)?(\d{4})(\d{2})?(\d{2})?")
_SENTENCE = tuple(".!?:;…。！？")
_KEPT_HYPHEN = re.compile(r"(?<=\d)\x02|\x02(?=\d)|(?<![A-ZÀ-ÖØ-Þ])\x02(?=[A-ZÀ-ÖØ-Þ])")
"""A hyphen at the end of a line, which pdfium writes as U+0002, of a name or a number. Other words are joined."""
_FULL = 0.7
"""Minimum length of a full line, whose paragraph continues, as a share of the third quartile of line lengths."""


def read_pdf(data: bytes, name: str) -> Document:
    """Read the text of every page. Scanned pages have no text."""
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
        if blocks := tuple(map(_unwrap, paragraphs(_KEPT_HYPHEN.sub("-", text)))):
            document.sections.append(Section(blocks, (), {"page": number}))
    return document


def _unwrap(text: str) -> str:
    """Join the printed lines of a paragraph: a full line that does not end a sentence continues in the next line."""
    lines = [line.strip() for line in text.split("\n")]
    usual_length = sorted(map(len, lines))[len(lines) * 3 // 4]
    text = lines[0]
    for previous, line in pairwise(lines):
        continues = len(previous) >= _FULL * usual_length and not previous.endswith(_SENTENCE)
        text += f"{' ' if continues else chr(10)}{line}"
    return text


def read_text(text: str, name: str) -> Document:
    """Read paragraphs between blank lines."""
    return Document("", [Section(tuple(paragraphs(text)))])


TEXTS: dict[str, Callable[[str, str], Document]] = {
    "text": read_text, "markdown": read_markdown, "html": read_html, "rst": read_rst, "csv": read_csv,
    "jsonl": read_jsonl, "json": read_json,
}  # fmt: skip
"""Kind of text → its reader, which takes text and name of a file and raises `DocumentFault`."""
BINARIES: dict[str, Callable[[bytes, str], Document]] = {"pdf": read_pdf, "office": read_office, "mail": read_mail}
"""Kind → its reader, which takes bytes and name of a file and raises `DocumentFault`."""
ARCHIVES = ("zip", "tar", "packed", "mbox")
"""Kinds that contain files. Mails also do."""
_SUFFIXES = {
    "text": "txt text log", "markdown": "md markdown mdown", "html": "html htm xhtml", "rst": "rst rest", "pdf": "pdf",
    "office": "docx pptx xlsx epub", "csv": "csv tsv", "jsonl": "jsonl jsonlines ndjson", "json": "json ipynb",
    "mail": "eml emlx mht mhtml", "zip": "zip", "tar": "tar tgz tbz tbz2 txz tar.gz tar.bz2 tar.xz",
    "packed": "gz bz2 xz", "mbox": "mbox mbx",
}  # fmt: skip
_KIND_OF = {suffix: kind for kind, suffixes in _SUFFIXES.items() for suffix in suffixes.split()}
_FOREIGN = re.compile(
    r"\.(png|jpe?g|gif|webp|ico|bmp|tiff?|svg|mp[34]|wav|ogg|avi|mov|webm|ttf|otf|woff2?|exe|dll|so|dylib|o|a|pyc|pyd|"
    r"class|jar|whl|xls|ppt|doc|odt|ods|odp|rtf|msg|pst|7z|rar|zst|npy|npz|pt|bin|safetensors|parquet|sqlite|db)\Z",
    re.IGNORECASE,
)
MAIL_BEGIN = re.compile(rb"From [^\n]{0,300}\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} +\d")
"""The line before a mail in a mailbox."""
_MAIL = re.compile(
    rb"(?:(?:Return-Path|Delivered-To|Received|Message-ID|From|X-[\w-]+): [^\n]*\n(?:[ \t][^\n]*\n)*){2}", re.IGNORECASE
)
_HTML = re.compile(rb"\A\s*+(?:<\?xml[^>]{0,200}>\s*+)?<(?:!doctype html|html)\b", re.IGNORECASE)


def kind_of(name: str, head: bytes) -> str | None:
    """The kind of a file by its suffix, else by its first bytes, else text. `None` if there is no reader."""
    lower = name.lower().rpartition("/")[2]
    for suffix in (".".join(lower.split(".")[-2:]), lower.rpartition(".")[2]):
        if "." in lower and suffix in _KIND_OF:
            return _KIND_OF[suffix]
    if head.startswith(b"%PDF-"):
        return "pdf"
    if _FOREIGN.search(lower) or b"\x00" in head[:8192]:
        return None
    kinds = {"mbox": MAIL_BEGIN, "mail": _MAIL, "html": _HTML}
    return next((kind for kind, begin in kinds.items() if begin.match(head)), "text")


def read_document(kind: str, data: bytes, name: str) -> Document:
    """Read a file of a kind. Raises `DocumentFault`."""
    if kind in BINARIES:
        return BINARIES[kind](data, name)
    text = decoded_text(data, is_page=kind == "html")
    document = TEXTS[kind](text.text.replace("\0", ""), name)
    document.encoding = text.encoding if text.is_guess else ""
    document.faults += undecoded(text)
    if kind == "text" and name.lower().endswith(".xml"):
        document.faults.append("there is no reader for XML; its tags are kept as text")
    return document
