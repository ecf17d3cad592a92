"""From a response to the sentences and clauses that its writer answers for.

Quotations, titles and markup are taken out, apostrophes and white space made alike, contractions spelt out
("do not" for "don't", "can not" for "cannot"), everything put in lower case. Reading stops after
`HEAD_CHARS` characters.
"""

from __future__ import annotations

import re
import unicodedata

HEAD_CHARS = 1000
"""How much of a response is read, in characters; two sentences fit."""

_SIGNS = str.maketrans(
    dict.fromkeys("’‘ʼ′´‛ʹ＇", "'") | dict.fromkeys("“”„‟«»″", '"') | {"—": " - ", "–": " - ", "…": "... "}
)
_CONTROLS = ("Cc", "Zs")  # Unicode categories: control characters, spaces
_DROPPED = (
    "Cf",
    "So",
    "Sk",
    "Mn",
    "Cs",
)  # format characters, emoji and other symbols, loose accents, surrogates
# "this assistant" speaks of itself
_SPELLINGS = tuple(
    (re.compile(pattern), spelling)
    for pattern, spelling in (
        (r"\b(\w{2,}in)'(?!\w)", r"\1g"),
        (r"\b(?:idk|dunno|donno)\b(?! is\b)", "i do not know"),
        (r"\btho\b", "though"),
        (r"\bprob(?:s|ly)?\b", "probably"),
        (r"\bi i do not know\b", "i do not know"),
        (r"\b(?:can(?:'?t|not)|cant)\b", "can not"),
        (r"\bwon'?t\b", "will not"),
        (r"\bshan'?t\b", "will not"),
        (
            r"\b(do|does|did|have|has|had|is|are|was|were|could|would|should|might|must|need|dare)n'?t\b",
            r"\1 not",
        ),
        (r"\b(?:ain't|aint|amn't)\b", "am not"),
        (r"\bi'?m\b", "i am"),
        (r"\b(?:ima|i'mma|imma)\b", "i am going to"),
        (r"\b(i|we|you|they)'ve\b|\bive\b", lambda found: f"{found[1] or 'i'} have"),
        (r"\b(i|we|you|he|she|it|they)'d\b", r"\1 would"),
        (r"\b(i|we|you|he|she|it|they|that)'ll\b", r"\1 will"),
        (r"\b(we|you|they)'re\b", r"\1 are"),
        (r"\b(that|it|there|this|what|who|he|she|here|where|mum)'s\b", r"\1 is"),
        (r"\bthats\b", "that is"),
        (r"\blet's\b", "let us"),
        (r"\b(by|for|from|of|to|with) this (?:ai )?(?:assistant|chatbot|bot|ai)\b(?!')", r"\1 me"),
        (r"\bthis (?:(?:ai|virtual) )?(?:assistant|chatbot|bot|(?:ai|language) model|ai)\b(?!')", "i"),
        (r"\bgonna\b", "going to"),
        (r"\bwanna\b", "want to"),
        (r"\bgotta\b", "got to"),
        (r"\blemme\b", "let me"),
        (r"\s+", " "),
    )
)

_BACKTICK_IN_WORD = re.compile(r"(?<=\w)`(?=\w)")
_MARKUP = re.compile(
    r"</?[A-Za-z][^<>\n]{0,40}>|^[ \t]*(?:[#>•·]+|[-*+](?= )|\d{1,2}[.)](?= ))[ \t]*", re.MULTILINE
)
_STAGE_DIRECTION = re.compile(r"^[ \t]*(?<!\*)\*([^*\n]{1,80})\*(?!\*)[ \t]*", re.MULTILINE)
_LABEL = re.compile(
    r"^[ \t]*(?:(?:(?:final|short) )?answer|response|reply|output|assistant|ai|(?:chat)?bot|a|me|result)"
    r"[ \t]*[:>][ \t]*",
    re.MULTILINE | re.IGNORECASE,
)
_QUOTED_LINE = re.compile(r"""^[ \t]*(["'])([^"\n]*[.!?])\1[ \t]*$""", re.MULTILINE)
_QUOTATION = re.compile(r'"[^"]*"|(?<!\w)\'(?=\S)[^"]{0,300}?(?<=\S)\'(?!\w)')


def _one_of(words: str) -> str:
    return "(?:" + "|".join(words.split()) + ")"


