"""What the page on recipes says was measured is in the log, and what is not in the log it does not claim."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_every_recipe_that_the_page_calls_measured_is_in_the_log() -> None:
    page = (DOCS / "reference" / "recipes.md").read_text(encoding="utf-8")
    (measured,) = re.findall(r"^Measured: (.*?)\s\(\[log\]\(\.\./LOG\.md\)\)\.", page, flags=re.DOTALL | re.MULTILINE)
    names = re.findall(r"`([\w-]+)`", measured)
    pages = [DOCS / "LOG.md", *(DOCS.parent / "bench" / "results").glob("log-*.md")]  # the log, and its older entries
    log = "".join(page.read_text(encoding="utf-8") for page in pages).casefold()
    assert names and [name for name in names if name.removesuffix("-laptop") not in log] == []
