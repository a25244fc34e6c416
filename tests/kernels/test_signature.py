"""Values that a declared argument accepts and refuses, without a device."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from sp.errors import DeviceError
from sp.kernels.launch import KernelSpec
from sp.kernels.signature import checker


class Fake:
    """A stand-in for a device array over NumPy's own bookkeeping."""

    def __init__(self, array, address=1 << 20, device=0):
        self.array = array
        self.data = SimpleNamespace(ptr=address, device_id=device)

    def __getattr__(self, name):
        return getattr(self.array, name)


@pytest.mark.parametrize(
    ("declaration", "value", "kind"),
    [
        ("i32 n", 7, np.int32),
        ("i64 n", np.int32(7), np.int64),
        ("u32 n", 2**32 - 1, np.uint32),
        ("u64 n", 2**64 - 1, np.uint64),
        ("f32 eps", 0.5, np.float32),
        ("f32 eps", 2, np.float32),
        ("f32 eps", np.float64(0.5), np.float32),
    ],
)
def test_scalars_are_cast(declaration, value, kind):
    cast = checker("k", declaration)(value, 0)
    assert type(cast) is kind
    assert cast == value


@pytest.mark.parametrize(
    ("declaration", "value"),
    [
        ("i32 n", 2**31),
        ("u32 n", -1),
        ("u64 n", 2**64),
        ("i32 n", 1.0),
        ("i64 n", None),
        ("f32 eps", "1"),
        ("f32 eps", None),
        ("const f32* x", None),
        ("const f32* x", 0),
        ("const f32* x", np.zeros(4, np.float32)),
        ("const f32* x", Fake(np.zeros(4))),
        ("f16* x", Fake(np.zeros(4, np.uint16))),
        ("u16* x", Fake(np.zeros(4, np.float16))),
        ("f32* x", Fake(np.zeros((4, 4), np.float32).T[1:])),
        ("f32* x", Fake(np.zeros((4, 4), np.float32)[:, :2])),
        ("strided f32* x", Fake(np.zeros((4, 4), np.float32)[:, ::2])),
        ("f32* x", Fake(np.zeros(4, np.float32), address=8)),
        ("i32* x", Fake(np.zeros(4, np.int32), address=2)),
        ("f32* x", Fake(np.zeros(4, np.float32), device=1)),
        ("map m", np.zeros(15, np.uint64)),
        ("map m", None),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name(declaration, value):
    name = declaration.split()[-1]
    with pytest.raises(DeviceError, match=f"kernel k, argument {name}: "):
        checker("k", declaration)(value, 0)


@pytest.mark.parametrize(
    ("declaration", "value"),
    [
        ("const f32* x", Fake(np.zeros((2, 3), np.float32))),
        ("f16* x", Fake(np.zeros(4, np.float16))),
        ("i32* lengths", Fake(np.zeros(4, np.int32), address=4)),
        ("f32* x", Fake(np.zeros((0, 4), np.float32).T, address=0)),
        ("const strided f32* x", Fake(np.zeros((4, 4), np.float32)[::2, :2])),
        ("strided const u16*? x", Fake(np.zeros((4, 2, 8), np.uint16)[:, :, :5])),
        ("map m", np.zeros(1, np.dtype([("words", "<u8", (16,))]))),
    ],
)
def test_arguments_that_fit_are_passed_on(declaration, value):
    assert checker("k", declaration)(value, 0) is value


def test_none_is_a_null_pointer_where_declared():
    null = checker("k", "const f32*? bias")(None, 0)
    assert null == 0
    assert null.dtype == np.uint64


@pytest.mark.parametrize("declaration", ["float x", "f32*x", "f16 half", "map* m", "i32", "volatile f32* x", "f32 * x"])
def test_unreadable_declarations_fail_where_they_stand(declaration):
    with pytest.raises(ValueError, match="cannot read"):
        KernelSpec(source="k.cu", entry="k", args=(declaration,), threads=1)


def test_arches_are_one_of_two():
    with pytest.raises(ValueError, match="arches"):
        KernelSpec(source="k.cu", entry="k", args=(), threads=1, arches="90")
