"""Marks: the tags of a protocol as tokens of their own, for a small model that was trained without them.

A tag that is spelt out letter by letter is cheap for a large model. A laptop policy would spend half of its turn on it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from coseek.models.tokenizer import HfTokenizer

SPREAD = 1e-3
"""How far new vectors lie from the mean, in standard deviations of the known ones: told apart, and no more."""


def add_tag_tokens(source: Path, marks: Sequence[str], folder: Path, seed: int) -> None:
    """Write the model of `source` as a folder whose tokenizer has one token for each mark, in one rename.

    New tokens begin beside the mean of the others: as far from it as other words are, they would be words to a model
    that reads, and disturb what it can. Marks that the tokenizer knows already stay as they are.
    """
    import torch

    from coseek.models.pretrained import load_model, save_model

    def weight_of(module: torch.nn.Module) -> torch.Tensor:
        return cast(torch.Tensor, module.weight)

    fast = HfTokenizer.load(source).fast
    fast.add_special_tokens({"additional_special_tokens": list(marks)})
    tokenizer, model = HfTokenizer(fast, str(source)), load_model(source)
    known = int(weight_of(model.get_input_embeddings()).shape[0])
    if tokenizer.size > known:
        model.resize_token_embeddings(tokenizer.size, mean_resizing=False)
        generator = torch.Generator().manual_seed(seed)
        outputs = model.get_output_embeddings()
        for module in (model.get_input_embeddings(), *([outputs] if outputs is not None else [])):  # twice where tied
            weight_VD = weight_of(module).data
            old_VD = weight_VD[:known]
            drawn_VD = torch.randn(weight_VD[known:].shape, generator=generator)
            weight_VD[known:] = old_VD.mean(0) + SPREAD * old_VD.std(0) * drawn_VD.to(weight_VD)
    save_model(model, tokenizer, folder)
