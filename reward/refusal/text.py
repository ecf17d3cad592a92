"""From a response to the sentences and clauses that its writer answers for.

Quotations, titles and markup are taken out, apostrophes and white space made alike, contractions spelt out
("do not" for "don't", "can not" for "cannot"), everything put in lower case. Reading stops after
`HEAD_CHARS` characters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

HEAD_CHARS = 1000
"""How much of a response is read, in characters; two sentences fit."""

UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
"""Letters that stand without spaces between words, or take endings (Korean), as a class of a pattern."""

_SIGNS = str.maketrans(
    dict.fromkeys("’‘ʼ′´‛ʹ＇", "'")
    | dict.fromkeys("“”„‟«»″「」『』《》", '"')
    | {"—": " - ", "–": " - ", "…": "... ", "ё": "е", "Ё": "Е"}
    | dict.fromkeys("。｡।", ". ")
    | dict.fromkeys("，、،", ", ")
    | {"！": "! ", "？": "? ", "؟": "? ", "؛": "; "}
)
_CONTROLS = ("Cc", "Zs")  # Unicode categories: control characters, spaces
# format characters, emoji and other symbols, loose accents, surrogates
_DROPPED = ("Cf", "So", "Sk", "Mn", "Cs")
_NUKTA = 7  # Unicode combining class: the dot that few write


class _Characters(dict[int, str]):
    """What stands for a character: itself, a space for a control character, nothing for what is dropped."""

    def __missing__(self, code: int) -> str:
        sign = _SIGNS.get(code, chr(code))
        kept = (c for c in sign if unicodedata.category(c) not in _DROPPED or _is_vowel(c))
        self[code] = "".join(" " if unicodedata.category(c) in _CONTROLS and c != "\n" else c for c in kept)
        return self[code]


def _is_vowel(sign: str) -> bool:
    """Whether a mark belongs to a word as a letter does: the vowels of the scripts from India to Laos."""
    return "\u0900" <= sign <= "\u0eff" and unicodedata.combining(sign) != _NUKTA


_CHARACTERS = _Characters()
# What must be in the text, the pattern and its spelling. "this assistant" speaks of itself
_SPELLINGS = tuple(
    (needle, re.compile(pattern), spelling)
    for needle, pattern, spelling in (
        ("", r"\s+", " "),
        ("in'", r"\b(\w{2,}in)'(?!\w)", r"\1g"),
        ("", r"\b(?:idk|dunno|donno)\b(?! is\b)", "i do not know"),
        ("tho", r"\btho\b", "though"),
        ("prob", r"\bprob(?:s|ly)?\b", "probably"),
        ("i i ", r"\bi i do not know\b", "i do not know"),
        ("can", r"\b(?:can(?:'?t|not)|cant)\b", "can not"),
        ("won", r"\bwon'?t\b", "will not"),
        ("shan", r"\bshan'?t\b", "will not"),
        (
            "t",
            r"\b(do|does|did|have|has|had|is|are|was|were|could|would|should|might|must|need|dare)n'?t\b",
            r"\1 not",
        ),
        ("n", r"\b(?:ain't|aint|amn't)\b", "am not"),
        ("m", r"\bi'?m\b", "i am"),
        ("ma", r"\b(?:ima|i'mma|imma)\b", "i am going to"),
        ("ve", r"\b(i|we|you|they)'ve\b|\bive\b", lambda found: f"{found[1] or 'i'} have"),
        ("'d", r"\b(i|we|you|he|she|it|they)'d\b", r"\1 would"),
        ("'ll", r"\b(i|we|you|he|she|it|they|that)'ll\b", r"\1 will"),
        ("'re", r"\b(we|you|they)'re\b", r"\1 are"),
        ("'s", r"\b(that|it|there|this|what|who|he|she|here|where|mum)'s\b", r"\1 is"),
        ("thats", r"\bthats\b", "that is"),
        ("let's", r"\blet's\b", "let us"),
        ("this ", r"\b(by|for|from|of|to|with) this (?:ai )?(?:assistant|chatbot|bot|ai)\b(?!')", r"\1 me"),
        (
            "this ",
            r"\bthis (?:(?:ai|virtual) )?(?:assistant|chatbot|bot|(?:ai|language) model|ai)\b(?!')",
            "i",
        ),
        ("gonna", r"\bgonna\b", "going to"),
        ("wanna", r"\bwanna\b", "want to"),
        ("gotta", r"\bgotta\b", "got to"),
        ("lemme", r"\blemme\b", "let me"),
    )
)

_NO_SPACE = re.compile(rf"(?<=[{UNSPACED}])(?=[^\W{UNSPACED}])|(?<=[^\W{UNSPACED}])(?=[{UNSPACED}])")
"""Between a letter of a script with spaces and one of a script without: "AI助手"."""
_SPACES = re.compile(r"[^\S\n]{2,}")
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
_CAPITALISED = re.compile("[A-Z][^A-Z]*")
_SMALL_WORD = re.compile(_one_of("a an the and or nor but of in on to for at by from with as is it vs"))
_SENTENCE_END = re.compile(
    r"(?<=[.!?…])(?<!\b[A-Z]\.)(?<!\bDr\.)(?<!\bMr\.)(?<!\bMs\.)(?<!\bSt\.)(?<!\bJr\.)(?<!\bSr\.)(?<!\bMrs\.)"
    r"(?<!\bNo\.(?=\s+\d))[\"')\]]*\s+|(?<!:)\n+"
)
_FULL_STOP = re.compile(r"(?<=[。！？।؟])")
"""The end of a sentence in scripts that put no space behind it."""


def head(text: str) -> str:
    """The part of the response that is read, with plain apostrophes, quotation marks and spaces."""
    start = unicodedata.normalize("NFKC", text.lstrip()[:HEAD_CHARS].translate(_SIGNS))
    return start.translate(_CHARACTERS).strip()


def spell_out(text: str) -> str:
    """The text in lower case, with single spaces, also between scripts, and without contractions."""
    text = text.lower()
    if not text.isascii():
        text = _NO_SPACE.sub(" ", text)
    for needle, contraction, spelling in _SPELLINGS:
        if needle in text:
            text = contraction.sub(spelling, text)
    return text.strip()


def sentences(text: str) -> list[str]:
    """The sentences of a whole text, as they are written."""
    return [part for line in _FULL_STOP.split(text) for part in _SENTENCE_END.split(line) if part]


def own_sentences(start: str) -> list[str]:
    """The sentences of a response's head that are its own words, spelt out."""
    return [spell_out(_without_titles(part)) for part in _unquoted(start)]


