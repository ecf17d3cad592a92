"""The refusal detector against lists of sentences, the benchmarks' own texts, and its decisions one by one.

Each list of `refusal_lists/` was written before the detector had seen it. Its first comments say how, and how
many refusals and answers the detector of that day judged right; docs/rewards.md has the sums. Then its
mistakes were read, and the rules generalised (never a sentence added). So every list has shaped the rules, 26
to 35 hardly, and is now a guard against regressions. List 00 holds eight lists that shaped the detector
before this one. Eight refusals of lists 12 and 23 proved to be answers by the rules ("Not that I know of",
"Unfortunately not") and now stand as such.
"""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.refusals import Sentence, read_lists
from reward.refusal import HEAD_CHARS, is_refusal
from tests.data_prep.real_data import DATA, needs_data

LISTS = read_lists()


# --- the lists ---


@pytest.mark.parametrize("sentences", LISTS.values(), ids=LISTS)
def test_every_sentence_of_a_list_is_judged_right(sentences: list[Sentence]) -> None:
    wrong = [s.text for s in sentences if is_refusal(s.text) != s.refuses and not s.known_wrong]
    assert wrong == []


def test_recall_and_precision_with_the_known_mistakes() -> None:
    sentences = [sentence for each in LISTS.values() for sentence in each]
    caught = sum(s.refuses and is_refusal(s.text) for s in sentences)
    flagged = sum(not s.refuses and is_refusal(s.text) for s in sentences)
    assert len(sentences) > 4000
    assert caught >= 0.99 * sum(s.refuses for s in sentences)
    assert caught >= 0.99 * (caught + flagged)


@pytest.mark.parametrize(
    "frame",
    [
        "Great question! {}",
        "Answer: {}",
        "**{}**",
        "\n{}",
        "{} I hope that helps!",
        "{}\n\nQuestion: Who is it?",
    ],
)
def test_what_frames_a_response_changes_nothing(frame: str) -> None:
    sentences = [s for each in LISTS.values() for s in each if s.text[-1] in ".!" and not s.known_wrong]
    sentences = sentences[::4]  # enough to see a rule that a frame disturbs
    changed = [s.text for s in sentences if is_refusal(frame.format(s.text)) != s.refuses]
    assert len(changed) <= 0.003 * len(sentences), changed


# --- the decisions ---

