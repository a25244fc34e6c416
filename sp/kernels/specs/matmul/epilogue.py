"""Epilogue of a matrix product. ``cuda/gemm/epilogue.cuh`` has the same names and numbers."""

from __future__ import annotations

from enum import IntEnum


class Epilogue(IntEnum):
    """Value of the define EPILOGUE of every kernel that multiplies by packed weights. `STORE`: to bf16, in the small_m
    kernels to float32 if the output is. `ADD`: to float32, added to its old values. `SWIGLU`: ``silu(gate) * up`` of
    two products, to bf16. `STORE_F32`: to float32, in kernels that are compiled for one output type."""

    STORE = 0
    ADD = 1
    SWIGLU = 2
    STORE_F32 = 3

    def typed(self, wide: bool) -> Epilogue:
        """Return the epilogue of kernels that are compiled for one output type; `wide`: the type is float32.

        >>> Epilogue.STORE.typed(True).name, Epilogue.ADD.typed(True).name
        ('STORE_F32', 'ADD')
        """
        return Epilogue.STORE_F32 if self is Epilogue.STORE and wide else self


STORE, ADD, SWIGLU, STORE_F32 = Epilogue
