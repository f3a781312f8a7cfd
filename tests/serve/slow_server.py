"""A server in a separate process whose searches wait: `python -m tests.serve.slow_server SECONDS|FILE [queries]`.

A search takes SECONDS, or waits until FILE exists; the first one creates FILE.begun. The server prints its URL and,
with `queries`, logs every query.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.serve.live import EchoRetriever

from coseek.data.passage import Hit
from coseek.retrieval.query import Query, QueryLike
from coseek.serve.search_service import serve
from coseek.serve.settings import ServeSettings


class SlowRetriever(EchoRetriever):
    """Waits before every search, for some seconds or for a file."""

    def __init__(self, until: str) -> None:
        super().__init__()
        self.until = until

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        if [Query.of(query).text for query in queries] != ["warm up"]:
            if self.until.isdecimal():
                time.sleep(int(self.until))
            else:
                Path(f"{self.until}.begun").touch()
                while not Path(self.until).exists():
                    time.sleep(0.01)
        return super().search(queries, k)


def main() -> None:
    settings = ServeSettings(port=0, batch=4, log_queries="queries" in sys.argv)
    serve({"slow": lambda: SlowRetriever(sys.argv[1])}, settings, lambda url: print(url, flush=True))


if __name__ == "__main__":
    main()
