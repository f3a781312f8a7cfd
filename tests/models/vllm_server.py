"""A stand-in for vLLM: `/v1/completions` by the built-in sampler, in vLLM's fields, and its requests for new weights.

It writes one text after the other, so that what a request gets depends on its ids, its seed and the weights alone.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from tests.models.http_site import Asked, Said, site

from coseek.core.files import JsonObject
from coseek.data.question import Question
from coseek.hardware.placement import Placement
from coseek.models.model import EpisodeState, Request, Turn, TurnEnd
from coseek.models.pretrained import load_model
from coseek.models.sampler import Sampler, SamplerSettings, make_engine
from coseek.models.tokenizer import HfTokenizer

NAME = "policy"
PLACED = Placement(device="cpu", precision="float32")


class VllmServer:
    """The server; `url` is set while it is served."""

    def __init__(self, folder: Path) -> None:
        self.url = ""
        self.paths: list[str] = []
        """The paths of all requests."""
        self.running = self.written_tokens = 0
        self._lock = threading.Lock()
        self._load(folder)

    def reply(self, request: Asked) -> Said:
        answers: dict[str, Callable[[JsonObject], JsonObject]] = {
            "/v1/models": lambda _: {"object": "list", "data": [{"id": NAME, "object": "model", "owned_by": "vllm"}]},
            "/v1/completions": self._complete,
            "/collective_rpc": self._reload,
            "/reset_prefix_cache": lambda _: {},
        }
        self.paths.append(request.path)
        close = {"connection": "close"}  # none outlives the server, as none does a process that has died
        if request.path not in answers:
            return Said({"error": {"message": f"{request.path} is not offered"}}, 404, close)
        return Said(answers[request.path](request.body), headers=close)

    def _load(self, folder: Path) -> None:
        self._network, self._tokenizer = load_model(folder, PLACED), HfTokenizer.load(folder)
        self._engine = make_engine(self._network, self._network.dtype)

    def _reload(self, body: JsonObject) -> JsonObject:
        """With VLLM_SERVER_DEV_MODE=1. Texts under way are finished by the weights before."""
        assert body["method"] == "reload_weights"
        with self._lock:
            self._load(Path(str(cast(JsonObject, body["kwargs"])["weights_path"])))
        return {"results": [None]}

    def _complete(self, body: JsonObject) -> JsonObject:
        self.running += 1
        with self._lock:
            prompt = body["prompt"]
            ids = self._tokenizer.encode(prompt) if isinstance(prompt, str) else cast(list[int], prompt)
            turn = self._written(ids, body)
            self.written_tokens += len(turn.ids)
            choice = self._choice(turn, ids, body)
        self.running -= 1
        counts: JsonObject = {"prompt_tokens": len(ids), "completion_tokens": len(turn.ids)}
        return {"object": "text_completion", "model": NAME, "choices": [choice], "usage": counts}

    def _written(self, ids: list[int], body: JsonObject) -> Turn:
        settings = SamplerSettings(temperature=cast(float, body.get("temperature", 1.0)), dtype="float32")
        stops = cast("list[str]", body.get("stop") or [])
        sampler = Sampler(self._network, self._tokenizer, stops, settings, self._engine)
        most, seed = cast(int, body.get("max_tokens", 16)), cast(int, body.get("seed") or 0)
        sampler.start(Request(0, tuple(ids), most, seed, EpisodeState(Question("served", ""))))
        (turn,) = sampler.step()
        sampler.close(0)
        assert turn.end is not TurnEnd.FAULT, turn.fault
        return turn

    def _choice(self, turn: Turn, prompt: list[int], body: JsonObject) -> JsonObject:
        """vLLM keeps the end-of-text token among the ids, and a stop string in the text on request alone."""
        text = self._tokenizer.decode(turn.ids[:-1] if turn.end is TurnEnd.EOS else turn.ids)
        stops = cast("list[str]", body.get("stop") or []) if turn.end is TurnEnd.STOP else []
        stop = min((stop for stop in stops if stop in text), key=text.find, default=None)
        if stop is not None and not body.get("include_stop_str_in_output"):
            text = text[: text.find(stop)]
        reason = "length" if turn.end is TurnEnd.LENGTH else "stop"
        choice: JsonObject = {"index": 0, "text": text, "finish_reason": reason, "stop_reason": stop}
        if body.get("logprobs") is not None:
            choice["logprobs"] = {"token_logprobs": [*turn.logprobs]}
        if body.get("return_token_ids"):
            choice |= {"token_ids": [*turn.ids], "prompt_token_ids": [*prompt]}
        return choice


@contextmanager
def vllm_server(folder: Path) -> Iterator[VllmServer]:
    """A server of the model in a folder, at 127.0.0.1 and a free port, until the block ends."""
    server = VllmServer(folder)
    with site(server.reply) as there:
        server.url = there.url
        yield server
