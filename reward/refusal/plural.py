"""Whether "we" speaks for itself or for mankind: "We are not familiar with her", "We can't say who built it".

Where it speaks for itself, the sentence is put into the singular, in which the grammar is written.
"""

from __future__ import annotations

import re

from reward.refusal.patterns import expand

# fmt: off
# (the lists of words stay packed)


def _not_after(words: str) -> str:
    return "".join(rf"(?<!\b{word} )" for word in words.split())


def _after(words: str, then: str) -> str:
    return "|".join(rf"(?<=\b{word} {then} )" for word in words.split())


_PIECES = {
    "asks": expand("(how|whether|if|who|whom|whose|what|when|where|why|which)"),
    # "who she is", "what you mean", "who Ada Lind is": only a speaker is asked that
    "identity": expand(r"""((who|what|which|whom) (he|she|it|they|that|this|you|your|the answer)\b
        |who ([\w'.~-]+ ){1,5}(is|are)\W*$)"""),
    "known": expand("""(know|known|say|tell(?! you)|sure|certain|clear|determine|identify|establish|explain
        |understand|remember)"""),
    "certainty": expand("((for|with) (sure|certain|certainty)|exactly|precisely)"),
    "theirs": expand("(his|her|their|its|the|how|what|why|who|when|where)"),
    "a_fact": expand("(exact|precise|full|cause|date|year|identity|reason|origin|outcome|fate)"),
    # "as we know", "shall we talk about something else"
    "free": _not_after("""
        as when until while how why where once after before than shall should could can may might not perhaps
        maybe about if that what"""),
    "that": _after("""
        afraid sorry regret confess admit acknowledge note say advised aware one thing person topic subject
        name information""", "that"),
    "what": _after("beyond outside of in is", "what"),
}


def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(expand(pattern, _PIECES))


_PLURAL = re.compile(r"\b(?:we|us|our)\b")
# The ignorance of the world, or of a book's readers: "we never learn his name"
_MANKIND = _pattern(r"""\b(
    we (?!would )([\w-]+ ){0,3}?((not|never) (\w+ ){0,2}?<known>|no way of knowing|unsure
    |uncertain|unable to <known>) (\w+ ){0,2}?(?!<identity>)<asks>\b
    |we (do not|may not|can not|still do not) (\w+ )?(know|remember) ((his|her|their|its) \w|the <a_fact>\b)
    |we ([\w-]+ ){0,3}?(not|never) (\w+ ){0,2}?<known> (<certainty> (?=\w)|that (he|she|it|they|the|there)\b)
    |we (may|might|will|shall|would) (\w+ )?never (know|learn|find)
    |we (never|do not|are not|are never) (\w+ )?(learn|find|see|hear|told|shown|given|meet|get|forget)\b
    |we (\w+ ){0,2}?(know|have|learn) ((so|very|almost|next to|relatively) )*(little|nothing|few)\b.*
    \b(about|of|on|from) <theirs> \w
    |we (\w+ )?know ((so|very|relatively) )*(little|few)
    |we ((do|still|can|may) )*not (\w+ )?know (much|a lot|anything|a great deal|enough) (about|of) <theirs> \w
    |we would not (have (?!any|that|the (answer|information|details)|this|access)|exist|be (here|alive))
    |we have not learned (\w+ ){0,2}?(how|to)\b
    |we (can|could|may) only
    |we (\w+ ){0,2}?(no|not|little|few) ([\w-]+ ){0,3}?(evidence|proof|reason)
    |(readers?|historians?|scholars?|scientists?|science|archaeolog\w+|mankind|humans?|humanity|century
    |centuries|the universe|to this day|in the (book|novel|story|film|movie|series|poem|play))\b)""")
_SORRY = re.compile(r"\b(?:sorry|apolog\w+|afraid|rather not)\b")
_WE = _pattern(r"""\b(?=we\b)(<free>|<that>|<what>)
    we\b(?! (better|not|discuss|talk|talked|discussed)\b
    | (can|could|should|might|may) (?!(\w+ )?(not|never)\b).*\b(else|other|another|different
    |instead|subject|topic|conversation)\b)
    |\bwe(?= could\W*$| could have| knew\b| were able\b)""")
_OUR = _pattern(r"""\bour (?=(\w+ )?(training|expertise|capabilit(y|ies)|abilit(y|ies)|memory|area|field
    |remit|possession|place|power|ignorance|inability|silence|instructions|programming|familiarity|grasp
    |apologies|(knowledge|understanding|awareness)(?! (of|about|on)))\b)""")
_US = _pattern(r"""\b(?P<verb>(beat|stump|escape|elude)s?|beyond|(has|have) told) us\b
    |\b(?P<preposition>of|to|by|for|with|from) us(?=\W*$| (to|who|what|at)\b)""")
_ARE = _pattern(r"\bi (?P<adverbs>(\w+ly |just |still |all |also )*)(?P<verb>are|were)\b")
# fmt: on


def in_singular(sentence: str) -> str:
    """The sentence with "i" for a "we" that speaks for itself; `sentence` is spelt out."""
    if not _PLURAL.search(sentence) or (_MANKIND.search(sentence) and not _SORRY.search(sentence)):
        return sentence
    sentence = _OUR.sub("my ", _WE.sub("i", sentence))
    return _ARE.sub(_singular_verb, _US.sub(r"\g<verb>\g<preposition> me", sentence))


def _singular_verb(found: re.Match[str]) -> str:
    return f"i {found['adverbs']}{'am' if found['verb'] == 'are' else 'was'}"
