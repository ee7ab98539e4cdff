"""Report data that look like a profile of MiniLM, for tests of the page and for looking at it.

    python tests/browser/synthetic_report.py page.html              # one run
    python tests/browser/synthetic_report.py page.html --events 60000 --diff

Everything is derived from one simulated timeline, so sums and rows agree as those of a real report do.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

Json = dict[str, Any]

CATEGORIES = ["kernel", "copy", "communication", "runtime", "host", "other", "gap"]
TIMELINE_CATEGORIES = [
    *("kernel", "copy", "communication", "runtime", "host", "annotation", "call", "execution", "step", "memory"),
    *("python", "other"),
]
# What the breakdown counts an interval as; steps and calls only frame other things.
COUNTED = {"kernel": 0, "copy": 1, "communication": 2, "runtime": 3, "execution": 3, "host": 4, "annotation": 5}
PEAKS = [
    {
        "num_threads": 1,
        "fp32_gflops": 259.0,
        "bf16_gflops": 479.0,
        "int8_gops": 1038.0,
        "dram_read_gbytes": 38.2,
        "l1_read_gbytes": 402.0,
        "l2_read_gbytes": 121.0,
        "l3_read_gbytes": 64.5,
    },
    {
        "num_threads": 2,
        "fp32_gflops": 501.0,
        "bf16_gflops": None,
        "int8_gops": 2011.0,
        "dram_read_gbytes": 65.1,
        "l1_read_gbytes": 801.0,
        "l2_read_gbytes": 240.0,
        "l3_read_gbytes": 98.0,
    },
]
HIDDEN, INNER = 384, 1536


class _Op:
    """One operator of the model: what runs, where it stands and how long it takes."""

    def __init__(self, name: str, kernel: str, shapes: str, module: str, line: int, flops: float, traffic: float):
        self.name, self.kernel, self.shapes, self.module = name, kernel, shapes, module
        self.source = f"modeling_bert.py:{line} in forward"
        self.flops, self.bytes = flops, traffic
        self.section = "reshape" if name == "permute" else "forward"
        self.hardware = "copy" if name == "permute" else "kernel"
        self.modelled = name != "masked_mean"
        # A time near the roofs, the larger of both, and a little overhead.
        self.base_ns = max(flops / 205.0, traffic / 31.0) + 900


def _model(layers: int, tokens: int) -> list[_Op]:
    rows = f"1x{tokens}x{HIDDEN}"
    elements = tokens * HIDDEN

    def product(name: str, module: str, line: int, k: int, n: int) -> _Op:
        flops = 2.0 * tokens * k * n
        return _Op(
            name,
            f"{name} fp32 avx512",
            f"1x{tokens}x{k}, {k}x{n}",
            module,
            line,
            flops,
            4.0 * (tokens * k + k * n + tokens * n),
        )

    def norm(module: str, line: int) -> _Op:
        return _Op(
            "layer_norm", "layer_norm fp32 avx512", f"{rows}, {HIDDEN}", module, line, 8.0 * elements, 12.0 * elements
        )

    ops = [
        _Op(
            "embedding",
            "embedding fp32 avx512",
            f"30522x{HIDDEN}, 1x{tokens}",
            "embeddings.word_embeddings",
            98,
            0.0,
            8.0 * elements,
        ),
        norm("embeddings.LayerNorm", 104),
    ]
    for layer in range(layers):
        at = f"encoder.layer.{layer}"
        ops += [
            product("linears", f"{at}.attention.self.query", 187, HIDDEN, 3 * HIDDEN),
            _Op("permute", "permute fp32", rows, f"{at}.attention.self", 192, 0.0, 8.0 * elements),
            _Op(
                "sdpa",
                "sdpa fp32 avx512",
                f"1x12x{tokens}x32",
                f"{at}.attention.self",
                201,
                4.0 * tokens * tokens * HIDDEN,
                16.0 * elements,
            ),
            product("linear", f"{at}.attention.output.dense", 288, HIDDEN, HIDDEN),
            norm(f"{at}.attention.output.LayerNorm", 291),
            product("linear", f"{at}.intermediate.dense", 412, HIDDEN, INNER),
            product("linear", f"{at}.output.dense", 431, INNER, HIDDEN),
            norm(f"{at}.output.LayerNorm", 434),
        ]
    ops.append(_Op("masked_mean", "masked_mean fp32", rows, "pooler", 52, 3.0 * elements, 4.0 * elements))
    return ops


class _Timeline:
    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.events: list[tuple[int, int, int, int, int, int, int, int]] = []
        self.pairs: list[tuple[int, int]] = []

    def add(
        self, lane: int, row: int, start: int, end: int, name: str, category: str, site: int = -1, number: int = 0
    ) -> None:
        index = self.names.setdefault(name, len(self.names))
        self.events.append((start, end - start, lane, row, index, TIMELINE_CATEGORIES.index(category), site, number))


def build(calls: int = 24, *, layers: int = 6, tokens: int = 32, seed: int = 7, speed: float = 1.0) -> Json:
    """A report of so many calls of the model.

    Args:
      calls: how many steps.
      layers: of the model.
      tokens: the sequence length.
      seed: of the noise.
      speed: what every kernel's time is multiplied with.
    """
    noise = random.Random(seed)
    ops = _model(layers, tokens)
    line = _Timeline()
    runs: dict[int, list[int]] = defaultdict(list)
    steps, memory, curve = [], [], []
    number, now, allocated = 1, 40_000, 91_226_112
    arena = 0x7F3A_1C00_0000
    memory.append((0, "Allocation", allocated, arena, allocated, "weights"))

    for call in range(calls):
        start = now
        warm = 3.2 if call == 0 else 1.0
        now += noise.randint(190_000, 260_000)
        line.add(0, 3, start + 40_000, now - 9_000, "aten::to", "host")
        call_start = now
        size = noise.randint(40, 56) * 1_048_576
        allocated += size
        memory.append((now, "Allocation", size, arena + call * size, allocated, "arena of graph_0"))
        execution = now + noise.randint(12_000, 19_000)
        now = execution + noise.randint(600, 1_200)
        for site, op in enumerate(ops):
            took = int(op.base_ns * warm * speed * noise.lognormvariate(0, 0.06))
            line.add(0, 4, now, now + took, "thresherNodeCompute", "runtime", site, number)
            line.add(1, 0, now, now + took, op.kernel, op.hardware, site, number)
            runs[site].append(took)
            number += 1
            now += took + noise.randint(900, 1_900)
        line.add(0, 3, execution, now, "thresherGraphExecution", "execution", -1, call + 1)
        now += noise.randint(21_000, 29_000)
        line.add(0, 2, call_start, now, "thresherCall", "call")
        pooled = now + noise.randint(290_000, 350_000)
        line.add(0, 1, call_start - 3_000, pooled, "encode sentences", "annotation")
        line.add(0, 2, now + 15_000, pooled - 5_000, "aten::linalg_vector_norm", "host")
        line.add(2, 0, start, start + noise.randint(300_000, 700_000), "tokenize batch", "annotation")
        allocated -= size
        memory.append((pooled, "Release", size, arena + call * size, allocated, "arena of graph_0"))
        now = pooled + noise.randint(120_000, 400_000)
        line.add(0, 0, start, now, f"Step#{call}", "step")
        steps.append((f"Step#{call}", start, now))
        now += noise.randint(200, 900)

    wall = now
    line.events.sort(key=lambda event: (event[0], -event[1]))
    hosts = {event[7]: i for i, event in enumerate(line.events) if event[2] == 0 and event[6] >= 0}
    line.pairs = [(hosts[event[7]], i) for i, event in enumerate(line.events) if event[2] == 1]
    breakdown = _breakdown(line, steps, wall)
    for when, _, _, _, after, _ in sorted(memory):
        curve.append((when, after))
    peak_at, peak = max(curve, key=lambda point: point[1])
    operators = _rows(ops, runs, lambda op: (op.name,))
    by_shape = _rows(ops, runs, lambda op: (op.name, op.shapes))
    kernels = _rows(ops, runs, lambda op: (op.kernel,))
    for row in kernels:
        row["name"], row["module"] = row["kernel"], None
    return {
        "format": "thresher-profile",
        "format_version": 1,
        "title": f"all-MiniLM-L6-v2, batch 1, sequence {tokens}",
        "source": {
            "file": "minilm.thrtrace",
            "kind": "native",
            "complete": True,
            "truncated": False,
            "events": len(line.events),
            "shown": len(line.events),
            "sampled": False,
            "note": "",
        },
        "machine": {
            "cpu": "AMD EPYC 9755 128-Core Processor",
            "isa": "AVX3_ZEN4",
            "num_threads": 1,
            "peaks": {
                "threads": PEAKS,
                "cache_bytes": {"l1": 49_152, "l2": 1_048_576, "l3": 33_554_432, "l3_cores": 16},
            },
            "peaks_reason": None,
        },
        "versions": {"thresher": "0.1.0", "torch": "2.13.0", "python": "3.11.7"},
        "time": {"start_unix_ns": 1_795_291_204_123_456_789, "wall_ns": wall},
        "health": {
            "dropped": 0,
            "unlinked": 0,
            "out_of_window": 0,
            "before_launch": 0,
            "overlapping": 0,
            "bad_times": 0,
            "unknown_events": 0,
            "malformed": 0,
            "messages": [],
        },
        "energy": {
            "joules": None,
            "reason": "RAPL counters are not readable: /sys/class/powercap/intel-rapl:0/energy_uj needs root",
            "domains": [],
        },
        "overview": {
            "categories": CATEGORIES,
            "total": breakdown[0],
            "steps": breakdown[1],
            "note": "Steps are those that profiler.step() ended.",
            "findings": _findings(operators, breakdown[0]),
        },
        "operators": operators,
        "operators_by_shape": by_shape,
        "kernels": kernels,
        "runtime": _runtime(line),
        "modules_flat": [],
        "timeline": _timeline(line, ops),
        "memory": {
            "curve": {
                "time_ns": [when for when, _ in curve],
                "allocated": [after for _, after in curve],
                "reserved": [after + 4_194_304 - after % 4_194_304 for _, after in curve],
            },
            "peak_bytes": peak,
            "peak_time_ns": peak_at,
            "events": [
                dict(zip(("time_ns", "kind", "bytes", "address", "allocated", "name"), event, strict=True))
                for event in sorted(memory)
            ],
            "total_events": len(memory),
            "reason": None,
        },
        "modules": _modules(ops, runs),
        "roofline": {
            "roofs": [
                {"name": "fp32", "gflops": 259.0},
                {"name": "bf16", "gflops": 479.0},
                {"name": "DRAM", "gbytes_per_s": 38.2},
                {"name": "L3", "gbytes_per_s": 64.5},
                {"name": "L2", "gbytes_per_s": 121.0},
                {"name": "L1", "gbytes_per_s": 402.0},
            ],
            "points": [
                {
                    key: row[key]
                    for key in (
                        *("name", "shapes", "count", "total_ns", "intensity", "gflops", "percent_of_peak", "bound"),
                        *("precision", "phase"),
                    )
                }
                for row in by_shape
                if row["gflops"]
            ],
            "num_threads": 1,
            "reason": None,
        },
    }


def _breakdown(line: _Timeline, steps: list[tuple[str, int, int]], wall: int) -> tuple[Json, list[Json]]:
    """Gives every nanosecond to the first category that was active then."""
    edges: list[tuple[int, int, int]] = []
    for start, duration, _, _, _, category, _, _ in line.events:
        counted = COUNTED.get(TIMELINE_CATEGORIES[category])
        if counted is not None and duration:
            edges += [(start, 1, counted), (start + duration, -1, counted)]
    cuts = {0, wall} | {edge for _, start, end in steps for edge in (start, end)}
    edges += [(cut, 0, 0) for cut in cuts]
    edges.sort()
    active = [0] * len(CATEGORIES)
    pieces: list[tuple[int, int, int]] = []
    before = 0
    for when, change, category in edges:
        if when > before:
            pieces.append((before, when, next((i for i, n in enumerate(active) if n), len(CATEGORIES) - 1)))
            before = when
        active[category] += change

    def parts(inside: list[tuple[int, int, int]]) -> dict[str, int]:
        sums = dict.fromkeys(CATEGORIES, 0)
        for start, end, category in inside:
            sums[CATEGORIES[category]] += end - start
        return sums

    total = {"wall_ns": wall, "by_category": parts(pieces)}
    rows, at = [], 0
    for name, start, end in steps:
        inside = []
        while at < len(pieces) and pieces[at][1] <= end:
            if pieces[at][0] >= start:
                inside.append(pieces[at])
            at += 1
        rows.append({"name": name, "start_ns": start, "wall_ns": end - start, "by_category": parts(inside)})
    return total, rows


def _rows(ops: list[_Op], runs: dict[int, list[int]], key: Any) -> list[Json]:
    groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for site, op in enumerate(ops):
        groups[key(op)].append(site)
    sections: dict[str, int] = defaultdict(int)
    for site, times in runs.items():
        sections[ops[site].section] += sum(times)
    rows = []
    for sites in groups.values():
        op = ops[sites[0]]
        times = [took for site in sites for took in runs[site]]
        if not times:
            continue
        total = sum(times)
        flops = sum(ops[site].flops * len(runs[site]) for site in sites) if op.modelled else None
        traffic = sum(ops[site].bytes * len(runs[site]) for site in sites) if op.modelled else None
        gflops = flops / total if flops and total else None
        speed = traffic / total if traffic and total else None
        peak = max((gflops or 0) / 259.0, (speed or 0) / 38.2) * 100 if op.modelled and total else None
        bound = None
        if op.modelled:
            bound = "overhead" if peak is not None and peak < 30 else "compute" if op.flops > 8 * op.bytes else "memory"
        shapes = {ops[site].shapes for site in sites}
        modules = {ops[site].module for site in sites}
        rows.append(
            {
                "name": op.name,
                "phase": "inference",
                "section": op.section,
                "shapes": op.shapes if len(shapes) == 1 else None,
                "dtypes": "f32, f32",
                "precision": "fp32",
                "kernel": op.kernel,
                "module": op.module if len(modules) == 1 else None,
                "source": op.source if len(modules) == 1 else None,
                "count": len(times),
                "total_ns": total,
                "self_ns": total,
                "min_ns": min(times),
                "max_ns": max(times),
                "mean_ns": total / len(times),
                "median_ns": int(statistics.median(times)),
                "share": 100 * total / sections[op.section] if sections[op.section] else None,
                "flops": flops,
                "bytes": traffic,
                "gflops": gflops,
                "gbytes_per_s": speed,
                "intensity": flops / traffic if flops and traffic else None,
                "percent_of_peak": peak,
                "bound": bound,
                "not_modelled": None if op.modelled else "masked_mean has no cost model yet",
                "device": "device",
            }
        )
    return sorted(rows, key=lambda row: -row["total_ns"])


def _runtime(line: _Timeline) -> list[Json]:
    """The engine's events around its operators, one row a name."""
    names = list(line.names)
    durations: dict[str, list[int]] = defaultdict(list)
    for _, duration, _, _, name, category, _, _ in line.events:
        if TIMELINE_CATEGORIES[category] in ("call", "execution"):
            durations[names[name]].append(duration)
    total = sum(map(sum, durations.values()))
    return [
        {
            **dict.fromkeys(
                ("shapes", "dtypes", "precision", "kernel", "module", "source", "flops", "bytes", "gflops")
            ),
            **dict.fromkeys(("gbytes_per_s", "intensity", "percent_of_peak", "bound")),
            "name": name,
            "phase": "inference",
            "section": "runtime",
            "count": len(times),
            "total_ns": sum(times),
            "self_ns": sum(times),
            "min_ns": min(times),
            "max_ns": max(times),
            "mean_ns": sum(times) / len(times),
            "median_ns": int(statistics.median(times)),
            "share": 100 * sum(times) / total,
            "not_modelled": "not an operator",
            "device": "host",
        }
        for name, times in durations.items()
    ]


