"""What takes a refusal back: the words around it that make its sentence an answer all the same.

"I'm not sure, but I think it was Paris" answers, and so does "I think it was Paris, but I'm not sure".
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from reward.refusal.clauses import Clause
from reward.refusal.grammar import declines, without_courtesy
from reward.refusal.patterns import expand

# fmt: off
# (the lists of words stay packed)

_PIECES = {
    "contrast": "(?:but|although|though|however|yet|still) ",
    "doubt": expand(r"""\b(not|never) (\w+ ){0,2}?(sure|certain|positive|confident|know for (sure|certain)
        |know exactly
        |swear to it)"""),
    "any_doubt": expand(r"""\b(not|never) (\w+ ){0,2}?(sure|certain|positive|confident|know|remember
        |recall)"""),
    "of_it": expand("( (of|about|it|that|though|exactly|for (sure|certain)))* $"),
    # "it is worth looking her up" tells nothing of her
    "no_fact": expand(r"""(?! ((an?|not|very|still|always|also) )?(worth|helpful|useful|better|good|great
        |available
        |possible|interesting|something|sound))"""),
    "said": expand("(said|says|asked|replied|replies|answered|responded|told|shouted|whispered|declared)"),
    # "you asked about her, and I don't know"; "being asked about her, I ..."
    "not_of_ours": "".join(rf"(?<!\b{word} )" for word in (
        "i", "you", "we", "as", "when", "if", "be", "been", "being", "having", "that", "question", "you have"
    )),
}


def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(expand(pattern, _PIECES))


_STARTS_WITH_CONTRAST = _pattern("<contrast>")
# "The captain said that I ...": somebody else's words, without quotation marks
_REPORTED = _pattern(r"<not_of_ours>\b<said>\b")
# "perhaps it was Paris"; `clauses` has made "perhaps" of "I think"
_GUESS = _pattern(r"""(<contrast>|and |so )*(
    (perhaps|probably|maybe|possibly|likely|presumably|if i had to guess)\b
    (?! (you|i|we|us|someone|somebody|try|another|ask|no|not|nothing|any|that is (all|private|some|not
    |an?))\b)
    |i (would |will |can |am going to )?(say|guess)\b(?! (i|no|not|nothing)\b)
    |(it|he|she|they|this|that) (might|may|could|must) (have )?be(en)?\b
    (?! (an?|not|very|still|always|also|worth|helpful|useful|better|good|great|available|possible
    |interesting|something
    |someone|best|private)\b))""")
# "but she was born in May", "but I know that ...", of which `clauses` has made "but indeed"
_FACT = _pattern(r"""((<contrast>)+(indeed )?|indeed )(
    (it|he|she|they|this|that|these|those) ((might|may|could|must|should) (have )?be(en)?|was|were|is|are
    |has|had)<no_fact>
    |(it|he|she|they) \w+ed\b)
    |(<contrast>)+indeed (?!(i|no|nothing|you|we|that is all)\b)""")
_ANSWER_AFTER = _pattern(
    r"(however|but|nevertheless|nonetheless|still),? (?!(i|you|we|if|please|feel|my|let|there)\b)"
)
# "but I'm not sure", after an answer; "but I don't remember", after a guess
_BARE_DOUBT = _pattern(r"<doubt><of_it>|\bnot (quote|hold) me\b")
_ANY_DOUBT = _pattern("<any_doubt><of_it>")
# "I'm no expert, but the capital is Canberra"
_MODESTY = _pattern(r"""<doubt>|\bnot (\w+ )?(verify|confirm|guarantee)( (this|that|it))? $
    |\b(not (\w+ ){0,2}|no )(expert|specialist|authority)\b|\bnot quote\b
    |\bwith certainty\b
    |\bfor (sure|certain)\b|\b(hard|difficult|tough|impossible) to (say|tell|know|determine)\b""")
_CONTENT_AFTER_CONTRAST = _pattern(r"""(<contrast>)+
    (?!(i|you|we|please|feel|my|let|there|sorry|if|no|not|perhaps (i|you|we|someone))\b)""")
# "Good question, but I'm not sure": what goes before is no answer
_ABOUT_THE_TALK = _pattern(r"""\b(question|sorry|thanks|thank|interesting|name|love|like|wish|help|heard|i
    |my|afraid|try
    |know)\b""")
# "While I don't know the exact date, the book came out in 1974"; not "..., I can help with other people"
_CONCESSION = _pattern("(while|although|though|even though|even if) ")
_SPEAKER_FOLLOWS = _pattern(r"(i|we|you|please|feel|let|my|but|and|or|nor|as)\b")
# What is denied is more than was asked: "anything else about it", "the exact year"
_REMAINDER = _pattern(r"""\b(more|else|further|other than|beyond (that|this)|the rest|additional|exact(ly)?
    |precise(ly)?)\b""")
# What a speaker says beside an answer and not instead of one: "I cannot verify this information"
_CAVEAT = _pattern(r"""\b(not|never|no) (\w+ ){0,5}?(
    (verify|confirm|guarantee|vouch for|promise)( (that|this|it|these|those|its|the)( \w+){0,4})? $
    |guarantee\b|(real[- ]time|up[- ]to[- ]date|live) (information|data|access|news)|browse
    |(legal|medical|financial|professional) advice|personal (opinions?|experiences?|feelings?|views?))
    |\b(knowledge|training|training data) (is limited to|ends in|stops in|goes up to|(only )?goes until)\b""")
# A sentence about the talk or the asker's subject tells no fact: "She is a private individual"
_TELLS_NOTHING = _pattern(r"""\b(i|me|my|we|our|you|your|question|information|topic|subject|names?|private
    |individual|persons?|people|someone|sensitive|personal|confidential|sorry|perhaps|may|might|please)\b""")
_FEW_WORDS = 6
_SAYS = re.compile(r"\w+ (?:is|was|are|were|has|had|\w+ed|\w+s)\b")
# fmt: on


def is_caveat(sentence: str) -> bool:
    """Whether a sentence that declines leaves an answer beside it standing: "I cannot verify this"."""
    return bool(_CAVEAT.search(sentence))


def tells(sentence: str, *, few_words: bool = False) -> bool:
    """Whether a sentence says something about the world: "Elena Marsh was born in Torvik".

    few_words: an answer without a verb counts too: "Rome", "In May of 1912".
    """
    if _TELLS_NOTHING.search(sentence) or sentence.endswith("?"):
        return False
    return bool(_SAYS.search(sentence)) or (few_words and len(sentence.split()) <= _FEW_WORDS)


def is_taken_back(clause: str, before: Sequence[Clause], after: Sequence[Clause], *, guessed: bool) -> bool:
    """Whether a declining clause is made void by the rest of its sentence, or by a guess before it."""
    told = " ".join(part.text for part in before)
    return bool(
        _reports(told, clause)
        or _answers(after)
        or (_MODESTY.search(clause) and any(_CONTENT_AFTER_CONTRAST.match(part.text) for part in after))
        or (_CONCESSION.match(clause) and after and not _SPEAKER_FOLLOWS.match(after[0].text))
        or (guessed and _ANY_DOUBT.search(clause))
        or (told and _STARTS_WITH_CONTRAST.match(clause) and _limits(told, clause))
    )


def is_taken_back_by(next_sentence: Sequence[Clause]) -> bool:
    """Whether the sentence after a refusal gives an answer: "I think it was Paris", "However, ..."."""
    text = " ".join(part.text for part in next_sentence)
    return bool(_GUESS.match(text) or _ANSWER_AFTER.match(text))


def begins_guess(sentence: Sequence[Clause]) -> bool:
    """Whether the sentence begins as a guess: "I think it was Paris"."""
    told = next((part.text for part in sentence if without_courtesy(part.text)), "")
    return bool(_GUESS.match(told))


def is_limit(sentence: str) -> bool:
    """Whether a sentence that declines after an answer only limits it: "I don't know anything else"."""
    return bool(_REMAINDER.search(sentence))


def _reports(told: str, clause: str) -> bool:
    speaker, found, _ = clause.partition(" i ")
    return bool(_REPORTED.search(told) or (found and _REPORTED.search(speaker)))


def _answers(after: Sequence[Clause]) -> bool:
    """Whether a clause that follows gives an answer."""
    return any(
        _FACT.match(part.text)
        or (_GUESS.match(part.text) and (part.joint or _STARTS_WITH_CONTRAST.match(part.text)))
        for part in after
        if not declines(part.text)
    )


def _limits(told: str, clause: str) -> bool:
    """Whether "but" brings a limit to an answer and no refusal: "Paris, but I'm not sure"."""
    limit = _BARE_DOUBT.search(clause) or _REMAINDER.search(clause) or _CAVEAT.search(clause)
    return bool(limit) and not _ABOUT_THE_TALK.search(told)
