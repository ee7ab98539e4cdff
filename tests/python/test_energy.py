"""Energy counters, read from a folder that looks like /sys/class/powercap."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from thresher.profiler.energy import EnergyMeter

RANGE = 262_143_328_850


def domain(sysfs: Path, folder: str, name: str, microjoules: int, largest: int = RANGE) -> Path:
    place = sysfs / folder
    place.mkdir(parents=True)
    (place / "name").write_text(f"{name}\n")
    (place / "max_energy_range_uj").write_text(f"{largest}\n")
    (place / "energy_uj").write_text(f"{microjoules}\n")
    return place / "energy_uj"


def test_package_and_dram_are_added_and_nothing_twice(tmp_path: Path) -> None:
    (tmp_path / "intel-rapl").mkdir()  # the control type itself has no counter
    package = domain(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    core = domain(tmp_path, "intel-rapl:0:0", "core", 500_000)
    dram = domain(tmp_path, "intel-rapl:0:1", "dram", 10)
    second = domain(tmp_path, "intel-rapl:1", "package-1", 7)
    second_dram = domain(tmp_path, "intel-rapl:1:0", "dram", 0)
    mirror = domain(tmp_path, "intel-rapl-mmio:0", "package-0", 1_000_000)
    whole = domain(tmp_path, "intel-rapl:2", "psys", 0)
    meter = EnergyMeter(tmp_path)
    meter.start()
    for file, value in ((package, 3_500_000), (core, 9_000_000), (dram, 250_010), (second, 1_000_007)):
        file.write_text(str(value))
    for file, value in ((second_dram, 50_000), (mirror, 3_500_000), (whole, 99_000_000)):
        file.write_text(str(value))
    found = meter.stop()
    assert found["reason"] is None
    assert {entry["name"]: entry["joules"] for entry in found["domains"]} == {
        "package-0": 2.5,
        "package-0 dram": 0.25,
        "package-1": 1.0,
        "package-1 dram": 0.05,
    }
    assert found["joules"] == pytest.approx(3.8)
    assert found["seconds"] >= 0


def test_counter_that_wraps_around(tmp_path: Path) -> None:
    file = domain(tmp_path, "intel-rapl:0", "package-0", RANGE - 1_000_000)
    meter = EnergyMeter(tmp_path)
    meter.start()
    file.write_text("2000000")
    assert meter.stop()["joules"] == pytest.approx(3.0)


def test_counter_that_wraps_around_many_times(tmp_path: Path) -> None:
    file = domain(tmp_path, "intel-rapl:0", "package-0", 900, largest=1000)
    meter = EnergyMeter(tmp_path, poll_seconds=0.002)
    meter.start()
    used = 0
    for _ in range(6):
        used += 600
        partial = tmp_path / "next"
        partial.write_text(str((900 + used) % 1000))
        partial.replace(file)
        seen = meter._domains[0]
        deadline = time.monotonic() + 10
        while seen.used_uj != used and time.monotonic() < deadline:
            time.sleep(0.001)
    assert meter.stop()["joules"] == pytest.approx(used / 1e6)


def test_start_begins_anew_and_stop_twice_gives_no_number(tmp_path: Path) -> None:
    file = domain(tmp_path, "intel-rapl:0", "package-0", 0)
    meter = EnergyMeter(tmp_path)
    meter.start()
    file.write_text("5000000")
    meter.start()
    file.write_text("6000000")
    assert meter.stop()["joules"] == pytest.approx(1.0)
    again = meter.stop()
    assert again["joules"] is None and "start()" in again["reason"]


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (lambda folder: None, "No such file"),
        (lambda folder: folder.mkdir(), "got none; load the kernel module"),
        (lambda folder: domain(folder, "intel-rapl:0", "psys", 0), "expected one of the domains package, dram"),
        (lambda folder: domain(folder, "intel-rapl:0", "package-0", 0).write_text("many"), "got 'many'"),
        (lambda folder: (domain(folder, "x:0", "package-0", 0).parent / "max_energy_range_uj").unlink(), "No such"),
    ],
)
def test_what_cannot_be_read_is_a_reason_and_never_zero(tmp_path: Path, prepare: object, reason: str) -> None:
    folder = tmp_path / "powercap"
    prepare(folder)  # type: ignore[operator]
    meter = EnergyMeter(folder)
    meter.start()
    found = meter.stop()
    assert found["joules"] is None
    assert found["domains"] == []
    assert reason in found["reason"]
    assert found["reason"].startswith("expected")


def test_no_permission_names_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = domain(tmp_path, "intel-rapl:0", "package-0", 0)
    if os.geteuid() == 0:  # root may read everything

        def read_text(path: Path, *rest: object, **more: object) -> str:
            if path == file:
                raise PermissionError(13, "Permission denied")
            return path.read_bytes().decode()

        monkeypatch.setattr(Path, "read_text", read_text)
    else:
        file.chmod(0)
    meter = EnergyMeter(tmp_path)
    meter.start()
    found = meter.stop()
    assert found["joules"] is None
    assert f"sudo chmod a+r {file}" in found["reason"]


def test_counter_that_disappears(tmp_path: Path) -> None:
    file = domain(tmp_path, "intel-rapl:0", "package-0", 0)
    meter = EnergyMeter(tmp_path)
    meter.start()
    file.unlink()
    found = meter.stop()
    assert found["joules"] is None
    assert "No such file" in found["reason"]


# ---- GPUs ----

# What NVIDIA's driver would answer: GPUS says how many there are, MJ what each counts, RESULT what becomes of asking.
DRIVER = r"""
#include <stdio.h>
#include <stdlib.h>
static int number(const char* name) { const char* text = getenv(name); return text ? atoi(text) : 0; }
int nvmlInit_v2(void) { return number("INIT"); }
const char* nvmlErrorString(int result) {
  return result == 9 ? "Driver Not Loaded" : result == 15 ? "GPU is lost" : "Unknown Error";
}
int nvmlDeviceGetCount_v2(unsigned* count) { *count = number("GPUS"); return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) { *device = (void*)(long)(index + 1); return 0; }
int nvmlDeviceGetName(void* device, char* name, unsigned size) {
  (void)device;
  return snprintf(name, size, "NVIDIA H100") < 0;
}
int nvmlDeviceGetTotalEnergyConsumption(void* device, unsigned long long* millijoules) {
  *millijoules = 1000ull * (long)device + number("MJ");
  return number("RESULT");
}
"""


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A library with the driver's functions, and no counters of a processor."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = tmp_path / "libnvidia-ml.so.1"
    command = [compiler, "-xc", "-shared", "-fPIC", "-o", str(library), "-"]
    subprocess.run(command, input=DRIVER, text=True, check=True)
    for name, value in (("INIT", "0"), ("GPUS", "2"), ("MJ", "0"), ("RESULT", "0")):
        monkeypatch.setenv(name, value)
    return str(library)


def test_gpus_are_added_to_the_processor(tmp_path: Path, driver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sysfs = tmp_path / "powercap"
    package = domain(sysfs, "intel-rapl:0", "package-0", 0)
    meter = EnergyMeter(sysfs, nvml_library=driver)
    meter.start()
    package.write_text("500000")
    monkeypatch.setenv("MJ", "2250")
    found = meter.stop()
    assert found["domains"] == [
        {"name": "package-0", "joules": 0.5},
        {"name": "gpu 0 (NVIDIA H100)", "joules": 2.25},
        {"name": "gpu 1 (NVIDIA H100)", "joules": 2.25},
    ]
    assert found["joules"] == pytest.approx(5.0) and found["reason"] is None


def test_a_sum_that_lacks_the_processor_is_none_and_the_gpus_are_told(
    tmp_path: Path, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = EnergyMeter(tmp_path / "powercap", nvml_library=driver)
    meter.start()
    monkeypatch.setenv("MJ", "1500")
    found = meter.stop()
    assert found["joules"] is None and "powercap" in found["reason"]
    assert [part["joules"] for part in found["domains"]] == [1.5, 1.5]
    assert found["seconds"] >= 0


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("INIT", "9", "expected NVIDIA's driver to begin from libnvidia-ml.so.1, got: Driver Not Loaded; `nvidia-smi`"),
        ("RESULT", "3", "expected gpu 0 (NVIDIA H100) to count energy, got none; GPUs count it from Volta on"),
        ("RESULT", "15", "expected the energy of gpu 0 (NVIDIA H100) from libnvidia-ml.so.1, got: GPU is lost"),
    ],
)
def test_a_driver_that_cannot_be_asked_is_a_reason(
    tmp_path: Path, driver: str, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, reason: str
) -> None:
    monkeypatch.setenv(variable, value)
    sysfs = tmp_path / "powercap"
    package = domain(sysfs, "intel-rapl:0", "package-0", 0)
    meter = EnergyMeter(sysfs, nvml_library=driver)
    meter.start()
    package.write_text("500000")
    found = meter.stop()
    assert found["joules"] is None and found["reason"].startswith(reason)
    assert found["domains"] == [{"name": "package-0", "joules": 0.5}]


def test_a_gpu_that_is_lost_meanwhile_leaves_the_others(
    tmp_path: Path, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sysfs = tmp_path / "powercap"
    package = domain(sysfs, "intel-rapl:0", "package-0", 0)
    meter = EnergyMeter(sysfs, nvml_library=driver)
    meter.start()
    package.write_text("500000")
    monkeypatch.setenv("RESULT", "15")
    found = meter.stop()
    assert found["joules"] is None and found["reason"].count("GPU is lost") == 2
    assert found["domains"] == [{"name": "package-0", "joules": 0.5}]


def test_a_machine_without_the_driver_wants_no_gpus(tmp_path: Path) -> None:
    domain(tmp_path, "intel-rapl:0", "package-0", 0)
    meter = EnergyMeter(tmp_path, nvml_library="libno-such-driver.so")
    meter.start()
    assert meter.stop()["reason"] is None
