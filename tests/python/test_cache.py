"""The cache of results in files, in good and bad weather."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import limit_file_size, run_command

pytest.importorskip("thresher._engine")

from thresher import _engine, cache
from thresher.cache import CacheWarning, State, location

KEY = {"num_threads": [1, 2]}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache folder of the test's own; nothing has been warned of yet."""
    for name in ("THRESHER_CACHE", "THRESHER_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(location, "_warned", set())
    cache.set_dir(tmp_path / "cache")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield tmp_path / "cache"
    cache.set_dir(None)


def python(code: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "THRESHER_CACHE_DIR": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def the_file(folder: Path) -> Path:
    (path,) = [path for path in (folder / "sums").iterdir() if path.name.endswith(".json")]
    return path


def test_what_is_stored_comes_back() -> None:
    value = {"median": 0.1, "all": [1, 2.5, None, True, "zwölf"], "none": {}}
    assert cache.load("sums", KEY) is None
    assert cache.store("sums", KEY, value)
    assert cache.load("sums", KEY) == value
    assert cache.load("sums", {"num_threads": [1]}) is None
    assert cache.load("products", KEY) is None
    assert cache.store("sums", KEY, 2)
    assert cache.load("sums", KEY) == 2
    assert [entry.state for entry in cache.entries()] == [State.GOOD]


def test_another_process_finds_it(folder: Path) -> None:
    cache.store("sums", KEY, [1, 2])
    done = python(f"from thresher import cache; print(cache.load('sums', {KEY!r}))", folder)
    assert done.stdout == "[1, 2]\n", done.stderr


def test_machine_and_version_are_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    cache.store("sums", KEY, 1)
    machine = _engine.machine()
    assert {"cpu_model", "architecture", "isa", "usable_cores", "l1_bytes", "l2_bytes", "l3_bytes"} <= set(machine)
    for name, value in machine.items():
        other = value + 1 if isinstance(value, int) else f"{value}x"
        monkeypatch.setattr(_engine, "machine", lambda name=name, other=other: {**machine, name: other})
        assert cache.load("sums", KEY) is None, name
    monkeypatch.setattr(_engine, "machine", lambda: machine)
    assert cache.load("sums", KEY) == 1
    monkeypatch.setattr(_engine, "version", lambda: "99.0")
    assert cache.load("sums", KEY) is None
    assert [entry.state for entry in cache.entries()] == [State.OTHER_VERSION]


def test_the_forced_instruction_set_is_in_the_key(folder: Path) -> None:
    code = "from thresher import cache; cache.store('sums', 1, 1); print(len(cache.entries()))"
    assert python(code, folder, THRESHER_ISA=_engine.isas()[0]).stdout == "1\n"
    done = python(code, folder, THRESHER_ISA=_engine.isas()[-1])
    assert done.stdout == f"{min(2, len(_engine.isas()))}\n", done.stderr


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: b"",
        lambda text: text.replace(b'"value": 12345', b'"value": 12346'),
        lambda text: text.replace(b"thresher-cache-1", b"thresher-cache-0"),
        lambda text: b"\xff\xfe\x00",
        lambda text: b"[" * 100_000,
        lambda text: b'{"traceEvents": []}',
        lambda text: b'{"format": "thresher-cache-1"}',
        lambda text: b"null",
    ],
)
def test_a_damaged_file_is_missing_with_one_warning(folder: Path, damage: object) -> None:
    cache.store("sums", KEY, 12345)
    path = the_file(folder)
    damaged = damage(path.read_bytes())  # type: ignore[operator]
    assert damaged != path.read_bytes()
    path.write_bytes(damaged)
    with pytest.warns(CacheWarning, match="not used") as caught:
        assert cache.load("sums", KEY) is None
    assert len(caught) == 1
    assert str(path) in str(caught[0].message)
    assert cache.load("sums", KEY) is None, "the second time without a warning"
    (entry,) = cache.entries()
    assert entry.state is State.DAMAGED
    assert entry.problem
    assert cache.store("sums", KEY, 3)
    assert cache.load("sums", KEY) == 3


