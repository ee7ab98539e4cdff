"""What the machine can do at best."""

from thresher.machine.roofs import Peaks, Rate, ThreadPeaks, peaks

__all__ = ["Peaks", "Rate", "ThreadPeaks", "peaks"]
