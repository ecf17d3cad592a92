"""What a benchmark asks of a model: texts to generate, and answers to measure the likelihood of.

A benchmark turns its probes into requests, the engine answers them, the benchmark scores the answers. The
engine knows no benchmark, and a benchmark no engine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


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

    messages: tuple[dict[str, str], ...]
    raw: bool = False
    suffix: str = ""
    double_bos: bool = False


@dataclass(frozen=True)
class Generation:
    """Generate: one greedy answer, or several that are sampled.

    The random numbers of a sample depend on the tokens of the prompt and the place of the sample alone
    (`encoding.Encoded.engine_seed`). So two prompts share no random numbers, two models that are asked the
    same tokens share all, and the first n of more samples are those that n samples would be.

    Attributes:
        id: unique among the requests of an evaluation.
        prompt: what to continue.
        max_tokens: most new tokens.
        stop: strings that end the answer; they are not part of it.
        samples: how many are drawn; 0 for the greedy answer.
        temperature: of the samples; without effect on a greedy answer.
    """

    id: str
    prompt: PromptText
    max_tokens: int
    stop: tuple[str, ...] = ()
    samples: int = 0
    temperature: float = 1.0


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
        text: the greedy text, stop strings and special tokens left out; "" for a `Likelihood`, and where
            there are samples.
        log_probs: natural log-probability of each token of a `Likelihood`'s answer, in order, the last one
            that of end-of-sequence; empty for a `Generation`.
        ranks: of the same tokens: how many tokens of the vocabulary are at least as likely in this place, the
            token itself included. 1 at the most likely token; two that share that place both have 2.
        samples: the sampled texts, in order, without stop strings and special tokens; empty for other
            requests.
    """

    text: str = ""
    log_probs: tuple[float, ...] = ()
    ranks: tuple[int, ...] = ()
    samples: tuple[str, ...] = ()

    @property
    def avg_loss(self) -> float:
        """Mean negative log-likelihood a token, in nats."""
        return -sum(self.log_probs) / len(self.log_probs)


Answers = dict[str, Answer]
"""By request id."""


def prefixed(request: Request, prefix: str) -> Request:
    """The request with the prefix before the question, which is the first message of the user.

    An empty prompt stays empty: there a text is measured from its beginning.
    """
    messages = request.prompt.messages
    place = next((number for number, message in enumerate(messages) if message["role"] == "user"), None)
    if not prefix or place is None or not messages[place]["content"]:
        return request
    asked = {**messages[place], "content": prefix + messages[place]["content"]}
    prompt: PromptText = replace(request.prompt, messages=(*messages[:place], asked, *messages[place + 1 :]))
    return replace(request, prompt=prompt)
