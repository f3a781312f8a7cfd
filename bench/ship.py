"""Ship: make the result of a training a model of the package, opened by name.

    python -m bench.ship runs/base --kind policy --name base              # of `coseek train base`
    python -m bench.ship runs/retriever-base --kind encoder --name base   # of `coseek train retriever base`

src/coseek/weights/KIND/NAME becomes the trained folder with float16 weights and a model card (README.md); an older one
is replaced. Exit 1 when all shipped models together are over the bar. Only trainings whose data are drawn, and that
begin with nothing or with a shipped base model, are shipped: the licence of other data and weights is not ours.
"""

import argparse
import html
import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import load_file, save_file

from coseek.core.errors import DataError, SettingError, UserError
from coseek.core.files import Json, JsonObject, atomic_folder, read_json, read_yaml, write_json
from coseek.core.fingerprint import file_digest, fingerprint
from coseek.core.settings import Settings, dump_settings, make_settings
from coseek.data.digests import KEY
from coseek.hub.card import FILE as CARD, ModelCard
from coseek.lab.pipelines.recipes import BaseRecipe
from coseek.models.model_folder import WEIGHTS, Kind, model_path, shipped_models
from coseek.pipelines.run_record import FILE
from coseek.training.encoder.recipe import RetrieverRecipe, load_retriever_recipe
from coseek.training.learner.policy import ADAPTER

MOST_BYTES = 8_000_000
"""The bar of all shipped models together."""
ABOUT: dict[Kind, tuple[str, str]] = {
    "policy": (
        "A language model that reads passages, copies and finds the next thing to look up. It begins the training of "
        "agents (policy.folder: {name}), and answers as a generator with the prompt in generator.yaml.",
        "It reads short generated English. It knows no facts, follows no instructions and speaks no protocol before it "
        "is trained in one. Text by people is outside its training, and its answers there are not measured here.",
    ),
    "encoder": (
        "A sentence encoder for dense search (coseek index DATA --retriever dense --encoder {name}), which has seen "
        "no agent's searches.",
        "It encodes short generated English: drawn words, and the words and relations of laptop worlds, whose facts it "
        "has not seen. Text by people is outside its training, and its rankings there are not measured here.",
    ),
}
"""Kind → what a model is, and its limits."""
DATA = "worlds that the recipe draws from its seed; no text by people, no other model's weights or outputs"
MEASURED = (
    "Measured at the end of that training, in worlds that it was not trained on, before the weights were rounded to "
    "float16."
)


EARLIER = "EARLIER"
"""Stands in a command for the folder of the model that the training began with."""


