"""What the machine has and what it can do at best."""

from thresher.machine.backend import Backend, backends, open_device
from thresher.machine.roofs import Peaks, Rate, ThreadPeaks, peaks

__all__ = ["Backend", "Peaks", "Rate", "ThreadPeaks", "backends", "open_device", "peaks"]
