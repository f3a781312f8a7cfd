"""HTML pages: what a browser would make of one, for tests of reports and of the viewer."""

from html.parser import HTMLParser

VOID = {"meta", "path", "use", "rect", "img", "br", "link", "input", "hr", "line", "circle"}


class HtmlPage(HTMLParser):
    """The tags of a page, its attributes, its text, and the contents of its scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.open: list[str] = []
        """Elements that were not closed."""
        self.text = ""
        self.contents: list[str] = []
        """Of each script and style."""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)
        if tag in ("script", "style"):
            self.contents.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.open[-1:] in (["script"], ["style"]):
            self.contents[-1] += data

    def values_of(self, name: str) -> list[str]:
        """The values of an attribute, one for each element that has it."""
        return [value for known, value in self.attributes if known == name]
