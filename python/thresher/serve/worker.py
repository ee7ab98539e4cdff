"""A process that serves a model to a router: python -m thresher.serve.worker, with what it is to do on its input.

The first line is JSON: `model`, the fields of a ServedModel; `socket`, where it listens; `max_body_bytes`. It says by a
line on its output that it listens, and ends when its input does, so that it never outlives the router.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading


def main() -> None:
    """Serves until the input ends, or SIGTERM."""
    order = json.loads(sys.stdin.readline())
    try:
        from thresher.serve.app import create_routes
        from thresher.serve.served_model import ServedModel
        from thresher.web.running import Server

        service = ServedModel(**order["model"]).load()
    except (OSError, ValueError, NotImplementedError, MemoryError, ModuleNotFoundError) as error:
        sys.exit(f"thresher: {error}")
    with service.llm:
        bound = socket.socket(socket.AF_UNIX)
        bound.bind(order["socket"])
        server = Server(
            create_routes(service, order["max_body_bytes"]),
            drain=service.drain,
            abort=service.abort,
            shutdown_s=0,  # the router has waited already
            ready=lambda: print("ready", flush=True),
        )
        threading.Thread(target=_end_with_input, daemon=True).start()
        server.run(sockets=[bound])


def _end_with_input() -> None:
    while os.read(sys.stdin.fileno(), 1 << 10):  # beneath Python's own object, whose lock its end would wait for
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
