"""Text to tokens and back, and chats to prompts."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Message = Mapping[str, Any]


class ChatTemplateError(ValueError):
    """The messages cannot be made a prompt: there is no template, or it refuses them."""


class Tokenizer:
    """A tokenizer of the library `tokenizers` with the chat template of its model."""

    def __init__(self, backend: Any, template: str | None = None, special: Mapping[str, str] | None = None) -> None:
        """Takes a tokenizer.

        Args:
          backend: a tokenizers.Tokenizer; padding and truncation are switched off.
          template: the chat template, in Jinja.
          special: what templates may name: bos_token, eos_token and the like.
        """
        backend.no_padding()
        backend.no_truncation()
        self.backend = backend
        self.template = template
        self.special = dict(special or {})
        self._compiled: Any = None
        self._bytes: _TokenBytes | None = None

    @staticmethod
    def from_folder(path: Path) -> Tokenizer:
        """Reads tokenizer.json, tokenizer_config.json and chat_template.jinja of a Hugging Face folder.

        Raises:
          FileNotFoundError: there is no tokenizer.json.
          ValueError: a file is not what it should be.
        """
        from tokenizers import Tokenizer as Backend

        file = path / "tokenizer.json"
        if not file.is_file():
            raise FileNotFoundError(
                f"{path}: expected tokenizer.json, got none; save the fast tokenizer beside the model"
            )
        try:
            backend = Backend.from_file(str(file))
        except Exception as error:  # the library raises plain Exception
            raise ValueError(f"{file}: expected a tokenizer, got {error}") from None
        config: dict[str, Any] = {}
        described = path / "tokenizer_config.json"
        if described.is_file():
            config = json.loads(described.read_text(encoding="utf-8"))
        template = config.get("chat_template")
        if isinstance(template, list):
            template = next((t["template"] for t in template if t.get("name") == "default"), None)
        separate = path / "chat_template.jinja"
        if separate.is_file():
            template = separate.read_text(encoding="utf-8")
        special = {
            name: value["content"] if isinstance(value, dict) else value
            for name, value in config.items()
            if name.endswith("_token") and isinstance(value, (str, dict))
        }
        return Tokenizer(backend, template, special)

    @property
    def vocab_size(self) -> int:
        """How many tokens there are, added ones included."""
        return int(self.backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Tokens of a text; with `special` those that the tokenizer puts around it, too."""
        return list(self.backend.encode(text, add_special_tokens=special).ids)

    def encode_pair(
        self, text: str, pair: str | None = None, *, most: int | None = None
    ) -> tuple[list[int], list[int]]:
        """Tokens of a text or a pair with those that the tokenizer puts around it, and which text each belongs to.

        Args:
          text: the first text.
          pair: the second one.
          most: tokens that there may be; of a pair the second text is cut, then the first.

        Raises:
          ValueError: not even what stands around a text has room.
        """
        first = self.backend.encode(text, add_special_tokens=False)
        second = None if pair is None else self.backend.encode(pair, add_special_tokens=False)
        if most is not None:
            room = most - int(self.backend.num_special_tokens_to_add(pair is not None))
            if room < 1:
                raise ValueError(f"expected at least {most + 1 - room} tokens, got {most}")
            first.truncate(room)
            if second is not None:
                second.truncate(max(room - len(first.ids), 0))
        encoded = self.backend.post_process(first, second, True)
        return list(encoded.ids), list(encoded.type_ids)

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of tokens."""
        return str(self.backend.decode(list(tokens), skip_special_tokens=skip_special))

    def token_id(self, token: str) -> int | None:
        """The number of a token."""
        found = self.backend.token_to_id(token)
        return None if found is None else int(found)

    def is_special(self, token: str) -> bool:
        """Whether this is a special token, which is no part of texts."""
        number = self.token_id(token)
        added = None if number is None else self.backend.get_added_tokens_decoder().get(number)
        return bool(added is not None and added.special)

    def token_bytes(self, token: int) -> bytes:
        """What a token stands for, which need not be whole characters; b"" for a number that is no token."""
        if self._bytes is None:
            self._bytes = _TokenBytes(self.backend)
        return self._bytes.of(token)

    def chat_prompt(self, messages: Sequence[Message], tools: Sequence[Any] | None = None, **options: Any) -> list[int]:
        """Tokens of a chat, up to where the answer begins.

        Args:
          messages: each with "role" and "content".
          tools: what the model may call, as the template wants them.
          **options: more names for the template, such as enable_thinking.

        Raises:
          ChatTemplateError: there is no template, or it refuses the messages.
        """
        return self.encode(self.chat_text(messages, tools, **options), special=False)

    def chat_text(self, messages: Sequence[Message], tools: Sequence[Any] | None = None, **options: Any) -> str:
        """The same as text. Templates run in a sandbox."""
        if self.template is None:
            raise ChatTemplateError(
                "expected a model with a chat template, got none; use generate() with a plain prompt"
            )
        for message in messages:
            if not isinstance(message, Mapping) or "role" not in message:
                raise ChatTemplateError(f"expected messages with role and content, got {message!r}")
        import jinja2

        if self._compiled is None:
            self._compiled = _environment().from_string(self.template)
        try:
            names = {**self.special, **options}
            return str(self._compiled.render(messages=list(messages), tools=tools, add_generation_prompt=True, **names))
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise ChatTemplateError(f"expected messages that the chat template takes, got {error}") from None


class _TokenBytes:
    """Bytes of tokens, by how the tokenizer's decoder writes them."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._added = {int(number): str(token.content) for number, token in backend.get_added_tokens_decoder().items()}
        decoder = json.dumps(json.loads(backend.to_str()).get("decoder"))
        self._of_bytes = _byte_characters() if '"ByteLevel"' in decoder else None
        self._fallback = '"ByteFallback"' in decoder
        self._known: dict[int, bytes] = {}

    def of(self, token: int) -> bytes:
        found = self._known.get(token)
        if found is None:
            found = self._known[token] = self._make(token)
        return found

    def _make(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token].encode()
        written = self._backend.id_to_token(token)
        if written is None:
            return b""
        if self._of_bytes is not None and all(character in self._of_bytes for character in written):
            return bytes(self._of_bytes[character] for character in written)
        if self._fallback and len(written) == 6 and written.startswith("<0x") and written.endswith(">"):
            return bytes.fromhex(written[3:5])
        return str(written).replace("\u2581", " ").encode()


