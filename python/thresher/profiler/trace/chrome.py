"""Reads Chrome JSON traces, as torch.profiler and Thresher's own export write them."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from thresher.profiler.trace import event_names
from thresher.profiler.trace.events import EVENT, Array, Category, sort_events
from thresher.profiler.trace.json_stream import JsonStream
from thresher.profiler.trace.model import Lane, Site, Trace, TraceError
from thresher.profiler.trace.sampling import visible
from thresher.profiler.trace.store import Store
from thresher.profiler.trace.totals import TotalsSum

_CHUNK = 1 << 16
_MAX_LANES = 0xFFFF
_MAX_SITES = 500_000
_CATEGORIES = {
    "kernel": Category.KERNEL,
    "gpu_memcpy": Category.COPY,
    "gpu_memset": Category.COPY,
    "cpu_op": Category.HOST,
    "user_annotation": Category.ANNOTATION,
    "gpu_user_annotation": Category.ANNOTATION,
    "python_function": Category.PYTHON,
    "privateuse1_runtime": Category.RUNTIME,
    "privateuse1_driver": Category.RUNTIME,
    "cuda_runtime": Category.RUNTIME,
    "cuda_driver": Category.RUNTIME,
    "xpu_runtime": Category.RUNTIME,
    "xpu_driver": Category.RUNTIME,
    "mtia_runtime": Category.RUNTIME,
    "runtime": Category.RUNTIME,
}
_DEVICE = {
    "kernel": event_names.KERNEL,
    "gpu_memcpy": event_names.MEMCPY,
    "gpu_memset": event_names.MEMSET,
    "gpu_user_annotation": event_names.UNKNOWN,
}
_PHASES = {"prefill": 1, "decode": 2}
_PYTHON = int(Category.PYTHON)
_BY_NAME = {
    "thresherCall": Category.CALL,
    "thresherSubgraphExecution": Category.CALL,
    "thresherGraphExecution": Category.EXECUTION,
    "thresherFallback": Category.HOST,
    **{
        event_names.EVENT_NAMES[n]: Category.COMMUNICATION
        for n in range(event_names.BARRIER_1, event_names.UPDATE_REMOTE + 1)
    },
}
_STEP_NAME = re.compile(r"(?:Profiler)?Step#\d+$")
_COLLECTIVE = re.compile(r"nccl|rccl|gloo|oneccl|c10d::|record_param_comms", re.IGNORECASE)
_COPY_NAME = re.compile(r"Mem(?:cpy|set)\b[^(]*\(([^\s)]+)")
_DTYPES = {
    "float": "f32",
    "double": "f64",
    "c10::BFloat16": "bf16",
    "c10::Half": "f16",
    "long int": "i64",
    "long": "i64",
    "int": "i32",
    "signed char": "i8",
    "unsigned char": "u8",
    "bool": "bool",
}
_U32, _U64 = (1 << 32) - 1, (1 << 64) - 1
_MAX_NS = 1 << 62
_MAX_BYTES = 1 << 62


def read_chrome(path: Path, *, limit: int) -> Trace:
    """Reads a Chrome JSON trace; the file is parsed piece by piece.

    Args:
        path: The file, compressed by gzip or not.
        limit: How many events to keep in memory; more are kept in a temporary file.

    Raises:
        TraceError: It is not such a file.
        OSError: It cannot be read.
    """
    return _Reader(path, limit).read()


class _Pieces:
    """Chunks of events, in memory up to a limit and in a temporary file above it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: list[Array] = []
        self._file: IO[bytes] | None = None
        self._sizes: list[int] = []
        self._begins: list[int] = []
        self._offset_ns = 0
        self.count = 0

    @property
    def in_memory(self) -> bool:
        return self._file is None

    def add(self, events: Array) -> None:
        self._sizes.append(len(events))
        self.count += len(events)
        if self._file is None and self.count <= self._limit:
            self._kept.append(events)
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="thresher-trace-")  # noqa: SIM115 read again until the end
            for part in self._kept:
                self._file.write(part.tobytes())
            self._kept = []
        self._file.write(events.tobytes())

    def finish(self, offset_ns: int) -> None:
        """From now on, times are `offset_ns` later."""
        self._offset_ns = offset_ns
        self._begins = np.cumsum([0, *self._sizes]).tolist()
        for part in self._kept:
            part["start_ns"] += offset_ns

    def __len__(self) -> int:
        return len(self._sizes)

    def load(self, number: int) -> Array:
        if self._file is None:
            return self._kept[number]
        self._file.seek(self._begins[number] * EVENT.itemsize)
        data = self._file.read(self._sizes[number] * EVENT.itemsize)
        events = np.frombuffer(data, EVENT).copy()
        events["start_ns"] += self._offset_ns
        return events


