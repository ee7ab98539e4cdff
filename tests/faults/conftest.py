"""Faults are made for real: processes are killed, disks are full, clocks step. Nothing of Thresher is replaced."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# Helpers that the other Python tests use, too.
sys.path.insert(0, str(Path(__file__).parent.parent / "python"))

pytest.importorskip("thresher._engine")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test touches the user's cache, and none sees variables of Thresher that it has not set."""
    for name in [name for name in os.environ if name.startswith("THRESHER_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("THRESHER_CACHE_DIR", str(tmp_path / "own-cache"))


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def python() -> Run:
    """Runs Python code in a process of its own that must end in time: a hang is a failure."""

    def run(
        code: str, *arguments: object, timeout: float = 180, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments)],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of eight layers as a file: processes that load it need no PyTorch."""
    torch = pytest.importorskip("torch")
    import thresher

    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (torch.nn.Linear(128, 128), torch.nn.Tanh())]
    model = torch.nn.Sequential(*layers).eval()
    path = tmp_path_factory.mktemp("model") / "layers.thrmodel"
    shapes = [(torch.zeros(rows, 128),) for rows in (4, 64)]
    return Path(thresher.export(model, shapes, path))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts small file systems in memory: `disk("size=256k")` gives the folder. Needs root."""
    mounted: list[Path] = []

    def mount(options: str) -> Path:
        folder = tmp_path / f"disk-{len(mounted)}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            pytest.skip(f"this machine cannot mount: {error}")
        if done.returncode != 0:
            pytest.skip(f"this process may not mount a file system: {done.stderr.strip()}")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)
