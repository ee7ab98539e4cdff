"""What the shim and Python say of tensors: the same, but for the numbers of types."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from thresher.torch_shim import library, tensors  # noqa: E402

TENSORS = [
    torch.randn(3, 5),
    torch.randn(5, 3).t(),
    torch.randn(6, 5)[::2],
    torch.tensor(2.5),
    torch.zeros(0, 4),
    torch.ones(2, 1, 3, dtype=torch.int64).expand(2, 4, 3),
    torch.randn(4, dtype=torch.bfloat16),
    torch.nn.Parameter(torch.randn(2, 2)),
]


@pytest.fixture(scope="module")
def shim() -> Any:
    try:
        return library.find(torch.__version__, cxx11_abi=torch._C._GLIBCXX_USE_CXX11_ABI)
    except library.ShimError as error:
        pytest.skip(str(error))


def words(places: bytes) -> list[int]:
    """Without the numbers of types, which stand above the lowest 16 bits of the word after each address."""
    found = list(array("q", places))
    start = 0
    while start < len(found):
        found[start + 1] &= 0xFFFF
        start += 2 + 2 * (found[start + 1] & 0xFF)
    return found


def test_places(shim: Any) -> None:
    assert words(shim.places(TENSORS)) == words(tensors._places(TENSORS))
    first, number, *rest = array("q", shim.places(TENSORS[1:2]))
    assert (first, number & 0xFF, rest) == (TENSORS[1].data_ptr(), 2, [3, 5, 1, 3])


@pytest.mark.parametrize("where", ["library", "Python"])
def test_states(shim: Any, where: str) -> None:
    states, same = (shim.states, shim.same_states) if where == "library" else (tensors._states, tensors._same_states)
    some = [torch.randn(3, 5), torch.randn(4), torch.randn(2, 2)]
    with torch.inference_mode():
        some.append(torch.randn(2))
    before = states(some)
    assert same(some, before)
    some[1].add_(1)
    assert not same(some, before) and same(some, states(some))
    before = states(some)
    for changed in (some[:-1], [*some, some[0]], [some[0].t(), *some[1:]], [some[0].clone(), *some[1:]], some[::-1]):
        assert not same(changed, before)
    some[2].requires_grad_(True)
    assert not same(some, before)


@pytest.mark.parametrize("where", ["library", "Python"])
def test_empty(shim: Any, where: str) -> None:
    empty, places = (shim.empty, shim.places) if where == "library" else (tensors._empty, tensors._places)
    dense = [tensor.detach().contiguous() for tensor in TENSORS]
    made, at = empty(places(dense))
    assert at == places(made)
    for one, like in zip(made, dense, strict=True):
        assert one.shape == like.shape and one.dtype == like.dtype and one.stride() == like.stride()
        assert one.numel() == 0 or one.data_ptr() != like.data_ptr()
        one.zero_()
    assert empty(b"") == ([], b"")
    with torch.inference_mode():
        assert all(one.is_inference() for one in empty(places(dense))[0])


def test_what_is_no_list_of_tensors(shim: Any) -> None:
    for wrong in ([1], TENSORS[0], [None]):
        for function in (shim.places, shim.states):
            with pytest.raises(TypeError, match="list of tensors"):
                function(wrong)
    with pytest.raises(TypeError, match="bytes"):
        shim.same_states(TENSORS, None)
    with pytest.raises(TypeError, match="places"):
        shim.empty(None)
    for cut in (1, 2, 3):
        with pytest.raises(ValueError, match="too early"):
            shim.empty(shim.places(TENSORS[:1])[: 8 * cut])
    with pytest.raises(RuntimeError):
        shim.places([torch.randn(3, 3).to_sparse()])


def test_forms_tell_settings_apart(shim: Any) -> None:
    given = [torch.randn(2, 3), None]
    seen = {shim.forms(given)}
    with torch.no_grad():
        seen.add(shim.forms(given))
        with torch.inference_mode():
            seen.add(shim.forms(given))
        with torch.autocast("cpu"):
            seen.add(shim.forms(given))
        torch.use_deterministic_algorithms(True)
        seen.add(shim.forms(given))
        torch.use_deterministic_algorithms(False)
        torch.set_default_dtype(torch.float64)
        seen.add(shim.forms(given))
        torch.set_default_dtype(torch.float32)
        assert len(seen) == 6 and None not in seen
        seen |= {shim.forms([given[0]]), shim.forms([given[0], given[0]]), shim.forms([given[0], given[0].clone()])}
        assert len(seen) == 9
        with torch.device("cpu"):
            assert shim.forms(given) is None  # a mode
    for other in (1, True, [given[0]], torch.nn.Parameter(given[0]), torch.randn(2).to_sparse()):
        assert shim.forms([given[0], other]) is None
