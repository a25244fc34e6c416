"""The default scorer with a real drafter: it is the trained head, finds what other words ask for, and stops early."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pytest

from sp.prompt import Prompt, TokenisedPrompt
from sp.scoring import SCORERS, chunk_means
from sp.scoring.base import AutoScorer
from sp.scoring.trained.late_interaction import LateInteractionScorer
from sp.session import Loaded, load
from sp.session.report import retrieval_lines
from sp.session.request import score_request

EVIDENCE = "Since a spring tide in 1911 cracked the lowest steps, the lamp has burned paraffin in place of whale oil."
QUESTION = "What fuel keeps the beacon lit nowadays?"
OTHERS = (
    ("The keeper's kitchen faces south, away from the spray, and its stove never goes out between October and May.",
     "Bread is baked on Wednesdays, when the boat cannot be expected, and on Saturdays, when it usually comes.",
     "A shelf above the table holds tins of peaches, three almanacs and a jar of buttons that nobody has claimed."),
    ("Gulls nest on the ledge below the gallery and have to be driven off before the panes can be washed.",
     "The panes are washed with vinegar and newspaper, from the top row down, by whoever lost at GPUs last night.",
     "In fog the bell is struck by hand, twice a minute, and the men take turns of forty minutes at the rope."),
    ("A path of crushed shells runs from the landing to the door, edged with stones painted white for a visit.",
     "The visit was that of an inspector, who stayed for a quarter of an hour and complained of the wind.",
     "His report, in a clear hand, asks for a second ladder and for fewer goats."),
    ("The goats belong to nobody and were put ashore from a schooner that was short of water.",
     "They eat the sea pinks and the washing, and in hard winters they stand in the lee of the coal shed.",
     "One of them learned to open the gate, and it has been tied with wire ever since."),
    ("Letters arrive in a canvas bag, damp at the corners, with the newspapers of the two weeks before.",
     "The older keeper reads the shipping lists aloud, and the younger one does sums on the back of the envelopes.",
     "Their wages are paid at the harbour office on the first Monday of each quarter, less the price of tobacco."),
    ("Rain from the roof runs through a lead pipe into a cistern under the floor, which holds enough for eleven weeks.",
     "In the dry year water was brought in barrels, and it tasted of herring until the autumn.",
     "A pump with a leather washer stands beside the sink and groans so that visitors think of a ghost."),
    ("From the gallery one sees nine parishes on a clear day, and the smoke of the brickworks on most others.",
     "The younger keeper has drawn all the church towers in a notebook, with their bearings.",
     "He means to marry the daughter of the ropemaker, who has been told of it in two letters."),
    ("The boat is tarred in June, keel up on the shingle, and smells of it until the mackerel come.",
     "Its oars are of ash, its thwarts of larch, and its name was painted over when it changed hands.",
     "Four people can sit in it if none of them minds wet feet, and six once did, in a hurry."),
)  # fmt: skip

CLOSING = (
    ("On Sundays the older keeper winds the clock, checks it by the sun when there is one, and writes both times down.",
     "The difference has grown by a minute a year, which he puts down to the damp.",
     "There is a harmonium without bellows in the upper room, and a bed for the doctor, who has used it twice."),
    ("A cat came with the coal and stayed for the mice, of which there are enough for several.",
     "She sleeps on the chart table, on the strait itself, so that ships seem to pass round her.",
     "When the wind turns north she goes down to the cellar, an hour before the glass falls."),
    ("The tower was built of granite from the mainland, in courses that were numbered at the quarry with red chalk.",
     "Some of the numbers can still be read inside, where no weather comes, and one course stands upside down.",
     "The mason's mark is a fish with two tails; his grandson came to look for it, and found three."),
    ("Visitors sign a book that begins in the year of the comet and has lost its first nine pages to a parrot.",
     "Most of them write about the stairs, of which there are a hundred and eighty-three, and some draw whales.",
     "A bishop wrote nothing but the date, and under it, in pencil, somebody has put that he was sick on the way."),
    ("Potatoes grow in a plot behind the wall, in seaweed and sand, and are small and taste of nuts.",
     "Cabbage was tried twice; the first crop went to the goats, and the second to a gale in August.",
     "Rhubarb does so well that the harbour office has asked them not to send any more."),
    ("In the store hang two coils of rope, a spare tiller, oilskins of three sizes and a stretcher.",
     "Everything in it is listed on a board beside the door, with a column for what is missing.",
     "That column has been empty since the war, although the stretcher has only one handle."),
    ("Both men can swim, which their predecessors held to bring bad luck, and neither does so if he can avoid it.",
     "A line with corks runs from the landing to the rock called the Anvil, where seals lie at low water.",
     "When the seals sing, the cat answers, and the younger keeper closes the window."),
)  # fmt: skip


@pytest.fixture(scope="module")
def cut(loaded_smollm2: Loaded) -> Loaded:
    """SmolLM2 as a run opens it for the default scorer."""
    return load(loaded_smollm2.path, extrapolate=True, device="cpu", scorers=[AutoScorer()])


def asked(loaded: Loaded, place: int, closing: Sequence[tuple[str, ...]] = CLOSING) -> TokenisedPrompt:
    """The text of the lighthouse, its paragraphs from one of them on, with the evidence in the midst of the third."""
    paragraphs = [list(OTHERS[(place + i) % len(OTHERS)]) for i in range(len(OTHERS))]
    paragraphs[2 + place % 4].insert(1, EVIDENCE)
    text = "\n\n".join(" ".join(sentences) for sentences in [*paragraphs, *closing])
    return Prompt.from_document(text, QUESTION, loaded.template, needle=EVIDENCE).tokenise(loaded.tokenizer)


def test_auto_is_the_trained_head_and_stops_behind_it(cut: Loaded) -> None:
    scorer, config = AutoScorer(), cut.model.config
    assert scorer.scorer_for(config) == LateInteractionScorer()
    assert scorer.reading_depth(config) == cut.model.depth == 19
    assert retrieval_lines(cut, scorer, None) == [
        f"drafter: scorer auto is late_interaction for {cut.path.name}",
        "drafter: a trained head of rank 96 on layers 10, 12, 14, 16, 17, 18 of 30; 19 are run",
    ]


def test_less_is_loaded_and_scores_are_the_same(loaded_smollm2: Loaded, cut: Loaded) -> None:
    assert cut.model.weights.output is None
    assert cut.model.nbytes < 0.8 * loaded_smollm2.model.nbytes
    prompt = asked(cut, 0, ())
    part = AutoScorer().score(score_request(cut, prompt)).scores
    scorer = AutoScorer().scorer_for(cut.model.config)
    whole = load(loaded_smollm2.path, extrapolate=True, device="cpu", scorers=[AutoScorer(), SCORERS.build("tail")])
    assert whole.model.depth == 30
    np.testing.assert_array_equal(part, scorer.score(score_request(whole, prompt)).scores)


def test_other_words_find_the_evidence(cut: Loaded) -> None:
    """Question and evidence share no word of content; the best chunk that holds half of it or more ranks high."""
    one, other = ({word.strip("?.,").lower() for word in text.split()} for text in (QUESTION, EVIDENCE))
    assert one & other == {"the"}
    ranks = []
    for place in (0, 5):
        prompt = asked(cut, place)
        assert 1000 < len(prompt) < 1400
        began = time.perf_counter()
        found = AutoScorer().score(score_request(cut, prompt)).scores
        assert time.perf_counter() - began < 30  # some two on idle cores
        scores = chunk_means(found, 32)
        held = np.bincount(np.flatnonzero(prompt.mask("needle")) // 32, minlength=len(scores))
        best = scores[held >= held.max() / 2].max()
        ranks.append(float((scores > best).sum() / len(scores)))
    assert max(ranks) <= 0.15
