"""What the tests of the model service share: a tiny policy on disk, and its server in a thread."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.serve.live import in_a_thread

from coseek.core.settings import make_settings
from coseek.hardware.placement import Placement
from coseek.models.laptop import LaptopSettings, make_policy
from coseek.serve.model_app import make_model_app
from coseek.serve.model_service import ModelService
from coseek.serve.running import bound
from coseek.serve.settings import ModelServeSettings

SMALL = LaptopSettings(hidden=32, feed_forward=48, vocabulary=320, max_positions=2048)
TAGS = ("<think>", "</think>", "<search>", "</search>", "<information>", "</information>", "<answer>", "</answer>")
TEXTS = (" one fish two fish red fish blue fish", " the cat sat on the mat", " ada wrote the first program .")


def tiny_policy(folder: Path, seed: int = 3, loud: float = 0.2) -> Path:
    """An untrained policy whose weights are large enough for its distributions to be far from uniform."""
    import torch

    from coseek.models.pretrained import load_model, save_model
    from coseek.models.tokenizer import HfTokenizer

    make_policy(SMALL, TEXTS, TAGS, folder, seed)
    network, tokenizer = load_model(folder, Placement(device="cpu", precision="float32")), HfTokenizer.load(folder)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(seed)
        for weight in network.parameters():
            if weight.ndim > 1:
                weight.normal_(std=loud, generator=generator)
    save_model(network, tokenizer, folder)
    return folder


@contextmanager
def live_model(folder: Path, token: str | None = None, **settings: float | str) -> Iterator[tuple[str, ModelService]]:
    """The URL of a model's server in a thread, which is stopped in the end, and the service behind it."""
    given = make_settings(ModelServeSettings, {"port": 0, "log": False, **settings})
    listening = bound(given.host, given.port)
    service = ModelService(folder, given, "policy")
    with in_a_thread(service, make_model_app(service, token), listening) as url:
        yield url, service
