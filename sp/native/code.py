"""Code and Value: instructions of a function, written with Python's operators; vectors are of LANES numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

LANES = 16  # numbers of a vector; LLVM cuts it in parts where registers are shorter
I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()
BYTES = {I8: 1, I16: 2, I32: 4, I64: 8, F16: 2, F32: 4}
FLOATS = (F16, F32)


def lanes(kind: Any) -> Any:
    """The type of a vector of numbers."""
    return ir.VectorType(kind, LANES)


def number(kind: Any) -> Any:
    """The type of the numbers of a vector, or of a number itself."""
    return kind.element if isinstance(kind, ir.VectorType) else kind


@dataclass(frozen=True, eq=False)
class Value:
    """A number, or LANES of them. Operators take values of the same kind, Python numbers, and beside a vector a number
    that stands for all lanes. ``>>`` fills with zeros."""

    code: Code
    raw: Any

    @property
    def kind(self) -> Any:
        """LLVM's type."""
        return self.raw.type

    def _other(self, other: Value | float) -> Any:
        if not isinstance(other, Value):
            kind = number(self.kind)
            held = float(other) if kind in FLOATS else int(other)
            return ir.Constant(self.kind, [held] * LANES if isinstance(self.kind, ir.VectorType) else held)
        wide = isinstance(self.kind, ir.VectorType) and not isinstance(other.kind, ir.VectorType)
        return self.code.splat(other).raw if wide else other.raw

    def _made(self, whole: str, real: str, other: Value | float) -> Value:
        build = self.code.builder
        if number(self.kind) in FLOATS:
            return Value(self.code, getattr(build, real)(self.raw, self._other(other), flags=self.code.flags))
        return Value(self.code, getattr(build, whole)(self.raw, self._other(other)))

    def __add__(self, other: Value | float) -> Value:
        return self._made("add", "fadd", other)

    def __sub__(self, other: Value | float) -> Value:
        return self._made("sub", "fsub", other)

    def __mul__(self, other: Value | float) -> Value:
        return self._made("mul", "fmul", other)

    def __truediv__(self, other: Value | float) -> Value:
        return self._made("", "fdiv", other)

    def __floordiv__(self, other: Value | float) -> Value:
        return self._made("udiv", "", other)

    def __mod__(self, other: Value | float) -> Value:
        return self._made("urem", "", other)

    def __and__(self, other: Value | float) -> Value:
        return self._made("and_", "", other)

    def __or__(self, other: Value | float) -> Value:
        return self._made("or_", "", other)

    def __lshift__(self, other: Value | float) -> Value:
        return self._made("shl", "", other)

    def __rshift__(self, other: Value | float) -> Value:
        return self._made("lshr", "", other)

    def below(self, other: Value | float) -> Value:
        """Whether a number is less than another."""
        build = self.code.builder
        compare = build.fcmp_ordered if number(self.kind) in FLOATS else build.icmp_signed
        return Value(self.code, compare("<", self.raw, self._other(other)))

    def same(self, other: Value | float) -> Value:
        """Whether two whole numbers are equal."""
        return Value(self.code, self.code.builder.icmp_signed("==", self.raw, self._other(other)))

    def larger(self, other: Value | float) -> Value:
        """The larger one of two."""
        other = Value(self.code, self._other(other))
        return self.code.chosen(self.below(other), other, self)

    def _as(self, kind: Any) -> Any:
        return lanes(kind) if isinstance(self.kind, ir.VectorType) else kind

    def widened(self, kind: Any = I32, *, signed: bool = False) -> Value:
        """Whole numbers in a wider type."""
        extend = self.code.builder.sext if signed else self.code.builder.zext
        return Value(self.code, extend(self.raw, self._as(kind)))

    def floats(self) -> Value:
        """Float32 of int32 or half-precision numbers."""
        build = self.code.builder
        if number(self.kind) is F16:
            return Value(self.code, build.fpext(self.raw, self._as(F32)))
        # Codes are far below 2**31, where conversion from signed numbers takes one instruction.
        return Value(self.code, build.sitofp(self.raw, self._as(F32)))

    def bits(self, kind: Any) -> Value:
        """The same bits as another type."""
        return Value(self.code, self.code.builder.bitcast(self.raw, self._as(kind)))


@dataclass(frozen=True)
class Variable:
    """A place that a loop writes to; a register once it is compiled."""

    code: Code
    place: Any

    @property
    def value(self) -> Value:
        """What it holds."""
        return Value(self.code, self.code.builder.load(self.place))

    def set(self, value: Value) -> None:
        """Let it hold another value."""
        self.code.builder.store(value.raw, self.place)


