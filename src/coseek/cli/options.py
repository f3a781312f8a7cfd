"""Options: arguments and options that several commands share."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from coseek.core.settings import apply_overrides, make_settings
from coseek.data.selection import QuestionFilter

RetrieverName: TypeAlias = Annotated[str, typer.Option(help="An index folder, a URL, or a YAML file.")]
Temperature: TypeAlias = Annotated[float, typer.Option(min=0.0, help="0 always takes the most likely token.")]
ProtocolName: TypeAlias = Annotated[str | None, typer.Option(help="A protocol or its YAML file; else the agent's own.")]
PromptTemplateName: TypeAlias = Annotated[
    str | None, typer.Option(help="A prompt template or its YAML file; else the agent's own.")
]
TokenizerName: TypeAlias = Annotated[
    str | None, typer.Option(help="For a server: the folder of its model, or `bytes`.")
]
Split: TypeAlias = Annotated[str | None, typer.Option(help="The split of a data-set folder.")]
Count: TypeAlias = Annotated[int | None, typer.Option(min=1, help="Draw N questions, in proportion to the data sets.")]
Select: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUES",
        help="Only some questions: sources=nq,hotpotqa or hops=2,3 or types=bridge; may be repeated.",
    ),
]
Resume: TypeAlias = Annotated[bool, typer.Option("--resume", help="Resume what is in --out.")]
OutFolder: TypeAlias = Annotated[Path, typer.Option(help="The folder to write.")]
BootstrapSeed: TypeAlias = Annotated[int, typer.Option(help="Seed of the bootstrap.")]
CacheFile: TypeAlias = Annotated[
    Path | None, typer.Option(help="A SQLite file that caches model outputs across runs and labels.")
]
DeviceName: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Device of local models: cpu, cuda, cuda:1 …; default: an accelerator if there is one."),
]
ClusterName: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Work on a Ray cluster: local, auto or ray://HOST:PORT, optionally followed by ?cpus=2&gpus=1 a process.",
    ),
]


def question_filter(given: Sequence[str] | None) -> QuestionFilter:
    """The filter that `--select` gives."""
    texts = given or ()
    return make_settings(QuestionFilter, apply_overrides({}, texts), typed=texts)


def split_names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
