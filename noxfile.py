"""The entry point of everything: `nox -l` lists the sessions, `nox -s NAME -- --help` explains one.

The sessions only read options; the work is done by scripts/toolchain. They run in the interpreter that runs nox and
make their own environments under build/venv, which are kept until what they are made of changes.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import nox

sys.path.insert(0, str(Path(__file__).resolve().parent / "scripts"))
from containers.sessions import TARGETS as IMAGE_TARGETS
from containers.sessions import add_container_options, build_images, containerised, develop, test_wheel
from documentation.session import build_site
from fuzzing.session import run_fuzz
from mutations.session import run_mutations
from release import session as release_check
from sanitizers.sanitizer import SANITIZERS
from sanitizers.session import run_sanitizer
from toolchain import (
    agreement,
    bundle,
    coverage,
    cuda,
    cuda_runs,
    linting,
    native,
    offline,
    package,
    platforms,
    regression,
    renewal,
    tests,
    wheel,
)
from toolchain.environments import MODEL
from toolchain.layout import build_lock
from toolchain.native import BUILD_TYPES, PROFILES, Flavour
from toolchain.platforms import CUDA, Platform
from toolchain.process import ToolchainError, is_offline, stoppable
from toolchain.system import ensure_system_packages

nox.needs_version = ">=2024.4.15"
nox.options.sessions = ["tests"]
nox.options.default_venv_backend = "none"


def parser_of(name: str, description: str, examples: list[str]) -> argparse.ArgumentParser:
    """Makes the option parser of a session; the help ends with examples."""
    lines = "".join(f"  nox -s {name}{f' -- {example}' if example else ''}\n" for example in examples)
    return argparse.ArgumentParser(
        prog=f"nox -s {name} --",
        description=textwrap.fill(description, 100),
        epilog=f"examples:\n{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def add_build_type(parser: argparse.ArgumentParser) -> None:
    """Adds the option that every building session has."""
    parser.add_argument("--build-type", choices=BUILD_TYPES, default="Release", help="default: Release")


def add_test_choice(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the sessions that run C++ and Python tests."""
    parser.add_argument("--only", choices=("cpp", "python"), help="run only these tests")
    parser.add_argument("--filter", metavar="REGEX", help="run only the C++ tests whose name matches")


def add_platform(parser: argparse.ArgumentParser) -> None:
    """Adds the option that chooses what is built for."""
    lists = f"available: {', '.join(platforms.available())}"
    if later := platforms.planned():
        lists += f"; not yet: {', '.join(later)}"
    parser.add_argument("--platform", metavar="NAME", help=f"default: this machine's; {lists}")


def selected_platform(options: argparse.Namespace) -> Platform:
    """Returns the platform of `add_platform`."""
    return platforms.select(options.platform) if options.platform else platforms.of_this_machine()


def carry_out(
    session: nox.Session,
    parser: argparse.ArgumentParser,
    action: Callable[[argparse.Namespace, list[str]], None],
    *,
    passes_on: bool = False,
    outside_build: bool = False,
) -> None:
    """Parses the options after `--` and runs the action; failures become nox's own.

    Args:
        session: the running session.
        parser: its options.
        action: gets the options and the arguments that were not understood.
        passes_on: whether there may be such arguments.
        outside_build: whether it leaves build/ alone, so that other sessions may use that meanwhile. A session with
            --container works in a volume, which has a lock of its own.
    """
    try:
        options, rest = parser.parse_known_args(session.posargs)
        if rest and not passes_on:
            parser.error(f"unknown arguments: {' '.join(rest)}")
    except SystemExit as stop:
        if stop.code:
            session.error("see the usage above")
        return
    try:
        if getattr(options, "offline", is_offline()):
            offline.switch_on()
        alone = outside_build or getattr(options, "container", False)
        with stoppable(), nullcontext() if alone else build_lock():
            action(options, rest)
    except ToolchainError as error:
        session.error(str(error).removesuffix("."))


