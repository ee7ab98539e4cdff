"""Energy that the machine used: the processor's from /sys/class/powercap (RAPL), NVIDIA GPUs' from NVML."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thresher.profiler import nvml

SYSFS = Path("/sys/class/powercap")
# What is added up. The other domains (core, uncore) are parts of the package; psys contains everything once more.
_WANTED = ("package", "dram")
# A counter of 2^32 uJ, the smallest that is common, wraps around after 43 s at 100 W.
_POLL_SECONDS = 10.0


@dataclass
class _Domain:
    name: str
    read: Callable[[], int]  # microjoules
    range_uj: int  # where it begins anew; 0 where it does so at no certain number
    last_uj: int
    used_uj: int = 0


class EnergyMeter:
    """Measures the energy between `start` and `stop`.

    The counters are those of the whole processor and of all NVIDIA GPUs: what other processes used in that time is
    contained.

        meter = EnergyMeter()
        meter.start()
        work()
        print(meter.stop())
    """

    def __init__(
        self, sysfs: Path = SYSFS, *, poll_seconds: float = _POLL_SECONDS, nvml_library: str = nvml.LIBRARY
    ) -> None:
        """Prepares a meter.

        Args:
            sysfs: The folder with the counters.
            poll_seconds: How often the counters are read in between, so that none wraps around unnoticed.
            nvml_library: What asks the driver of GPUs.
        """
        self._sysfs = sysfs
        self._poll_seconds = poll_seconds
        self._nvml_library = nvml_library
        self._domains: list[_Domain] = []
        self._reason: str | None = None
        self._begin = 0.0
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begins to measure; an earlier measurement is forgotten. Raises nothing: `stop` says why there is none."""
        self._halt()
        self._domains, self._reason = [], None
        reasons = []
        finders: tuple[Callable[[], list[_Domain]], ...] = (
            functools.partial(_find, self._sysfs),
            functools.partial(_gpus, self._nvml_library),
        )
        for find in finders:
            try:
                self._domains += find()
            except (_Unreadable, nvml.NvmlError) as error:
                reasons.append(str(error))
        self._reason = "; ".join(reasons) or None
        if not self._domains:
            return
        self._begin = time.monotonic()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._poll, args=(self._end,), name="thresher energy", daemon=True)
        self._thread.start()

    def stop(self) -> dict[str, Any]:
        """Ends the measurement.

        Returns:
            "joules": the sum, None if a part of it is not known; "reason": why it is not, and what to do; "domains":
            the parts that are known, a list of "name" and "joules"; "seconds": how long it was measured, None where
            no part was.
        """
        measured = self._thread is not None
        self._halt()
        if self._reason is None and not measured:
            self._reason = "expected start() before stop(), got no start; call start() first"
        if measured:
            self._read()
        if not measured or not self._domains:
            return {"joules": None, "reason": self._reason, "domains": [], "seconds": None}
        domains = [{"name": domain.name, "joules": domain.used_uj / 1e6} for domain in self._domains]
        return {
            "joules": None if self._reason else sum(domain.used_uj for domain in self._domains) / 1e6,
            "reason": self._reason,
            "domains": domains,
            "seconds": time.monotonic() - self._begin,
        }

    def _halt(self) -> None:
        if self._thread is not None:
            self._end.set()
            self._thread.join()
            self._thread = None

    def _poll(self, end: threading.Event) -> None:
        while not end.wait(self._poll_seconds) and self._domains:
            self._read()

    def _read(self) -> None:
        for domain in list(self._domains):
            try:
                now = domain.read()
            except (_Unreadable, nvml.NvmlError) as error:
                self._reason = f"{self._reason}; {error}" if self._reason else str(error)
                self._domains.remove(domain)
                continue
            # Smaller than before: the counter began anew once since; the poll sees to it that it is not twice.
            gone_by = now - domain.last_uj if now >= domain.last_uj else now + max(domain.range_uj - domain.last_uj, 0)
            domain.used_uj += gone_by
            domain.last_uj = now


class _Unreadable(Exception):
    pass


def _find(sysfs: Path) -> list[_Domain]:
    """The domains to add up, with the counters as they are now."""
    try:
        folders = sorted(folder for folder in sysfs.iterdir() if (folder / "energy_uj").exists())
    except OSError as error:
        raise _Unreadable(
            f"expected the counters in {sysfs}, got: {error.strerror or error}; virtual machines and "
            "containers have none as a rule: measure on the machine itself, with the kernel module intel_rapl_common"
        ) from error
    if not folders:
        raise _Unreadable(
            f"expected counters in {sysfs}, got none; load the kernel module intel_rapl_msr "
            "(modprobe intel_rapl_msr), or use a processor that has them"
        )
    domains: dict[str, _Domain] = {}
    names: list[str] = []
    for folder in folders:
        try:
            name = (folder / "name").read_text().strip()
        except OSError as error:
            raise _unreadable(folder / "name", error) from error
        names.append(name)
        kind = name.split("-")[0]
        # The same counter is shown by two interfaces on some machines (intel-rapl, intel-rapl-mmio).
        parent = _parent_name(folder)
        label = f"{parent} {name}" if kind == "dram" and parent else name
        if kind not in _WANTED or label in domains:
            continue
        file = folder / "energy_uj"
        read = functools.partial(_number, file)
        domains[label] = _Domain(label, read, _number(folder / "max_energy_range_uj"), read())
    if not domains:
        raise _Unreadable(
            f"expected one of the domains {', '.join(_WANTED)} in {sysfs}, got {', '.join(names)}; "
            "this processor does not count what is needed"
        )
    return list(domains.values())


def _gpus(library: str) -> list[_Domain]:
    """The GPUs' counters as they are now."""
    found = []
    for counter in nvml.counters(library):
        read = functools.partial(_microjoules, counter)
        found.append(_Domain(counter.name, read, 0, read()))
    return found


def _microjoules(counter: nvml.GpuCounter) -> int:
    return 1000 * counter.read()


def _parent_name(folder: Path) -> str:
    """The name of the domain that a domain is part of, such as "package-0" for intel-rapl:0:1; "" for none."""
    parts = folder.name.split(":")
    if len(parts) < 3:
        return ""
    try:
        return (folder.parent / ":".join(parts[:-1]) / "name").read_text().strip()
    except OSError:
        return ""


def _number(file: Path) -> int:
    try:
        text = file.read_text().strip()
    except OSError as error:
        raise _unreadable(file, error) from error
    try:
        return int(text)
    except ValueError:
        raise _Unreadable(
            f"expected a number in {file}, got {text[:40]!r}; the kernel's driver is not known to Thresher"
        ) from None


def _unreadable(file: Path, error: OSError) -> _Unreadable:
    if isinstance(error, PermissionError):
        who = "root" if os.geteuid() == 0 else f"user {os.geteuid()}"
        return _Unreadable(
            f"expected to read {file}, got: permission denied for {who}; run as root, or let everybody read "
            f"it until the next start: sudo chmod a+r {file}"
        )
    return _Unreadable(f"expected to read {file}, got: {error.strerror or error}; see dmesg for the driver")
