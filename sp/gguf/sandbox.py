"""A Jinja2 environment for chat templates from model files, which are untrusted.

Jinja's immutable sandbox keeps a template away from Python's internals (CVE-2024-34359 and CVE-2026-5760 were templates
rendered without it) but does not limit time and memory: two nested loops or twenty doublings of a string stall it. Here
every operation that reads or creates data draws on one budget. Calls, arithmetic, filters and tests use the sandbox's
hooks. For the rest the syntax tree is rewritten: loops, macros, output, slices, ``~``, comparisons and dict keys
become, or pass through, filters whose names no template can spell; a pass through a loop or a macro costs by its size.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from jinja2 import Environment, Undefined, nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateAssertionError, TemplateError
from jinja2.ext import Extension
from jinja2.filters import do_indent
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

CHARS_PER_UNIT = 64  # a step of work and the handling of 64 characters take about the same time: a microsecond
MAX_INT_BITS = 4096

NUMBERS = (int, float)
ATOMS = (int, float, type(None), Undefined)
LEAVES = (*ATOMS, Namespace)
PLAIN = (*ATOMS, str, list, tuple, dict, range)
_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))


class Budget:
    """Work that a template may still do, in units of one step or `CHARS_PER_UNIT` characters. It bounds time and memory
    alike: nothing is built before its size is paid for, and containers pay for all their contents each time they are
    made, compared or printed, so that sharing cannot make a small container large."""

    def __init__(self, units: int) -> None:
        self.left = units

    def pay(self, units: int) -> None:
        """Take `units`; SecurityError if fewer are left."""
        self.left -= units
        if self.left < 0:
            raise SecurityError("it does more work than any chat template needs")

    def pay_for(self, value: Any, leaves: tuple[type, ...] = LEAVES) -> Any:
        """Take the cost of `value` with all its contents, and return it."""
        pending = [value]
        while pending:
            item = pending.pop()
            kind = type(item)
            if isinstance(item, str):
                self.pay(1 + len(item) // CHARS_PER_UNIT)
            elif kind is range:
                self.pay(1 + len(item))
            elif kind in (list, tuple, *_VIEWS):
                self.pay(1 + len(item))
                pending += item
            elif kind is dict:
                self.pay(1 + 2 * len(item))
                pending += item.keys()
                pending += item.values()
            elif isinstance(item, int) and item.bit_length() > MAX_INT_BITS:
                raise SecurityError(f"an integer has more than {MAX_INT_BITS} bits")
            elif item is not value and not isinstance(item, leaves):
                raise SecurityError(f"a list or dict contains a {kind.__name__}")
            else:
                self.pay(1)
        return value

    def pay_for_text(self, value: Any) -> Any:
        """Pay for a value about to be printed: only plain values have a bounded text."""
        if not isinstance(value, PLAIN):
            raise SecurityError(f"it converts a {type(value).__name__} to text")
        return self.pay_for(value, ATOMS)


WIDEST = 1000  # most characters a field may be padded to, and most digits after its point
LONGEST_DATE = 100
_DIRECTIVES = re.compile(r"(?:[^%]|%-?[A-Za-z%])*")


class BoundedFormatter(SandboxedFormatter):
    """`str.format` that looks up only allowed attributes, pays for its output, and pads within `WIDEST`."""

    def __init__(self, environment: BoundedEnvironment) -> None:
        super().__init__(environment)
        self._budget = environment.budget

    def convert_field(self, value: Any, conversion: Any) -> Any:
        """Convert by ``!r`` or ``!s``; only plain values."""
        self._budget.pay_for_text(value)
        return super().convert_field(value, conversion)

    def format_field(self, value: Any, format_spec: str) -> str:
        """Format one field, its specification already filled in; SecurityError if it is too wide."""
        self._budget.pay_for_text(value)
        numbers = re.findall(r"\d+", format_spec)
        if len(format_spec) > LONGEST_DATE or any(len(number) > 4 or int(number) > WIDEST for number in numbers):
            raise SecurityError(f"a format is wider than {WIDEST} characters")
        return str(self._budget.pay_for(super().format_field(value, format_spec)))


def strftime_now(directives: str) -> str:
    """Return the local time as `datetime.strftime` formats it; widths, which the C library may accept, are rejected."""
    if not isinstance(directives, str) or len(directives) > LONGEST_DATE or not _DIRECTIVES.fullmatch(directives):
        raise SecurityError("strftime_now takes up to 100 characters with plain directives such as %Y-%m-%d")
    return datetime.now().strftime(directives)


LOOP, PAY, EMIT, TOUCH, CONCAT, SLICE = "sp loop", "sp pay", "sp emit", "sp touch", "sp concat", "sp slice"
NODES_PER_UNIT = 2  # nodes executed in a microsecond


class Generation(Extension):
    """``{% generation %}`` of transformers' chat templates: marks text to train on, which is printed unchanged."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse the block as a scope of its own: as in transformers, variables set inside are not visible after it."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class Metering(NodeTransformer):
    """Rewrites a syntax tree, once and from its leaves up, so that its operations pay."""

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        """Return the node or its replacement."""
        size = _size(node) if isinstance(node, nodes.For | nodes.Macro) else 0  # counted before nodes are added below
        units = nodes.Const(1 + size // NODES_PER_UNIT, lineno=node.lineno)
        self.generic_visit(node)
        if isinstance(node, nodes.For):
            assert isinstance(node.iter, nodes.Expr), type(node.iter)
            node.iter = _filtered(node.iter, LOOP, [units])
        elif isinstance(node, nodes.Macro):
            node.body.insert(0, nodes.Output([_filtered(units, PAY)], lineno=node.lineno))
        elif isinstance(node, nodes.Output):
            plain = (
                nodes.Const(n.data, lineno=n.lineno) if isinstance(n, nodes.TemplateData) else n for n in node.nodes
            )
            node.nodes = [_filtered(text, EMIT) for text in plain]
        elif isinstance(node, nodes.FilterBlock):
            node.filter = _filtered(node.filter, EMIT)
        elif isinstance(node, nodes.Concat):
            return _filtered(nodes.List(node.nodes, lineno=node.lineno), CONCAT)
        elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
            bounds = (node.arg.start, node.arg.stop, node.arg.step)
            return _filtered(node.node, SLICE, [bound or nodes.Const(None, lineno=node.lineno) for bound in bounds])
        elif isinstance(node, nodes.Compare):
            for operand in node.ops:
                operand.expr = _filtered(operand.expr, TOUCH)
        elif isinstance(node, nodes.Pair):
            node.key = _filtered(node.key, TOUCH)  # a tuple is hashed whole
        return node


def _size(node: nodes.Node) -> int:
    """Count the nodes below `node`: an upper bound of those that one pass through it executes."""
    return sum(1 for _ in node.find_all(nodes.Node))


def _filtered(node: nodes.Expr, name: str, args: list[nodes.Expr] | None = None) -> nodes.Filter:
    return nodes.Filter(node, name, args or [], [], None, None, lineno=node.lineno)


UNITS_PER_CALL = 8
UNITS_PER_NODE = 80  # cost of compiling a node of the syntax tree
MAX_OPTION = 1000  # characters of an attribute path and the like, which are parsed for every item

# Filters by their cost: constant, one step per item as it is drawn, the size of all arguments, and of all their text.
_CONSTANT = ("count", "d", "default", "first", "items", "last", "length", "list", "reverse")
_DRAWING = ("map", "reject", "rejectattr", "select", "selectattr")
_WHOLE = ("abs", "dictsort", "float", "int", "max", "min", "sort", "unique")
_TEXT = ("capitalize", "e", "escape", "lower", "safe", "string", "title", "trim", "upper")
_TYPE_TESTS = (
    *("boolean", "callable", "defined", "false", "float", "integer", "iterable", "mapping", "none", "number"),
    *("sameas", "sequence", "string", "true", "undefined"),
)
_NUMBER_TESTS = ("divisibleby", "even", "odd")
_COMPARISONS = (
    *("==", "!=", "<", "<=", ">", ">=", "eq", "equalto", "ne", "lt", "lessthan", "le", "gt", "greaterthan", "ge"),
    "in",
)
_METHODS: dict[type, frozenset[str]] = {
    str: frozenset(
        {
            *("capitalize", "count", "endswith", "find", "index", "isalnum", "isalpha", "isdigit", "isspace", "join"),
            *("islower", "isupper", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace"),
            *("rfind", "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "swapcase"),
            *("title", "upper"),
        }
    ),
    dict: frozenset({"get", "items", "keys", "values"}),
    list: frozenset({"count", "index"}),
    tuple: frozenset({"count", "index"}),
}
_CONTEXTS = (Environment, Context, nodes.EvalContext)
_OWN_ATTRIBUTES = (LoopContext, Namespace, Undefined)  # Jinja's own objects, whose attributes templates read
_NODES = (
    *(nodes.Template, nodes.Output, nodes.For, nodes.If, nodes.Macro, nodes.Assign, nodes.AssignBlock, nodes.With),
    *(nodes.Break, nodes.Continue, nodes.Scope, nodes.TemplateData, nodes.Const, nodes.Name, nodes.NSRef),
    *(nodes.Tuple, nodes.List, nodes.Dict, nodes.Pair, nodes.Keyword, nodes.CondExpr, nodes.Filter, nodes.Test),
    *(nodes.Call, nodes.Getitem, nodes.Getattr, nodes.Slice, nodes.Concat, nodes.Compare, nodes.Operand),
    *(nodes.BinExpr, nodes.UnaryExpr, nodes.FilterBlock),
)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Environment of one rendering: the options of Hugging Face's chat templates, and a budget.

    `budget`: spent by the rendering; compile and render one template with one environment; `variables`: the variables
    of the rendering, whose lists cannot be changed, while the template may append to lists of its own.

    `names`, `literals`: variables and strings in the expressions of the compiled template.
    """

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self, budget: Budget, variables: Mapping[str, Any] | None = None) -> None:
        extensions = ["jinja2.ext.loopcontrols", Generation]
        super().__init__(trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=extensions)
        self.budget = budget
        self._fixed = frozenset(_lists(variables or {}))
        self.names: set[str] = set()
        self.literals: set[str] = set()
        self.globals = {
            "range": self.globals["range"],
            "dict": dict,
            "namespace": Namespace,
            "raise_exception": _raise_exception,
            "strftime_now": strftime_now,
        }
        # Filters that take a context are not evaluated at compile time, where nothing would be paid per rendering.
        emit = pass_context(lambda context, value: budget.pay_for_text(value))
        pay = pass_context(lambda context, units: self._pay(units))
        constant = {name: self._charged(self.filters[name], "result") for name in _CONSTANT}
        drawing = {name: self._charged(self.filters[name], "items") for name in _DRAWING}
        whole = {name: self._charged(self.filters[name], "all") for name in _WHOLE}
        texts = {name: self._charged(self.filters[name], "all", PLAIN) for name in _TEXT}
        own = {"join": self._join, "replace": self._replace, "tojson": self._to_json, "indent": self._indent}
        hooks = {LOOP: self._loop, PAY: pay, EMIT: emit, TOUCH: budget.pay_for}
        hooks |= {CONCAT: self._concat, SLICE: self._slice}
        self.filters = {**constant, **drawing, **whole, **texts, **own, **hooks}
        compared = {name: self._charged(self.tests[name], "all", PLAIN) for name in _COMPARISONS}
        counted = {name: self._charged(self.tests[name], "all", NUMBERS) for name in _NUMBER_TESTS}
        self.tests = {**{name: self.tests[name] for name in _TYPE_TESTS}, **compared, **counted}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        pending: list[nodes.Node] = [tree]
        while pending:
            node = pending.pop()
            self.budget.pay(UNITS_PER_NODE)
            if not isinstance(node, _NODES) or (isinstance(node, nodes.For) and node.recursive):
                raise TemplateAssertionError(f"a chat template may not use {type(node).__name__}", node.lineno)
            if isinstance(node, nodes.Name):
                self.names.add(node.name)
            elif isinstance(node, nodes.Const) and isinstance(node.value, str):
                self.literals.add(node.value)
            pending.extend(node.iter_child_nodes())
        Metering().visit(tree)
        tree.set_environment(self)
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if attr == "append" and type(obj) is list:
            return id(obj) not in self._fixed
        if not super().is_safe_attribute(obj, attr, value):
            return False
        known = next((names for kind, names in _METHODS.items() if isinstance(obj, kind)), ())
        return attr in known or isinstance(obj, _OWN_ATTRIBUTES)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        """Refuse at once; Jinja would return an undefined value, which prints as nothing."""
        raise SecurityError(f"it accesses attribute {attribute!r} of a {type(obj).__name__}")

    def getitem(self, obj: Any, argument: Any) -> Any:
        if not isinstance(argument, str | int):
            self.budget.pay_for(argument)  # a tuple is hashed whole at every look-up
        return super().getitem(obj, argument)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return a bounded ``str.format`` in place of Python's, whose widths are unlimited; no ``format_map``."""
        text, name = getattr(value, "__self__", None), getattr(value, "__name__", None)
        if not isinstance(text, str) or name != "format":
            return None
        return lambda *args, **kwargs: self.budget.pay_for(BoundedFormatter(self).vformat(text, args, kwargs))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        self, receiver = __self, getattr(__obj, "__self__", None)
        self.budget.pay(UNITS_PER_CALL)
        if isinstance(receiver, str | list | tuple) and __obj.__name__ != "append":  # others read all of it
            self.budget.pay_for(receiver)
        if not isinstance(__obj, Macro):  # a macro only passes its arguments on
            for value in (*args, *kwargs.values()):
                self.budget.pay_for(value)
        if isinstance(receiver, str) and __obj.__name__ == "replace":
            self._pay_for_replace(receiver, *args)
        elif isinstance(receiver, str) and __obj.__name__ == "join":
            self._pay_for_join(receiver, *args)
        return self.budget.pay_for(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        numbers = isinstance(left, NUMBERS) and isinstance(right, NUMBERS)
        if operator == "*" and not numbers:
            self._pay_for_repeat(*((left, right) if isinstance(right, int) else (right, left)))
        elif operator == "**" and not (numbers and abs(left) <= 1 << 32 and abs(right) <= 64):
            raise SecurityError("a power is too large")
        elif operator == "%" and not numbers:
            raise SecurityError("text is formatted with %")
        return self.budget.pay_for(super().call_binop(context, operator, left, right))

    def _pay_for_repeat(self, unit: Any, times: Any) -> None:
        if isinstance(unit, str) and isinstance(times, int):
            self.budget.pay(len(unit) * max(times, 0) // CHARS_PER_UNIT)
        elif isinstance(unit, list | tuple) and isinstance(times, int):
            before = self.budget.left
            self.budget.pay_for(unit)
            self.budget.pay((before - self.budget.left) * max(times, 0))

    def _charged(self, function: Any, pay: str, only: tuple[type, ...] = ()) -> Callable[..., Any]:
        """Wrap `function` so that it pays for its result and, depending on `pay`, for its arguments or the items it
        draws from them. With `only`, arguments must be of these types."""

        def admit(value: Any) -> Any:
            if only and not isinstance(value, only):
                raise SecurityError(f"{function.__name__} of a {type(value).__name__}")
            if pay == "all" and isinstance(value, PLAIN):
                return self.budget.pay_for(value, ATOMS if only else LEAVES)
            drawn = pay != "result" and isinstance(value, Iterable) and not isinstance(value, str | Undefined)
            return self._loop(value) if drawn else value

        @functools.wraps(function)  # copies the attribute by which Jinja knows that it takes a context first
        def charged(*args: Any, **kwargs: Any) -> Any:
            contexts = sum(isinstance(arg, _CONTEXTS) for arg in args[:1])
            options = (*args[contexts + 1 :], *kwargs.values())
            if not only and any(isinstance(option, str) and len(option) > MAX_OPTION for option in options):
                raise SecurityError(f"{function.__name__} with an option of over {MAX_OPTION} characters")
            admitted = [*args[:contexts], *map(admit, args[contexts:])]
            result = function(*admitted, **{name: admit(arg) for name, arg in kwargs.items()})
            return self.budget.pay_for(result)

        return charged

    def _pay(self, units: int) -> str:
        self.budget.pay(units)
        return ""

    def _loop(self, values: Any, units: int = 1) -> Iterator[Any]:
        for value in values:
            self.budget.pay(units)
            yield value

    def _concat(self, values: list[Any]) -> str:
        return "".join([str(self.budget.pay_for_text(value)) for value in values])

    def _slice(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        return self.budget.pay_for(value[start:stop:step])

    def _join(self, values: Any, separator: str = "", attribute: str | int | None = None) -> str:
        items = list(self._loop(values))
        if attribute is not None:
            items = [self.getitem(item, attribute) for item in items]
        self._pay_for_join(separator, items)
        return str(separator).join([str(self.budget.pay_for_text(item)) for item in items])

    def _pay_for_join(self, separator: str, items: Any) -> None:
        if not isinstance(items, str | list | tuple):
            raise SecurityError(f"it joins a {type(items).__name__}")
        self.budget.pay(len(items) * (1 + len(separator) // CHARS_PER_UNIT))

    def _replace(self, text: Any, old: str, new: str, count: int = -1) -> str:
        plain = str(self.budget.pay_for_text(text))
        self._pay_for_replace(plain, old, new, count)
        return plain.replace(old, new, count)

    def _pay_for_replace(self, text: str, old: str, new: str, count: int = -1) -> None:
        self.budget.pay(1 + len(text) // CHARS_PER_UNIT)
        self.budget.pay(text.count(old) * len(new) // CHARS_PER_UNIT)

    def _indent(self, text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
        if not isinstance(text, str) or not isinstance(width, int | str):
            raise SecurityError(f"indent of a {type(text).__name__} by a {type(width).__name__}")
        size = len(width) if isinstance(width, str) else max(width, 0)
        self.budget.pay_for(text)
        self.budget.pay((1 + len(text.splitlines())) * (1 + size // CHARS_PER_UNIT))
        return do_indent(text, width, first, blank)

    def _to_json(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """Convert to JSON without HTML escapes, as in Hugging Face's templates."""
        if not (indent is None or 0 <= indent <= 16) or sum(map(len, separators or ())) > 32:
            raise SecurityError("tojson with an odd indent or separators")
        style: dict[str, Any] = {"ensure_ascii": ensure_ascii, "indent": indent, "separators": separators}
        text = json.dumps(self.budget.pay_for_text(value), sort_keys=sort_keys, **style)
        return str(self.budget.pay_for(text))


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _lists(value: Any) -> Iterator[int]:
    """Yield the identities of all lists in plain data."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, list):
            yield id(item)
            pending += item
        elif isinstance(item, dict):
            pending += item.values()
