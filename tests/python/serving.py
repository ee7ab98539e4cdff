"""A server process with a small model of random weights, for the tests of thresher serve."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from processes import without_settings

_TEXT = "the cat sat on the mat and looked at the moon while a dog ran round the old house in the rain"
# Takes tools as Qwen's does, and begins a thought where it is asked to.
TEMPLATE = (
    "{% if tools %}<s>tools: {% for t in tools %}{{ t | tojson }}{% endfor %} in <tool_call></s>{% endif %}"
    "{% for m in messages %}{% if m.role == 'bad' %}{{ raise_exception('no such role') }}{% endif %}"
    "<s>{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}"
    "</s>{% endfor %}{% if add_generation_prompt %}<s>assistant: {% if enable_thinking %}<think>\n{% endif %}"
    "{# </think> #}{% endif %}"
)


def write_model(path: Path, template: str | None = TEMPLATE, *, positions: int = 512) -> Path:
    """A folder with a small Llama of random weights and a tokenizer of pairs of bytes."""
    from safetensors.numpy import save_file
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    path.mkdir(parents=True, exist_ok=True)
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=["<s>", "</s>"])
    backend.train_from_iterator([_TEXT] * 10, trainer)
    backend.add_tokens([AddedToken(mark, normalized=False) for mark in ("<tool_call>", "</tool_call>")])
    backend.save(str(path / "tokenizer.json"))
    described: dict[str, Any] = {"eos_token": "</s>"}
    if template is not None:
        described["chat_template"] = template
    (path / "tokenizer_config.json").write_text(json.dumps(described))
    vocabulary, width, inner, heads, pairs = backend.get_vocab_size(), 64, 96, 4, 2
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": pairs,
        "max_position_embeddings": positions,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "eos_token_id": 1,
    }
    (path / "config.json").write_text(json.dumps(config))
    random = np.random.default_rng(1)
    size = width // heads
    shapes = {"model.embed_tokens": (vocabulary, width), "lm_head": (vocabulary, width)}
    for layer in range(2):
        of = f"model.layers.{layer}."
        shapes |= {
            f"{of}self_attn.q_proj": (width, width),
            f"{of}self_attn.k_proj": (pairs * size, width),
            f"{of}self_attn.v_proj": (pairs * size, width),
            f"{of}self_attn.o_proj": (width, width),
            f"{of}mlp.gate_proj": (inner, width),
            f"{of}mlp.up_proj": (inner, width),
            f"{of}mlp.down_proj": (width, inner),
        }
    tensors = {f"{n}.weight": (random.standard_normal(s) * 0.3).astype(np.float32) for n, s in shapes.items()}
    norms = ["model.norm", *(f"model.layers.{i}.{n}_layernorm" for i in range(2) for n in ("input", "post_attention"))]
    tensors |= {f"{name}.weight": np.ones(width, np.float32) for name in norms}
    save_file(tensors, str(path / "model.safetensors"))
    return path


class RunningServer:
    """A server process that listens."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.url = url  # with /v1
        self.port = int(url.rpartition(":")[2].partition("/")[0])

    def connection(self) -> http.client.HTTPConnection:
        """A new connection."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def request(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any, http.client.HTTPMessage]:
        """Status, body (read, where it is JSON) and headers of an answer."""
        connection = self.connection()
        try:
            data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
            answer = connection.getresponse()
            text = answer.read()
            is_json = (answer.headers.get("content-type") or "").startswith("application/json")
            return answer.status, json.loads(text) if is_json else text.decode(), answer.headers
        finally:
            connection.close()

    def metrics(self) -> dict[str, float]:
        """The numbers of /metrics by name, without labels; of several with a name their sum."""
        found: dict[str, float] = {}
        for line in self.request("GET", "/metrics")[1].splitlines():
            match = re.fullmatch(r"([\w:]+)(?:\{.*\})? (\S+)", line)
            if match:
                found[match[1]] = found.get(match[1], 0.0) + float(match[2])
        return found

    def wait_for(self, holds: Any, what: str, seconds: float = 20) -> dict[str, float]:
        """Waits until something holds of the metrics."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            metrics = self.metrics()
            if holds(metrics):
                return metrics
            time.sleep(0.02)
        raise AssertionError(f"expected {what} within {seconds} s, got {metrics}")

    def wait_idle(self) -> dict[str, float]:
        """Waits until nothing runs or waits, and no page is used."""
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
        return self.wait_for(lambda m: not any(m[name] for name in names), "an idle server")


@contextmanager
def serving(command: Sequence[str | Path], *, ends_well: bool = True) -> Iterator[RunningServer]:
    """Runs Python with arguments that make it a server, until the block ends."""
    process = subprocess.Popen(
        [sys.executable, *map(str, command)],
        env=without_settings(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        match = re.search(r" at (http\S+)", line)
        if match is None:
            process.kill()
            raise AssertionError(f"expected an address, got {line!r}: {process.communicate()[1]}")
        yield RunningServer(process, match[1])
        if process.poll() is None:
            process.terminate()
        _, errors = process.communicate(timeout=60)
        if ends_well:
            assert process.returncode == 0, (process.returncode, errors)
            assert "Traceback" not in errors, errors
    finally:
        process.kill()
        process.wait()


def serve_command(model: Path, *options: str) -> list[str]:
    """Arguments of Python for `thresher serve` on a free port."""
    own = ["--precision", "fp32", "--name", "tiny", "--port", "0", "--threads", "1"]
    return ["-m", "thresher", "serve", str(model), *own, *options]
