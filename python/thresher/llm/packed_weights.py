"""Packed weights of a model, kept in the cache: the next process maps them instead of packing."""

from __future__ import annotations

import os
import time
from typing import Any

from thresher import _engine, cache
from thresher.llm.formats import MappedFile
from thresher.llm.models.sharding import Share

KIND = "weights"
_LEAST_BYTES = 16 << 20  # less is packed sooner than a file is made sure of
_SETTLED_NS = 2_000_000_000  # since a file changed: then any later change shows in its times


class PackedWeights:
    """The store of packed weights of one model, and its place in the cache.

    Attributes:
      store: of the weights.
      digests: of the model's files; none where these are not kept.
      found: what an earlier process kept; None: nothing.
    """

    def __init__(
        self,
        files: tuple[MappedFile, ...],
        weights: str,
        precision: str,
        share: Share = Share(),  # noqa: B008
    ) -> None:
        """Prepares to find what an earlier process kept.

        Args:
          files: of the model.
          weights: how matrices are kept.
          precision: of products.
          share: the part of the model that is packed here.
        """
        self._files = files
        self._options: dict[str, Any] = {"weights": weights, "precision": precision}
        if share.size > 1:
            self._options["share"] = [share.rank, share.size]
        self._key: dict[str, Any] | None = None
        self.digests: tuple[str, ...] = ()
        self.found: cache.Parts | None = None
        self.store = _engine.WeightStore(named=cache.enabled())

    def find(self) -> None:
        """Finds it; before anything is packed. Reads all of it, and leaves the interpreter to other threads."""
        if not cache.enabled() or sum(len(file.data) for file in self._files) < _LEAST_BYTES:
            return
        self.digests = tuple(_digest(file) for file in self._files)
        for file, digest in zip(self._files, self.digests, strict=True):
            self.store.add_source(file.data, digest)
        self._key = {"files": list(self.digests), **self._options, "layout": _engine.packed_layout()}
        self.found = cache.load_parts(KIND, self._key)
        if self.found is not None:
            for name, data in self.found.parts.items():
                self.store.add_part(name, data)

    def keep(self, name: str) -> bool:
        """Keeps what has been packed, unless all of it was found.

        Args:
          name: of the model, for those who look into the cache.

        Returns:
          Whether something was written.
        """
        if self._key is None:
            return False
        parts = self.store.parts()
        if all(given for _, _, given in parts):
            return False
        return cache.store_parts(KIND, self._key, {"model": name}, list({n: data for n, data, _ in parts}.items()))


def _digest(file: MappedFile) -> str:
    """The digest of a file, which is read only if it is another one than when it was read last."""
    key = {"path": os.path.realpath(file.path), "identity": list(file.identity)}
    known = cache.load("digests", key)
    if isinstance(known, str):
        return known
    (digest,) = _engine.digests([file.data])
    if time.time_ns() - max(file.identity[-2:]) > _SETTLED_NS:
        cache.store("digests", key, digest)
    return digest
