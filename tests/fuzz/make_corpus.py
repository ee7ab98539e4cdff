"""Writes the seeds of the fuzz targets into tests/fuzz/corpus: small inputs that lead into every part of a parser.

    python tests/fuzz/make_corpus.py             # into tests/fuzz/corpus
    python tests/fuzz/make_corpus.py --check     # says whether the seeds there are these; exit code 1 if not

Bytes that are no text are kept as digits, in files that end in .hex.
"""

from __future__ import annotations

import argparse
import io
import json
import struct
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).resolve().parent / "corpus"
sys.path.insert(0, str(CORPUS.parents[1] / "python"))
from gguf_writer import gguf  # noqa: E402 found after its folder is on the path

GRAPHS = {
    "encoder": """
        graph 1
        input %0 "ids" : i64[4]
        input %1 "mask" : bool[1, 1, 4, 4]
        weight %2 "table" : f32[7, 8]
        weight %3 "fc.weight" : f32[8, 8]
        weight %4 "fc.bias" : f32[8]
        const %5 "eps" : f32[] = [1e-05]
        %6 = embedding(%2, %0) : f32[4, 8] @ "model.py:7 in forward" in "embeddings"
        %7 = linear(%6, %3, %4) {activation = "gelu", layout = "nk"} : f32[4, 8] in "encoder.layer.0"
        %8 = reshape(%7) {shape = [1, 2, 4, 4]}
        %9 = sdpa(%8, %8, %8, %1) {scale = 0.5} : f32[1, 2, 4, 4]
        %10 = permute(%9) {dims = [0, 2, 1, 3]}
        %11 = reshape(%10) {shape = [4, 8]}
        %12 = add(%11, %6)
        %13 = layer_norm(%12, %4, %4) {eps = 1e-12}
        return %13
    """,
    "halves": """
        graph 1
        input %0 "x" : bf16[4, 8]
        input %1 "ids" : i64[4]
        weight %2 "table" : f16[7, 8]
        weight %3 "fc.weight" : bf16[8, 8]
        weight %4 "fc.bias" : bf16[8]
        const %5 "limits" : bf16[4] = [1, -inf, nan, 0x7fc1]
        const %6 "steps" : f16[2] = [0.5, 65504]
        %7 = linear(%0, %3, %4) {activation = "gelu", layout = "nk"} : bf16[4, 8]
        %8 = embedding(%2, %1) : f16[4, 8]
        %9 = cast(%8) {dtype = "bf16"}
        %10 = mul(%7, %9)
        %11 = gt(%10, %0)
        %12 = floor(%7)
        %13 = layer_norm(%12, %4) : bf16[4, 8]
        %14 = reshape(%13) {shape = [1, 2, 4, 4]}
        %15 = sdpa(%14, %14, %14) {scale = 0.5}
        %16 = permute(%3) {dims = [1, 0]}
        %17 = matmul(%13, %16)
        return %11, %15, %17, %5, %6
    """,
    "norm": """
        graph 1
        # a norm that is written out
        input %x : f32[2, 4]
        const %two : f32[] = [2]
        const %eps : f32[] = [0x3727c5ac]
        weight %scale : f32[4]
        %square = mul(%x, %x)
        %mean = mean(%square) {dims = [-1], keepdim = true}
        %sum = add(%mean, %eps)
        %root = rsqrt(%sum)
        %y = mul(%x, %root)
        %z = mul(%y, %scale)
        %s = softmax(%z) {dim = -1}
        return %s, %x
    """,
    "shapes": """
        graph 1
        input %x "a \\"name\\" \\x41\\n" : f32[2, 3, 4]
        %a = reshape(%x) {shape = [6, 4]}
        %b = slice(%a) {dim = 0, start = 1, end = 5, step = 2}
        %c = expand(%b) {shape = [3, 2, 4]}
        %p = permute(%x) {dims = [1, 0, 2]}
        %d = cat(%c, %p) {dim = 1} : f32[3, 4, 4]
        return %d
    """,
    "pointwise": """
        graph 1
        input %x : f32[5, 3]
        input %y : f32[3]
        const %i : i32[2] = [1, -7]
        const %b : bool[2] = [true, false]
        %z = pointwise(%x, %y) {program = "s0=mul(in0,in1); s1=silu(s0); s2=add(s1,0.5)"}
        %w = select(%z) {dim = 0, index = -1}
        %v = sum(%z) {dims = [0], keepdim = false}
        return %w, %v, %i, %b
    """,
    "products": """
        graph 1
        input %x : f32[2, 8]
        weight %q : f32[8, 8]
        weight %k : f32[8, 8]
        weight %v : f32[8, 8]
        weight %m : f32[8, 3]
        %a = linear(%x, %q)
        %b = linear(%x, %k)
        %c = linear(%x, %v)
        %d = add(%a, %b)
        %e = tanh(%d)
        %f = mul(%e, %c)
        %g = matmul(%f, %m)
        %h = relu(%g)
        return %h
    """,
}

