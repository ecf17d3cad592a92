"""A method: up to three terms of one loss, the rows that they need, and what a step costs.

The three sides of the data: `forget` (prompts and the answers to forget), `retain` (rows to keep) and
`alternate` (the forget prompts with other answers). A group is a row of the first side that the method has,
with its partners of the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

SIDES = ("forget", "alternate", "retain")
"""In the order in which the rows of a group stand."""


@dataclass(frozen=True)
class ForgetTerm:
    """What the function of a forget term is called with: that of `losses` with the term's name."""

    reads: tuple[str, ...] = ()
    """Its first arguments, of a micro-batch's answers to forget: of each token its `log_probs`, `logits`,
    `tokens` (their numbers) and `hidden` (the output of `method.layer`; with it the `direction` of the
    control vector); of each row `sums` and `probabilities` (log-probs, summed, and probabilities, averaged
    over its tokens) and `lengths`. Names begin with `start_` or `reinforced_` where they are those of a
    frozen model, and with `alternate_` where they are of the other answers."""
    settings: tuple[str, ...] = ()
    """Its further arguments, keys of `method`."""
    mean_over: str = "rows"
    """rows or tokens: what the term is a mean over in the whole batch."""

    def reads_any(self, prefix: str) -> bool:
        """Whether the name of something that it reads begins so."""
        return any(name.startswith(prefix) for name in self.reads)


FORGET = MappingProxyType(
    {
        "none": ForgetTerm(),
        "ga": ForgetTerm(("sums", "lengths"), (), "tokens"),
        "wga": ForgetTerm(("log_probs",), ("beta",), "tokens"),
        "satimp": ForgetTerm(("log_probs",), ("beta", "beta2"), "tokens"),
        "npo": ForgetTerm(("sums", "start_sums"), ("beta",)),
        "simnpo": ForgetTerm(("sums", "lengths"), ("beta", "gamma")),
        "dpo": ForgetTerm(
            ("alternate_sums", "alternate_start_sums", "sums", "start_sums"), ("beta", "dpo_scale")
        ),
        "flat": ForgetTerm(("alternate_probabilities", "probabilities"), ("divergence",)),
        "undial": ForgetTerm(("start_logits", "logits", "tokens"), ("alpha",), "tokens"),
        "ceu": ForgetTerm(("logits", "tokens"), (), "tokens"),
        "pdu": ForgetTerm(("logits",), (), "tokens"),
        "rmu": ForgetTerm(("hidden", "direction"), ("steering",), "tokens"),
        "whp": ForgetTerm(("start_logits", "reinforced_logits", "logits"), ("alpha", "labels"), "tokens"),
    }
)
"""Each value of `method.forget`. A new one is a line here, a function in `losses`, its name in
`schema.ForgetTerm` and a preset."""


