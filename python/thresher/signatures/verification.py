"""Whether the engine computes what a signature says: against float64, beside PyTorch's own error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from thresher.signatures.launchable import get_launchable
from thresher.signatures.signature import Signature

# The engine may err this many times as much as PyTorch does.
_TIMES_TORCH = 4.0
# Adding random numbers one after another in float32 is off by up to 2.4 units of the sum of their absolute values, as
# far as seen: of 1,152 to 6,272 terms, the worst of 10^5 elements. PyTorch adds in blocks and errs less.
_UNITS_OF_A_SUM = 4.0
# The farthest that a sum of ones may be off: it is nearer to its own whole number than to others.
_OFF_A_WHOLE_NUMBER = 0.25
_NO_ERROR = (0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Errors:
    """How far results lie from float64, over the elements that are finite there.

    Attributes:
        max_abs: The largest absolute error.
        max_rel: The largest error relative to the element, of elements of at least 1 % of the largest.
        mean: The mean of the signed errors.
        stddev: Their standard deviation.
    """

    max_abs: float
    max_rel: float
    mean: float
    stddev: float


@dataclass(frozen=True)
class Check:
    """One test of a kernel.

    Attributes:
        name: "random": normal numbers; "blocks": zeros with a block of ones in each argument; "nan": random, and one
            element of an argument that meets no padding is not a number.
        passed: Whether it passed.
        reason: Why not; else what was compared.
        errors: The engine's.
        torch_errors: PyTorch's own.
        limit: How large the engine's largest error may be.
    """

    name: str
    passed: bool
    reason: str
    errors: Errors
    torch_errors: Errors
    limit: float


@dataclass(frozen=True)
class Verification:
    """What the tests of a signature's kernel found.

    Attributes:
        func_name: The signature's.
        checks: One entry a test.
    """

    func_name: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether all did."""
        return all(check.passed for check in self.checks)

    @property
    def verdict(self) -> str:
        """PASS or FAIL, with the reason."""
        failed = [f"{check.name}: {check.reason}" for check in self.checks if not check.passed]
        return f"FAIL: {'; '.join(failed)}" if failed else f"PASS: {self.checks[0].reason}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        checks = [
            {**vars(check), "errors": vars(check.errors), "torch_errors": vars(check.torch_errors)}
            for check in self.checks
        ]
        return {"func_name": self.func_name, "passed": self.passed, "verdict": self.verdict, "checks": checks}


def verify(signature: Signature, seed: int = 0) -> Verification:
    """Compares the engine's kernel with float64 and with PyTorch's.

    A kernel passes where its largest error is at most four times PyTorch's, or what rounding explains: half a unit in
    the last place of the result's type, of the largest element, and four of float32, of the largest sum of the
    products' absolute values. NaN and infinities have to be where float64 has them. Convolutions and products of
    matrices have to give the whole numbers that sums over blocks of ones are: what is nearer to others is an error of
    indices. (Kernels with fewer multiplications are not exact there.)

    Args:
        signature: What to compute.
        seed: Of the random numbers.

    Raises:
        UnsupportedOperatorError: The engine cannot compute it.
        ValueError: It takes no tensors.
    """
    launchable = get_launchable(signature)
    random = signature.sample_args(seed=seed)
    if not random:
        raise ValueError(f"expected an operator that takes tensors, got {signature.func_name}; leave its line out")
    tests = [("random", random), ("blocks", blocks(signature))]
    if random[signature.unpadded].dtype.is_floating_point:
        tests.append(("nan", tuple(_with_nan(one) if i == signature.unpadded else one for i, one in enumerate(random))))
    summed = None
    if signature.is_linear:
        with torch.no_grad():
            summed = float(signature.call(*(_double(tensor).abs() for tensor in random)).max())
    found = []
    for name, args in tests:
        with torch.no_grad():
            ours, torchs = launchable(*args), _in_torch(signature, args)
            reference = signature.call(*(_double(tensor) for tensor in args))
        found.append(judge(name, signature, ours, torchs, reference, summed))
    return Verification(signature.func_name, tuple(found))


