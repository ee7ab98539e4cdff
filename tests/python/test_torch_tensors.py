"""What the shim and Python say of tensors: the same, but for the numbers of types."""

from __future__ import annotations

import gc
import weakref
from array import array
from collections.abc import Callable
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


def samples_of(tensor: Any) -> tuple[bytes, bytes]:
    """Addresses of its numbers of 32 bits, and what they hold."""
    words = [tensor.data_ptr() + 4 * i for i in range(tensor.numel())]
    return array("Q", words).tobytes(), bytes(tensor.numpy().tobytes())


@pytest.mark.parametrize("where", ["library", "Python"])
def test_a_watch(shim: Any, where: str) -> None:
    library = where == "library"
    states, places = (shim.states, shim.places) if library else (tensors._states, tensors._places)
    kind = shim.TensorWatch if library else tensors._TensorWatch

    def change_shape(some: list[Any]) -> None:
        some[0].data = some[0].data.t()

    changes: list[Callable[[list[Any]], Any]] = [
        lambda some: some[0].add_(1),
        change_shape,
        lambda some: setattr(some[0], "data", torch.randn(3, 5)),
        lambda some: some[1].requires_grad_(True),
        lambda some: some[3].requires_grad_(True),
        lambda some: setattr(some[3], "data", torch.randn(6)),
        lambda some: some[2].data.__setitem__(5, 7.0),  # what only the words tell
    ]
    for change in (None, *changes):
        parameter = torch.nn.Parameter(torch.randn(4), requires_grad=False)
        some = [torch.randn(3, 5), parameter, torch.randn(6), torch.randn(6)]
        counted, others = some[:3], some[3:]
        watch = kind(counted, states(counted), others, places(others), *samples_of(some[2]))
        assert watch.unchanged() and watch.unchanged()
        others[0].add_(1)  # changes of these are not counted
        assert watch.unchanged()
        if change is not None:
            change(some)
            assert not watch.unchanged() and not watch.unchanged()
    assert kind([], b"", [], b"", b"", b"").unchanged()


def test_a_watch_of_something_else(shim: Any) -> None:
    tensor = torch.randn(3)
    states, places = shim.states([tensor]), shim.places([tensor])
    for wrong in ((tensor, states), ([1], states), ([tensor], None)):
        with pytest.raises(TypeError):
            shim.TensorWatch(*wrong, [], b"", b"", b"")
    for given in ((states[:-8], b""), (states + states, b""), (b"", b""), (states, b"1234")):
        with pytest.raises(ValueError, match=r"words of each of the tensors|address for each word"):
            shim.TensorWatch([tensor], given[0], [], b"", b"", given[1])
    with pytest.raises(ValueError, match="words of each"):
        shim.TensorWatch([], b"", [tensor], states, b"", b"")
    assert shim.TensorWatch([tensor], states, [tensor], places, b"", b"").unchanged()


def test_a_watch_is_collected(shim: Any) -> None:
    tensor = torch.nn.Parameter(torch.randn(3))
    tensor.watch = shim.TensorWatch([tensor], shim.states([tensor]), [], b"", b"", b"")  # a cycle
    alive = weakref.ref(tensor)
    del tensor
    gc.collect()
    assert alive() is None


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


@pytest.mark.parametrize("where", ["library", "Python"])
def test_ready(shim: Any, where: str) -> None:
    ready, places = (shim.ready, shim.places) if where == "library" else (tensors._ready, tensors._places)
    dense = [tensor.detach().contiguous() for tensor in TENSORS[:2]]
    made, at, given = ready(TENSORS, places(dense), False)
    assert at == places(made) and given == places(TENSORS)
    assert [one.shape for one in made] == [one.shape for one in dense]
    assert ready([], b"", True) == ([], b"", b"")
    assert ready(dense, places(dense), True) is not None
    for gaps in (TENSORS[1], TENSORS[2]):
        assert ready([*dense, gaps], places(dense), True) is None
    opposite = torch.randn(3, dtype=torch.complex64).conj().imag
    assert opposite.is_neg() and ready([*dense, opposite], places(dense), False) is None


def test_what_is_no_list_of_tensors(shim: Any) -> None:
    for wrong in ([1], TENSORS[0], [None]):
        for function in (shim.places, shim.states, lambda given: shim.ready(given, b"", False)):
            with pytest.raises(TypeError, match="list of tensors"):
                function(wrong)
    with pytest.raises(TypeError, match="bytes"):
        shim.same_states(TENSORS, None)
    with pytest.raises(TypeError, match="places"):
        shim.empty(None)
    for cut in (1, 2, 3):
        with pytest.raises(ValueError, match="too early"):
            shim.empty(shim.places(TENSORS[:1])[: 8 * cut])
        with pytest.raises(ValueError, match="too early"):
            shim.ready([], shim.places(TENSORS[:1])[: 8 * cut], False)
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
