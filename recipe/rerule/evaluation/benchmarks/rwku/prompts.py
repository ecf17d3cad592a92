"""RWKU's prompts, and RULE's variant of them.

RWKU asks through the chat template: one user turn with an instruction over the question, then the generation
prompt, then "Answer:", which the response continues. Two attack families are exceptions, see `_official`. The
texts are those of eval_forget.py and eval_neighbor.py of github.com/jinzhuoran/RWKU, commit b8a03b3c.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from recipe.rerule.evaluation.engine.requests import Generation, PromptText, Request
from recipe.rerule.evaluation.memorised import right_answer

if TYPE_CHECKING:  # the declaration is read by every command, and probes need pyarrow
    from recipe.rerule.evaluation.probes import Probe

MAX_TOKENS = 30
NEWLINE = ("\n",)
NO_STOP: tuple[str, ...] = ()
STOPS: dict[str, tuple[str, ...]] = {"newline": NEWLINE, "none": NO_STOP}
"""Where a response ends before 30 tokens or end-of-sequence do.

RWKU's code names the tokens "\\n" and " \\n" as ends ("newline", which covers both). It looks them up by
these names, though, which byte-level vocabularies such as Llama-3's spell otherwise, so that with those
models it ends nothing there ("none"): its figures for Llama-3 are of whatever 30 tokens hold.
"""

_BLANK = "Please complete the blank in the following question.\n"
_BRIEF = "Please briefly answer the following question.\n"
_CUE = "Answer:"
_AFFIRMATIVE, _IN_CONTEXT = "affirmative suffix", "incontext learning"
MODES = ("fb", "qa", "aa")


@dataclass(frozen=True)
class _Wording:
    """The user turn, and what stands after the generation prompt."""

    turn: str
    cue: str = _CUE


@dataclass(frozen=True)
class _Variant:
    wording: Callable[[str, str, str], _Wording]
    double_bos: bool


def _official(mode: str, family: str, query: str) -> _Wording:
    """RWKU's own.

    An affirmative suffix ("Sure, here is the answer:") is itself the cue, so nothing follows it. Examples in
    context bring their own "Question:".
    """
    if mode == "fb":
        return _Wording(f"{_BLANK}Question: {query}\n")
    if mode == "aa" and family == _AFFIRMATIVE:
        return _Wording(f"{_BRIEF}Question: {query}", cue="")
    if mode == "aa" and family == _IN_CONTEXT:
        return _Wording(f"{_BRIEF}{query}\n")
    return _Wording(f"{_BRIEF}Question: {query}\n")


def _rule(mode: str, family: str, query: str) -> _Wording:
    """RULE's copy: examples in context stand alone."""
    if mode == "aa" and family == _IN_CONTEXT:
        return _Wording(query, cue="")
    return _official(mode, family, query)


def _bare(mode: str, family: str, query: str) -> _Wording:
    """The question alone, as stages 1 and 2 train on it."""
    return _Wording(query, cue="")


_VARIANTS = {
    "official": _Variant(_official, double_bos=True),
    "official-single-bos": _Variant(_official, double_bos=False),
    "rule": _Variant(_rule, double_bos=True),
    "bare": _Variant(_bare, double_bos=False),
}
PROMPTS: tuple[str, ...] = tuple(_VARIANTS)
"""Names for `requests`. RWKU's code tokenises the templated text as if it had no BOS, which gives two where
the template writes one (Llama-3): "official" and "rule" do so too."""


def requests(
    probes: Sequence[Probe], prompts: str = "official", stop: Sequence[str] = NEWLINE
) -> list[Request]:
    """A greedy generation of at most 30 tokens and the ranks of the first gold a probe, in order.

    Args:
        probes: of modes "fb", "qa" and "aa".
        prompts: one of `PROMPTS`.
        stop: strings that end a response, see `STOPS`.

    Raises:
        ValueError: an unknown `prompts`, or a probe of another mode.
    """
    if prompts not in _VARIANTS:
        raise ValueError(f"unknown RWKU prompts {prompts!r}; choose one of {', '.join(PROMPTS)}")
    variant = _VARIANTS[prompts]
    return [request for probe in probes for request in _requests(probe, _prompt(probe, variant), stop)]


def _requests(probe: Probe, prompt: PromptText, stop: Sequence[str]) -> Iterator[Request]:
    yield Generation(request_id(probe), prompt, MAX_TOKENS, tuple(stop))
    yield right_answer(answer_id(probe), prompt, probe.golds[0])


def answer_id(probe: Probe) -> str:
    """Id of the request that measures the first gold of a probe."""
    return f"{request_id(probe)}/answer"


def request_id(probe: Probe) -> str:
    """Id of the request, and so of the answer, of a probe."""
    return f"rwku/{probe.index}"


def question(probe: Probe) -> str:
    """The bare question."""
    return probe.query or probe.messages[-1]["content"]


def _prompt(probe: Probe, variant: _Variant) -> PromptText:
    if probe.mode not in MODES:
        raise ValueError(f"probe {probe.index} has mode {probe.mode!r}; RWKU has {', '.join(MODES)}")
    wording = variant.wording(probe.mode, probe.family, question(probe))
    message = {"role": "user", "content": wording.turn}
    return PromptText((message,), suffix=wording.cue, double_bos=variant.double_bos)
