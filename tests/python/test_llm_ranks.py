"""Models whose layers several processes share, as MPI starts them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from processes import lines_of, without_settings
from serving import RunningServer, write_model

from thresher import _engine
from thresher.llm import LLM, UnsupportedModelError
from thresher.llm.formats import StoredTensor, quantize
from thresher.llm.loading import load
from thresher.llm.models.sharding import HEAD_SHARE, Share, shard
from thresher.profiler.analysis import build_report
from thresher.profiler.trace import read_trace

_MPIRUN = Path(sys.executable).parent / "mpirun"
_OPTIONS = {"precision": "fp32", "weights": "fp32", "max_length": 128, "max_batch": 4, "kv_cache_bytes": 1 << 20}
_PROMPTS = [[5, 9, 3, 40, 7], [11, 2, 30]]
_SCRIPT = f"""
import json, sys
from thresher import profiler
from thresher.llm import LLM, RankGroup, follow
group = RankGroup()
folders = json.loads(sys.argv[1])
profiler.start(trace=sys.argv[2] + f"/{{group.rank}}.thrtrace" if sys.argv[2] else None)
for folder in folders:
    if group.rank:
        follow(group)
    else:
        with LLM(folder, ranks=group, **{_OPTIONS}) as llm:
            found = llm.generate({_PROMPTS}, max_tokens=12, temperature=0, ignore_eos=True)
        print("tokens", json.dumps([each.completions[0].token_ids for each in found]), flush=True)
profiler.stop()
report = profiler.collect()
rows = [row for phase in report.phases for section in phase.sections for row in section.rows]
assert {{phase.name for phase in report.phases if phase.sections}} >= {{"prefill", "decode"}}, report.phases
print("rank", report.rank, sum(row.count for row in rows if row.opname == "all_reduce"), flush=True)
"""


@pytest.fixture(scope="module")
def mpirun():
    pytest.importorskip("mpi4py", reason="of the extra mpi")
    if not _MPIRUN.exists():
        pytest.skip("no mpirun is installed beside Python")
    if _engine.usable_cores() < 2:
        pytest.skip("two ranks want two cores")
    return [_MPIRUN, "-n", "2", sys.executable]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


def run(command, *args):
    return subprocess.run(
        [*command, *map(str, args)], env=without_settings(), capture_output=True, text=True, timeout=120, check=False
    )


def tokens_alone(folder):
    with LLM(folder, **_OPTIONS) as llm:
        found = llm.generate(_PROMPTS, max_tokens=12, temperature=0, ignore_eos=True)
    return [each.completions[0].token_ids for each in found]


def check_same_tokens(mpirun, folders, traces=""):
    lines = lines_of(run(mpirun, "-c", _SCRIPT, json.dumps([str(folder) for folder in folders]), traces))
    found = [json.loads(line.partition(" ")[2]) for line in lines if line.startswith("tokens")]
    assert found == [tokens_alone(folder) for folder in folders]
    return sorted(tuple(map(int, line.split()[1:])) for line in lines if line.startswith("rank"))


def test_two_ranks_give_the_tokens_of_one_process_and_profiles_name_them(mpirun, folder, tmp_path):
    (first, reduced), (second, followed) = check_same_tokens(mpirun, [folder], tmp_path)
    assert (first, second) == (0, 1)
    assert reduced == followed >= 2 * 2 * 12, "two sums a layer and step, on both ranks"
    for rank in (0, 1):
        trace = read_trace(tmp_path / f"{rank}.thrtrace")
        assert (trace.meta["rank"], trace.meta["world_size"]) == (rank, 2)
        found = build_report(trace)
        assert found["overview"]["total"]["by_category"]["communication"] > 0
        sections = {row["section"] for row in found["operators"] if row["name"] in ("all_reduce", "all_gather")}
        assert sections == {"communication"}


@pytest.mark.thorough
def test_every_architecture_is_shared(mpirun, tmp_path):
    transformers = pytest.importorskip("transformers")
    from small_decoder import write_decoder

    uneven = {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 96}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
    kinds = {
        "Llama": {**uneven, "vocab_size": 161},
        "Qwen2": {},  # biases of queries, keys and values
        "Qwen3": {"head_dim": 32},
        "Qwen3Moe": experts,
        "Phi3": {"pad_token_id": 0},  # queries, keys and values in one weight, and gate and up in one
    }
    folders = [write_decoder(tmp_path / name, name, 1, **kinds[name]) for name in kinds]
    config = transformers.GPT2Config(n_embd=64, n_head=4, n_layer=2, n_positions=256, vocab_size=160, eos_token_id=0)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "GPT2")  # biases everywhere, weights [in, out]
    check_same_tokens(mpirun, [*folders, tmp_path / "GPT2"])


@contextlib.contextmanager
def served(mpirun, folder):
    """A server of two ranks, its mpirun and what it said in the end."""
    options = ("--name", "tiny", "--port", "0", "--precision", "fp32", "--max-length", "400", "--tensor-parallel")
    process = subprocess.Popen(
        [*map(str, mpirun), "-m", "thresher", "serve", str(folder), *options],
        env=without_settings(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        line = process.stdout.readline()
        match = re.fullmatch(r"tiny at (\S+), by 2 ranks\n", line)
        assert match, line + process.stderr.read()
        yield RunningServer(process, match[1])
    finally:
        process.kill()
        process.communicate()


def ranks_of(process):
    """The processes of the ranks, of which rank 0 listens."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes().split(b"\0")
                if b"--tensor-parallel" in command and not command[0].endswith(b"mpirun") and is_below(entry, process):
                    found.append(int(entry.name))
    return found


