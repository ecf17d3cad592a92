"""What the study's policy saves: python -m benchmarks.study.policy_speed --world many --out DIR

Compares it with `recipe.rerule.minimal`'s, which computes whole padded batches, on the same responses of the
world's stage-1 model. DIR keeps the world and its models. Prints one JSON object, medians over batches of the
seconds that the study's policy takes over those of whole batches: for sampled responses (`respond`), and for
log-probs with their gradient (`log_probs`). Set OMP_NUM_THREADS=1, as for the study's runs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import torch
from transformers import LogitsProcessorList

from benchmarks.study.loop import Settings
from benchmarks.study.policy import GumbelNoise, Policy
from benchmarks.study.trial import Data, start
from benchmarks.study.worlds import WORLDS, prepare
from data_prep.contract import Row
from recipe.rerule import minimal
from recipe.rerule.minimal import Batch, batches


def whole_batches(policy: Policy) -> minimal.Policy:
    """The policy of `minimal` with the same model and noise."""
    limit = policy.ends["max_new_tokens"]
    plain = minimal.Policy(policy.model, policy.tokenizer, limit, policy.temperature)
    noise = LogitsProcessorList([GumbelNoise(policy.temperature)])
    plain.sampling = {"do_sample": False, "logits_processor": noise}
    return plain


def ratios(data: Data, settings: Settings, count: int) -> dict[str, float]:
    """Median ratios over so many batches, after one that is not counted."""
    policy = start(data, settings).policy
    assert isinstance(policy, Policy)
    both, source = (whole_batches(policy), policy), batches(data.train, settings.prompts, settings.seed)
    found: dict[str, list[float]] = {"respond": [], "log_probs": []}
    for number in range(count + 1):
        rows = next(source)
        batch = both[0].respond(rows, settings.rollouts)
        asked = [seconds_of(_respond, each, rows, settings.rollouts, number) for each in both]
        learnt = [seconds_of(_learn, each, batch) for each in both]
        if number:
            found["respond"].append(asked[1] / asked[0])
            found["log_probs"].append(learnt[1] / learnt[0])
    return {name: median(values) for name, values in found.items()}


def _respond(policy: minimal.Policy, rows: Sequence[Row], copies: int, seed: int) -> None:
    torch.manual_seed(seed)
    policy.respond(rows, copies)


def _learn(policy: minimal.Policy, batch: Batch) -> None:
    policy.model.zero_grad()
    (policy.log_probs(batch) * batch["response_mask"]).sum().backward()


def seconds_of(work: Callable[..., object], *parts: object) -> float:
    """Of the processor."""
    began = time.process_time()
    work(*parts)
    return time.process_time() - began


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.study.policy_speed", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--world", choices=WORLDS, required=True)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="of the world and its models")
    parser.add_argument("--tofu", type=Path, metavar="FOLDER", help="TOFU's files, for its world")
    parser.add_argument("--batches", type=int, default=8, help="default: %(default)s")
    options = parser.parse_args(arguments)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    world = WORLDS[options.world]
    try:
        data = Data.read(*prepare(world, options.out / options.world, options.tofu))
    except ValueError as error:
        sys.exit(f"error: {error}")
    print(json.dumps(ratios(data, Settings(**world.settings), options.batches)))


if __name__ == "__main__":
    main()
