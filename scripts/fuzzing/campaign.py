"""Running fuzz targets."""

from __future__ import annotations

import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from toolchain.process import ToolchainError, note

from .outcome import Outcome, reason_in, sizes
from .target import CPP, Target

# No input may cost more: see docs/fuzzing.md.
MAX_BYTES = 16384
TIMEOUT_S = {CPP: 10}
PYTHON_TIMEOUT_S = 20
RSS_MIB = 2048
MALLOC_MIB = 256
# libFuzzer ends by itself; who does not is stuck before its first input or after its last.
GRACE_S = 180
PROGRESS_S = 10.0


@dataclass(frozen=True)
class Runner:
    """How programs are started.

    Attributes:
        command: gives the command of a target.
        environment: their variables.
        print_line: where progress goes.
    """

    command: Callable[[Target], list[str]]
    environment: dict[str, str]
    print_line: Callable[[str], None] = note

    def replay(self, target: Target, path: str | Path) -> str:
        """A line that gives one input to a target."""
        return shlex.join([*self.command(target), str(path)])

    def run(self, target: Target, seconds: int) -> Outcome:
        """Runs a target until the time is over or something is found."""
        target.corpus.mkdir(parents=True, exist_ok=True)
        target.findings.mkdir(parents=True, exist_ok=True)
        target.log.parent.mkdir(parents=True, exist_ok=True)
        timeout = TIMEOUT_S.get(target.language, PYTHON_TIMEOUT_S)
        command = [
            *self.command(target),
            *(str(target.corpus), str(target.make_seeds())),
            *(f"-max_total_time={seconds}", f"-timeout={timeout}", f"-max_len={MAX_BYTES}"),
            *(f"-rss_limit_mb={RSS_MIB}", f"-malloc_limit_mb={MALLOC_MIB}"),
            *(f"-artifact_prefix={target.findings}/", "-print_final_stats=1", "-reload=0"),
            *([f"-dict={target.dictionary}"] if target.dictionary else []),
        ]
        outcome = Outcome(target.name, target.language)
        begin = time.monotonic()
        code = self._watch(command, outcome, begin, seconds + GRACE_S, target.log)
        outcome.seconds = time.monotonic() - begin
        outcome.corpus = max(outcome.corpus, sizes(target.corpus)[0])
        text = target.log.read_text(encoding="utf-8", errors="replace")
        if outcome.findings:
            outcome.reasons = [reason_in(text)]
            outcome.replay = [self.replay(target, path) for path in outcome.findings]
        elif code != 0:
            outcome.problem = f"ended with code {code}: {reason_in(text)} ({target.log})"
        elif outcome.runs == 0:
            outcome.problem = f"read no input ({target.log})"
        return outcome

    def _watch(self, command: Sequence[str], outcome: Outcome, begin: float, limit_s: float, log: Path) -> int:
        """Runs a program, reads what it prints, and tells from time to time how far it is."""
        try:
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=self.environment,
                text=True,
                errors="replace",
            )
        except OSError as error:
            log.write_text(f"expected to run {command[0]}; {error}\n", encoding="utf-8")
            return 127
        killer = threading.Timer(limit_s, process.send_signal, (signal.SIGKILL,))
        killer.start()
        ended = threading.Event()

        def tell() -> None:
            while not ended.wait(PROGRESS_S):
                outcome.seconds = time.monotonic() - begin
                self.print_line(outcome.progress())

        teller = threading.Thread(target=tell, daemon=True)
        teller.start()
        try:
            with log.open("w", encoding="utf-8") as file:
                file.write(f"$ {shlex.join(command)}\n")
                assert process.stdout is not None
                for line in process.stdout:
                    file.write(line)
                    outcome.read(line)
            return process.wait()
        finally:
            process.kill()
            killer.cancel()
            ended.set()
            teller.join()

    def run_all(self, chosen: Sequence[Target], seconds: int, jobs: int) -> list[Outcome]:
        """Runs targets, several at once; each result is told when it is there."""

        def one(target: Target) -> Outcome:
            self.print_line(f"{target.name}: {seconds} s")
            outcome = self.run(target, seconds)
            self.print_line(f"{outcome.progress()}; {'ok' if outcome.ok else outcome.problem or 'FOUND SOMETHING'}")
            return outcome

        with ThreadPoolExecutor(jobs) as pool:
            return list(pool.map(one, chosen))

    def minimize(self, target: Target, seconds: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Keeps of a corpus only what leads somewhere else, and makes findings of C++ targets smaller.

        Returns:
            Files and bytes of the corpus before and after.

        Raises:
            ToolchainError: libFuzzer failed; the corpus is as before.
        """
        before = sizes(target.corpus)
        target.corpus.mkdir(parents=True, exist_ok=True)
        smaller = target.corpus.with_name(f"{target.name}.smaller")
        shutil.rmtree(smaller, ignore_errors=True)
        smaller.mkdir()
        merge = ["-merge=1", f"-max_len={MAX_BYTES}", f"-rss_limit_mb={RSS_MIB}", str(smaller), str(target.corpus)]
        self._quietly([*self.command(target), *merge, str(target.make_seeds())])
        shutil.rmtree(target.corpus)
        smaller.rename(target.corpus)
        for path in sorted(target.findings.glob("*")) if target.language == CPP else ():
            if path.name.endswith(".smaller"):
                continue
            options = ["-minimize_crash=1", f"-max_total_time={seconds}", f"-exact_artifact_path={path}.smaller"]
            with_limits = [*options, f"-rss_limit_mb={RSS_MIB}", f"-malloc_limit_mb={MALLOC_MIB}", str(path)]
            subprocess.run(
                [*self.command(target), *with_limits], env=self.environment, capture_output=True, check=False
            )
        return before, sizes(target.corpus)

    def _quietly(self, command: Sequence[str]) -> None:
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, errors="replace", check=False
        )
        if done.returncode != 0:
            words = "\n".join(done.stderr.splitlines()[-8:])
            raise ToolchainError(f"`{shlex.join(command)}` ended with code {done.returncode}:\n{words}")
