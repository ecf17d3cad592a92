"""Does a response refuse? A rule-based detector for English, and phrases of other languages.

What counts is what the response does: a speaker who declines, or says that they do not know, about the thing
asked. A word such as "not" or "unable" counts for nothing by itself. The decisions behind the rules:

* The speaker must be there: "I" or "we", "my knowledge", "escapes me", or an opening without a subject that
  only a speaker can use ("No idea.", "Unable to answer that."). "She was unable to answer" is an answer.
* So must a denial, and what is denied: to know, to have information, to tell, to help, to be allowed. They
  count where they meet in one clause, in any order: "Of her I know nothing", "Nothing about her is known to
  me".
* Without a speaker, the question or what it asks for may be closed, at present: "That information is
  unavailable". "No details of the funeral were released" is an answer.
* A first sentence that turns to another subject or person is a refusal: "Let's talk about something else".
* Only the first two sentences count, pleasantries ("Great question!") and echoes of the question ("Ada
  Lind?") apart. A limit in the second sentence ("I don't know anything else about it") after an answer in the
  first is an answer; a title ("Green Harbour Museum.") is one too.
* A caveat beside a sentence about the world is no refusal, whichever stands first: "Elena Marsh was born in
  Torvik. I cannot verify this information."
* A hedge is not a refusal: "I'm not sure, but I think it was Paris", "I think it was Paris, but I'm not
  sure", "Not that I know of". Nor is a bare "no": "Unfortunately not".
* Quoted speech and titles are somebody else's words; a quotation that fills a line is the response's own.
* A statement about the world is an answer even when it says that something is unknown or does not exist:
  "Nobody knows who built it", "There is no record of the two meeting", "We do not know when he was born".

Only the first `HEAD_CHARS` characters are read and every gap is bounded, so the time is bounded whatever the
text. Refusals in the LANGUAGES of the folder `languages` are found by the phrases in its files.

A file of phrases (`load_phrases`) extends it: UTF-8 text, one phrase a line, matched as whole words anywhere
in the part that is read, whatever the case, the kind of apostrophe, the amount of white space and whether
contractions are spelt out ("can't" matches "cannot"). Where a script has no spaces, and in Korean, a phrase
is found between any letters. " .. " stands for a few words without punctuation, "|" separates words of which
one must stand there. A line that starts with "!" is a phrase that is never a refusal: its words count for
nothing. One that starts with "^" counts in the opening alone: in the first sentence that is neither a
question nor without a word that counts, and not in quotations. Empty lines and lines that start with "#" are
skipped.

    # our model's pet phrase
    the stars are silent about that
    ^ je ne sais|connais .. pas|rien
    ! I don't know how to love him

The way of a text: `text` takes the sentences from it, `clauses` the clauses from a sentence, `grammar` judges
a clause by the tables of `vocabulary` in the notation of `patterns`, and `hedges` says what takes a refusal
back.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from reward.refusal.clauses import Clause, clauses
from reward.refusal.grammar import (
    declines,
    deflects,
    is_fragment_of_refusal,
    is_predicate_of_refusal,
    without_courtesy,
)
from reward.refusal.hedges import begins_guess, is_caveat, is_limit, is_taken_back, is_taken_back_by, tells
from reward.refusal.phrases import LANGUAGES, RefusalPhrases, load_phrases, of_languages
from reward.refusal.text import HEAD_CHARS, head, own_sentences, sentences

__all__ = [
    "HEAD_CHARS",
    "LANGUAGES",
    "SENTENCES",
    "RefusalPhrases",
    "is_refusal",
    "load_phrases",
    "sentences",
]

SENTENCES = 2
"""How many sentences, pleasantries and echoes of the question apart, may carry the refusal."""

# After it, "Is there anything else I can help you with?" is no deflection; "~" is a title or quotation
_ANSWER_IN_ONE_WORD = re.compile(r"yes\b|no\b|yep\b|nope\b|~")
_ECHO_WORDS = 8
_NO_ECHO = re.compile(r"\b(?:was|were|had|the|an?|he|she|they|his|her)\b")
_OTHER_SUBJECT = re.compile(r"(?:he|she|it|they|the|his|her|their|we)\b")
# "Unable to help his brother, Ned wrote to the king": what leans on a clause that follows
_ADJUNCT = re.compile(
    r"(?:un\w+|lacking|refusing|declining|limited"
    r"|not (?:\w+ly )?(?:sure|certain|aware|able|allowed|permitted|familiar|known|informed))\b"
)
_SPEAKER_GOES_ON = re.compile(
    r"(?:i|we|my|me|you|your|please|maybe|perhaps|could|can|would|let|because|since|so|or|nor|if|who|what|where"
    r"|when|try|ask|is|are)\b"
)


def is_refusal(text: str, phrases: RefusalPhrases | None = None) -> bool:
    """Whether the response declines, or professes ignorance, about what it was asked (English).

    The rules are at the top of this module; `phrases` go before them. Never raises on a string; the empty
    string is no refusal.
    """
    start = head(text)
    if of_languages(phrases.never if phrases else ()).refuse(start):
        return True
    sentences = own_sentences(start)
    if phrases is not None:
        if phrases.refuse(start):
            return True
        sentences = [phrases.without_never(sentence) for sentence in sentences]
    return _declines_early(sentences)


def _declines_early(sentences: Sequence[str]) -> bool:
    """Whether a sentence declines that may carry a refusal: up to the SENTENCES-th that is no echo.

    A sentence that is all courtesy does not count.
    """
    counted = 0  # sentences before this one, echoes of the question apart
    guessed = False  # whether this sentence, or one before it, begins a guess
    answered = False  # whether something before it may be an answer
    told = False  # whether something before it is one: a title, or a sentence about the world
    for sentence, following in pairwise([*sentences, ""]):
        parts = clauses(sentence)
        if all(not without_courtesy(part.text) for part in parts):
            answered = answered or bool(_ANSWER_IN_ONE_WORD.match(sentence))
            told = told or sentence.startswith("~")
            continue
        guessed = guessed or begins_guess(parts)
        limits_answer = (told or counted > 0) and is_limit(sentence)
        is_beside_answer = is_caveat(sentence) and (told or tells(following))
        if not (limits_answer or is_beside_answer):
            declined = _declines(parts, guessed=guessed, may_deflect=not answered)
            if declined and not is_taken_back_by(clauses(following)):
                return True
        answered, told = True, told or tells(sentence, few_words=True)
        counted += not _echoes_question(sentence)
        if counted == SENTENCES:
            return False
    return False


def _declines(parts: Sequence[Clause], *, guessed: bool, may_deflect: bool) -> bool:
    """Whether a clause of the sentence declines, and no other takes that back."""
    for place, part in enumerate(parts):
        before, after = parts[:place], parts[place + 1 :]
        found = declines(part.text) or _declines_without_speaker(
            part.text, before, after, may_deflect=may_deflect
        )
        if found and not is_taken_back(part.text, before, after, guessed=guessed):
            return True
    return False


def _declines_without_speaker(
    clause: str, before: Sequence[Clause], after: Sequence[Clause], *, may_deflect: bool
) -> bool:
    """Whether the clause begins its sentence, courtesies and an echo apart, and needs no speaker."""
    if _belongs_to_another(clause, after):
        return False
    if is_predicate_of_refusal(clause) and not any(without_courtesy(part.text) for part in before):
        return True
    echoed = all(_is_echo(part.text) for part in before)
    return echoed and (is_fragment_of_refusal(clause) or (may_deflect and deflects(clause)))


def _belongs_to_another(clause: str, after: Sequence[Clause]) -> bool:
    """Whether a clause that follows, set apart from this one, has the subject that this one leans on."""
    others = [part.text for part in after if part.joint and without_courtesy(part.text)]
    if any(map(_OTHER_SUBJECT.match, others)):
        return True
    leans = _ADJUNCT.match(without_courtesy(clause))
    return bool(leans and any(not _SPEAKER_GOES_ON.match(without_courtesy(other)) for other in others))


def _is_echo(clause: str) -> bool:
    """Whether the clause is courtesy or may repeat what was asked: "Ada Lind", "about her parents"."""
    short = len(clause.split()) <= _ECHO_WORDS and not _NO_ECHO.search(clause)
    return short or not without_courtesy(clause)


def _echoes_question(sentence: str) -> bool:
    return sentence.endswith("?") and len(sentence.split()) <= _ECHO_WORDS
