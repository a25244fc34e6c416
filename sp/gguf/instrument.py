"""Rewrites a template's syntax tree so that what Jinja's sandbox has no hook for is paid for too.

Loops, macros, output, slices, ``~``, comparisons and dict keys become, or pass through, filters whose names no
template can spell. A pass through a loop or a macro costs by its size.
"""

# ruff: noqa: N802  # Jinja's visitor finds its methods by the names of the node classes

from __future__ import annotations

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.visitor import NodeTransformer

LOOP, PAY, EMIT, TOUCH, CONCAT, SLICE = "sp loop", "sp pay", "sp emit", "sp touch", "sp concat", "sp slice"
NODES_PER_UNIT = 2  # executed in a microsecond


class Generation(Extension):
    """``{% generation %}``: what a trainer learns from, which is printed as it is (transformers' chat templates)."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        """The block as a scope of its own: as there, what it sets is not seen behind it."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class Instrument(NodeTransformer):
    """One tree, once."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        units = nodes.Const(1 + _size(node) // NODES_PER_UNIT, lineno=node.lineno)
        self.generic_visit(node)
        assert isinstance(node.iter, nodes.Expr), type(node.iter)
        node.iter = _filtered(node.iter, LOOP, [units])
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        units = nodes.Const(1 + _size(node) // NODES_PER_UNIT, lineno=node.lineno)
        self.generic_visit(node)
        node.body.insert(0, nodes.Output([_filtered(units, PAY)], lineno=node.lineno))
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Node:
        self.generic_visit(node)
        texts = [nodes.Const(n.data, lineno=n.lineno) if isinstance(n, nodes.TemplateData) else n for n in node.nodes]
        node.nodes = [_filtered(text, EMIT) for text in texts]
        return node

    def visit_FilterBlock(self, node: nodes.FilterBlock) -> nodes.Node:
        self.generic_visit(node)
        node.filter = _filtered(node.filter, EMIT)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), CONCAT)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        bounds = (node.arg.start, node.arg.stop, node.arg.step)
        return _filtered(node.node, SLICE, [bound or nodes.Const(None, lineno=node.lineno) for bound in bounds])

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        for operand in node.ops:
            operand.expr = _filtered(operand.expr, TOUCH)
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:
        self.generic_visit(node)
        node.key = _filtered(node.key, TOUCH)  # a tuple is hashed whole
        return node


def _size(node: nodes.Node) -> int:
    """Nodes of the tree below `node`: what one pass through it may execute."""
    return sum(1 for _ in node.find_all(nodes.Node))


def _filtered(node: nodes.Expr, name: str, args: list[nodes.Expr] | None = None) -> nodes.Filter:
    return nodes.Filter(node, name, args or [], [], None, None, lineno=node.lineno)