def is_below(entry, process):
    while entry.name not in ("0", "1"):
        if int(entry.name) == process.pid:
            return True
        entry = Path("/proc") / re.search(r"PPid:\s+(\d+)", (entry / "status").read_text())[1]
    return False


def listens(pid, port):
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
                return f"socket:[{fields[9]}]" in links
    return False


@pytest.mark.thorough
def test_a_server_of_two_ranks_answers_and_ends_when_one_is_killed(mpirun, folder):
    with served(mpirun, folder) as server:
        body = {"model": "tiny", "prompt": "the cat", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        status, answer, _ = server.request("POST", "/v1/completions", body)
        with LLM(folder, precision="fp32", max_length=400) as llm:
            alone = llm.generate("the cat", max_tokens=8, temperature=0, ignore_eos=True)[0].text
        assert (status, answer["choices"][0]["text"]) == (200, alone)
        both = ranks_of(server.process)
        assert len(both) == 2
        follower = next(pid for pid in both if not listens(pid, server.port))
        os.kill(follower, signal.SIGKILL)
        out, err = server.process.communicate(timeout=30)
        assert server.process.returncode != 0
        assert "KILLED BY SIGNAL: 9" in out + err or "signal 9" in out + err


@pytest.mark.thorough
def test_a_server_of_two_ranks_ends_well(mpirun, folder):
    with served(mpirun, folder) as server:
        zero = next(pid for pid in ranks_of(server.process) if listens(pid, server.port))
        os.kill(zero, signal.SIGTERM)
        out, err = server.process.communicate(timeout=30)
        assert (server.process.returncode, out, err) == (0, "", "")


def test_what_a_rank_cannot_do_is_said_once_by_each(mpirun, folder, tmp_path):
    began = time.monotonic()
    done = run(mpirun, "-m", "thresher", "llm", "run", tmp_path / "nothing", "Hello", "--tensor-parallel")
    assert done.returncode == 1 and "expected a model at" in done.stderr
    alone = run([sys.executable], "-m", "thresher", "llm", "run", folder, "Hello", "--tensor-parallel")
    assert alone.returncode == 1 and "expected several ranks, got one; start it by mpirun -n 2" in alone.stderr
    assert time.monotonic() - began < 60


@given(st.integers(1, 500), st.integers(1, 32), st.integers(1, 16))
def test_shares_cover_all_and_differ_by_a_unit(units, unit, size):
    if units < size:
        with pytest.raises(UnsupportedModelError, match="take fewer ranks"):
            Share(0, size).of(units * unit, unit)
        return
    parts = [Share(rank, size).of(units * unit, unit) for rank in range(size)]
    assert [first for first, _ in parts] == [0, *(end for _, end in parts[:-1])]
    assert parts[-1][1] == units * unit
    widths = [end - first for first, end in parts]
    assert max(widths) - min(widths) in (0, unit)


@pytest.mark.parametrize("weights", ["fp32", "q8_0", "q4_1"])
def test_shares_of_weights_are_the_weights(folder, weights):
    loaded = load(folder, weights)
    parts = [shard(loaded.config, loaded.tensors, Share(rank, 2)) for rank in range(2)]
    assert [config.num_heads for config, _ in parts] == [2, 2]
    assert sum(config.intermediate_size for config, _ in parts) == 96
    for name, axis in (("q_proj", 0), ("v_proj", 0), ("o_proj", 1)):
        whole = loaded.tensors[f"model.layers.1.self_attn.{name}.weight"].dequantized()
        pieces = [tensors[f"model.layers.1.self_attn.{name}.weight"].dequantized() for _, tensors in parts]
        np.testing.assert_array_equal(np.concatenate(pieces, axis), whole)
    for name, axis in (("up_proj", 0), ("down_proj", 1)):
        whole = loaded.tensors[f"model.layers.0.mlp.{name}.weight"].dequantized()
        pieces = [tensors[f"model.layers.0.mlp.{name}.weight"].dequantized() for _, tensors in parts]
        np.testing.assert_array_equal(np.concatenate(pieces, axis), whole)
    assert (HEAD_SHARE in parts[0][1]) == (loaded.config.vocab_size % 2 == 0)


def test_models_that_cannot_be_shared_say_why(folder):
    loaded = load(folder)
    with pytest.raises(UnsupportedModelError, match="expected at most 2 ranks, as many as there are heads of keys and"):
        shard(loaded.config, loaded.tensors, Share(0, 3))
    name = "model.layers.0.self_attn.o_proj.weight"
    wide = StoredTensor("f32", (64, 256), np.zeros(64 * 256 * 4, np.uint8))
    tensors = {**loaded.tensors, name: quantize(wide, "q8_0"), name.replace("weight", "columns"): wide}
    with pytest.raises(UnsupportedModelError, match="got those of GPTQ desc_act; run it in one process"):
        shard(loaded.config, tensors, Share(0, 2))


def test_sums_want_ranks():
    graph = _engine.Graph()
    x = graph.input("x", "f32", [4])
    graph.set_outputs(graph.add("all_reduce", [x], {}, "", ""))
    plan = _engine.Plan.build(graph, _engine.WeightStore())
    with pytest.raises(ValueError, match="expected a device of one rank among several, got one that runs alone"):
        plan.run([np.ones(4, np.float32)], [np.empty(4, np.float32)])
    with pytest.raises(ValueError, match="expected a rank below their number, got 2 of 2"):
        _engine.Device.of_rank(2, 2, all_reduce=1, all_gather=1, type=0, sum=0, group=0)
    with pytest.raises(ValueError, match="expected a rank below their number, got 0 of 0"):
        _engine.profile_rank(0, 0)
