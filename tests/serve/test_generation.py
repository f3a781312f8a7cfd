"""Fears about many texts in one sampler: that who is accepted waits for ever, that one way of drawing changes another,
and that memory once used is held."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.models.networks import network, request
from tests.serve.model_live import live_model, tiny_policy

from coseek.models.sampler import Sampler, SamplerSettings
from coseek.models.tokenizer import ByteTokenizer
from coseek.serve import generation, mixed_sampler
from coseek.serve.contract import RefusedRequest
from coseek.serve.generation import CAUTION, GenerationJob, GenerationRequest, Pace, SamplingKind, Speed
from coseek.serve.mixed_sampler import MixedSampler
from coseek.serve.model_service import ModelService

Live = tuple[str, ModelService]
KINDS = (
    SamplingKind(),
    SamplingKind(temperature=0.0),
    SamplingKind(temperature=0.6, stops=("a", "b")),
    SamplingKind(top_p=0.7, stops=("c",)),
    SamplingKind(temperature=1.5, top_k=9),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_policy(tmp_path_factory.mktemp("served") / "policy")


def post(live: Live, /, **body: object) -> httpx.Response:
    return httpx.post(f"{live[0]}/v1/completions", json=body, timeout=30, trust_env=False)


def job_of(prompt: int, max_tokens: int) -> GenerationJob:
    loop = asyncio.new_event_loop()
    loop.close()
    return GenerationJob(GenerationRequest((5,) * prompt, max_tokens, 0, SamplingKind()), loop.create_future(), prompt)


def test_a_prompt_that_takes_long_to_read_counts_as_long_as_it_takes() -> None:
    """The fear: texts were counted alike, so that 64 prompts of 4,000 tokens kept others waiting for minutes."""
    pace = Pace()
    jobs = [job_of(4_000, 100), job_of(10, 100)]
    assert pace.seconds(jobs) == 0  # nothing was measured yet
    pace.add(20_000, 2.0, 500, 1.0)
    pace.add_text(20, 200)
    assert pace.seconds(jobs) == pytest.approx(CAUTION * (4_010 / 10_000 + 40 / 500))
    jobs[0].unread = 0
    assert pace.seconds(jobs) == pytest.approx(CAUTION * (10 / 10_000 + 40 / 500))


def test_prompts_that_are_read_fast_do_not_hide_how_slowly_texts_are_written() -> None:
    pace = Pace()
    pace.add(0, 0.0, 1_000, 1.0)
    before = pace.seconds([job_of(1, 100)])
    pace.add(1_000_000, 1.0, 100, 0.1)
    assert pace.seconds([job_of(1, 100)]) >= before


def test_short_texts_of_others_do_not_hide_how_long_a_long_one_takes() -> None:
    """The fear: 64 texts of 256 tokens were expected to be as short as the 24 that others had asked for."""
    pace = Pace()
    for _ in range(1_000):
        pace.add_text(24, 24)
    assert pace.tokens(256) == 256 and pace.tokens(10) == 10
    for _ in range(1_000):
        pace.add_text(30, 4_000)  # these came to their end
    assert pace.tokens(256) == 30 and pace.tokens(10) == 10


@given(
    st.lists(
        st.tuples(st.integers(min_value=1, max_value=100_000), st.floats(min_value=1e-4, max_value=300)), min_size=1
    )
)
def test_a_speed_lies_between_the_slowest_and_the_fastest_that_was_measured(steps: list[tuple[int, float]]) -> None:
    speed = Speed()
    for tokens, seconds in steps:
        speed.add(tokens, seconds)
    costs = [seconds / tokens for tokens, seconds in steps]
    assert min(costs) * (1 - 1e-9) <= speed.token_s <= max(costs) * (1 + 1e-9)


@pytest.fixture
def hopeful(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that expects everything to be done at once."""
    monkeypatch.setattr(Pace, "seconds", lambda self, jobs: 1e-9 * len(list(jobs)))
    monkeypatch.setattr(generation, "LEAST_WAIT_S", 0.05)


@pytest.mark.slow
def test_who_was_accepted_in_vain_is_told_so_and_not_left_waiting(folder: Path, hopeful: None) -> None:
    with live_model(folder, max_rows=1, most_wait_s=0.05) as live, ThreadPoolExecutor(1) as pool:
        long = pool.submit(post, live, prompt=[40], max_tokens=1_500, temperature=0)
        while not live[1].generation.running:
            time.sleep(0.001)
        late = post(live, prompt=[41], max_tokens=1)
        assert late.status_code == 503 and int(late.headers["retry-after"]) >= 1 and not long.done()
        assert long.result().status_code == 200  # who has begun is not cut
        assert live[1].generation.waiting == 0
        assert post(live, prompt=[41], max_tokens=1).status_code == 200


