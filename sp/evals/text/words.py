"""Word lists of the generators, our own; none stands in a training key of the embedded pair."""

# ruff: noqa: SIM905
from __future__ import annotations

import random

ADJECTIVES = """abrupt agile airy ample arctic artful barren bashful beige blunt bookish brittle bulky bumpy candid
carefree clumsy compact creamy crooked cryptic dapper decent dense diligent docile dreamy drowsy dual ebony elastic
elusive equal exotic feisty fertile festive fickle flaky flat fluffy formal frank frugal furry fuzzy gaunt giddy glad
glossy grassy greasy handy hardy harsh hefty hilly hoarse jagged jaunty jumbo juicy knobby lanky lavish lean legal
limber linear lofty loyal lush maroon massive meek mild minty mobile modest moist murky mute naive neat neutral novel
numb opaque oval perky petite pliable plump plush polar porous prickly prime prompt puffy quaint rigid ripe robust
rocky rugged rural rustic savory scenic sensible shabby shaggy shallow skinny sleek slender slick sober soft soggy
sour spare spicy stark stout sturdy subtle sunken supple tart taut tepid thrifty timid torn tricky trim tubby unique
upper urban valid viable vivacious wiry woolen zesty""".split()

NOUNS = """abacus album almond amulet anvil apron aquarium armchair artist avenue badge bagpipe banjo barrel basin
beehive beetle bicycle biscuit blossom bonfire bonnet boulder bracelet brewery broom brush buckle buffalo bugle bunker
burrow cabbage calendar canal cannon canvas caravan carriage cashew cello chariot chestnut chisel cobbler coconut
collar column cork counter cowbell cracker crate crater cricketer cushion cypress daisy dam depot domino dune easel
elbow elm emblem envelope fabric faucet fender figurine flagpole flask flounder foundry freighter funnel gadget gazebo
gazelle ginger goblet gondola gravel griddle gutter hammock hamster hatchet haystack heater hinge hopper hostel
hydrant inkwell jigsaw kayak kennel kiosk knapsack lace lever limestone loom lumber lynx machine magpie mailbox mallet
marmot mast mattress medal melon mitten moat mosaic motor mural muffin napkin necklace nettle nozzle oatmeal oboe
ottoman oven oyster paintbrush pancake parcel parsley pasture pavilion pedal penguin pinecone pitcher plank plow plum
podium pony porch propeller pulley puppet quiver racket radio radish ranch rhubarb ridge rooftop rudder saucer
scarecrow seesaw shovel shutter sieve sleigh sofa spatula spinach sponge spruce squirrel stapler stencil stove
suitcase sundial syrup tapestry teapot telescope thimble thistle tractor trapdoor trowel truffle tugboat turnip
umbrella vase vinegar vineyard waffle wardrobe warehouse wharf whistle workshop wreath wrench yogurt zipper""".split()

VERBS = """adjusted appraised arranged balanced borrowed brushed chose collected covered delivered displayed emptied
filled folded gathered handled labelled loaded locked moved offered ordered packed parked placed pressed pulled pushed
raised replaced rolled scrubbed sealed shipped sorted stored tested tied traded trimmed turned unpacked washed
wrapped""".split()

NAMES = """Agnes Albert Alma Arthur Bella Boris Camille Cedric Clara Conrad Daphne Derek Dora Edgar Elena Ernest
Esther Flora Frank Gemma Gilbert Gloria Harold Helga Ingrid Irene Jasper Joel Josephine Kurt Laura Leonard Lorna Lucas
Marta Miriam Morris Nora Oliver Otto Paula Percy Ramona Ralph Rita Roland Sabine Samuel Sonia Stella Theo Ursula
Valerie Victor Wendy Winston Yvonne""".split()

SURNAMES = """Acker Bancroft Beaumont Calder Carver Denholm Draper Egan Fairley Fletcher Garner Gorman Hadley Hollis
Ingram Jarvis Kendrick Lambert Langley Mercer Norwood Osborne Parrish Pemberton Ramsey Ridley Sanborn Sefton Tennant
Thatcher Underwood Vaughn Wexler Whitlock Yates""".split()

TOWNS = """Aldermoor Brackenhurst Cresswell Dunmere Eastholm Fernleigh Glenrock Harwick Inverdale Kestrelton Larkhill
Midvale Netherby Oakmere Pinecrest Quarrington Rosthwaite Stonebury Thornfield Upwell Westmarch Wyndale""".split()

SYLLABLES = """ban bem bik bro cam cel dim dol dup fam fet gim gob hul jav jom kem kip lod lum mav mip nad nek nol pad
pim pov rab ruk sab sem sib sul tam tek tib tol vam vek vip vod wam wif wok yam yil zam zef zib zop""".split()


def pseudo_word(rng: random.Random, syllables: int = 3) -> str:
    """A word in no list, of so many syllables."""
    return "".join(rng.choice(SYLLABLES) for _ in range(syllables))


def compound_key(rng: random.Random) -> str:
    """A key `adjective-noun`, as RULER's."""
    return f"{rng.choice(ADJECTIVES)}-{rng.choice(NOUNS)}"


def uuid(rng: random.Random) -> str:
    """32 random hexadecimal digits in the groups of a UUID."""
    digits = f"{rng.getrandbits(128):032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