# What the first byte of compiled_graph means.
CHOICES = {
    "O0": "0",
    "O2": "2",
    "O3": "3",
    "bf16": "6",
    "fp16": ":",
    "int8": ">",
    "int8_weight": "B",
    "int4_weight": "F",
}

PROGRAMS = {
    "chain": "s0=mul(in0,in1); s1=silu(s0); s2=add(s1,0.5)",
    "numbers": "s0=add(in0,1e-30);s1=mul(s0,-inf);s2=maximum(s1,nan);\ns3=sub(s2,0x1)",
    "many": ";".join(f"s{i}=add(in{i},{f's{i - 1}' if i else 'in1'})" for i in range(12)),
}

ENVIRONMENTS = {
    "good": "THRESHER_CACHE=off\nTHRESHER_ISA=avx2\nTHRESHER_LOG=debug\nTHRESHER_NUM_THREADS=4\nTHRESHER_PROFILE=1\n",
    "wrong": "THRESHER_NUM_THREADS=0\nTHRESHER_PROFILE_PORT=65536\nTHRESHER_PROFILE_RECORDS=+64\nTHRESHER_ISA=AVX2\n",
    "unknown": "THRESHER_NUM_THREAD=2\nTHRESHER_=\nTHRESHER_CACHE_DIR=/a b\nTHRESHER_PROFILE_TRACE={pid}.thrtrace\n",
}

JSON_TEXTS = {
    "plain": 'a "name" with \\ and \t tab',
    "beyond ascii": "Zähler für 価格 \U0001f33e",
}

MACHINES = {
    "version 2": [
        "0::/group",
        "MemTotal: 8 kB\nMemAvailable:  123456 kB",
        "max 100000",
        "max",
        "150000 100000",
        "65536",
    ],
    "version 1": ["4:cpu,cpuacct:/\n5:memory:/", "MemAvailable: 1 kB", "", "", "", "", "50000", "100000", "1048576"],
    "odd": ["0::/group/../group", "MemAvailable: 1e300", "1e300 1", "9223372036854775807", "nan inf", "-1", "-1", "0"],
}