def _findings(operators: list[Json], total: Json) -> list[Json]:
    if not operators:
        return []
    first = operators[0]
    gap = 100 * total["by_category"]["gap"] / total["wall_ns"]
    return [
        {
            "severity": "high",
            "rule": "dominant_operator",
            "title": f"{first['name']} takes {first['share']:.0f} % of the forward section",
            "detail": f"{first['count']} runs at {first['gflops'] or 0:.0f} GFLOP/s, "
            f"{first['percent_of_peak'] or 0:.0f} % of the measured peak; bound by {first['bound']}.",
            "advice": "bf16 halves this time on this processor: thresher.compile(model, precision='bf16'), then check "
            "the accuracy with nox -s bench -- --accuracy.",
            "operator": first["name"],
        },
        {
            "severity": "medium",
            "rule": "gaps",
            "title": f"Nothing was recorded for {gap:.1f} % of the wall clock",
            "detail": "The gaps lie between the calls of the compiled model.",
            "advice": "Look at what Python does between two calls; batching requests makes the gaps rarer.",
            "operator": None,
        },
        {
            "severity": "info",
            "rule": "first_step",
            "title": "The first step took three times as long as the others",
            "detail": "It contains the compilation and the first touch of the weights.",
            "advice": "Leave it out with thresher.profiler.schedule(skip_first=1).",
            "operator": None,
        },
    ]


