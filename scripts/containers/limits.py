"""What this host does not allow a container engine to do, as the options that keep the engine within it."""

from __future__ import annotations

import re
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CAP_SYS_RESOURCE = 24
# What podman asks for when nobody says otherwise.
PODMAN_OPEN_FILES = 1048576
# What a build needs at most, with room to spare.
ENOUGH = {"nofile": 8192, "nproc": 16384}


@dataclass(frozen=True)
class Host:
    """The properties of this machine that engines stumble over.

    Attributes:
        may_raise_limits: whether this process has CAP_SYS_RESOURCE.
        hard_limits: the hard limits nofile and nproc of this process; -1 is none.
        hybrid_cgroups: whether the version 1 controllers are mounted beside an empty version 2 hierarchy.
    """

    may_raise_limits: bool = True
    hard_limits: Mapping[str, int] | None = None
    hybrid_cgroups: bool = False


def this_host(proc_status: Path = Path("/proc/self/status"), cgroups: Path = Path("/sys/fs/cgroup")) -> Host:
    """Reads the properties of the machine this runs on."""
    try:
        status = proc_status.read_text(encoding="utf-8")
    except OSError:
        status = ""
    match = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    capabilities = int(match[1], 16) if match else -1
    limits = {
        name: resource.getrlimit(which)[1]
        for name, which in (("nofile", resource.RLIMIT_NOFILE), ("nproc", resource.RLIMIT_NPROC))
    }
    hybrid = (cgroups / "unified").is_dir() and not (cgroups / "cgroup.controllers").exists()
    return Host(bool(capabilities >> CAP_SYS_RESOURCE & 1), limits, hybrid)


def limit_options(host: Host) -> list[str]:
    """Returns the `--ulimit` options podman needs where it may not raise limits.

    Podman asks for more open files than such a host grants, and its runtime then stops. It also stops at limits well
    below those granted here, since podman lowers its own while it starts.
    """
    if host.may_raise_limits or not host.hard_limits:
        return []
    if not -1 < host.hard_limits.get("nofile", -1) < PODMAN_OPEN_FILES:
        return []
    options = []
    for name, granted in sorted(host.hard_limits.items()):
        limit = min(granted, ENOUGH[name])
        options += [f"--ulimit={name}={limit}:{limit}"] if granted > 0 else []
    return options
