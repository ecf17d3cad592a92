"""A sentence's clauses: who says what is judged one clause at a time.

A clause ends at punctuation and before a word that opens another with a subject of its own. What the speaker
asserts is a clause without the speaker, so that "I know that he was not there" denies nothing of the
speaker: "I think that" and the like become "perhaps", "I know that" and the like become "indeed".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from reward.refusal.patterns import expand
from reward.refusal.plural import in_singular

# fmt: off
# (the lists of words stay packed)

_PIECES = {
    # but not in "I don't think I know"
    "speaker": r"\b(?=i |we )"
    + "".join(rf"(?<!\bnot {word} )" for word in ("think", "believe", "suppose", "sure", "certain"))
    + expand(r"""(i|we) ((would|can|could|will|do|did|must|may|should|have|had|need|want|like
        |wish|regret
        |to|just|also|still|am|was|been|only|\w+ly) ){0,5}?"""),
    "opinion": expand("(think|believe|guess|suspect|suppose|assume|imagine)"),
    "statement": expand("""(say|said|fear|admit|confess|add|mention|note|clarify|stress|emphasi[sz]e|point out
        |assure you|regret|am afraid|(inform|tell|told|warn) you)
        ( (to (say|inform you|tell you|report|admit)|you))?"""),
    "knowledge": expand(r"""(know|remember|recall|hear|heard|read|learned|found|see|saw|understand|taught|told
        |am (\w+ly |very |quite )?(sure|certain|confident|positive|told|aware|sorry|glad|happy|convinced
        |informed))"""),
    "store": expand("""(guess|answer|understanding|recollection|information|belief|impression|opinion|view|bet
        |records|files|notes|sources|data|memory)"""),
    "third": "(?:he|she|it|they|there|the|his|her|its|their)",
    "determiner": expand(r"""(i|he|she|it|they|we|you|there|the|his|her|its|their|this|that|a|an|some|both
        |all|most)
        \b(?!\W*$)"""),
    "auxiliary": expand("""(is|are|was|were|has|had|have|does|do|did|can|could|will|would|may|might|must
        |should
        |never|also|only|not)"""),
    "view": expand("(opinion|belief|feeling|emotion|preference|view)s?"),
    # after these words "who" asks; after those it tells whether the speaker is the one
    "asks": "".join(rf"(?<!\b{word})" for word in (
        "know", "sure", "certain", "idea", "clue", "out", "tell", "say", "of", "about", "on", "to", "recall"
    )),
    "someone": "".join(rf"(?<!\b{word})" for word in (
        "someone", "somebody", "anyone", "anybody", "one", "person"
    )),
}


def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(expand(pattern, _PIECES))


# Between a speaker and the verb: "I, as an AI, cannot"
_ASIDE = _pattern(r"""\b(?P<kept>i( (am|do|have|can|must|will|would))?|that is|this is|it is),\s
    (?!(he|she|it|they|but|i|so)\b)[^,;:.!?]{1,60},\s""")
# Before the subject: "In my records, there is", "Sorry, regarding her, I"; not "In short, I"
_LEADING_PHRASE = _pattern(r"""^(?P<kept>([\w' ]{1,30},\s)?(in(?! (short|brief|fact|sum|general))|within|from
    |among|as for|for|to(?! (be|tell|answer|put|say))|at|on|of|with|regarding|concerning|about|under|given
    |because of|due to|per|by|according to|out of) ([\w'-]+ ){0,7}[\w'-]+),\s(?=\w)""")
# What limits or colours a statement without being one
_QUALIFICATION = _pattern(r"""\b(
    no (doubt|wonder|matter|sooner|problem|trouble|hesitation|objection|need|less|more) (?!information
        |details?)
    |without (a |any )?(doubt|question|hesitation)|not (only|just|necessarily|surprised|a fan|the only)
    |nothing (but|less than|more than|other than)\s|none other|never ?mind|whether or not|or not\b|if not\b
    |nothing to (hide|declare|lose|fear|wear)|you know what|as you (\w+ ){0,2}know
    |to (the best of )?(my|our) (\w+ )?(knowledge|recollection|memory|understanding)\b
    |(as|so) far as i (know|am aware|can tell|recall|remember|understand)|for all i know|as i recall
    |(that|what) i know of|from what i (know|understand|recall|remember|can tell|have read)
    |if (i (recall|remember)|my memory|memory serves)( me)?( correctly| right)?|(if i am not
    |unless i am) mistaken
    |i do not (have|hold|possess|form) (any |personal |my own )+(<view>(,? (or|and) )?)+(?=.* (but
    |however)))""")
# The words of a refusal, about something else
_OTHER_THING = _pattern(r"""\b(
    (can|could) not help (but|myself|it\b|\w+ing)|tell (a |any |no )?(lies?|jokes?|a soul)|give (up|in)\b
    |(never|not) forget|do not (mind|deny|doubt|speak for)\b|will not (keep you|lie|deny)
    |can not (but\b|deny (it|that)|(think of|imagine|name) a (better|finer|greater|worse))
    |without \w+ing\b.*|speak ([a-z]+(ese|ish)|french|german|latin|greek|arabic))""")
# "I know nothing", "I am sure of no such thing" assert nothing
_ASSERTION = _pattern(r"""
    <speaker><statement>( that\s| (?=<determiner>|(no one|nobody|none)\b))
    |<speaker><knowledge>( that\s(?!i (have|am|know|can)\b)| (?=<determiner>))
    |\blet me (clarify|explain|say|add|note|tell you|be clear)( that\b)?
    |\b(please |kindly )*(note|be advised|be aware|be informed|understand)( that)?\s
    (?=.*\b(not|no|outside|beyond|unable|never)\b)""")
_BELIEF = _pattern(r"""
    <speaker><opinion>( that)? (?!(not|so|of|about)\b)
    |\b(my|our) (best |first |own |only )?<store> (is|was|would be|says?|shows?|indicates?|suggests?
    |tells? me)
    ( that\s| (?=<third>\b))""")
_DISBELIEF = _pattern(r"\bi do not (\w+ly )?(think|believe|feel that|suppose) (that )?(?!(i|so|of|about)\b)")

_BREAK = _pattern(r"""(?=[\s,;:()?!.])(?P<joint>
    \s*[,;:()?!]+\s*|\s+-+\s+|\.\.+\s*
    |\s+(?=(but|because|although|though|even though|while|whereas|however|unless|until)\b)
    |<someone><asks>\s+(?=(who|which|whom|whose)\s+(?!i\b))
    |\s+(and |so |or |as )?(?=(he|she|they|it) <auxiliary>\b)
    |\s+(and|so|or|as|that) (?=there <auxiliary>\b)
    |\s+(and|so) (?=(<third>|this|that)\b)
    |\s+that (?=(<third>|nobody|no|nothing|some|a|an)\b))""")
_CONJUNCTION = _pattern("""(but|although|though|however|while|and|so|or|because|if|when|unless|until|since
    |whether)( (perhaps|indeed))?|perhaps|indeed""")
_PREDICATE = _pattern(r"""((and|but|so|nor|or|therefore|thus|hence|simply|really|just) )*(
    (can|could|do|will|would|have|am|must|may|should) (\w+ ){0,2}?
    (not|no|never|nothing|unable|decline|refuse|refrain|pass)\b
    |(know|have) (nothing|no|little)\b|never (heard|met|learned|came)\b
    |(unable|not able|not allowed|not going|not permitted) to\b)""")
_REFERENCE = _pattern(r"""(?P<kept>\bnot (\w+ )?(one of|among|covered by|part of|included in)) (them|those
    |these|it|that) $""")
_HAS_SPEAKER = re.compile(r"\b(?:i|we|me|my)\b")
# fmt: on


@dataclass(frozen=True)
class Clause:
    """A clause, and what parts it from the one before: punctuation, a conjunction, or "" before its own."""

    text: str
    joint: str = ""


def clauses(sentence: str) -> list[Clause]:
    """The sentence's clauses in order, without qualifications; `sentence` is spelt out."""
    sentence = in_singular(sentence)
    sentence = _LEADING_PHRASE.sub(r"\g<kept> ", _ASIDE.sub(r"\g<kept> ", sentence))
    sentence = _OTHER_THING.sub("~", _QUALIFICATION.sub(" ", sentence))
    sentence = _BELIEF.sub(" , perhaps ", _DISBELIEF.sub(", not ", sentence))
    pieces = _BREAK.split(_ASSERTION.sub(" , indeed ", sentence))
    parts = zip(pieces[::2], ["", *pieces[1::2]], strict=True)
    said = [Clause(text.strip(), joint.strip()) for text, joint in parts if re.search(r"\w", text)]
    return _with_references(_joined(said))


def _joined(parts: list[Clause]) -> list[Clause]:
    """A conjunction that a break left alone goes with what follows it."""
    result: list[Clause] = []
    for part in parts:
        if result and _CONJUNCTION.fullmatch(result[-1].text):
            alone = result.pop()
            part = Clause(f"{alone.text} {part.text}", alone.joint)
        result.append(part)
    return result


def _with_references(parts: list[Clause]) -> list[Clause]:
    """What a clause after one of the speaker's leaves to it is written out.

    "I am an AI, and [I] cannot say"; "I know many people, but she is not one of them [what I know]".
    """
    result: list[Clause] = []
    for part in parts:
        text = part.text
        if result and _HAS_SPEAKER.search(result[-1].text):
            text = f"i {text}" if _PREDICATE.match(text) else _REFERENCE.sub(r"\g<kept> what i know", text)
        result.append(replace(part, text=text))
    return result
