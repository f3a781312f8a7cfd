"""A tiny policy on disk."""

from pathlib import Path

from coseek.hardware.placement import Placement
from coseek.models.laptop import LaptopSettings, make_policy

SMALL = LaptopSettings(hidden=32, feed_forward=48, vocabulary=320, max_positions=2048)
TAGS = ("<think>", "</think>", "<search>", "</search>", "<information>", "</information>", "<answer>", "</answer>")
TEXTS = (" one fish two fish red fish blue fish", " the cat sat on the mat", " ada wrote the first program .")


def tiny_policy(folder: Path, seed: int = 3) -> Path:
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
                weight.normal_(std=0.2, generator=generator)
    save_model(network, tokenizer, folder)
    return folder