def _byte_characters() -> dict[str, int]:
    """The characters that pairs of bytes are written in: printable ones stand for themselves, others follow 255."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [number for number in range(256) if number not in printable]
    return {chr(b): b for b in printable} | {chr(256 + place): b for place, b in enumerate(others)}


def _environment() -> Any:
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    def to_json(value: Any, indent: int | None = None, **_: Any) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment


class TextStream:
    """Turns the tokens of one answer into text as they come, and watches for what ends it."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str], *, skip_special: bool = True) -> None:
        from tokenizers.decoders import DecodeStream

        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=skip_special)
        self._stop = stop
        self.met: str | None = None  # the stop text that ended the answer
        self._held = ""  # may be the beginning of a stop text

    def add(self, token: int) -> tuple[str, bool]:
        """New text, and whether a stop text was met; what follows that is dropped."""
        self._held += self._stream.step(self._tokenizer.backend, token) or ""
        if not self._stop:
            return self._take(len(self._held)), False
        found = [(at, stop) for at, stop in ((self._held.find(stop), stop) for stop in self._stop) if at >= 0]
        if found:
            first, self.met = min(found)
            text = self._take(first)
            self._held = ""
            return text, True
        keep = 0
        for text in self._stop:
            for length in range(min(len(text) - 1, len(self._held)), keep, -1):
                if self._held.endswith(text[:length]):
                    keep = length
                    break
        return self._take(len(self._held) - keep), False

    def finish(self) -> str:
        """What was held back, once no more tokens come."""
        return self._take(len(self._held))

    def _take(self, count: int) -> str:
        text, self._held = self._held[:count], self._held[count:]
        return text
