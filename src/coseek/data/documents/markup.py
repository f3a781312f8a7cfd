"""Readers of text and of marked-up text: plain text, Markdown, HTML, reStructuredText. Navigation and scripts are left
out, and a table has one row a line."""

import datetime
import re
from collections.abc import Collection
from html.parser import HTMLParser
from typing import TYPE_CHECKING, cast

from coseek.core.files import Json, JsonObject
from coseek.core.strict_yaml import InvalidYaml, parse_yaml
from coseek.data.documents.document import Document, DocumentFault, Outline, Section, paragraphs, text_of

if TYPE_CHECKING:
    from docutils.nodes import Node  # type: ignore[import-untyped]
    from lxml.etree import _Element, iterwalk  # type: ignore[import-untyped]

CELL = " | "


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_FRONT = re.compile(r"\A---[ \t]*\n(.{0,20000}?)\n(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
_NEVER = _names("script style nav noscript template svg iframe object select button input textarea dialog head")
_BLOCKS = _names(
    "p div ul ol dl dt dd table thead tbody tfoot caption pre blockquote section article main header footer aside "
    "figure figcaption address details summary fieldset form hr br body html"
)
_LANDMARKS = _names("header footer aside banner contentinfo complementary")
"""Elements and roles of what surrounds the text of a page."""
_MAINS = "(//main | //*[@role='main'])[not(ancestor-or-self::*[@hidden])]"
_MOST_BESIDE = 0.2
"""Share of its own words that may stand beside a `main` part that is the page."""
_LARGEST = 10**15
"""Whole numbers from here on are kept as text."""
_INLINE = {"softbreak": "\n", "hardbreak": "\n", "html_inline": " "}
"""Markdown's inline tokens whose content is no text → what stands for them."""
_HEADING = re.compile(r"h([1-6])\Z")
_RST_BLOCKS = _names(
    "paragraph title rubric subtitle literal_block doctest_block term field_name line caption attribution math_block"
)
_DATES = ("article:published_time", "date", "dc.date", "dcterms.date", "article:modified_time", "last-modified")
_ASKS_FOR_FILE = re.compile(r"\A\.\. (?:raw|include|[\w-]+::[^\n]*\n[ \t]+:(?:file|url):)")
"""A directive that was refused, whose source is no text of the document."""
_DIRECTIVE = re.compile(r"^[ \t]*\.\.[ \t](?:\|[^|\n]+\|[ \t])?([\w:.+-]+)::", re.MULTILINE)
_ROLE = re.compile(r":([a-zA-Z][\w:.+-]{0,60}):`")


def read_text(data: bytes, name: str) -> Document:
    """Paragraphs between blank lines."""
    return Document("", [Section(tuple(paragraphs(text_of(data))))])


def read_markdown(data: bytes, name: str) -> Document:
    """CommonMark with tables; front matter becomes fields. Links keep their text, not their address."""
    from markdown_it import MarkdownIt

    text = text_of(data)
    meta: JsonObject = {}
    if front := _FRONT.match(text):
        meta, text = front_matter(front.group(1)), text[front.end() :]
    outline, heading, row = Outline(), 0, list[str]()
    parser = MarkdownIt("commonmark", {"maxNesting": 500}).enable(["table", "strikethrough"])
    in_row, lists, number = False, 0, ""
    for token in parser.parse(text):
        if token.type == "heading_open":
            heading = int(token.tag[1:])
        elif token.type == "inline":
            said = "".join(_INLINE.get(child.type, child.content) for child in token.children or ())
            if in_row:
                row.append(" ".join(said.split()))
            elif heading:
                outline.heading(heading, said)
                heading = 0
            else:
                outline.block(number + said, "list" if lists else None)
                number = ""
        elif token.type == "tr_open":
            row, in_row = [], True
        elif token.type == "tr_close":
            outline.block(CELL.join(row), "table")
            in_row = False
        elif token.type in ("fence", "code_block"):
            outline.block(token.content)
        elif token.type == "html_block":
            outline.block(without_tags(token.content))
        elif token.type == "list_item_open":
            number = f"{token.info}{token.markup} " if token.info else ""
        elif token.type in ("bullet_list_open", "ordered_list_open"):
            lists += 1
        elif token.type in ("bullet_list_close", "ordered_list_close"):
            lists -= 1
    sections = outline.finish()
    return Document(str(meta.pop("title", "") or outline.first_heading), sections, meta)


def front_matter(text: str) -> JsonObject:
    """The plain values, and lists of them, of a YAML head; nothing where it is no YAML."""
    try:
        tree = parse_yaml(text, foreign=True)
    except InvalidYaml:
        return {}
    found: JsonObject = {}
    for key, value in tree.items() if isinstance(tree, dict) else ():
        values = [_plain(one) for one in (value if isinstance(value, list) else [value])[:100]]
        values = [one for one in values if one is not None]
        if values:
            found[str(key)[:100]] = cast(Json, values if isinstance(value, list) else values[0])
    return found


def _plain(value: object) -> str | int | bool | None:
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, int) and abs(value) < _LARGEST:
        return value
    return str(value)[:1000] if isinstance(value, str | int | float) else None