@nox.session
def build(session: nox.Session) -> None:
    """Build the wheel into dist/, tag it with auditwheel and prove it in an empty environment."""
    parser = parser_of(
        "build",
        "Builds dist/thresher-*.whl: installs missing system packages (as root; else prints the line to run), builds "
        "the native dependencies with Conan, compiles, repairs the wheel, and proves it in an empty environment. A "
        "wheel for another architecture is cross-compiled; its files and tags are checked, and nothing of it is run. "
        "With --platform cuda it builds dist/thresher_cuda-*.whl, the kernels for NVIDIA GPUs, with the nvcc of this "
        "machine ($CUDACXX, /usr/local/cuda) or of pip; neither a GPU nor a driver is needed.",
        [
            "",
            "--build-type RelWithDebInfo",
            "--platform arm",
            "--platform cuda",
            "--platform x86 --container",
            "--package",
            "--torch-shim none",
            "--torch-shim ~/torch214/bin/python",
            "--offline",
        ],
    )
    add_build_type(parser)
    parser.add_argument(
        "--package", action="store_true", help="also make the C++ package, dist/thresher-VERSION-PLATFORM-ARCH.tar.gz"
    )
    parser.add_argument(
        "--torch-shim",
        action="append",
        metavar="PYTHON",
        help="build the connection to PyTorch's profiler for the PyTorch of this interpreter, or of this folder; may "
        "be given several times, `none` builds none (default: the pinned PyTorch, installed under build/venv; in "
        "a wheel for another architecture none, and only folders can be named)",
    )
    add_platform(parser)
    parser.add_argument(
        "--pin-registers",
        action="store_true",
        help="with --platform cuda: write what kernels take into cuda/registers.txt, and do not fail where it is more",
    )
    place = parser.add_mutually_exclusive_group()
    place.add_argument(
        "--container", action="store_true", help="build inside the platform's image (docs/containers.md)"
    )
    place.add_argument("--host", action="store_true", help="build on this machine (default)")
    add_container_options(parser)
    offline.add_option(parser)

    def action(options: argparse.Namespace, _: list[str]) -> None:
        platform = selected_platform(options)
        if options.package:
            package.require(platform)
        if options.container:
            inside = [f"--platform={platform.name}", "--host", f"--build-type={options.build_type}"]
            inside += ["--offline"] if options.offline else []
            inside += [f"--torch-shim={shim}" for shim in options.torch_shim or ()]
            inside += ["--package"] if options.package else []
            containerised(options, platform.name, "build", inside)
            return
        if platform is CUDA:
            if options.package or options.torch_shim:
                raise ToolchainError("--package and --torch-shim are of the wheel thresher; leave them out for cuda.")
            cuda.verify(cuda.build_wheel(options.build_type, pin_registers=options.pin_registers))
            return
        if options.pin_registers:
            raise ToolchainError("--pin-registers is of --platform cuda.")
        shims = options.torch_shim and [str(Path(p).expanduser()) for p in options.torch_shim if p != "none"]
        flavour = Flavour(platform.host_profile, options.build_type)
        if options.offline:
            offline.require(flavour, [MODEL] if shims is None and not platform.cross else [], for_wheel=True)
        wheel.verify(wheel.build_wheel(flavour, shims), platform)
        if options.package:
            package.build_package(flavour)

    carry_out(session, parser, action)


@nox.session(name="tests")
def tests_session(session: nox.Session) -> None:
    """Build, then run every C++ test (ctest) and every Python test (pytest)."""
    parser = parser_of(
        "tests",
        "Builds the wheel and thresher_tests, runs ctest, installs the wheel beside PyTorch and a real model, runs "
        "pytest; with --only cpp no wheel is built and no PyTorch installed. Other arguments go to pytest, and tests "
        "that they name run alone; `serve` as the first of them runs the tests of the server, those that take minutes "
        "included. For another architecture the C++ tests run emulated. With --platform cuda, tests/cuda runs on this "
        "machine's GPU. With --container, wheel and tests are built in the platform's image and run in a clean one of "
        "the wheel's architecture (docs/containers.md); other arguments then go to scripts/wheel_test.py.",
        [
            "",
            "--only cpp --filter Gemm",
            "--only python -k doctor -x",
            "--only python tests/python/test_toolchain.py",
            "serve",
            "--build-type Debug",
            "--platform arm --filter Gemm",
            "--platform arm --container",
            "--platform cuda -k attention",
        ],
    )
    add_build_type(parser)
    add_test_choice(parser)
    add_platform(parser)
    parser.add_argument("--container", action="store_true", help="build and run in containers")
    parser.add_argument(
        "--build-only",
        action="store_true",
        help="run nothing; leave what tests on other machines need in build/container_test",
    )
    add_container_options(parser)

    def action(options: argparse.Namespace, rest: list[str]) -> None:
        platform = selected_platform(options)
        flavour = Flavour(platform.host_profile, options.build_type)
        if options.container:
            test_wheel(options, platform.name, rest)
            return
        if options.build_only:
            tests.build_container_test(flavour)
            return
        if platform is CUDA:
            if options.only or options.filter:
                raise ToolchainError("--platform cuda runs tests/cuda alone; choose among them with -k.")
            cuda_runs.run_tests(flavour, rest)
            return
        only = options.only or ("cpp" if platform.cross else None)
        if only == "cpp" and rest:
            raise ToolchainError(f"{' '.join(rest)}: these go to pytest, which is left out here.")
        if only == "python" and platform.cross:
            raise ToolchainError(f"Python tests for {platform.machine} need --container on this machine.")
        ctest = ["-R", options.filter] if options.filter else []
        if rest[:1] == ["serve"]:
            everything = ["-m", "thorough or not thorough", *rest[1:]]
            tests.run_tests(flavour, only="python", ctest=ctest, pytest=everything, places=tests.SERVE_TESTS)
            return
        tests.run_tests(flavour, only=only, ctest=ctest, pytest=rest)

    carry_out(session, parser, action, passes_on=True)


