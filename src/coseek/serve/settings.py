"""Settings of a service: address, batching and limits."""

from pydantic import Field

from coseek.core.settings import Settings, VariableName


class ListenSettings(Settings):
    """Address, and limits of any request."""

    host: str = "127.0.0.1"
    """The address to listen at. Any other than this machine's own loopback needs `token_env`."""
    port: int = Field(default=8000, ge=0, le=65_535)
    """0 takes a free one."""
    token_env: VariableName | None = None
    """The environment variable that holds the token of requests; the token itself is stored nowhere."""
    max_connections: int = Field(default=4_096, ge=1)
    """Open connections, at most; requests of further ones are answered with 503."""
    max_body_bytes: int = Field(default=16_777_216, ge=1)
    """Bytes of one request's body, at most."""
    body_s: float = Field(default=30.0, gt=0)
    """Seconds for sending the body of a request, at most."""
    keep_alive_s: int = Field(default=75, ge=1)
    """Seconds for which an idle connection is kept."""
    log: bool = True
    """One JSON line a request on stderr."""


class ServeSettings(ListenSettings):
    """Settings of a retriever service. What exceeds a limit is answered with 4xx or 503 and one sentence."""

    topk: int = Field(default=3, ge=1)
    """Passages for each query where `topk` is null, 0 or missing."""
    batch: int = Field(default=32, ge=1)
    """Queries of several requests in one search, at most."""
    wait_ms: float = Field(default=0.0, ge=0, le=1_000)
    """Milliseconds that a request waits for others while the retriever is idle."""
    queue: int = Field(default=16_384, ge=1)
    """Queries that may wait; more are answered with 503 and `Retry-After`."""
    most_wait_s: float = Field(default=60.0, gt=0)
    """Seconds after which a request that still waits is refused in the same way."""
    max_queries: int = Field(default=4_096, ge=1)
    """Queries of one request, at most. Search-R1's GRPO script sends up to 2,560, and stops when they are refused."""
    max_query_chars: int = Field(default=32_768, ge=1)
    """Characters of one query, at most."""
    max_context_chars: int = Field(default=1_000_000, ge=0)
    """Characters of one query's question, reasoning and history together, at most."""
    max_topk: int = Field(default=1_000, ge=1)
    """Passages for each query, at most."""
    max_hits: int = Field(default=65_536, ge=1)
    """Passages of one answer, at most: queries times `topk`."""
    max_answer_bytes: int = Field(default=134_217_728, ge=1)
    """Bytes of one answer, at most."""
    log_queries: bool = False
    """Write the queries into the log line, too. Off by default, since they are the users' words."""


class AgentServeSettings(ListenSettings):
    """Settings of an agent service."""

    max_rows: int = Field(default=64, ge=1)
    """Questions answered at once, at most."""
    queue: int = Field(default=1_024, ge=1)
    """Questions that may wait; more are answered with 503 and `Retry-After`."""
    most_wait_s: float = Field(default=30.0, gt=0)
    """Seconds after which a question that still waits is refused in the same way."""
    max_question_chars: int = Field(default=32_768, ge=1)
    """Characters of a question, at most."""
    page: bool = True
    """Serve a page for trying at `/`."""
    documents: str | None = None
    """The folder or file that the corpus was imported from: the page links to its files and pages."""
