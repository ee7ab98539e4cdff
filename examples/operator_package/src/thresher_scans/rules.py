"""How PyTorch's operators become those of this package."""

from types import SimpleNamespace

import torch

from thresher import ops


@ops.rule(torch.ops.aten.logcumsumexp.default)
def _(b: ops.Builder, a: SimpleNamespace) -> ops.Value:
    # The arguments have the names of PyTorch's schema: logcumsumexp(Tensor self, int dim) -> Tensor
    if not a.self.dtype.is_floating_point:
        raise ops.UnsupportedNode("only floats are supported")
    if a.self.rank == 0:
        return a.self
    return b.emit("scans.logcumsumexp", [a.self], dim=int(a.dim))
