"""Images and container engines: what the engine is asked to do, and what is said where it cannot."""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

# ruff: noqa: E402 - the scripts are found after their folder is on the path
from containers import (
    archive,
    base,
    container_session,
    container_test,
    emulation,
    engine,
    host,
    image_pins,
    images,
    limits,
    project,
    sessions,
)
from toolchain.process import ToolchainError

DIGEST = "a" * 64


def program(folder: Path, name: str, script: str) -> Path:
    """Writes a program that stands for a container engine; it appends its arguments to `name`.log."""
    path = folder / name
    path.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >>{folder}/{name}.log\n{script}\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An otherwise empty PATH to put programs in."""
    monkeypatch.setenv("PATH", f"{tmp_path}")
    monkeypatch.delenv("THRESHER_CONTAINER_ENGINE", raising=False)
    for name in ("sh", "cat"):
        (tmp_path / name).symlink_to(f"/bin/{name}")
    return tmp_path


PODMAN_INFO = {
    "version": {"Version": "4.3.1"},
    "host": {"security": {"rootless": True}},
    "store": {"graphRoot": "/nowhere"},
}


# Pins.


def write_pins(folder: Path, text: str) -> Path:
    path = folder / "pins.toml"
    path.write_text(text)
    return path


GOOD = f"""
[base]
image = "debian"
tag = "x"
digest = "sha256:{DIGEST}"
suite = "bookworm"
"""


def test_the_pins_of_the_repository_are_whole():
    found = image_pins.read_pins()
    assert found.suite and re.fullmatch(r"\w+@sha256:[0-9a-f]{64}", found.reference)


def test_the_dockerfile_names_the_pinned_base():
    text = (ROOT / "docker" / "Dockerfile").read_text()
    assert re.search(r"^ARG BASE=(\S+)$", text, re.MULTILINE)[1] == image_pins.read_pins().reference


def test_a_newer_base_is_written_and_told(programs, tmp_path):
    write_pins(tmp_path, GOOD)
    (tmp_path / "Dockerfile").write_text(f"ARG BASE=debian@sha256:{DIGEST}\nFROM ${{BASE}}\n")
    program(programs, "skopeo", "echo '{}'")
    newer = f"sha256:{hashlib.sha256(b'{}' + bytes([10])).hexdigest()}"
    (change,) = image_pins.update(tmp_path)
    assert (change.name, change.old, change.new) == ("debian", f"x@sha256:{DIGEST}", f"x@{newer}")
    assert image_pins.read_pins(tmp_path / "pins.toml").digest == newer
    assert (tmp_path / "Dockerfile").read_text() == f"ARG BASE=debian@{newer}\nFROM ${{BASE}}\n"
    assert image_pins.update(tmp_path) == []
    program(programs, "skopeo", "echo 'no such host' >&2; exit 1")
    with pytest.raises(ToolchainError, match=r"No registry told .* debian:x\. skopeo: no such host; docker: "):
        image_pins.update(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[base", "mends it"),
        (GOOD.replace('suite = "bookworm"', ""), "got no 'suite'"),
        (GOOD.replace(DIGEST, "xyz"), "64 hexadecimal digits"),
    ],
)
def test_bad_pins_are_refused(tmp_path, text, message):
    with pytest.raises(ToolchainError, match=message):
        image_pins.read_pins(write_pins(tmp_path, text))


def test_missing_pins_are_refused(tmp_path):
    with pytest.raises(ToolchainError, match="git checkout"):
        image_pins.read_pins(tmp_path / "none.toml")


def test_any_pin_changes_the_key(tmp_path):
    texts = (GOOD, GOOD.replace(DIGEST, "c" * 64), GOOD.replace("bookworm", "trixie"))
    assert len({image_pins.read_pins(write_pins(tmp_path, text)).key for text in texts}) == 3


# Limits of the host.


def test_a_host_without_the_capability_gets_limits(tmp_path):
    (tmp_path / "status").write_text("Name:\tx\nCapEff:\t000001fffeffffff\n")
    found = limits.this_host(tmp_path / "status", tmp_path)
    assert not found.may_raise_limits and not found.hybrid_cgroups
    options = limits.limit_options(limits.Host(False, {"nofile": 20000, "nproc": 96365}))
    assert options == ["--ulimit=nofile=8192:8192", "--ulimit=nproc=16384:16384"]
    assert limits.limit_options(limits.Host(False, {"nofile": 100, "nproc": -1})) == ["--ulimit=nofile=100:100"]


def test_an_ordinary_host_gets_none(tmp_path):
    (tmp_path / "status").write_text("CapEff:\t000001ffffffffff\n")
    assert limits.this_host(tmp_path / "status", tmp_path).may_raise_limits
    assert limits.limit_options(limits.Host(True, {"nofile": 1024})) == []
    assert limits.limit_options(limits.Host(False, {"nofile": 1 << 20, "nproc": 10})) == []


def test_hybrid_control_groups_are_seen(tmp_path):
    (tmp_path / "unified").mkdir()
    assert limits.this_host(cgroups=tmp_path).hybrid_cgroups
    (tmp_path / "cgroup.controllers").touch()
    assert not limits.this_host(cgroups=tmp_path).hybrid_cgroups


# Choosing an engine.


def test_where_no_engine_is_installed_each_is_named(programs):
    found, reasons = engine.choose_engine()
    assert found is None
    assert reasons == dict.fromkeys(engine.ENGINES, "is not installed")


def test_a_docker_without_its_daemon_gives_way_to_podman(programs):
    program(programs, "docker", "echo 'Cannot connect to the Docker daemon' >&2; exit 1")
    program(programs, "podman", f"cat <<'E'\n{json.dumps(PODMAN_INFO)}\nE")
    found, reasons = engine.choose_engine()
    assert found and (found.name, found.version, found.rootless) == ("podman", "4.3.1", True)
    assert reasons == {"docker": "Cannot connect to the Docker daemon"}


def test_docker_that_answers_with_an_error_in_its_answer_is_passed_over(programs):
    program(programs, "docker", """echo '{"ServerErrors": ["no daemon at all"], "ServerVersion": ""}'""")
    _, reasons = engine.choose_engine("docker")
    assert "no daemon at all" in reasons["docker"] and "systemctl start docker" in reasons["docker"]


def test_docker_comes_first(programs):
    information = {"ServerVersion": "28.1", "SecurityOptions": ["name=rootless"], "DockerRootDir": "/d"}
    program(programs, "docker", f"cat <<'E'\n{json.dumps(information)}\nE")
    program(programs, "podman", f"cat <<'E'\n{json.dumps(PODMAN_INFO)}\nE")
    found, _ = engine.choose_engine()
    assert found and (found.name, found.rootless, found.folder) == ("docker", True, Path("/d"))
    assert found.build_environment() == {"DOCKER_BUILDKIT": "1"}


def test_the_variable_chooses(programs, monkeypatch):
    program(programs, "podman", f"cat <<'E'\n{json.dumps(PODMAN_INFO)}\nE")
    monkeypatch.setenv("THRESHER_CONTAINER_ENGINE", "docker")
    assert engine.choose_engine() == (None, {"docker": "is not installed"})
    monkeypatch.setenv("THRESHER_CONTAINER_ENGINE", "rkt")
    with pytest.raises(ToolchainError, match="'rkt'"):
        engine.choose_engine()


def test_an_answer_that_is_not_understood_is_a_reason(programs):
    program(programs, "podman", "echo '{}'")
    _, reasons = engine.choose_engine("podman")
    assert "not understood" in reasons["podman"]


def test_without_an_engine_the_cure_is_named(programs, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ToolchainError, match=r"docker: is not installed(.|\n)*--containers(.|\n)*--host"):
        container_session.find_engine(None)


# What an engine is asked to do.


def podman(rootless: bool = False, where: limits.Host | None = None) -> engine.Podman:
    made = engine.Podman("/usr/bin/podman", where or limits.Host())
    made.rootless = rootless
    return made


REQUEST = engine.RunRequest(
    image="i",
    command=["ls", "-l"],
    mounts=[engine.Mount("/a", "/b", read_only=True), engine.Mount("v", "/c")],
    environment={"B": "2", "A": "1"},
    workdir="/w",
    network="none",
    platform="linux/arm64",
    capabilities=["SYS_NICE"],
    gpus=True,
)


def test_a_run_names_everything(monkeypatch):
    monkeypatch.setenv("SUDO_UID", "7")
    monkeypatch.setenv("SUDO_GID", "8")
    assert podman().run_command(REQUEST) == [
        *("run", "--pull=never", "--rm", "--init", "--platform=linux/arm64", "--user=7:8", "--network=none"),
        *("--workdir=/w", "--cap-add=SYS_NICE", "--device=nvidia.com/gpu=all", "--volume=/a:/b:ro", "--volume=v:/c"),
        *("--env=A=1", "--env=B=2", "i", "ls", "-l"),
    ]
    assert "--gpus=all" in engine.Docker("docker", limits.Host()).run_command(REQUEST)


def test_rootless_engines_map_the_user_themselves():
    assert not [option for option in podman(rootless=True).run_command(REQUEST) if option.startswith("--user")]


def test_a_narrow_host_gets_its_limits_and_runc(monkeypatch):
    narrow = limits.Host(False, {"nofile": 20000}, hybrid_cgroups=True)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert podman(where=narrow).global_options() == ["--runtime=runc"]
    assert "--ulimit=nofile=8192:8192" in podman(where=narrow).run_command(REQUEST)
    assert podman().global_options() == []


def test_a_build_names_everything(tmp_path):
    request = engine.BuildRequest(
        tag="t",
        dockerfile=tmp_path / "Dockerfile",
        context=tmp_path,
        target="dev",
        arguments={"BASE": "b"},
        labels={"l": "1"},
        secrets={"pip": tmp_path / "pip"},
        platform="linux/arm64",
    )
    assert podman().build_command(request) == [
        *(
            "build",
            "--layers",
            "--pull=never",
            "--format=docker",
            "--tag=t",
            f"--file={tmp_path}/Dockerfile",
            "--target=dev",
        ),
        *("--platform=linux/arm64", "--build-arg=BASE=b", "--label=l=1", f"--secret=id=pip,src={tmp_path}/pip"),
        str(tmp_path),
    ]
    assert "--pull=never" not in engine.Docker("docker", limits.Host()).build_command(request)


def test_a_failing_command_is_named_without_the_engines_options(programs):
    program(programs, "podman", "exit 3")
    made = engine.Podman(str(programs / "podman"), limits.Host())
    with pytest.raises(ToolchainError, match=r"^`ls -l` in i ended with code 3"):
        made.run(REQUEST)


def test_buildah_makes_and_removes_a_container_even_when_the_command_fails(programs, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(programs))
    program(programs, "buildah", "case $1 in from) echo work-1;; run) exit 5;; esac")
    made = engine.Buildah(str(programs / "buildah"), limits.Host())
    with pytest.raises(ToolchainError, match="ended with code 5"):
        made.run(REQUEST)
    first, second, third = (programs / "buildah.log").read_text().splitlines()
    assert first == "from --pull-never --platform=linux/arm64 i"
    assert f"--volume={programs}/thresher/volumes/v:/c" in second and second.endswith("work-1 -- ls -l")
    assert third == "rm work-1"
    assert made.volumes("v") == ["v"]
    made.remove_volume("v")
    assert made.volumes("v") == []


# The host's configuration.


def test_pips_options_lose_their_sections():
    text = "global.index-url='https://a/simple'\n:env:.find-links='/x /y'\ninstall.cert='/c'\nnonsense\n"
    assert host.pip_options(text) == {"index-url": "https://a/simple", "find-links": "/x /y", "cert": "/c"}


def test_places_of_this_machine_become_mounts(tmp_path):
    wheels, index = tmp_path / "wheels", tmp_path / "mirror" / "simple"
    wheels.mkdir()
    index.mkdir(parents=True)
    environment, mounts = host.translate_places(
        {"find-links": f"{wheels} /no/such", "extra-index-url": f"file://{index} https://b/simple"}
    )
    assert environment == {
        "PIP_FIND_LINKS": "/run/host/wheels/0",
        "PIP_EXTRA_INDEX_URL": "file:///run/host/wheels/1/simple https://b/simple",
    }
    # The pages of an index point at files beside it.
    assert [m.source for m in mounts] == [str(wheels), str(index.parent)] and all(m.read_only for m in mounts)


def test_certificates_are_the_named_ones_or_pips(tmp_path, monkeypatch):
    for name in (*host.CERTIFICATE_VARIABLES, "THRESHER_CA_FILE"):
        monkeypatch.delenv(name, raising=False)
    mine, pips = tmp_path / "mine.pem", tmp_path / "pip.pem"
    mine.touch()
    pips.touch()
    assert host.find_certificates({}) is None
    assert host.find_certificates({"cert": str(pips)}) == pips
    assert host.find_certificates({"cert": "/no/such"}) is None
    monkeypatch.setenv("THRESHER_CA_FILE", str(mine))
    assert host.find_certificates({"cert": str(pips)}) == mine
    with pytest.raises(ToolchainError, match="none at /no/such"):
        host.find_certificates({}, Path("/no/such"))


def test_an_index_with_a_password_is_a_secret_not_an_argument(tmp_path):
    configuration = host.HostConfiguration(environment={"PIP_INDEX_URL": "https://me:word@a/simple"})
    secrets = images._secrets(configuration, tmp_path)
    assert secrets["pip"].read_text() == "[global]\nindex-url = https://me:word@a/simple\n"
    assert stat.S_IMODE(secrets["pip"].stat().st_mode) == 0o600
    assert images._secrets(host.HostConfiguration(), tmp_path) == {}


# Emulation.


@pytest.mark.parametrize(
    ("text", "works"),
    [
        ("enabled\ninterpreter /usr/bin/qemu\nflags: PF\n", True),
        ("enabled\ninterpreter /usr/bin/qemu\nflags: P\n", False),
        ("disabled\ninterpreter /usr/bin/qemu\nflags: PF\n", False),
    ],
)
def test_an_emulator_has_to_be_enabled_and_usable_in_containers(tmp_path, text, works):
    (tmp_path / "qemu-aarch64").write_text(text)
    assert emulation.registered("aarch64", tmp_path) is works
    assert not emulation.registered("riscv64", tmp_path)


def test_a_missing_emulator_is_named_with_its_cure(monkeypatch, tmp_path):
    monkeypatch.setattr(emulation, "REGISTRY", tmp_path)
    monkeypatch.setattr(emulation, "registered", lambda machine: False)
    monkeypatch.setattr(emulation.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ToolchainError, match=r"aarch64(.|\n)*qemu-user-static(.|\n)*mount -t binfmt_misc"):
        emulation.ensure_emulation("aarch64")
    emulation.ensure_emulation("x86_64")


# Images.


@pytest.mark.parametrize(
    ("machine", "target", "wanted"),
    [
        ("x86_64", "test", "arm64"),
        ("x86_64", "build", "amd64"),
        ("aarch64", "dev", "arm64"),
        ("aarch64", "test", "arm64"),
        ("x86_64", "runtime", "arm64"),
        ("x86_64", "serve", "arm64"),
    ],
)
def test_only_images_that_run_the_wheel_are_foreign(monkeypatch, machine, target, wanted):
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert images.ImageSpec("arm", target).machine.debian == wanted


@pytest.mark.parametrize(("name", "machine"), [("x86", "aarch64"), ("cuda", "aarch64"), ("arm", "riscv64")])
def test_a_wrong_architecture_is_refused_early(monkeypatch, name, machine):
    monkeypatch.setattr(platform, "machine", lambda: machine)
    with pytest.raises(ToolchainError, match=machine):
        _ = images.ImageSpec(name, "build").machine


def test_an_image_depends_on_its_files_its_base_and_its_target():
    spec = images.ImageSpec("x86", "build")
    keys = {
        images.inputs_key(spec, "b", "1", {"f": b"x"}),
        images.inputs_key(spec, "b", "2", {"f": b"x"}),
        images.inputs_key(spec, "b", "1", {"f": b"y"}),
        images.inputs_key(spec, "b", "1", {"g": b"x"}),
        images.inputs_key(images.ImageSpec("x86", "dev"), "b", "1", {"f": b"x"}),
    }
    assert len(keys) == 5


def test_what_the_dockerfile_copies_is_in_the_context_and_in_the_key():
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    tools, wheel = (ROOT / "docker" / "Dockerfile").read_text().split("FROM base AS installed")
    copied, added = (set(re.findall(r"^COPY (?!--from)(\S+) ", text, re.MULTILINE)) for text in (tools, wheel))
    inputs = {*images.INPUTS, *(name for names in images.PLATFORM_INPUTS.values() for name in names)}
    assert copied < inputs
    assert copied | added == allowed
    assert added == {*images.WHEEL_INPUTS["serve"], "dist/thresher-*.whl"} > set(images.WHEEL_INPUTS["runtime"])


@pytest.mark.parametrize("target", ["runtime", "serve"])
def test_the_image_that_runs_models_depends_on_its_wheel(monkeypatch, tmp_path, target):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    for name in (*images.INPUTS, *images.WHEEL_INPUTS[target]):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    monkeypatch.setattr(images, "ROOT", tmp_path)
    spec = images.ImageSpec("x86", target)
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "thresher-0.1.0-cp311-cp311-manylinux_2_34_aarch64.whl").write_bytes(b"arm")
    with pytest.raises(
        ToolchainError, match=r"Expected a wheel for x86_64 in .*; got none(.|\n)*--platform x86 --container"
    ):
        images._inputs(spec)
    wheel = tmp_path / "dist" / "thresher-0.1.0-cp311-cp311-manylinux_2_34_x86_64.whl"
    wheel.write_bytes(b"1")
    first = images.inputs_key(spec, "b", "1", images._inputs(spec))
    wheel.write_bytes(b"2")
    assert images.inputs_key(spec, "b", "1", images._inputs(spec)) != first


@pytest.mark.parametrize("target", ["runtime", "serve"])
def test_the_image_that_runs_models_has_no_compiler_and_no_root(target):
    stages = re.split(r"^(?=FROM )", (ROOT / "docker" / "Dockerfile").read_text(), flags=re.MULTILINE)
    installed, image = (next(s for s in stages if f" AS {name}" in s) for name in ("installed", target))
    assert installed.startswith("FROM base AS "), "base has Python and certificates alone"
    assert image.startswith("FROM base AS ")
    assert re.findall(r"^USER (\S+)$", image, re.MULTILINE)[-1] == "10001"
    assert "apt-get" not in installed + image and "--require-hashes" in installed


def test_every_target_and_platform_is_a_stage():
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", (ROOT / "docker" / "Dockerfile").read_text(), re.MULTILINE))
    assert {*images.TARGETS, *(f"tools-{name}" for name in images.PLATFORMS)} <= stages


def test_too_little_space_stops_before_anything_is_built(monkeypatch, tmp_path):
    made = podman()
    made.folder = tmp_path
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(100, 99, 2**30))
    with pytest.raises(ToolchainError, match=r"Expected 4 GiB(.|\n)*got 1.0 GiB(.|\n)*--remove"):
        images.check_space(made, "x86")


def test_an_image_archive_holds_what_engines_check(tmp_path):
    import hashlib

    root, out = tmp_path / "root.tar", tmp_path / "image.tar"
    with tarfile.open(root, "w") as made:
        entry = tarfile.TarInfo("etc/hello")
        entry.size = 3
        made.addfile(entry, io.BytesIO(b"abc"))
    archive.write_image_archive(root, out, "localhost/x:y", "arm64", {"l": "1"})
    with tarfile.open(out) as found:
        manifest = json.load(found.extractfile("manifest.json"))[0]
        text = found.extractfile(manifest["Config"]).read()
        layer = found.extractfile(manifest["Layers"][0]).read()
    config = json.loads(text)
    assert manifest["RepoTags"] == ["localhost/x:y"]
    assert manifest["Config"] == f"{hashlib.sha256(text).hexdigest()}.json"
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]
    assert (config["architecture"], config["config"]["Labels"]) == ("arm64", {"l": "1"})


def test_without_registry_and_mmdebstrap_the_cure_is_named(programs):
    program(programs, "podman", 'case "$*" in *inspect*|*pull*) exit 125;; esac')
    made = engine.Podman(str(programs / "podman"), limits.Host())
    with pytest.raises(ToolchainError, match="apt-get install mmdebstrap"):
        base.ensure_base(made, image_pins.read_pins(), "amd64")
    with pytest.raises(ToolchainError, match="ended with code 125"):
        base.ensure_base(made, image_pins.read_pins(), "amd64", "pull")


def test_a_base_that_is_here_is_not_asked_for(programs):
    known = [{"Id": "1", "Architecture": "amd64", "Size": 1, "Config": {}}]
    program(programs, "podman", f"cat <<'E'\n{json.dumps(known)}\nE")
    made = engine.Podman(str(programs / "podman"), limits.Host())
    assert base.ensure_base(made, image_pins.read_pins(), "amd64") == image_pins.read_pins().reference
    assert (
        base.ensure_base(made, image_pins.read_pins(), "amd64", "rootfs") == "localhost/thresher-rootfs:bookworm-amd64"
    )
    assert "pull" not in (programs / "podman.log").read_text()


# The clone inside.


def test_the_clone_is_read_only_unless_people_work_in_it():
    mounts = {mount.target: mount for mount in project.project_mounts("x86")}
    assert mounts["/thresher"].read_only and not mounts["/work/dist"].read_only
    assert mounts["/work/build"].is_volume
    assert not project.project_mounts("x86", writable=True)[0].read_only


def test_clones_and_platforms_have_volumes_of_their_own(tmp_path):
    names = {
        project.build_volume("x86", tmp_path),
        project.build_volume("arm", tmp_path),
        project.build_volume("x86", tmp_path / "other"),
    }
    assert len(names) == 3 and all(name.startswith(project.VOLUMES) for name in names)


# Dev containers.


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_a_dev_container_is_the_dev_image(name):
    folder = ROOT / ".devcontainer" / name
    text = re.sub(r"(?m)^\s*//.*$", "", (folder / "devcontainer.json").read_text())
    content = json.loads(text)
    build = content["build"]
    assert (folder / build["dockerfile"]).resolve() == images.DOCKERFILE
    assert (folder / build["context"]).resolve() == ROOT
    assert build["target"] == "dev"
    assert build.get("args", {}).get("PLATFORM", "x86") == {"cpu": "x86", "cuda": "cuda"}[name]
    assert set(content["capAdd"]) == set(sessions.DEVELOPER_CAPABILITIES)
    assert content.get("hostRequirements", {"gpu": "optional"}) == {"gpu": "optional"}


# The sessions.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["image", "--", "vax"], "invalid choice: 'vax'"),
        (["image", "--", "x86", "--target", "prod"], "invalid choice: 'prod'"),
        (["build", "--", "--container", "--host"], "not allowed with argument"),
    ],
)
def test_the_sessions_refuse_nonsense(arguments, message):
    # These are found before the session waits for others that use build/, such as the one that runs the tests.
    pytest.importorskip("nox")
    done = subprocess.run([sys.executable, "-m", "nox", "-s", *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert message in done.stdout + done.stderr


def test_an_image_needs_a_platform():
    options = argparse.Namespace(update_pins=False, list=False, remove=False, platform=None)
    with pytest.raises(ToolchainError, match="Expected a platform: x86, arm, cuda"):
        sessions.build_images(options)


def test_the_newest_wheel_of_a_platform_is_tried(tmp_path):
    for age, name in enumerate(("thresher-2-cp311-cp311-linux_x86_64", "thresher-1-cp311-cp311-linux_x86_64")):
        (tmp_path / f"{name}.whl").touch()
        os.utime(tmp_path / f"{name}.whl", (1000 - age, 1000 - age))
    (tmp_path / "thresher-3-cp311-cp311-linux_aarch64.whl").touch()
    (tmp_path / "thresher_cuda-4-py3-none-linux_x86_64.whl").touch()
    assert container_test.newest_wheel(images.PLATFORMS["x86"], tmp_path).name.startswith("thresher-2-")
    assert container_test.newest_wheel(images.PLATFORMS["arm"], tmp_path).name.startswith("thresher-3-")
    assert container_test.newest_wheel(images.PLATFORMS["cuda"], tmp_path).name.startswith("thresher_cuda-4-")
    with pytest.raises(ToolchainError, match="nox -s build -- --platform arm"):
        container_test.newest_wheel(images.PLATFORMS["arm"], tmp_path / "none")