class Code:
    """Instructions of one function, in the order in which they are asked for. Addresses are numbers (int64).

    `fused`: whether a product and the sum it goes into may be rounded once, as one instruction.
    """

    def __init__(self, module: ir.Module, name: str, arguments: int, *, fused: bool = True, result: bool = False):
        kind = ir.FunctionType(I64 if result else ir.VoidType(), [I64] * arguments)
        self.module, self.function = module, ir.Function(module, kind, name)
        self.function.attributes.add("nounwind")
        self.flags = ("contract",) if fused else ()
        self._entry = self.function.append_basic_block("entry")
        self.builder = ir.IRBuilder(self.function.append_basic_block("start"))
        self.arguments = [Value(self, argument) for argument in self.function.args]

    def end(self, result: Value | None = None) -> None:
        """Leave the function."""
        if result is None:
            self.builder.ret_void()
        else:
            self.builder.ret(result.raw)
        ir.IRBuilder(self._entry).branch(self.function.blocks[1])

    def number(self, value: float, kind: Any = I64) -> Value:
        """A constant."""
        return Value(self, ir.Constant(kind, value))

    def all_lanes(self, value: float, kind: Any = F32) -> Value:
        """A constant in every lane."""
        return Value(self, ir.Constant(lanes(kind), [value] * LANES))

    def counted(self, first: int = 0, step: int = 1) -> Value:
        """Lane j holds ``first + j * step``, int32."""
        return Value(self, ir.Constant(lanes(I32), [first + step * lane for lane in range(LANES)]))

    def splat(self, value: Value) -> Value:
        """A number in every lane."""
        none = ir.Constant(lanes(value.kind), ir.Undefined)
        one = self.builder.insert_element(none, value.raw, ir.Constant(I32, 0))
        return Value(self, self.builder.shuffle_vector(one, none, ir.Constant(lanes(I32), [0] * LANES)))

    def pointer(self, address: Value, kind: Any) -> Any:
        """LLVM's pointer of an address."""
        return self.builder.inttoptr(address.raw, kind.as_pointer())

    def load(self, kind: Any, address: Value, *, wide: bool = False) -> Value:
        """The number at an address, or LANES of them; of any alignment."""
        kind = lanes(kind) if wide else kind
        return Value(self, self.builder.load(self.pointer(address, kind), align=1))

    def store(self, value: Value, address: Value) -> None:
        """Write a number, or LANES of them, to an address."""
        self.builder.store(value.raw, self.pointer(address, value.kind), align=1)

    def room(self, kind: Any, count: Value | int) -> Value:
        """The address of memory for so many numbers until the function ends."""
        size = ir.Constant(I64, count) if isinstance(count, int) else count.raw
        place = self.builder.alloca(kind, size)
        place.align = 64
        return Value(self, self.builder.ptrtoint(place, I64))

    def variable(self, value: Value) -> Variable:
        """A variable that holds a value."""
        place = ir.IRBuilder(self._entry).alloca(value.kind)
        made = Variable(self, place)
        made.set(value)
        return made

    @contextmanager
    def counting(self, start: Value | int, stop: Value | int, step: int = 1) -> Iterator[Value]:
        """Inside, what happens for start, start + step and so on below stop."""
        start, stop = (self.number(one) if isinstance(one, int) else one for one in (start, stop))
        at = self.variable(start)
        with self.looping() as go_on:
            go_on(at.value.below(stop))
            index = at.value
            yield index
            at.set(index + step)

    @contextmanager
    def looping(self) -> Iterator[Any]:
        """Inside, what is repeated; it calls what it is given with whether to go on, once."""
        top, behind = self.function.append_basic_block("top"), self.function.append_basic_block("behind")
        self.builder.branch(top)
        self.builder.position_at_end(top)

        def go_on(condition: Value) -> None:
            inside = self.function.append_basic_block("inside")
            self.builder.cbranch(condition.raw, inside, behind)
            self.builder.position_at_end(inside)

        yield go_on
        self.builder.branch(top)
        self.builder.position_at_end(behind)

    @contextmanager
    def where(self, condition: Value) -> Iterator[None]:
        """Inside, what happens only if a condition holds."""
        with self.builder.if_then(condition.raw):
            yield

    def chosen(self, condition: Value, yes: Value, no: Value) -> Value:
        """One of two values, or of two in each lane."""
        return Value(self, self.builder.select(condition.raw, yes.raw, no.raw))

    def intrinsic(self, name: str, result: Any, values: Sequence[Value], **how: Any) -> Value:
        """What one of LLVM's own functions gives for values."""
        found = self.module.globals.get(name)
        if found is None:
            found = ir.Function(self.module, ir.FunctionType(result, [one.kind for one in values]), name)
        return Value(self, self.builder.call(found, [one.raw for one in values], **how))

    def multiplied(self, a: Value, b: Value, onto: Value) -> Value:
        """``a b + onto`` of vectors, rounded once where the CPU has an instruction for it."""
        return self.intrinsic(f"llvm.fmuladd.v{LANES}f32", lanes(F32), (a, b, onto))

    def shuffled(self, value: Value, order: Sequence[int]) -> Value:
        """Lane j holds what lane ``order[j]`` held."""
        none = ir.Constant(value.kind, ir.Undefined)
        return Value(self, self.builder.shuffle_vector(value.raw, none, ir.Constant(lanes(I32), list(order))))

    def first(self, value: Value) -> Value:
        """What lane 0 holds."""
        return Value(self, self.builder.extract_element(value.raw, ir.Constant(I32, 0)))

    def total(self, value: Value) -> Value:
        """The sum of all lanes."""
        zero = self.number(0.0, F32)
        return self.intrinsic(f"llvm.vector.reduce.fadd.v{LANES}f32", F32, (zero, value), fastmath=("reassoc",))

    def largest(self, value: Value) -> Value:
        """The largest one of all lanes."""
        return self.intrinsic(f"llvm.vector.reduce.fmax.v{LANES}f32", F32, (value,))

    def root(self, value: Value) -> Value:
        """The square root of a float32."""
        return self.intrinsic("llvm.sqrt.f32", F32, (value,))

    def run(self, address: Value, *values: Value) -> None:
        """Call a function of whole numbers at an address, which gives nothing back."""
        kind = ir.FunctionType(ir.VoidType(), [I64] * len(values))
        self.builder.call(self.builder.inttoptr(address.raw, kind.as_pointer()), [one.raw for one in values])
