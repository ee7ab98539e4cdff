"""One engine a file. Each file has a class Engine:

Engine(model: Path, threads: int, precision: str)
                        imports the library, and writes what the engine converts once beside what export.py left in the
                        folder `model`; a PyTorch engine also loads the PyTorch model; raises Unavailable
create()                timed: makes the engine's own form of the model, as far as that happens before a call
prepare(case) -> inputs turns numpy arrays into the engine's own tensors; not timed
run(inputs) -> answer   one call, timed; returns when the answer is there
output(answer) -> array the last hidden state, float32 [batch, sequence, width]; not timed
note                    after create(): what a reader must know about how it computes; may be empty
"""

from __future__ import annotations


class Unavailable(Exception):
    """The engine cannot do what is asked for here; the text is the reason."""


# Compared by name, because only one environment has the package that the exception comes from.
_REASONS = ("Unavailable", "UnavailableError")


def unavailable_reason(error: BaseException) -> str | None:
    """Why the engine is not available, if that is what an exception says; None for any other failure.

    A missing library counts, and an exception that another one wraps, as torch.compile does with those of a back end.
    """
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in seen:
        seen.append(current)
        if isinstance(current, ImportError) or type(current).__name__ in _REASONS:
            return " ".join(str(current).split())
        current = current.__cause__ or current.__context__
    return None