def unquoted_sentences(start: str) -> Iterator[str]:
    """The same in any language: titles stay, since nouns may have capitals."""
    return map(spell_out, _unquoted(start))


def _unquoted(start: str) -> list[str]:
    """The sentences as they are written, with "~" for quotations."""
    start = _MARKUP.sub("", _SPACES.sub(" ", start))
    start = _STAGE_DIRECTION.sub(r"\1. ", start)
    start = _BACKTICK_IN_WORD.sub("'", start).replace("`", "").replace("*", "").replace("_", " ")
    start = _LABEL.sub("", start)
    start = _RANK.sub(r" \1", start)
    start = _QUOTED_LINE.sub(lambda line: line[0] if _is_title(line[2]) else line[2], start)
    start = _REGNAL_NUMBER.sub(r"\1", _QUOTATION.sub(_placeholder, start)).strip()
    return [part for part in _SENTENCE_END.split(start) if part]


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
    capitalised = 0
    for word in _WORD.findall(sentence):
        if _CAPITALISED.fullmatch(word):
            capitalised += 1
        elif not _SMALL_WORD.fullmatch(word):
            return False
    return capitalised > 1


def _is_title_of_denial(run: str) -> bool:
    """Whether a run of capitalised words could pass for a refusal; one in capitals throughout is no title."""
    return bool(_DENIAL_IN_TITLE.search(run)) and not run[2:].isupper()
