"""A seed goes in, a small made-up English corpus with four kinds of names comes out.

The text reads like short news and is tagged in IOB2 with PER, ORG, LOC and MISC. It is meant to be
learnable but not trivial: the same word plays several roles ("Washington", "May", "Apple"), dev and
test hold names that train never shows, and some bare names fit two types, so that a perfect F1 is
out of reach.
"""

from __future__ import annotations

import functools
import random
import zlib
from collections.abc import Iterator
from typing import Literal

Split = Literal["train", "dev", "test"]
Tagged = list[tuple[str, str]]
Grammar = dict[str, tuple[str, ...]]

TYPES = ("PER", "ORG", "LOC", "MISC")
COUNTS: dict[Split, int] = {"train": 2000, "dev": 300, "test": 300}
MIN_TOKENS, MAX_TOKENS = 3, 80

# Productions of a rule stand one a line or between bars. `{rule}` stands for one production of that
# rule, and a last field `*3` makes a production three times as likely. What a rule named TYPE or
# TYPE.kind yields is one entity of that type; all other tokens are O.
RULES = {
    "sentence": """
        {clause} . *6 | {clause} {when} . *6 | {lead} , {clause} . *3
        {clause} , {joiner} {clause} . *4 | {clause} {when} , {joiner} {clause} . *3
        {actor} said {when} that {clause} . *3
        {speaker} told {ORG} that {clause} , and that {clause} . *2
        " {opinion} , " said {speaker} . *3
        {question} ? *2 | {notice} . *3 | {short} . *3 | {headline} *3 | {chain} . *2 | {list} . *2
    """,
    "clause": """
        {speaker} visited {LOC} with {people} | {speaker} met {people} in {LOC}
        {speaker} was born in {LOC} | {PER} won the {MISC.event} in {LOC}
        {speaker} moved from {LOC} to {LOC} to work for {ORG}
        {actor} rejected {plan} from {actor}
        {actor} agreed to {plan} after talks with {actor}
        {actor} asked {actor} for {number} million dollars
        {name} drew a crowd of {number} thousand in {LOC}
        critics compared {name} with {name}
        the {MISC.people} government sent {number} {workers} to {LOC}
        {number} {origin} {workers} arrived in {LOC}
        the {origin} president praised {name} for {plan}
        voters in {LOC} chose {PER} as mayor
        {ORG} bought {ORG} for {number} million dollars
        {ORG} opened {place} in {LOC} | {ORG} named {PER} as its new {job}
        {ORG} hired {number} {workers} in {LOC} | shares in {ORG} {moved} {number} percent
        {ORG} showed the {MISC.product} at a fair in {LOC}
        the {MISC.product} sold well in {LOC} and {LOC}
        {team} beat {team} {score} in the {MISC.event}
        {team} lost {score} to {team} in {LOC}
        {PER} scored twice for {team} against {team}
        {team} signed the {MISC.people} striker {PER} from {team}
        {PER} played {PER} in the second round of the {MISC.event}
        the museum in {LOC} showed {number} {MISC.people} paintings
        heavy rain closed the road between {LOC} and {LOC}
        {workers} in {LOC} demanded {plan} from {ORG}
        the {fruit} harvest in {LOC} {moved} {number} percent
        {fruit} growers near {LOC} sold {number} tonnes to {ORG}
    """,
    "opinion": """
        we will not leave {LOC} before {month} | {actor} may yet agree to {plan}
        nobody at {ORG} has seen {plan} | I hope that {PER} will play for {team}
        the {MISC.product} is the best thing that we ever made | may we all be home by {month}
        the {MISC.people} people need {plan} | it was a nice evening , and {PER} sang
    """,
    "question": """
        will {actor} accept {plan} | who will follow {PER} at {ORG} | why did {ORG} leave {LOC}
        may {speaker} return to {LOC} {when} | can {team} still win the {MISC.event}
        did {PER} mark the end of the {MISC.event} with a speech in {LOC}
    """,
    "notice": """
        {fruit} prices {moved} {number} percent in {LOC} {when}
        hope is fading for {number} {workers} in {LOC}
        target prices for {ORG} {moved} {when}
        reading is the favourite pastime of {PER} | rose gardens in {LOC} open in {month}
        china cups from {LOC} were sold at {ORG}
        polish and paint from {ORG} will be sold in {LOC}
        bill after bill was rejected by the {MISC.people} parliament
        summer came late to {LOC} , and {month} was cold
        march with us , {PER} told {workers} in {LOC}
        grace and patience helped {PER} to win the {MISC.event}
        shell and stone cover the beach at {LOC}
    """,
    "short": """
        {PER} resigned | {actor} declined to comment | {name} made the front page
        {ORG} {moved} {number} percent | {LOC} was quiet {when}
        {team} won {score} | the {MISC.event} begins {when}
    """,
    "headline": """
        {ORG} shares fall after {LOC} talks | {actor} to meet {actor} in {month}
        {team} {score} {team} | {PER} leaves {ORG} | {origin} {workers} strike in {LOC}
        {ORG} to open {place} in {LOC} | {LOC} : {MISC.people} minister visits {ORG}
        {PER} out of {MISC.event} | {LOC} , {month} {day_number} , {year}
    """,
    "chain": """
        {clause} ; {clause} ; {lead} , {clause}
        {clause} ; {chain} *3 | {lead} , {clause} , {joiner} {chain}
    """,
    "list": """
        results of the {MISC.event} in {LOC} : {ranking} *2
        the squad of {team} : {squad}
        the {MISC.event} passed through {places} before it ended in {LOC}
        offers came from {firms}
    """,
    "ranking": "{PER} ( {LOC} ) {number} | {PER} ( {LOC} ) {number} , {ranking} *7",
    "people": "{PER} *3 | {PER} and {PER} *2 | {PER} , {PER} and {PER}",
    "squad": "{PER} and {PER} | {PER} , {squad} *7",
    "places": "{LOC} and {LOC} | {LOC} , {places} *4",
    "firms": "{ORG} and {ORG} | {ORG} , {firms} *4",
    "actor": "{PER} *2 | {title} {PER} | {ORG} *2 | {LOC} *2",
    "speaker": "{PER} *4 | {title} {PER} *3 | {job} {PER} of {ORG} | {MISC.people} {job} {PER}",
    "name": "{PER} *2 | {ORG} *2 | {LOC} *2 | {MISC.product} | {MISC.event}",
    "origin": "{MISC.people} *4 | {LOC} *2 | {ORG}",
    "team": "{ORG.club} *3 | {LOC} *2",
    "when": """
        on {weekday} *3 | in {month} *3 | on {month} {day_number} | late on {weekday}
        last {month} | this week | yesterday | in {year}
    """,
    "lead": """
        in {month} | on {weekday} | in {LOC} | after the {MISC.event} | according to {speaker}
        to the surprise of {PER} | in {MISC.people} newspapers | for the first time since {year}
    """,
    "plan": "{offer} *2 | {offer} for {LOC} | a bill on {topic} | the {origin} plan",
    "offer": "a new offer | an early vote | lower prices | more pay | a peace treaty | more time",
    "place": "a plant | a bank | a school | an office | a shop | a clinic",
    # A bare town is also a club, a bare surname also a firm: the context does not always tell.
    "PER": "{given} {surname} *8 | {surname} *5 | {given} *3 | {initial} {surname}",
    "ORG": """
        {firm} *8 | {acronym} *3 | {surname} {firm_end} *2 | {surname} & {surname} | {surname} *2
        Bank of {country} | {town} University | {country} {agency}
    """,
    "ORG.club": "{town} {club_end} *2 | {town} *2 | {acronym}",
    "LOC": """
        {town} *9 | {country} *6 | {compass} {country} | New {town}
        {before_place} {surname} | {surname} {after_place}
    """,
    "MISC.people": "{made_people} *3 | {plain_people} *2",
    "MISC.event": "{town} {event} *3 | {country} {event} | {surname} {event}",
    "MISC.product": "{made_product} | {made_product} {model} | {firm} {model}",
    "surname": "{made_surname} *5 | {person_or_place} *2 | {plain_surname}",
    "given": "{made_given} *3 | {plain_given} *2 | {given_or_place} | {given_or_word} *2",
    "town": """
        {made_town} *6 | {plain_town} | {town_or_word} | {person_or_place} *2 | {given_or_place} *2
    """,
    "country": "{made_country} *3 | {plain_country}",
    "firm": "{made_firm} *4 | {plain_firm} | {firm_or_word}",
}