def _timeline(line: _Timeline, ops: list[_Op]) -> Json:
    columns = list(zip(*line.events, strict=True)) if line.events else [[] for _ in range(8)]
    keys = ("start_ns", "dur_ns", "lane", "row", "name", "category", "site", "id")
    return {
        "lanes": [
            {"name": "python 4711, main thread", "kind": "host", "rows": 5, "pid": 4711, "tid": 4711},
            {"name": "thresher:0, stream 0", "kind": "device", "rows": 1, "pid": 4711, "tid": 0},
            {"name": "python 4711, tokenizer thread", "kind": "host", "rows": 1, "pid": 4711, "tid": 4719},
        ],
        "names": list(line.names),
        "categories": TIMELINE_CATEGORIES,
        "events": {key: list(column) for key, column in zip(keys, columns, strict=True)},
        "flows": {"from": [a for a, _ in line.pairs], "to": [b for _, b in line.pairs]},
        "sites": [
            {
                "shapes": op.shapes,
                "module": op.module,
                "source": op.source,
                "kernel": op.kernel,
                "flops": op.flops if op.modelled else None,
                "bytes": op.bytes if op.modelled else None,
            }
            for op in ops
        ],
        "shown": len(line.events),
        "total": len(line.events),
    }


def _modules(ops: list[_Op], runs: dict[int, list[int]]) -> Json:
    root: Json = {
        "name": "BertModel",
        "total_ns": 0,
        "self_ns": 0,
        "count": 0,
        "source": None,
        "kind": "module",
        "children": [],
    }
    for site, op in enumerate(ops):
        took, count = sum(runs[site]), len(runs[site])
        node = root
        path = [root]
        for part in op.module.split("."):
            child = next((c for c in node["children"] if c["name"] == part and c["kind"] == "module"), None)
            if child is None:
                child = {
                    "name": part,
                    "total_ns": 0,
                    "self_ns": 0,
                    "count": count,
                    "source": None,
                    "kind": "module",
                    "children": [],
                }
                node["children"].append(child)
            node = child
            path.append(node)
        node["source"] = op.source
        node["children"].append(
            {
                "name": op.name,
                "total_ns": took,
                "self_ns": took,
                "count": count,
                "source": op.source,
                "kind": "operator",
                "children": [],
            }
        )
        for module in path:
            module["total_ns"] += took
        root["count"] = count
    return root


