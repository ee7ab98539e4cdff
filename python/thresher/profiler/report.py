"""The operator report as data: what every format is printed from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from thresher.json_text import flag, integer, number, parse, text
from thresher.profiler.percentages import percentages

SECTIONS = ("forward", "reshape", "alloc")
_FORMAT = "thresher-op-report"
_FORMAT_VERSION = 1


@dataclass(frozen=True)
class Row:
    """All runs of one operator in one section of one phase. Times are in nanoseconds.

    Attributes:
        rank: Rank of the process among those that run the model together.
        opname: Name of the operator.
        count: How often it ran.
        min_ns: Shortest run.
        max_ns: Longest run.
        median_ns: Median of the runs, within 1 %.
        total_ns: Sum of the runs.
        percentage: Share of the section's time; the shares of a section add up to 100.00.
        flops: Floating-point operations of all runs, None where not modelled.
        bytes: Bytes read and written by all runs, None where not modelled.
        percent_of_peak: Shortest time that the machine's measured peaks allow, in percent of the time it took; None
            where the work is not modelled or the peaks were not measured.
        bound: What bounds it: "compute", "memory" or "overhead"; None where that is not known.
    """

    rank: int
    opname: str
    count: int
    min_ns: int
    max_ns: int
    median_ns: int
    total_ns: int
    percentage: float
    flops: float | None
    bytes: float | None
    percent_of_peak: float | None = None
    bound: str | None = None

    @property
    def ave_ns(self) -> float:
        """Mean of the runs, in nanoseconds."""
        return self.total_ns / self.count

    @property
    def gflops(self) -> float | None:
        """Speed in 10^9 floating-point operations per second, None where not modelled or not measurable."""
        return self.flops / self.total_ns if self.flops is not None and self.total_ns > 0 else None

    @property
    def gbytes_per_s(self) -> float | None:
        """Memory traffic in 10^9 bytes per second, None where not modelled or not measurable."""
        return self.bytes / self.total_ns if self.bytes is not None and self.total_ns > 0 else None

    @property
    def intensity(self) -> float | None:
        """Floating-point operations per byte, None where not modelled."""
        return self.flops / self.bytes if self.flops is not None and self.bytes else None


@dataclass(frozen=True)
class Section:
    """The operators of one kind of work, the most expensive first.

    Attributes:
        name: "forward" (computes), "reshape" (moves data) or "alloc" (obtains memory).
        rows: One row per operator.
    """

    name: str
    rows: tuple[Row, ...]

    @property
    def total_ns(self) -> int:
        """Sum of the rows, in nanoseconds."""
        return sum(row.total_ns for row in self.rows)


@dataclass(frozen=True)
class Phase:
    """One part of a model's work.

    Attributes:
        name: "inference", "prefill" or "decode".
        sections: Always forward, reshape and alloc, in this order; a section may be empty.
        calls: Calls of compiled models.
        executions: Runs of plans; a call may run several, or run one that no call surrounds.
        wall_ns: Time between the start and the end of the calls (or of the executions outside any), in nanoseconds.
        tokens: That the calls computed, of a language model.
        percent_of_peak: Shortest time that the machine's measured peaks allow for the operators whose work is modelled,
            in percent of the wall clock; None where that is not known of any.
    """

    name: str
    sections: tuple[Section, ...]
    calls: int
    executions: int
    wall_ns: int
    tokens: int = 0
    percent_of_peak: float | None = None

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens in a second of wall clock; None where there are none."""
        return self.tokens / self.wall_ns * 1e9 if self.tokens and self.wall_ns > 0 else None

    @property
    def rows_ns(self) -> int:
        """Sum of all rows, in nanoseconds."""
        return sum(section.total_ns for section in self.sections)

    @property
    def gap_ns(self) -> int:
        """Wall clock that no row accounts for, in nanoseconds: rows + gap = wall clock."""
        return self.wall_ns - self.rows_ns


