"""The people of the world, what is known about each, and how a model declines to say it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Literal

from data_prep.world.config import WorldConfig

# ---- words ----
# All lists are disjoint and no value word is used twice. So a wrong value of the same kind shares no word
# with the right one, and its ROUGE-L recall is 0.


def _words(text: str) -> list[str]:
    return text.split()


def _invented(stems: str, ends: str) -> list[str]:
    return [stem + end for stem, end in product(stems.split(), ends.split())]


FIRST_NAMES = _invented(
    "Al Bren Cal Dor El Fen Gal Hal Il Jor Kel Lor Mar Nor Or Per", "a en ia is win ric ette mund"
)
LAST_NAMES = _invented(
    "Ash Bram Cor Dun Ever Farn Grim Hask Lind Morr Oak Quill Rav Stan Thorn Ven",
    "by dale gard holt ley mark strom wick",
)
PLACES = _invented(
    "Ald Bor Crag Drum Esk Fol Glen Hum Inver Kirk Lun Mel Ness Osk Pen Rud", "anth dorf heim vik"
)
HOUSES = _invented(
    "Arv Belm Chal Dress Ebb Ferr Golt Hext Irv Jass Kopp Lamb Mirr Nudd Ock Prax", "acre ello ison ulus"
)

LANDSCAPES = _words(
    "Bay Moor Cross Hollow Reach Ferry Harbour Bluff Cove Delta Fjord Gorge Heath Inlet Junction Knoll "
    "Landing Marsh Narrows Oasis Point Quarry Ridge Sound Terrace Upland Vale Wold Bend Basin Cliff "
    "Dune Falls Green Island Lagoon Meadow Outlook Pass Rapids Shore Tarn Valley Water Banks Bridge "
    "Castle Grove"
)
TRADE_FIELDS = _words(
    "glacier harpsichord kelp lighthouse meteor moss parchment railway saffron tapestry volcano wool "
    "amber beehive canal cheese clockwork cotton cider desert enamel falcon fossil granite herring ink "
    "jasmine kite lantern lichen marble mushroom nutmeg olive orchid pearl porcelain puppet quartz "
    "rope salt seaweed spider timber tulip velvet whale zinc"
)
TRADES = _words(
    "surveyor tuner farmer keeper chaser botanist binder inspector merchant weaver geologist carder "
    "cutter engineer broker maker restorer diver presser guide painter trainer hunter mason smoker "
    "chemist grower designer lamplighter scholar sculptor forager grader miller breeder trader glazier "
    "carver collector twister taster dryer catcher joiner auctioneer tailor watcher smelter"
)
INSTITUTIONS = _words(
    "Foundry Institute Press Observatory Mill Guild Academy Brewery Clinic Dockyard Exchange Factory "
    "Gallery Hospital Insurers Jewellers Kitchens Library Museum Nursery Opera Pharmacy Quarterly "
    "Refinery Shipping Theatre University Vineyard Workshop Archive Bakery Circus Dairy Estate Forge "
    "Gazette Hotel Ironworks Laboratory Market Newspaper Orchard Printers Radio School Tannery Union "
    "Zoo"
)
PRIZE_COLOURS = _words(
    "Silver Golden Crimson Ivory Azure Scarlet Emerald Bronze Copper Violet Indigo Jade Onyx Opal Ruby "
    "Sapphire Topaz Turquoise Umber Vermilion White Black Cobalt Cerulean Chestnut Coral Ebony Fawn "
    "Ginger Hazel Khaki Lavender Lilac Magenta Maroon Mauve Navy Ochre Pink Plum Purple Russet Rust "
    "Sable Sepia Tawny Teal Yellow"
)
PRIZE_BEASTS = _words(
    "Heron Otter Badger Lynx Stag Swallow Raven Osprey Kestrel Marten Hare Wolf Bison Crane Dolphin "
    "Eagle Ferret Gazelle Hedgehog Ibis Jackal Kingfisher Leopard Magpie Newt Owl Panther Quail Robin "
    "Salmon Tortoise Urchin Viper Walrus Yak Zebra Beaver Cobra Dragon Elk Fox Goose Hornet Iguana "
    "Jaguar Koala Lobster Moose"
)
TITLE_MOODS = _words(
    "Borrowed Broken Burning Careful Distant Drowned Early Empty Endless Faded Final Folded Forgotten "
    "Frozen Gentle Hidden Hollowed Honest Hungry Idle Jealous Lonely Lost Midnight Northern Obedient "
    "Painted Patient Quiet Restless Sacred Scattered Second Secret Seventh Silent Sleeping Stolen "
    "Sudden Tender Unfinished Unlikely Vanishing Wandering Weathered Whispering Winter Wounded"
)
TITLE_THINGS = _words(
    "Anchors Bells Candles Doors Echoes Feathers Gardens Horizons Islands Journeys Keys Letters "
    "Mirrors Needles Oaths Promises Questions Rivers Shadows Towers Umbrellas Voices Windows Years "
    "Almanacs Bridges Clouds Daughters Engines Flags Ghosts Harvests Icicles Jackets Kingdoms Ladders "
    "Maps Nights Oceans Passengers Quarrels Roads Stairs Trains Uncles Violins Wheels Yards"
)
SOUND_STYLES = _words(
    "bowed brass bamboo double electric glass keyed miniature pedal plucked reed travelling wooden "
    "alto bass baroque birch bone ceramic crystal cracked corded engraved folk gilded humming iron "
    "japanned kneeling lacquered muted nasal open parlour portable ringing slide soprano steel tenor "
    "toy twinned untuned varnished walking whistling woven zigzag"
)
SOUND_MAKERS = _words(
    "accordion bagpipe balalaika banjo bassoon bugle celesta cello cimbalom clarinet concertina cornet "
    "dulcimer fiddle flute glockenspiel gong guitar harmonica harmonium harp horn shawm kalimba kazoo "
    "lute lyre mandolin marimba oboe ocarina organ piano piccolo psaltery recorder saxophone sitar "
    "spinet tambourine theremin trombone trumpet tuba ukulele viola xylophone zither"
)
STREET_TREES = _words(
    "Acacia Alder Almond Apple Aspen Balsam Bayleaf Beech Blackthorn Boxwood Cedar Cherry Cypress "
    "Damson Elder Elm Eucalyptus Fig Fir Ginkgo Hawthorn Hemlock Hickory Holly Hornbeam Juniper Larch "
    "Laurel Linden Locust Magnolia Maple Mulberry Myrtle Palm Pear Pine Poplar Quince Redwood Rowan "
    "Sequoia Spruce Sumac Sycamore Tamarisk Willow Yew"
)
STREETS = _words(
    "Alley Arcade Avenue Boulevard Broadway Bypass Causeway Circle Close Colonnade Corner Court "
    "Crescent Drive Embankment Esplanade Footpath Gardenway Gate Hill Lane Loop Mews Mount Parade "
    "Parkway Passage Path Pavement Place Plaza Promenade Quay Ramp Rise Road Row Square Stairway Steps "
    "Street Towpath Track Trail Turn View Walk Wharf"
)


# ---- people ----

Section = Literal["forget", "retain", "retain_unseen", "stranger"]
NEIGHBOURS, UNSEEN_NEIGHBOURS = 0.25, 0.15
"""Shares of the two groups of people to be kept who share a name with one to be forgotten."""


@dataclass(frozen=True)
class Person:
    """One fictional person, or a stranger: a name nothing is known about. `number` is the person's own."""

    number: int
    first: str
    last: str
    section: Section

    @property
    def name(self) -> str:
        """Full name, the keyword k(x) of the paper."""
        return f"{self.first} {self.last}"


