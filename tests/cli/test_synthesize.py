"""`coseek data synthesize`: what it prints, what it refuses."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from tests.cli.conftest import Type
from tests.models.http_site import Asked, Said, Site, site


def test_a_world_gives_questions_that_other_commands_read(coseek: Type, world: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = coseek("data", "synthesize", world, "count=30", "hop_mix=[1,1]", "--out", out, "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert sum(sum(hops.values()) for hops in told["questions"].values()) == 30
    assert coseek("index", out, "--out", tmp_path / "bm25").code == 0
    assert coseek("measure", out, tmp_path / "bm25", "--split", "train", "--metrics", "recall@5").code == 0
    assert coseek("audit", "corpus", out / "unanswerable", "--split", "train").code == 0


def test_the_data_set_that_is_read_is_never_replaced(coseek: Type, world: Path) -> None:
    done = coseek("data", "synthesize", world, "--out", world)
    assert done.code == 2
    assert "choose" in done.sentence


def test_a_setting_that_does_not_exist_is_refused(coseek: Type, world: Path, tmp_path: Path) -> None:
    done = coseek("data", "synthesize", world, "cuont=30", "--out", tmp_path / "out")
    assert done.code == 2
    assert "count" in done.sentence


_PASSAGE = re.compile(r"^\[\d+\] (.*?) \| (.*)$", re.MULTILINE)


def proposes(asked: Asked) -> Said:
    """A language model that asks for the last word of each passage and finds it again."""
    if asked.method == "GET":
        return Said({"object": "list", "data": [{"id": "stand-in", "object": "model"}]})
    prompt = cast("list[dict[str, str]]", asked.body["messages"])[-1]["content"]
    endings = {title: text.rstrip(".").split()[-1] for title, text in _PASSAGE.findall(prompt)}
    if '{"questions"' in prompt:
        title, *more = endings
        proposal = {"question": f"Which name ends what is told of {title}?", "answer": endings[title]}
        text = json.dumps({"questions": [] if more else [proposal]})
    else:
        question = prompt.rpartition("Question: ")[2]
        text = next((word for title, word in endings.items() if title in question), "unknown")
    return Said({"choices": [{"message": {"content": text}, "finish_reason": "stop"}], "usage": {}})


@pytest.fixture
def generator() -> Iterator[Site]:
    with site(proposes) as there:
        yield there


def test_a_model_behind_a_server_proposes_and_the_same_command_asks_it_nothing_again(
    coseek: Type, world: Path, generator: Site, tmp_path: Path
) -> None:
    command = (
        "data", "synthesize", world, "--out", tmp_path / "out", "--generator", generator.url, "--limit", 40, "--json",
    )  # fmt: skip
    first = coseek(*command)
    assert first.code == 0, first.err
    told, asked = json.loads(first.out), len(generator.asked)
    assert told["calls"]["requests"] <= 80 and asked > told["calls"]["requests"], "proposals, then answers to them"
    assert sum(sum(hops.values()) for hops in told["questions"].values()) >= 10
    again = coseek(*command)
    assert again.out == first.out
    assert all(one.method == "GET" for one in generator.asked[asked:])


def test_few_questions_of_many_wanted_are_said_with_the_way_out(
    coseek: Type, world: Path, generator: Site, tmp_path: Path
) -> None:
    done = coseek("data", "synthesize", world, "--out", tmp_path / "out", "--generator", generator.url, "--limit", 6)
    assert done.code == 0
    assert "warning: only" in done.err and "--limit" in done.err
