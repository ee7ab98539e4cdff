"""The Thresher engine: graphs, plans and the profiler. Use the thresher package rather than this module."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, SupportsIndex

import numpy.typing as npt

def initialize() -> None:
    """Applies the THRESHER_* variables once. Raises ValueError naming a wrong one."""

def version() -> str: ...
def isa() -> str:
    """The instruction set kernels run with."""

def isas() -> list[str]:
    """Those this machine can run, worst first."""

def release_free_memory() -> None:
    """Gives memory that has been freed back to the system, as far as the C library does so."""

def isa_refusal() -> str:
    """Why an instruction set that the processor has may not be used; empty where all may."""

def compiled_isas() -> list[str]:
    """Those this build has kernels for, worst first."""

def precisions() -> list[str]:
    """What products with constant weights can be computed in."""

def num_threads() -> int:
    """The threads of the pool, with the caller."""

def num_teams() -> int:
    """THRESHER_TEAMS: how many calls run side by side, each with its threads."""

def default_num_threads() -> int:
    """THRESHER_NUM_THREADS, else OMP_NUM_THREADS or the usable cores of a team, whichever is less."""

def set_num_threads(n: int) -> None: ...
def set_openmp(parallel: int, thread_number: int, team_size: int, max_threads: int) -> None:
    """Addresses of GOMP_parallel and of what OpenMP answers about a team: whose threads borrow_openmp() takes."""

def borrow_openmp() -> bool:
    """Lets plans that the calling thread runs use OpenMP's threads, until give_back(); whether there are as many."""

def give_back() -> None: ...
def result_memory() -> tuple[int, int, int]:
    """Addresses of functions that take memory for results and give it back, and from how many bytes on to use them."""

def kept_results() -> dict[str, int]:
    """What is kept for results now, how many results took such memory, and how many had that of an earlier one."""

def forget_results() -> None:
    """Frees the memory that is kept for results."""

def usable_cores() -> int: ...
def topology(root: str = "") -> dict[str, Any]:
    """The cores that this process may use and what they share; `root`: where /sys and /proc of another machine lie."""

def cpu_model() -> str: ...
def machine() -> dict[str, str | int]:
    """What tells this machine from others: processor, instruction set in use, usable cores, cache sizes."""

def env_vars() -> list[dict[str, str]]:
    """One dict per THRESHER_* variable."""

def env_value(name: str) -> bool | int | str:
    """The value of a THRESHER_* variable or its default. Raises ValueError where it is wrong."""

def check_env() -> list[str]:
    """Warnings about unknown THRESHER_* variables, and about a tool for NVTX ranges that cannot be used."""

def encodings() -> list[dict[str, Any]]:
    """How constants of floats may be stored: name, and numbers and bytes of a block."""

def decode(encoding: str, data: object) -> npt.NDArray[Any]:
    """The float32 numbers that bytes (uint8, whole blocks) stand for."""

def encode(encoding: str, numbers: object, group: int = 32) -> npt.NDArray[Any]:
    """float32 numbers as blocks of q8_0, q4_0, q4_1, q5_0 or q5_1, of which `group` share a scale."""

def library_devices(path: str) -> dict[str, Any]:
    """Kind, architectures and devices of a library of kernels. Raises where it cannot be used here, with the cure."""

class DeviceBuffer:
    """Memory of a device."""

    @property
    def nbytes(self) -> int: ...
    @property
    def address(self) -> int: ...

class DeviceEvent:
    """A moment in the work of a stream."""

    def synchronize(self) -> None: ...
    def ns_since(self, earlier: DeviceEvent) -> float:
        """Nanoseconds from an earlier event; both are done."""

class DeviceStream:
    """Work in order; plans and fills may return before they are done."""

    def copy_in(self, to: DeviceBuffer, array: object) -> None: ...
    def copy_out(self, array: object, source: DeviceBuffer) -> None: ...
    def copy(
        self, to: DeviceBuffer, source: DeviceBuffer, nbytes: int, to_offset: int = 0, source_offset: int = 0
    ) -> None: ...
    def fill(self, to: DeviceBuffer, value: int, nbytes: int, offset: int = 0) -> None: ...
    def record(self, event: DeviceEvent) -> None: ...
    def wait(self, event: DeviceEvent) -> None:
        """What is asked of this stream from now on waits for the event."""

    def synchronize(self) -> None: ...

