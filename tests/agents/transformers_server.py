"""`transformers serve` on a free port, in a process of its own: `python -m tests.agents.transformers_server`.

Prints its address. The command itself asks for `accelerate` as soon as a device is named, and always names one; the
processor needs neither, so the device is taken back before the first model is loaded. All else is the command's own.
"""

import threading
import time

from transformers.cli.serve import Serve


def main() -> None:
    served = Serve(host="127.0.0.1", port=0, device="cpu", non_blocking=True)
    served._model_manager.device = None  # type: ignore[assignment]  # it is only handed on, and may be None there
    while not served.server.started:
        time.sleep(0.05)
    port = served.server.servers[0].sockets[0].getsockname()[1]
    print(f"http://127.0.0.1:{port}", flush=True)
    threading.Event().wait()  # the end of the main thread would end the pools of the others


if __name__ == "__main__":
    main()