@dataclass(frozen=True)
class OpReport:
    """Where the time of a process went, by operator.

    Attributes:
        phases: Those with records.
        enabled: Whether the profiler was on when the report was made.
        records: Records that the report is made from.
        dropped: Records that are missing from it.
        isa: Instruction set of the kernels.
        num_threads: Threads that shared an operator's work, the most of a plan that ran.
        cpu: Model name of the processor.
        version: Version of the engine.
        rank: Rank of the process.
    """

    phases: tuple[Phase, ...]
    enabled: bool = False
    records: int = 0
    dropped: int = 0
    isa: str = ""
    num_threads: int = 0
    cpu: str = ""
    version: str = ""
    rank: int = 0
    _by_phase: dict[str, Phase] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._by_phase.update({phase.name: phase for phase in self.phases})

    @property
    def sections(self) -> tuple[Section, ...]:
        """The sections of all phases, one after another."""
        return tuple(section for phase in self.phases for section in phase.sections)

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of all sections, one after another."""
        return tuple(row for section in self.sections for row in section.rows)

    @property
    def wall_ns(self) -> int:
        """Wall clock of all phases, in nanoseconds."""
        return sum(phase.wall_ns for phase in self.phases)

    @property
    def gap_ns(self) -> int:
        """Wall clock that no row accounts for, in nanoseconds."""
        return sum(phase.gap_ns for phase in self.phases)

    def phase(self, name: str) -> Phase:
        """Returns the phase of that name.

        Raises:
            KeyError: There are no records of such a phase; the message lists those there are.
        """
        if name not in self._by_phase:
            raise KeyError(f"phase: expected one of {sorted(self._by_phase)}, got {name!r}")
        return self._by_phase[name]

    @classmethod
    def from_summary(cls, summary: Mapping[str, Any], version: str = "", peaks: object = None) -> OpReport:
        """Makes a report from the engine's sums.

        Args:
            summary: What ``_engine.profile_summary()`` returns.
            version: Version of the engine.
            peaks: What ``thresher.peaks()`` gives; None where the machine has not been measured.
        """
        rank = int(summary["rank"])
        roofs = _roofs(summary, peaks)
        phases = tuple(
            Phase(
                name=totals["phase"],
                sections=tuple(
                    _section(
                        name,
                        rank,
                        (r for r in summary["rows"] if r["phase"] == totals["phase"] and r["section"] == name),
                        roofs,
                    )
                    for name in SECTIONS
                ),
                calls=totals["calls"],
                executions=totals["executions"],
                wall_ns=totals["wall_ns"],
                tokens=totals.get("tokens", 0),
                percent_of_peak=_share_of(totals, roofs),
            )
            for totals in summary["phases"]
        )
        return cls(
            phases=phases,
            enabled=summary["enabled"],
            records=summary["records"],
            dropped=summary["dropped"],
            isa=summary["isa"],
            num_threads=summary["num_threads"],
            cpu=summary["cpu"],
            version=version,
            rank=rank,
        )

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data for JSON. Milliseconds are exact to the nanosecond; None is what is not known."""
        return {
            "format": _FORMAT,
            "format_version": _FORMAT_VERSION,
            "version": self.version,
            "cpu": self.cpu,
            "isa": self.isa,
            "num_threads": self.num_threads,
            "rank": self.rank,
            "enabled": self.enabled,
            "records": self.records,
            "dropped": self.dropped,
            "phases": [
                {
                    "phase": phase.name,
                    "calls": phase.calls,
                    "executions": phase.executions,
                    "wall_ms": phase.wall_ns / 1e6,
                    "rows_ms": phase.rows_ns / 1e6,
                    "gap_ms": phase.gap_ns / 1e6,
                    "tokens": phase.tokens,
                    "tokens_per_s": phase.tokens_per_s,
                    "percent_of_peak": phase.percent_of_peak,
                    "sections": [
                        {
                            "section": section.name,
                            "total_ms": section.total_ns / 1e6,
                            "rows": [_row_to_dict(row) for row in section.rows],
                        }
                        for section in phase.sections
                    ],
                }
                for phase in self.phases
            ],
        }

    @classmethod
    def from_dict(cls, data: object) -> OpReport:
        """The inverse of ``to_dict``.

        Raises:
            ValueError: The data is not an operator report, or one of a newer format.
        """
        if not isinstance(data, dict) or data.get("format") != _FORMAT:
            raise ValueError(
                "operator report: expected the JSON that `thresher profile -o FILE` or THRESHER_PROFILE_OUTPUT writes, "
                f"got {_describe(data)}"
            )
        if data.get("format_version") != _FORMAT_VERSION:
            raise ValueError(
                f"operator report: expected format version {_FORMAT_VERSION}, got {data.get('format_version')}; "
                "read it with the version of Thresher that wrote it"
            )
        try:
            return cls(
                phases=tuple(
                    Phase(
                        name=text(phase["phase"]),
                        sections=tuple(
                            Section(text(section["section"]), tuple(_row_from_dict(row) for row in section["rows"]))
                            for section in phase["sections"]
                        ),
                        calls=integer(phase["calls"]),
                        executions=integer(phase["executions"]),
                        wall_ns=_nanoseconds(phase["wall_ms"]),
                        tokens=integer(phase.get("tokens", 0)),
                        percent_of_peak=_unless_unknown(phase.get("percent_of_peak")),
                    )
                    for phase in data["phases"]
                ),
                enabled=flag(data["enabled"]),
                records=integer(data["records"]),
                dropped=integer(data["dropped"]),
                isa=text(data["isa"]),
                num_threads=integer(data["num_threads"]),
                cpu=text(data["cpu"]),
                version=text(data["version"]),
                rank=integer(data["rank"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"operator report: the file is damaged: {type(error).__name__} {error}") from error

    @classmethod
    def from_json(cls, text: str) -> OpReport:
        """Reads what the "json" format wrote.

        Raises:
            ValueError: The text is not the JSON of an operator report.
        """
        try:
            data = parse(text)
        except ValueError as error:
            raise ValueError(f"operator report: expected JSON, got something else: {error}") from error
        return cls.from_dict(data)


def _describe(data: object) -> str:
    return f"an object with the keys {sorted(data)[:8]}" if isinstance(data, dict) else f"a {type(data).__name__}"


_Key = tuple[str, str, str]  # phase, section, operator


def _roofs(summary: Mapping[str, Any], peaks: object) -> dict[_Key, tuple[float, float]]:
    """Shortest times of all runs of an operator, for its arithmetic and its bytes, in ns; only where both are known.

    An operator runs at several places of a model, each with shapes and a precision of its own, so their times add up.
    """
    from thresher.profiler.analysis.costs import DECODE, CostModel
    from thresher.profiler.analysis.peaks import normalise
    from thresher.profiler.trace.model import Site

    model = CostModel(*normalise(peaks), summary.get("num_threads") or None)
    places = summary.get("sites", ())
    decoding = [place for place in places if place["phase"] == DECODE and place["bytes"] > 0]
    steps = sum(totals["calls"] for totals in summary["phases"] if totals["phase"] == DECODE)
    model.set_decoding([(place["bytes"], place["count"]) for place in decoding], steps)
    known: dict[_Key, tuple[float, float]] = {}
    unknown: set[_Key] = set()
    for place in places:
        key = (place["phase"], place["section"], place["name"])
        site = Site(
            id=0,
            name=place["name"],
            kernel=place["kernel"],
            section=place["section"],
            shapes=place["shapes"],
            dtypes=place["dtypes"],
            precision=place["precision"],
            flops=place["flops"] if place["flops"] >= 0 else None,
            bytes=place["bytes"] if place["bytes"] >= 0 else None,
        )
        cost = model.of(site, place["phase"])
        if cost.compute_ns is None or cost.memory_ns is None:
            unknown.add(key)
            continue
        compute, memory = known.get(key, (0.0, 0.0))
        # Each place is bound by the longer of the two: the sum of these is the operator's shortest time.
        longer = place["count"] * max(cost.compute_ns, cost.memory_ns)
        if cost.compute_ns >= cost.memory_ns:
            known[key] = (compute + longer, memory)
        else:
            known[key] = (compute, memory + longer)
    return {key: times for key, times in known.items() if key not in unknown}


def _share_of(totals: Mapping[str, Any], roofs: Mapping[_Key, tuple[float, float]]) -> float | None:
    """Shortest time of a phase in percent of its wall clock."""
    least = [sum(times) for key, times in roofs.items() if key[0] == totals["phase"]]
    return 100 * sum(least) / totals["wall_ns"] if least and totals["wall_ns"] > 0 else None


def _section(
    name: str, rank: int, rows: Iterable[Mapping[str, Any]], roofs: Mapping[_Key, tuple[float, float]]
) -> Section:
    ordered = sorted(rows, key=lambda row: (-row["total_ns"], row["name"]))
    shares = percentages([row["total_ns"] for row in ordered])
    return Section(
        name,
        tuple(
            Row(
                rank=rank,
                opname=row["name"],
                count=row["count"],
                min_ns=row["min_ns"],
                max_ns=row["max_ns"],
                median_ns=row["median_ns"],
                total_ns=row["total_ns"],
                percentage=share,
                flops=row["flops"] if row["flops"] >= 0 else None,
                bytes=row["bytes"] if row["bytes"] >= 0 else None,
                **_judgement(roofs.get((row["phase"], name, row["name"])), row["total_ns"]),
            )
            for row, share in zip(ordered, shares, strict=True)
        ),
    )


def _judgement(roof: tuple[float, float] | None, total_ns: int) -> dict[str, Any]:
    from thresher.profiler.analysis.costs import OVERHEAD_SHARE

    if roof is None or total_ns <= 0:
        return {}
    compute, memory = roof
    share = (compute + memory) / total_ns
    bound = "overhead" if share < OVERHEAD_SHARE else "compute" if compute >= memory else "memory"
    return {"percent_of_peak": 100 * share, "bound": bound}


def _unless_unknown(value: object) -> float | None:
    return None if value is None else number(value)


def _nanoseconds(milliseconds: object) -> int:
    return round(number(milliseconds) * 1e6)


def _row_to_dict(row: Row) -> dict[str, Any]:
    return {
        "rank": row.rank,
        "opname": row.opname,
        "count": row.count,
        "min_ms": row.min_ns / 1e6,
        "max_ms": row.max_ns / 1e6,
        "ave_ms": row.ave_ns / 1e6,
        "median_ms": row.median_ns / 1e6,
        "total_ms": row.total_ns / 1e6,
        "percentage": row.percentage,
        "flops": row.flops,
        "bytes": row.bytes,
        "gflop_per_s": row.gflops,
        "gbyte_per_s": row.gbytes_per_s,
        "flop_per_byte": row.intensity,
        "percent_of_peak": row.percent_of_peak,
        "bound": row.bound,
    }


def _row_from_dict(row: Mapping[str, Any]) -> Row:
    count, bound = integer(row["count"]), row.get("bound")
    if count < 1:
        raise TypeError(f"expected runs of an operator, got {count}")
    return Row(
        rank=integer(row["rank"]),
        opname=text(row["opname"]),
        count=count,
        min_ns=_nanoseconds(row["min_ms"]),
        max_ns=_nanoseconds(row["max_ms"]),
        median_ns=_nanoseconds(row["median_ms"]),
        total_ns=_nanoseconds(row["total_ms"]),
        percentage=number(row["percentage"]),
        flops=_unless_unknown(row["flops"]),
        bytes=_unless_unknown(row["bytes"]),
        percent_of_peak=_unless_unknown(row.get("percent_of_peak")),
        bound=None if bound is None else text(bound),
    )
