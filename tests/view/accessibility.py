"""Accessibility: what axe-core holds against a page, open in a browser, for tests."""

import json
from collections.abc import Iterator
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from tests.view.chromium import Chromium

from coseek.core.files import JsonObject

FOUND = find_spec("axe_core_python") is not None
"""Whether the checker is installed: a wheel that holds axe-core's script."""
SERIOUS = ("serious", "critical")
TALL = 3000
"""Pixels: nearly all is in sight, since the contrast of what is not is unknown."""
_RUN = "axe.run().then(({violations, incomplete}) => JSON.stringify({violations, incomplete}))"


def axe_script(path: Path | None = None) -> str:
    """The script of axe-core: that of the installed wheel, or another version's file."""
    found = files("axe_core_python") / "axe.min.js" if path is None else path
    return found.read_text(encoding="utf-8")


def views(browser: Chromium) -> dict[str, str]:
    """What the viewer's page that is open has to show: name → the address's part behind #."""
    chosen = "kept.find((i) => columns.searches[i] > 1) ?? kept[0]"
    episode = str(browser.ask(f"kept.length ? linkTo({{view: 'episode', ...addressOf({chosen})}}) : ''"))
    there = {"list": "#view=list", "runs": "#view=runs", "curves": "#view=curves", "episode": episode}
    there["comparison"] = episode.replace("view=episode", "view=compare")
    known = browser.ask("JSON.stringify([head.stages > 0, kept.length > 0, head.runs.length > 1])")
    curves, episodes, several = json.loads(str(known))
    wanted = {"list": episodes, "runs": episodes, "curves": curves, "episode": episodes, "comparison": several}
    return {name: fragment for name, fragment in there.items() if wanted[name]}


def shape(browser: Chromium, width: int, height: int, dark: bool) -> None:
    """Give the page this size and colour scheme."""
    browser.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.send("Emulation.setEmulatedMedia", features=[scheme])


def findings(browser: Chromium, script: str) -> Iterator[tuple[str, bool]]:
    """Each finding of a serious or critical rule about the page as it is, opened up, and whether it is sure: a contrast
    may be undecided."""
    browser.ask("document.querySelectorAll('details').forEach((one) => { one.open = true; }); 0")
    browser.ask("document.querySelectorAll('[aria-expanded=false]').forEach((one) => one.click()); 0")
    browser.ask("new Promise((done) => setTimeout(() => requestAnimationFrame(() => done(0)), 50))")
    browser.ask(f"{script}; 0")
    found = cast("dict[str, list[JsonObject]]", json.loads(str(browser.ask(_RUN))))
    for kind, sure in (("violations", True), ("incomplete", False)):
        for rule in found[kind]:
            for node in cast("list[JsonObject]", rule["nodes"]):
                if rule["impact"] in SERIOUS:
                    yield f"{rule['id']}: {str(node['html'])[:160]}", sure
