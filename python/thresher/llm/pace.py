"""How much of prompts a step computes beside answers."""

from __future__ import annotations

import statistics
from collections import defaultdict, deque

_AIM = 2.5  # how long such a step may take, in steps of answers alone: 3 is the promise, the rest is for what varies
_PIECE = 1.35  # how long a piece of prompts may take, in steps of the answers that wait for it
_FIRST_CHUNK = 16  # where no step has told yet
_LEAST_CHUNK = 2  # prompts go on, however slowly
_LEAST_APART = 8  # fewer read weights and pages again that are most of what they cost
_LONGEST = 0.5  # of a piece, what may be between two places where it could end
_STEPS_ALONE, _STEPS_BESIDE = 15, 5  # the last of them are asked: their median forgets a slow one


class Pace:
    """Learns from steps how long they take, and keeps a step with tokens of prompts near 2.5 times one without.

    Where prompts have steps of their own, done in pieces, a step of answers and a piece take 2.35 times one.

    A token grows dearer with every chunk, as there are more keys to look at: few steps tell what one costs now.
    """

    def __init__(self, most: int) -> None:
        """Knows nothing yet.

        Args:
          most: tokens of a step.
        """
        self._most = most
        self._alone: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=_STEPS_ALONE))
        self._token_s: deque[float] = deque(maxlen=_STEPS_BESIDE)  # of a prompt, beside answers
        self._apart_s: deque[float] = deque(maxlen=_STEPS_BESIDE)  # of the longest between two places to pause, a token

    def alone_s(self, answers: int) -> float | None:
        """Seconds of a step of so many answers and nothing else, or of the next number below (above) that is known."""
        if not self._alone:
            return None
        if answers not in self._alone:
            below = [known for known in self._alone if known < answers]
            answers = max(below) if below else min(self._alone)
        return statistics.median(self._alone[answers])

    def chunk(self, answers: int) -> int:
        """How many tokens of prompts the next step may compute beside so many answers."""
        alone_s = self.alone_s(answers)
        token_s = statistics.median(self._token_s) if self._token_s else 0.0
        if alone_s is None or not token_s:
            return min(_FIRST_CHUNK, self._most)
        return max(_LEAST_CHUNK, min(int((_AIM - 1.0) * alone_s / token_s), self._most))

    def piece_s(self, answers: int, step_s: float) -> float:
        """Seconds that prompts may take between two steps of so many answers, of which the last one took so long."""
        return _PIECE * (self.alone_s(answers) or step_s)

    def apart(self, piece_s: float) -> int:
        """How many tokens of prompts a step may compute that is done in such pieces."""
        token_s = statistics.median(self._apart_s) if self._apart_s else 0.0
        if not token_s:
            return min(_FIRST_CHUNK, self._most)
        return min(max(int(_LONGEST * piece_s / token_s), _LEAST_APART), self._most)

    def note_apart(self, tokens: int, longest_s: float) -> None:
        """A step of prompts alone, of so many tokens, could not pause for so long."""
        self._apart_s.append(longest_s / tokens)

    def note_alone(self, answers: int, time_s: float) -> None:
        """A step of answers alone took so long."""
        self._alone[answers].append(time_s)

    def note_beside(self, answers: int, tokens: int, time_s: float) -> None:
        """A step of answers and so many tokens of prompts took so long."""
        self._token_s.append(max(time_s - (self.alone_s(answers) or 0.0), 0.0) / tokens)
