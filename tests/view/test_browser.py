"""The page in a browser: hostile texts do nothing, links and keys work."""

import json
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import pytest
from tests.view.chromium import FOUND, Chromium
from tests.view.samples import HOSTILE, make_labels, make_rollouts, make_run, token_data, trajectory

from coseek.core.files import JsonObject
from coseek.data.trajectory import Search
from coseek.view.page import write_page
from coseek.view.run_source import open_sources

pytestmark = [pytest.mark.slow, pytest.mark.skipif(FOUND is None, reason="chromium is not installed")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as chromium:
        yield chromium


def page_of(folder: Path, *runs: Path, labels: Path | None = None) -> str:
    write_page(folder / "page.html", *open_sources(runs, labels))
    return (folder / "page.html").as_uri()


def text_of(browser: Chromium, selector: str) -> str:
    return str(browser.ask(f"document.querySelector({selector!r}).innerText"))


def choose(browser: Chromium, name: str, value: str) -> None:
    browser.ask(
        f"(() => {{ const one = document.querySelector('select[name={name}]');"
        f" one.value = {value!r}; one.dispatchEvent(new Event('change')); }})()"
    )


def titles(browser: Chromium) -> list[str]:
    shown = browser.ask(
        "JSON.stringify([...document.querySelectorAll('#spacer .line:first-child')].map((x) => x.innerText))"
    )
    return [str(each) for each in json.loads(str(shown))]


def test_200_hostile_texts_are_shown_and_do_nothing(browser: Chromium, tmp_path: Path) -> None:
    several = [trajectory(f"q{at} {text}", text, right=at % 2 > 0) for at, text in enumerate(HOSTILE)]
    runs = [make_run(tmp_path / name, several) for name in ("<img src=x onerror=window.hacked=1>", "b")]
    (runs[0] / "metrics.jsonl").write_text(
        "".join(json.dumps({"step": step, HOSTILE[0]: 0.5, HOSTILE[12]: step}) + "\n" for step in (1, 2)), "utf-8"
    )
    make_rollouts(tmp_path / "training", several, [token_data(episode) for episode in several])
    url = page_of(tmp_path, *runs, tmp_path / "training")
    browser.requests.clear()
    browser.open(url)
    shown = browser.ask(
        """(async () => {
          const texts = [];
          for (const i of [...Array(200).keys(), 400, 460, 599]) {
            const nodes = await episodeView(i);
            document.getElementById("detail").replaceChildren(...nodes);
            document.querySelectorAll("details").forEach((one) => { one.open = true; });
            await new Promise((done) => setTimeout(done));
            texts.push(document.querySelector(".segment.agent .said").textContent);
          }
          return JSON.stringify(texts);
        })()"""
    )
    hidden = {"\u202e", "\u202c", "\u2028", "\u2029", "\u2066", "\u2069", "\u200f", "\u200e", "\x1b", "\x07", "\x00"}
    texts = [*HOSTILE, HOSTILE[0], HOSTILE[60], HOSTILE[199]]
    for text, seen in zip(texts, json.loads(str(shown)), strict=True):
        assert not hidden & set(seen), "every sign that cannot be seen is written out"
        for sign in (*hidden, "\x08", "\x7f", "\x9b"):
            text = text.replace(sign, f"U+{ord(sign):04X}")
        assert seen == f"<search>{text}</search>"
    for view in ("compare", "curves", "runs", "list"):
        browser.go(f"view={view}&z={view}", view)
    assert browser.ask("window.hacked") is None
    assert browser.ask("document.querySelectorAll('script, img, iframe, object, embed, base').length") == 2
    assert not browser.errors
    assert [address for address in browser.requests if address not in ("about:blank", url)] == []


def test_a_link_shows_a_colleague_the_same_episode_and_filters(browser: Chromium, tmp_path: Path) -> None:
    mine = [trajectory("a", "one"), trajectory("b", "two", right=False), trajectory("b", "three", seed=8, right=False)]
    theirs = [replace(episode, answer="Ada") for episode in mine]
    runs = [make_run(tmp_path / "mine", mine), make_run(tmp_path / "theirs", theirs)]
    url = page_of(tmp_path, *runs)
    browser.open(f"{url}#view=list&flip=theirs")
    assert titles(browser) == ["wrong Who two?", "wrong Who three?"]
    assert "2 episodes of 6" in text_of(browser, "#count")
    link = str(browser.ask("document.querySelectorAll('#spacer a')[1].getAttribute('href')"))
    browser.open(url + link)
    assert text_of(browser, "#detail h2") == "Who three?"
    assert "2 episodes of 6" in text_of(browser, "#count")
    browser.go(f"{link}&b=theirs".replace("view=episode", "view=compare"), "compare")
    verdicts = browser.ask(
        "[...document.querySelectorAll('.pair article > p:nth-of-type(1) span')].map((x) => x.innerText).join()"
    )
    assert verdicts == "wrong,right"


def test_keys_lead_through_the_list_and_back(browser: Chromium, tmp_path: Path) -> None:
    url = page_of(tmp_path, make_run(tmp_path / "run", [trajectory(f"q{at}", f"text {at}") for at in range(100)]))
    browser.open(url)
    for key in "jjjk":
        browser.press(key)
    assert browser.ask("document.activeElement.innerText.split('\\n')[0]") == "right Who text 1?"
    browser.press("Enter")
    browser.until("document.documentElement.dataset.shown === 'episode'")
    browser.press("j")
    browser.until("document.querySelector('#detail h2').innerText === 'Who text 2?'")
    browser.press("Escape")
    browser.until("document.documentElement.dataset.shown === 'list'")
    browser.press("/")
    browser.until("document.activeElement.id === 'text'")
    browser.press("7")
    assert "19 episodes of 100" in text_of(browser, "#count")
    assert int(str(browser.ask("document.querySelectorAll('#spacer li').length"))) < 60, "only rows in sight are drawn"


def test_an_episode_shows_ranks_gold_faults_and_tokens(browser: Chromium, tmp_path: Path) -> None:
    episode = trajectory("a", "Ada")
    lost = Search("lost words", fault="timed out", turn=2)
    url = page_of(tmp_path, make_run(tmp_path / "run", [replace(episode, searches=(*episode.searches, lost))]))
    browser.open(f"{url}#view=episode&run=run&q=a&seed=7")
    hits = str(browser.ask("[...document.querySelectorAll('.hits li')].map((x) => x.innerText).join('|')")).split("|")
    assert hits[0].split() == ["title", "0", "Ada", "p0", "·", "3.25", "gold", "holds", "the", "answer"]
    assert "gold" not in hits[1]
    assert "the search failed: timed out" in text_of(browser, "#detail")
    browser.ask("document.querySelector('.segment.agent details').open = true; 0")
    browser.until("document.querySelectorAll('.tokens li').length === 2")
    tokens = browser.ask("[...document.querySelectorAll('.tokens li')].map((x) => x.innerText + x.title).join('|')")
    assert tokens == "Atoken 65: log p -0.250|Btoken 66: log p -2.000"


def test_a_token_strip_tells_every_value_and_is_coloured_by_one(browser: Chromium, tmp_path: Path) -> None:
    episode = trajectory("a", "Ada")
    make_rollouts(tmp_path / "training", [episode], [token_data(episode)])
    browser.open(f"{page_of(tmp_path, tmp_path / 'training')}#view=episode&run=training/rl/rollouts/step-000010&q=a")
    browser.ask("document.querySelectorAll('.segment details').forEach((one) => { one.open = true; }); 0")
    browser.until("document.querySelectorAll('.tokens').length === 4")

    def shown(what: str) -> str:
        return str(browser.ask(f"[...document.querySelectorAll('.tokens li')].map((x) => x.{what}).join('|')"))

    assert shown("innerText") == "U+0001|U+0002|U+0003|A|B|U+0004|U+0005|A|B"
    assert shown("title").split("|")[3:6] == [
        "token 65: log p -0.250, trained, advantage -1.500, trainer − sampler 0.00000, entropy 0.250",
        "token 66: log p -2.000, trained, advantage -1.500, trainer − sampler -0.75000, entropy 1.500",
        "token 4: not trained",
    ]
    choices = {
        "logprob": "none|none|none|p1|p3|none|none|p1|p3",
        "trained": "off|off|off|p1|p1|off|off|p1|p1",
        "advantage": "none|none|none|p4|p4|none|none|p1|none",
        "gap": "none|none|none|p0|p4|none|none|p0|none",
        "entropy": "none|none|none|p1|p3|none|none|p0|p4",
    }
    for choice, classes in choices.items():
        choose(browser, "colour", choice)
        assert shown("className") == classes, choice
    assert "colour=entropy" in str(browser.ask("location.hash"))
    browser.ask("document.querySelectorAll('.strip')[1].focus()")
    browser.press("ArrowRight")
    browser.press("ArrowRight")
    readout = browser.ask("document.querySelectorAll('.strip')[1].nextSibling.innerText")
    assert str(readout).startswith("B · token 66: log p -2.000, trained, advantage -1.500")


def test_curves_of_several_runs_lie_over_each_other(browser: Chromium, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        rows = [{"step": step, "reward": step / 1000, "zeta": 1.0, "note": None} for step in range(1, 2001)]
        (tmp_path / name / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    browser.open(page_of(tmp_path, tmp_path / "a", tmp_path / "b"))
    assert browser.ask("document.body.dataset.view") == "curves"
    assert browser.ask("[...document.querySelectorAll('figcaption')].map((x) => x.innerText).join()") == "reward,zeta"
    label = browser.ask("document.querySelector('figure svg').getAttribute('aria-label')")
    assert label == "reward, steps 1 to 2000: a from 0.001 to 2; b from 0.001 to 2"
    lines = "[...document.querySelectorAll('figure:first-child path[stroke]')]"
    assert browser.ask(f"{lines}.length") == 2
    assert int(str(browser.ask(f"{lines}[0].getAttribute('d').split('L').length"))) <= 600
    ticks = "[...document.querySelectorAll('figure:first-child text[text-anchor=end]')]"
    assert browser.ask(f"{ticks}.map((x) => x.textContent).join()") == "0,0.5,1,1.5,2,step 2,000"
    browser.ask("document.querySelector('.legend input').click()")
    assert browser.ask(f"{lines}.length") == 1
    choose(browser, "lines", "10")
    assert browser.ask(f"{lines}.length") == 2, "the mean is drawn over the logged values"


# --- accessibility, by axe-core

AXE = find_spec("axe_core_python") is not None
"""Whether the wheel with axe-core's script is installed."""
TALL = 3000
"""Height of the page in pixels, so that nearly everything is visible: axe-core checks contrast only of visible text."""
_RUN = "axe.run().then(({violations}) => JSON.stringify(violations))"


def violations(browser: Chromium) -> list[str]:
    """Expand the page, and list the violations of serious and critical rules."""
    browser.ask("document.querySelectorAll('details').forEach((one) => { one.open = true; }); 0")
    browser.ask("document.querySelectorAll('[aria-expanded=false]').forEach((one) => one.click()); 0")
    browser.ask("new Promise((done) => setTimeout(() => requestAnimationFrame(() => done(0)), 50))")
    browser.ask((files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8") + "; 0")
    rules = cast("list[JsonObject]", json.loads(str(browser.ask(_RUN))))
    serious = [rule for rule in rules if rule["impact"] in ("serious", "critical")]
    nodes = [(rule, cast("list[JsonObject]", rule["nodes"])) for rule in serious]
    return [f"{rule['id']}: {str(node['html'])[:160]}" for rule, broken in nodes for node in broken]


@pytest.mark.skipif(not AXE, reason="axe-core-python is not installed")
@pytest.mark.parametrize(("width", "dark"), [(400, True), (1600, False)])
def test_axe_finds_nothing_serious_in_any_view(browser: Chromium, tmp_path: Path, width: int, dark: bool) -> None:
    episode = trajectory("a", "Ada")
    runs = [make_run(tmp_path / name, [episode, trajectory("b", "two", right=False)]) for name in ("mine", "theirs")]
    make_rollouts(tmp_path / "training", [episode], [token_data(episode)])
    (tmp_path / "training" / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5}\n', encoding="utf-8")
    url = page_of(tmp_path, *runs, tmp_path / "training", labels=make_labels(tmp_path / "labels", episode))
    browser.send("Emulation.setDeviceMetricsOverride", width=width, height=TALL, deviceScaleFactor=1, mobile=False)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.send("Emulation.setEmulatedMedia", features=[scheme])
    episodes = ("run=mine&q=a&seed=7", "run=training/rl/rollouts/step-000010&q=a")
    views = ("list", "runs", "curves", f"compare&{episodes[0]}", *(f"episode&{each}" for each in episodes))
    for fragment in (f"#view={view}" for view in views):
        browser.open(url + fragment)
        assert violations(browser) == [], fragment
