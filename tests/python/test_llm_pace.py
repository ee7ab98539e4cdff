"""How much of a prompt a step computes beside answers, on a machine whose times are known."""

from __future__ import annotations

import random
import statistics

import pytest

from thresher.llm.pace import Pace


class _Machine:
    """Steps of answers and tokens of a prompt, which grow dearer with the keys before them; times vary a little."""

    def __init__(self, answer_s, token_s, key_s, chunk_s=0.0, seed=0):
        self.answer_s, self.token_s, self.key_s, self.chunk_s = answer_s, token_s, key_s, chunk_s
        self.random = random.Random(seed)

    def alone(self, answers):
        return self.answer_s * (1 + 0.1 * answers)

    def step(self, answers, tokens=0, position=0):
        time_s = self.alone(answers)
        if tokens:
            time_s += self.chunk_s + tokens * (self.token_s + position * self.key_s)
        return time_s * self.random.uniform(0.95, 1.05)


_MACHINES = {
    "tokens cost much": (0.025, 2.5e-3, 0.0),
    "tokens cost little": (0.025, 1e-4, 0.0),
    "keys cost much": (0.025, 1e-3, 1e-6),
    "a chunk costs by itself": (0.025, 1e-3, 2e-7, 0.02),
    "a small model": (0.004, 5e-4, 5e-8),
}


def _prompt(pace, machine, length, answers):
    """The times of the steps that a prompt takes beside answers, as multiples of a step without it."""
    times, position = [], 0
    while position < length:
        tokens = min(pace.chunk(answers), length - position)
        time_s = machine.step(answers, tokens, position)
        pace.note_beside(answers, tokens, time_s)
        times.append(time_s / machine.alone(answers))
        position += tokens
    return times


def _p99(times):
    return sorted(times)[int(0.99 * (len(times) - 1))]


@pytest.mark.parametrize("name", _MACHINES)
@pytest.mark.parametrize("answers", [1, 8])
def test_a_long_prompt_holds_answers_up_by_three_times_at_most(name, answers):
    machine = _Machine(*_MACHINES[name])
    pace = Pace(512)
    for _ in range(20):
        pace.note_alone(answers, machine.step(answers))
    times = _prompt(pace, machine, 8192, answers)
    assert _p99(times) < 3.0
    # And has its share: were chunks too small, the prompt would take longer than it must.
    if name != "tokens cost little":
        assert statistics.median(times) > 2.2


def test_a_slow_step_changes_little():
    machine = _Machine(0.025, 1e-3, 0.0)
    pace = Pace(512)
    pace.note_alone(1, machine.step(1))
    _prompt(pace, machine, 2000, 1)
    usual = pace.chunk(1)
    pace.note_alone(1, 1.0)
    pace.note_alone(1, machine.step(1))
    pace.note_beside(1, usual, 1.0)
    assert pace.chunk(1) == pytest.approx(usual, rel=0.2)


def test_what_is_not_known_yet_is_tried_with_few():
    pace = Pace(512)
    assert 1 < pace.chunk(1) <= 16
    pace.note_alone(4, 0.03)
    assert 1 < pace.chunk(1) <= 16
    pace.note_beside(4, 10, 0.05)
    assert pace.chunk(8) == pace.chunk(4)  # of 8 answers nothing is known: as if they were 4
    assert Pace(4).chunk(1) == 4


def test_prompts_always_go_on():
    pace = Pace(512)
    pace.note_alone(1, 0.001)
    for _ in range(20):
        pace.note_beside(1, 2, 5.0)
    assert pace.chunk(1) == 2


def test_pieces_follow_the_steps_that_wait_for_them():
    pace = Pace(512)
    assert pace.piece_s(2, step_s=0.01) == pytest.approx(0.0135)  # nothing is known: as the last step
    pace.note_alone(2, 0.004)
    assert pace.piece_s(2, step_s=0.01) == pytest.approx(0.0054)


@pytest.mark.parametrize("token_s", [1e-6, 2e-5, 1e-4, 1e-2])
def test_the_longest_operator_of_a_step_in_pieces_takes_half_a_piece(token_s):
    pace, piece_s = Pace(512), 0.006
    assert 1 < pace.apart(piece_s) <= 16
    for _ in range(6):
        tokens = pace.apart(piece_s)
        pace.note_apart(tokens, tokens * token_s)
    pace.note_apart(tokens, 3.0)  # a slow one
    tokens = pace.apart(piece_s)
    assert 8 <= tokens <= 512  # few read weights and pages again that are most of what they cost
    if 8 < tokens < 512:
        assert tokens * token_s == pytest.approx(piece_s / 2, rel=0.1)
    assert Pace(4).apart(piece_s) == 4
