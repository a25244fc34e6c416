"""The tokenizer of the instrument: ``python vocabulary.py DATA``, from ``DATA/bank.json`` to ``DATA/vocabulary.json``.

Trained on the bank, the stories in training phrases and the names of the closed world. Both models have it.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from teller import NAMES, Teller
from tokenizer import REGEX, SPECIALS
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

SIZE = 4096


def stories(seed: int, characters: int) -> str:
    """Passages, questions, answers and filler of every kind of story, in about equal parts."""
    rng, out = random.Random(seed), []
    for name in NAMES:
        told, size = Teller(name, rng).plain, 0
        while size < characters // len(NAMES):
            story = told.story(rng, 12)
            lines = [*story.passages, *(f"{q.text}\n{', '.join(q.answers)}" for q in story.questions)]
            lines += [next(told.stream).text for _ in range(4)] if told.stream else []
            out += lines
            size += sum(map(len, lines))
    return "\n".join(out) + "\n"


def train(bank: dict[str, str]) -> Tokenizer:
    """A byte-level BPE."""
    split = pre_tokenizers.Split(Regex(REGEX), "isolated")
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tok.decoder = decoders.ByteLevel()
    mix = [bank["grammar"][:900_000], bank["prose"][:400_000], bank["code"][:200_000], stories(11, 2_500_000)]
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE - len(SPECIALS),
        special_tokens=[],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    lines = [line for text in mix for line in text.splitlines(keepends=True)] + ["assistant\n", "user\n"] * 20_000
    tok.train_from_iterator(lines, trainer)
    tok.add_special_tokens([AddedToken(one, special=True, normalized=False) for one in SPECIALS])
    return tok


def main(data: Path) -> None:
    """Train and save."""
    tok = train(json.loads((data / "bank.json").read_text())["train"])
    tok.save(str(data / "vocabulary.json"))
    print(tok.get_vocab_size(), tok.encode("The Varnel Tower stands in Oslem; 48213.").tokens)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