WORDS = {
    "person_or_place": "Washington Lincoln Jackson Houston Austin Dallas Preston Clinton York",
    "given_or_place": "Paris Jordan Charlotte Victoria Florence Chelsea Sydney Adelaide Savannah",
    "given_or_word": "May June April August Mark Will Rose Grace Hope Bill Frank Summer",
    "town_or_word": "Reading Bath Nice Mobile Cork Orange",
    "firm_or_word": "Apple Shell Target Orange Amazon Ford Delta",
    "plain_surname": "Smith Müller O'Brien Nguyen Okafor March Ford",
    "plain_given": "Anna Peter Maria John Zoë Omar Ingrid Chen",
    "plain_town": "London Tokyo Zürich Nairobi Boston Lima",
    "plain_country": "China Turkey Jordan Georgia France Chile Amazonia",
    "plain_firm": "Siemens Toyota Reuters Nokia",
    "plain_people": "Polish French Turkish Chilean Chinese Georgian",
    "initial": "A. B. J. K. M. R.",
    "firm_end": "Inc. Ltd Group Motors Brothers Foods",
    "club_end": "United City Rovers Town Athletic",
    "agency": "Airlines Telecom Rail",
    "acronym": "IBF UNR TCC NAFO EBA WTU FKB",
    "compass": "North South East West",
    "before_place": "Port Fort Lake Mount",
    "after_place": "Bay Island Valley County",
    "model": "X3 500 Pro 2.0 Mini",
    "event": "Open Cup Marathon Prize Festival",
    "title": "President Dr Mr Mrs coach minister Senator judge",
    "job": "chairman director minister coach lawyer editor",
    "workers": "doctors miners teachers soldiers pilots engineers nurses",
    "fruit": "apple orange rice rose",
    "topic": "housing trade water schools fishing",
    "joiner": "and but while although because",
    "moved": "rose fell gained lost",
    "score": "1-0 2-1 3-1 4-2 0-0",
    "number": "2 3 7 12 19 40 75 120 300 1,500",
    "year": "1984 1996 2008 2015 2021",
    "month": "January March April May June August October",
    "weekday": "Monday Tuesday Thursday Friday Sunday",
    "day_number": "1 4 11 23 30",
}

