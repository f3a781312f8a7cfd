"""Serve retrievers and agents over HTTP."""

import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, TypeAlias
from urllib.parse import urlsplit

from typer import Argument, Option

from coseek.agents.factory import open_agent, settled_for
from coseek.cli import options
from coseek.cli.terminal import new_app, say, tell
from coseek.core.errors import SettingError
from coseek.core.files import real_path
from coseek.core.settings import make_settings
from coseek.hardware.device import AUTO, device_of
from coseek.retrieval.factory import check_source, open_retriever, require_library, settings_in
from coseek.retrieval.index import IndexCard, open_index
from coseek.retrieval.retriever import Retriever
from coseek.serve.settings import AgentServeSettings, ServeSettings

GROUP = "Agents"
app = new_app()
_NAMED = re.compile(r"([A-Za-z0-9][\w.-]*)=(.+)")
_OURS = ServeSettings()
_AGENT = AgentServeSettings()
TOGETHER_CPU, TOGETHER_GPU = 8, 64
"""Queries per forward pass. On a processor, more than 8 short queries only add padding."""

Host: TypeAlias = Annotated[str, Option(help="The address to listen at.")]
Port: TypeAlias = Annotated[int, Option(help="The port; 0 takes a free one.")]
TokenEnv: TypeAlias = Annotated[
    str | None, Option(help="The environment variable with the token of requests; required beyond loopback.")
]
Documents: TypeAlias = Annotated[Path | None, Option(exists=True, help="The imported files, for links of the page.")]
Quiet: TypeAlias = Annotated[bool, Option("--quiet", help="Do not log requests.")]


@app.callback()
def serve() -> None:
    """Serve retrievers and agents over HTTP."""


@app.command("retriever", epilog="Example: `coseek serve retriever data/notes.index --port 8000`")
def serve_retriever(
    retrievers: Annotated[
        list[str], Argument(metavar="RETRIEVER", help="An index folder, a URL, or a YAML file; NAME=… gives it a name.")
    ],
    host: Host = _OURS.host,
    port: Port = _OURS.port,
    token_env: TokenEnv = None,
    topk: Annotated[int, Option(min=1, help="Passages per query, if a request gives no number.")] = _OURS.topk,
    batch: Annotated[int, Option(min=1, help="Maximum number of queries searched together.")] = _OURS.batch,
    queue: Annotated[int, Option(min=1, help="Maximum number of waiting queries; more get 503.")] = _OURS.queue,
    most_wait: Annotated[float, Option(min=0.001, help="Longest expected wait, in s; else 503.")] = _OURS.most_wait_s,
    max_queries: Annotated[int, Option(min=1, help="Maximum number of queries per request.")] = _OURS.max_queries,
    max_topk: Annotated[int, Option(min=1, help="Maximum number of passages per query.")] = _OURS.max_topk,
    devices: Annotated[str, Option(help="Devices that share the vectors of dense indexes: cuda:0,cuda:1.")] = "",
    quiet: Quiet = False,
) -> None:
    """Serve one or several retrievers: POST /retrieve (the first) and /NAME/retrieve, GET /health and /info.

    Prints the URL once everything is open. On Ctrl-C or SIGTERM, accepted requests are answered first.
    """
    check_libraries()
    from coseek.serve.search_service import serve as run

    typed = {
        "host": host, "port": port, "token_env": token_env, "topk": topk, "batch": batch,
        "queue": queue, "most_wait_s": most_wait, "max_queries": min(max_queries, queue), "max_topk": max_topk,
        "log": not quiet,
    }  # fmt: skip
    settings = make_settings(ServeSettings, typed)
    openers = named(retrievers, options.split_names(devices))
    say(f"opening {', '.join(openers)} …")
    run(openers, settings, lambda url: tell(f"coseek serves {', '.join(openers)} at {url}"))


