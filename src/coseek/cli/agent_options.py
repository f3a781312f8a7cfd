"""Agent options: options of `ask` and `run` that go with `--agent`."""

from typing import Annotated, TypeAlias

import typer

Temperature: TypeAlias = Annotated[float, typer.Option(min=0.0, help="0 always takes the most likely token.")]
ProtocolName: TypeAlias = Annotated[str | None, typer.Option(help="A protocol or its YAML file; else the agent's own.")]
PromptTemplateName: TypeAlias = Annotated[
    str | None, typer.Option(help="A prompt template or its YAML file; else the agent's own.")
]
TokenizerName: TypeAlias = Annotated[
    str | None, typer.Option(help="For a server: the folder of its model, or `bytes`.")
]
