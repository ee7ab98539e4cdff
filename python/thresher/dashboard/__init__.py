"""A web page about the processes of this machine that run models.

thresher dashboard                           # in a shell: shows the page's address
thresher.dashboard.report("my service")      # in each process
"""

from thresher.dashboard.reporter import Reporter, report

__all__ = ["Reporter", "report"]