class Device:
    """Where kernels run: the CPU, or a device of a library of kernels."""

    def __init__(self, library: str | None = None, index: int = 0) -> None: ...
    @staticmethod
    def of_rank(rank: int, size: int, *, all_reduce: int, all_gather: int, type: int, sum: int, group: int) -> Device:
        """The CPU of one rank among `size`: addresses of the MPI library's functions, and its handles."""

    @property
    def info(self) -> dict[str, Any]: ...
    def empty(self, nbytes: int) -> DeviceBuffer: ...
    def stream(self) -> DeviceStream: ...
    def event(self) -> DeviceEvent: ...
    def tool_window(self, open: bool) -> None:
        """Opens and closes the window outside of which tools that were told so record nothing: cudaProfilerStart."""

    def choices(self) -> str:
        """What was measured to choose among kernels: lines of subject, choice and remark, with tabs between them."""

    def learn(self, choices: str) -> None:
        """Takes the choices of an earlier process, so that they are not measured again."""

class Graph:
    """A program of typed SSA values; see docs/architecture.md."""

    def __init__(self) -> None: ...
    def input(self, name: str, dtype: str, shape: Sequence[int]) -> int: ...
    def state(self, name: str, encoding: str, shape: Sequence[int]) -> int:
        """An input that runs write to: memory of the caller, which outlives them. `encoding`: a type, or of blocks."""

    def constant(self, name: str, array: object, weight: bool = False) -> int: ...
    def placed(self, name: str, dtype: str, shape: Sequence[int], constant: DeviceConstant) -> int:
        """Adds a weight that lies in a device's memory, row-major."""

    def weight(self, name: str, encoding: str, shape: Sequence[int], data: object) -> int:
        """Adds a constant on bytes as they are stored (uint8), without a copy: encodings() lists how.

        One in blocks may be a weight of linear and linears, [out, in], and a table of embedding.
        """

    def encoding(self, id: int) -> str:
        """How the numbers of a constant of floats are stored."""

    def add(
        self,
        op: str,
        inputs: Sequence[int | None],
        attrs: Mapping[str, object] = {},
        source: str = "",
        module: str = "",
    ) -> list[int]: ...
    def set_outputs(self, arg: Sequence[int], /) -> None: ...
    def adopt(self, source: Graph, id: int) -> int:
        """Adds a constant of another graph on the same memory and gives its id here."""

    def copy(self) -> Graph: ...
    @property
    def inputs(self) -> list[int]: ...
    @property
    def outputs(self) -> list[int]: ...
    def name(self, arg: int, /) -> str: ...
    def contents(self, id: int) -> npt.NDArray[Any]:
        """A constant's elements, read only, without a copy; of one in blocks its bytes, row by row."""

    def dtype(self, arg: int, /) -> str: ...
    def shape(self, id: int) -> tuple[int, ...]: ...
    def is_constant(self, arg: int, /) -> bool: ...
    def is_weight(self, arg: int, /) -> bool: ...
    def nodes(self) -> list[dict[str, object]]: ...
    def text(self, digests: bool = True) -> str: ...
    def hash(self) -> str: ...
    @staticmethod
    def parse(arg: str, /) -> Graph: ...

def ops() -> list[dict[str, object]]:
    """One dict per operator: name, doc, operands, attrs, section, modelled, package (empty: the engine's own)."""

def load_operators(path: str) -> dict[str, object]:
    """Opens a library of operators outside the engine (operator_package.h); gives its name, version and operators."""

def passes(level: str = "O2") -> list[str]:
    """Names of the passes of an optimisation level, in order."""

def all_passes() -> list[dict[str, str]]:
    """One dict per pass: name and doc."""

def plan_obstacle(graph: Graph, device: Device, level: str = "O2", passes: Sequence[str] | None = None) -> str:
    """Why there can be no plan of the graph for the device; empty where there can be one."""

def digests(arrays: Sequence[object]) -> list[str]:
    """Digests of bytes (uint8), 32 hexadecimal digits each: against accidents, not against attackers."""

def packed_layout() -> str:
    """A digest of how weights are packed here: engines with the same one can use each other's."""

class Texts:
    """A sequence of texts in a file, made when they are asked for."""

    def __len__(self) -> int: ...
    def __getitem__(self, at: SupportsIndex) -> str: ...
    def __iter__(self) -> Iterator[str]: ...

