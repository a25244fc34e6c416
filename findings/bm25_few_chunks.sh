#!/usr/bin/env bash
# Two BM25 packages on few chunks: one of them ranks chunks without the query word first.
#
# Versions: rank_bm25 0.2.2 and bm25s 0.3.16, both with default options, k1 1.5 and b 0.75.
# Behaviour: BM25Okapi uses log((N - n + 0.5) / (n + 0.5)) as the weight of a word that occurs in n of N texts. This
#   is 0 for a word in exactly half of the texts, and negative for a more frequent word. Negative weights are replaced
#   by a quarter of the mean weight of the vocabulary, which is meant as a small positive floor. With few texts the
#   mean itself is negative, and so is the floor: every text with the word then scores below every text without it.
#   bm25s uses log(1 + ...), which is never negative, so its best text always contains the word.
# Output seen: the README of bm25s, cut into equal chunks; every word that some chunk lacks is a query of its own. With
#   two chunks rank_bm25 cannot distinguish them (all such words score 0). With three it ranks a chunk without the word
#   first, for every word that occurs in two of them. From four chunks on the sign is right, but words in half of the
#   chunks still have weight 0. bm25s is never wrong.
# Why it matters: with the chunks of a short prompt, or a dozen turns of a conversation, N is below ten. There the
#   package decides what a model gets to read, not the constants k1 and b. As a baseline, rank_bm25 makes any other
#   scorer look good.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet rank_bm25==0.2.2 bm25s==0.3.16
"$folder/venv/bin/python" - <<'PYTHON'
import re
from importlib.metadata import metadata

import bm25s
from rank_bm25 import BM25Okapi

readme = metadata("bm25s").get_payload() or metadata("bm25s")["Description"]
words = re.findall(r"[a-z]+", readme.lower())
seen = {}
for count in (2, 3, 4, 8, 16):
    size = len(words) // count
    chunks = [words[i * size : (i + 1) * size] for i in range(count)]
    okapi, sparse = BM25Okapi(chunks, k1=1.5, b=0.75), bm25s.BM25(k1=1.5, b=0.75)
    sparse.index(chunks, show_progress=False)
    asked = nothing = inverted = wrong_sparse = 0
    for word in sorted({w for chunk in chunks for w in chunk}):
        holds = [word in chunk for chunk in chunks]
        if all(holds):
            continue
        asked += 1
        score = okapi.get_scores([word])
        nothing += not score.any()
        inverted += not holds[score.argmax()] and bool(score.any())
        wrong_sparse += not holds[sparse.get_scores([word]).argmax()]
    seen[count] = (asked, nothing, inverted, wrong_sparse)
    print(
        f"{count:2} chunks of {size:4} words: {asked} words asked; rank_bm25: {nothing} score 0 everywhere, {inverted} "
        f"put a chunk without the word first (mean weight {okapi.average_idf:+.3f}); bm25s: {wrong_sparse} wrong"
    )

scores = BM25Okapi([["the", "key", "door"], ["the", "door", "wall"], ["the", "key", "lamp"]]).get_scores(["key"])
print("asked for 'key' of three short texts, of which the first and the last hold it:", scores.round(4))

assert seen[2][1] == seen[2][0], "rank_bm25 now tells two chunks apart"
assert seen[3][2] > 0.1 * seen[3][0], "rank_bm25 no longer inverts with three chunks"
assert seen[4][1] > 0 and seen[4][2] == 0 and seen[8][2] == 0, "the tally of four or eight chunks changed"
assert all(row[3] == 0 for row in seen.values()), "bm25s put a chunk without the word first"
assert scores[0] < 0 and scores[2] < 0 and scores[1] == 0, "three short texts are ranked otherwise"
print("as described")
PYTHON
