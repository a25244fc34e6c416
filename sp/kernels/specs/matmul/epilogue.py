"""Epilogue: what a matrix product does with its sums. ``cuda/gemm/epilogue.cuh`` has the same names and numbers."""

from __future__ import annotations

from enum import IntEnum


class Epilogue(IntEnum):
    """Value of the define EPILOGUE of every kernel that multiplies by packed weights. `STORE`: to bf16. In the kernels
    for few tokens to float32 where the output given is that. `ADD`: to float32, added to what is there. `SWIGLU`:
    ``silu(gate) * up`` of two products, to bf16. `STORE_F32`: to float32, in kernels that are compiled for one type of
    output."""

    STORE = 0
    ADD = 1
    SWIGLU = 2
    STORE_F32 = 3

    def typed(self, wide: bool) -> Epilogue:
        """As kernels take it that are compiled for one type of output; `wide`: that is float32.

        >>> Epilogue.STORE.typed(True).name, Epilogue.ADD.typed(True).name
        ('STORE_F32', 'ADD')
        """
        return Epilogue.STORE_F32 if self is Epilogue.STORE and wide else self


STORE, ADD, SWIGLU, STORE_F32 = Epilogue