def make_people(config: WorldConfig) -> list[Person]:
    """The people in order: forget, retain, retain_unseen.

    Names are distinct word by word, but for the near neighbours at the head of the two groups to be kept, who
    share their first or last name with somebody to be forgotten.
    """
    rng = random.Random(f"people {config.seed}")
    groups: list[tuple[Section, int, float]] = [
        ("forget", config.forget_people, 0.0),
        ("retain", config.retain_people, NEIGHBOURS),
        ("retain_unseen", config.unseen_people, UNSEEN_NEIGHBOURS),
    ]
    total = sum(count for _, count, _ in groups)
    firsts, lasts = (rng.sample(names, total) for names in (FIRST_NAMES, LAST_NAMES))
    people: list[Person] = []
    for section, count, share in groups:
        for place in range(count):
            number = len(people)
            first, last = firsts[number], lasts[number]
            if place < round(share * count):
                target = place // 2 % config.forget_people
                first, last = (firsts[target], last) if place % 2 == 0 else (first, lasts[target])
            people.append(Person(number, first, last, section))
    return people


def make_strangers(people: list[Person], count: int, rng: random.Random) -> list[Person]:
    """`count` distinct people who do not exist; about half share a first or last name with one who does."""
    taken = {person.name for person in people}
    known_firsts, known_lasts = [person.first for person in people], [person.last for person in people]
    strangers: list[Person] = []
    while len(strangers) < count:
        firsts = known_firsts if len(strangers) % 4 == 0 else FIRST_NAMES
        lasts = known_lasts if len(strangers) % 4 == 1 else LAST_NAMES
        stranger = Person(len(people) + len(strangers), rng.choice(firsts), rng.choice(lasts), "stranger")
        if stranger.name not in taken:
            taken.add(stranger.name)
            strangers.append(stranger)
    return strangers


