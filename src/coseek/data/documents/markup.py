"""Readers of HTML, and of Markdown (by markdown-it) and reStructuredText, which are converted to HTML.

The HTML reader builds on the standard library's parser, since trafilatura, made for news pages, drops parts of
documentation (docs/explanation/own-mechanisms.md).
"""

import datetime
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from textwrap import dedent

from coseek.core.files import Json, JsonObject
from coseek.core.strict_yaml import InvalidYaml, parse_yaml
from coseek.data.documents.document import CELL, Document, Outline

FENCE = "~" * 12


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_FRONT = re.compile(r"\A---[ \t]*\r?\n(?![ \t\r]*\n)(.{0,20000}?)\n(?:---|\.\.\.)[ \t\r]*(?:\n|\Z)", re.DOTALL)
"""A blank line after the first `---` makes it a rule, as in Pandoc."""
_FRONT_FIELD = re.compile(r"([\w.-]+)[ \t]*:(?![^\s])(.*)", re.DOTALL)
_NUMBER = re.compile(r"\s*\d+\. \s*")
_LARGEST = 10**15
"""Whole numbers from this bound on are kept as text."""
_VOID = _names("area base br col embed hr img input link meta source track wbr")
_HIDDEN = _names("script style nav noscript template svg iframe object select button textarea dialog rt rp")
"""Elements that hold no text of the page. `rt` and `rp` are pronunciations inside East Asian words."""
_BLOCKS = _names(
    "p div ul ol li dl dt dd table thead tbody tfoot caption pre blockquote section article main header footer aside "
    "figure figcaption address details summary fieldset legend form body html tr h1 h2 h3 h4 h5 h6 hr br center menu "
    "dir hgroup search"
)
_TAG = re.compile(r"<(/?)([a-zA-Z][^\s/>\0]*)([^>\0]*)")
_KNOWN = _VOID | _HIDDEN | _BLOCKS | _names(
    "a abbr audio b bdi bdo big canvas cite code data del dfn em font head i ins kbd label map mark math picture q "
    "ruby s samp slot small span strike strong sub sup td th time title tt u var video"
)  # fmt: skip
"""HTML's elements."""
_HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
_LABELS = (*_HEADINGS, "summary", "dt")
"""Elements whose text may be a button, which unfolds the content below."""
_LANDMARKS = _names("header footer aside banner contentinfo complementary")
"""Elements and roles around the text of a page."""
_CLOSES: Mapping[str, tuple[str, ...]] = {
    "li": ("li", "p"), "dt": ("dt", "dd", "p"), "dd": ("dt", "dd", "p"), "tr": ("tr", "td", "th", "p"),
    "td": ("td", "th", "p"), "th": ("td", "th", "p"), "body": ("head",), "main": ("nav", "p"),
}  # fmt: skip
"""Element → the open elements that it ends if their end tags are omitted. Other blocks end a paragraph."""
_MAX_BESIDE = 0.2
"""Maximum share of words outside a `main` part, relative to its own words, for which `main` is the page."""
_DATES = ("article:published_time", "date", "dc.date", "dcterms.date", "article:modified_time", "last-modified")
_RST_SIGN = r"[=\-`:.'\"~^*+#<>]"
_RST_TITLE = re.compile(
    rf"^(?:({_RST_SIGN})\1{{2,}}[ \t]*\n)?[ \t]*(\S[^\n]*)\n(({_RST_SIGN})\4{{2,}})[ \t]*$", re.MULTILINE
)
_RST_GONE = re.compile(
    r":[a-zA-Z][\w:.+-]{0,60}:(?=`)|``?|(?<=`)_{1,2}\b"  # the names of roles
    r"|^[ \t]*(?:[=-]{2,}[ \t]*)+$|^[ \t]*\+[-=+]+$"  # rulers of tables
    r"|^[ \t]*\.\.(?:[ \t]+(?![\[|])(?![\w:.+-]+::).*)?$",  # comments and targets
    re.MULTILINE,
)
_RST_DIRECTIVE = re.compile(
    r"^[ \t]*\.\.[ \t]+(?:\|[^|\n]+\|[ \t]+)?[\w:.+-]+::[ \t]*(.*)((?:\n[ \t]+:[\w-]+:.*)*)", re.MULTILINE
)
_RST_LITERAL = re.compile(
    r"""^(?P<indent>[ \t]*+)
    (?:\.\.[ \t]+(?:code-block|sourcecode|code|parsed-literal)::.*(?:\n[ \t]+:[\w-]+:.*)*
    |(?!\.\.[ \t])(?P<before>.*)::[ \t]*)\n(?:[ \t]*+\n)++
    (?P<block>(?P=indent)[ \t]++\S.*(?:\n(?:[ \t]*+\n)*+(?P=indent)[ \t]++\S.*)*+)
    |``(?!\s)(?P<inline>(?:[^\n]|\n(?![ \t]*\n)){1,300}?)``(?!`)""",
    re.MULTILINE | re.VERBOSE,
)
"""A literal block below its directive or a paragraph that ends in `::`, or an inline literal."""
_RST_PLAIN = re.compile(r"(?<=\w)\*+(?=\w)|^[ \t]*+(?:#{1,6}|>+)(?=[ \t]+\S)", re.MULTILINE)
"""Signs that Markdown would read as markup."""
_RST_FIELD = re.compile(r"^:(date|author|version|organization):[ \t]*(.+)\n", re.MULTILINE | re.IGNORECASE)


