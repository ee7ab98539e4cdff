"""Checks of an installation; ``thresher doctor`` prints them."""

from thresher.doctor.checks import Finding, Level, run_checks, topology, verdict

__all__ = ["Finding", "Level", "run_checks", "topology", "verdict"]