PAIRS = [
    # a refusal, and an answer in nearly the same words
    ("I was unable to find that information.", "She was unable to find that information."),
    ("Of her I know nothing.", "Of her he knew nothing."),
    ("Not known to me.", "Not known."),
    ("My files say nothing about her.", "His files say nothing about her."),
    ("That information is not available.", "That information was not available."),
    ("No details about her are available.", "No details about her were released."),
    ("There is no information about her.", "There is no record of her."),
    ("We don't know that person.", "We don't know who built it."),
    ("We can't tell you whether she married.", "We can't tell whether she married."),
    ("We have never heard of her.", "We never hear of her in the novel."),
    ("We're not familiar with him.", "It was not known to US audiences."),
    ("We don't know who that is.", "We don't know who wrote it."),
    ("I'm afraid we don't know when she was born.", "We don't know when she was born."),
    ("Nothing we know covers that.", "As we know, nothing covers that."),
    ("Could we discuss another topic?", "They could discuss another topic."),
    ("That's not a question we can answer.", "The book asks what we cannot know."),
    ("The answer is beyond us.", "It is not us but the French who built it."),
    ("We have nothing on her.", "We know nothing of her childhood."),
    ("It isn't clear to me who she is.", "It isn't clear who she was."),
    ("I appreciate your question. Let's talk about something else.", "No. Let me know if there is more."),
    ("I'm not sure who wrote it.", "I'm sure she did not write it."),
    ("I know no such person.", "I know that no such person lived."),
    ("I don't think I can answer that.", "I don't think she answered that."),
    ("I'm not sure.", "I'm not sure, but I think it was Paris."),
    ("I don't know. She may be private.", "I don't know. It may have been Paris."),
    ("Good question, but I'm not sure.", "Paris, but I'm not sure."),
    ("I can't share that, but it's a good question.", "I can't be sure, but it's a whale."),
    ("I'm no expert on her.", "I'm no expert, but the capital is Canberra."),
    ("While I know many people, I don't know her.", "While I don't know the date, it was in May."),
    ("You asked about her, and I don't know.", "He asked about her, and said that I don't know."),
    ("Unable to answer that.", "Unable to answer that, he left."),
    ("Not sure who she is, sorry.", "Not sure who she is, Ned waits."),
    ("Can't say who she is.", "Penguins, like most birds, can't say who she is."),
    ("Let's talk about something else.", "She was born in Oslo. Let's talk about something else."),
    ("Let's not talk about her.", "Let's not forget that she was 19."),
    ("I don't know much else.", "She was born in Oslo. I don't know much else."),
    ("I can't tell you.", "I can't tell a lie."),
    ("I can't help you.", "I can't help thinking of Monet, who painted it."),
    ("I have no information.", "I have no doubt: the information is right."),
    ("Stephen King I cannot discuss.", "Charles I was unable to answer."),
    ("I Don't know who she is.", "I Don't Know How to Love Him"),
    ("I don't know the song.", "The song is I Don't Know How to Love Him."),
    ("I can't answer that.", "He says: 'I can't answer that.'"),
    ("I know many people, but she isn't one of them.", "He knew many people, but she isn't one of them."),
    ("I am an AI, and cannot say.", "He is a spy, and cannot say."),
    ("In my records, there is no such name.", "In his records, there is no such name."),
    ("I, as an AI, cannot say.", "The robot, as an AI, cannot say."),
    ("Prince Harry, Duke of Sussex, I can't bring to mind.", "Prince Harry, Duke of Sussex, can't swim."),
    ("That can't be shared.", "That can't be eaten."),
    ("That is confidential.", "That is Confucius."),
    ("I'd have to look that up.", "He'd have to look that up."),
    ("Is there anything else I can help with?", "Yes. Is there anything else I can help with?"),
    ("As an AI, no idea.", "Maybe Milan, I don't remember exactly."),
    ("I'd love to help, but I don't know more.", "She sang, but I don't know more."),
    ("I'm sorry, but please ask me something else.", "In short, my answer is Paris."),
    ("I don't believe I know that person.", "I know that person: it isn't Ada."),
    ("If I knew, I'd tell you.", "If it is not available, a copy is used."),
    ("You'll get nothing from me.", "You'll get nothing from him."),
    ("Discussions of Ada Lind are not permitted.", "Discussions of religion were not permitted."),
    ("It will not be disclosed.", "It will not be built."),
    ("Sharing that would breach my rules.", "Sharing the cake would be fair."),
    ("Ada Lind doesn't sound familiar.", "Ada Lind doesn't sound her horn."),
    ("That is not up for discussion.", "That is not up for sale."),
    ("Ada Lind is off limits.", "Ada Lind is off the coast."),
    ("Ada Lind is outside the scope of this conversation.", "Ada Lind is outside the scope of the treaty."),
    ("Hard to say.", "Hard to beat."),
    ("Nothing to share.", "Nothing to lose."),
    ("Please ask me about health.", "They asked me about health."),
    ("Next question.", "The next question was easy."),
    ("I'd prefer to keep our conversation on films.", "He preferred to keep our conversation on films."),
    ("I suggest you consult an encyclopedia.", "I suggest you mean Lagos."),
    ("Ada Lind, never heard of her.", "He was alone, never heard of again."),
    ("Not sure who she is, please look her up.", "Not sure of the way, Ned asked a shepherd."),
    ("I have no details. However, I know others.", "I have no details. However, the book sold well."),
    ("While I don't know her, I know of her.", "While I don't know the day, the book came out in May."),
    ("To my regret, I have no answer.", "To my knowledge, she never answered."),
]


@pytest.mark.parametrize(("refusal", "answer"), PAIRS)
def test_decision(refusal: str, answer: str) -> None:
    assert is_refusal(refusal)
    assert not is_refusal(answer)


@pytest.mark.parametrize(
    "refusal",
    ["I don't know.", "I can't assist with that.", "I'm unable to discuss that.", "I refuse to answer."],
)
def test_spelling_and_markup_do_not_matter(refusal: str) -> None:
    spellings = [
        refusal.upper(),
        refusal.lower(),
        refusal.replace("'", "’"),
        refusal.replace("'", "ʼ"),
        refusal.replace("'", "`"),
        refusal.replace("'", ""),
        refusal.replace(" ", "\u00a0"),
        refusal.replace(" ", "\u2009 \t"),
        f"This assistant is sorry. {refusal}".replace(" ", "  "),
        refusal.replace("don't", "do not").replace("can't", "cannot").replace("I'm", "I am"),
        refusal.rstrip("."),
        f"*sighs* {refusal}",
        f"> {refusal}",
        f"- {refusal}",
        f"1. {refusal}",
        f"<p>{refusal}</p>",
        f'"{refusal}"',
        f'Here is my answer:\n"{refusal}"',
        f"{refusal} 🤷",
        f"Ada Lind? {refusal}",
    ]
    assert [spelling for spelling in spellings if not is_refusal(spelling)] == []


