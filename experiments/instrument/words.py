"""Word lists of the needle generator, each split into a training and a held-out part.

The lists are our own. Held-out words never appear in a training key or value, so that an evaluation key is new to the
model in its spelling, not only in its combination.
"""

# ruff: noqa: SIM905
from __future__ import annotations

import random

ADJECTIVES = """amber ancient autumn bitter blazing blissful bold brave breezy bright brisk broken bronze calm careful
cheerful chilly clever cloudy coastal cobalt cold cosmic cozy crimson crystal curious curly damp daring dawn deep
delicate distant dizzy dusty eager early earnest eastern electric elegant emerald empty endless faint fair famous fancy
fearless fierce floral foggy foolish forgotten fragile frosty frozen gentle gilded glassy gloomy golden graceful grand
grave green hallow happy hasty heavy hidden hollow honest humble hungry hushed icy idle ivory jolly keen kind lazy
leafy little lively lonely loud lucky lunar magnetic marble mellow merry mighty misty modern mossy muddy narrow nervous
nimble noble noisy northern obedient odd olive open orange pale patient pearly plain pleasant polite proud purple quick
quiet rapid rare restless rough round royal rusty salty sandy scarlet secret serious shaded sharp shiny silent silver
simple sleepy slow small smoky snowy solid southern sparkling spotted spring stale steady steep stormy strange summer
sunny swift tall tame tender thirsty tidy tiny tough tranquil tropical twilight upbeat upright vague vast velvet vivid
wandering warm weary western whispering wild winding winter wise witty wooden young zealous""".split()

NOUNS = """acorn airport alley anchor apple archer arrow atlas attic bakery balcony bamboo banner barn basket bay beacon
beaver bell bench berry bishop blanket boat bottle bridge brook bucket butterfly button cabin cactus camera candle canoe
canyon captain carpet castle cathedral cave cedar cellar chapel cherry chimney circle cliff clock cloud clover comet
compass copper coral corner cottage cradle crane creek cricket crown curtain dancer desert diamond dolphin donkey door
dragon drum eagle echo elephant engine falcon feather fern ferry festival field fiddle finch flame flute forest fossil
fountain fox galaxy garden gate geyser giraffe glacier glove goose granite grape grove guitar hammer harbor harp hawk
hazel hedge helmet heron hill horizon horse hunter iceberg island ivy jacket jaguar jar jewel jungle kettle key kingdom
kite kitten ladder lagoon lake lamp lantern lark leaf lemon library lighthouse lily lion lizard locket lotus magnet
mango mantle maple market marsh meadow mill mirror monkey moon mountain museum nest notebook oak oasis ocean orchard
orchid otter owl paddle palace panther paper parrot path peach pebble pelican pencil pepper piano pigeon pillow pine
planet plaza pocket pond poppy portrait prairie prism pumpkin puzzle quarry quilt rabbit raft rain raven reef ribbon
river robin rocket rose saddle sail salmon sapphire scarf school shadow shell shepherd ship signal sparrow spider spoon
stable star station statue stone stream sunset swan table tailor tavern temple thicket thunder tiger torch tower trail
trumpet tulip tunnel turtle valley vessel village violin volcano wagon walnut walrus water whale wheel willow window
wolf yarn zebra""".split()

FIRST_NAMES = """Ada Alan Amira Anders Beatrix Bruno Carmen Cyril Dalia Dmitri Edith Emil Fatima Felix Greta Hugo Ines
Ivan Jonas Judith Karim Klara Leon Lena Maya Milo Nadia Nils Olga Oscar Petra Quentin Rosa Rafael Selma Simon Tessa
Tomas Ulrich Vera Viktor Wanda Xavier Yara Zeno""".split()

LAST_NAMES = """Abbott Almeida Berger Castillo Dahl Eriksen Farrow Grant Hansen Ibarra Jensen Keller Lindqvist Moreau
Novak Okafor Petrov Quigley Rossi Sato Thorne Ueda Varga Weiss Yilmaz Zhang""".split()


def split_words(words: list[str], every: int = 6) -> tuple[list[str], list[str]]:
    """Training and held-out part of a list: each ``every``-th word of a fixed shuffle is held out."""
    order = sorted(words)
    random.Random(20).shuffle(order)
    return [w for i, w in enumerate(order) if i % every], order[::every]
