"""Fears about the model behind a service: streamed text that is not the whole, and rows that a failure cut short."""

import asyncio
import random

import pytest
from tests.models.tiny_policy import TAGS, TEXTS

from coseek.core.errors import ModelError
from coseek.data.question import Question
from coseek.models.model import EpisodeState, Request, Tokenizer, Turn, TurnEnd
from coseek.models.tokenizer import ByteTokenizer, HfTokenizer, train_tokenizer
from coseek.serve.model_engine import ModelEngine, TextStream
from coseek.serve.service import WorkThread

WHOLE = "Ada 月が海を動かす 🙂 naïve <answer>é</answer>\n" * 4


def looking_back() -> HfTokenizer:
    """A tokenizer whose decoder drops the blank before the first word, like SentencePiece's."""
    from tokenizers import Tokenizer as RustTokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<end>": 0, "<unk>": 1, **{f"▁{word}": index for index, word in enumerate(WHOLE.split(), start=2)}}
    rust = RustTokenizer(models.WordLevel(words, unk_token="<unk>"))
    rust.pre_tokenizer = pre_tokenizers.Metaspace()
    rust.decoder = decoders.Metaspace()
    return HfTokenizer(PreTrainedTokenizerFast(tokenizer_object=rust, eos_token="<end>", unk_token="<unk>"))


@pytest.fixture(scope="module", params=["bytes", "byte-level", "looking-back"])
def tokenizer(request: pytest.FixtureRequest) -> HfTokenizer | ByteTokenizer:
    if request.param == "bytes":
        return ByteTokenizer(TAGS)
    return looking_back() if request.param == "looking-back" else HfTokenizer(train_tokenizer(TEXTS, TAGS, 300))


def pieces(tokenizer: HfTokenizer | ByteTokenizer, ids: list[int], rng: random.Random) -> list[str]:
    stream, texts, at = TextStream(tokenizer), [], 0
    until = rng.randint(0, len(ids))
    while at < until:
        step = rng.randint(1, 4)
        texts.append(stream.add(ids[at : min(at + step, until)]))
        at += step
    return [*texts, stream.rest(ids)]


def test_the_pieces_of_a_text_are_the_text_and_hold_no_broken_character(tokenizer: HfTokenizer | ByteTokenizer) -> None:
    ids = tokenizer.encode(WHOLE)
    whole = tokenizer.decode(ids)
    for seed in range(200):
        texts = pieces(tokenizer, ids, random.Random(seed))
        assert "".join(texts) == whole and "\ufffd" not in "".join(texts)


@pytest.mark.slow
def test_the_pieces_of_random_tokens_are_their_decoding(tokenizer: HfTokenizer | ByteTokenizer) -> None:
    for seed in range(500):
        rng = random.Random(seed)
        ids = [rng.randrange(tokenizer.size) for _ in range(rng.randint(0, 90))]
        assert "".join(pieces(tokenizer, ids, rng)) == tokenizer.decode(ids)


def test_text_is_not_held_back_longer_than_a_character_is_incomplete() -> None:
    stream = TextStream(ByteTokenizer())
    assert [stream.add([byte]) for byte in "a月b".encode()] == ["a", "", "", "月", "b"]


class BreaksOnce:
    """A model whose second step fails. It answers with the ids that it has been given since its row was opened."""

    tokenizer: Tokenizer = ByteTokenizer()

    def __init__(self) -> None:
        self.rows: dict[int, tuple[int, ...]] = {}
        self.asked: list[int] = []
        self.steps = 0

    def start(self, request: Request) -> None:
        self.rows[request.key] = request.ids
        self.asked.append(request.key)

    def extend(self, request: Request) -> None:
        self.rows[request.key] += request.ids
        self.asked.append(request.key)

    def step(self) -> list[Turn]:
        self.steps += 1
        if self.steps == 2:
            raise MemoryError
        asked, self.asked = self.asked, []
        return [Turn(key, self.rows[key], (0.0,) * len(self.rows[key]), TurnEnd.EOS) for key in asked]

    def close(self, key: int) -> None:
        del self.rows[key]
        self.asked = [asked for asked in self.asked if asked != key]


def test_a_row_that_a_failure_closed_is_not_continued_from_its_last_words_alone() -> None:
    def request(key: int, *ids: int) -> Request:
        return Request(key, ids, 8, 0, EpisodeState(Question("q", "?", ("a",))))

    async def served() -> None:
        engine = ModelEngine(WorkThread("test"))
        engine.model = BreaksOnce()
        assert (await engine.turn(request(1, 1, 2, 3))).ids == (1, 2, 3)
        with pytest.raises(ModelError):  # of another question
            await engine.turn(request(2, 5))
        with pytest.raises(ModelError):
            await engine.turn(request(1, 7))
        engine.close_row(1)
        assert (await engine.turn(request(1, 4))).ids == (4,)

    asyncio.run(served())
