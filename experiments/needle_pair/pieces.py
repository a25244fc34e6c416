"""Samples as token arrays: haystack slices, needles, chat turns, supervised rows and the needle token each should copy.

A prompt is a list of parts. Haystack parts are slices of a pre-tokenised bank, cut only where the tokenizer's regex
always splits; everything else is text, and neighbouring texts are joined before they are encoded. So the concatenated
tokens are the tokens of the concatenated text (``tests/test_pair.py`` checks it against the real tokenizer).
"""

from __future__ import annotations

import itertools

import text as T  # noqa: N812
from document import Documents
from haystack import Bank, Ints, Recipe, Sample, pick

__all__ = ["Bank", "Composer", "Ints", "Recipe", "Sample"]


class Composer(Documents):
    """Draws samples for one tokenizer."""

    # -- what is hidden and asked -------------------------------------------------------------------------------
    def _facts(
        self, r: Recipe, task: str, count: int, kind: str, style: str, source: T.Source
    ) -> tuple[list[T.Needle], str]:
        rng = self.rng
        ruler = rng.random() < r.ruler
        one = rng.choice(T.NEEDLES)

        def template() -> str:
            if ruler:
                return T.RULER_NEEDLE
            if r.short and rng.random() < r.short:
                return rng.choice(T.SHORT_NEEDLES)
            return one if rng.random() < 0.5 else rng.choice(T.NEEDLES)

        values: set[str] = set()

        def value() -> str:
            v = source.value(kind)
            while v in values:
                v = source.value(kind) if kind != "word" else source.pseudo_word()
            values.add(v)
            return v

        keys = source.keys(count, style, r.hard)
        if task == "value":  # the first key has several values
            many = min(rng.randrange(2, 5), max(2, count))
            keys = [keys[0]] * many + keys[1 : max(1, count - many + 1)]
        values.update(k for k in keys)
        return [T.Needle(k, value(), kind, template()) for k in keys], ("ruler" if ruler else "free")

    def _turn(self, r: Recipe, needles: list[T.Needle], wanted: list[int], style: str) -> T.Turn:
        rng, kind = self.rng, needles[wanted[0]].kind
        keys = list(dict.fromkeys(needles[i].key for i in wanted))
        slots = {"key": T.join_keys(keys), "kind": kind}
        if len(wanted) == 1:
            q = T.RULER_QUESTION if style == "ruler" else rng.choice(T.QUESTIONS)
            p = T.RULER_PREFIX if style == "ruler" else rng.choice(T.PREFIXES)
        else:
            q = T.RULER_PLURAL if style == "ruler" else rng.choice(T.PLURAL_QUESTIONS)
            p = T.RULER_PLURAL_PREFIX
        prefix = p.format(**slots) if rng.random() < r.prefix else ""
        return T.Turn(q.format(**slots), prefix, wanted)

    def _chain(self, r: Recipe, source: T.Source) -> tuple[list[T.Needle], T.Turn]:
        """RULER variable tracking: a chain of copies and, half of the time, another one as distractor."""
        rng = self.rng
        needles: list[T.Needle] = []
        chains = []
        for _ in range(1 + (rng.random() < 0.5)):
            names = [source.variable() for _ in range(rng.randrange(2, 6))]
            number = str(rng.randrange(10_000, 100_000))
            chains.append((names, number, len(needles)))
            needles.append(T.Needle(number, names[0], "chain", "VAR {value} = {key}"))
            needles += [T.Needle(a, b, "chain", "VAR {value} = VAR {key}") for a, b in itertools.pairwise(names)]
        names, number, at = chains[0]
        prefix = T.VT_PREFIX.format(count=len(names), value=number) if rng.random() < max(r.prefix, 0.5) else ""
        return needles, T.Turn(T.VT_QUESTION.format(value=number), prefix, list(range(at, at + len(names))), names)

    def sample(self, r: Recipe) -> Sample:
        rng, enc = self.rng, self.encoder
        source = T.Source(rng, r.held_out, None if r.held_out else self.bank.words)
        task, kind, style = pick(rng, r.tasks), pick(rng, r.kinds), pick(rng, r.styles)
        count = rng.randint(*r.needles)
        turns: list[T.Turn] = []
        phrasing = "free"
        if task == "vt":
            needles, turn = self._chain(r, source)
            turns = [turn]
        else:
            needles, phrasing = self._facts(r, task, count, kind, style, source)
            for _ in range(min(rng.randint(*r.turns), len(needles) // 2 + 2)):
                if task == "value":
                    first = [i for i, n in enumerate(needles) if n.key == needles[0].key]
                    alone = [i for i in range(len(needles)) if i not in first]
                    wanted = first if not turns or not alone or rng.random() < 0.5 else [rng.choice(alone)]
                elif task == "query":
                    wanted = rng.sample(range(len(needles)), min(len(needles), rng.randint(2, 4)))
                else:
                    wanted = [rng.randrange(len(needles))]
                turns.append(self._turn(r, needles, wanted, phrasing))
        hay = pick(rng, r.haystack)
        header = T.VT_HEADER if task == "vt" else rng.choice(T.HEADERS) if r.length >= 400 else ""
        if phrasing == "ruler" and r.length >= 400:
            header = T.RULER_PLURAL_HEADER if len(needles) > 1 else T.RULER_HEADER
        header = header.format(kind=kind)

        # order: a chain stays in order; several values are asked in document order
        order = list(range(len(needles)))
        if task not in ("vt",):
            rng.shuffle(order)
        for turn in turns:
            if task == "value" and len(turn.needles) > 1:
                turn.needles = [i for i in order if needles[i].key == needles[0].key]

        tails = [self._answer_parts(t, needles) for t in turns]
        texts = [self._needle_text(n) for n in needles]
        budget = r.length - sum(len(enc(x)) + 1 for x, _ in texts) - len(enc(header)) - 12
        budget -= sum(len(enc(t.question)) + len(enc(a[0])) + 10 for t, a in zip(turns, tails, strict=True))
        parts = self._document(r, hay, budget, needles, texts, order, header, kind, style, source, task)
        return self._assemble(parts, turns, tails, needles, r.tail)

    # -- the conversation ---------------------------------------------------------------------------------------
    def _answer_parts(self, turn: T.Turn, needles: list[T.Needle]) -> tuple[str, list[int]]:
        """Answer text (prefix included) and the offset of each value (of the space before it where there is one)."""
        out, marks = turn.prefix, []
        values = turn.names or [needles[i].value for i in turn.needles]
        for j, (i, v) in enumerate(zip(turn.needles, values, strict=True)):
            bare = j == 0 and not turn.prefix and needles[i].kind == "number"
            out += "" if j == 0 else ","
            marks.append(len(out))
            out += v if bare else " " + v
        return out + ".", marks

    def _assemble(self, parts: list, turns: list[T.Turn], tails: list, needles: list[T.Needle], tail: int) -> Sample:
        enc = self.encoder
        ids: list[int] = [enc.start]
        value_at: dict[int, int] = {}
        spans: dict[int, tuple[int, int]] = {}
        buffer, marks = "user\n", []
        begin = len(enc(buffer)) + 1

        def flush() -> None:
            nonlocal buffer, marks
            points = sorted({p for m in marks for p in (m[1], m[2])})
            got, at = enc.marked(buffer, points)
            index = dict(zip(points, at, strict=True))
            base = len(ids)
            for i, a, v in marks:
                value_at[i] = base + index[v]
                spans[i] = (base + index[a], 0)
            ids.extend(got)
            buffer, marks = "", []

        for part, found in parts:
            if isinstance(part, str):
                # the pre-token of a sentence that follows a space starts at that space
                marks += [
                    (i, len(buffer) + (a - 1 if part[a - 1 : a] == " " and a else a), len(buffer) + v)
                    for i, a, v in found
                ]
                if found and found[0][1] == 0 and buffer.endswith(" "):
                    i, a, v = marks[-1]
                    marks[-1] = (i, a - 1, v)
                buffer += part
            elif len(part):
                flush()
                ids.extend(part.tolist())
        buffer += "\n\n" + turns[0].question
        flush()
        end = len(ids) - len(enc(turns[0].question))  # the last document token (approximately where "\n\n" merges)
        rows, src, first, turn_of = [], [], [], []
        prompt_end = 0
        for t, (turn, (answer, where)) in enumerate(zip(turns, tails, strict=True)):
            if t:
                ids += [enc.start, *enc("user\n" + turn.question)]
            ids += [enc.end, *enc("\n"), enc.start]
            got, at = enc.marked("assistant\n" + answer, [len("assistant\n") + w for w in where])
            base = len(ids)
            copied: dict[int, int] = {}
            firsts: set[int] = set()
            for i, (a, w) in enumerate(zip(at, where, strict=True)):
                spaced = answer[w : w + 1] == " "
                needle = value_at[turn.needles[i]]
                number = needles[turn.needles[i]].kind == "number"
                shift = 0 if spaced else 1
                length = len(enc(" " + (turn.names[i] if turn.names else needles[turn.needles[i]].value)))
                for j in range(shift, length):
                    copied[a + j - shift] = needle + j
                firsts.add(a + (1 if number and spaced else 0))
            begin_answer = len(enc("assistant\n" + turn.prefix)) if turn.prefix else len(enc("assistant\n"))
            ids += [*got, enc.end]
            one = turn.needles[self.rng.randrange(len(turn.needles))] if tail else 0
            for j in range(base + begin_answer - 1 - tail, base + begin_answer - 1):
                rows.append(j)
                src.append(value_at[one] + (needles[one].kind == "number"))
                first.append(-1)
                turn_of.append(t)
            for j in range(begin_answer, len(got) + 1):
                rows.append(base + j - 1)
                src.append(copied.get(j, -1) if j not in copied or self._content(j, at, answer, where) else -1)
                first.append((1 if t == 0 else 2) if j in firsts else 0)
                turn_of.append(t)
            if t == 0:
                prompt_end = base + begin_answer
            ids += enc("\n")
        full = [spans[i] for i in range(len(needles))]
        lengths = [len(enc(" " + self._needle_text(n)[0])) for n in needles]
        full = [(a, a + n) for (a, _), n in zip(full, lengths, strict=True)]
        return Sample(
            ids, rows, src, first, turn_of, (begin, end), full, list(turns[0].needles), turns, needles, prompt_end
        )

    def _content(self, j: int, at: list[int], answer: str, where: list[int]) -> bool:
        """False for the lone space token before a number: it needs no look-up."""
        for a, w in zip(at, where, strict=True):
            if j == a and answer[w : w + 1] == " " and answer[w + 1 : w + 2].isdigit():
                return False
        return True