class TextPairs:
    """A sequence of pairs of texts, made when they are asked for."""

    def __len__(self) -> int: ...
    def __getitem__(self, at: SupportsIndex) -> tuple[str, str]: ...
    def __iter__(self) -> Iterator[tuple[str, str]]: ...

def read_texts(data: object, at: int, count: int) -> tuple[Texts, int]:
    """Texts from byte `at` on, each behind its length in 8 bytes, and where they end.

    There are fewer than `count` where the data end before. Bytes that are no UTF-8 become surrogates. The bytes have to
    stay as they are.
    """

def pairs_vocabulary(tokens: Texts, merges: Texts) -> tuple[dict[str, int], Sequence[tuple[str, str]]]:
    """The numbers of tokens, and what stands before and behind the first space of each merge.

    ValueError for a merge without a space.
    """

class DeviceConstant:
    """A constant in the memory of a device."""

    @property
    def copies(self) -> int:
        """How often its bytes have been copied to the host."""

class WeightStore:
    """Packed weights, shared between the plans of one model."""

    def __init__(self, named: bool = False) -> None: ...
    def place(self, device: Device, address: int, nbytes: int, owner: object) -> DeviceConstant:
        """A constant that lies at an address of the device, which `owner` keeps alive.

        Plans for the device read it there, and the host has a copy only while something else reads it.
        """

    def add_source(self, bytes: object, digest: str) -> None:
        """Weights among these bytes (uint8), whose digest this is, are named by their place there."""

    def add_part(self, name: str, bytes: object) -> None:
        """These bytes (uint8) are taken where the matrix of that name would be packed."""

    def parts(self) -> list[tuple[str, npt.NDArray[Any], bool]]:
        """Of a store that names: what each packed matrix is called, its bytes, and whether they were given."""

    @property
    def bytes(self) -> int: ...

class GraphFamily:
    """One program for many sizes, told from its graphs at a few of them."""

    @staticmethod
    def fit(names: Sequence[str], degree: int, samples: Sequence[tuple[Sequence[int], Graph]]) -> GraphFamily: ...
    def at(self, sizes: Sequence[int]) -> Graph:
        """The graph at these sizes."""

    @property
    def names(self) -> list[str]: ...

class PlanAtSizes:
    """A plan for many sizes at some of them, or one for one size of each input."""

    def run(self, inputs: Sequence[object], outputs: Sequence[object]) -> None: ...
    def run_at(self, inputs: bytes, outputs: bytes, stream: int | None = None) -> None: ...
    @property
    def outputs(self) -> list[tuple[str, tuple[int, ...]]]: ...
    def door(self) -> tuple[int, int, int]:
        """Addresses for programs in C, valid while this object lives.

        The first is of a function that is given the third, words as run_at() takes them, how many, those of the outputs
        and how many; it runs the plan and returns whether that went well. The second is of one that returns what
        profile_enabled() does.
        """

    @property
    def plan(self) -> Plan: ...
    @property
    def sizes(self) -> tuple[int, ...]: ...

class PausableRun:
    """A run of a plan in pieces, between which anything else may run."""

    def run_for(self, seconds: float) -> bool:
        """Does the next steps, as many as are likely to end in time and at least one; True: all are done.

        Raises as run() does, and ValueError where it is over.
        """

    @property
    def longest_step_s(self) -> float:
        """Of the steps so far."""

