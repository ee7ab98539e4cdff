"""Reads the answers to a chat: what the engine adds, taken apart."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterator

from thresher.llm import Delta
from thresher.serve.answer_text import Piece
from thresher.serve.chat_prompt import ChatPrompt
from thresher.serve.service import Answers


class Reading:
    """The answers to one chat.

    Attributes:
      answers: where they come from.
      thoughts: tokens of thoughts up to now.
    """

    def __init__(self, answers: Answers, prompt: ChatPrompt) -> None:
        self.answers = answers
        self.thoughts = 0
        self._readers = [prompt.reader() for _ in range(prompt.params.n)]

    async def take(self) -> list[tuple[Delta, list[Piece]]]:
        """What is new; empty: that was all.

        Raises:
          ApiError: the request failed.
        """
        return [(delta, self._pieces(delta)) for _, delta in await self.answers.take()]

    def called(self, index: int) -> bool:
        """Whether an answer has called a tool."""
        return self._readers[index].calls > 0

    def _pieces(self, delta: Delta) -> list[Piece]:
        reader = self._readers[delta.index]
        pieces = reader.add(delta.text)
        if delta.finish_reason is not None:
            pieces = pieces + reader.finish()
        if reader.may_think and (reader.thinking or any(piece.kind == "reasoning" for piece in pieces)):
            self.thoughts += len(delta.token_ids)
        return pieces


@dataclasses.dataclass(slots=True)
class Block:
    """A part of an answer that is of one kind.

    Attributes:
      kind: "text", "reasoning" or "call".
      number: which one.
      text: it; of a call its arguments.
      name: of the tool that is called.
      identity: a name for it that nothing else has.
    """

    kind: str
    number: int
    text: str = ""
    name: str = ""
    identity: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex[:24])


class Blocks:
    """Gathers the pieces of an answer to blocks."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._open = False

    def add(self, piece: Piece) -> Iterator[tuple[str, Block, str]]:
        """Adds a piece; gives what changes: "begin", "add" with the new text, and "end", of which block."""
        kind = "call" if piece.kind in ("call", "arguments") else piece.kind
        if not self._open or piece.kind == "call" or self.blocks[-1].kind != kind:
            yield from self.finish()
            block = Block(kind, len(self.blocks), name=piece.text if piece.kind == "call" else "")
            self.blocks.append(block)
            self._open = True
            yield "begin", block, ""
        if piece.kind != "call":
            self.blocks[-1].text += piece.text
            yield "add", self.blocks[-1], piece.text

    def finish(self) -> Iterator[tuple[str, Block, str]]:
        """Ends the last block."""
        if self._open:
            self._open = False
            yield "end", self.blocks[-1], ""