@app.command(
    "agent",
    epilog="Example: `coseek serve agent runs/quickstart/policy/trained --retriever runs/quickstart/data.index`",
)
@options.takes_servers
def serve_agent(
    agent: Annotated[
        str,
        Argument(
            metavar="AGENT", help="A model folder, a URL, a YAML file, or `extract` or `rules`, which need no model."
        ),
    ],
    retriever: options.RetrieverName,
    limits: options.LimitPairs = None,
    name: Annotated[str | None, Option(help="The agent's name in requests; its folder's by default.")] = None,
    host: Host = _AGENT.host,
    port: Port = _AGENT.port,
    token_env: TokenEnv = None,
    rows: Annotated[int, Option(min=1, help="Maximum number of questions answered at once.")] = _AGENT.max_rows,
    queue: Annotated[int, Option(min=1, help="Maximum number of waiting questions; more get 503.")] = _AGENT.queue,
    most_wait: Annotated[float, Option(min=0.001, help="Maximum wait in seconds; else 503.")] = _AGENT.most_wait_s,
    temperature: options.Temperature = None,
    protocol: options.ProtocolName = None,
    prompt_template: options.PromptTemplateName = None,
    tokenizer: options.TokenizerName = None,
    device: options.DeviceName = None,
    page: Annotated[bool, Option(help="Serve a chat page at /.")] = _AGENT.page,
    documents: Documents = None,
    quiet: Quiet = False,
) -> None:
    """Serve an agent: POST /v1/chat/completions, streamed or whole, GET /v1/models, /health, /info, and a chat page at
    /.

    The last message of a request is the question. The answer has the same tokens as in `coseek run`.
    """
    check_libraries()
    agent = options.at_server(agent)
    chosen, budgets = options.agent_with_limits(
        agent, protocol, prompt_template, tokenizer, device, temperature, limits
    )
    check_source(retriever)
    from coseek.serve.agent_app import serve_agent as run
    from coseek.serve.agent_service import AgentService

    typed = {
        "host": host, "port": port, "token_env": token_env, "max_rows": rows, "queue": queue,
        "most_wait_s": most_wait, "page": page, "log": not quiet,
        "documents": documents and str(documents),
    }  # fmt: skip
    settings = make_settings(AgentServeSettings, typed)
    opener = partial(open_retriever, retriever)
    service = AgentService(settled_for(chosen, chosen), opener, budgets, settings, name, retriever)
    say(f"opening {agent} …")
    run(service, lambda url: tell(f"coseek serves {service.name} at {url}"))


@app.command("mcp", epilog="Example: `coseek serve mcp data/notes.index --agent extract`")
@options.takes_servers
def serve_mcp(
    retriever: Annotated[str, Argument(metavar="RETRIEVER", help="An index folder, a URL, or a YAML file.")],
    agent: Annotated[str | None, Option(help="The agent of the tool `ask`, as in `coseek ask`.")] = None,
    http: Annotated[
        int | None,
        Option(min=0, help="Serve streamable HTTP at this port of the loopback address, not stdio; 0: a free one."),
    ] = None,
    topk: Annotated[int, Option(min=1, help="Passages per search.")] = 10,
    protocol: options.ProtocolName = None,
    prompt_template: options.PromptTemplateName = None,
    tokenizer: options.TokenizerName = None,
    device: options.DeviceName = None,
) -> None:
    """Serve tools for chat clients by the Model Context Protocol: `search`, `fetch`, and `ask` with an agent.

    A client starts the command and uses its stdin and stdout; with --http it listens on loopback, at /mcp.
    """
    check_libraries()
    require_library("mcp", "`coseek serve mcp`", "mcp")
    (agent,) = options.at_servers(agent)
    limited = options.agent_with_limits(agent, protocol, prompt_template, tokenizer, device) if agent else None
    from coseek.serve.mcp_server import KnowledgeTools, make_server, serve_http

    index = open_retriever(retriever)
    tools = KnowledgeTools(index, topk)
    if limited is not None:
        chosen, budgets = limited
        tools = KnowledgeTools(index, topk, open_agent(settled_for(chosen, chosen)), budgets)
    server = make_server(tools, f"coseek {_own_name(retriever)}")
    if http is None:
        server.run("stdio")
    else:
        serve_http(server, http, lambda url: tell(f"coseek serves {retriever} at {url}"))


def check_libraries() -> None:
    """Raise `MissingExtra` if a library is missing. The web server is imported later, since help does not need it."""
    for library in ("fastapi", "uvicorn", "httptools"):
        require_library(library, "`coseek serve`", "serve")


def named(texts: list[str], devices: Sequence[str] = ()) -> dict[str, Callable[[], Retriever]]:
    """Name → opener. A retriever without `NAME=` is named after its folder, file or host."""
    openers: dict[str, Callable[[], Retriever]] = {}
    for text in texts:
        match = None if os.path.exists(text) else _NAMED.fullmatch(text)
        name, source = (match[1], match[2]) if match else (_own_name(text), text)
        if name in openers:
            raise SettingError(f"two retrievers would be served as {name!r}; write NAME={source} for one of them")
        openers[name] = partial(opened, source, devices)
    return openers


def opened(source: str, devices: Sequence[str] = ()) -> Retriever:
    """Open a retriever. An index with an encoder encodes several queries per pass, and is split over `devices`."""
    path = Path(source)
    card = IndexCard.read(path) if os.path.isdir(path) else None
    if devices and (card is None or card.retriever != "dense" or card.settings.get("search") == "int8"):
        raise SettingError(f"--devices {','.join(devices)}: {source} is no dense index with exact search; leave it out")
    if card is None or "queries_together" not in card.settings:
        return open_retriever(source)
    on_cpu = device_of(str(card.settings.get("device", AUTO))).type == "cpu"
    batch_size = TOGETHER_CPU if on_cpu else TOGETHER_GPU
    split = {"devices": list(devices)} if devices else {}  # few kinds of index take it
    return open_index(path, overrides={"queries_together": batch_size, **split})


def _own_name(source: str) -> str:
    if "://" in source:
        return urlsplit(source).hostname or "remote"
    if settings := settings_in(source):
        return str(settings.get("retriever"))
    return real_path(Path(source)).name.removesuffix(".yaml").removesuffix(".yml")