# "Prince Harry, Duke of Sussex, is ...": one name
_TITLES = _one_of(
    "Jr Sr Esq MD PhD Duke Duchess Earl Baron Baroness Count Countess Lord Lady King Queen Prince Princess"
    " Marquess Viscount Bishop Archbishop Mayor"
)
_RANK = re.compile(
    rf"(?<=\w), ((?:the )?(?:{_TITLES}|[A-Z]\w+ (?=of ))\b\.?(?: (?:of|the|[A-Z][\w'.-]*(?<!I)))*),?"
)
# "Charles I was ..." is a king; "Stephen King I cannot discuss" and "When I" have a speaker
_BEFORE_SPEAKER = _one_of(
    "But And So Or Nor Sorry Because Although Though While When If As Since However Yes No Not Well Sure What"
    " That Who Where How Why Hmm Wish Hope Guess Think Suppose Afraid Maybe Perhaps Nothing Something Then"
    " There Here Now Until Once Had Were Should Could Would May Might Can Do Did Am Apologies [A-Z][a-z]*ly"
)
_AFTER_SPEAKER = _one_of(
    "am do have can cannot will would shall should may might must need want wish know lack hold possess find"
    " see feel fear think believe regret prefer refuse decline draw apologi[sz]e no not never only just also"
    r" really simply \w+ly (?:don|can|won|haven|wouldn|shouldn)'t"
)
_REGNAL_NUMBER = re.compile(
    rf"\b(?!{_BEFORE_SPEAKER}\b)([A-Z][a-z]+) I\b(?!')"
    rf"(?! (?:{_AFTER_SPEAKER}|could(?:n't| not) (?:say|tell|answer|help))\b)"
)
_TITLE_WORD = r"(?:[A-Z][\w']*|to|of|the|a|an|in|on|for|and|or|my|with|at|is)"
_TITLE_RUN = re.compile(rf"\b[A-Z][\w']*(?: {_TITLE_WORD}){{2,14}}")
_DENIAL_IN_TITLE = re.compile(
    r"(?<!^)\b"
    + _one_of(
        "Not No Never Nothing Nobody None Know Knows Knew Don't Didn't Doesn't Can't Couldn't Cannot Won't"
        " Wouldn't Isn't Haven't Ain't Unable Unknown Remember Forget Tell Say Answer Information Knowledge"
    )
    + r"\b"
)
_GUESS_WORD = re.compile(r"(?:Probably|Maybe|Perhaps|Possibly|Presumably|Likely)\b")
_WORD = re.compile(r"[^\W\d_][\w']*")
_SMALL_WORD = re.compile(_one_of("a an the and or nor but of in on to for at by from with as is it vs"))
_SENTENCE_END = re.compile(
    r"(?<!\b[A-Z]\.)(?<!\bDr\.)(?<!\bMr\.)(?<!\bMs\.)(?<!\bSt\.)(?<!\bJr\.)(?<!\bSr\.)(?<!\bMrs\.)(?<!\bNo\.)"
    r"(?<=[.!?…])[\"')\]]*\s+|(?<!:)\n+"
)


def head(text: str) -> str:
    """The part of the response that is read, with plain apostrophes, quotation marks and spaces."""
    start = unicodedata.normalize("NFKC", text.lstrip()[:HEAD_CHARS].translate(_SIGNS))
    return "".join(
        " " if unicodedata.category(c) in _CONTROLS and c != "\n" else c
        for c in start.translate(_SIGNS)
        if unicodedata.category(c) not in _DROPPED
    ).strip()


def spell_out(text: str) -> str:
    """The text in lower case, with single spaces and without contractions."""
    text = text.lower()
    for contraction, spelling in _SPELLINGS:
        text = contraction.sub(spelling, text)
    return text.strip()


def own_sentences(start: str) -> list[str]:
    """The sentences of a response's head that are its own words, spelt out."""
    start = _MARKUP.sub("", start)
    start = _STAGE_DIRECTION.sub(r"\1. ", start)
    start = _BACKTICK_IN_WORD.sub("'", start).replace("`", "").replace("*", "").replace("_", " ")
    start = _LABEL.sub("", start)
    start = _RANK.sub(r" \1", start)
    start = _QUOTED_LINE.sub(lambda line: line[0] if _is_title(line[2]) else line[2], start)
    start = _REGNAL_NUMBER.sub(r"\1", _QUOTATION.sub(_placeholder, start)).strip()
    return [spell_out(_without_titles(part)) for part in _SENTENCE_END.split(start) if part]


def _placeholder(quotation: re.Match[str]) -> str:
    """What stands for a quotation; a sentence that ends inside it still ends."""
    return "~" + quotation[0][-2] * (quotation[0][-2] in ".!?")


def _without_titles(sentence: str) -> str:
    """The sentence with "~" for a title in it; of one that is a title, the guess before it: "Perhaps ~"."""
    if _is_title(sentence):
        guess = _GUESS_WORD.match(sentence)
        return f"{guess[0]} ~" if guess else "~"
    return _TITLE_RUN.sub(lambda run: "~" if _is_title_of_denial(run[0]) else run[0], sentence)


def _is_title(sentence: str) -> bool:
    """Whether it has several capitalised words and no other but small ones: `I Can't Tell You Why`."""
    words = _WORD.findall(sentence)
    capitalised = [word for word in words if re.fullmatch("[A-Z][^A-Z]*", word)]
    small = [word for word in words if _SMALL_WORD.fullmatch(word)]
    return len(capitalised) > 1 and len(capitalised) + len(small) == len(words)


def _is_title_of_denial(run: str) -> bool:
    """Whether a run of capitalised words could pass for a refusal; one in capitals throughout is no title."""
    return bool(_DENIAL_IN_TITLE.search(run)) and not run[2:].isupper()