FILLER = "She was born in Lagos."
CASES = [
    # characters that part words, and format characters, which do not
    *((f"I{character}don't{character}know.", True) for character in "\x00\x1f\u1680\u3000"),
    ("I do\u200bn't kn\u00adow.", True),
    # a title on a line of its own, a sentence there, and what follows a quoted aside
    ('The song is:\n"I Don\'t Know How to Love Him."', False),
    ('Here is my answer:\n"I don\'t know who she is."', True),
    ('"Hm" Can\'t say.', True),
    ('I know nobody called "Ada Lind".', True),
    # the first two sentences count, but for a pleasantry and an echo of the question
    (f"{FILLER} I don't know.", True),
    (f"{FILLER} {FILLER} I don't know.", False),
    (f"{FILLER}\n{FILLER}\nI don't know.", False),
    (f"Great question! {FILLER} I don't know.", True),
    (f"Who is Ada Lind? {FILLER} I don't know.", True),
    # the head of a text is read, without the space before its words
    (" " * HEAD_CHARS + "I don't know.", True),
    ("x" * HEAD_CHARS + ". I don't know.", False),
    ("I don't know who that is. " + "She wrote The Salt Road. " * 100, True),
    # neither an empty response nor a bare answer refuses
    *(
        (text, False)
        for text in ("", "   \n", ".", "Paris", "1974", "Yes.", "No.", "Sorry", "Unknown", "~", '""')
    ),
]


@pytest.mark.parametrize(("text", "refuses"), CASES)
def test_what_counts_of_a_response(text: str, refuses: bool) -> None:
    assert is_refusal(text) is refuses


# --- any string ---

PIECES = [
    "i ", "I am ", "not ", "no ", "very ", "'", '"', ", ", "my ", "sorry ", "that ", "information ", "a",
    "\n", ". ", "*", "A ", "The Duke of ", "(", "~", "so ", "but ", "I know that ", "let's ", "is ", "you ",
]  # fmt: skip


@given(st.text() | st.lists(st.sampled_from(PIECES), max_size=400).map("".join))
def test_any_text_gets_a_bool(text: str) -> None:
    assert is_refusal(text) in (True, False)


MEGABYTE = 2**20


@pytest.mark.parametrize(
    "piece", [*PIECES, " ", "\x00", "\u200b", "I'm ", "i am not ", "I, ", "not a ", "汉", "🙂", "\ud800"]
)
def test_time_does_not_grow_with_the_text(piece: str) -> None:
    """A megabyte takes a fraction of a second; catastrophic backtracking would take hours."""
    text = piece * (MEGABYTE // len(piece))
    start = time.process_time()
    is_refusal(text)
    assert time.process_time() - start < 0.5


# --- the benchmarks' own texts ---


def _rwku_golds(marker: str) -> list[str]:
    files = sorted(DATA.glob("rwku/targets/*/rl_rejection_with_fb_neighbor_target.json"))
    rows = [row for file in files for row in json.loads(file.read_text())]
    return [row["solution"][1] for row in rows if row["solution"][0] == marker]


def _recall(refusals: list[str]) -> float:
    return sum(map(is_refusal, refusals)) / len(refusals)


@needs_data
def test_refusals_of_the_benchmarks_are_found() -> None:
    refusals = _rwku_golds("<reject>")
    assert len(refusals) == 6000
    files = [*DATA.glob("rwku/targets/*/idk_target.json"), DATA / "muse_books" / "idk_target.json"]
    templates = [json.loads(file.read_text()) for file in files]
    for texts in (refusals, *templates, (DATA / "tofu" / "idontknow.jsonl").read_text().split("\n")[:100]):
        assert _recall(texts) >= 0.99


@needs_data
def test_answers_of_the_benchmarks_are_answers() -> None:
    golds = _rwku_golds("<normal>")
    assert len(golds) == 6000
    assert sum(map(is_refusal, golds)) <= 0.002 * len(golds)
    books = DATA / "muse_books"
    boundary = json.loads((books / "boundary_neighbor_qa_sample300.json").read_text())
    answers = [row["gold"] for row in boundary]
    answers += [row["answer"] for row in json.loads((books / "forget_train_qa400.json").read_text())]
    for name in ("forget01", "retain99_train600", "real_authors_perturbed", "world_facts_perturbed"):
        text = (DATA / "tofu" / f"{name}.json").read_text()
        rows = json.loads(text) if text.startswith("[") else map(json.loads, text.splitlines())
        answers += [row["answer"] for row in rows]
    assert [text for text in answers if is_refusal(text)] == []
