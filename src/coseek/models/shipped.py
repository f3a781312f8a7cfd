"""Shipped models: model folders inside the package, opened by name.

`weights/policy/NAME` holds a language model and `weights/encoder/NAME` an encoder, each a Hugging Face folder with
float16 weights and a model card (README.md). `python -m bench.ship` writes them. Does not import torch.
"""

from pathlib import Path
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["policy", "encoder"]

WEIGHTS = Path(__file__).parent.parent / "weights"
"""The folder of all shipped models; absent where none are shipped."""
PUBLISHED_AS = {"minilm": "sentence-transformers/all-MiniLM-L6-v2"}
"""Name in recipes → repository on the hub, for encoders that come with another Python package."""


def shipped_models(kind: Kind = "policy", root: Path = WEIGHTS) -> list[str]:
    """The names of the shipped models of a kind, in alphabetical order."""
    folder = root / kind
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted(path.name for path in found if path.is_dir() and not path.name.startswith("."))


def model_path(name: str | Path, kind: Kind = "policy", root: Path = WEIGHTS) -> Path:
    """The folder of a model: a shipped one for its bare name, else the path, with `~` expanded; it may be missing.

    The name `base` is the shipped model even beside a folder `base`, which is named `./base`. A `Path` is never a name.
    """
    if isinstance(name, str) and name in shipped_models(kind, root):
        return root / kind / name
    return Path(name).expanduser()
