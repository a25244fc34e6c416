"""Chat templates that reach for what they must not have, or would run or grow without end, or do not parse."""

from __future__ import annotations

_START = "{% set ns = namespace(s='xxxxxxxx', c=[1], n=1) %}{% for i in range(60) %}"
_LONG = "{% set a = 'a' * 10000000 %}{% for i in range(100000) %}"
_NESTED = "{% set l = [0] * 1000 %}{% for i in l %}{% for j in l %}"
_TEXT = "{% set a = 'a' * 100000 %}"

ESCAPES = {
    "class": "{{ messages.__class__ }}",
    "subclasses": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "item class": "{{ ''['__class__'] }}",
    "attr filter": "{{ '' | attr('__class__') }}",
    "mapped class": "{{ messages | map(attribute='__class__') | list }}",
    "namespace globals": "{{ namespace.__init__.__globals__ }}",
    "function globals": "{{ raise_exception.__globals__ }}",
    "self": "{{ self._TemplateReference__context }}",
    "format": "{{ '{0.__class__}'.format(1) }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}",
    "extends": "{% extends 'x' %}",
    "append": "{{ messages.append(1) }}",
    "append to what was given": "{% set l = [messages] %}{{ l[0].append(1) }}",
    "format method": "{{ '{0.format}'.format('x') }}",
    "format of a format": "{{ '{0.__class__.__mro__}'.format(messages) }}",
    "format item": "{{ '{0[__class__]}'.format('') }}",
    "format of globals": "{{ '{0.__globals__}'.format(raise_exception) }}",
    "format_map": "{{ '{a}'.format_map({'a': 1}) }}",
    "format by attr": "{{ ('' | attr('format'))() }}",
    "format of a function": "{{ '{}'.format(raise_exception) }}",
    "format of a method": "{{ '{0.upper!r}'.format('x') }}",
    "update": "{{ messages[0].update(a=1) }}",
    "clear": "{{ messages[0].clear() }}",
    "pop": "{{ messages.pop() }}",
    "fromkeys": "{{ dict.fromkeys('abc') }}",
}
ENDLESS = {
    "nested loops": "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "nested loops over a list": "{% set l = [0] * 100000 %}{% for i in l %}{% for j in l %}{% endfor %}{% endfor %}",
    "huge range": "{% for i in range(10 ** 9) %}{% endfor %}",
    "recursive loop": "{% for x in [[1]] recursive %}{{ loop(x) }}{% endfor %}",
    "macro that calls itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "macro that calls itself twice": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}"
    "{{ f(60) }}",
    "method": _LONG + "{% set x = a.isalpha() %}{% endfor %}",
    "trim": _LONG + "{% set x = a | trim %}{% endfor %}",
    "in": _LONG + "{% if 'b' in a %}{% endif %}{% endfor %}",
    "in test": _LONG + "{% set x = 'b' is in a %}{% endfor %}",
    "equal": "{% set b = 'a' * 10000000 %}" + _LONG + "{% if a == b %}{% endif %}{% endfor %}",
    "in values": "{% set d = dict(a=[0] * 1000) %}{% set x = [0] * 999 + [1] %}{% for i in range(100000) %}"
    "{% if x in d.values() %}{% endif %}{% endfor %}",
    "list index": "{% set l = [0] * 20000 %}{% for i in range(100000) %}{{ l.count(1) }}{% endfor %}",
    "loop.changed": "{% set a = [0] * 200000 %}{% set b = [0] * 200000 %}"
    "{% for i in range(100000) %}{{ loop.changed(a) }}{{ loop.changed(b) }}{% endfor %}",
    "hash of a deep tuple": "{% set ns = namespace(t=(1,)) %}{% for i in range(15) %}{% set ns.t = (ns.t, ns.t) %}"
    "{% endfor %}{% set d = {} %}{% for i in range(100000) %}{{ d[ns.t] }}{% endfor %}",
    "slices dropped": _LONG + "{% set x = a[1:] %}{% endfor %}",
    "selected by nothing": "{% set l = [0] * 20000 %}{% for i in l %}"
    "{% set x = l | select('undefined') | list %}{% endfor %}",
    "long attribute path": "{% set l = [0] * 20000 %}{{ l | map(attribute='x.' * 1000000, default='z') | list }}",
    "long loop body": _NESTED + "{% if messages.b %}{% endif %}" * 1000 + "{% endfor %}{% endfor %}",
    "long literal": _NESTED + "{% set x = [" + "a," * 2000 + "a] %}{% endfor %}{% endfor %}",
    "long loop test": "{% set l = [0] * 1000 %}{% for i in l %}{% for j in l if ["
    + "a," * 2000
    + "a] and 0 %}{% endfor %}"
    "{% endfor %}",
    "long macro": "{% macro f() %}" + "{% if messages.b %}{% endif %}" * 1000 + "{% endmacro %}"
    "{% for i in range(100000) %}{{ f() }}{% endfor %}",
    "hash in a literal": "{% set ns = namespace(t=(1,)) %}{% for i in range(14) %}{% set ns.t = (ns.t, ns.t) %}"
    "{% endfor %}{% for i in range(100000) %}{% set d = {ns.t: 1} %}{% endfor %}",
    "chain of maps": "{% set ns = namespace(g=range(100000)) %}{% for i in range(900) %}"
    "{% set ns.g = ns.g | map('int') %}{% endfor %}{{ ns.g | list | length }}",
    "sort": "{% for i in range(1000) %}{{ (range(100000) | list) | sort | first }}{% endfor %}",
    "append while it loops": "{% set l = [1] %}{% for i in l %}{% set _ = l.append(i) %}{% endfor %}{{ l }}",
    "append to itself": "{% set l = [] %}{% set _ = l.append(l) %}{{ l }}",
    "appends": "{% set l = [] %}{% for i in range(99999) %}{% for j in range(99999) %}{% set _ = l.append(0) %}"
    "{% endfor %}{% endfor %}",
    "formats": "{% set a = '{0}' * 100000 %}{% for i in range(100000) %}{% set x = a.format(1) %}{% endfor %}",
    "nested filter blocks": "{% for i in range(100000) %}{% filter upper %}{% filter trim %}"
    + "x" * 10000
    + "{% endfilter %}{% endfilter %}{% endfor %}",
    "generation": "{% for i in range(99999) %}{% for j in range(9999) %}{% generation %}{% endgeneration %}{% endfor %}"
    "{% endfor %}",
    "power": "{{ 10 ** 10 ** 10 }}",
    "digits": "{{ ('f' * 1000000) | int(0, 16) }}",
}
GROWING = {
    "text times": "{{ 'x' * 10 ** 9 }}",
    "times text": "{{ 10 ** 8 * 'x' }}",
    "list times": "{% set a = [0] * 10 ** 9 %}",
    "doubled by ~": _START + "{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "doubled by +": _START + "{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "doubled by a block": _START + "{% set x %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = x %}{% endfor %}",
    "doubled list": _START + "{% set ns.c = [ns.c, ns.c] %}{% endfor %}{{ ns.c }}",
    "doubled dict": _START + "{% set ns.c = {'a': ns.c, 'b': ns.c} %}{% endfor %}{{ ns.c | tojson }}",
    "doubled tuple": _START + "{% set ns.n = (ns.n, ns.n) %}{% endfor %}{{ {ns.n: 1} }}",
    "doubled namespace": _START + "{% set ns.n = namespace(a=ns.n, b=ns.n) %}{% endfor %}{{ ns.n }}",
    "doubled namespace as string": _START + "{% set ns.n = namespace(a=ns.n, b=ns.n) %}{% endfor %}{{ ns.n | string }}",
    "doubled namespace in a list": _START + "{% set ns.n = namespace(a=ns.n, b=ns.n) %}{% endfor %}{{ [ns.n] }}",
    "slices kept": "{% set ns = namespace(l=[]) %}{% set a = 'a' * 1000000 %}"
    "{% for i in range(100000) %}{% set ns.l = ns.l + [a[1:]] %}{% endfor %}",
    "replace": _TEXT + "{{ a.replace('a', a) }}",
    "replace nothing": _TEXT + "{{ a.replace('', a) }}",
    "replace filter": _TEXT + "{{ a | replace('a', a) }}",
    "join": _TEXT + "{{ a.join(['', ''] * 50000) }}",
    "join filter": _TEXT + "{{ range(100000) | join(a) }}",
    "format": "{{ '{:1000000000}'.format(1) }}",
    "format by a number": "{{ '{:{}}'.format(1, 10 ** 9) }}",
    "format by a fill": "{{ '{:x>999999999}'.format(1) }}",
    "format by a precision": "{{ '{:.999999999f}'.format(1.0) }}",
    "format by many fields": "{% set a = 'a' * 100000 %}{{ ('{0}' * 100000).format(a) }}",
    "format by many widths": "{% set a = '{:1000}' * 9999 %}{% for i in range(999) %}{{ a.format(*([1] * 9999)) }}"
    "{% endfor %}",
    "format of text": "{% set a = 'a' * 100000 %}{% for i in range(100000) %}{{ '{0}{0}{0}'.format(a) }}{% endfor %}",
    "format by digits of another script": "{{ '{:١٠٠٠٠٠٠٠٠٠}'.format(1) }}",
    "format filter": "{{ '%1000000000d' | format(1) }}",
    "percent": "{{ '%1000000000d' % 1 }}",
    "percent in a test": "{{ '%1000000000d' is odd }}",
    "percent in divisibleby": "{{ '%1000000000d' is divisibleby(3) }}",
    "center": "{{ 'x'.center(10 ** 9) }}",
    "center filter": "{{ 'x' | center(10 ** 9) }}",
    "zfill": "{{ 'x'.zfill(10 ** 9) }}",
    "expandtabs": "{{ ('\t' * 100000).expandtabs(100000) }}",
    "to_bytes": "{{ (5).to_bytes(10 ** 9, 'big') }}",
    "indent": "{{ [1, 2] | tojson(indent=10 ** 9) }}",
    "separators": "{{ [1, 2] | tojson(separators=['x' * 10000000, '']) }}",
    "indent filter": "{{ 'a\nb' | indent(10 ** 9) }}",
    "indent by text": "{% set a = 'a' * 100000 %}{{ ('\n' * 100000) | indent(a, blank=true) }}",
    "indent of lines": "{{ ('a\n' * 100000) | indent(100000) }}",
    "indent in a block": "{% filter indent(10 ** 9) %}a\nb{% endfilter %}",
    "filter block": "{% set a = 'a' * 100000 %}{% filter replace('a', a) %}{{ a }}{% endfilter %}",
    "doubled by append": _START + "{% set l = [] %}{% set _ = l.append(ns.c) %}{% set _ = l.append(ns.c) %}"
    "{% set ns.c = l %}{% endfor %}{{ ns.c }}",
    "doubled by append from outside": "{% set ns = namespace(o=[], l=[]) %}{% for i in range(60) %}"
    "{% set _ = ns.o.append([]) %}{% endfor %}{% for i in range(59) %}{% set _ = ns.o[i].append(ns.o[i + 1]) %}"
    "{% set _ = ns.o[i].append(ns.o[i + 1]) %}{% endfor %}{{ ns.o[0] }}",
    "date": "{{ strftime_now('%1000000000Y') }}",
    "long date": "{{ strftime_now('%c' * 1000000) }}",
    "lipsum": "{{ lipsum(100000) }}",
    "text in a loop": "{% for i in range(100000) %}" + "x" * 50000 + "{% endfor %}",
}
BROKEN = {
    "syntax": "{% for %}",
    "unknown filter": "{{ 1 | nosuch }}",
    "unknown test": "{{ 1 is nosuch }}",
    "undefined": "{{ a.b.c }}",
    "zero": "{{ 1 // 0 }}",
    "types": "{{ 1 + 'a' }}",
    "unclosed": "{{ messages",
    "parentheses": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "nots": "{{ " + "not " * 8000 + "1 }}",
    "dots": "{{ a" + ".b" * 15000 + " }}",
    "sums": "{{ 1" + "+1" * 15000 + " }}",
    "brackets": "{{ " + "[" * 10000 + "]" * 10000 + " }}",
    "fors": "{% for a in messages %}" * 500 + "{% endfor %}" * 500,
    "ifs": "{% if a %}" * 2000 + "{% endif %}" * 2000,
    "too many outputs": "{{a}}" * 13000,
    "too many sets": "{%set a=1%}" * 5900,
    "too long": "x" * 70000,
    "generator printed": "{{ messages | map(attribute='role') }}",
}
HOSTILE = {
    f"{kind}: {name}": source
    for kind, group in (("escape", ESCAPES), ("endless", ENDLESS), ("growing", GROWING), ("broken", BROKEN))
    for name, source in group.items()
}
