"""Site: the documentation as HTML pages that fetch nothing from another host. `make docs` runs it.

    python -m bench.site        build/site, from README.md, docs, bench/results and docstrings

Every page has a Markdown twin of the same name beside it, and `llms.txt` lists the twins for programs.

Pages keep their places, so that links between them are those of the repository. The navigation is the order of
docs/README.md. A link to a page or heading that is not there ends the build, and so does a script, style, font or image
from elsewhere.
"""

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path

import coseek

ROOT = Path(__file__).parent.parent
OUT = ROOT / "build"
REFERENCE = "docs/reference"
API = f"{REFERENCE}/api.md"
"""Written here from docstrings; the other pages are files of the repository."""
COPIED = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs", "bench/results", "examples")
LOADING = {"script", "link", "img", "iframe", "source", "video", "audio", "object", "embed", "image", "use", "track"}
"""Elements whose addresses a browser fetches by itself."""
ADDRESSES = {"src", "href", "srcset", "data", "poster", "xlink:href"}
ELSEWHERE = re.compile(r"(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
FETCHED_BY_STYLE = re.compile(r"""(?:url\(|@import)\s*["']?([^"')\s]+)""", re.IGNORECASE)


def main() -> int:
    pages, site = OUT / "pages", OUT / "site"
    stage(pages)
    config = OUT / "mkdocs.yml"
    settings = {
        "INHERIT": "../docs/mkdocs.yml",
        "docs_dir": pages.name,
        "site_dir": site.name,
        "nav": navigation(pages),
    }
    config.write_text(json.dumps(settings, indent=1), encoding="utf-8")
    # Not --quiet: it hides warnings from --strict, too.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean", "--config-file", str(config)]
    ended = subprocess.run(command, check=False, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    if ended.returncode:
        return ended.returncode
    write_twins(pages, site)
    found = list(outside(site))
    for line in found:
        print(line, file=sys.stderr)
    print(f"{site.relative_to(ROOT) / 'index.html'}: {sum(1 for _ in site.rglob('*.html'))} pages")
    return int(bool(found))


def stage(pages: Path) -> None:
    """Copy the pages and what they link to, and write the page of docstrings."""
    shutil.rmtree(pages, ignore_errors=True)
    for name in COPIED:
        source, target = ROOT / name, pages / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.json", "mkdocs.yml"))
        else:
            shutil.copy(source, target)
    (pages / API).write_text(api_page(), encoding="utf-8")


def navigation(pages: Path) -> list[dict[str, str | list[str]]]:
    """Sections in the order of docs/README.md, whose bold words name them; then the measured tables."""
    index = (pages / "docs" / "README.md").read_text(encoding="utf-8").partition("\n## ")[0]
    _, *parts = re.split(r"^\*\*([^*]+)\*\*", index, flags=re.MULTILINE)
    nav: list[dict[str, str | list[str]]] = [{"coseek": "README.md"}]
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        links = [f"docs/{link}" for link in re.findall(r"\]\(([\w/-]+\.md)", text)]
        nav.append({name: links + [API] * (name == "Reference")})
    nav.append({"Measured": sorted(str(page.relative_to(pages)) for page in pages.glob("bench/results/*.md"))})
    nav.append({"Project": ["docs/README.md", "CHANGELOG.md", "CONTRIBUTING.md"]})
    return nav


def api_page() -> str:
    """The public names with their docstrings, and what docs/reference/library.md names by its whole path."""
    library = (ROOT / REFERENCE / "library.md").read_text(encoding="utf-8")
    paths = {name: f"coseek.{home}.{name}" for name, home in coseek._HOMES.items()}
    paths |= {path.rpartition(".")[2]: path for path in re.findall(r"`(coseek(?:\.\w+)+)", library)}
    lines = ["# Docstrings", "", "The names of [the library](library.md) with their docstrings.", ""]
    for title, is_type in (("Functions", False), ("Types", True)):
        lines += [f"## {title}", ""]
        for name, path in sorted(paths.items()):
            if name[0].isupper() is is_type:
                lines += [f"::: {path}", "    options:", f"      heading: {name}", f"      toc_label: {name}", ""]
    return "\n".join(lines)


def write_twins(pages: Path, site: Path) -> None:
    """Copy every page's Markdown to its place in the site, and list the copies in `llms.txt` (llmstxt.org)."""
    for page in sorted(pages.rglob("*.md")):
        twin = site / page.relative_to(pages)
        twin.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(page, twin)
    (site / API).write_text(api_twin(), encoding="utf-8")
    (site / "llms.txt").write_text(index_for_programs(pages), encoding="utf-8")


def index_for_programs(pages: Path) -> str:
    """The text of `llms.txt`: what coseek is, then every page by section, with its title and first sentence."""
    lines = ["# coseek", "", f"> {opening(pages / 'README.md')}"]
    for part in navigation(pages):
        for section, links in part.items():
            lines += ["", f"## {section}", ""]
            for link in [links] if isinstance(links, str) else links:
                text = (pages / link).read_text(encoding="utf-8")
                lines.append(f"- [{text.splitlines()[0].lstrip('# ')}]({link}): {opening(pages / link)}")
    return "\n".join(lines) + "\n"


def opening(page: Path) -> str:
    """The first sentence of a page's prose, without links."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    prose = next((one for one in text.split("\n\n")[1:] if one.strip() and one.strip()[0] not in "#|!<"), "")
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(prose.split()))
    return re.split(r"(?<=[.])\s", plain)[0]


def api_twin() -> str:
    """The public names as Markdown: signature and docstring."""
    parts = ["# Docstrings", "The names of [the library](library.md) with their docstrings."]
    for name in sorted(coseek._HOMES):
        offered = getattr(coseek, name)
        signature = str(inspect.signature(offered)) if inspect.isfunction(offered) else ""
        parts += [f"## {name}", f"`{name}{signature}`" if signature else "A type.", inspect.getdoc(offered) or ""]
    return "\n\n".join(parts) + "\n"


class Addresses(HTMLParser):
    """Collects what a browser would fetch for a page from another host."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.in_style = False

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.in_style = tag == "style"
        for name, value in attrs:
            if tag in LOADING and name in ADDRESSES:
                self.found += [word for word in (value or "").replace(",", " ").split() if ELSEWHERE.match(word)]
            elif name == "style":
                self.found += fetched_by(value or "")

    def handle_endtag(self, tag: str) -> None:
        self.in_style = False

    def handle_data(self, data: str) -> None:
        if self.in_style:
            self.found += fetched_by(data)


def fetched_by(style: str) -> list[str]:
    return [address for address in FETCHED_BY_STYLE.findall(style) if ELSEWHERE.match(address)]


def outside(site: Path) -> Iterator[str]:
    """`PAGE loads ADDRESS` for everything that a page or style sheet would fetch from another host."""
    for path in sorted(site.rglob("*")):
        if path.suffix in (".html", ".svg"):
            page = Addresses()
            page.feed(path.read_text(encoding="utf-8"))
            found = page.found
        elif path.suffix == ".css":
            found = fetched_by(path.read_text(encoding="utf-8"))
        else:
            continue
        yield from (f"{path.relative_to(site)} loads {address}" for address in found)


if __name__ == "__main__":
    sys.exit(main())
