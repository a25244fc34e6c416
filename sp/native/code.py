"""FunctionBuilder and Value: the instructions of a function, written with Python's operators; vectors have LANES
numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

LANES = 16  # numbers per vector; LLVM splits it where registers are shorter
I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()
BYTES = {I8: 1, I16: 2, I32: 4, I64: 8, F16: 2, F32: 4}
FLOATS = (F16, F32)


def lanes(kind: Any) -> Any:
    """Return the vector type of a number type."""
    return ir.VectorType(kind, LANES)


def number(kind: Any) -> Any:
    """Return the element type of a vector type, or a number type itself."""
    return kind.element if isinstance(kind, ir.VectorType) else kind


@dataclass(frozen=True, eq=False)
class Value:
    """A number, or a vector of LANES. Operators accept values of the same type, Python numbers, and next to a vector a
    number that is broadcast to all lanes. ``>>`` fills with zeros."""

    code: FunctionBuilder
    raw: Any

    @property
    def kind(self) -> Any:
        """The LLVM type."""
        return self.raw.type

    def _other(self, other: Value | float) -> Any:
        if not isinstance(other, Value):
            kind = number(self.kind)
            constant = float(other) if kind in FLOATS else int(other)
            return ir.Constant(self.kind, [constant] * LANES if isinstance(self.kind, ir.VectorType) else constant)
        wide = isinstance(self.kind, ir.VectorType) and not isinstance(other.kind, ir.VectorType)
        return self.code.splat(other).raw if wide else other.raw

    def _binary(self, whole: str, real: str, other: Value | float) -> Value:
        """Emit the instruction `whole` of integers, or `real` of floats."""
        build = self.code.builder
        if number(self.kind) in FLOATS:
            return Value(self.code, getattr(build, real)(self.raw, self._other(other), flags=self.code.flags))
        return Value(self.code, getattr(build, whole)(self.raw, self._other(other)))

    def __add__(self, other: Value | float) -> Value:
        return self._binary("add", "fadd", other)

    def __sub__(self, other: Value | float) -> Value:
        return self._binary("sub", "fsub", other)

    def __mul__(self, other: Value | float) -> Value:
        return self._binary("mul", "fmul", other)

    def __truediv__(self, other: Value | float) -> Value:
        return self._binary("", "fdiv", other)

    def __floordiv__(self, other: Value | float) -> Value:
        return self._binary("udiv", "", other)

    def __mod__(self, other: Value | float) -> Value:
        return self._binary("urem", "", other)

    def __and__(self, other: Value | float) -> Value:
        return self._binary("and_", "", other)

    def __or__(self, other: Value | float) -> Value:
        return self._binary("or_", "", other)

    def __lshift__(self, other: Value | float) -> Value:
        return self._binary("shl", "", other)

    def __rshift__(self, other: Value | float) -> Value:
        return self._binary("lshr", "", other)

    def below(self, other: Value | float) -> Value:
        """Compare: true where this number is less than the other (signed, or ordered floats, so that NaN compares
        false)."""
        build = self.code.builder
        compare = build.fcmp_ordered if number(self.kind) in FLOATS else build.icmp_signed
        return Value(self.code, compare("<", self.raw, self._other(other)))

    def same(self, other: Value | float) -> Value:
        """Compare: true where two integers are equal."""
        return Value(self.code, self.code.builder.icmp_signed("==", self.raw, self._other(other)))

    def larger(self, other: Value | float) -> Value:
        """Return the larger one of two numbers, lane by lane."""
        other = Value(self.code, self._other(other))
        return self.code.chosen(self.below(other), other, self)

    def _as(self, kind: Any) -> Any:
        return lanes(kind) if isinstance(self.kind, ir.VectorType) else kind

    def widened(self, kind: Any = I32, *, signed: bool = False) -> Value:
        """Extend integers to a wider type."""
        extend = self.code.builder.sext if signed else self.code.builder.zext
        return Value(self.code, extend(self.raw, self._as(kind)))

    def floats(self) -> Value:
        """Convert int32 or float16 numbers to float32."""
        build = self.code.builder
        if number(self.kind) is F16:
            return Value(self.code, build.fpext(self.raw, self._as(F32)))
        # Codes are far below 2**31, where conversion from signed numbers takes one instruction.
        return Value(self.code, build.sitofp(self.raw, self._as(F32)))

    def bits(self, kind: Any) -> Value:
        """Reinterpret the bits as another type."""
        return Value(self.code, self.code.builder.bitcast(self.raw, self._as(kind)))


@dataclass(frozen=True)
class Variable:
    """A mutable place on the stack that a loop writes to; optimised to a register."""

    code: FunctionBuilder
    place: Any

    @property
    def value(self) -> Value:
        """The current value."""
        return Value(self.code, self.code.builder.load(self.place))

    def set(self, value: Value) -> None:
        """Assign a value."""
        self.code.builder.store(value.raw, self.place)


class FunctionBuilder:
    """Builder of one function: emits its instructions in the order of the calls. Addresses are numbers (int64).

    `fused`: True if a product and the sum it goes into may be rounded once, as one instruction."""

    def __init__(self, module: ir.Module, name: str, arguments: int, *, fused: bool = True, result: bool = False):
        kind = ir.FunctionType(I64 if result else ir.VoidType(), [I64] * arguments)
        self.module, self.function = module, ir.Function(module, kind, name)
        self.function.attributes.add("nounwind")
        self.flags = ("contract",) if fused else ()
        # Variables are allocated in a block of their own, so that one made inside a loop takes no new stack in each
        # round.
        self._entry = self.function.append_basic_block("entry")
        self.builder = ir.IRBuilder(self.function.append_basic_block("start"))
        self.arguments = [Value(self, argument) for argument in self.function.args]

    def end(self, result: Value | None = None) -> None:
        """Return from the function; call it once, last."""
        if result is None:
            self.builder.ret_void()
        else:
            self.builder.ret(result.raw)
        ir.IRBuilder(self._entry).branch(self.function.blocks[1])

    def number(self, value: float, kind: Any = I64) -> Value:
        """Return a constant."""
        return Value(self, ir.Constant(kind, value))

    def all_lanes(self, value: float, kind: Any = F32) -> Value:
        """Return a constant in every lane."""
        return Value(self, ir.Constant(lanes(kind), [value] * LANES))

    def counted(self, first: int = 0, step: int = 1) -> Value:
        """Return the int32 vector whose lane j holds ``first + j * step``."""
        return Value(self, ir.Constant(lanes(I32), [first + step * lane for lane in range(LANES)]))

    def splat(self, value: Value) -> Value:
        """Broadcast a number to every lane."""
        undefined = ir.Constant(lanes(value.kind), ir.Undefined)
        first = self.builder.insert_element(undefined, value.raw, ir.Constant(I32, 0))
        return Value(self, self.builder.shuffle_vector(first, undefined, ir.Constant(lanes(I32), [0] * LANES)))

    def pointer(self, address: Value, kind: Any) -> Any:
        """Return an address as an LLVM pointer."""
        return self.builder.inttoptr(address.raw, kind.as_pointer())

    def load(self, kind: Any, address: Value, *, wide: bool = False) -> Value:
        """Load the number at an address, or LANES of them; any alignment will do."""
        kind = lanes(kind) if wide else kind
        return Value(self, self.builder.load(self.pointer(address, kind), align=1))

    def store(self, value: Value, address: Value) -> None:
        """Store a number, or LANES of them, at an address."""
        self.builder.store(value.raw, self.pointer(address, value.kind), align=1)

    def room(self, kind: Any, count: Value | int) -> Value:
        """Allocate stack memory for `count` numbers, freed when the function ends, and return its address."""
        size = ir.Constant(I64, count) if isinstance(count, int) else count.raw
        place = self.builder.alloca(kind, size)
        place.align = 64
        return Value(self, self.builder.ptrtoint(place, I64))

    def variable(self, value: Value) -> Variable:
        """Return a variable with an initial value."""
        place = ir.IRBuilder(self._entry).alloca(value.kind)
        variable = Variable(self, place)
        variable.set(value)
        return variable

    @contextmanager
    def counting(self, start: Value | int, stop: Value | int, step: int = 1) -> Iterator[Value]:
        """Emit the block as a loop over start, start + step, ... below stop."""
        start, stop = (self.number(bound) if isinstance(bound, int) else bound for bound in (start, stop))
        counter = self.variable(start)
        with self.looping() as go_on:
            go_on(counter.value.below(stop))
            index = counter.value
            yield index
            counter.set(index + step)

    @contextmanager
    def looping(self) -> Iterator[Any]:
        """Emit the block as a loop. It must call the function it gets exactly once, with the condition for going on."""
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
        """Emit the block so that it runs only if a condition holds."""
        with self.builder.if_then(condition.raw):
            yield

    def chosen(self, condition: Value, yes: Value, no: Value) -> Value:
        """Select one of two values, or of two in each lane."""
        return Value(self, self.builder.select(condition.raw, yes.raw, no.raw))

    def intrinsic(self, name: str, result: Any, values: Sequence[Value], **flags: Any) -> Value:
        """Call an LLVM intrinsic; it is declared in the module on first use."""
        function = self.module.globals.get(name)
        if function is None:
            function = ir.Function(self.module, ir.FunctionType(result, [value.kind for value in values]), name)
        return Value(self, self.builder.call(function, [value.raw for value in values], **flags))

    def multiplied(self, a: Value, b: Value, onto: Value) -> Value:
        """Return ``a b + onto`` of vectors, rounded once where the CPU has such an instruction."""
        return self.intrinsic(f"llvm.fmuladd.v{LANES}f32", lanes(F32), (a, b, onto))

    def shuffled(self, value: Value, order: Sequence[int]) -> Value:
        """Permute lanes: lane j of the result is lane ``order[j]``."""
        undefined = ir.Constant(value.kind, ir.Undefined)
        return Value(self, self.builder.shuffle_vector(value.raw, undefined, ir.Constant(lanes(I32), list(order))))

    def first(self, value: Value) -> Value:
        """Return lane 0."""
        return Value(self, self.builder.extract_element(value.raw, ir.Constant(I32, 0)))

    def total(self, value: Value) -> Value:
        """Return the sum of all lanes, in any order."""
        zero = self.number(0.0, F32)
        return self.intrinsic(f"llvm.vector.reduce.fadd.v{LANES}f32", F32, (zero, value), fastmath=("reassoc",))

    def largest(self, value: Value) -> Value:
        """Return the largest of all lanes."""
        return self.intrinsic(f"llvm.vector.reduce.fmax.v{LANES}f32", F32, (value,))

    def root(self, value: Value) -> Value:
        """Return the square root of a float32."""
        return self.intrinsic("llvm.sqrt.f32", F32, (value,))

    def run(self, address: Value, *values: Value) -> None:
        """Call a function at an address, with integer arguments and no result."""
        kind = ir.FunctionType(ir.VoidType(), [I64] * len(values))
        self.builder.call(self.builder.inttoptr(address.raw, kind.as_pointer()), [value.raw for value in values])
