"""What lies in a wheel, read without installing it: leftovers, size, metadata, licence texts."""

from __future__ import annotations

import email
import fnmatch
import re
import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from functools import cached_property
from pathlib import Path

from toolchain import elf, sbom
from toolchain.components import KNOWN

from .finding import Problem, Verdict

SIZE_BUDGET = 6_000_000
LEFTOVERS = (
    *("*.o", "*.a", "*.la", "*.lo", "*.obj", "*.d", "*.gcda", "*.gcno", "*.pdb", "*.ninja", "*.log", "*.orig", "*.rej"),
    *("*.cmake", "*/CMakeLists.txt", "*/CMakeCache.txt", "*/CMakeFiles/*", "*.cc", "*.cpp", "*.cu", "*.h", "*.in"),
    *("*.pyc", "*.pyo", "*/__pycache__/*", "*/.git*", "*/.DS_Store", "*~", "*.swp", "*.partial"),
)
# A folder of a builder, but neither a source inside GCC nor a file of the system that the engine reads.
BUILD_PATH = re.compile(
    rb"/(?:home|root|tmp|work|build|workspace|mnt|opt|Users|usr/(?:local/|src/|include/|lib/gcc))[\w./+-]*/[\w.+-]+"
    rb"|[\w./+-]*/(?:site-packages|CMakeFiles|\.conan2?)/[\w./+-]*"
)
DEBUG_SECTION = re.compile(r"\.z?debug_|\.gdb_index$|\.gnu_debug|\.symtab$|\.strtab$")


@dataclass(frozen=True)
class WheelFile:
    """A wheel on disk."""

    path: Path

    @property
    def name(self) -> str:
        """Its file name."""
        return self.path.name

    @property
    def tags(self) -> list[str]:
        """Python, ABI and platform tag, as the name says them."""
        return self.name.removesuffix(".whl").split("-")[-3:]

    @cached_property
    def members(self) -> Mapping[str, bytes]:
        """Content of every file in it, by its name."""
        with zipfile.ZipFile(self.path) as archive:
            return {info.filename: archive.read(info) for info in archive.infolist() if not info.is_dir()}

    @property
    def libraries(self) -> Mapping[str, bytes]:
        """The members that are ELF files."""
        return {name: data for name, data in self.members.items() if elf.machine(data[: elf.HEADER_SIZE]) is not None}

    def information(self, name: str) -> bytes:
        """Returns a file of the .dist-info folder, empty if it is not there."""
        return next((data for path, data in self.members.items() if path.endswith(f".dist-info/{name}")), b"")

    @property
    def metadata(self) -> Message:
        """The metadata that an index shows."""
        return email.message_from_string(self.information("METADATA").decode())


def check_leftovers(wheels: Sequence[WheelFile]) -> Verdict:
    """Looks for what compilers and builders leave behind: files, paths in libraries, debug sections."""
    problems = []
    libraries = 0
    for wheel in wheels:
        for name, data in wheel.members.items():
            if any(fnmatch.fnmatch(f"/{name}", pattern) for pattern in LEFTOVERS):
                problems.append(Problem(f"no leftovers of a build in {wheel.name}", name, "leave it out of the wheel"))
            if name in wheel.libraries:
                libraries += 1
                problems += _inside(f"{wheel.name}: {name}", data)
    return Verdict(f"{sum(len(w.members) for w in wheels)} files, {libraries} libraries", problems)


def _inside(name: str, data: bytes) -> list[Problem]:
    """Judges a library."""
    problems = []
    paths = sorted({match.decode() for match in BUILD_PATH.findall(data)})
    if paths:
        shown = ", ".join(paths[:5]) + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")
        cure = "-ffile-prefix-map for what __FILE__ says; INSTALL_RPATH and SKIP_BUILD_RPATH for a path of libraries"
        problems.append(Problem(f"no path of the builder in {name}", shown, cure))
    try:
        debug = [section for section in elf.sections(data) if DEBUG_SECTION.match(section)]
    except ValueError as error:
        return [*problems, Problem(f"a whole library in {name}", str(error), "build it again")]
    if debug:
        cure = "build with --build-type Release, which strips"
        problems.append(Problem(f"no debug sections in {name}", ", ".join(debug), cure))
    return problems


def check_size(wheels: Sequence[WheelFile], budget: int = SIZE_BUDGET) -> Verdict:
    """Compares the size of each wheel with what it may have."""
    problems = []
    for wheel in wheels:
        size = wheel.path.stat().st_size
        if size > budget and not wheel.name.startswith("thresher_cuda-"):
            largest = sorted(((len(data), name) for name, data in wheel.members.items()), reverse=True)[:3]
            cure = "make smaller, or raise SIZE_BUDGET with a reason; largest: " + ", ".join(
                f"{name} {length:,}" for length, name in largest
            )
            problems.append(Problem(f"{wheel.name} of at most {budget:,} bytes", f"{size:,}", cure))
    sizes = "\n".join(f"{wheel.path.stat().st_size:>9,} bytes  {wheel.name}" for wheel in wheels)
    return Verdict(f"budget {budget:,} bytes a wheel\n{sizes}", problems)


def minor_of(tag: str) -> str | None:
    """Returns the version of Python that a tag such as cp311 names, 3.11; None for others."""
    match = re.fullmatch(r"cp3(\d+)", tag)
    return f"3.{match[1]}" if match else None


