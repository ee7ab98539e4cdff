"""thresher.serve.ray_app on a cluster of two nodes, which are processes of this machine; needs Ray."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import threading
import time
from pathlib import Path

import pytest
from serving import write_model

import thresher.serve

ray = pytest.importorskip("ray")
from ray import serve  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

pytestmark = pytest.mark.thorough

_LONG = {"prompt": "the cat", "max_tokens": 300, "ignore_eos": True, "temperature": 0}
_SLOW = {**_LONG, "n": 4}


def _free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.fixture(scope="module")
def cluster_port():
    """Of two nodes, on which serve.run deploys what it is given."""
    node = {"num_cpus": 1, "object_store_memory": 80_000_000}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    try:
        cluster.add_node(**node)
        ray.init(address=cluster.address, log_to_driver=False)
        found = _free_port()
        serve.start(http_options={"host": "127.0.0.1", "port": found})
        yield found
        serve.shutdown()
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


def _deploy(folder, **replicas):
    options = {"precision": "fp32", "weights": "q8_0", "max_length": 500, "max_batch": 16}
    serve.run(thresher.serve.ray_app(folder, "tiny", api_keys=["k"], **replicas, **options))


@pytest.fixture(scope="module")
def port(cluster_port, folder):
    """Where two replicas answer, one a node."""
    _deploy(folder, min_replicas=2, max_replicas=2)
    return cluster_port


def _ask(port, path, body=None, key="k"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    try:
        connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        return answer.status, json.loads(text) if "json" in answer.headers.get("content-type", "") else text
    finally:
        connection.close()


def _replicas():
    """Process ids of the replicas of this cluster."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if b"ServeReplica:default:Model" in each.read_bytes() and os.getpid() in _parents(int(each.parent.name)):
                found.append(int(each.parent.name))
    return found


def _parents(pid):
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        yield pid


def test_answers_streams_and_errors(port):
    body = {"prompt": "the cat sat", "max_tokens": 12, "temperature": 0}
    status, answer = _ask(port, "/v1/completions", body)
    assert status == 200
    status, events = _ask(port, "/v1/completions", {**body, "stream": True})
    parts = [json.loads(part)["choices"][0]["text"] for part in re.findall(r"data: (\{.*\})", events)]
    assert "".join(parts) == answer["choices"][0]["text"] and events.endswith("data: [DONE]\n\n")
    status, error = _ask(port, "/v1/completions", {**body, "temperature": 9})
    assert (status, error["error"]["param"]) == (400, "temperature")
    assert _ask(port, "/v1/models", key=None)[0] == 401
    assert _ask(port, "/v1/models")[1]["data"][0]["id"] == "tiny"
    assert _ask(port, "/health", key=None)[1]["status"] == "ok"


def test_a_beginning_goes_where_it_is_known(port):
    for number in range(6):
        text = f"{number} " + "the cat sat on the mat and " * 8
        for turn in range(3):
            text += "while a dog ran round the old house " * turn
            usage = _ask(port, "/v1/completions", {"prompt": text, "max_tokens": 2})[1]["usage"]
            found = usage["prompt_tokens_details"]["cached_tokens"]
            assert (found > usage["prompt_tokens"] // 3) == (turn > 0), (number, turn, usage)


def test_who_leaves_is_forgotten(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = json.dumps({**_LONG, "max_tokens": 490, "n": 12, "stream": True})
    connection.request(
        "POST", "/v1/completions", body, {"Authorization": "Bearer k", "Content-Type": "application/json"}
    )
    answer = connection.getresponse()
    assert answer.read(20)
    answer.close()
    connection.close()
    end = time.monotonic() + 10
    quiet = 0
    while quiet < 6:  # both replicas are asked in turn
        quiet = quiet + 1 if _ask(port, "/health")[1]["running"] == 0 else 0
        assert time.monotonic() < end, "an answer goes on that nobody waits for"


def test_a_replica_that_is_killed_takes_its_own_requests_along(port):
    wanted = _ask(port, "/v1/completions", _SLOW)[1]["choices"][0]["text"]
    found: list = []
    threads = [threading.Thread(target=lambda: found.append(_ask(port, "/v1/completions", _SLOW))) for _ in range(8)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 20
    while _ask(port, "/health")[1]["running"] < 8:
        assert time.monotonic() < end, "expected answers"
    os.kill(_replicas()[0], signal.SIGKILL)
    for thread in threads:
        thread.join(timeout=60)
    good = [answer for status, answer in found if status == 200]
    bad = [(status, answer["error"]["code"]) for status, answer in found if status != 200]
    assert set(bad) == {(503, "process_lost")}
    assert good and {choice["text"] for answer in good for choice in answer["choices"]} == {wanted}
    assert _ask(port, "/v1/completions", _SLOW)[0] == 200


def test_more_than_all_can_do_is_429(port):
    found: list = []
    threads = [threading.Thread(target=lambda: found.append(_ask(port, "/v1/completions", _SLOW))) for _ in range(150)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    statuses = [status for status, _ in found]
    assert set(statuses) == {200, 429}
    assert all(answer["error"]["code"] == "queue_full" for status, answer in found if status == 429)


def test_options_are_checked(tmp_path):
    with pytest.raises(ValueError, match="expected 1 <= min_replicas <= max_replicas, got 3 and 2"):
        thresher.serve.ray_app(tmp_path, min_replicas=3, max_replicas=2)


def test_much_to_do_brings_a_second_replica(cluster_port, folder):
    serve.delete("default")
    _deploy(folder, min_replicas=1, max_replicas=2)
    end = time.monotonic() + 180
    found: list = []

    def ask_on():
        while len(_replicas()) < 2 and time.monotonic() < end:
            found.append(_ask(cluster_port, "/v1/completions", _LONG)[0])

    assert len(_replicas()) == 1
    threads = [threading.Thread(target=ask_on) for _ in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(_replicas()) == 2, f"{len(found)} requests in three minutes, and one replica"
    assert set(found) <= {200, 429} and 200 in found