CHROME_EVENTS: list[dict[str, Any]] = [
    {"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "python"}},
    {"ph": "M", "name": "thread_name", "pid": 7, "tid": 8, "args": {"name": "thread 8"}},
    {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": 7, "tid": 8, "ts": 10.0, "dur": 90.5},
    {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 7, "tid": 8, "ts": 11, "dur": 60},
    {
        "ph": "X",
        "cat": "cpu_op",
        "name": "aten::mm",
        "pid": 7,
        "tid": 8,
        "ts": 12.5,
        "dur": 9.25,
        "args": {"External id": 3, "Input Dims": [[2, 3], [3, 4]], "Input type": ["float", "float"]},
    },
    {
        "ph": "X",
        "cat": "kernel",
        "name": "linear fp32 avx2",
        "pid": 0,
        "tid": 0,
        "ts": 13.001,
        "dur": 3,
        "args": {
            "External id": 3,
            "correlation": 5,
            "flops": 5000.0,
            "bytes": 100,
            "shapes": "2x3, 3x4",
            "module": "fc",
        },
    },
    {"ph": "X", "cat": "privateuse1_runtime", "name": "thresherCall", "pid": 7, "tid": 8, "ts": 12, "dur": 20},
    {"ph": "X", "cat": "python_function", "name": "model.py(7): forward", "pid": 7, "tid": 8, "ts": 12, "dur": 30},
    {
        "ph": "i",
        "name": "[memory]",
        "pid": 7,
        "tid": 8,
        "ts": 14,
        "args": {"Bytes": 64, "Total Allocated": 128, "Total Reserved": 4096, "Addr": 1234, "Device Type": 0},
    },
    {"ph": "B", "cat": "cpu_op", "name": "outer", "pid": 7, "tid": 9, "ts": 15},
    {"ph": "E", "pid": 7, "tid": 9, "ts": 25, "args": {"External id": 4}},
]

RATE = {"median": 100.0, "min": 90.0, "max": 110.0}
PEAKS: dict[str, Any] = {
    "cpu_model": "Test CPU",
    "architecture": "x86_64",
    "isa": "avx2",
    "simd_target": "AVX2",
    "int8_by": "pairs of int16",
    "usable_cores": 2,
    "l1_bytes": 32768,
    "l2_bytes": 524288,
    "l3_bytes": 4194304,
    "l3_cores": 2,
    "engine_version": "0.1.0",
    "measured_at": "2026-01-01T00:00:00+00:00",
    "seconds": 1.5,
    "from_cache": False,
    "by_threads": [
        {
            "num_threads": 1,
            "rounds": 3,
            "bf16_gflops": None,
            **dict.fromkeys(("fp32_gflops", "int8_gops"), RATE),
            **dict.fromkeys((f"{level}_read_gb_per_s" for level in ("l1", "l2", "l3", "dram")), RATE),
            **dict.fromkeys(("dram_write_gb_per_s", "dram_copy_gb_per_s"), RATE),
            **dict.fromkeys((f"{level}_buffer_bytes" for level in ("l1", "l2", "l3", "dram")), 1024),
        }
    ],
}

TUNED: dict[str, Any] = {
    "precision": "fp32",
    "m": 128,
    "n": 64,
    "k": 32,
    "num_threads": 2,
    "isa": "avx2",
    "choice": {"panel_kib": 16, "most_rows": 96, "split": "rows", "variant": "direct"},
    "default_us": [1.0, 2.0, 3.0],
    "tuned_us": [0.5, 1.0, 1.5],
    "candidates": 9,
    "rounds": 15,
    "measured_at": "2026-01-01T00:00:00+00:00",
    "from_cache": False,
    "gain": 0.5,
}

OPERATOR: dict[str, Any] = {
    "name": "linear",
    "phase": "inference",
    "section": "forward",
    "shapes": "2x3, 3x4",
    "count": 4,
    "total_ns": 8000,
    "self_ns": 8000,
    "median_ns": 2000,
}
REPORT: dict[str, Any] = {
    "format": "thresher-profile",
    "format_version": 1,
    "source": {"file": "run.thrtrace", "kind": "native", "complete": True, "truncated": False},
    "machine": {"cpu": "Test CPU", "isa": "avx2", "num_threads": 2},
    "versions": {"thresher": "0.1.0", "torch": "2.13.0", "python": "3.11.7"},
    "health": {"dropped": 0},
    "overview": {
        "total": {"wall_ns": 10000, "by_category": {"kernel": 8000, "gap": 2000}},
        "steps": [{"name": "call 1 to call 3", "wall_ns": 7500}, {"name": "call 4", "wall_ns": 2500}],
        "calls": 4,
    },
    "operators": [OPERATOR],
    "operators_by_shape": [OPERATOR],
}
OP_REPORT: dict[str, Any] = {
    "format": "thresher-op-report",
    "format_version": 1,
    "version": "0.1.0",
    "cpu": "Test CPU",
    "isa": "avx2",
    "num_threads": 2,
    "rank": 0,
    "enabled": False,
    "records": 4,
    "dropped": 0,
    "phases": [
        {
            "phase": "inference",
            "calls": 4,
            "executions": 4,
            "wall_ms": 0.01,
            "sections": [
                {
                    "section": "forward",
                    "rows": [
                        {
                            "rank": 0,
                            "opname": "linear",
                            "count": 4,
                            **dict.fromkeys(("min_ms", "max_ms", "median_ms"), 0.002),
                            "total_ms": 0.008,
                            "percentage": 100.0,
                            "flops": 5000.0,
                            "bytes": None,
                        }
                    ],
                }
            ],
        }
    ],
}

REQUESTS = {
    "status": b"GET /status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    "start": b"POST /start?trace=1 HTTP/1.0\r\nContent-Length: 4\r\n\r\nbody",
    "report": b"GET /report?format=json HTTP/1.1\r\nOrigin: x\r\nSec-Fetch-Site: a\r\n\r\nGET /x HTTP/1.1\r\n\r\n",
}


# Of the server of language models: the first byte chooses the path, lines of headers and the body follow.
CHAT = {"messages": [{"role": "user", "content": "the cat"}], "max_tokens": 3, "temperature": 0}
SERVE_REQUESTS = {
    "completion": b"\0\nx-api-key: a\n\n" + json.dumps({"prompt": "the cat", "max_tokens": 3, "logprobs": 1}).encode(),
    "tokens": b"\0\n\n" + json.dumps({"prompt": [[5, 6], [7]], "max_tokens": 2, "n": 2, "stream": True}).encode(),
    "chat": b"\1\norigin: http://localhost\n\n" + json.dumps({**CHAT, "stop": ["a"], "stream": True}).encode(),
    "response": b"\2\n\n" + json.dumps({"input": "the cat", "max_output_tokens": 16, "instructions": "sit"}).encode(),
    "message": b"\3\n\n" + json.dumps({**CHAT, "model": "tiny", "system": [{"type": "text", "text": "sit"}]}).encode(),
    "tokenize": b"\7\ncontent-type: text/plain\n\n" + json.dumps({"prompt": "the cat"}).encode(),
    "health": b"\x16\nauthorization: Bearer a\n\n",
}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": [1]}, "b": {"type": "array", "maxItems": 2}},
    "required": ["a"],
}
SERVE_SCHEMAS = {
    "schema": b"s" + json.dumps({**SCHEMA, "additionalProperties": False}).encode(),
    "tool": b"t" + json.dumps({**SCHEMA, "$defs": {"x": {"type": "string", "pattern": "a+"}}}).encode(),
    "regex": b"r[ab]{1,3}(c|d)?",
    "grammar": b'gstart: "a" b\nb: /x+/',
}
ANSWERS = {
    "hermes": b'\x05\x03ok<tool_call>\n{"name": "f", "arguments": {"a": "}"}}\n</tool_call>',
    "llama": b'\x02\x01{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}',
    "mistral": b'\x03\x02[TOOL_CALLS][{"name": "f", "arguments": {}}]ok[TOOL_CALLS]g[ARGS]{"b": 2}',
    "thought": b"\x0c\x04 a</think> b",
}


def text(indented: str) -> bytes:
    return textwrap.dedent(indented).lstrip("\n").encode()


def compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def string(value: str) -> bytes:
    return struct.pack("<I", len(value)) + value.encode()


def model_file(*, many: bool = False) -> bytes:
    """A model file as the engine writes it, with zeros for all digests: its target makes them right.

    With `many`, the number of rows is one of 2 to 64.
    """
    graph = text("""
        graph 1
        input %0 "x" : f32[2, 4]
        weight %1 "fc.weight" : f32[3, 4]
        const %2 "half" : f32[] = [0.5]
        %3 = linear(%0, %1) : f32[2, 3] in "fc"
        %4 = mul(%3, %2) : f32[2, 3]
        return %4
    """).decode()
    weights = struct.pack("<12f", *(0.25 * i for i in range(12)))
    rules = struct.pack("<I", 0)
    if many:
        # The name, the largest, the degree; the input's polynomials; what of each node follows them.
        rules = struct.pack("<I", 1) + string("rows") + struct.pack("<qI", 64, 1)
        rules += struct.pack("<IIq", 1, 1, 1) + struct.pack("<IIq", 1, 0, 4) + struct.pack("<II", 1, 0) * 2
    sections = [
        (1, string("block") + string("bf16") + struct.pack("<I", 1) + string("fc*") + struct.pack("<Id", 1, 0.25)),
        (3, struct.pack("<I", 1) + string("output") + struct.pack("<II", 1, 0) + string(graph) + rules),
        (2, struct.pack("<I", 1) + string("fc.weight") + struct.pack("<IIqqQ16x", 0, 2, 3, 4, 0)),
        (4, weights),
    ]
    at = 64 + 40 * len(sections)
    table, body = b"", b""
    for kind, content in sections:
        padding = -at % 64
        table += struct.pack("<IIQQ16x", kind, 0, at + padding, len(content))
        body += b"\0" * padding + content
        at += padding + len(content)
    header = struct.pack("<8sIIQ16x24s", b"THRMODEL", 2, len(sections), at, b"0.1.0")
    return header + table + body


def native_trace() -> bytes:
    """A trace of the engine with zeros for all checksums: its target makes them right."""

    def block(tag: bytes, payload: bytes) -> bytes:
        return struct.pack("<4sIQ", tag, 0, len(payload)) + payload + b"\0" * (-len(payload) % 8)

    def record(start: int, end: int, site: int, event: int, kind: int, value: int = 0) -> bytes:
        numbers = (start, end, 1, 1, value, 2, 3, site, 0, 0, event, kind, 0, 1, 0)
        return struct.pack("<qqQQqIIIIHHBBBB", *numbers)

    head = {"engine_version": "0.1.0", "isa": "avx2", "cpu": "Test CPU", "num_threads": 2, "pid": 7, "start_ns": 1000}
    site = {
        "id": 1,
        "name": "linear",
        "kernel": "linear fp32",
        "hardware": 34,
        "section": "forward",
        "shapes": "2x3, 3x4",
        "dtypes": "f32, f32",
        "module": "encoder.fc",
        "flops": 48.0,
        "bytes": 104.0,
        "step": 0,
    }
    # An operator in an execution in a call, then memory, a step and a range.
    rows = [(2000, 3000, 1, 9, 0), (1900, 3100, 0, 5, 1), (1800, 3200, 0, 39, 2)]
    rows += [(2100, 2100, 0, 0, 4, 64), (1700, 3300, 0, 0, 6, 1), (2000, 2500, 1, 0, 5), (2600, 2900, 1, 34, 7)]
    return b"".join(
        [
            struct.pack("<8sII", b"THRTRACE", 1, 64),
            block(b"HEAD", compact(head)),
            block(b"DATA", compact({"script": "a.py", "torch": "2.13.0", "peaks": {"by_threads": []}})),
            block(b"SITE", compact([site])),
            block(b"RECS", b"".join(record(*row) for row in rows)),
            block(b"TAIL", compact({"stop_ns": 4000, "records": len(rows), "dropped": 0})),
        ]
    )


def arrays() -> dict[str, bytes]:
    import numpy as np

    found = {}
    for name, array in {"floats": np.arange(6, dtype="f4").reshape(2, 3), "flags": np.array([True, False])}.items():
        stream = io.BytesIO()
        np.save(stream, array)
        found[name] = stream.getvalue()
    return found


def weights() -> dict[str, bytes]:
    """Files of weights by the paths of their seeds."""
    metadata = {
        "general.architecture": "llama",
        "general.alignment": 32,
        "tokens": ["a", b"\xff"],
        "ids": [1],
        "on": True,
    }
    blocks = {"q8_0": 34, "q4_1": 20, "q5_0": 22, "iq4_nl": 18, "mxfp4": 17}
    blocked = {name: (name, (1, 32), bytes(size)) for name, size in blocks.items()}
    header = json.dumps(
        {"__metadata__": {"format": "pt"}, "w": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}
    )
    return {
        "gguf_file/blocks.hex": gguf(blocked, metadata),
        "gguf_file/wide.hex": gguf({"k": ("q6_k", (1, 256), bytes(210)), "f": ("f32", (1,), bytes(4))}, version=2),
        "safetensors_file/half.hex": struct.pack("<Q", len(header)) + header.encode() + bytes(4),
    }


# Lines of a recording; @NAME is the digest of a file that the target has made (tests/fuzz/recording_files.h).
_RECORDED = [
    "thresher recording 1",
    "model a small one",
    "precision fp32",
    "step_tokens 16",
    "exact 1",
    "layout @layout",
    "source @weights.bin weights.bin",
    "parts parts.bin",
    "part 0123456789abcdef0123456789abcdef @part 64 64",
    "constants @constants.bin constants.bin",
    "constant 0 0 112 table",
    "constant 1 16 16 scale",
    *(f"graph {part} {rows} @{part}.{rows} {part}.{rows}" for part in ("body", "head") for rows in (1, 2, 3, 5)),
    "request 0.000000 2 3 5 6 1 2 3",
    "request 0.250000 1 1 4 0",
    "end",
]
RECORDINGS = {
    "whole": _RECORDED,
    "cut": _RECORDED[:-2],
    "absurd": [line.replace("request 0.250000 1 1", "request 0 1048576 1") for line in _RECORDED],
    "elsewhere": [line.replace("constants.bin constants.bin", "constants.bin /dev/zero") for line in _RECORDED],
}


def seeds() -> Iterator[tuple[str, bytes]]:
    """Paths below the folder of the corpus, and the bytes of the files there."""
    for name, graph in GRAPHS.items():
        yield f"graph_text/{name}.txt", text(graph)
        yield f"graph_drawing/{name}.txt", text(graph)
        for label, choice in CHOICES.items():
            yield f"compiled_graph/{name}_{label}.txt", choice.encode() + text(graph)
    for target, texts in (("program_text", PROGRAMS), ("environment", ENVIRONMENTS), ("json_text", JSON_TEXTS)):
        for name, content in texts.items():
            yield f"{target}/{name.replace(' ', '_')}.txt", content.encode()
    for name, parts in MACHINES.items():
        yield f"machine_files/{name.replace(' ', '_')}.txt", "\n---\n".join(parts).encode()
    for name, lines in RECORDINGS.items():
        yield f"recording/{name}.txt", "".join(f"{line}\n" for line in lines).encode()
    yield "json_text/number.hex", digits(struct.pack("<d", -1.5e300))
    yield "model_file/block.hex", digits(model_file())
    yield "model_file/many.hex", digits(model_file(many=True))
    yield "native_trace/run.hex", digits(native_trace())
    members = {"schemaVersion": 1, "baseTimeNanoseconds": 1000, "traceEvents": CHROME_EVENTS, "with_stack": 1}
    trace = json.dumps({**members, "thresher": {"num_threads": 2, "peaks": PEAKS}}).encode()
    yield "chrome_trace/run.json", trace
    yield "chrome_trace/events.json", compact(CHROME_EVENTS)
    yield "chrome_trace/compressed.txt", b"Z" + trace
    entry = {"kind": "peaks", "key": {"num_threads": [1]}, "machine": {"isa": "avx2"}, "engine_version": "0.1.0"}
    entry |= {"format": "thresher-cache-1", "stored_at": "2026-01-01T00:00:00+00:00", "checksum": ""}
    yield "cache_entry/peaks.json", compact({**entry, "value": PEAKS})
    yield "cache_entry/tuning.json", compact({**entry, "kind": "tuning", "value": {"products": [TUNED]}})
    yield "tuning_spec/product.json", compact({"format": "thresher-tuning-1", "products": [TUNED]})
    yield "report_file/report.json", compact(REPORT)
    yield "report_file/op_report.json", compact(OP_REPORT)
    for name, request in REQUESTS.items():
        yield f"profiler_request/{name}.hex", digits(request)
    for target, kept in (("serve_request", SERVE_REQUESTS), ("serve_schema", SERVE_SCHEMAS), ("answer_text", ANSWERS)):
        for name, content in kept.items():
            yield f"{target}/{name}.hex", digits(content)
    for name, file in weights().items():
        yield name, digits(file)
    for name, array in arrays().items():
        yield f"array_file/{name}.hex", digits(array)


def digits(data: bytes) -> bytes:
    return "".join(f"{data[at : at + 48].hex()}\n" for at in range(0, len(data), 48)).encode()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where files differ")
    check = parser.parse_args().check
    wanted = dict(seeds())
    found = {str(path.relative_to(CORPUS)): path for path in CORPUS.rglob("*") if path.is_file()}
    different = sorted(name for name, data in wanted.items() if name not in found or found[name].read_bytes() != data)
    extra = sorted(found.keys() - wanted.keys())
    if check:
        for name in (*different, *extra):
            print(f"{CORPUS / name}: {'is not a seed' if name in extra else 'differs'}", file=sys.stderr)
        return int(bool(different or extra))
    for name in different:
        path = CORPUS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(wanted[name])
    for name in extra:
        found[name].unlink()
    print(f"{len(wanted)} seeds, {sum(map(len, wanted.values()))} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
