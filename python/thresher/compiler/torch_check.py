"""Warns of an unsupported PyTorch at the first use of the compiler."""

import torch

from thresher.torch_version import warn_unsupported

warn_unsupported(torch.__version__)
