"""The worker's half of the protocol: answers one JSON line for every JSON line it reads.

Runs inside the environment under test. Replies leave through a private copy of standard output, and standard output
itself is pointed at standard error, so that a library which prints cannot disturb the conversation.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

Handler = Callable[[dict[str, Any]], dict[str, Any]]


def serve(handlers: Mapping[str, Handler]) -> int:
    """Answers commands until standard input ends or the command "quit" comes.

    A command is {"do": NAME, ...}; the reply is {"ok": true, "result": {...}} or, where the handler raised,
    {"ok": false, "error": ONE_LINE, "traceback": TEXT}: the worker goes on after an error.

    Returns:
      The exit status of the process: 0.
    """
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        command = json.loads(line)
        name = command.pop("do")
        if name == "quit":
            break
        try:
            handler = handlers.get(name)
            if handler is None:
                raise ValueError(f"unknown command '{name}'; this worker knows {', '.join(sorted(handlers))}")
            reply = {"ok": True, "result": handler(command)}
        except Exception as error:  # the driver decides what an error means; the worker only reports it
            reply = {
                "ok": False,
                "error": f"{type(error).__name__}: {error}",
                "traceback": traceback.format_exc(),
            }
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
    return 0
