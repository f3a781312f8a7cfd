"""Accessibility: runs axe-core on a page that is open in a browser."""

import json
from importlib.resources import files
from importlib.util import find_spec
from typing import cast

from tests.view.chromium import Chromium

from coseek.core.files import JsonObject

FOUND = find_spec("axe_core_python") is not None
"""Whether the wheel with axe-core's script is installed."""
SERIOUS = ("serious", "critical")
TALL = 3000
"""Height of the page in pixels, so that nearly everything is visible: axe-core checks contrast only of visible text."""
_RUN = "axe.run().then(({violations}) => JSON.stringify(violations))"


def views(browser: Chromium) -> dict[str, str]:
    """The views of the viewer's page that is open: name → fragment of the address."""
    chosen = "kept.find((i) => columns.searches[i] > 1) ?? kept[0]"
    episode = str(browser.ask(f"kept.length ? linkTo({{view: 'episode', ...addressOf({chosen})}}) : ''"))
    there = {"list": "#view=list", "runs": "#view=runs", "curves": "#view=curves", "episode": episode}
    there["comparison"] = episode.replace("view=episode", "view=compare")
    known = browser.ask("JSON.stringify([head.stages > 0, kept.length > 0, head.runs.length > 1])")
    curves, episodes, several = json.loads(str(known))
    wanted = {"list": episodes, "runs": episodes, "curves": curves, "episode": episodes, "comparison": several}
    return {name: fragment for name, fragment in there.items() if wanted[name]}


def shape(browser: Chromium, width: int, height: int, dark: bool) -> None:
    """Set the size and the colour scheme of the page."""
    browser.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.send("Emulation.setEmulatedMedia", features=[scheme])


def violations(browser: Chromium) -> list[str]:
    """Expand the page, and list the violations of serious and critical rules."""
    browser.ask("document.querySelectorAll('details').forEach((one) => { one.open = true; }); 0")
    browser.ask("document.querySelectorAll('[aria-expanded=false]').forEach((one) => one.click()); 0")
    browser.ask("new Promise((done) => setTimeout(() => requestAnimationFrame(() => done(0)), 50))")
    browser.ask((files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8") + "; 0")
    rules = cast("list[JsonObject]", json.loads(str(browser.ask(_RUN))))
    nodes = [(rule, cast("list[JsonObject]", rule["nodes"])) for rule in rules if rule["impact"] in SERIOUS]
    return [f"{rule['id']}: {str(node['html'])[:160]}" for rule, broken in nodes for node in broken]
