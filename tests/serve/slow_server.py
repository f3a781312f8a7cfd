"""A server in a process of its own whose searches take a while: `python -m tests.serve.slow_server SECONDS [queries]`.

Prints its URL. With `queries`, the log holds what was asked.
"""

import sys
import time
from collections.abc import Sequence

from tests.serve.live import EchoRetriever

from coseek.data.passage import Hit
from coseek.retrieval.query import Asked, Query
from coseek.serve.running import serve
from coseek.serve.settings import ServeSettings


class SlowRetriever(EchoRetriever):
    """Takes its time for every search."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def search(self, queries: Sequence[Asked], k: int) -> list[list[Hit]]:
        if [Query.of(query).text for query in queries] != ["warm up"]:
            time.sleep(self.seconds)
        return super().search(queries, k)


def main() -> None:
    settings = ServeSettings(port=0, batch=4, log_queries="queries" in sys.argv)
    serve({"slow": lambda: SlowRetriever(float(sys.argv[1]))}, settings, lambda url: print(url, flush=True))


if __name__ == "__main__":
    main()