class Plan:
    """A compiled graph: build() it, then run() it from any number of threads."""

    @staticmethod
    def build(
        graph: Graph,
        weights: WeightStore,
        level: str = "O2",
        passes: Iterable[str | tuple[str, Callable[[Graph], Graph]]] | None = None,
        dump: Callable[[str, str], None] | None = None,
        share_memory: bool = True,
        num_threads: int = 0,
        precision: str = "model",
        exclude: Sequence[str] = [],
        max_weight_error: float | None = None,
        use_tuning: bool = True,
        name: str = "",
        device: Device | None = None,
        allow_tf32: bool = False,
        graphs: bool = False,
    ) -> Plan:
        """A plan for a device, by default the CPU.

        Raises NotImplementedError naming an operator that the device has no kernel for.
        """

    @staticmethod
    def build_extent(
        family: GraphFamily,
        weights: WeightStore,
        seed: Sequence[int],
        capacity: Sequence[int],
        level: str = "O2",
        passes: Sequence[str] | None = None,
        dump: Callable[[str, str], object] | None = None,
        share_memory: bool = True,
        num_threads: int = 0,
        precision: str = "model",
        exclude: Sequence[str] = [],
        max_weight_error: float | None = None,
        use_tuning: bool = True,
        name: str = "",
        device: Device | None = None,
        allow_tf32: bool = False,
        graphs: bool = False,
    ) -> Plan:
        """A plan for all sizes up to `capacity` at which it looks as it does at `seed`."""

    def run(self, inputs: Sequence[object], outputs: Sequence[object], sizes: Sequence[int] = ()) -> None: ...
    def run_at(self, inputs: bytes, outputs: bytes, sizes: Sequence[int] = (), stream: int | None = None) -> None:
        """As run(), of memory whose elements have the plan's types.

        Of each input and output, as words of 64 bits: address, a number whose lowest 8 bits are the rank, sizes,
        strides in elements.
        """

    def begin_at(self, inputs: bytes, outputs: bytes, sizes: Sequence[int] = ()) -> PausableRun:
        """As run_at(), of a plan for the CPU, in pieces; the memory stays as it is until the last one is done."""

    def launch(
        self,
        stream: DeviceStream,
        inputs: Sequence[DeviceBuffer],
        outputs: Sequence[DeviceBuffer],
        sizes: Sequence[int] = (),
    ) -> None:
        """run() on row-major tensors that begin where buffers of the plan's device do.

        Returns before they are done.
        """

    def at(self, sizes: Sequence[int]) -> PlanAtSizes:
        """The plan at these sizes, which admits() accepts; of a plan for one size of each input, at none."""

    def admits(self, sizes: Sequence[int]) -> bool:
        """Whether the plan is for these sizes."""

    def numbers(self, sizes: Sequence[int] = ()) -> list[int]:
        """Everything in the plan that may follow the sizes of a call.

        The order depends on the steps of the plan alone.
        """

    @property
    def extent(self) -> dict[str, tuple[int, int]] | None:
        """The least and the largest of each size that the plan is for; None: one shape of each input."""

    @property
    def name(self) -> str: ...
    def steps(self) -> list[dict[str, object]]: ...
    def precision_decisions(self) -> list[dict[str, object]]:
        """What was decided for each linear, where a precision other than fp32 was asked for.

        Each dict has module, source, op, k, n, precision, weight_error (None: not measured) and reason.
        """

    def products(self) -> list[dict[str, Any]]:
        """One dict per product with weights: its shape as in tuned(), choice, and tuned_m.

        tuned_m is the number of rows that the choice was measured with (0: not measured).
        """

    def constants(self) -> list[tuple[int, int, str]]:
        """Constants the plan reads: address, bytes, and who made them: caller, engine or packed."""

    @property
    def inputs(self) -> list[tuple[str, str, tuple[int, ...]]]: ...
    @property
    def outputs(self) -> list[tuple[str, tuple[int, ...]]]: ...
    @property
    def num_threads(self) -> int: ...
    @property
    def arena_bytes(self) -> int: ...
    @property
    def unplanned_bytes(self) -> int: ...
    @property
    def graph_text(self) -> str: ...

class Model:
    """A loaded model file: run() it from any number of threads."""

    @staticmethod
    def load(
        path: str,
        level: str = "O2",
        precision: str | None = None,
        exclude: Sequence[str] | None = None,
        max_weight_error: float | None = None,
        num_threads: int = 0,
        use_tuning: bool = True,
    ) -> Model: ...
    @property
    def name(self) -> str: ...
    @property
    def engine(self) -> str:
        """The version of the engine that wrote the file."""

    @property
    def precision(self) -> str: ...
    @property
    def num_shapes(self) -> int: ...
    @property
    def weight_bytes(self) -> int: ...
    def inputs(self, shape: int = 0, sizes: Sequence[int] | None = None) -> list[tuple[str, str, tuple[int, ...]]]: ...
    def outputs(self, shape: int = 0) -> list[tuple[str, str, tuple[int, ...]]]: ...
    def sizes(self, shape: int = 0) -> dict[str, tuple[int, int]]: ...
    def find(self, inputs: Sequence[object]) -> tuple[int, list[tuple[str, str, tuple[int, ...]]]]: ...
    def run(self, inputs: Sequence[object], outputs: Sequence[object]) -> None: ...
    def plan(self, shape: int = 0) -> Plan: ...