def test_a_damaged_file_is_put_aside(folder: Path) -> None:
    cache.store("sums", KEY, 12345)
    path = the_file(folder)
    path.write_text("{")
    with pytest.warns(CacheWarning, match=f"put aside as {path.name}.damaged"):
        assert cache.load("sums", KEY) is None
    assert not path.exists()
    (entry,) = cache.entries()
    assert (entry.path.name, entry.state, entry.path.read_text()) == (f"{path.name}.damaged", State.DAMAGED, "{")
    assert "put aside" in cache.explain("sums", KEY).reason
    assert cache.store("sums", KEY, 3)
    assert cache.explain("sums", KEY).hit
    assert [entry.path.name for entry in cache.prune()] == [f"{path.name}.damaged"]
    assert cache.load("sums", KEY) == 3


def test_a_whole_file_that_came_between_is_not_lost(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.store("sums", KEY, 12345)
    path = the_file(folder)
    whole = path.read_bytes()
    path.write_text("{")
    replace = Path.replace

    def another_process_is_faster(self: Path, target: Path) -> Path:
        path.write_bytes(whole)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", another_process_is_faster)
    assert cache.load("sums", KEY) == 12345, "without a warning"
    assert path.read_bytes() == whole
    assert [entry.state for entry in cache.entries()] == [State.GOOD]


def test_why_a_result_is_not_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "never stored" in cache.explain("sums", KEY).reason
    cache.store("sums", KEY, 1)
    found = cache.explain("sums", KEY)
    assert found.hit and found.path == the_file(folder)
    assert cache.explain("sums", {"num_threads": [1, 3]}).reason == (
        "it is kept for something else: num_threads was [1, 2] and is [1, 3]"
    )
    assert "never stored" in cache.explain("sums", {"num_threads": 3}, about=["num_threads"]).reason
    version = _engine.version()
    with monkeypatch.context() as patch:
        patch.setattr(_engine, "version", lambda: "99.0")
        assert f"engine_version was '{version}' and is '99.0'" in cache.explain("sums", KEY).reason
    the_file(folder).write_text("{")
    assert "damaged" in cache.explain("sums", KEY).reason
    with cache.disabled():
        assert "off" in cache.explain("sums", KEY).reason


def test_a_file_under_a_wrong_name_is_not_used(folder: Path) -> None:
    cache.store("sums", KEY, 1)
    first = the_file(folder)
    text = first.read_bytes()
    first.unlink()
    cache.store("sums", "another", 2)
    the_file(folder).write_bytes(text)
    with pytest.warns(CacheWarning, match="another key"):
        assert cache.load("sums", "another") is None


def test_a_file_in_place_of_the_folder(folder: Path) -> None:
    folder.write_text("not a folder")
    assert cache.load("sums", KEY) is None
    with pytest.warns(CacheWarning, match="THRESHER_CACHE_DIR") as caught:
        assert not cache.store("sums", KEY, 1)
        assert not cache.store("sums", KEY, 1)
    assert len(caught) == 1
    assert cache.entries() == []
    assert cache.clear() == 0
    assert folder.read_text() == "not a folder"


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only to root")
def test_a_read_only_folder(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.warns(CacheWarning, match="Permission denied"):
        assert not cache.store("sums", KEY, 1)
    assert cache.load("sums", KEY) is None


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="wants a file system that nobody can write")
def test_a_file_system_that_refuses_even_root() -> None:
    cache.set_dir("/proc/thresher")
    assert cache.load("sums", KEY) is None
    with pytest.warns(CacheWarning, match="expected a folder that can be written"):
        assert not cache.store("sums", KEY, 1)
    assert cache.entries() == []


def test_no_space_is_left(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.store("sums", KEY, 1)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(CacheWarning, match="No space left"):
        assert not cache.store("sums", KEY, 2)
    assert cache.load("sums", KEY) == 1, "the earlier result is untouched"
    assert os.listdir(folder / "sums") == [the_file(folder).name], "nothing is left behind"


def test_a_write_that_the_system_cuts_off(folder: Path) -> None:
    code = f"""
import warnings
from thresher import cache
{limit_file_size(1000)}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    print(cache.store("sums", {KEY!r}, "x" * 100_000), [w.category.__name__ for w in caught])
"""
    done = python(code, folder)
    assert done.stdout == "False ['CacheWarning']\n", done.stderr
    assert os.listdir(folder / "sums") == []


@pytest.mark.parametrize("victim", ["replace", "fsync"])
def test_a_process_that_dies_while_it_writes(folder: Path, victim: str) -> None:
    cache.store("sums", KEY, "before")
    code = f"""
import os, signal
from thresher import cache
from pathlib import Path
owner = Path if "{victim}" == "replace" else os
setattr(owner, "{victim}", lambda *arguments: os.kill(os.getpid(), signal.SIGKILL))
cache.store("sums", {KEY!r}, "after")
"""
    assert python(code, folder).returncode == -signal.SIGKILL
    assert cache.load("sums", KEY) == "before"
    assert sorted(entry.state.value for entry in cache.entries()) == ["good", "unfinished"]
    (unfinished,) = [entry.path for entry in cache.entries() if entry.state is State.UNFINISHED]
    assert [entry.path for entry in cache.prune()] == [unfinished]
    assert cache.load("sums", KEY) == "before"


def test_a_writer_at_work_is_not_taken_for_a_dead_one(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        pruned: list[object] = []

        def slow(handle: int) -> None:
            (unfinished,) = [entry.path for entry in cache.entries() if entry.state is State.UNFINISHED]
            os.utime(unfinished, (0, 0))  # as if the clock had been set forward by years
            pruned.extend(cache.prune(older_than_days=1))

        patch.setattr(os, "fsync", slow)
        assert cache.store("sums", KEY, "kept")
    assert pruned == []
    assert cache.load("sums", KEY) == "kept"


def test_processes_that_write_at_once(folder: Path) -> None:
    code = f"""
import sys
from thresher import cache
for i in range(100):
    assert cache.store("sums", {KEY!r}, [int(sys.argv[1])] * 500)
"""
    environment = {**os.environ, "THRESHER_CACHE_DIR": str(folder)}
    writers = [subprocess.Popen([sys.executable, "-c", code, str(i)], env=environment) for i in (1, 2)]
    seen = set()
    try:
        while any(writer.poll() is None for writer in writers):
            value = cache.load("sums", KEY)  # a warning would be an error here
            assert value is None or value in ([1] * 500, [2] * 500)
            seen.add(None if value is None else value[0])
    finally:
        for writer in writers:
            writer.wait()
    assert [writer.returncode for writer in writers] == [0, 0]
    assert cache.load("sums", KEY) in ([1] * 500, [2] * 500)
    assert seen & {1, 2}
    assert os.listdir(folder / "sums") == [the_file(folder).name]


def test_switched_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.store("sums", KEY, 1)
    with cache.disabled():
        assert not cache.enabled()
        assert cache.load("sums", KEY) is None
        assert not cache.store("sums", KEY, 2)
        others: list[bool] = []
        thread = threading.Thread(target=lambda: others.append(cache.enabled()))
        thread.start()
        thread.join()
        assert others == [True], "other threads go on as before"
    assert cache.load("sums", KEY) == 1
    monkeypatch.setenv("THRESHER_CACHE", "0")
    assert not cache.enabled()
    assert cache.load("sums", KEY) is None
    assert not cache.store("products", KEY, 1)
    assert not (folder / "products").exists()
    monkeypatch.setenv("THRESHER_CACHE", "perhaps")
    with pytest.raises(ValueError, match="ON or OFF"):
        cache.load("sums", KEY)


def test_where_the_folder_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.set_dir(None)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache.folder() == tmp_path / ".cache" / "thresher"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache.folder() == tmp_path / ".cache" / "thresher"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.folder() == tmp_path / "xdg" / "thresher"
    monkeypatch.setenv("THRESHER_CACHE_DIR", "~/mine")
    assert cache.folder() == tmp_path / "mine"
    cache.set_dir(tmp_path / "chosen")
    assert cache.folder() == tmp_path / "chosen"


def test_no_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    cache.set_dir(None)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert cache.folder() is None
    with pytest.warns(CacheWarning, match="home folder") as caught:
        assert cache.load("sums", KEY) is None
        assert not cache.store("sums", KEY, 1)
    assert len(caught) == 1
    assert cache.entries() == []


def test_clear_removes_its_own_files_only(folder: Path) -> None:
    cache.store("sums", 1, 1)
    cache.store("sums", 2, 1)
    cache.store("products", 1, 1)
    (folder / "products" / "notes.txt").write_text("mine")
    (folder / "notes.json").write_text("mine")
    assert cache.clear("sums") == 2
    assert cache.load("products", 1) == 1
    assert cache.clear() == 1
    assert sorted(path.name for path in folder.rglob("*")) == ["notes.json", "notes.txt", "products"]


def test_prune(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(3):
        cache.store("sums", i, i)
    first, second, third = sorted((folder / "sums").iterdir())
    first.write_text("{")
    os.utime(second, (0, 0))
    assert [entry.path for entry in cache.prune()] == [first]
    assert [entry.path for entry in cache.prune(older_than_days=1)] == [second]
    monkeypatch.setattr(_engine, "version", lambda: "99.0")
    assert [entry.path for entry in cache.prune()] == [third]


@pytest.mark.parametrize("kind", ["", "../sums", "Sums", "a b", "/tmp"])
def test_kinds_are_names(kind: str) -> None:
    with pytest.raises(ValueError, match="expected a kind"):
        cache.store(kind, 1, 1)
    with pytest.raises(ValueError, match="expected a kind"):
        cache.load(kind, 1)


def test_values_are_what_json_can_hold() -> None:
    with pytest.raises(TypeError):
        cache.store("sums", KEY, {1, 2})
    with pytest.raises(ValueError, match="JSON"):
        cache.store("sums", KEY, float("nan"))
    assert cache.entries() == []


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("typer")
    return run_command("cache", *arguments, THRESHER_CACHE_DIR=str(folder), COLUMNS="200")


def test_command_line(folder: Path) -> None:
    assert json.loads(command(folder, "path", "--json").stdout) == {"path": str(folder), "enabled": True}
    assert command(folder, "path").stdout == f"{folder}\n"
    assert "0 files" in command(folder, "list").stdout
    cache.store("sums", KEY, 1)
    cache.store("sums", "other", 1)
    (row, _) = json.loads(command(folder, "list", "--json").stdout)
    assert (row["kind"], row["state"], row["engine_version"]) == ("sums", "good", _engine.version())
    assert the_name(row) in command(folder, "list", "--kind", "sums").stdout
    assert command(folder, "list", "--kind", "products", "--json").stdout == "[]\n"
    assert command(folder, "verify").returncode == 0
    Path(row["path"]).write_text("{")
    verified = command(folder, "verify")
    assert verified.returncode == 1
    assert row["path"] in verified.stdout
    verified = command(folder, "verify", "--json")
    assert verified.returncode == 1
    assert [entry["path"] for entry in json.loads(verified.stdout)["damaged"]] == [row["path"]]
    pruned = json.loads(command(folder, "prune", "--json").stdout)
    assert [entry["path"] for entry in pruned["removed"]] == [row["path"]]
    assert command(folder, "verify").returncode == 0
    assert json.loads(command(folder, "clear", "--json").stdout) == {"removed": 1}
    assert cache.entries() == []


@pytest.mark.parametrize("name", ["list", "verify", "prune", "clear", "path"])
def test_every_command_has_examples_and_json(folder: Path, name: str) -> None:
    done = command(folder, name, "--help")
    assert done.returncode == 0
    assert f"thresher cache {name}" in done.stdout
    assert "--json" in done.stdout


def the_name(row: dict[str, str]) -> str:
    return Path(row["path"]).name
