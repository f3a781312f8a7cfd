"""The site: every page is in its navigation, every public name on its page, and nothing comes from another host."""

import re
from pathlib import Path

import pytest
from bench.site import api_page, navigation, outside, stage, write_twins

import coseek


def test_every_page_is_in_the_navigation_once(tmp_path: Path) -> None:
    stage(tmp_path)
    listed = [
        link
        for part in navigation(tmp_path)
        for links in part.values()
        for link in ([links] if isinstance(links, str) else links)
    ]
    assert sorted(listed) == sorted(str(page.relative_to(tmp_path)) for page in tmp_path.rglob("*.md"))


def test_every_public_name_has_its_docstring_on_the_site() -> None:
    page = api_page()
    missing = [name for name in coseek.__all__ if f"heading: {name}\n" not in page]
    assert missing == ["__version__"]


def test_a_program_finds_every_page_as_markdown_from_llms_txt(tmp_path: Path) -> None:
    pages, site = tmp_path / "pages", tmp_path / "site"
    stage(pages)
    write_twins(pages, site)
    listed = re.findall(r"^- \[(.+)\]\((\S+)\): (.+)$", (site / "llms.txt").read_text("utf-8"), flags=re.MULTILINE)
    assert sorted(path for _, path, _ in listed) == sorted(str(page.relative_to(pages)) for page in pages.rglob("*.md"))
    for title, path, _ in listed:
        assert (site / path).read_text(encoding="utf-8").startswith(f"# {title}\n"), path
    library = (site / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    assert "## rollout\n" in library and "samples: int = 1" in library and ":::" not in library


def test_no_page_links_to_a_file_that_the_site_leaves_out(tmp_path: Path) -> None:
    stage(tmp_path)
    for page in tmp_path.rglob("*.md"):
        prose = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
        for link in re.findall(r"\]\(([^)#\s:]+)(?:#[^)\s]*)?\)", prose):
            assert (page.parent / link).exists(), f"{page.relative_to(tmp_path)} links to {link}"


FETCHES = [
    '<script src="https://cdn.example/x.js"></script>',
    '<link rel="stylesheet" href="//fonts.example/css">',
    '<img alt="" srcset="a.png 1x, http://example.org/b.png 2x">',
    "<style>@import 'https://example.org/a.css';</style>",
    '<p style="background: url(https://example.org/a.png)"></p>',
    '<svg><use xlink:href="https://example.org/a.svg#x"/></svg>',
]


@pytest.mark.parametrize("text", FETCHES)
def test_what_a_page_would_fetch_from_another_host_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(f"<html><body>{text}</body></html>", encoding="utf-8")
    (line,) = outside(tmp_path)
    assert line.startswith("page.html loads ") and "example" in line


def test_links_for_people_and_files_of_the_site_are_no_fetches(tmp_path: Path) -> None:
    text = '<a href="https://example.org">x</a><img src="../a.png"><link href="a.css"><script>"https://x.org"</script>'
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    (tmp_path / "a.css").write_text("a{background:url(data:image/png;base64,AA==)}", encoding="utf-8")
    assert list(outside(tmp_path)) == []
    (tmp_path / "a.css").write_text('@font-face{src:url("https://example.org/a.woff2")}', encoding="utf-8")
    assert list(outside(tmp_path)) == ["a.css loads https://example.org/a.woff2"]
