"""The modules of the model as a tree: kernel, operator, module, line of the model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from thresher.profiler.analysis.nesting import nest, self_times
from thresher.profiler.analysis.operators import is_operator
from thresher.profiler.analysis.rows import Group
from thresher.profiler.percentages import percentages
from thresher.profiler.trace.events import Array, Category, group_keys
from thresher.profiler.trace.model import Trace

ROOT = "model"
_MODULE_FRAME = "nn.Module: "
_LIBRARY_FRAME = re.compile(r"(?:^|[/\\])(?:torch|thresher|_dynamo|_inductor)[/\\]|^<|importlib")
_FRAME = re.compile(r"(.+)\((\d+)\): (.+)")
_WORK = (Category.RUNTIME, Category.EXECUTION, Category.HOST, Category.CALL, Category.OTHER)


@dataclass
class _Node:
    name: str
    kind: str
    total_ns: int = 0
    self_ns: int = 0
    count: int = 0
    source: str | None = None
    kernel: str | None = None
    children: dict[tuple[str, str, str], _Node] = field(default_factory=dict)

    def child(self, name: str, kind: str, extra: str = "") -> _Node:
        return self.children.setdefault((kind, name, extra), _Node(name, kind))


def modules(trace: Trace, groups: list[Group]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The parts "modules" (a tree) and "modules_flat" (a table) of the report.

    Time is that of kernels and copies, and the self time of PyTorch's operators; so nothing counts twice.

    Args:
        trace: The trace.
        groups: All groups of the trace.
    """
    root = _Node(ROOT, "module")
    placed: Iterator[tuple[int, str, str, int, int]]
    from_frames = not trace.sampled and any(name.startswith(_MODULE_FRAME) for name in trace.names)
    if from_frames:
        placed = _by_frames(trace)
    else:
        placed = (
            (
                int(trace.totals.key[group.index]),
                group.site.module if group.site is not None else "",
                "",
                group.count,
                group.self_ns,
            )
            for group in groups
            if is_operator(group)
        )
    by_key = {int(trace.totals.key[group.index]): group for group in groups}
    for key, path, source, count, time_ns in placed:
        _add(root, by_key[key], path, source, count, time_ns)
    _sum(root)
    return _to_dict(root), _flat(root)


def _add(root: _Node, group: Group, path: str, source: str, count: int, time_ns: int) -> None:
    node = root
    for part in path.split(".") if path else []:
        node = node.child(part, "module")
    site = group.site
    source = (site.source if site is not None else "") or source
    leaf = node.child(group.operator, "operator", source)
    leaf.total_ns += time_ns
    leaf.self_ns += time_ns
    leaf.count += count
    leaf.source = source or None
    kernel = group.label if group.on_device else None
    leaf.kernel = kernel if leaf.kernel in (None, kernel) else f"{leaf.kernel}, {kernel}"[:200]
    node.self_ns += time_ns
    node.count += count
    if source and node is not root and node.source is None:
        node.source = source


def _sum(node: _Node) -> int:
    for child in node.children.values():
        if child.kind == "module":
            _sum(child)
    if node.kind == "module":
        node.total_ns = sum(child.total_ns for child in node.children.values())
        node.count = sum(child.count for child in node.children.values())
    return node.total_ns


def _to_dict(node: _Node) -> dict[str, Any]:
    children = sorted(node.children.values(), key=lambda child: (-child.total_ns, child.name))
    result: dict[str, Any] = {
        "name": node.name,
        "kind": node.kind,
        "total_ns": node.total_ns,
        "self_ns": node.self_ns,
        "count": node.count,
        "source": node.source,
    }
    if node.kind == "operator":
        result["kernel"] = node.kernel
    result["children"] = [_to_dict(child) for child in children]
    return result


def _flat(root: _Node) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def visit(node: _Node, path: str) -> None:
        found.append(
            {
                "name": path or ROOT,
                "count": node.count,
                "total_ns": node.total_ns,
                "self_ns": node.self_ns,
                "source": node.source,
            }
        )
        for child in node.children.values():
            if child.kind == "module":
                visit(child, f"{path}.{child.name}" if path else child.name)

    visit(root, "")
    found.sort(key=lambda row: (-row["self_ns"], row["name"]))
    for row, share in zip(found, percentages([row["self_ns"] for row in found]), strict=True):
        row["share"] = share
    return found