@nox.session
def sanitize(session: nox.Session) -> None:
    """Build and test with a sanitizer: address (and leaks), thread or undefined; planted faults must be found."""
    parser = parser_of(
        "sanitize",
        "Builds engine, tests and extension with a sanitizer. First every fault of its kind in "
        "tests/sanitizers/planted_faults.cc has to be found, in a program and in a library that Python loads; then the "
        "C++ tests run, and the Python tests that reach the extension. Other arguments go to pytest. Reports lie in "
        "build/sanitize.",
        [
            "address",
            "thread --only cpp --filter ThreadPool",
            "undefined --self-check",
            "address --only python -k cache",
        ],
    )
    parser.add_argument("sanitizer", choices=tuple(SANITIZERS), help="what to look for")
    add_test_choice(parser)
    parser.add_argument("--self-check", action="store_true", help="build and run the planted faults alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="what was run and found, as JSON")

    def action(options: argparse.Namespace, rest: list[str]) -> None:
        run_sanitizer(
            options.sanitizer,
            only=options.only,
            selfcheck_only=options.self_check,
            ctest=["-R", options.filter] if options.filter else [],
            pytest=rest,
            json_file=options.json,
        )

    carry_out(session, parser, action, passes_on=True)


@nox.session
def fuzz(session: nox.Session) -> None:
    """Give random bytes to every parser: libFuzzer for C++, atheris for Python; exit code 1 on a finding."""
    parser = parser_of(
        "fuzz",
        "Builds the fuzz targets (docs/fuzzing.md) and runs each for some time. Inputs that lead somewhere new go to "
        "build/fuzz/corpus, those that break something to build/fuzz/findings, with a line that replays them. Needs "
        "Clang; as root it is installed.",
        [
            "",
            "--list",
            "--target graph_text --target model_file --seconds 600 --jobs 2",
            "--seconds 30 --json build/fuzz.json",
            "--target chrome_trace --minimize",
            "--self-check",
        ],
    )
    parser.add_argument("--target", action="append", metavar="NAME", help="only this one; may be given several times")
    parser.add_argument("--seconds", type=int, default=60, metavar="N", help="how long each target runs; default: 60")
    parser.add_argument("--jobs", type=int, metavar="N", help="how many run at once; default: one a core")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the results as JSON; also in build/fuzz/run.json")
    actions = parser.add_mutually_exclusive_group()
    actions.add_argument("--list", action="store_true", help="print the targets and run none")
    actions.add_argument("--minimize", action="store_true", help="make corpora and findings smaller, and run nothing")
    actions.add_argument("--self-check", action="store_true", help="find what is planted in tests/fuzz/planted")

    def action(options: argparse.Namespace, _: list[str]) -> None:
        run_fuzz(
            options.target or [],
            seconds=options.seconds,
            jobs=options.jobs,
            list_only=options.list,
            minimize=options.minimize,
            self_check=options.self_check,
            json_file=options.json,
        )

    # It takes build/ while it builds only.
    carry_out(session, parser, action, outside_build=True)


@nox.session
def mutate(session: nox.Session) -> None:
    """Plant faults in a copy of the sources, one at a time; the tests that they name have to fail."""
    parser = parser_of(
        "mutate",
        "Plants every fault of tests/mutations in build/mutations, builds what it changes and runs the tests that it "
        "names: exit code 1 where one of them passes, and where a patch does not fit the sources any more.",
        ["", "--list", "softmax_maximum_row verdict_nan", "--only python --json build/mutations.json"],
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these; default: all")
    parser.add_argument("--only", choices=("cpp", "python"), help="only faults that C++ or Python tests see")
    parser.add_argument("--list", action="store_true", help="print them and plant none")
    parser.add_argument("--json", type=Path, metavar="FILE", help="which tests passed nevertheless, as JSON")

    def action(options: argparse.Namespace, _: list[str]) -> None:
        run_mutations(options.names, only=options.only, list_only=options.list, json_file=options.json)

    carry_out(session, parser, action)


@nox.session(name="coverage")
def coverage_session(session: nox.Session) -> None:
    """Run all tests and draw which lines of C++ and Python they reach, in one page."""
    parser = parser_of(
        "coverage",
        "Builds with the compiler's counters, runs the C++ and the Python tests, writes build/coverage/index.html and "
        "prints a table. Other arguments go to pytest.",
        ["", "--only cpp --filter Graph", "--only python -k cache --json build/figures.json"],
    )
    add_test_choice(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="copy the figures by file to this JSON file, too")

    def action(options: argparse.Namespace, rest: list[str]) -> None:
        ctest = ["-R", options.filter] if options.filter else []
        coverage.run_coverage(only=options.only, ctest=ctest, pytest=rest, json_file=options.json)

    carry_out(session, parser, action, passes_on=True)


@nox.session
def stage_test(session: nox.Session) -> None:
    """Measure a real model with and without Thresher, profiler off and on; exit code 1 if a limit is broken."""
    parser = parser_of(
        "stage_test",
        "Builds the wheel, makes one environment without and one with it, runs scripts/stage_test.py over both, which "
        "measures and judges the scenarios of docs/stage_test.md. Results lie in build/stage_test. "
        "Arguments that are not listed here go to scripts/stage_test.py.",
        ["", "--quick"],
    )
    parser.add_argument("--quick", action="store_true", help="30 requests a scenario instead of 300")

    def action(options: argparse.Namespace, rest: list[str]) -> None:
        tests.run_stage(Flavour(), [*(["--quick"] if options.quick else []), *rest])

    carry_out(session, parser, action, passes_on=True)


@nox.session
def bench(session: nox.Session) -> None:
    """Compare Thresher with other engines in one run: times, latency by length, accuracy; or time single kernels."""
    parser = parser_of(
        "bench",
        "Builds the wheel, makes an environment with it and one with its peers (requirements/bench-peers.txt), runs "
        "bench/run.py. Results lie in build/bench. Arguments that are not listed here go to bench/run.py, or with "
        "--kernels to each program of bench/kernels. bench/run.py knows --precision fp32,bf16,fp16,int8, "
        "--model minilm|bert-base, --latency, --accuracy, --sizes, --door, --loading, --scaling, --architectures, "
        "conv, llm, --quick, --rounds, --threads, --batches, --sequences, --inductor and --only ENGINE; "
        "`python bench/run.py --help` explains them.",
        [
            "",
            "--quick --precision fp32,int8",
            "--model bert-base --threads 1",
            "--latency --precision fp32",
            "--accuracy",
            "--sizes",
            "--door",
            "--loading",
            "--scaling --quick",
            "--architectures",
            "llm",
            "llm --model-file model.gguf --work decode,prefill",
            "conv --threads 1 --batches 1",
            "conv --networks",
            "--zentorch --inductor",
            "--kernels",
            "--kernels --isa avx2 --json build/bench/kernels.json",
            "--cuda",
            "--cuda --quick models",
            "--regression build/regression",
        ],
    )
    parser.add_argument("--kernels", action="store_true", help="build and run bench/kernels instead, without a wheel")
    parser.add_argument(
        "--cuda",
        action="store_true",
        help=f"run bench/cuda on this machine's GPU instead: --quick, or some of {', '.join(cuda_runs.BENCHMARKS)}",
    )
    parser.add_argument(
        "--regression",
        type=Path,
        metavar="FOLDER",
        help="measure one model, compare with the runs that the last time left in FOLDER; exit code 1 if slower",
    )
    parser.add_argument(
        "--zentorch", action="store_true", help="also make an environment with zentorch and measure it there"
    )

    def action(options: argparse.Namespace, rest: list[str]) -> None:
        if options.regression:
            if rest or options.kernels or options.cuda:
                raise ToolchainError("--regression goes alone; it measures the same each time.")
            regression.run_gate(Flavour(), options.regression)
        elif options.cuda:
            cuda_runs.run_bench(Flavour(), rest)
        elif options.kernels:
            tests.run_kernel_bench(Flavour(), rest)
        else:
            tests.run_bench(Flavour(), rest, zentorch=options.zentorch)

    carry_out(session, parser, action, passes_on=True)


@nox.session(name="format")
def format_session(session: nox.Session) -> None:
    """Format C++ (clang-format) and Python (ruff), or with --check print the patch and fail."""
    parser = parser_of(
        "format",
        "Formats every C++ and Python file with pinned versions of clang-format and ruff.",
        ["", "--check", "--since origin/main", "--check --since HEAD~1", "--commits origin/main..HEAD"],
    )
    parser.add_argument("--check", action="store_true", help="change nothing; print the patch, exit code 1 if any")
    parser.add_argument("--since", metavar="REV", help="only files that differ from this git revision")
    parser.add_argument(
        "--commits",
        metavar="BASE..HEAD",
        help="rewrite the commits of this range so that the files each one touches are formatted in it; message, "
        "author and dates stay, and the old commits are kept under a name that is printed",
    )

    def action(options: argparse.Namespace, _: list[str]) -> None:
        if options.commits and options.since:
            raise ToolchainError("--commits and --since exclude each other.")
        if options.commits:
            linting.format_range(options.commits, check=options.check)
        else:
            linting.format_sources(check=options.check, since=options.since)

    carry_out(session, parser, action)


@nox.session
def lint(session: nox.Session) -> None:
    """Run ruff, mypy --strict, shellcheck, hadolint, clang-tidy and the schema of the workflows."""
    parser = parser_of(
        "lint",
        "Runs ruff check, mypy --strict over python/thresher and scripts, shellcheck over the shell scripts, hadolint "
        "over the Dockerfile, check-jsonschema over .github/workflows, clang-tidy over the C++ sources that differ "
        "from where the branch left origin/main, or on that branch from the commit before. All run even when one "
        "finds something. clang-tidy needs a configured build and makes one where there is none.",
        ["", "--fix", "--since HEAD~3", "--all"],
    )
    parser.add_argument("--fix", action="store_true", help="let ruff mend what it can")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--since", metavar="REV", help="clang-tidy: the sources that differ from this git revision")
    chosen.add_argument("--all", action="store_true", help="clang-tidy: every source")

    def action(options: argparse.Namespace, _: list[str]) -> None:
        linting.lint_sources(fix=options.fix, everything=options.all, since=options.since)

    carry_out(session, parser, action)


@nox.session
def docs(session: nox.Session) -> None:
    """Make a site of the documentation, with every link, anchor and picture tried; exit code 1 if one is missing."""
    parser = parser_of(
        "docs",
        "Makes build/docs/html of README.md, CHANGELOG.md, CONTRIBUTING.md, SECURITY.md and docs, with a menu and a "
        "search that need no server: open index.html. Nothing is compiled.",
        ["", "--json build/docs.json"],
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="which pages were made, as JSON")

    def action(options: argparse.Namespace, _: list[str]) -> None:
        build_site(options.json)

    carry_out(session, parser, action)


@nox.session
def deps(session: nox.Session) -> None:
    """Build the native dependencies only; or check, update, pack or restore them."""
    parser = parser_of(
        "deps",
        "Installs the native dependencies through Conan and writes the toolchain file that CMakePresets.json names. "
        "The other actions build nothing that is there already.",
        [
            "",
            "--profile address --build-type Debug",
            "--verify --json build/dependencies.json",
            "--update",
            "--update python --keep",
            "--offline",
            "--bundle thresher-x86.tar",
            "--restore thresher-x86.tar",
        ],
    )
    parser.add_argument("--profile", choices=tuple(PROFILES), help="Conan profile (default: this machine's)")
    parser.add_argument("--build-type", choices=BUILD_TYPES, help="default: Release, with sanitizers RelWithDebInfo")
    actions = parser.add_mutually_exclusive_group()
    actions.add_argument(
        "--verify",
        action="store_true",
        help="check that locks, requirements, recipes, archives, profiles, licences and documentation agree; exit code "
        "1 if not",
    )
    actions.add_argument(
        "--update",
        nargs="*",
        choices=tuple(renewal.PARTS),
        help="write pins anew and print what changes, old -> new: Conan's lock, the Python locks, the pins of the "
        "images; default: all of them",
    )
    actions.add_argument("--bundle", type=Path, metavar="FILE", help="pack all that an offline build needs")
    actions.add_argument("--restore", type=Path, metavar="FILE", help="unpack a bundle")
    parser.add_argument(
        "--keep", action="store_true", help="--update: leave Python packages in their versions if they still fit"
    )
    parser.add_argument("--no-torch", action="store_true", help="leave PyTorch and the model out of the bundle")
    parser.add_argument("--json", type=Path, metavar="FILE", help="what --verify or --update found, as JSON")
    offline.add_option(parser)

    def action(options: argparse.Namespace, _: list[str]) -> None:
        updating = options.update is not None
        if options.keep and not updating:
            raise ToolchainError("--keep goes with --update.")
        if options.json and not (options.verify or updating):
            raise ToolchainError("--json goes with --verify or --update.")
        if options.no_torch and not options.bundle:
            raise ToolchainError("--no-torch goes with --bundle.")
        if options.restore:
            offline.switch_on()
        profile = options.profile or platforms.of_this_machine().profile
        flavour = Flavour(profile, options.build_type or PROFILES[profile])
        if options.verify:
            agreement.run_verification(options.json)
        elif updating:
            renewal.run_update(options.update, options.json, keep=options.keep)
        elif options.restore:
            bundle.unpack(options.restore)
        else:
            ensure_system_packages(flavour.platform.name)
            if options.offline:
                offline.require(flavour, (), for_wheel=False)
            if options.bundle:
                sets = bundle.WITHOUT_TORCH if options.no_torch else bundle.WITH_TORCH
                bundle.pack(options.bundle, flavour, sets)
            else:
                native.install_dependencies(flavour)

    carry_out(session, parser, action)


@nox.session
def release(session: nox.Session) -> None:
    """Check everything that must hold before a release; exit code 1 with what is wrong and the cure."""
    parser = parser_of(
        "release",
        "A script in place of a check list (docs/releasing.md). Builds the wheels from the commit alone, for every "
        "Python that is here, one of them twice; leaves them in dist/ with a bill of materials beside each. All checks "
        "run, even when one fails.",
        [
            "--check",
            "--check --tag v0.1.0 --python 3.12",
            "--check --no-rebuild --json build/release.json",
            "--check --only version,tree,commits",
            "--check --cuda",
        ],
    )
    release_check.add_options(parser)
    carry_out(session, parser, lambda options, _: release_check.carry_out_session(options))


@nox.session
def image(session: nox.Session) -> None:
    """Build a container image: x86, arm or cuda; base, build, dev or test."""
    parser = parser_of(
        "image",
        "Builds the image of a platform with docker, podman or buildah, whichever works. An image that was made of the "
        "same pins, Dockerfile and base is left alone. The base image is pulled by digest; where no registry can be "
        "reached, a root file system is made with mmdebstrap (docs/containers.md).",
        ["x86", "arm --target test", "cuda --target dev --rebuild", "--list --json"],
    )
    parser.add_argument(
        "platform", nargs="?", choices=tuple(platforms.PLATFORMS), help="what is built or tested inside"
    )
    parser.add_argument("--target", choices=IMAGE_TARGETS, default="build", help="default: build")
    parser.add_argument("--rebuild", action="store_true", help="build even if nothing has changed")
    add_container_options(parser)
    parser.add_argument("--list", action="store_true", help="print the images and volumes there are")
    parser.add_argument("--json", action="store_true", help="--list: print JSON")
    parser.add_argument("--remove", action="store_true", help="remove all images and volumes of Thresher")
    carry_out(session, parser, lambda options, _: build_images(options), outside_build=True)


@nox.session
def dev(session: nox.Session) -> None:
    """Open a shell in the dev image with this clone mounted, or run a command there."""
    parser = parser_of(
        "dev",
        "Runs the dev image, which .devcontainer uses too, with this clone mounted at /thresher; build/ is a volume of "
        "its own there. Without a command it opens a shell.",
        ["", "nox -s tests", "--platform cuda nvcc --version"],
    )
    parser.add_argument("--platform", choices=tuple(platforms.PLATFORMS), help="default: this machine's")
    parser.add_argument("--rebuild", action="store_true", help="build the image even if nothing has changed")
    add_container_options(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what to run (default: a shell)")
    carry_out(session, parser, lambda options, _: develop(options, options.command), outside_build=True)
