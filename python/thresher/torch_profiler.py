"""The engine in PyTorch's own profiler. Importing this module is all that a script needs.

    import thresher.torch_profiler

    with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as prof:
        model(x)
    print(prof.key_averages().table(sort_by="self_device_time_total"))

Where the engine cannot be connected, a warning says why, and the engine's events are added to the files that
`export_chrome_trace` writes. See docs/profiling/pytorch.md.
"""

from __future__ import annotations

from thresher.torch_shim.connection import Status, connect, profile, status
from thresher.torch_shim.session import Session, last_session

__all__ = ["Session", "Status", "last_session", "profile", "status"]

connect()