@dataclass(frozen=True)
class Method:
    """The section `method` of the configuration, where each key is explained.

    Raises ValueError: naming the key that another one needs or forbids.
    """

    name: str
    forget: str
    retain: str
    alternate: str
    forget_weight: float
    retain_weight: float
    alternate_weight: float
    beta: float | None
    beta2: float | None
    gamma: float
    divergence: str
    dpo_scale: float | None
    alpha: float | None
    labels: str
    retain_positions: str
    smoothing: float | None
    retain_rows: int
    alternate_rows: int
    alternate_answers: str
    dual_rate: float | None
    dual_warmup: int
    retain_limit: float | None
    layer: int | None
    steering: float | None
    trained_layers: int | None
    trained_module: str | None

    def __post_init__(self) -> None:
        if not self.layout:
            raise ValueError("method.forget, method.retain and method.alternate are all none; choose a term")
        for name in self.forget_term.settings:
            if getattr(self, name) is None and name != "dpo_scale":
                raise ValueError(f"method.{name} is null, but method.forget={self.forget} needs a number")
        if self.forget_term.reads_any("alternate_") and self.alternate_rows != 1:
            raise ValueError(
                f"method.alternate_rows is {self.alternate_rows}, but method.forget={self.forget} compares "
                "pairs; set it to 1"
            )
        if self.alternate_answers == "file" and self.alternate_rows != 1:
            raise ValueError(
                f"method.alternate_rows is {self.alternate_rows}, but data.alternate holds one row for each "
                "forget row; set it to 1, or method.alternate_answers to forget or retain"
            )
        if self.smoothing is not None and (self.forget, self.retain) != ("ga", "nll"):
            raise ValueError(
                "method.smoothing is set, which needs method.forget=ga and method.retain=nll; set it to null"
            )
        if self.smoothing is not None and (self.forget_weight, self.retain_weight) != (1, 1):
            raise ValueError(
                f"method.smoothing is {self.smoothing}, which sets the weights of both terms; leave "
                "method.forget_weight and method.retain_weight at 1, or set it to null"
            )
        if self.dual_rate is not None and (self.retain == "none" or self.retain_limit is None):
            raise ValueError(
                "method.dual_rate is set, which needs method.retain and a number as method.retain_limit; set "
                "it to null"
            )
        if self.layer is None and (self.needs_hidden or self.trained_layers is not None):
            raise ValueError(
                "method.layer is null, but method.forget=rmu, method.retain=hidden and method.trained_layers "
                "need the number of a decoder layer; set it"
            )
        if self.trained_module is not None and self.trained_layers is None:
            raise ValueError(
                f"method.trained_module is {self.trained_module}, which needs method.trained_layers; set it "
                "to null"
            )
        if self.leading == "retain" and self.retain_rows != 1:
            raise ValueError(
                f"method.retain_rows is {self.retain_rows}, but the method has retain rows alone; set it to 1"
            )

    @property
    def forget_term(self) -> ForgetTerm:
        """What the forget term is a function of."""
        return FORGET[self.forget]

    @property
    def layout(self) -> tuple[str, ...]:
        """The side of each row of a group, in order."""
        counts = {"forget": self.forget != "none", "alternate": 0, "retain": 0}
        if self.alternate != "none" or self.forget_term.reads_any("alternate_"):
            counts["alternate"] = self.alternate_rows
        if self.retain != "none":
            counts["retain"] = self.retain_rows
        return tuple(side for side in SIDES for _ in range(counts[side]))

    @property
    def leading(self) -> str:
        """The side that has one row in each group, whose rows an epoch covers once."""
        return self.layout[0]

    @property
    def data(self) -> tuple[str, ...]:
        """The files that the method reads, by their keys under `data`, sorted as SIDES."""
        needed = set(self.layout)
        if "alternate" in needed and self.alternate_answers != "file":
            needed = needed - {"alternate"} | {"forget", self.alternate_answers}
        return tuple(side for side in SIDES if side in needed)

    @property
    def referenced(self) -> tuple[str, ...]:
        """The sides whose rows pass through the frozen start model too."""
        passing = {
            "forget": self.forget_term.reads_any("start_"),
            "alternate": self.forget_term.reads_any("alternate_start_"),
            "retain": self.retain in ("kl", "hidden"),
        }
        return tuple(side for side, passes in passing.items() if passes)

    @property
    def reinforced(self) -> tuple[str, ...]:
        """The sides whose rows pass through the frozen reinforced model too."""
        return ("forget",) if self.forget_term.reads_any("reinforced_") else ()

    @property
    def needs_logits(self) -> bool:
        """Whether a term is of the logits of all tokens, not of the log-probs of those that stand there."""
        return "logits" in self.forget_term.reads or self.retain == "kl"

    @property
    def needs_hidden(self) -> bool:
        """Whether a term is of the output of `layer`."""
        return "hidden" in (*self.forget_term.reads, self.retain)

    @property
    def passes(self) -> dict[str, int]:
        """Rows of a group that pass "forward" through a model, frozen ones included, and "backward".

        In later epochs the rows of NPO and DPO do not pass through the frozen model again.
        """
        rows, frozen = len(self.layout), (*self.referenced, *self.reinforced)
        return {"forward": rows + sum(frozen.count(side) for side in self.layout), "backward": rows}

    @property
    def unread(self) -> set[str]:
        """Settings that no term reads, nor what goes with it."""
        of_others = {name for term in FORGET.values() for name in term.settings}
        is_read = {
            **{f"{side}_weight": getattr(self, side) != "none" for side in SIDES},
            **dict.fromkeys(("alternate_rows", "alternate_answers"), "alternate" in self.layout),
            "retain_rows": "retain" in self.layout,
            "retain_positions": self.retain in ("kl", "hidden"),
            **dict.fromkeys(("dual_warmup", "retain_limit"), self.dual_rate is not None),
            "layer": self.needs_hidden or self.trained_layers is not None,
        }
        return of_others - {*self.forget_term.settings} | {name for name, read in is_read.items() if not read}
