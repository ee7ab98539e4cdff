"""What the machine has and what it can do at best."""

from thresher.machine.backend import Backend, backends, open_device
from thresher.machine.cores import core_slices
from thresher.machine.roofs import NodePeaks, Peaks, Rate, ThreadPeaks, peaks

__all__ = ["Backend", "NodePeaks", "Peaks", "Rate", "ThreadPeaks", "backends", "core_slices", "open_device", "peaks"]
