"""Settings of a service: where it listens, how it batches, and what it turns away."""

from pydantic import Field

from coseek.core.settings import Settings
from coseek.hardware.precision import SamplingPrecision


class ListenSettings(Settings):
    """Where a service listens, and what it takes from a connection."""

    host: str = "127.0.0.1"
    """The address to listen at. Any other than this machine's own loopback needs `token_env`."""
    port: int = Field(default=8000, ge=0, le=65_535)
    """0 takes a free one."""
    token_env: str | None = None
    """The environment variable that holds the token which requests must bring; the token itself is kept nowhere."""
    max_body_bytes: int = Field(default=16_777_216, ge=1)
    """Size of one request."""
    headers_s: float = Field(default=10.0, gt=0)
    """Seconds in which a connection must have sent the headers of a request."""
    body_s: float = Field(default=30.0, gt=0)
    """Seconds in which the rest of a request must have come."""
    keep_alive_s: int = Field(default=75, ge=1)
    """Seconds for which an idle connection is kept."""
    log: bool = True
    """One JSON line a request on stderr."""


class ServeSettings(ListenSettings):
    """How a service of retrievers behaves. What is over a limit is answered with a 4xx or 503 and one sentence."""

    topk: int = Field(default=3, ge=1)
    """Passages a query for requests whose `topk` is null, 0 or missing."""
    batch: int = Field(default=32, ge=1)
    """Queries of several requests that are searched together, at most."""
    wait_ms: float = Field(default=0.0, ge=0, le=1_000)
    """How long a request waits for company while the retriever is idle."""
    queue: int = Field(default=4_096, ge=1)
    """Queries that may wait; what comes on top is answered with 503 and a time to come back."""
    max_queries: int = Field(default=1_024, ge=1)
    """Queries of one request."""
    max_query_chars: int = Field(default=32_768, ge=1)
    """Characters of one query."""
    max_context_chars: int = Field(default=1_000_000, ge=0)
    """Characters of one query's question, reasoning and history together."""
    max_topk: int = Field(default=1_000, ge=1)
    """Passages a query, where the corpus holds more."""
    log_queries: bool = False
    """Write the queries into that line, too; they are the users' words, hence not unless asked for."""


class ModelServeSettings(ListenSettings):
    """How the service of a model behaves."""

    max_rows: int = Field(default=64, ge=1)
    """Texts written at once."""
    queue: int = Field(default=1_024, ge=1)
    """Requests that may wait; what comes on top is answered with 503 and a time to come back."""
    max_context: int | None = Field(default=None, ge=16)
    """Prompt and text together have at most this many tokens; the model's own limit when not set."""
    max_prompt_chars: int = Field(default=2_000_000, ge=1)
    """Characters of one prompt."""
    max_prompts: int = Field(default=64, ge=1)
    """Prompts of one request."""
    precision: SamplingPrecision = "float32"
    """Of weights and cache."""