@pytest.mark.slow
def test_time_before_a_request_was_read_is_time_that_it_has_waited(folder: Path, hopeful: None) -> None:
    one = GenerationRequest((41,), 1, 0, SamplingKind(temperature=0.0))
    refused = threading.Event()
    with live_model(folder, max_rows=1) as live, ThreadPoolExecutor(1) as pool:
        worker = live[1].generation
        long = pool.submit(post, live, prompt=[40], max_tokens=1_500, temperature=0)
        while not worker.running:
            time.sleep(0.001)

        async def ask() -> None:
            with pytest.raises(RefusedRequest):
                await worker.write([one], asyncio.get_running_loop().time() - 31)
            refused.set()

        asyncio.run(ask())
        assert refused.is_set() and not long.done() and long.result().status_code == 200


Written = dict[int, list[tuple[tuple[int, ...], str]]]


def written(sampler: Sampler, keys: list[int]) -> Written:
    """Two turns of each row; row `key` is of the kind `key` in turns."""

    def ask(key: int, begin: bool) -> None:
        asked, kind = request(key, [65 + key, 66], 30), KINDS[key % len(KINDS)]
        if isinstance(sampler, MixedSampler):
            (sampler.start_kind if begin else sampler.extend_kind)(asked, kind)
        else:
            (sampler.start if begin else sampler.extend)(asked)

    said: Written = {key: [] for key in keys}
    for key in keys:
        ask(key, begin=True)
    while any(len(turns) < 2 for turns in said.values()):
        for turn in sampler.step(4):
            said[turn.key].append((turn.ids, str(turn.end)))
            if len(said[turn.key]) < 2:
                ask(turn.key, begin=False)
            else:
                sampler.close(turn.key)
    return said


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lfm2", "llama"])
def test_rows_that_are_drawn_in_many_ways_are_those_of_a_sampler_for_each(name: str) -> None:
    model, tokenizer, keys = network(name), ByteTokenizer(), list(range(15))
    alone: Written = {}
    for place, kind in enumerate(KINDS):
        one = SamplerSettings(temperature=kind.temperature, top_p=kind.top_p, top_k=kind.top_k, patience=0.0)
        alone |= written(Sampler(model, tokenizer, kind.stops, one), keys[place :: len(KINDS)])
    mixed = written(MixedSampler(model, tokenizer, SamplerSettings(max_rows=7, patience=0.0)), keys)
    assert mixed == alone
    assert len({end for turns in mixed.values() for _, end in turns}) > 1


def test_stop_strings_of_rows_that_have_gone_are_not_kept_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixed_sampler, "MOST_STOPS", 3)
    sampler = MixedSampler(network("lfm2"), ByteTokenizer(), SamplerSettings(max_rows=2))
    sampler.start_kind(request(0, [65], 30), SamplingKind(stops=("zzz",)))
    for key in range(1, 9):
        sampler.start_kind(request(key, [65], 1), SamplingKind(stops=("z" * key, "q")))
        sampler.close(key)
    assert len(sampler._known_stops) <= 3 and ("zzz",) in sampler._known_stops


@pytest.mark.slow
def test_texts_share_a_cache_of_so_many_tokens_and_are_what_they_are_alone(folder: Path) -> None:
    """The fear: texts were admitted by their number, so that a long one beside 63 others was as 64 long ones."""
    bodies: list[dict[str, object]] = [
        {"prompt": [40 + place] * (300 if place % 4 == 0 else 5), "max_tokens": 30, "temperature": 0}
        for place in range(16)
    ]
    with live_model(folder) as live:
        alone = [post(live, **body).json()["choices"] for body in bodies]
    with live_model(folder, cache_tokens=1_000) as live, ThreadPoolExecutor(16) as pool:
        service, sizes = live[1].generation, list[int]()
        asked = [pool.submit(post, live, **body) for body in bodies]
        while not all(one.done() for one in asked):
            if (rows := service._rows) is not None:
                sizes += [one.shape[0] * one.shape[2] for one in list(rows.sampler._engine.cache.keys.values())]
            time.sleep(0.001)
        together = [one.result().json()["choices"] for one in asked]
        long = post(live, prompt=[50] * 1_200, max_tokens=4)  # alone it may have more
    assert together == alone and 0 < max(sizes) <= 1_000
    assert long.status_code == 200


@pytest.mark.slow
def test_rows_that_nobody_continues_are_not_held_for_ever(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "KEPT_S", 0.1)
    monkeypatch.setattr(generation, "TRIM_S", 0.0)
    with live_model(folder) as live:
        body = {"prompt": [40] * 500, "max_tokens": 3, "temperature": 0, "return_token_ids": True}
        first = post(live, **body).json()["choices"][0]["token_ids"]
        rows = live[1].generation._rows
        assert rows is not None
        until = time.monotonic() + 5
        while (rows.kept or rows.sampler._engine.cache.keys) and time.monotonic() < until:
            time.sleep(0.02)
        assert not rows.kept and not rows.sampler._engine.cache.keys
        assert post(live, **body).json()["choices"][0]["token_ids"] == first