def big(events: int = 60_000, total: int = 1_000_000) -> Json:
    """A report as a trace of a million events leaves it: down-sampled, and saying so."""
    per_call = 2 * len(_model(6, 16)) + 7
    report = build(events // per_call, tokens=16)
    shown = len(report["timeline"]["events"]["start_ns"])
    report["title"] = f"A long run: {total:,} events"
    report["source"].update(events=total, shown=shown, sampled=True)
    report["timeline"].update(total=total)
    return report


def blank() -> Json:
    """A report of a run in which nothing was recorded."""
    report = build(0)
    report["title"] = "Nothing recorded"
    report["overview"].update(findings=[])
    report["modules"]["children"] = []
    report["memory"] = {
        "curve": {"time_ns": [], "allocated": [], "reserved": []},
        "peak_bytes": None,
        "peak_time_ns": None,
        "events": [],
        "total_events": 0,
        "reason": "memory was not recorded",
    }
    report["roofline"] = {
        "roofs": [],
        "points": [],
        "num_threads": None,
        "reason": "the peaks of this machine were not measured",
    }
    return report


def nulls(value: Any = None, keep: tuple[str, ...] = ("events", "curve", "flows")) -> Any:
    """The same report with every single value replaced by null; lists and objects stay, columns keep their length."""
    value = build(2) if value is None else value
    if isinstance(value, dict):
        return {
            key: nulls(item, keep) if isinstance(item, (dict, list)) else (None if key not in keep else item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [nulls(item, keep) if isinstance(item, (dict, list)) else None for item in value]
    return value


HOSTILE = [
    "</script><script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=2>",
    "\"quotes' &amp; <b>tags</b> `$(x)` ${y}",
    "данные 数据 🚀 \u202eright to left\u2028line",
    "a" * 400,
    "=HYPERLINK(1)",
    "\ud800 lone",
    "__proto__",
    "constructor",
]


def hostile() -> Json:
    """Names that try to be markup, script, formulas, prototypes, or simply too long."""
    report = build(2)
    report["title"] = HOSTILE[0]
    for rows in (report["operators"], report["operators_by_shape"], report["kernels"], report["roofline"]["points"]):
        for i, row in enumerate(rows):
            row["name"] = HOSTILE[i % len(HOSTILE)]
            row["shapes"] = HOSTILE[(i + 1) % len(HOSTILE)]
    timeline = report["timeline"]
    timeline["names"] = [HOSTILE[i % len(HOSTILE)] for i in range(len(timeline["names"]))]
    for lane in timeline["lanes"]:
        lane["name"] = HOSTILE[1]
    for site in timeline["sites"]:
        site.update(module=HOSTILE[2], source=HOSTILE[0], shapes=HOSTILE[4])
    for i, finding in enumerate(report["overview"]["findings"]):
        finding.update(title=HOSTILE[i], detail=HOSTILE[4], advice=HOSTILE[3], operator=HOSTILE[0])
    report["health"].update(dropped=3, messages=HOSTILE)
    report["machine"].update(cpu=HOSTILE[1])
    for event in report["memory"]["events"]:
        event["name"] = HOSTILE[0]
    open_nodes = [report["modules"]]
    while open_nodes:
        node = open_nodes.pop()
        node["name"], node["source"] = HOSTILE[len(open_nodes) % len(HOSTILE)], HOSTILE[0]
        open_nodes += node["children"]
    return report


def difference(a: Json, b: Json, *, comparable: bool = True) -> Json:
    """Two reports side by side, in the form that `thresher diff --json` writes."""

    def side(report: Json) -> Json:
        return {"file": report["source"]["file"], "machine": report["machine"], "versions": report["versions"]}

    rows = []
    found = [{(row["name"], row["shapes"]): row for row in report["operators_by_shape"]} for report in (a, b)]
    for key in dict.fromkeys([*found[0], *found[1]]):
        one, two = found[0].get(key), found[1].get(key)
        kept = [row and {name: row[name] for name in ("count", "total_ns", "median_ns")} for row in (one, two)]
        rows.append(
            {
                "name": key[0],
                "shapes": key[1],
                "a": kept[0],
                "b": kept[1],
                "delta_ns": (two["total_ns"] if two else 0) - (one["total_ns"] if one else 0),
                "ratio": two["total_ns"] / one["total_ns"] if one and two and one["total_ns"] else None,
            }
        )
    totals = [report["overview"]["total"] for report in (a, b)]
    return {
        "format": "thresher-profile-diff",
        "format_version": 1,
        "a": side(a),
        "b": side(b),
        "comparable": comparable,
        "differences": [] if comparable else ["machine.isa: AVX3_ZEN4 and AVX2", "versions.torch: 2.13.0 and 2.12.1"],
        "wall": {
            "a_ns": totals[0]["wall_ns"],
            "b_ns": totals[1]["wall_ns"],
            "ratio": totals[1]["wall_ns"] / totals[0]["wall_ns"],
        },
        "by_category": {
            name: {"a_ns": totals[0]["by_category"][name], "b_ns": totals[1]["by_category"][name]}
            for name in CATEGORIES
        },
        "rows": rows,
    }


def pair(*, comparable: bool = True) -> tuple[Json, Json]:
    """A report and its difference from a slower run, which also had an operator that is gone now."""
    before, after = build(24, seed=3, speed=1.3), build(24, seed=7)
    before["source"]["file"] = "before.thrtrace"
    extra = dict(
        before["operators_by_shape"][-1], name="gelu", shapes="1x128x1536", total_ns=3_100_000, median_ns=20_100
    )
    before["operators_by_shape"].append(extra)
    if not comparable:
        before["machine"] = dict(before["machine"], isa="AVX2", cpu="AMD Ryzen 7 5800X")
        before["versions"] = dict(before["versions"], torch="2.12.1")
    return after, difference(before, after, comparable=comparable)


def main() -> None:
    from thresher.profiler.html import render

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--events", type=int, help="a down-sampled report with about so many timeline events")
    parser.add_argument("--diff", action="store_true", help="with the difference of two runs")
    options = parser.parse_args()
    report, diff = pair() if options.diff else (build(), None)
    if options.events:
        report = big(options.events)
    options.output.write_text(render(report, diff), encoding="utf-8")


if __name__ == "__main__":
    main()
