"""What the words of a refusal mean: one table a concept, in the notation of `patterns`."""

from __future__ import annotations

from reward.refusal.patterns import phrases, verbs, words

# fmt: off
# (the tables stay packed)

TABLES = {
    # --- who speaks ---
    "i": phrases("i, me, myself, mine, yours truly, this model"),
    # the speaker's store of knowledge, and its rules: "my training data", "our records"
    "store": phrases(r"""
        knowledge, training, data, databases?, datasets?, (data|memory) ?banks?, memory, memories,
        programming, understanding, resources?, records?, information, info, capabilit(y|ies), abilit(y|ies),
        expertise, sources?, files?, notes, systems?, guidelines?, polic(y|ies), rules, instructions?,
        familiarity, awareness, scope, reach, range, areas?, fields?, domain, remit, purview, depths?, league,
        wheelhouse, competenc(e|y), education, pay ?grade, limits, ken, radar, head, mind, brain, archives?,
        library, search(es)?, corpus, learning, skills?, skill ?set, scripts?, brief, grasp, power,
        recollection, parameters, settings, code, lane, department, place, part, side, end, role, job, design,
        purpose, function, mandate, principles, ethics, jurisdiction, responses?, replies, conversations?,
        platform, framework, possession, hands, lists?
    """),
    "our_store": phrases("""
        records, databases?, files, archives, sources, polic(y|ies), guidelines, rules, terms, knowledge base,
        data, services, remit, scope
    """),
    # --- what is denied ---
    "not": phrases("""
        not, no, never, nothing, nobody, nowhere, none, neither, nor, without, zero, zilch, nada, naught,
        nought, nowt, hardly, barely, scarcely, little, insufficient, nil, not enough, too little
    """),
    "know": verbs(r"""
        know/knew/known/knowing, recall, remember, recollect, recognise, recognize, hear/heard, learn/learnt,
        familiar, familiarise, familiarize, acquaint, aware, conversant, versed, well-versed, knowledgeable,
        informed, well-informed, certain, sure, positive, confident, convinced, privy, brief, train,
        teach/taught, told, educate, encounter, come/came across, run/ran (across|into), stumble (up)?on,
        identify, understand/understood, up to (date|speed), make/making out (who|what), figure out, work out,
        pin down, tell apart, catch/caught who, notice, read (\w+ ){0,3}?(about|of|on|anything|up),
        see/seen/saw (any|anything|mention|reference|(that|this|the) name), study,
        meet/met (anyone|anybody|that|with|any), program/programmed, make/made aware, introduce (to)?,
        expose to, qualified, expert, specialist, authority, in the (know|loop), wiser,
        give/given (any|that|this|details|information|data|access), come/came up with, hip to, up on,
        think/thought of (any|one|who|a|an|how|what)\w*
    """),
    "information": phrases(r"""
        information, info, data, knowledge, details?, answers?, records?, ideas?, clues?, insights?,
        specifics?, facts?, particulars, expertise, familiarity, background, memory, memories, recollections?,
        notion, inkling, awareness, understanding, intel, intelligence, foggiest, faintest, slightest,
        earthly, permission, authori[sz]ation, authority, clearance, resources, sources?, material, opinions?,
        comments?, context, access, words, thoughts?, means (of|to), anything (on|about|to|regarding|for),
        (nothing|none) (on|about|to|for|regarding|of|in), ability to, capacity to, capabilit(y|ies),
        competence, way (of|to), much (on|about|to), enough to, guidance, input, enlightenment, notes?,
        files?, trace, mention, dossier, entry, entries, references? to, response, reply, explanation,
        biography, bio, grounds, leads?, hits?, match(es)?, visibility, training on, wherewithal,
        (a|one|any|single|damn|blessed) (thing|word|bit)
    """),
    "answer": verbs(r"""
        say/said,
        tell/told (you|ya|u|anyone|anybody|who|what|when|where|which|how|if|whether|anything|more|much|about),
        tell $, answer, respond, reply, provide, offer, supply, furnish, share, disclose, reveal, divulge,
        discuss, talk, speak, chat, comment, confirm, deny, verify, elaborate,
        address (that|this|it|the|your|such|questions), address $, describe, explain, specify, speculate,
        guess, enlighten, inform, advise, weigh in, shed (any|some|light), opine, go/going (into|there),
        get/getting into, touch (on|upon), recite, outline, summarise, summarize, pinpoint, point you,
        direct you, guide you, let you know, let/letting on, attest, recount, be drawn, spill, gossip,
        mention, give/given/giving (\w+ )?(information|details|advice|data|specifics|opinions?),
        give/given/giving (you|out|any|an|that|this|the|away|answers), help, assist, aid, comply, fulfil,
        fulfill, oblige, accommodate, engage, handle, entertain, indulge, cooperate,
        grant (your|that|this|the), (satisfy|honou?r|meet) (your|that|this|the), process (that|this|your|the),
        find/found (any|that|this|out|anything|information|details|data|the answer|a), locate, retrieve,
        access, look ((that|this|it|him|her|them) )?(up|into), determine, come/coming up with, dig up,
        produce, generate, release, present, complete (that|this|the|your), fill (in|that|this|the),
        cover (that|this|it|the|topics), pass on, bring up, place (that|this|the name|him|her|them),
        bring (it|that|her|him|this|anything|up), bring .. to mind, do (that|this|so|it),
        make (that|this|any|a comment), take (that|this|part|questions), put my finger,
        be of (\w+ )?(help|use|service|assistance), be (sure|certain|helpful), claim to, pretend to, get you,
        serve you, support (that|this|your|requests), state, list, clarify, contribute,
        add (anything|much|to that), add $, field (that|this|questions), assess, judge, proceed,
        continue with, illuminate, hazard, volunteer, report on, write (about|that|this|on),
        create (that|this|content), dive into, pronounce, expand on, venture
    """),
    # allowed, able or fit to answer
    "fit": phrases(r"""
        allowed, permitted, authori[sz]ed, supposed, meant, equipped, designed, built, programmed, configured,
        cleared, entitled, licensed, qualified, at liberty, in (a|the|any) position, comfortable, free to,
        willing, prepared, inclined, ready to, at ease, of help, of use, (much|any) (help|use|good),
        a good source,
        the (\w+ ){0,2}(one|person|ai|assistant|source|model|place|bot|tool|resource) (to|for|who|on|about
            |you),
        the (right|best|ideal|proper|appropriate), my (place|call|job|role|business)
    """),
    # verbs too common to count unless the question is their object
    "do": verbs("""
        do, give/giving, find, see, make, get/getting, place, write, cover, touch, go, open, handle, take,
        have/having, hold, carry, keep, store, work, deal with
    """),
    "question": phrases(r"""
        that, this, it, there, here, you, your, one, those, such, anything, information, questions?, topics?,
        requests?, subjects?, quer(y|ies), inquir(y|ies), enquir(y|ies), prompt, matters?, name, person,
        individual, people, someone, somebody
    """),
    # --- predicates that deny by themselves ---
    "ignorant": phrases(r"""
        unaware, unfamiliar, unsure, uncertain, uninformed, unacquainted, unversed, clueless, stumped,
        ignorant, ignorance, unclear (on|about|as|who|what|where|when|how), oblivious, baffled, flummoxed,
        perplexed, none the wiser, at a (\w+ )?(loss|disadvantage), in the dark, blank, blanks, blanking,
        (draw|drew|drawn|drawing) .. blanks?, (come|came|coming) up (short|empty|blank|with nothing),
        empty-handed, out of my depth, out of the loop, out of (ideas|answers), in over my head, at sea,
        stuck (on|here|with), (struggling|struggle|failing|fail|failed) to,
        having (trouble|difficulty|a hard time), (lost|hazy|foggy|fuzzy|rusty) (here|on|about|when),
        (poorly|ill|under)[- ]?(informed|qualified|equipped|prepared), unqualified, no expert,
        (short|low) (on|of), lack, lacks, lacking, missing, devoid of, limited,
        the wrong (\w+ )?(one|person|ai|assistant|place|model|bot|source|tool), know only,
        only (know|answer|help|discuss|assist|respond|provide|speak|talk|comment),
        (can|could) only (guess|speculate),
        would (just |only |merely )?be (just |only |merely )?(lying|guessing|making|speculating|inventing
            |fabricating|bluffing),
        disclaim, disavow, (have|am) yet to, forget, forgot, forgotten, hesitate to, balk,
        far from (certain|sure), sworn to, (have|got) (absolutely )?(nothing|none) $
    """),
    "unable": phrases("""
        unable, incapable, powerless, unwilling, disinclined, reluctant, hesitant, loath, prohibited,
        forbidden, restricted, barred, debarred, prevented, blocked, precluded, disallowed, uncomfortable,
        afraid to, bound, constrained, refuse, refusing
    """),
    "decline": verbs(r"""
        decline, abstain, refrain, withhold, opt out, be excused, demur, recuse, pass on, pass up, pass $,
        plead/pled ignorance, say no, bow out, sit/sitting (that|this) (one )?out, steer clear,
        stay (silent|quiet|mum|out|away|clear), remain (silent|quiet|mum|tight-lipped),
        keep (silent|quiet|mum|out of|away), keep my (mouth|lips) \w+,
        keep .. (private|secret|confidential|to myself|out of), skip (that|this|it|over|the), skip $,
        leave/leaving (that|this|it|her|him|them|those|the) .. (out|alone|unanswered|unsaid|aside|there
            |blank|be|to (others|someone|somebody|experts)),
        leave/leaving .. out of (this|that|it),
        avoid (that|this|the|such|it|discussing|talking|commenting|answering|topics|questions), avoid $
    """),
    # where the question lies when it is not in the speaker's store
    "beyond": phrases("""
        beyond, outside, outside of, out of, exceeds?, above, past, off, over, far from, surpass(es)?,
        escap(e|es|ed|ing), (missing|absent|gone|erased|wiped|removed|deleted|lost) from, lost to
    """),
    # what is wrong with the speaker's store
    "limited": phrases(r"""
        limit, limits, limited, limitations?, lacks?, lacking, ends?, stops?, incomplete, silent, blank,
        blanks, empty, insufficient, non-?existent, patchy, sketchy, thin, scant, scanty, minimal, hazy,
        foggy, fuzzy, poor, restricted, confined, gaps?, holes?, blind ?spots?, blank spots?, uncharted,
        edges?, bounds of, tied, rusty, short, against, contrary to, violat(es|ing|ion), prevents?,
        precludes?, bars?, prohibits?, forbids?, excludes?, excluded, omits?, omitted, ignores?, skips?,
        skipped, fails?, failing, failed, deserts?, (runs?|ran) (out|dry), slip(s|ped)?,
        (comes?|came) up (empty|short|blank), draws? (a )?blank, turned up nothing, (leaves?|left) .. out
    """),
    # what a name or question is to a speaker who does not know it
    "strange": phrases(r"""
        unknown, unfamiliar, foreign, obscure, new, news, greek, mystery, puzzle, riddle, blank, stranger,
        closed book, blank page, unclear, unavailable, inaccessible, alien, gibberish, lost, dark, enigma,
        uncharted, closed, not (\w+ )?(clear|apparent|evident|obvious)
    """),
    "escape": verbs("""
        escape, elude, evade, stump, lose/lost, beat, defeat, baffle, puzzle, perplex, slip/slipped/slipping,
        desert, fail, bypass, flummox, go/went/gone over my head
    """),
    "prevent": verbs("""
        prevent, preclude, forbid, prohibit, bar, stop, restrict, block, restrain, bind,
        not (allow|permit|let|enable)
    """),
    # --- the question, or what was asked for, as the subject of a clause ---
    "asked": phrases("""
        information, info, data, details?, answers?, questions?, requests?, topics?, subjects?, matters?,
        quer(y|ies), inquir(y|ies), enquir(y|ies), prompt, person, individual, name, specifics, facts,
        discussions?, content, material, records?, problem
    """),
    "open": phrases(r"""
        available, accessible, provided, shared, disclosed, answered, discussed, found, given, revealed,
        fulfilled, processed, handled, released, supplied, supported, retrieved, located, covered,
        accommodated, addressed, granted, (open|up) (for|to) discussion, on file, on hand, at hand, to hand,
        at my disposal, public (information|knowledge), something (to|for) (discuss|share|comment), align
    """),
    "closed": phrases("""
        unavailable, inaccessible, confidential, private, classified, privileged, restricted, unanswerable,
        withheld, redacted, sealed, protected, sensitive, unanswered $, under wraps, embargoed, prohibited,
        forbidden, barred, blocked, declined, denied, refused, rejected, off the table, off[- ]limits,
        out of (bounds|scope|reach), (beyond|outside of|outside) (the )?(scope|reach|limits?)
    """),
    # fitting or unfitting
    "proper": phrases("""
        possible, appropriate, right, proper, permitted, feasible, ethical, allowed, advisable, wise, fair,
        responsible
    """),
    "improper": phrases("""
        impossible, inappropriate, improper, unethical, wrong, irresponsible, unwise, unfair, unprofessional,
        too (private|sensitive|personal|delicate|risky)
    """),
    # --- words of openings ---
    "facts": phrases("""
        information, info, data, details?, answers?, knowledge, records?, results?, clues?, ideas?, entry,
        entries, comments?, match(es)?, hits?, intel, facts?, specifics?, insights?, opinions?, luck, notes?,
        files?, context, recollections?, memory, memories, familiarity, notion, inkling, understanding,
        awareness, experience
    """),
    "else": phrases("""
        something, anything, somebody, someone, anyone, another, (a )?different, else, elsewhere, other than,
        other (topics?|questions?|subjects?|people|things), the (subject|topic|conversation),
        a new (topic|question|subject)
    """),
    "turn": phrases("""
        talk, discuss, speak, chat, ask, try, move, change, help, focus, cover, turn, switch, pick, choose,
        explore, assist, answer, look, go, do, use, offer, consider, have, suggest, redirect, shift,
        talking, discussing, asking, changing, trying, moving, answering, helping
    """),
    "ask": phrases("""
        (ask|consult|try|refer|look|search|contact|see|visit|turn|reach out|google|speak)(ing)?,
        check(ing)?(?! out)
    """),
}
TABLES["own"] = words(
    r"""(my|mine|this (model|assistant|ai)'s) ([\w'-]+ ){0,3}?<store>|our (\w+ )?<our_store>""", TABLES
)
TABLES["the_question"] = words(
    r"""((that|this|these|those|such|the|your|any|all|further
    |what you (ask|want|seek|are asking)\w*( for| about)?) )?([\w'-]+ ){0,3}?<asked>
    ( (on|about|regarding|concerning|for|of|(relating|related|pertaining) to|around|surrounding|involving
    |with)
    (\s)[\w'.~ -]{1,60}?)?
    |(discussing|answering|sharing|disclosing|providing|commenting on|talking about) [\w'.~ -]{1,60}?""",
    TABLES,
)
# fmt: on