@dataclass(frozen=True)
class ShippedRun:
    """A training whose result is shipped."""

    folder: Path
    kind: Kind
    name: str
    root: Path = WEIGHTS
    """The folder of all shipped models."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9-]*", self.name):
            raise SettingError(f"a shipped model's name is of small letters, digits and dashes, not {self.name!r}")
        recipe = self.recipe
        if isinstance(recipe, RetrieverRecipe) and (recipe.labels or recipe.encoder is not None):
            raise DataError(f"{self.folder} learnt from labels or another encoder; ship one of drawn worlds alone")
        start = self.start
        if start is not None and start not in shipped_models(root=self.root):
            raise DataError(f"{self.folder} began with {start}, which is not shipped; ship one that began with nothing")
        recorded = cast("dict[str, str]", self.record.get(KEY) or {}).get("start")
        if start is not None and recorded != fingerprint(model_path(start, root=self.root)):
            raise DataError(
                f"{self.folder} began with another {start} than the shipped one; ship from the commit of its training"
            )
        if not self.trained.is_dir():
            raise DataError(f"there is no {self.trained}; finish the training, or choose another --kind")

    @property
    def trained(self) -> Path:
        return self.folder / ("base" if self.kind == "policy" else "encoder")

    @property
    def record(self) -> JsonObject:
        return read_yaml(self.folder / FILE, "record of a training")

    @property
    def recipe(self) -> Settings:
        tree = cast(JsonObject, self.record.get("recipe") or {})
        return make_settings(BaseRecipe if self.kind == "policy" else RetrieverRecipe, tree, self.folder / FILE)

    @property
    def start(self) -> str | None:
        """The model that the training began with."""
        return self.recipe.start if isinstance(self.recipe, BaseRecipe) else None

    @property
    def command(self) -> str:
        """The command that makes it again; its settings are those that differ from the defaults."""
        words = ["base"] if self.kind == "policy" else ["retriever", self.name]
        usual: Settings = BaseRecipe() if self.kind == "policy" else load_retriever_recipe(self.name)
        chosen = dump_settings(self.recipe) | ({} if self.start is None else {"start": f"{EARLIER}/base"})
        return shlex.join(["coseek", "train", *words, *changes(dump_settings(usual), chosen)])

    @property
    def earlier(self) -> dict[str, str]:
        """The fact of a card that says how the model was made that the training began with."""
        if self.start is None:
            return {}
        card = html.unescape((model_path(self.start, root=self.root) / CARD).read_text(encoding="utf-8"))
        command = card.partition("```sh\n")[2].partition("\n")[0]
        facts = dict(re.findall(r"^\| (.+?) \| (.+) \|$", card, flags=re.MULTILINE))
        before = f"; {facts[EARLIER]}" if EARLIER in facts else ""
        made = f"{command}, at {facts['commit']}, sha256 {facts['sha256 of model.safetensors']}{before}"
        return {EARLIER: made}

    def write(self) -> Path:
        """Write the shipped folder atomically; returns it."""
        folder = self.root / self.kind / self.name
        atomic_folder(folder, self._fill)
        return folder

    def _fill(self, part: Path) -> None:
        shutil.copytree(self.trained, part, ignore=shutil.ignore_patterns(CARD, ADAPTER), dirs_exist_ok=True)
        parameters = sum(halve(path) for path in sorted(part.rglob("*.safetensors")))
        compact = json.dumps(read_json(part / "tokenizer.json"), ensure_ascii=False, separators=(",", ":"))
        (part / "tokenizer.json").write_text(compact, encoding="utf-8")
        config = cast(JsonObject, read_json(part / "config.json"))
        write_json(part / "config.json", {**config, "dtype": "float16"})
        (part / CARD).write_text(self._card(part, parameters), encoding="utf-8")

    def _card(self, part: Path, parameters: int) -> str:
        about, limits = ABOUT[self.kind]
        table = (self.folder / "table.md").read_text(encoding="utf-8").partition("\n")[2].strip()
        settings = json.dumps(dump_settings(self.recipe), sort_keys=True)
        hashes = {path.relative_to(part).as_posix(): file_digest(path) for path in sorted(part.rglob("*.safetensors"))}
        return ModelCard(
            kind="generator" if self.kind == "policy" else "encoder",
            title=f"{self.name}: {self.kind} shipped with coseek",
            about=about.format(name=self.name),
            facts={
                "parameters": f"{parameters:,}, in float16",
                "data": DATA,
                "commit": str(self.record.get("commit") or "unknown"),
                **self.earlier,
                "sha256 of the settings as sorted JSON": sha256(settings.encode()).hexdigest(),
                **{f"sha256 of {name}": digest for name, digest in hashes.items()},
            },
            command=self.command,
            figures=f"{MEASURED}\n\n{table}".replace("\n## ", "\n### "),
            limits=limits,
            license="apache-2.0",
        ).text()


def halve(path: Path) -> int:
    """Round the weights of a file to float16; returns their number. Raises `DataError` for one that is too large."""
    weights = load_file(path)
    for name, weight in weights.items():
        if weight.is_floating_point():
            weights[name] = weight.to(torch.float16)
            if not torch.isfinite(weights[name]).all():
                raise DataError(f"the weights {name} of {path.name} do not fit into float16; they cannot be shipped")
    save_file(weights, path, metadata={"format": "pt"})
    path.chmod(0o644)
    return sum(weight.numel() for weight in weights.values())


def changes(usual: Json, chosen: Json, name: str = "") -> Iterator[str]:
    """`a.b=c` for each setting that differs from the usual one."""
    if isinstance(usual, dict) and isinstance(chosen, dict):
        for key, value in chosen.items():
            yield from changes(usual.get(key), value, f"{name}.{key}" if name else key)
    elif usual != chosen:
        yield f"{name}={json.dumps(chosen)}"


def size_of(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder of the training")
    parser.add_argument("--kind", choices=["policy", "encoder"], required=True)
    parser.add_argument("--name", required=True, help="the name it is opened by")
    parser.add_argument("--root", type=Path, default=WEIGHTS, help="the folder of all shipped models")
    args = parser.parse_args(arguments)
    try:
        folder = ShippedRun(args.run, args.kind, args.name, args.root).write()
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    assert model_path(args.name, args.kind, args.root) == folder
    whole = size_of(args.root)
    weights = sum(path.stat().st_size for path in folder.rglob("*.safetensors"))
    print(f"{folder}: {size_of(folder):,} bytes, {weights:,} of them weights")
    print(f"all shipped models: {whole:,} bytes (bar {MOST_BYTES:,}{', OVER' if whole > MOST_BYTES else ''})")
    return int(whole > MOST_BYTES)


if __name__ == "__main__":
    raise SystemExit(main())