def _by_frames(trace: Trace) -> Iterator[tuple[int, str, str, int, int]]:
    """Key of the group, module, line, count and time of everything, from the Python frames around it."""
    events = trace.events[trace.events["category"] != Category.MEMORY]
    host = events[np.isin(events["category"], [*_WORK, Category.PYTHON])]
    device = events[events["category"] <= Category.COMMUNICATION]
    start = host["start_ns"]
    end = start + host["dur_ns"]
    is_work = host["category"] != Category.PYTHON
    own = np.zeros(len(host), np.int64)
    work = host[is_work]
    own[is_work] = self_times(nest(work["lane"], start[is_work], end[is_work]), start[is_work], end[is_work])
    nesting = nest(host["lane"], start, end)
    paths, path, lines, line = _surroundings(trace, host, nesting.parent, nesting.depth)
    operator = host["category"] == Category.HOST
    # A kernel is where the operator is that launched it.
    ids, first = np.unique(host["external"][operator], return_index=True)
    launched = np.minimum(np.searchsorted(ids, device["external"]), max(len(ids) - 1, 0))
    if len(ids):
        linked = (ids[launched] == device["external"]) & (device["external"] > 0)
        at = np.flatnonzero(operator)[first[launched]]
        device_path = np.where(linked, path[at], 0)
        device_line = np.where(linked, line[at], 0)
    else:
        device_path = device_line = np.zeros(len(device), np.int64)
    # What knows its module itself knows it better.
    known = np.array([bool(site.module) for site in trace.sites.values()], bool)
    known_ids = np.array(list(trace.sites), np.int64)[known] if len(known) else np.empty(0, np.int64)
    key = np.concatenate([group_keys(host[operator]), group_keys(device)])
    where = np.concatenate([path[operator], device_path])
    which = np.concatenate([line[operator], device_line])
    time = np.concatenate([own[operator], device["dur_ns"]])
    site = np.concatenate([host["site"][operator], device["site"]])
    said = np.isin(site, known_ids)
    order = np.lexsort((which, where, key))
    key, where, which, time, site, said = (column[order] for column in (key, where, which, time, site, said))
    if not len(key):
        return
    changes = (key[1:] != key[:-1]) | (where[1:] != where[:-1]) | (which[1:] != which[:-1])
    begins = np.flatnonzero(np.r_[True, changes])
    counts = np.diff(np.r_[begins, len(key)])
    sums = np.add.reduceat(time, begins)
    for begin, count, total in zip(begins.tolist(), counts.tolist(), sums.tolist(), strict=True):
        module = trace.sites[int(site[begin])].module if said[begin] else paths[int(where[begin])]
        yield int(key[begin]), module, lines[int(which[begin])], count, total


def _surroundings(
    trace: Trace, events: Array, parent: Array, depth: Array
) -> tuple[list[str], Array, list[str], Array]:
    """For each event the modules and the line of the user around it, as indices of lists."""
    module_of = {
        index: name[len(_MODULE_FRAME) :] for index, name in enumerate(trace.names) if name.startswith(_MODULE_FRAME)
    }
    line_of = {index: found for index, name in enumerate(trace.names) if (found := _user_line(name))}
    is_python = events["category"] == Category.PYTHON
    opens = is_python & np.isin(events["name"], list(module_of))
    says_line = is_python & np.isin(events["name"], list(line_of))
    paths, path_index = [""], {"": 0}
    lines, line_index = [""], {"": 0}
    path, line = np.zeros(len(events), np.int64), np.zeros(len(events), np.int64)
    for level in range(int(depth.max()) + 1 if len(depth) else 0):
        mine = np.flatnonzero(depth == level)
        above = parent[mine]
        has = above >= 0
        path[mine] = np.where(has, path[above], 0)
        line[mine] = np.where(has, line[above], 0)
        for index in mine[opens[mine]].tolist():
            outer = paths[int(path[index])]
            name = module_of[int(events["name"][index])]
            full = f"{outer}.{name}" if outer else name
            path[index] = path_index.setdefault(full, len(paths))
            if path[index] == len(paths):
                paths.append(full)
        for index in mine[says_line[mine]].tolist():
            text = line_of[int(events["name"][index])]
            line[index] = line_index.setdefault(text, len(lines))
            if line[index] == len(lines):
                lines.append(text)
    return paths, path, lines, line


def _user_line(name: str) -> str:
    """A Python frame of the user, such as "model.py(12): forward", as "model.py:12 in forward"; else nothing."""
    match = _FRAME.fullmatch(name)
    if match is None or _LIBRARY_FRAME.search(match[1]):
        return ""
    file = match[1].replace("\\", "/").rsplit("/", 1)[-1]
    return f"{file}:{match[2]} in {match[3]}"
