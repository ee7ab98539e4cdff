"""The C ABI of thresher/pti.h from another language: ctypes, with nothing but the header's declarations."""

from __future__ import annotations

import ctypes as c
from typing import Any

import pytest

torch = pytest.importorskip("torch")
_engine = pytest.importorskip("thresher._engine")

KERNEL, COPY, MEMORY, RUNTIME = 1, 2, 3, 4
OK, END = 0, 1


class Header(c.Structure):
    _fields_ = (("struct_size", c.c_uint32), ("kind", c.c_uint32))


class Kernel(c.Structure):
    _fields_ = (
        ("header", Header),
        ("event", c.c_uint32),
        ("thread", c.c_uint32),
        ("queued_ns", c.c_int64),
        ("submitted_ns", c.c_int64),
        ("start_ns", c.c_int64),
        ("end_ns", c.c_int64),
        ("correlation", c.c_uint64),
        ("execution", c.c_uint64),
        ("external_id", c.c_uint32),
        ("user_id", c.c_uint32),
        ("device", c.c_int32),
        ("stream", c.c_uint32),
        ("flops", c.c_double),
        ("bytes", c.c_double),
        ("name", c.c_char_p),
        ("shapes", c.c_char_p),
        ("dtypes", c.c_char_p),
        ("module", c.c_char_p),
        ("source", c.c_char_p),
    )


Requested = c.CFUNCTYPE(None, c.POINTER(c.c_void_p), c.POINTER(c.c_size_t), c.c_void_p)
Completed = c.CFUNCTYPE(None, c.c_void_p, c.c_size_t, c.c_size_t, c.c_void_p)


class Api(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("version", c.c_uint32),
        ("register_callbacks", c.CFUNCTYPE(c.c_int, Requested, Completed, c.c_void_p)),
        ("enable", c.CFUNCTYPE(c.c_int, c.c_uint32)),
        ("disable", c.CFUNCTYPE(c.c_int, c.c_uint32)),
        ("flush_all", c.CFUNCTYPE(c.c_int)),
        ("next_record", c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_size_t, c.POINTER(c.c_void_p))),
        ("dropped", c.CFUNCTYPE(c.c_int, c.POINTER(c.c_uint64))),
        ("push_external_id", c.CFUNCTYPE(c.c_int, c.c_uint32, c.c_uint32)),
        ("pop_external_id", c.CFUNCTYPE(c.c_int, c.c_uint32)),
        ("clear_external_ids", c.CFUNCTYPE(c.c_int)),
        ("set_memory_callback", c.c_void_p),
        ("timestamp_ns", c.CFUNCTYPE(c.c_int64)),
        ("event_name", c.CFUNCTYPE(c.c_char_p, c.c_uint32)),
        ("result_name", c.CFUNCTYPE(c.c_char_p, c.c_uint32)),
        ("device_properties", c.CFUNCTYPE(c.c_char_p)),
    )


def load() -> Any:
    """The functions, by the exported symbol, as a tool outside this package would get them."""
    library = c.CDLL(_engine.__file__)
    library.thresher_pti_get_api.restype = c.POINTER(Api)
    library.thresher_pti_get_api.argtypes = [c.c_uint32]
    return library.thresher_pti_get_api(1).contents


def test_a_tool_in_python_receives_kernels() -> None:
    api = load()
    assert api.struct_size == c.sizeof(Api)
    assert c.addressof(api) == _engine.pti_api(1)
    assert _engine.pti_api(99) == 0
    buffers: list[Any] = []
    kernels: list[tuple[str, str, int, int]] = []

    @Requested
    def give(buffer: Any, size: Any, _: Any) -> None:
        buffers.append(c.create_string_buffer(1 << 16))
        buffer[0] = c.addressof(buffers[-1])
        size[0] = 1 << 16

    @Completed
    def take(buffer: int, _size: int, valid: int, _: Any) -> None:
        record = c.c_void_p()
        while api.next_record(buffer, valid, c.byref(record)) == OK:
            kernel = c.cast(record, c.POINTER(Kernel)).contents
            assert kernel.header.kind in (KERNEL, COPY)
            kernels.append((kernel.name.decode(), kernel.shapes.decode(), kernel.external_id, kernel.end_ns))

    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU()).eval()
    compiled = torch.compile(model, backend="thresher")
    x = torch.randn(4, 8)
    with torch.no_grad():
        compiled(x)
        assert api.register_callbacks(give, take, None) == OK
        assert api.enable(KERNEL) == OK
        try:
            api.push_external_id(0, 11)
            for _ in range(50):
                compiled(x)
            api.pop_external_id(0)
            assert api.flush_all() == OK
        finally:
            assert api.disable(KERNEL) == OK
            assert api.register_callbacks(Requested(0), Completed(0), None) == OK
        compiled(x)
    assert len(kernels) == 50
    name, shapes, external, end_ns = kernels[0]
    assert name == f"linear fp32 {_engine.isa()}"
    assert shapes.startswith("4x8, 16x8")
    assert external == 11
    assert end_ns < api.timestamp_ns()
    assert b'"isa"' in api.device_properties()