def check_metadata(wheels: Sequence[WheelFile], version: str) -> Verdict:
    """Compares version, Requires-Python and classifiers with each other and with what was built."""
    problems = []
    promised: set[str] = set()
    for wheel in wheels:
        metadata = wheel.metadata
        if metadata["Version"] != version or f"-{version}-" not in wheel.name:
            cure = "build it again from this commit"
            problems.append(Problem(f"{wheel.name} to be of version {version}", str(metadata["Version"]), cure))
        promised |= _classified(metadata)
        problems += _python_problems(wheel, metadata)
    built = {minor for wheel in wheels if (minor := minor_of(wheel.tags[0]))}
    unbuilt = sorted(promised - built, key=_order)
    text = f"version {version}; classifiers for Python {', '.join(sorted(promised, key=_order)) or 'none'}"
    return Verdict(text + (f"; no wheel here for {', '.join(unbuilt)}" if unbuilt else ""), problems)


def _classified(metadata: Message) -> set[str]:
    lines = metadata.get_all("Classifier") or []
    return {match[1] for line in lines if (match := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", line))}


def _order(minor: str) -> int:
    return int(minor.partition(".")[2])


def _python_problems(wheel: WheelFile, metadata: Message) -> list[Problem]:
    required = str(metadata["Requires-Python"])
    oldest = re.fullmatch(r">= ?(3\.\d+)", required)
    if not oldest:
        return [Problem(f"Requires-Python: >=3.N in {wheel.name}", required, "mend requires-python in pyproject.toml")]
    minor = minor_of(wheel.tags[0])
    if minor is None:
        return []
    classified = _classified(metadata)
    problems = []
    if minor not in classified:
        cure = "add the classifier to pyproject.toml, or build no wheel for that version"
        problems.append(
            Problem(
                f"the classifier Python :: {minor} in {wheel.name}",
                ", ".join(sorted(classified, key=_order)) or "none",
                cure,
            )
        )
    if classified and min(classified, key=_order) != oldest[1]:
        cure = "mend requires-python or the classifiers in pyproject.toml"
        found = f"{required}, and {min(classified, key=_order)} as the oldest classifier"
        problems.append(Problem(f"the same oldest Python twice in {wheel.name}", found, cure))
    return problems


def check_licences(wheels: Sequence[WheelFile], folder: Path, conan: Collection[str] | None) -> Verdict:
    """Compares the licence texts in a wheel with what was linked and compiled into it.

    Args:
        wheels: each holds the list of its components, written from the link line when it was built.
        folder: licenses/ of the clone; the texts in a wheel must be these.
        conan: the packages that Conan resolves for the wheel, tests left out; None: not asked.
    """
    problems = []
    said = []
    for wheel in wheels:
        content = sbom.read(wheel.path)
        inside = sbom.names(content)
        problems += _unknown(wheel, content)
        texts = {Path(n).name: data for n, data in wheel.members.items() if ".dist-info/licenses/" in n}
        if wheel.name.startswith("thresher_cuda-"):
            problems += _texts(wheel, inside, texts, folder.parent / "cuda" / "licenses")
        else:
            problems += _texts(wheel, inside, texts, folder)
            problems += _graph(wheel, content, conan)
        said.append(f"{wheel.name}: {', '.join(inside)}")
    return Verdict("\n".join(said), problems)


def _unknown(wheel: WheelFile, content: Mapping[str, Sequence[Mapping[str, str]]]) -> list[Problem]:
    unknown = [entry["value"] for entry in content.get("properties", ()) if entry["name"] == sbom.UNKNOWN]
    if not unknown:
        return []
    shown = ", ".join(unknown[:5]) + (f" and {len(unknown) - 5} more" if len(unknown) > 5 else "")
    cure = "name its owner and licence in scripts/toolchain/components.py, and put the text into licenses/"
    return [Problem(f"to know whose code is in {wheel.name}", shown, cure)]


def _texts(wheel: WheelFile, inside: Sequence[str], texts: Mapping[str, bytes], folder: Path) -> list[Problem]:
    problems = []
    wanted = {KNOWN[name].text: name for name in inside}
    for text, name in [("LICENSE", "thresher"), *wanted.items()]:
        path = folder / text if text in wanted else folder.parent / text
        if text not in texts:
            cure = f"put it into {path.parent}, and see license-files in pyproject.toml"
            problems.append(Problem(f"the licence of {name}, {text}, in {wheel.name}", "none", cure))
        elif not path.is_file() or texts[text].split() != path.read_bytes().split():
            problems.append(Problem(f"{text} in {wheel.name} as in {folder}", "another text", "build the wheel again"))
    listing = texts.get("README.md", b"").decode()
    for text in sorted(wanted) if listing else ():
        if f"| {text} |" not in listing:
            problems.append(
                Problem(f"a row for {text} in licenses/README.md", "none", "add it: the list is for people")
            )
    for text in sorted(texts.keys() - wanted.keys() - {"LICENSE", "README.md"}):
        # A wheel without the shim holds less than the repository's list allows for.
        if text not in {licence.text for licence in KNOWN.values()}:
            problems.append(Problem(f"a component for {text} in {wheel.name}", "none", "remove the text"))
    return problems


def _graph(
    wheel: WheelFile, content: Mapping[str, Sequence[Mapping[str, str]]], conan: Collection[str] | None
) -> list[Problem]:
    if conan is None:
        return []
    linked = {entry["name"] for entry in content["components"] if entry["purl"].startswith("pkg:conan/")}
    if linked == set(conan):
        return []
    cure = "link what conan/conanfile.py requires, or require it for the tests only"
    return [
        Problem(f"Conan's graph, {', '.join(sorted(conan))}, linked into {wheel.name}", ", ".join(sorted(linked)), cure)
    ]
