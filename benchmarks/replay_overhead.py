"""What replay would cost on GPUs, on paper: python -m benchmarks.replay_overhead [--run RUN_FOLDER].

A model of a training step's seconds from floating-point operations and bytes, without any GPU. It predicts
replay's overhead for the paper's three settings and compares it with the hours that the paper prints, shows
what each assumption does to the answer, and goes on to longer responses and more GPUs (docs/gpu.md).
Prints tables, and one JSON object on its last line. Every assumption is an option; none is fitted to the
paper's hours. `--run` takes what can be measured (MEASURED) from a recorded stage-2 run with replay.
Overheads and shares are fractions in Python and JSON, percentages in the tables.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

WEIGHT_BYTES = 2
"""Of a parameter, a gradient and a KV value in bf16."""
TRAINING_FORWARDS = 4
"""Forward passes a training pass is worth: one, two for backward, one again (gradient checkpointing)."""
TRAINING_TRANSFERS = 3
"""Times FSDP moves all weights in a training pass: gathered forward and backward, gradients scattered."""
GENERATION_MEMORY = 0.6
"""Share of GPU memory for weights and KV cache during generation (gpu_memory_utilization of RULE's code)."""
ROUNDING_HOURS = 0.05
"""The paper prints hours to 0.1."""


@dataclass(frozen=True)
class Model:
    """A decoder: parameters, layers, hidden size, and the width of keys (or values) that a layer caches."""

    parameters: float
    layers: int
    hidden: int
    kv_width: int

    @property
    def bytes(self) -> float:
        return WEIGHT_BYTES * self.parameters

    @property
    def kv_bytes(self) -> float:
        """KV cache of one token, bytes."""
        return 2 * WEIGHT_BYTES * self.layers * self.kv_width

    def forward_flops(self, length: float) -> float:
        """FLOPs of a forward pass over one row of `length` tokens, causal attention included."""
        return length * 2 * (self.parameters + self.layers * self.hidden * length)


LLAMA_2_7B = Model(6.74e9, 32, 4096, 4096)
LLAMA_3_8B = Model(8.03e9, 32, 4096, 1024)


@dataclass(frozen=True)
class Cluster:
    """GPUs as NVIDIA's data sheet of the A800 80 GB has them; links per GPU and direction, bytes a second.

    `link` is NVLink at three quarters of its 200 GB/s, `network` one 200 Gb/s adapter a GPU, which counts
    as soon as the shards of the model lie on several nodes. `weight_sync`, at which new weights reach the
    rollout engine, is assumed, and of little weight.
    """

    gpus: int = 4
    gpus_per_node: int = 8
    flops: float = 312e12
    memory_bandwidth: float = 2.04e12
    memory: float = 80e9
    link: float = 150e9
    network: float = 25e9
    weight_sync: float = 20e9

    @property
    def slowest_link(self) -> float:
        return self.link if self.gpus <= self.gpus_per_node else self.network


@dataclass(frozen=True)
class Setting:
    """One setting of the paper, and the lengths of its rows in tokens, which the paper does not give.

    `runs`: runs that the paper's hours are over. `hard_share`: mean share of hard groups until replay starts.
    `validation_rows`: prompts of one validation. `hours`: the paper's, RULE and ReRULE.
    """

    name: str
    model: Model
    steps: int
    min_groups: int
    warmup_steps: int
    hard_share: float
    prompt_tokens: float
    response_tokens: float
    response_limit: int
    micro_batch: int = 8
    log_prob_micro_batch: int = 16
    validation_rows: int = 0
    runs: int = 1
    hours: tuple[float, float] = (0.0, 0.0)
    groups: int = 32
    rollouts: int = 8
    replayed_groups: int = 32

    @property
    def rows(self) -> int:
        return self.groups * self.rollouts


# Lengths from the characters of the benchmarks' files at 4 a token, plus chat template: RWKU's prompts have
# 144 and its probes number 120 a target; MUSE's ten examples before a question make most of its prompt;
# TOFU's questions have 79, its answers 183. Response lengths of RWKU and MUSE, RWKU's share of hard groups
# and the validation rows of MUSE and TOFU are guesses.
RWKU = Setting(
    name="RWKU",
    model=LLAMA_3_8B,
    steps=37,
    min_groups=100,
    warmup_steps=15,
    hard_share=0.5,
    prompt_tokens=50,
    response_tokens=120,
    response_limit=1024,
    validation_rows=120,
    runs=10,
    hours=(21.2, 22.3),
)
MUSE = Setting(
    name="MUSE-Books",
    model=LLAMA_2_7B,
    steps=187,
    min_groups=500,
    warmup_steps=26,
    hard_share=0.675,
    prompt_tokens=350,
    response_tokens=30,
    response_limit=1024,
    validation_rows=200,
    hours=(6.8, 7.1),
)
TOFU = Setting(
    name="TOFU",
    model=LLAMA_2_7B,
    steps=11,
    min_groups=80,
    warmup_steps=6,
    hard_share=0.543,
    prompt_tokens=30,
    response_tokens=60,
    response_limit=256,
    micro_batch=4,
    log_prob_micro_batch=8,
    validation_rows=80,
    hours=(1.8, 2.0),
)
PAPER = (RWKU, MUSE, TOFU)


@dataclass(frozen=True)
class Assumptions:
    """What neither the paper nor the data say; RANGES has where each may lie.

    Attributes:
        utilisation: FLOP/s of forward and training passes over the data sheet's.
        decode_efficiency: bytes a second of decoding over the data sheet's memory bandwidth.
        prompt_scale, response_scale: mean prompt and response length over the setting's own.
        longest_over_mean: the longest response of a batch over the mean one, up to the limit.
        replay_factor: seconds of a replay update over what its passes count for (measured).
        bookkeeping_share: work on the buffer over a RULE step (measured).
        other_seconds: data, reward, advantages, messages, logging; a step.
        startup_seconds: start and end of a run, outside its steps.
        validation_scale: prompts of a validation over the setting's own.
        validates: a validation after every step, as in RULE's script.
    """

    utilisation: float = 0.35
    decode_efficiency: float = 0.6
    prompt_scale: float = 1.0
    response_scale: float = 1.0
    longest_over_mean: float = 4.0
    replay_factor: float = 0.84
    bookkeeping_share: float = 0.005
    other_seconds: float = 5.0
    startup_seconds: float = 300.0
    validation_scale: float = 1.0
    validates: bool = True


RANGES: Mapping[str, tuple[float, float]] = {
    "utilisation": (0.15, 0.5),
    "decode_efficiency": (0.3, 0.8),
    "prompt_scale": (0.5, 1.5),
    "response_scale": (0.5, 3.0),
    "longest_over_mean": (2.0, 10.0),
    "replay_factor": (0.72, 1.0),
    "bookkeeping_share": (0.0024, 0.007),
    "other_seconds": (1.0, 20.0),
    "startup_seconds": (60.0, 1200.0),
    "validation_scale": (0.5, 3.0),
}
# replay_factor: benchmarks.replay_cost measured a replay_update_ratio of 0.54 to 0.71 where the passes count
# for 3 forwards over 4, and 0.84 with a log-prob pass of its own, 4 over 4 (no checkpointing on the CPU
# platform; docs/gpu.md). Where arithmetic is all that takes time it is 1. bookkeeping_share: from
# the same page.
MEASURED = ("replay_factor", "bookkeeping_share")


@dataclass(frozen=True)
class Step:
    """Seconds of one training step; `replay` are those of its replay update, where it has one."""

    generation: float
    old_log_probs: float
    reference: float
    update: float
    weight_sync: float
    other: float
    validation: float
    replay: float

    @property
    def rule(self) -> float:
        """The step without replay."""
        return math.fsum(asdict(self).values()) - self.replay


def step(setting: Setting, cluster: Cluster, given: Assumptions) -> Step:
    """Seconds of the parts of one step."""
    forward = forward_seconds(setting, cluster, given, setting.rows)
    validation_rows = round(given.validation_scale * setting.validation_rows)
    validation = generation_seconds(setting, cluster, given, validation_rows)
    parts = Step(
        generation=generation_seconds(setting, cluster, given, setting.rows),
        old_log_probs=forward,
        reference=forward,
        update=training_seconds(setting, cluster, given, setting.rows),
        weight_sync=setting.model.bytes / cluster.weight_sync,
        other=given.other_seconds,
        validation=validation if given.validates else 0.0,
        replay=0.0,
    )
    return replace(parts, replay=replay_seconds(setting, cluster, given, parts.rule))


def forward_seconds(setting: Setting, cluster: Cluster, given: Assumptions, rows: int) -> float:
    """Log-probs of `rows`."""
    work = Pass(rows, setting.log_prob_micro_batch, forwards=1, transfers=1)
    return pass_seconds(setting, cluster, given, work)


def training_seconds(setting: Setting, cluster: Cluster, given: Assumptions, rows: int) -> float:
    """Forward and backward over `rows`; the optimiser's own work is a few hundredths of a second."""
    work = Pass(rows, setting.micro_batch, TRAINING_FORWARDS, TRAINING_TRANSFERS)
    return pass_seconds(setting, cluster, given, work)


@dataclass(frozen=True)
class Pass:
    """Work on `rows`: forward passes' worth a row, and transfers of all weights a micro-batch."""

    rows: int
    micro_batch: int
    forwards: float
    transfers: float


def pass_seconds(setting: Setting, cluster: Cluster, given: Assumptions, work: Pass) -> float:
    """FSDP moves weights while it computes, so the slower of the two decides."""
    model, on_a_gpu = setting.model, math.ceil(work.rows / cluster.gpus)
    compute = work.forwards * on_a_gpu * model.forward_flops(row_length(setting, given))
    others = (cluster.gpus - 1) / cluster.gpus  # the share of the weights that lies on other GPUs
    moved = work.transfers * math.ceil(on_a_gpu / work.micro_batch) * model.bytes * others
    return max(compute / (cluster.flops * given.utilisation), moved / cluster.slowest_link)


def replay_seconds(setting: Setting, cluster: Cluster, given: Assumptions, rule_step: float) -> float:
    """One replay update, with the work on the buffer.

    Its log-probs are a pass of their own only where a GPU has several micro-batches (docs/architecture.md).
    """
    rows = setting.replayed_groups * setting.rollouts
    seconds = training_seconds(setting, cluster, given, rows)
    if math.ceil(rows / cluster.gpus) > setting.micro_batch:
        seconds += forward_seconds(setting, cluster, given, rows)
    return given.replay_factor * seconds + given.bookkeeping_share * rule_step


def row_length(setting: Setting, given: Assumptions) -> float:
    """Mean tokens of a row, prompt and response."""
    return prompt_length(setting, given) + response_length(setting, given)


def prompt_length(setting: Setting, given: Assumptions) -> float:
    """Mean tokens of a prompt."""
    return given.prompt_scale * setting.prompt_tokens


def response_length(setting: Setting, given: Assumptions) -> float:
    """Mean tokens of a response."""
    return min(setting.response_limit, given.response_scale * setting.response_tokens)


def generation_seconds(setting: Setting, cluster: Cluster, given: Assumptions, rows: int) -> float:
    """Decoding of `rows` on one engine a GPU.

    A decoding step reads all weights once for all rows that run, and each row's own KV cache. There are as
    many steps as the longest response has tokens, or more where the caches do not fit into memory together
    and rows wait for others. Prompts are left out: the rollouts of a group share theirs.
    """
    model, on_a_gpu = setting.model, math.ceil(rows / cluster.gpus)
    prompt, mean = prompt_length(setting, given), response_length(setting, given)
    longest = min(setting.response_limit, given.longest_over_mean * mean)
    room = GENERATION_MEMORY * cluster.memory - model.bytes
    waves = on_a_gpu * (prompt + mean) * model.kv_bytes / room
    caches = on_a_gpu * mean * (prompt + mean / 2) * model.kv_bytes
    read = max(longest, waves * mean) * model.bytes + caches
    compute = on_a_gpu * mean * 2 * model.parameters / (cluster.flops * given.utilisation)
    return max(read / (cluster.memory_bandwidth * given.decode_efficiency), compute)


def first_replay_step(setting: Setting) -> int:
    """The first step after T_warm at which the buffer holds B_min groups, this step's included."""
    filled = math.ceil(setting.min_groups / (setting.groups * setting.hard_share))
    return max(setting.warmup_steps + 1, filled)


def replay_steps(setting: Setting) -> int:
    """Steps of one run that have a replay update: the gate stays open."""
    return max(0, setting.steps - first_replay_step(setting) + 1)


def needed_hard_share(setting: Setting) -> float:
    """Mean share of hard groups up to step T_warm + 1 below which B_min, not T_warm, decides the start."""
    return setting.min_groups / (setting.groups * (setting.warmup_steps + 1))


def run_hours(setting: Setting, cluster: Cluster, given: Assumptions) -> tuple[float, float]:
    """Predicted hours of RULE and of ReRULE, over all runs."""
    parts = step(setting, cluster, given)
    rule = setting.runs * (given.startup_seconds + setting.steps * parts.rule) / 3600
    return rule, rule + setting.runs * replay_steps(setting) * parts.replay / 3600


def overhead(setting: Setting, cluster: Cluster, given: Assumptions) -> float:
    """ReRULE's hours over RULE's, minus 1."""
    rule, rerule = run_hours(setting, cluster, given)
    return rerule / rule - 1


def changed(given: Assumptions, values: Mapping[str, Any]) -> Assumptions:
    """`given` with other values of the names in `values`."""
    return replace(given, **values)


def corners(given: Assumptions) -> Iterator[Assumptions]:
    """Every combination of the ends of RANGES, and of the given response length, which acts both ways."""
    ends: dict[str, tuple[float, ...]] = dict(RANGES)
    ends["response_scale"] += (given.response_scale,)
    for values in product(*ends.values()):
        yield changed(given, dict(zip(ends, values, strict=True)))


def sensitivity(setting: Setting, cluster: Cluster, given: Assumptions) -> dict[str, list[float]]:
    """The overhead with one assumption at either end of its range and the others as given."""
    return {
        name: [overhead(setting, cluster, changed(given, {name: value})) for value in ends]
        for name, ends in RANGES.items()
    }


def rounding_interval(hours: tuple[float, float]) -> tuple[float, float]:
    """The overheads that two rounded hours leave possible."""
    rule, rerule = hours
    lowest = (rerule - ROUNDING_HOURS) / (rule + ROUNDING_HOURS) - 1
    return lowest, (rerule + ROUNDING_HOURS) / (rule - ROUNDING_HOURS) - 1


def implied_update_seconds(setting: Setting) -> tuple[float, float, float]:
    """Seconds of one replay update by the paper's hours: as printed, and least and most before rounding."""
    hours = setting.hours[1] - setting.hours[0]
    updates = setting.runs * replay_steps(setting)
    lowest, highest = hours - 2 * ROUNDING_HOURS, hours + 2 * ROUNDING_HOURS
    return 3600 * hours / updates, 3600 * lowest / updates, 3600 * highest / updates


@dataclass(frozen=True)
class Prediction:
    """A predicted quantity with its range over `corners`, and the paper's with its rounding interval.

    `overlap`: whether range and interval do.
    """

    predicted: float
    range: tuple[float, float]
    paper: float
    paper_interval: tuple[float, float]
    overlap: bool


Quantity = Callable[[Setting, Cluster, Assumptions], float]


def predict(
    of: Quantity, setting: Setting, cluster: Cluster, given: Assumptions, paper: tuple[float, float, float]
) -> Prediction:
    """`of` as given and over the corners; `paper`: its value, and least and most before rounding."""
    values = [of(setting, cluster, corner) for corner in corners(given)]
    low, high = min(values), max(values)
    value, least, most = paper
    overlap = low <= most and least <= high
    return Prediction(of(setting, cluster, given), (low, high), value, (least, most), overlap)


@dataclass(frozen=True)
class Check:
    """One setting beside the paper's hours.

    Attributes:
        overhead: of the whole run; with validation if the assumptions say so.
        overhead_without_validation: the same without; beside the same figure of the paper, which has them.
        update_seconds: of one replay update.
        step_seconds: of a RULE step; the paper's with everything in its steps.
        rule_hours: of RULE.
        share, paper_share: replay update over a RULE step; the paper's with everything in its steps.
        needed_step_seconds: of a RULE step, everything in it, for which the predicted update gives the
            paper's overhead.
    """

    name: str
    steps: int
    replay_steps: int
    overhead: Prediction
    overhead_without_validation: Prediction
    update_seconds: Prediction
    step_seconds: Prediction
    rule_hours: Prediction
    share: float
    paper_share: float
    needed_step_seconds: float


def check(setting: Setting, cluster: Cluster, given: Assumptions) -> Check:
    """Predict a setting of the paper."""
    silent, parts = replace(given, validates=False), step(setting, cluster, given)
    rule, rerule = setting.hours
    paper = (rerule / rule - 1, *rounding_interval(setting.hours))
    paper_hours = (rule, rule - ROUNDING_HOURS, rule + ROUNDING_HOURS)
    each = 3600 / (setting.runs * setting.steps)
    paper_steps = (each * paper_hours[0], each * paper_hours[1], each * paper_hours[2])
    paper_share = paper[0] * setting.steps / replay_steps(setting)
    return Check(
        name=setting.name,
        steps=setting.steps,
        replay_steps=replay_steps(setting),
        overhead=predict(overhead, setting, cluster, given, paper),
        overhead_without_validation=predict(overhead, setting, cluster, silent, paper),
        update_seconds=predict(update_seconds, setting, cluster, given, implied_update_seconds(setting)),
        step_seconds=predict(rule_step_seconds, setting, cluster, given, paper_steps),
        rule_hours=predict(rule_hours, setting, cluster, given, paper_hours),
        share=parts.replay / parts.rule,
        paper_share=paper_share,
        needed_step_seconds=parts.replay / paper_share,
    )


def update_seconds(setting: Setting, cluster: Cluster, given: Assumptions) -> float:
    """Of one replay update."""
    return step(setting, cluster, given).replay


def rule_step_seconds(setting: Setting, cluster: Cluster, given: Assumptions) -> float:
    """Of a step without replay."""
    return step(setting, cluster, given).rule


def rule_hours(setting: Setting, cluster: Cluster, given: Assumptions) -> float:
    """Of RULE, over all runs."""
    return run_hours(setting, cluster, given)[0]


@dataclass(frozen=True)
class Beyond:
    """A step with replay elsewhere: replay over the RULE step without and with validation, and the parts."""

    what: str
    without_validation: float
    with_validation: float
    parts: Step


def beyond(what: str, setting: Setting, cluster: Cluster, given: Assumptions) -> Beyond:
    """Steps of a long run, in which replay has started and start-up does not show."""
    parts = step(setting, cluster, replace(given, validates=True))
    silent = step(setting, cluster, replace(given, validates=False))
    return Beyond(what, silent.replay / silent.rule, parts.replay / parts.rule, parts)


LENGTHS = (120, 1024, 4096, 16384)
GPU_COUNTS = (4, 8, 16, 64, 256)


def longer_responses(given: Assumptions) -> list[Beyond]:
    """RWKU's setting on 4 GPUs with other mean response lengths, and a limit of four times that."""
    settings = [replace(RWKU, response_tokens=length, response_limit=4 * length) for length in LENGTHS]
    return [beyond(f"{one.response_tokens} tokens", one, Cluster(), given) for one in settings]


def more_gpus(given: Assumptions, *, grow: bool) -> list[Beyond]:
    """RWKU's setting with its own responses; `grow`: the batch and the replayed groups grow with the GPUs."""
    table = []
    for gpus in GPU_COUNTS:
        groups = RWKU.groups * (gpus // GPU_COUNTS[0] if grow else 1)
        setting = replace(RWKU, groups=groups, replayed_groups=groups)
        table.append(beyond(f"{gpus} GPUs", setting, Cluster(gpus), given))
    return table


def measured(run: Path) -> dict[str, float]:
    """MEASURED of a recorded run: its replay_update_ratio over that of the passes it made.

    Exits with one line where `run` is no such run.
    """
    from omegaconf import OmegaConf

    from benchmarks.replay_cost import run_cost
    from recipe.rerule.runs.history import read_metrics

    figures = run_cost(run) if (run / "config.yaml").is_file() else {}
    if "replay_update_ratio" not in figures:
        sys.exit(f"error: {run} holds no recorded run with replay")
    checkpoints = OmegaConf.load(run / "config.yaml").actor_rollout_ref.model.enable_gradient_checkpointing
    training = TRAINING_FORWARDS if checkpoints else TRAINING_FORWARDS - 1
    own_pass = any("replay/seconds/log_prob" in data for data in read_metrics(run).values())
    counted = (training + own_pass) / (training + 1)
    return {
        "replay_factor": figures["replay_update_ratio"] / counted,
        "bookkeeping_share": figures["bookkeeping_share"],
    }


def assumptions(arguments: list[str] | None) -> Assumptions:
    """The defaults, over them what a run measured, over that what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay_overhead", description=__doc__)
    parser.add_argument("--run", type=Path, help="folder of a recorded stage-2 run with replay")
    for name, (low, high) in RANGES.items():
        default = getattr(Assumptions, name)
        option = "--" + name.replace("_", "-")
        parser.add_argument(option, type=float, help=f"default {default:g}, range {low:g} to {high:g}")
    options = vars(parser.parse_args(arguments))
    run = options.pop("run")
    given = changed(Assumptions(), measured(run) if run else {})
    return changed(given, {name: value for name, value in options.items() if value is not None})


def main(arguments: list[str] | None = None) -> None:
    """Predict and print."""
    given = assumptions(arguments)
    checks = [check(setting, Cluster(), given) for setting in PAPER]
    tables = {
        "longer_responses": longer_responses(given),
        "more_gpus_same_batch": more_gpus(given, grow=False),
        "more_gpus_grown_batch": more_gpus(given, grow=True),
    }
    varied = {setting.name: sensitivity(setting, Cluster(), given) for setting in PAPER}
    print_checks(checks)
    print_sensitivity(varied, given)
    print_gate()
    for name, table in tables.items():
        print_beyond(name.replace("_", " "), table)
    figures = {"assumptions": asdict(given), "checks": [asdict(one) for one in checks]}
    figures |= {"sensitivity": varied} | {
        name: [asdict(row) for row in rows] for name, rows in tables.items()
    }
    print(json.dumps(figures))


def print_checks(checks: list[Check]) -> None:
    """The three settings against the paper."""
    print("The paper's settings on 4 GPUs. range: over all combinations of the ends of the ranges below.")
    print("the paper: by its hours, which are rounded; interval: what they may have been before.")
    for one in checks:
        print(f"\n{one.name}: replay at {one.replay_steps} of {one.steps} steps")
        print(f"  {'':26}{'predicted':>10}{'range':>17}{'the paper':>11}{'interval':>17}   overlap")
        print_prediction("overhead, %", one.overhead, 100)
        print_prediction("without validation, %", one.overhead_without_validation, 100)
        print_prediction("a replay update, seconds", one.update_seconds)
        print_prediction("a step without it, seconds", one.step_seconds)
        print_prediction("RULE, hours", one.rule_hours)
        shares = f"{100 * one.share:.1f} % of a step without it; by the paper {100 * one.paper_share:.1f} %"
        print(f"  a replay update is {shares}")
        print(f"  the paper's overhead follows if a step without it takes {one.needed_step_seconds:.0f} s")


def print_prediction(name: str, one: Prediction, unit: float = 1) -> None:
    """One line."""
    (low, high), (least, most) = one.range, one.paper_interval
    predicted = f"{unit * one.predicted:>10.2f}{f'{unit * low:.2f} - {unit * high:.2f}':>17}"
    paper = f"{unit * one.paper:>11.2f}{f'{unit * least:.2f} - {unit * most:.2f}':>17}"
    print(f"  {name:26}{predicted}{paper}   {'yes' if one.overlap else 'NO'}")


def print_sensitivity(varied: Mapping[str, Mapping[str, list[float]]], given: Assumptions) -> None:
    """One assumption at a time."""
    print("\nOverhead with one assumption at either end of its range, %")
    print(f"{'assumption':20}{'given':>9}{'low':>9}{'high':>9}" + "".join(f"{name:>16}" for name in varied))
    for name, (low, high) in RANGES.items():
        ends = "".join(f"{100 * a:>8.1f} {100 * b:>7.1f}" for a, b in (row[name] for row in varied.values()))
        print(f"{name:20}{getattr(given, name):>9.3g}{low:>9.3g}{high:>9.3g}{ends}")


def print_gate() -> None:
    """When replay starts, by how many groups are hard."""
    shares = (0.1, 0.2, 0.4, 0.6, 0.8)
    print("\nFirst step with replay, by the mean share of hard groups until then")
    print(f"{'':12}" + "".join(f"{share:>7}" for share in shares) + "   waits for no group from")
    for setting in PAPER:
        starts = [first_replay_step(replace(setting, hard_share=share)) for share in shares]
        row = "".join(f"{start if start <= setting.steps else 'never':>7}" for start in starts)
        print(f"{setting.name:12}{row}   {needed_hard_share(setting):.3f}")


def print_beyond(title: str, table: list[Beyond]) -> None:
    """A table of Beyond, with the seconds of the parts."""
    parts = [field.name for field in fields(Step)]
    print(f"\nReplay update / step without it, {title}: overhead in % without and with validation, seconds")
    print(f"{'':14}{'without':>9}{'with':>7}" + "".join(f"{name:>14}" for name in parts))
    for row in table:
        seconds = "".join(f"{getattr(row.parts, name):>14.1f}" for name in parts)
        print(f"{row.what:14}{100 * row.without_validation:>9.1f}{100 * row.with_validation:>7.1f}{seconds}")


if __name__ == "__main__":
    main()