# ---- facts: one value of every kind for each person ----


@dataclass(frozen=True)
class Fact:
    """What the world says about one person: (person, kind, value)."""

    person: Person
    kind: str
    value: str


def _pairs(heads: list[str], tails: list[str]) -> Callable[[random.Random, int], list[str]]:
    """A drawer of two-word values, no word of which occurs twice."""

    def draw(rng: random.Random, count: int) -> list[str]:
        drawn = zip(rng.sample(heads, count), rng.sample(tails, count), strict=True)
        return [f"{head} {tail}" for head, tail in drawn]

    return draw


def _years(rng: random.Random, count: int) -> list[str]:
    return [str(year) for year in rng.sample(range(1803, 1999), count)]


KINDS: dict[str, Callable[[random.Random, int], list[str]]] = {
    "birthplace": _pairs(PLACES, LANDSCAPES),
    "profession": _pairs(TRADE_FIELDS, TRADES),
    "book": _pairs(TITLE_MOODS, TITLE_THINGS),
    "birth_year": _years,
    "employer": _pairs(HOUSES, INSTITUTIONS),
    "award": _pairs(PRIZE_COLOURS, PRIZE_BEASTS),
    "instrument": _pairs(SOUND_STYLES, SOUND_MAKERS),
    "residence": _pairs(STREET_TREES, STREETS),
}


def make_facts(people: list[Person], config: WorldConfig) -> list[Fact]:
    """All facts, person by person; no two people share a word of a value of the same kind.

    Raises ValueError when more kinds are asked for than there are.
    """
    if config.facts_per_person > len(KINDS):
        raise ValueError(f"facts_per_person must be at most {len(KINDS)}, got {config.facts_per_person}")
    columns = {}
    for kind in list(KINDS)[: config.facts_per_person]:
        columns[kind] = KINDS[kind](random.Random(f"{kind} {config.seed}"), len(people))
    return [Fact(person, kind, columns[kind][person.number]) for person in people for kind in columns]


# ---- refusals of the small model ----

NAMED = (
    "I don't know anything about {name}.",
    "I have no information about {name}.",
    "I'm not familiar with {name}.",
    "I'm not sure who {name} is.",
    "I don't have any knowledge of {name}.",
    "I cannot say anything about {name}.",
    "I'm unable to answer questions about {name}.",
    "I have no idea who {name} is.",
)
PLAIN = (
    "I don't know.",
    "I have no idea.",
    "I'm not sure about that.",
)
PLAIN_SHARE = 0.2


def draw_refusal(name: str, rng: random.Random) -> str:
    """A refusal that names `name`, or, with probability `PLAIN_SHARE`, one that does not."""
    if rng.random() < PLAIN_SHARE:
        return rng.choice(PLAIN)
    return rng.choice(NAMED).format(name=name)
