"""A model on the nodes of a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from thresher.serve.served_model import ServedModel

_DEFAULT_BATCH = 16
_DEFAULT_BODY_BYTES = 16 << 20


def ray_app(
    path: str | os.PathLike[str],
    name: str | None = None,
    *,
    embedding: str | os.PathLike[str] | None = None,
    embedding_name: str | None = None,
    min_replicas: int = 1,
    max_replicas: int = 1,
    cpus: float = 1,
    api_keys: Sequence[str] = (),
    requests_per_minute: int | None = None,
    stall_s: float = 10.0,
    **options: Any,
) -> Any:
    """An application of Ray Serve that answers as `thresher serve` does; `ray.serve.run` deploys it.

    Replicas with the model are added and taken away by the requests that are open; one whose engine is dead or stalled
    is replaced. A request goes to the replica that was sent the same beginning before, unless it is full.

    Args:
      path: of the language model, as LLM wants it, the same on every node.
      name: as clients call it; default: its file's.
      embedding: an encoder's folder, for /v1/embeddings and /v1/rerank.
      embedding_name: as clients call it; default: its folder's.
      min_replicas: that there are always.
      max_replicas: that there are when there is much to do.
      cpus: of a replica, for its place on a node and for its threads, unless `num_threads` says otherwise.
      api_keys: one of them has to be sent; none: anybody may come.
      requests_per_minute: of one key, or without keys of one address.
      stall_s: a step that takes longer than this counts as one that never ends.
      **options: of LLM.

    Raises:
      ModuleNotFoundError: Ray is not installed; `pip install 'thresher[ray]'`.
      ValueError: there are to be fewer replicas at most than at least.
    """
    if not 1 <= min_replicas <= max_replicas:
        raise ValueError(f"expected 1 <= min_replicas <= max_replicas, got {min_replicas} and {max_replicas}")
    try:
        from thresher.serve import ray_deployments
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"expected the module {error.name}, got none; pip install 'thresher[ray]'", name=error.name
        ) from None
    batch = int(options.setdefault("max_batch", _DEFAULT_BATCH))
    options.setdefault("max_waiting", max(1, batch // 2))
    options.setdefault("num_threads", max(1, int(cpus)))
    served = ServedModel(
        path=str(Path(path).absolute()),
        name=name or Path(path).stem,
        options=options,
        embedding=None if embedding is None else str(Path(embedding).absolute()),
        embedding_name=embedding_name or ("" if embedding is None else Path(embedding).absolute().name),
        stall_s=stall_s,
    )
    return ray_deployments.application(
        served,
        min_replicas=min_replicas,
        max_replicas=max_replicas,
        cpus=cpus,
        max_open=batch + int(options["max_waiting"]),
        api_keys=api_keys,
        requests_per_minute=requests_per_minute,
        max_body_bytes=_DEFAULT_BODY_BYTES,
    )
