"""Settings of a service: address, batching and limits."""

from pydantic import Field

from coseek.core.settings import Settings, VariableName


class ListenSettings(Settings):
    """Address, and limits of any request."""

    host: str = "127.0.0.1"
    """The address to listen at. Any address other than this machine's loopback needs `token_env`."""
    port: int = Field(default=8000, ge=0, le=65_535)
    """0 selects a free port."""
    token_env: VariableName | None = None
    """The environment variable that holds the token of requests. The token itself is not stored."""
    max_connections: int = Field(default=4_096, ge=1)
    """Maximum number of open connections; requests of further ones get a 503."""
    max_body_bytes: int = Field(default=16_777_216, ge=1)
    """Maximum number of bytes of one request's body."""
    body_s: float = Field(default=30.0, gt=0)
    """Maximum number of seconds for sending the body of a request."""
    log: bool = True
    """Write one JSON line per request to stderr."""


class ServeSettings(ListenSettings):
    """Settings of a retriever service. A request beyond a limit gets a 4xx or 503 and one sentence."""

    topk: int = Field(default=3, ge=1)
    """Passages per query if `topk` is null, 0 or missing."""
    batch: int = Field(default=32, ge=1)
    """Maximum number of queries of several requests in one search."""
    queue: int = Field(default=16_384, ge=1)
    """Number of queries that may wait; further queries get a 503 with `Retry-After`."""
    most_wait_s: float = Field(default=60.0, gt=0)
    """Seconds after which a waiting request is refused in the same way."""
    max_queries: int = Field(default=4_096, ge=1)
    """Maximum number of queries in one request. Search-R1's GRPO script sends up to 2,560 and stops if refused."""
    max_query_chars: int = Field(default=32_768, ge=1)
    """Maximum number of characters of one query."""
    max_context_chars: int = Field(default=1_000_000, ge=0)
    """Maximum number of characters of one query's question, reasoning and history together."""
    max_topk: int = Field(default=1_000, ge=1)
    """Maximum number of passages per query."""
    max_hits: int = Field(default=65_536, ge=1)
    """Maximum number of passages in one response: queries times `topk`."""
    max_answer_bytes: int = Field(default=134_217_728, ge=1)
    """Maximum number of bytes of one response."""


class AgentServeSettings(ListenSettings):
    """Settings of an agent service."""

    max_rows: int = Field(default=64, ge=1)
    """Maximum number of questions answered at the same time."""
    queue: int = Field(default=1_024, ge=1)
    """Number of questions that may wait; further questions get a 503 with `Retry-After`."""
    most_wait_s: float = Field(default=30.0, gt=0)
    """Seconds after which a waiting question is refused in the same way."""
    max_question_chars: int = Field(default=32_768, ge=1)
    """Maximum number of characters of a question."""
    page: bool = True
    """Serve a chat page at `/`."""
    documents: str | None = None
    """The folder or file from which the corpus was imported. The page links to its files and pages."""
