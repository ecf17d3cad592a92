"""What a benchmark asks of a model: texts to generate, and answers to measure the likelihood of.

A benchmark turns its probes into requests, the engine answers them, the benchmark scores the answers. The
engine knows no benchmark, and a benchmark no engine.
"""

from __future__ import annotations

from dataclasses import dataclass

Message = dict[str, str]


@dataclass(frozen=True)
class PromptText:
    """A prompt as a model is shown it.

    Attributes:
        messages: chat messages {role, content}; with `raw` exactly one.
        raw: the message goes to the model as it is, with the special tokens the tokenizer adds to a text
            (BOS), instead of through the chat template.
        suffix: text right after the chat template's generation prompt, which the answer continues.
        double_bos: tokenise the templated text as if it had no BOS yet, so that templates that write one give
            two, as some benchmarks' own code does. Of no effect on raw prompts.
    """

    messages: tuple[Message, ...]
    raw: bool = False
    suffix: str = ""
    double_bos: bool = False


@dataclass(frozen=True)
class Generation:
    """Generate greedily.

    Attributes:
        id: unique among the requests of an evaluation.
        prompt: what to continue.
        max_tokens: most new tokens.
        stop: strings that end the answer; they are not part of it.
    """

    id: str
    prompt: PromptText
    max_tokens: int
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Likelihood:
    """Measure how likely an answer is, its end-of-sequence token included.

    Attributes:
        id: unique among the requests of an evaluation.
        prompt: what the answer continues.
        answer: the text whose tokens are measured.
    """

    id: str
    prompt: PromptText
    answer: str


Request = Generation | Likelihood


@dataclass(frozen=True)
class Answer:
    """The engine's answer to one request.

    Attributes:
        text: the generated text, stop strings and special tokens left out; "" for a `Likelihood`.
        log_probs: natural log-probability of each token of a `Likelihood`'s answer, in order, the last one
            that of end-of-sequence; empty for a `Generation`.
    """

    text: str = ""
    log_probs: tuple[float, ...] = ()

    @property
    def avg_loss(self) -> float:
        """Mean negative log-likelihood a token, in nats."""
        return -sum(self.log_probs) / len(self.log_probs)


Answers = dict[str, Answer]
"""By request id."""