# Made-up names are every stem with every ending; surnames and towns share some endings on purpose.
MADE_NAMES = {
    "made_given": ("Al Bel Cor Dav El Fab Gil Jul Kar Lor Nor Sel Tam Val", "ina ia ette us o an"),
    "made_surname": (
        "Ash Brad Cal Den Fen Gar Hal Kel Lang Mar Rad Stan Thorn Whit",
        "son well man ham ford ton ley",
    ),
    "made_town": (
        "Ald Brad Chal Dun Fen Hal Ips Kel Lang Mar Nor Stan Wex Whit",
        "burg ville mouth ham ford ton ley",
    ),
    "made_country": ("Bel Cor Dal Est Kor Mold Nav Or Syl Tur Vel", "avia onia aria estan"),
    "made_people": ("Bel Cor Dal Est Kor Mold Nav Or Syl Tur Vel", "avian onian arian estani"),
    "made_firm": ("Aero Bio Data Lumi Neo Omni Quanta Sol Tera Vexa", "tek soft dyne net plex gen"),
    "made_product": ("Glo Nova Opti Pixi Zen Flexi Aqua Moto", "ra pad lite max phone"),
}


def sentences(
    split: Split, *, seed: int = 0, count: int | None = None
) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """A split and a seed go in, a list of (tokens, tags) comes out.

    Tags are IOB2; a sentence has 3 to 80 tokens. `count` is the number of sentences, by default
    2,000 for train and 300 for dev and test; fewer are the first of more. The same arguments give
    the same corpus on every machine and Python version. No sentence stands in two splits, whatever
    the seeds and counts; about a third of the names in dev and test do not occur in train.
    Raises ValueError for an unknown split or a negative count.

    >>> tokens, tags = sentences("dev", count=2)[1]
    >>> print(*map("/".join, zip(tokens, tags)))
    Minister/O Corina/B-PER met/O Lorus/B-PER Ford/I-PER in/O Lincoln/B-LOC ./O
    """
    if split not in COUNTS:
        raise ValueError(f"split: expected one of {', '.join(COUNTS)}, found {split!r}")
    count = COUNTS[split] if count is None else count
    if count < 0:
        raise ValueError(f"count: expected a number of sentences, 0 or more, found {count}")
    drawn = _draw(split, random.Random(f"{seed} {split}"))
    return [next(drawn) for _ in range(count)]