def write_model(
    path: str,
    name: str,
    graphs: Sequence[tuple[Graph, Sequence[str]]],
    families: Sequence[tuple[GraphFamily, Sequence[int], Sequence[str]]] = [],
    precision: str = "model",
    exclude: Sequence[str] = [],
    max_weight_error: float | None = None,
) -> None:
    """Writes graphs, families of them with their largest sizes, and the names of their outputs to a model file."""

def measure_peaks(
    num_threads: Sequence[int], quick: bool = False, progress: Callable[[int, int], object] | None = None
) -> dict[str, object]:
    """Measures arithmetic and memory speed with each number of threads; `quick` is for tests."""

def profile_start() -> None: ...
def profile_stop() -> None: ...
def profile_reset() -> None: ...
def profile_started() -> bool:
    """Whether the sums of the operator report are kept."""

def profile_enabled() -> bool:
    """Whether anybody wants records."""

def profile_dropped() -> int: ...
def profile_records() -> list[dict[str, object]]:
    """The newest records of every thread, one dict each."""

def profile_summary() -> dict[str, object]:
    """Sums over all records since the start or the last reset."""

def profile_now_ns() -> int:
    """Nanoseconds since the Unix epoch on the profiler's clock."""

def profile_record(section: str, name: str, start_ns: int, end_ns: int) -> None: ...
def profile_events() -> list[dict[str, Any]]:
    """Every kind of event: number, name, area ("engine": exists today) and doc."""

def profile_rank(rank: int, size: int) -> None:
    """Which process this is, in reports and traces, among those that run one model together."""

def profile_site(name: str, section: str = "call") -> int:
    """The number of a place, for profile_event()."""

def profile_event(event: int, site: int, start_ns: int, value: int = 0) -> None:
    """Records an interval on the calling thread, from start_ns until now; of a call, value is its tokens."""

def profile_phase(name: str) -> None:
    """The phase of what the calling thread records from now on: inference, prefill or decode."""

def device_times() -> dict[str, Any]:
    """Whether the last records of devices have exact times (CUPTI), else why they are those of events."""

def nvtx_listening() -> bool:
    """Whether a tool takes NVTX ranges."""

def nvtx_push(name: str) -> None:
    """Begins an NVTX range on the calling thread."""

def nvtx_pop() -> None:
    """Ends the last one."""

def trace_start(path: str, max_bytes: int) -> None:
    """Starts a trace into a new file, or in memory if path is empty."""

def trace_stop() -> dict[str, Any]: ...
def trace_status() -> dict[str, Any]: ...
def trace_annotate(json_object: str) -> None:
    """Adds a JSON object to what the running trace tells about itself."""

def trace_save(path: str) -> None:
    """Writes what the trace holds so far to a new file."""

def allocated_bytes() -> int:
    """Memory that the engine holds for plans and packed weights."""

def pti_api(version: int) -> int:
    """Address of the functions of pti.h; 0 if this engine does not know that version."""

def tune_product(
    precision: str,
    m: int,
    n: int,
    k: int,
    num_threads: int = 0,
    quick: bool = False,
    progress: Callable[[float], object] | None = None,
) -> dict[str, Any]:
    """Measures which blocking of a product of m rows with a k x n matrix is fastest.

    The dict is as in tuned(), with default_us, tuned_us and ratio (each lower quartile, median and upper quartile),
    candidates and rounds. `progress` gets numbers from 0 to 1; `quick` is for tests.
    """

def set_tuned(products: Iterable[Mapping[str, Any]]) -> None:
    """Replaces the table that plans choose blockings from; entries as in tuned()."""

def tuned() -> list[dict[str, Any]]:
    """The entries of that table.

    Each dict has isa, precision, m, n, k, num_threads and choice: panel_kib, most_rows, split and variant.
    """

class Holders:
    """Dicts, lists and sets, and what they held.

    Each entry is (owner or None, dict, (key, value, ...)), (None, list, items), (None, set, frozenset) or
    (owner, names of attributes, their values).
    """

    def __init__(self, entries: tuple[tuple[object, object, object], ...]) -> None: ...
    def unchanged(self) -> bool:
        """Whether they still hold these very objects; sets, equal ones. An owner's __dict__ is that very dict."""

def same_words(addresses: bytes, words: bytes) -> bool:
    """Whether the words of 32 bits at these addresses of 64 bits hold what they held. The memory must exist."""

def class_dict(type: type) -> dict[str, object]:
    """What type.__dict__ is a view of. Not to be changed."""
