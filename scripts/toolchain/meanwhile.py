"""Work beside a session's main work: pip fills environments while compilers have the other cores."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager

from . import orphans

_ASK_AGAIN_S = 0.2


@contextmanager
def beside(*tasks: Callable[[], object]) -> Iterator[None]:
    """Does tasks, one after the other, in a thread of its own while the block runs, whose end waits for them.

    A block that fails, or that Ctrl-C leaves, ends the processes of the task at work; those after it do not begin.

    Args:
        tasks: what to do. They may start processes as `process.run` does.

    Raises:
        Exception: what a task raised; none begins after it.
    """
    stopping = threading.Event()

    def work() -> None:
        for task in tasks:
            if not stopping.is_set():
                task()

    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        try:
            yield
        except BaseException:
            stopping.set()
            while not working.done():  # one process may have ended just now, and the task starts the next
                orphans.end(orphans.MARK)
                wait([working], _ASK_AGAIN_S)
            raise
        working.result()
