"""Which clauses decline, in the notation of `patterns`.

A rule names what must meet in one clause, in any order, and what must not. Fixed expressions, and openings
that leave the speaker out, are patterns of their own, for there the order of the words matters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from reward.refusal.patterns import expand, words
from reward.refusal.vocabulary import TABLES

# fmt: off
# (the tables stay packed)

_PIECES = {
    # somebody else is the clause's subject, and no speaker follows
    "another": r"""^((not|and|but|so|because|that|if|as|since|which|where|when|while) )*(he|she|they|his|her
        |their|you)\b(?!.*\bi (?!was\b|had\b|did\b))""",
    "third_person": r"^(\w+ )?(he|she|they)",
    "past": "was|were|had|did",
    # before the subject of a clause
    "lead": "((but|and|so|as|because|sorry|unfortunately|sadly|currently|at present|not|for me|to me) )*",
    # "not available in Japan" is about the world
    "elsewhere": r"""in (english|japan\w*|\w+ese|(the|this|his|her|their)(?! (database|records?|data|archive
        |files)))|on (dvd|vinyl|the shelves)|by(?! (me|this|an ai))|during|until|since|before
        |to (the public|foreigners|children|members|women|men)""",
    "can": """(can|could|will|may|might|must|shall|should|would|do|am|are|have|choose|prefer|rather
        |prefer to|opt|elect)""",
    "adverbs": r"((\w+ly|just|still|also|quite|even|too|so|very|all that|any|at all) ){0,2}",
    # "No details of the funeral were released"
    "verb_of_the_world": r"""(was|were|had|has|have|is|are|did|could|would|survived|existed|came|leaked
        |[\w-]+ed( (the|a
        |an|in|until|by|to|on|at|for|from|his|her|their)| $))\b""",
    "about": r"""( (on|about|regarding|concerning|for|of|to|as to|(relating|pertaining|related) to|under
        |matching|by|with|in)( (?!<verb_of_the_world>)[\w'~-]+){1,12})?""",
    # "available here", "that I can share"
    "within_reach": r"""( (is|are|currently|publicly|readily|simply|yet|available|provided|found|stored
        |listed|held
        |recorded|on (file|record|hand)|i (can|could) \w+|to (share|give|offer|provide|report|add)
        |exists?|here|sorry|whatsoever|at (all|present|this time)|right now))*""",
    "tale": "<within_reach><about><within_reach> $",
}
# fmt: on
_TABLES = dict(TABLES)
for _name, _piece in _PIECES.items():
    _TABLES[_name] = f"(?:{expand(_piece, _TABLES)})"


@dataclass(frozen=True)
class _Rule:
    """A clause declines when every pattern of `needs` and none of `unless` is in it."""

    needs: tuple[re.Pattern[str], ...]
    unless: tuple[re.Pattern[str], ...]

    def holds(self, clause: str) -> bool:
        return all(p.search(clause) for p in self.needs) and not any(p.search(clause) for p in self.unless)


def _patterns(*patterns: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(words(pattern, _TABLES)) for pattern in patterns)


def _rule(*needs: str, unless: tuple[str, ...] = ()) -> _Rule:
    return _Rule(_patterns(*needs), _patterns(*unless))


def _any(*patterns: str) -> re.Pattern[str]:
    """One pattern for all: a clause is searched once."""
    return re.compile(words("|".join(f"({pattern})" for pattern in patterns), _TABLES))


# fmt: off
# (the tables stay packed)

# Without one of these words none of the next rules holds
_SPEAKER = _any("i|me|my|mine|myself|truly|we|us|our|model|assistant|ai")
_SPEAKER_RULES = (
    # "I don't have that information", "Of her I know nothing"
    _rule("<i>", "<not>", "<know>|<information>|<answer>|<fit>", unless=("<another>",)),
    # "I can't do that"
    _rule("i", r"(not|never|no) (\w+ ){0,4}?<do>", "<question>", unless=("<another>", "(did|was|had) not")),
    # "I'm sorry, but I can't", "I no longer do"
    _rule(
        r"i (\w+ ){0,4}?(<can> not( (able|going|willing) to| to| say)?|no longer (do|can|am|have)) $",
        unless=("<another>",),
    ),
    # "I'm unfamiliar with her", "I'm missing that detail"
    _rule("i", "<ignorant>", unless=("<another>",)),
    # "I'd have to look that up"
    _rule(
        r"""i (\w+ ){0,2}?(need|have|ought) to (first |go )?(look|check|research|verify|consult|find out
            |investigate|double-check|get back|do some|read up|dig|google|search|ask)""",
    ),
    # "I'd need more context"
    _rule(
        """i (would |will )?(need|require) (more|further|additional|some more) (information|context
            |details?|data|background)""",
    ),
    # "I doubt I can help"
    _rule(r"i (\w+ )?(doubt|question)( (that|whether|if))? i|i (\w+ )?have (\w+ )?doubts"),
    # "I am unable to say", "I'm bound by confidentiality", "I refuse"
    _rule(
        "i",
        "<unable>",
        """<answer>|<know>|<information>|<question>|<fit>|<unable> $
            |by (my |our |the |company )?(copyright|policy|law|privacy|guidelines|rules|regulations
            |design|confidentiality|instructions|training)""",
        unless=("<another>",),
    ),
    # "I must decline", "My instructions are to stay silent"
    _rule(
        "i|me|we|<own>",
        "<decline>",
        unless=("<another>", "(<past>)(?! (told|asked|instructed|advised|trained|made))"),
    ),
    # "I wish I knew", "I'd tell you if I could"
    _rule(
        "wish|if only|if",
        r"i (\w+ )?(knew|could|was able to|were able to|had (an?|the|some|that|any|more))",
        unless=("<another>",),
    ),
    # "You'll get no answer from me", "There's no way for me to know"
    _rule("<not>", "(from|by|with|for) me", unless=("<past>", "<third_person>")),
    # "Policy prevents me from sharing that"
    _rule("<prevent> (me|us)", unless=("<past>",)),
    # "It would be improper for me to say"
    _rule("(for|of) me to", "<improper>|hard|difficult|tough"),
    # "My files say nothing about her", "My knowledge is limited", "She is beyond my knowledge"
    _rule("<own>", "<not>|<limited>|<beyond>", unless=("<another>",)),
    # "That is beyond what I can answer"
    _rule("<beyond>", r"(what|anything|everything|those|all|the [\w-]+|things|topics) (that )?i"),
    # "She has never come up in anything I've read"
    _rule(
        "<not>",
        "(anything|nothing|everything|all|what) (that )?i (have|know|was|am|can|could|learned|read)",
        unless=("<another>",),
    ),
    # "The name is new to me", "The answer escapes me"
    _rule("<strange>", "(to|on|for|like) me", unless=("<another>",)),
    _rule("<escape>", "me|my memory|my mind", unless=("<third_person>",)),
)

_RULES = (
    # "That information is not available", "Your query is out of bounds"
    _rule(
        "^<lead><the_question> (is|are|can|may|will|must|should|remains?|has|have|do|does)",
        r"<not> ([\w'.~-]+ ){0,14}?<open>",
        unless=("<past>", "(has|have) been(?! (made available|provided))", "<elsewhere>"),
    ),
    _rule(
        r"""^<lead><the_question> (is|are|remains?|stays?|goes|falls?|lies?|must|has been
            |have been) ([\w-]+ ){0,3}?<closed>""",
        unless=("<past>", "<elsewhere>"),
    ),
    # "Questions about her are not allowed"
    _rule(
        r"""^<lead>(this|that|such|these|those|your|discuss\w*|talking|.*\b(about|regarding|concerning
            |involving))""",
        r"^<lead><the_question> (is|are) (\w+ly )?not (\w+ )?(<proper>|suitable|welcome|open)",
        unless=("<past>", "<elsewhere>"),
    ),
    # "That can't be shared", "That is confidential"
    _rule(
        r"""^<lead>(that|this|it) (is|can|may|will|must|should) not (\w+ )?(be )?(available|provided
            |shared|disclosed|answered|discussed|revealed|divulged)( (by me|here|to me|with you
            |at this time))? $""",
    ),
    _rule(
        r"""^<lead>(that|this) (is|remains|stays|must (stay|remain)) (\w+ ){0,2}?<closed>( (to me
            |information|here|for me|matter))? $""",
    ),
    # "Sharing that would violate my policy"
    _rule(
        r"""^<lead>(answering|providing|sharing|disclosing|discussing|revealing)\b.*\b(would|could|might
            |may) (be <improper>|be harmful|violate|lead to|cause|breach)""",
    ),
    # "It isn't possible to provide that"
    _rule(
        r"""^(\w+ )?(it|that|this) ((is|would|will|may) (\w+ )?not (\w+ )?(be )?<proper>|(is
            |would be) (\w+ )?<improper>) (for (me|us) )?to (\w+ly )?<answer>( <question>
            | (\w+ )?<information>| $)""",
        unless=("<past>",),
    ),
    _rule(
        r"""^(\w+ )?(it|that|this) (would|might|may) (not be <proper>|be <improper>) to (comment|discuss
            |speculate|disclose|reveal)""",
    ),
)

# Fixed expressions, wherever they stand in a clause
_EXPRESSIONS = _any(
    r"""(not|never|nothing|nobody|no one)\b.*\b(ring|rings|ringing|rung) (a|any) bells?|(rings?
        |ringing) no bells?""",
    "(does|do|did) not (sound familiar|come to mind)",
    """does not (tell|say|mean|suggest) (me (anything|much)|(anything|a thing|much) to me)
        |means? nothing to (me|us|this)""",
    r"""(nothing|nobody|no one|no|not)\b.*\b(comes?|coming|springs?|leaps?) to mind|nothing (turn|com|cam
        |show)\w* up $""",
    """my (lips are sealed|tongue is tied|hands are tied|mind is blank)|mind (is|has gone|goes|went
        |is drawing) (a )?blank""",
    r"""my (\w+ )?(ignorance|silence|inability|unwillingness|refusal|reluctance|lack|incapacity
        |unfamiliarity)""",
    r"""name\b.*\bdraws? a (\w+ )?blank|unknown to (us|this)|beyond me|over my head|above my pay ?grade
        |tip of my tongue""",
    """no can do|no such luck|hard (no|pass)|mum is the word $|(plead|take|invoke) the fifth
        |none of your business""",
    r"""guess\b.* as good as mine|(beats|search) me|you (have )?(got|have|had) me (there|stumped|beat)
        |got me there""",
    r"""^(who|god|goodness|heaven|lord|heck) (the \w+ )?knows( really| why)? $|^you tell me
        |first (time )?(that )?i (have )?(ever )?heard""",
    """how (would|should|could|can|am) i (supposed to )?know|(do not|why) ask(ing)? me|more than i (can
        |could|know|am)""",
    """not (my|for me) (place|story|secret|to (say|tell|judge|discuss)|business)|not up for (discussion
        |debate)""",
    """wrong (ai|person|assistant|place|model|bot|guy|tree|number|chatbot)|off the table|out of (bounds
        |scope)""",
    "off[ -]limits( (for|to) (me|us|discussion))? $",
    """(outside|beyond|not (with)?in|out of|exceeds?) (of )?(the )?(scope|bounds|limits|range|remit|realm
        |confines|parameters) of (this|our|my|what|the (present|current))""",
    "(excuse|spare) me from|(count|leave|include) me out|forgive me for not",
    """(direct|take|address|put|pose|refer|redirect|send) .. (elsewhere|to (someone|somebody|another
        |other|an expert))""",
    "you (will|would|shall|can) not (find|get|hear|have|learn) .. (here|from me)",
    r"""(mind|rather|prefer|if|let us|why) (\w+ )*?we (do|did|can|could|should|would
        |better) not (\w+ )?(discuss|talk|speak|go|get)""",
)

# Openings without a subject that only a speaker uses
_FRAGMENTS = _any(
    # "No idea", "No data on her", "There is no information available"
    r"""^((i see|got|have|has|absolutely|simply|really) )*(no|zero|not (any|a|the)|insufficient
        |not enough|too little) ([\w'-]+ ){0,2}<facts><tale>""",
    r"""^there (is|are) ((\w+ly|also|just) )*(no|not any|not enough|insufficient|nothing|little
        |zero) (?!(definitive|single|simple|clear|exact|right|correct|official|easy|short|one|known|good
        |such)\b)([\w'-]+ ){0,2}(information|info|data|details|knowledge|results?|match(es)?|entry|answer
        |intel|insights?)<tale>""",
    r"""^((have|has) )?not (a|the|any|got a|even a|an?|one) (\w+ )?(idea|clue|foggiest|faintest|slightest
        |earthly|inkling|scooby|notion)""",
    "^no (idea|clue|inkling)(?! (was|is|has|had|could|can|that))",
    # "Not sure", "Not able to say", "Never heard of them"
    """^(am )?not <adverbs>(sure|certain|familiar|aware|acquainted|(able|going) to <answer>|allowed to
        |permitted to|at liberty|authori[sz]ed|comfortable|informed|something|someone|somebody|anything
        |anyone|one i|telling|saying|sharing|answering|discussing|going there|available $|my <store>)""",
    r"""^never (heard|came across|come across|met|encountered|seen) (of|that|the|him|her|them|it|any)
        |^never heard (of )?\S+""",
    """^(unable|not able|powerless|unwilling|reluctant|not willing|not prepared
        |not inclined) to (<answer>|<know>)( $| (that|this|the|your|any|an|a|with|you|to|about|on
        |questions|it|information|details|here|there|at|what|who|where|when))""",
    """^(unfamiliar with|unaware of|unsure|uncertain|clueless|stumped|drawing a blank|drew a blank
        |coming up empty|at a loss)""",
    # "Not available", "Classified", "Access denied"
    """^(<facts> )?(is |are )?(currently )?(not (available|found|on file|in the database)|unavailable
        |classified|confidential|redacted|withheld|restricted|off limits)( (here|sorry|at this time
        |to me))? $""",
    "^(access|request|query|permission) (is |has been )?(denied|declined|refused|rejected|blocked)",
)

# Predicates without a subject: any words before them but courtesies could be one
_PREDICATES = _any(
    r"""^((really|just|simply|honestly) )*(do|did) not <adverbs>((know|recall|remember
        |recogni[sz]e)\b(?!.* why)|have ([\w'-]+ ){0,2}<information>)""",
    "^have not <adverbs>(<know>|got|any)",
    """^(can|could|will|would|shall|may) not <adverbs>(be (able to )?)?(<answer>|<do> <question>|recall
        |remember|know|place|identify|recogni[sz]e|think of)""",
    "^((would|will|had) )?(rather|prefer|choose|sooner|better) not( to)?( $| <answer>)",
    r"""^(((will|would) )?have to |must |going to (have to )?|need to |got to )?((respectfully
        |politely) )?(decline|refuse|pass|abstain|refrain|declining|refusing|passing)(?!.* (is|was|are
        |were)\b)((?<!ing) $| (to|from|on) (<answer>|<question>))""",
    "^(that|this|it) is (a secret|personal) $|^((that|it) is )?(hard|difficult|impossible) to say $",
    "^nothing to (say|add|share|tell|report)",
)

# A response that turns to something or somebody else
_DEFLECTIONS = _any(
    r"""^((please|maybe|perhaps|so) )*(why (do not we|do not you|do we not|not)|let us|let me|(can|could
        |shall|may|might|should) we|we (can|could|should)|would you (like|care|mind)( me)?( to| if)?
        |do you (want|have)( to)?|(could|can|might) you|(can|could|may) i|i (would )?(suggest|recommend
        |propose)|feel free to|care to|want to|i am happy to|i can|i could)( (we|instead|please|perhaps
        |maybe|rather))* <turn>( [\w'~-]+){0,5}? <else>""",
    r"""^(how|what) about ((we|you) )?(\w+ ){0,3}?<else>|^(is|are) there (something|anything
        |any other) .*(help|know|ask|discuss|talk|assist)|^what else (can|could|would|may)""",
    r"""^((please|kindly|just|so|maybe|perhaps|better|best) )*(ask|try|pick|choose|change
        |switch)( \w+){0,3}? <else>""",
    r"^i (would )?(prefer|rather|like)( (that|if|it if))?( (we|you|to))? <turn>( [\w'~-]+){0,5}? <else>",
    "^please ask( me)?",
    "^(next question|moving on|new topic|change of subject)",
    """^(let us|shall we|can we|could we|i (would )?(rather|prefer)( that| it if)? we) ((please
        |just) )?(not|did not|skip|skipped|leave|left|avoid|move on|moved on|drop|dropped|change|steer
        |stick to|get back|return|stop)""",
    r"""^(let us|it (is|would be|might be|may be) (best|better|preferable) (if we|to|that we)
        |i (would )?(encourage|suggest|propose) (us|we)|i (would )?(prefer|like|rather|want)( to| we)?
        |perhaps we (could|can|should)|i am here to|our) .*\b(conversations?|discussions?|topics?
        |subjects?|dialogue|something (else|more|less|different|other))""",
    """^((please|but|so|perhaps|maybe|you|kindly) )+((will|would|may|might|should|could|can
        |had) )?(have to|need to|want to|better|be better off|do better to|try|wish to|always
        |best)? ?<ask> (someone|somebody|another|an?|the|our|your|elsewhere|with|to|it|that|for|up|at|her
        |him|them|in|online|around|other|official|reliable|google|wikipedia)""",
    "^i (would )?(suggest|recommend|advise|encourage) (that )?(you )?(to )?<ask>",
    """^(that|this|it) is (a |one )?((question|matter) )?(one )?(best |better )?((left|put|directed
        |addressed|asked) )?(to|for|of) (someone|somebody|another|an expert|others)""",
)

# Courtesy, hesitation and conjunctions before a clause, one at a time
_COURTESY = re.compile(words(
    r"""^(as an? (\w+ ){0,4}?(ai|model|assistant|chatbot|bot)|((that|it) is |what )?an? \w+ (question|one)
        |(?!(this|that|the|your|such|next|another)\b)\w+ question
        |((i am|so|very|really|truly|terribly|awfully|my|sincere|deepest|please|accept) )*(sorry
        |apologies|apology|regrets)( about that| for that| to say)?|i (do |must |sincerely )*apologi[sz]e
        ( for (the|any) (\w+ )?(inconvenience|confusion))?
        |i (do |really |truly |can )*(appreciate|understand|respect|see) (that you |why you )?(your|are|want)
        [\w' -]{0,60}$
        |nope|nah|naw|yeah|yep|unfortunately|regrettably|regretfully|sadly|alas|h+m+|uh+m*|um+|er+m*|well
        |oh|ah|ooh|huh|gosh|lol|lmao|ha(ha)*|oof|yikes|welp|arr+|aye|eh|err+|mm+|soz|oops|whoops|ugh|meh
        |blimey|crikey|geez|wow|ya|honestly|frankly|truthfully|to be (honest|frank|fair)|tbh
        |i am afraid( that)?|sure|certainly|of course|ok|okay|yes|no|hi|hello|hey|but|however|and|so
        |because|since|that|as|still|though|perhaps|indeed|look|listen|right|alright|now|again|sir|madam
        |dear user|friend|mate|pal|bro|dude|man|hun|hon|honey|love|dear|darling|buddy|folks|guys|boss
        |at (this|the) (time|moment)|at present|currently|right now|presently|for now|as of now|it (seems
        |appears|looks like)|seems( like)?|looks like|really|actually|simply|just|thanks?( you)?( (so
        |very) much)?( for [\w ]{1,40})?)"""
) + r"[\s.!?~-]*|^\W+")
# fmt: on


def declines(clause: str) -> bool:
    """Whether the clause says that its speaker declines or does not know."""
    if _SPEAKER.search(clause) and any(rule.holds(clause) for rule in _SPEAKER_RULES):
        return True
    return any(rule.holds(clause) for rule in _RULES) or bool(_EXPRESSIONS.search(clause))


def is_fragment_of_refusal(clause: str) -> bool:
    """Whether the clause, as the beginning of a sentence, declines without naming its speaker: "No idea"."""
    return _opens(clause, _FRAGMENTS)


def is_predicate_of_refusal(clause: str) -> bool:
    """Whether the clause, as the beginning of a sentence, is a predicate that lacks its "I": "Can't say"."""
    return _opens(clause, _PREDICATES)


def deflects(clause: str) -> bool:
    """Whether the clause, as the beginning of a response, turns to something or somebody else."""
    return _opens(clause, _DEFLECTIONS)


def without_courtesy(clause: str) -> str:
    """The clause without the words of courtesy and hesitation before it; "" when it is nothing else."""
    return _beginnings(clause)[-1]


def _opens(clause: str, openings: re.Pattern[str]) -> bool:
    return any(openings.match(rest) for rest in _beginnings(clause))


def _beginnings(clause: str) -> list[str]:
    """The clause, and what is left as the courtesies before it are taken away one by one."""
    rests = [clause]
    while (shorter := _COURTESY.sub("", rests[-1], count=1)) != rests[-1]:
        rests.append(shorter)
    return rests