class _Reader:
    def __init__(self, path: Path, limit: int) -> None:
        self._path = path
        self._limit = limit
        self._stream = JsonStream(path, "traceEvents")
        self._pieces = _Pieces(limit)
        self._rows: list[tuple[int, ...]] = []
        self._names: list[str] = []
        self._name_index: dict[str, int] = {}
        self._lanes: list[Lane] = []
        self._lane_index: dict[tuple[Any, Any, bool], int] = {}
        self._thread_names: dict[tuple[Any, Any], str] = {}
        self._process_names: dict[Any, str] = {}
        self._sites: dict[int, Site] = {}
        self._site_index: dict[Any, int] = {}
        self._launchers: list[tuple[Array, Array]] = []
        self._open: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
        self._window: tuple[int, int] | None = None
        self._kinds: dict[tuple[str, str], tuple[int, int, bool]] = {}
        self._bad_times = 0
        self._malformed = 0

    def read(self) -> Trace:
        for event in self._stream.elements():
            if isinstance(event, dict):
                try:
                    self._add(event)
                except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):
                    self._malformed += 1
            else:
                self._malformed += 1
            if len(self._rows) >= _CHUNK:
                self._flush()
        self._flush()
        stream = self._stream
        if not stream.found_array:
            raise TraceError(
                f'trace {self._path}: expected an object with "traceEvents", '
                f"got the keys {sorted(stream.members)[:8]}; "
                "give the file that torch.profiler's export_chrome_trace or thresher has written"
            )
        if not self._pieces.count and self._malformed:
            raise TraceError(
                f"trace {self._path}: expected events with ph, ts and dur, got {self._malformed} elements without "
                "them; "
                "give the file that torch.profiler's export_chrome_trace or thresher has written"
            )
        return self._finish()

    def _add(self, event: dict[str, Any]) -> None:
        phase = event["ph"]
        if phase == "X":
            self._add_complete(event, _nanoseconds(event["ts"]), _nanoseconds(event.get("dur", 0)))
        elif phase == "i" or phase == "I":
            if event.get("name") == "[memory]":
                self._add_memory(event)
        elif phase == "M":
            self._add_metadata(event)
        elif phase == "B":
            self._open.setdefault((event.get("pid"), event.get("tid")), []).append(event)
        elif phase == "E":
            stack = self._open.get((event.get("pid"), event.get("tid")))
            if stack:
                begin = stack.pop()
                start = _nanoseconds(begin["ts"])
                arguments = {**(begin.get("args") or {}), **(event.get("args") or {})}
                self._add_complete({**begin, "args": arguments}, start, _nanoseconds(event["ts"]) - start)

    def _add_complete(self, event: dict[str, Any], start: int, duration: int) -> None:
        label = event.get("cat") or ""
        name = str(event["name"])
        if label == "Trace":
            self._window = (start, start + duration)
            return
        if duration < 0 or abs(start) > _MAX_NS or duration > _MAX_NS:
            self._bad_times += 1
            return
        arguments = event.get("args") or {}
        category, number, on_device = self._kinds.get((label, name)) or self._kind(label, name)
        site = -1
        if category != _PYTHON and len(arguments) > 1:
            site = self._site(name, arguments, on_device)
        self._rows.append(
            (
                start,
                duration,
                self._name(name),
                category,
                _PHASES.get(arguments.get("phase", ""), 0),
                self._lane(event, on_device),
                number,
                site,
                _number(arguments.get("correlation", 0)) & _U64,
                _number(arguments.get("External id", 0)) & _U32,
                _number(arguments.get("User id", 0)) & _U32,
                0,
                _number(arguments.get("execution", 0)) & _U64,
            )
        )

    def _kind(self, label: str, name: str) -> tuple[int, int, bool]:
        """Category, number of the event and whether it is work of a device; the same for all events of a name."""
        on_device = label in _DEVICE
        category = _CATEGORIES.get(label, Category.OTHER)
        if category == Category.RUNTIME:
            category = _BY_NAME.get(name, category)
        elif category == Category.ANNOTATION:
            if not on_device and _STEP_NAME.match(name):
                category = Category.STEP
        elif category in (Category.KERNEL, Category.HOST) and _COLLECTIVE.search(name):
            category = Category.COMMUNICATION
        number = event_names.UNKNOWN
        if on_device:
            number = _DEVICE[label]
        elif category not in (Category.STEP, Category.ANNOTATION, Category.PYTHON):
            number = event_names.NUMBERS.get(name, number)
        found = self._kinds[(label, name)] = (int(category), number, on_device)
        return found

    def _add_memory(self, event: dict[str, Any]) -> None:
        arguments = event.get("args") or {}
        amount = int(arguments.get("Bytes", 0))
        reserved = max(_number(arguments.get("Total Reserved", 0)), 0)
        kind, index = arguments.get("Device Type", 0), arguments.get("Device Id", -1)
        device = "cpu" if kind == 0 else f"device {kind}:{index}"
        start = _nanoseconds(event["ts"])
        if abs(start) > _MAX_NS:
            self._bad_times += 1
            return
        if abs(amount) > _MAX_BYTES:
            raise ValueError("an amount of memory that no machine has")
        name = "Memory (Allocation)" if amount >= 0 else "Memory (Release)"
        self._rows.append(
            (
                start,
                0,
                self._name(name),
                int(Category.MEMORY),
                0,
                self._lane(event, False),
                event_names.ALLOCATION if amount >= 0 else event_names.RELEASE,
                self._intern(("memory", device), lambda number: Site(number, device)),
                max(_number(arguments.get("Total Allocated", 0)), 0) & _U64,
                reserved & _U32,
                reserved >> 32 & _U32,
                amount,
                _number(arguments.get("Addr", 0)) & _U64,
            )
        )

    def _add_metadata(self, event: dict[str, Any]) -> None:
        what = event.get("name")
        found = (event.get("args") or {}).get("name")
        if not isinstance(found, str):
            return
        if what == "thread_name":
            self._thread_names[(event.get("pid"), event.get("tid"))] = found
        elif what == "process_name":
            self._process_names[event.get("pid")] = found

    def _site(self, name: str, arguments: Mapping[str, Any], on_device: bool) -> int:
        get = arguments.get
        dims, types = get("Input Dims"), get("Input type")
        shapes, module, source = get("shapes"), get("module"), get("source") or get("Call stack")
        flops, traffic = get("flops"), get("bytes")
        module = module or get("Module Hierarchy")
        said = (dims, types, shapes, module, source, get("operator"), get("section"))
        if not any(said) and flops is None and traffic is None:
            return -1
        key = (
            name,
            repr(dims),
            repr(types),
            str(shapes),
            module,
            source,
            flops,
            traffic,
            str(get("dtypes")),
            get("precision"),
            get("section"),
            get("kernel"),
            get("operator"),
            on_device,
        )

        def make(number: int) -> Site:
            operator = get("operator")
            if not isinstance(operator, str) or not operator:
                # The engine names a kernel by its operator and its variant.
                operator = _operator_of(name) if on_device and (shapes or module or flops is not None) else name
            dtypes = _text(get("dtypes")) or _types_text(types)
            step = get("step")
            return Site(
                id=number,
                name=operator,
                kernel=_text(get("kernel")) or (name if on_device else ""),
                section=_text(get("section")),
                shapes=_text(shapes) or _shapes_text(dims),
                dtypes=dtypes,
                outputs=_text(get("outputs")),
                precision=_text(get("precision")),
                module=_text(module),
                source=_text(source).split(";")[0],
                flops=_amount(flops),
                bytes=_amount(traffic),
                graph=_text(get("graph")),
                step=step if isinstance(step, int) else -1,
            )

        return self._intern(key, make)

    def _intern(self, key: Any, make: Any) -> int:
        found = self._site_index.get(key)
        if found is None:
            if len(self._sites) >= _MAX_SITES:
                return -1
            found = len(self._sites)
            self._sites[found] = make(found)
            self._site_index[key] = found
        return found

    def _lane(self, event: Mapping[str, Any], on_device: bool) -> int:
        key = (event.get("pid"), event.get("tid"), on_device)
        found = self._lane_index.get(key)
        if found is None:
            if len(self._lanes) >= _MAX_LANES:
                return len(self._lanes) - 1
            found = len(self._lanes)
            kind = "device" if on_device else "host"
            self._lanes.append(Lane(found, kind, _number(key[0]), _number(key[1]), ""))
            self._lane_index[key] = found
        return found

    def _name(self, name: str) -> int:
        found = self._name_index.get(name)
        if found is None:
            found = self._name_index[name] = len(self._names)
            self._names.append(name)
        return found

    def _flush(self) -> None:
        if not self._rows:
            return
        events = np.array(self._rows, EVENT)
        self._rows = []
        hosts = events[(events["category"] == Category.HOST) & (events["external"] > 0)]
        self._launchers.append((hosts["external"].copy(), hosts["name"].copy()))
        self._pieces.add(events)

    def _finish(self) -> Trace:
        members = self._stream.members
        base = members.get("baseTimeNanoseconds")
        pieces = self._pieces
        pieces.finish(base if isinstance(base, int) and 0 <= base < _MAX_NS else 0)
        self._name_lanes()
        operators = self._operators()
        store = Store(None if pieces.in_memory else lambda number: self._linked(pieces.load(number), operators))
        totals = TotalsSum(exact=pieces.in_memory)
        shown: list[Array] = []
        for number in range(len(pieces)):
            events = self._linked(pieces.load(number), operators)
            store.add(events)
            if pieces.in_memory:
                shown.append(events)
            else:
                totals.add(events)
                shown.append(events[visible(events, -(-self._limit * len(events) // pieces.count))])
        kept = sort_events(np.concatenate(shown)) if shown else np.empty(0, EVENT)
        if pieces.in_memory:
            totals.add(kept)
        return Trace(
            meta=self._meta(members, base if isinstance(base, int) else 0),
            names=self._names,
            lanes=self._lanes,
            sites=self._sites,
            events=kept,
            total_events=pieces.count,
            totals=totals.result(),
            store=store,
        )

    def _name_lanes(self) -> None:
        for (pid, tid, on_device), index in self._lane_index.items():
            lane = self._lanes[index]
            thread = self._thread_names.get((pid, tid)) or (f"stream {tid}" if on_device else f"thread {tid}")
            process = self._process_names.get(pid, "")
            name = f"{process} {thread}" if on_device and process and process not in thread else thread
            self._lanes[index] = Lane(index, lane.kind, lane.pid, lane.tid, name)

    def _operators(self) -> tuple[Array, Array]:
        """External ids and the names of the operators of PyTorch that have them, sorted by id."""
        if not self._launchers:
            return np.empty(0, np.uint32), np.empty(0, np.uint32)
        external = np.concatenate([part[0] for part in self._launchers])
        name = np.concatenate([part[1] for part in self._launchers])
        self._launchers = []
        external, first = np.unique(external, return_index=True)
        return external, name[first]

    def _linked(self, events: Array, operators: tuple[Array, Array]) -> Array:
        """Gives kernels that say nothing of themselves a site: the operator that launched them."""
        external, name = operators
        bare = np.flatnonzero(
            (events["category"] <= Category.COMMUNICATION) & (events["site"] < 0) & (events["external"] > 0)
        )
        bare = bare[events["event"][bare] != event_names.UNKNOWN]
        if not len(bare) or not len(external):
            return events
        position = np.minimum(np.searchsorted(external, events["external"][bare]), len(external) - 1)
        found = external[position] == events["external"][bare]
        bare, position = bare[found], position[found]
        pairs = events["name"][bare].astype(np.int64) << 32 | name[position].astype(np.int64)
        distinct, inverse = np.unique(pairs, return_inverse=True)
        sites = []
        for pair in distinct.tolist():
            kernel, operator = self._names[pair >> 32], self._names[pair & _U32]
            sites.append(self._intern(("linked", pair), lambda number, o=operator, k=kernel: Site(number, o, kernel=k)))
        events["site"][bare] = np.array(sites, np.int32)[inverse.reshape(-1)]
        return events

    def _meta(self, members: dict[str, Any], base: int) -> dict[str, Any]:
        ours = members.get("thresher")
        meta: dict[str, Any] = dict(ours) if isinstance(ours, dict) else {}
        meta.update(
            {
                "format": "chrome",
                "file": self._path.name,
                "complete": not self._stream.truncated and meta.get("complete", True) is not False,
                "truncated": self._stream.truncated or bool(meta.get("truncated", False)),
                "dropped": meta.get("dropped", 0) if isinstance(meta.get("dropped", 0), int) else 0,
                "bad_times": self._bad_times,
                "malformed": self._malformed,
            }
        )
        for key in ("with_stack", "with_modules", "record_shapes", "profile_memory", "host_name"):
            if key in members:
                meta[key] = members[key]
        if isinstance(members.get("pytorch_version"), str):
            meta.setdefault("torch", members["pytorch_version"])
        if self._window is not None:
            meta["start_ns"], meta["stop_ns"] = (edge + base for edge in self._window)
        return _plain(meta)


def _operator_of(name: str) -> str:
    """The operator in a kernel's name, such as "linear fp32 avx2" or "Memcpy DtoD (cast bool avx2)"."""
    match = _COPY_NAME.match(name)
    return match[1] if match else name.split(" ", 1)[0]


def _plain(meta: dict[str, Any]) -> dict[str, Any]:
    """Numbers with a decimal point, which the stream gives as text, as numbers again in our own metadata."""

    def convert(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: convert(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [convert(inner) for inner in value]
        if isinstance(value, str) and re.fullmatch(r"-?\d+\.\d+(?:[eE][-+]?\d+)?|-?\d+[eE][-+]?\d+", value):
            return float(value)
        return value

    return {key: convert(value) if key in ("peaks", "energy") else value for key, value in meta.items()}


def _nanoseconds(microseconds: int | str) -> int:
    """Exact to the nanosecond, which a float is not."""
    if isinstance(microseconds, int):
        return microseconds * 1000
    whole, point, fraction = microseconds.partition(".")
    try:
        if not point:
            return round(float(whole) * 1000)
        digits = fraction[:3].ljust(3, "0")
        sign = -1 if whole.startswith("-") else 1
        rounded = 1 if len(fraction) > 3 and fraction[3] >= "5" else 0
        return int(whole) * 1000 + sign * (int(digits) + rounded)
    except ValueError:
        value = float(microseconds)
        if not abs(value) < _MAX_NS:
            raise
        return round(value * 1000)


def _number(value: object) -> int:
    if isinstance(value, int):
        return int(value)  # JSON's true is a number to Python
    if isinstance(value, str) and re.fullmatch(r"-?\d+", value):
        return int(value)
    return 0


def _amount(value: object) -> float | None:
    if isinstance(value, (int, str)):
        try:
            found = float(value)
        except ValueError:
            return None
        return found if 0 <= found < float("inf") else None
    return None


def _text(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def _shapes_text(dims: object) -> str:
    if not isinstance(dims, list) or not any(dims):
        return ""

    def one(shape: object) -> str:
        if not isinstance(shape, list):
            return str(shape)
        if shape and isinstance(shape[0], list):
            return "(" + ", ".join(one(inner) for inner in shape) + ")"
        return "x".join(str(size) for size in shape) or "scalar"

    return ", ".join(one(shape) for shape in dims)


def _types_text(types: object) -> str:
    if not isinstance(types, list) or not any(types):
        return ""
    return ", ".join(_DTYPES.get(str(kind), str(kind)) for kind in types)