class _TagRemover(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_data(self, data: str) -> None:
        self.found.append(data)


def without_tags(text: str) -> str:
    """The text between the tags of a short stretch of HTML."""
    remover = _TagRemover()
    remover.feed(text)
    remover.close()
    return "".join(remover.found)


def read_html(data: bytes, name: str) -> Document:
    """The `main` part of a page, or its body where `main` is not the page.

    Without navigation, scripts, forms and hidden parts.
    """
    from lxml import etree, html  # type: ignore[import-untyped]

    text = text_of(data, is_page=True)
    parser = html.HTMLParser(encoding="utf-8", remove_comments=True, remove_pis=True, huge_tree=True)
    try:
        root = html.document_fromstring(text.replace("\x00", "").encode("utf-8", "replace"), parser=parser)
    except etree.ParserError:
        raise DocumentFault("there is no text in it") from None
    if any("depth" in entry.message.lower() for entry in parser.error_log.filter_from_errors()):
        raise DocumentFault("its tags are nested too deeply")
    title = " ".join((root.findtext(".//title") or "").split())
    outline = _HtmlOutline().read(etree.iterwalk(_page_part(root), ("start", "end")))
    sections = outline.finish()
    meta: JsonObject = {}
    for link in root.xpath("//link[@rel='canonical']/@href | //meta[@property='og:url']/@content"):
        meta.setdefault("url", str(link)[:2000])
    named = {str(tag.get("property") or tag.get("name")).lower(): tag.get("content") for tag in root.iter("meta")}
    if date := next((named[key] for key in _DATES if named.get(key)), None):
        meta["date"] = str(date)[:40]
    return Document(title or outline.first_heading, sections, meta)


def _page_part(root: "_Element") -> "_Element":
    """The `main` part of a page, if it is the only one and few words stand beside it; else the body.

    Headers, footers and asides do not count. Some pages mark a small part as `main`, and some have several.
    """
    body = next(iter(root.xpath("//body")), root)
    mains = [(main, count) for main in root.xpath(_MAINS) if (count := _words(main, ()))]
    if len(mains) != 1:
        return body
    ((main, count),) = mains
    beside = _words(body, _LANDMARKS) - _words(main, _LANDMARKS)
    return main if beside <= _MOST_BESIDE * count else body


def _words(part: "_Element", without: Collection[str]) -> int:
    """Number of words that a reader sees, without elements of these names or roles."""
    from lxml import etree

    count, walk = 0, etree.iterwalk(part, ("start", "end"))
    for event, tag in walk:
        if event == "end":
            count += len((tag.tail or "").split()) if tag is not part else 0
        elif _is_gone(tag) or tag.tag in without or tag.get("role") in without:
            walk.skip_subtree()
        else:
            count += len((tag.text or "").split())
    return count


def _is_gone(tag: "_Element") -> bool:
    """Whether a reader of the page sees nothing of an element, or navigation alone."""
    return tag.tag in _NEVER or tag.get("hidden") is not None or tag.get("role") == "navigation"


class _HtmlOutline(Outline):
    """An outline that is filled from the events of a tree, without recursion."""

    def read(self, walk: "iterwalk") -> "_HtmlOutline":
        text: list[str] = []
        rows, pre, table = 0, 0, 0

        def flush(joined: object = None) -> None:
            said = "".join(text)
            self.block(said if pre else " ".join(said.split()), joined)
            text.clear()

        for event, tag in walk:
            name, start = tag.tag, event == "start"
            if _is_gone(tag) or (name == "a" and "headerlink" in (tag.get("class") or "")):
                if start:
                    walk.skip_subtree()
                else:
                    text.append(tag.tail or "")
                continue
            level = _HEADING.match(name)
            if name == "tr":
                rows += 1 if start else -1
                table += 1 if start and rows == 1 and tag.getprevious() is None else 0
                if rows == (1 if start else 0):
                    flush(None if start else f"table {table}")
            elif rows:
                cell = start and name in ("td", "th") and "".join(text).strip()
                text.append(CELL if cell else " " if name in _BLOCKS or name in ("td", "th", "li") or level else "")
            elif level:
                if start:
                    flush()
                else:
                    self.heading(int(level.group(1)), "".join(text))
                    text.clear()
            elif name in _BLOCKS or name == "li":
                flush("list" if name == "li" and not start else None)
            pre += (1 if start else -1) if name == "pre" and not rows else 0
            text.append((tag.text if start else tag.tail) or "")
        flush()
        return self


def read_rst(data: bytes, name: str) -> Document:
    """reStructuredText by docutils, which includes no files here. Directives and roles that docutils does not know
    (Sphinx's) keep their content."""
    from docutils import nodes  # type: ignore[import-untyped]
    from docutils.core import publish_doctree  # type: ignore[import-untyped]

    text = text_of(data)
    _keep_unknown(text)
    settings = {
        "file_insertion_enabled": False, "raw_enabled": False, "report_level": 5, "halt_level": 6,
        "_disable_config": True, "line_length_limit": 10_000_000, "syntax_highlight": "none",
    }  # fmt: skip
    tree = publish_doctree(text, settings_overrides=settings)
    outline, meta = Outline(), cast(JsonObject, {})
    _walk_rst(tree, outline, 0)
    info = next(iter(tree.findall(nodes.docinfo)), None)
    for one in info.children if info is not None else ():
        if one.tagname in ("date", "author", "version", "organization"):
            meta[one.tagname] = one.astext()[:1000]
    sections = outline.finish()
    return Document(str(tree.get("title", "")) or outline.first_heading, sections, meta)


def _walk_rst(node: "Node", outline: Outline, depth: int) -> None:
    for child in node.children:
        name = child.tagname
        if name == "title" and child.parent.tagname in ("section", "document"):
            outline.heading(max(depth, 1), child.astext())
        elif name == "row":
            cells = (" ".join(cell.astext().split()) for cell in child.children)
            outline.block(CELL.join(cells), id(child.parent.parent))
        elif name in _RST_BLOCKS:
            parent = child.parent
            rejected = parent.tagname == "system_message"
            if not rejected or (name == "literal_block" and not _ASKS_FOR_FILE.match(child.astext())):
                joined = {"list_item": parent.parent, "line_block": parent}.get(parent.tagname)
                first = joined is not None and parent.tagname == "list_item" and parent.children[0] is child
                number = _number_of(parent) if first else ""
                outline.block(number + child.astext(), None if joined is None else id(joined))
        elif name not in ("comment", "substitution_definition", "target", "raw", "image", "pending", "#text"):
            _walk_rst(child, outline, depth + (name == "section"))


def _number_of(item: "Node") -> str:
    """What stood before an item of an enumerated list, which docutils keeps as the list's first number and style."""
    listed = item.parent
    if listed.tagname != "enumerated_list":
        return ""
    number = int(listed.get("start", 1)) + listed.index(item)
    style = str(listed.get("enumtype", "arabic"))
    said = chr(ord("a") + (number - 1) % 26) if style.endswith("alpha") else str(number)
    said = _roman(number) if style.endswith("roman") else said
    said = said.upper() if style.startswith("upper") else said
    return f"{listed.get('prefix', '')}{said}{listed.get('suffix', '')} "


def _roman(number: int) -> str:
    said = ""
    for worth, letters in ((50, "l"), (40, "xl"), (10, "x"), (9, "ix"), (5, "v"), (4, "iv"), (1, "i")):
        said += letters * (number // worth)
        number %= worth
    return said


def _keep_unknown(text: str) -> None:
    """Register the directives and roles of a text that docutils does not know. This process reads documents only."""
    from docutils import nodes
    from docutils.parsers.rst import Directive, directives, roles  # type: ignore[import-untyped]
    from docutils.parsers.rst.languages import en  # type: ignore[import-untyped]

    class UnknownDirective(Directive):  # type: ignore[misc]
        """Its arguments as a paragraph, then its content."""

        has_content = True
        optional_arguments = 1
        final_argument_whitespace = True

        def run(self) -> "list[nodes.Node]":
            made = nodes.container()
            for argument in self.arguments:
                made += nodes.paragraph("", "", *self.state.inline_text(argument, self.lineno)[0])
            self.state.nested_parse(self.content, self.content_offset, made, match_titles=True)
            return [made]

    for name in {found.lower() for found in _DIRECTIVE.findall(text)} - {*en.directives}:
        directives.register_directive(name, UnknownDirective)
    for name in {found.lower() for found in _ROLE.findall(text)} - {*en.roles}:
        roles.register_generic_role(name, nodes.inline)