def judge(
    name: str,
    signature: Signature,
    ours: torch.Tensor,
    torchs: torch.Tensor,
    reference: torch.Tensor,
    summed: float | None = None,
) -> Check:
    """The verdict on one result.

    Args:
        name: The test's.
        signature: What was computed.
        ours: The engine's result.
        torchs: PyTorch's.
        reference: PyTorch's in float64.
        summed: The largest sum of the products' absolute values; by default what it is likely to be.
    """
    rounded = reference.to(ours.dtype)
    if ours.shape != reference.shape:
        return _failed(name, f"expected the shape {list(reference.shape)}, got {list(ours.shape)}")
    if not ours.dtype.is_floating_point:
        wrong = int((ours != rounded).sum())
        return _failed(name, _first(ours != rounded, wrong)) if wrong else _exact(name, ours)
    for what, test in (("NaN", torch.isnan), ("infinity", torch.isinf)):
        if wrong := int((mismatch := test(ours) != test(rounded)).sum()):
            return _failed(name, f"{what} at other places than float64: {_first(mismatch, wrong)}")
    if name == "blocks" and signature.is_linear:
        return _judge_sums_of_ones(name, ours, reference)
    finite = torch.isfinite(rounded)
    errors = _errors(ours, reference, finite)
    # PyTorch's kernels of 16 bits multiply a NaN with zeros that others leave out.
    torch_errors = _errors(torchs, reference, finite & torch.isfinite(torchs))
    largest = float(reference[finite].abs().max()) if bool(finite.any()) else 0.0
    own, single = torch.finfo(ours.dtype).eps / 2, _UNITS_OF_A_SUM * torch.finfo(torch.float32).eps
    # Sums may cancel out: what float32 rounds is not the result.
    summed = largest * math.sqrt(signature.depth) if summed is None else summed
    rounding = largest * own + single * summed
    limit = max(_TIMES_TORCH * torch_errors.max_abs, rounding)
    told = f"largest error {errors.max_abs:.3g}, PyTorch's {torch_errors.max_abs:.3g}, limit {limit:.3g}"
    return Check(name, errors.max_abs <= limit, told, errors, torch_errors, limit)


def _judge_sums_of_ones(name: str, ours: torch.Tensor, reference: torch.Tensor) -> Check:
    """The verdict on sums that are whole numbers: each has to be nearest to its own, but for rounding to its type."""
    finite = torch.isfinite(reference)
    if bool((ours == reference.to(ours.dtype))[finite].all()):
        return _exact(name, ours)
    rounding = torch.finfo(ours.dtype).eps / 2
    different = finite & ((ours.double() - reference).abs() > _OFF_A_WHOLE_NUMBER + reference.abs() * rounding)
    if wrong := int(different.sum()):
        return _failed(name, f"sums of ones are other whole numbers, an error of indices: {_first(different, wrong)}")
    errors = _errors(ours, reference, finite)
    told = f"all {ours.numel()} elements the right whole numbers, largest error {errors.max_abs:.3g}"
    return Check(name, True, told, errors, Errors(*_NO_ERROR), _OFF_A_WHOLE_NUMBER)


def blocks(signature: Signature) -> tuple[torch.Tensor, ...]:
    """Arguments of zeros with a block of ones, three quarters as long in every dimension, in another corner each.

    So those of two arguments meet, but not everywhere.
    """
    made = []
    for position, argument in enumerate(signature.arguments):
        tensor = torch.zeros(argument.shape)
        place = []
        for axis, size in enumerate(argument.shape):
            length = (3 * size + 2) // 4
            start = (position + axis) % 2 * (size - length)
            place.append(slice(start, start + length))
        tensor[tuple(place)] = 1
        made.append((tensor + 1 if argument.positive else tensor).to(argument.dtype))
    return tuple(made)


def _in_torch(signature: Signature, args: Sequence[torch.Tensor]) -> torch.Tensor:
    """PyTorch's own result. oneDNN in PyTorch 2.13 dies of some convolutions in float16; its plain kernels do not."""
    was_on = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(was_on and signature.dtype != torch.float16)
    try:
        return signature.call(*args)
    finally:
        torch._C._set_mkldnn_enabled(was_on)


def _with_nan(tensor: torch.Tensor) -> torch.Tensor:
    changed = tensor.clone()
    changed.view(-1)[changed.numel() // 2] = math.nan
    return changed


def _double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.dtype.is_floating_point else tensor


def _errors(found: torch.Tensor, reference: torch.Tensor, finite: torch.Tensor) -> Errors:
    wanted = reference[finite]
    if wanted.numel() == 0:
        return Errors(*_NO_ERROR)
    error = found.double()[finite] - wanted
    large = wanted.abs() >= 0.01 * wanted.abs().max()
    relative = (error.abs() / wanted.abs())[large & (wanted != 0)]
    return Errors(
        float(error.abs().max()),
        float(relative.max()) if relative.numel() else 0.0,
        float(error.mean()),
        float(error.std(correction=0)),
    )


def _failed(name: str, reason: str) -> Check:
    return Check(name, False, reason, Errors(*_NO_ERROR), Errors(*_NO_ERROR), 0.0)


def _exact(name: str, ours: torch.Tensor) -> Check:
    return Check(name, True, f"all {ours.numel()} elements exact", Errors(*_NO_ERROR), Errors(*_NO_ERROR), 0.0)


def _first(wrong: torch.Tensor, count: int) -> str:
    index: Sequence[int] = wrong.nonzero()[0].tolist()
    return f"{count} of {wrong.numel()} elements, the first at {list(index)}"