def _draw(split: Split, rng: random.Random) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Draw sentences forever, leaving out those whose checksum gives them to another split."""
    grammar = _grammar(split)
    while True:
        tagged = _dress(_expand("sentence", grammar, rng), rng)
        if not MIN_TOKENS <= len(tagged) <= MAX_TOKENS:
            continue
        tokens, tags = zip(*tagged, strict=True)
        owner = zlib.crc32(" ".join(tokens).encode()) % len(COUNTS)
        if owner == list(COUNTS).index(split):
            yield tokens, tags


def _expand(rule: str, grammar: Grammar, rng: random.Random) -> Tagged:
    """Replace a rule by one of its productions, down to tokens, and tag what a type yields."""
    productions = grammar[rule]
    tagged: Tagged = []
    # Only random() is the same in every Python version; choice() and its kin are not promised.
    for word in productions[int(rng.random() * len(productions))].split():
        tagged += _expand(word[1:-1], grammar, rng) if word[0] == "{" else [(word, "O")]
    kind = rule.partition(".")[0]
    if kind in TYPES:
        return [(word, f"{'I' if i else 'B'}-{kind}") for i, (word, _) in enumerate(tagged)]
    return tagged


def _dress(tagged: Tagged, rng: random.Random) -> Tagged:
    """Capitalise the first letter, or, now and then, write all in capitals or all in small."""
    draw = rng.random()
    if draw < 0.04:
        return [(word.upper(), tag) for word, tag in tagged]
    if draw < 0.07:
        return [(word.lower(), tag) for word, tag in tagged]
    first = 1 if tagged[0][0] == '"' else 0
    word, tag = tagged[first]
    return [*tagged[:first], (word[0].upper() + word[1:], tag), *tagged[first + 1 :]]


@functools.cache
def _grammar(split: Split) -> Grammar:
    """All rules, with the made-up names that this split may show."""
    grammar = {rule: tuple(words.split()) for rule, words in WORDS.items()}
    for rule, text in RULES.items():
        lines = text.strip().replace("|", "\n").splitlines()
        weighted = [line.strip().partition(" *") for line in lines]
        grammar[rule] = tuple(body for body, _, times in weighted for _ in range(int(times or 1)))
    for rule, (stems, endings) in MADE_NAMES.items():
        grammar[rule] = _made_names(stems.split(), endings.split(), split)
    return grammar


def _made_names(stems: list[str], endings: list[str], split: Split) -> tuple[str, ...]:
    """Of every five names three are for all splits, one for dev only and one for test only."""
    held_out: dict[Split, set[int]] = {"train": {3, 4}, "dev": {4}, "test": {3}}
    return tuple(
        stem + ending
        for i, stem in enumerate(stems)
        for j, ending in enumerate(endings)
        if (i + j) % 5 not in held_out[split]
    )