@dataclass
class _Element:
    tag: str
    is_gone: bool
    is_main: bool
    is_landmark: bool
    number: int = 0
    """Number of the next item of an ordered list."""


class _Page(HTMLParser):
    """Fills the outlines of a page and of its `main` part with the visible text, without navigation."""

    def __init__(self) -> None:
        super().__init__()
        self.title, self.url, self.metas = "", "", dict[str, str]()
        self.body, self.main = Outline(), Outline()
        self.mains: list[int] = []
        """Words of each `main` part."""
        self.words_outside = 0
        self._open_elements: list[_Element] = [_Element("", False, False, False)]
        self._text: list[str] = []
        self._rows = self._pres = self._headings = self._tables = self._row = self._column = self._next_column = 0
        self._taken_until: dict[int, int] = {}
        """Column of the outermost table → the first row below its last cell."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "meta":
            self.metas.setdefault((values.get("property") or values.get("name", "")).lower(), values.get("content", ""))
        elif tag == "link" and values.get("rel") == "canonical":
            self.url = values.get("href", "")
        for name in _CLOSES.get(tag, ("p",) if tag in _BLOCKS and tag != "br" else ()):
            self._close(name, bounds=("table", "ul", "ol", "dl") if name != "p" else ("td", "th", "li", "dd", "table"))
        if tag in ("td", "th") and not self._rows and any(element.tag == "table" for element in self._open_elements):
            self.handle_starttag("tr", [])
        self._break(tag, True)
        if tag in _VOID:
            return
        top, role = self._open_elements[-1], values.get("role", "")
        is_shown = tag == "button" and any(element.tag in _LABELS for element in self._open_elements)
        is_shown |= tag == "template" and "shadowrootmode" in values
        is_gone = top.is_gone or (tag in _HIDDEN and not is_shown) or role == "navigation"
        is_gone |= values.get("hidden", "until-found") != "until-found"
        is_gone |= tag == "a" and "headerlink" in values.get("class", "")
        starts_main = not is_gone and not top.is_main and (tag == "main" or role == "main")
        if starts_main:
            self.mains.append(0)
        is_landmark = top.is_landmark or tag in _LANDMARKS or role in _LANDMARKS
        start = values.get("start", "")
        self._open_elements.append(
            _Element(tag, is_gone, top.is_main or starts_main, is_landmark, int(start) if start.isdecimal() else 1)
        )
        if not is_gone:
            self._count(tag, 1)
            if tag == "sup" and "".join(self._text[-1:])[-1:].isdigit():
                self._text.append("^")
            if not self._rows and tag == "table":
                self._tables, self._taken_until = self._tables + 1, {}
            elif self._rows == 1 and tag == "tr":
                self._row, self._column, self._next_column = self._row + 1, 0, 0
            elif self._rows == 1 and tag in ("td", "th"):
                self._place_cell(_span(values.get("colspan", "")), _span(values.get("rowspan", "")))
            if tag == "li" and top.tag == "ol" and not self._rows:
                self._text.append(f"{top.number}. ")
                top.number += 1

    def handle_endtag(self, tag: str) -> None:
        if tag in _BLOCKS and all(element.tag != tag for element in self._open_elements):
            self._break(tag, True)
        self._close(tag)

    def handle_data(self, data: str) -> None:
        top = self._open_elements[-1]
        if top.tag == "title" and not self.title:
            self.title = " ".join(data.split())
        elif not top.is_gone and top.tag not in ("title", "head"):
            self._text.append(data)

    def close(self) -> None:
        super().close()
        while len(self._open_elements) > 1:
            self._close(self._open_elements[-1].tag)
        self._flush()

    def _close(self, tag: str, bounds: tuple[str, ...] = ()) -> None:
        """End the innermost open element of this tag and all elements inside it. The search stops at `bounds`."""
        for index in range(len(self._open_elements) - 1, 0, -1):
            if self._open_elements[index].tag == tag:
                while len(self._open_elements) > index:
                    self._break(self._open_elements[-1].tag, False)
                    element = self._open_elements.pop()
                    if not element.is_gone:
                        self._count(element.tag, -1)
                return
            if self._open_elements[index].tag in bounds:
                return

    def _count(self, tag: str, change: int) -> None:
        self._pres += change * (tag == "pre")
        self._rows += change * (tag == "tr")
        self._headings += change * (tag in _HEADINGS)

    def _break(self, tag: str, is_start: bool) -> None:
        """End the current text if an element begins or ends a block, or ends a row of the outermost table."""
        if self._open_elements[-1].is_gone:
            return
        ends_row = tag == "tr" and self._rows == 1 and not is_start
        ends_heading = tag in _HEADINGS and not self._rows and not is_start
        if (self._rows or self._headings) and not (ends_row or ends_heading):
            self._text.append(" " if tag in _BLOCKS or tag in ("td", "th") else "")
        elif tag in _BLOCKS:
            self._flush()
        elif "-" in tag:  # a custom element, which may be a block
            self._text.append(" ")

    def _place_cell(self, columns: int, rows: int) -> None:
        """Begin a cell of the outermost table in its column, so that empty and merged cells do not shift others."""
        column = self._next_column
        while self._taken_until.get(column, 0) > self._row:
            column += 1
        self._text.append(CELL * (column - self._column))
        self._column, self._next_column = column, column + columns
        self._taken_until |= dict.fromkeys(range(column, column + columns), self._row + rows)

    def _flush(self) -> None:
        text, element = "".join(self._text), self._open_elements[-1]
        if self._rows:
            filled_cells = [cell for cell in text.split(CELL) if cell.strip()]
            text = text.rstrip(" |") if len(filled_cells) > 1 else "".join(filled_cells)
        elif _NUMBER.fullmatch(text):  # the number of an item whose text is a paragraph
            return
        self._text.clear()
        words = len(text.split())
        if not words:
            return
        if element.is_main:
            self.mains[-1] += words
        elif not element.is_landmark:
            self.words_outside += words
        for outline in (self.body, self.main) if element.is_main else (self.body,):
            if element.tag in _HEADINGS:
                outline.heading(int(element.tag[1]), text)
            else:
                group = f"table {self._tables}" if self._rows else "list" if element.tag in ("li", "dd", "dt") else ""
                outline.block(text if self._pres else " ".join(text.split()), group)


def _span(value: str) -> int:
    """Rows or columns of a cell, at most 1000, since pages may state any number."""
    return min(int(value), 1000) if value.isdecimal() and int(value[:9]) else 1


def read_html(text: str, name: str = "") -> Document:
    """Read the `main` part of a page, or its body if `main` is only a small part or occurs several times."""
    page = _Page()
    page.feed(text)
    page.close()
    mains = [words for words in page.mains if words]
    outline = page.main if len(mains) == 1 and page.words_outside <= _MAX_BESIDE * mains[0] else page.body
    meta: JsonObject = {}
    if url := page.url or page.metas.get("og:url"):
        meta["url"] = url[:2000]
    if date := next((page.metas[key] for key in _DATES if page.metas.get(key)), None):
        meta["date"] = date[:40]
    sections = outline.finish()
    first_headings = sections[0].headings if sections else ()
    return Document(page.title or next(iter(first_headings), ""), sections, meta)


def read_markdown(text: str, name: str = "") -> Document:
    """Read CommonMark with tables; front matter becomes fields. Links keep their text, not their address. Tags that a
    text only mentions are kept as text."""
    from markdown_it import MarkdownIt

    meta, faults = dict[str, Json](), list[str]()
    if (front := _FRONT.match(text)) and (fields := _front_matter(front.group(1), faults)) is not None:
        meta, text = fields, text[front.end() :]
    parser = MarkdownIt("commonmark", {"maxNesting": 500}).enable(["table", "strikethrough"])
    tokens = parser.parse(text)
    for token in tokens:
        raw_parts = [part for part in token.children or [token] if part.type in ("html_inline", "html_block")]
        html = _escape_mentions("\0".join(part.content for part in raw_parts), is_prose=bool(token.children))
        for part, content in zip(raw_parts, html.split("\0"), strict=bool(raw_parts)):
            part.content = content
    document = read_html(parser.renderer.render(tokens, parser.options, {}))
    return Document(str(meta.pop("title", "") or document.title), document.sections, meta, faults)


def _escape_mentions(html: str, is_prose: bool) -> str:
    """Raw HTML in which tags that are only mentioned are escaped: unknown elements, those that would hide all following
    text since their end tag is missing, and in prose those without an end tag and attributes."""
    ends, mentioned = defaultdict[str, list[int]](list), set[int]()
    for tag in reversed([*_TAG.finditer(html)]):
        name, is_known = tag[2].lower(), tag[2].lower() in _KNOWN
        if name in _VOID or (is_known and tag[3].endswith("/")):
            continue
        if is_known and tag[1]:
            ends[name].append(tag.start())
        elif ends[name]:
            ends[name].pop()
        elif not is_known or name in (*_HIDDEN, "head", "title") or (is_prose and "=" not in tag[3]):
            mentioned.add(tag.start())
    mentioned.update(*ends.values() if is_prose else ())
    return "".join("&lt;" if index in mentioned else sign for index, sign in enumerate(html)) if mentioned else html


def _front_matter(text: str, faults: list[str]) -> JsonObject | None:
    """The fields of a YAML head, nested values as their source; `None` for other text. A head that is not valid YAML,
    such as one with a colon in a title, is read field by field and reported as a fault."""
    parts = [part for part in re.split(r"\n(?=[^\s#-])", text) if not part.startswith("#")]
    sources = {field[1]: " ".join(field[2].split()) for field in map(_FRONT_FIELD.fullmatch, parts) if field}
    try:
        tree = parse_yaml(text, foreign=True)
    except InvalidYaml as error:
        if len(sources) < len(parts):
            return None
        faults.append(f"front matter: {error}; it is read field by field")
        if len(parts) > 1:
            return {key: value for part in parts for key, value in (_front_matter(part, []) or {}).items()}
        tree = {key: source.strip("\"'")[:1000] for key, source in sources.items()}
    if not isinstance(tree, dict):
        return None
    meta: JsonObject = {}
    for key, value in tree.items():
        values = value if isinstance(value, list) else [value]
        if any(isinstance(item, dict | list) for item in values):
            meta[str(key)[:100]] = sources.get(str(key), "")[:1000]
        elif scalars := [item for item in map(_scalar_of, values[:100]) if item is not None]:
            meta[str(key)[:100]] = [*scalars] if isinstance(value, list) else scalars[0]
    return meta


def _scalar_of(value: object) -> str | int | bool | None:
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, int) and abs(value) < _LARGEST:
        return value
    return str(value)[:1000] if isinstance(value, str | int | float) else None


def read_rst(text: str, name: str = "") -> Document:
    """Read reStructuredText as Markdown; underlines mark titles. Directives, roles and tables keep their text, and
    literals every sign; files are not included."""
    styles, literals = list[str](), list[str]()

    def set_aside(match: re.Match[str]) -> str:
        before, block, mark = match["before"] or "", match["block"], f"\0{len(literals)}\0"
        literals.append(f"`` {match['inline']} ``" if block is None else f"{FENCE}\n{dedent(block)}\n{FENCE}")
        return mark if block is None else f"{match['indent']}{before}{':' * bool(before[-1:].strip())}\n\n{mark}\n"

    def titled(match: re.Match[str]) -> str:
        overline, title, line, sign = match.groups()
        if len(line) < len(title.strip()):
            return match[0]
        style = f"{sign}{overline or ''}"
        styles.extend([style] if style not in styles else [])
        return f"\n{'#' * min(6, styles.index(style) + 1)} {title}\n"

    meta: JsonObject = {key.lower(): value.strip()[:1000] for key, value in _RST_FIELD.findall(text)}
    text = _RST_LITERAL.sub(set_aside, _RST_FIELD.sub("", text))
    text = _RST_PLAIN.sub(lambda match: re.sub(r"[*#>]", r"\\\g<0>", match[0]), text)
    text = _RST_GONE.sub("", _RST_DIRECTIVE.sub(r"\n\1\n", _RST_TITLE.sub(titled, text))).replace("<", "&lt;")
    lines = (re.sub(r"^[ \t]+(?:\.\. )?|^\.\. ", "", line) for line in text.split("\n"))
    text = "\n".join(line.replace("_", r"\_") if line.strip("_ ") else line for line in lines)
    document = read_markdown(re.sub("\0(\\d+)\0", lambda match: literals[int(match[1])], text))
    return Document(document.title, document.sections, meta)
