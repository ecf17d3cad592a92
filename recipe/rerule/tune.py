"""Choose a learning rate: `python -m recipe.rerule.tune --help`, or `rerule tune`.

It trains a few steps with each rate, asks all models the same questions in one evaluation, and names the rate
with the highest retain recall minus forget recall. The questions choose the rate, so they must not be those
that measure the final model.

OUT/RATE                a run of each rate, with RATE.log beside it
OUT/evaluation          the answers of the model before and of each run

Exit codes: 0, 2 something was refused, 130 and 143 stopped by SIGINT and SIGTERM. Where a run fails, its own.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from recipe.rerule import io, process
from recipe.rerule.chain import Part, run_part
from recipe.rerule.evaluation import tidy
from recipe.rerule.evaluation.probes import read_probes
from recipe.rerule.evaluation.registry import benchmark_of, benchmarks
from recipe.rerule.training import entry

if TYPE_CHECKING:
    import pandas as pd

_ACTOR = "actor_rollout_ref.actor.optim.lr"
_TRAININGS = {
    "train": (entry.STAGE2, "recipe.rerule.main", _ACTOR, "actor_rollout_ref.model.path", "{}@last"),
    "unlearn": (entry.UNLEARN, "recipe.rerule.unlearn", "optim.lr", "model.path", "{}/model"),
}
"""By the command of `rerule`: configuration, module, the keys of rate and model, and the model of a run."""
_FACTORS = (1.0, 3.0, 1 / 3)
"""Of the configured rate, in the order in which they are tried."""
_BEFORE = "before"
_COLUMNS = ("forget recall", "forget refused", "retain recall", "retain refused")
_EXAMPLE = """\
example:
  rerule tune train --questions data/val.parquet --steps 12 --out tuning experiment=custom \\
      actor_rollout_ref.model.path=stage1/model data.train_files=data/train.parquet \\
      data.val_files=data/val.parquet

The rates of few steps need not be the best of many, and a difference of one question says nothing."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes as the module says."""
    with process.stoppable():
        options, words = _parser().parse_known_args(arguments)
        # Settings that follow --rates are no rates.
        words += [one for one in options.rates or () if isinstance(one, str)]
        options.rates = options.rates and [one for one in options.rates if not isinstance(one, str)]
        try:
            return _tune(options, words)
        except (ValueError, OSError) as error:
            return io.fail(error, 2)


def _parser() -> process.ArgumentParser:
    parser = process.ArgumentParser(
        prog="python -m recipe.rerule.tune",
        usage="%(prog)s {train,unlearn} --questions FILE --out FOLDER [options] [KEY=VALUE ...]",
        description="Try a few learning rates for few steps, and say which to take.",
        epilog=_EXAMPLE,
    )
    add = parser.add_argument
    add("training", choices=_TRAININGS, help="the command of rerule that trains")
    text = "rows with both sides that are not trained on, such as val.parquet; never the probes"
    add("--questions", type=Path, required=True, metavar="FILE", help=text)
    add("--out", type=Path, required=True, metavar="FOLDER", help="a new folder")
    text = "default: the configured rate, three times of it and a third"
    add("--rates", type=_rate_or_setting, nargs="+", metavar="RATE", help=text)
    text = "of each training (default: %(default)s); the schedule of the rate ends there too"
    add("--steps", type=process.positive, default=12, metavar="N", help=text)
    text = "start no training that would end after so many minutes, judged by the longest so far"
    add("--minutes", type=float, default=float("inf"), metavar="M", help=text)
    add("--dry-run", action="store_true", help="print the commands, and run and write nothing")
    return parser


def _rate_or_setting(text: str) -> float | str:
    try:
        return text if "=" in text else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid float value: {text!r}") from None


def _tune(options: argparse.Namespace, words: Sequence[str]) -> int:
    command, module, key, path, trained = _TRAININGS[options.training]
    for word in words:
        if "=" not in word:
            raise ValueError(f"{word} is no option, and no setting as KEY=VALUE; --help lists the options")
    config = entry.composed(command, words)
    if not options.minutes > 0:
        raise ValueError(f"--minutes is {options.minutes:g}; give a number above 0")
    rates = options.rates
    if rates is None:
        rates = [float(f"{factor * _configured(config, key):.2g}") for factor in _FACTORS]
    if wrong := [rate for rate in rates if not 0 < rate < 1]:
        raise ValueError(f"--rates {wrong[0]:g}: a rate is above 0 and below 1")
    names = [f"{rate:g}" for rate in rates]
    if len(set(names)) < len(names) or len(names) < 2:
        raise ValueError("--rates needs two or more different rates")
    if options.out.exists():
        raise ValueError(f"--out {options.out} exists: give another folder, or delete it")
    if not options.questions.is_file():
        raise ValueError(f"--questions {options.questions}: no such file")
    probes = read_probes(options.questions)
    if missing := {"forget", "retain"} - {probe.section for probe in probes}:
        raise ValueError(f"--questions {options.questions} has no rows of side {min(missing)}")
    if not OmegaConf.select(config, path):
        raise ValueError(f"{path} is not set: give {path}=MODEL")
    parts = [_training(options, [module, *words], key, name) for name in names]
    models = {_BEFORE: OmegaConf.select(config, path)}
    models |= {name: trained.format(options.out / name) for name in names}
    # Rows of every benchmark have recall and refusals; those of TOFU for training have no wrong answers.
    tokens = benchmarks()[benchmark_of(probes)].max_tokens
    asked = ["recipe.rerule.evaluate", "model", "--platform", OmegaConf.select(config, "platform.name")]
    asked += ["--probes", f"{options.questions}", "--benchmark", "custom", "--max-tokens", f"{tokens}"]
    for name, value in (OmegaConf.select(config, "data.apply_chat_template_kwargs") or {}).items():
        asked += ["--template", f"{name}={value}"]
    asked += ["--out", f"{options.out / 'evaluation'}"]
    if options.dry_run:
        every = [*(part.words for part in parts), [*asked, *_models(models)]]
        print("\n".join(shlex.join(["python", "-m", *command]) for command in every))
        return 0
    options.out.mkdir(parents=True)
    started, longest, warned, tried = time.monotonic(), 0.0, set[str](), 0
    for part in parts:
        begun = time.monotonic()
        if tried and begun - started + longest > 60 * options.minutes:
            print(f"not tried within {options.minutes:g} minutes: {', '.join(names[tried:])}")
            break
        print(f"[{begun - started:4.0f} s] {tried + 1}/{len(parts)} {part.does}", flush=True)
        if code := run_part(options.out, part, warned):
            return code
        tried += 1
        longest = max(longest, time.monotonic() - begun)
    asked += _models({name: models[name] for name in (_BEFORE, *names[:tried])})
    if code := run_part(options.out, Part("evaluation", "evaluation", asked, False), warned):
        return code
    print("\n".join(told(shares(tidy.read_responses(options.out / "evaluation")), rates[:tried], key)))
    return 0


def _models(models: Mapping[str, str]) -> list[str]:
    return [word for name, model in models.items() for word in ("--model", f"{name}={model}")]


def _configured(config: DictConfig, key: str) -> float:
    """The rate that the configuration gives; its resolvers look at model and rows."""
    try:
        return float(OmegaConf.select(config, key))
    except (OmegaConfBaseException, TypeError) as error:
        raise ValueError(f"{key} has no value to begin with ({io.describe(error)}); give --rates") from None


def _training(options: argparse.Namespace, words: Sequence[str], key: str, name: str) -> Part:
    steps, folder = f"trainer.total_training_steps={options.steps}", options.out / name
    own = [f"{key}={name}", steps, process.override("trainer.default_local_dir", folder)]
    return Part(name, f"{options.steps} steps with {key}={name}", [*words, *own], False)


def shares(rows: pd.DataFrame) -> dict[str, dict[str, float]]:
    """{model: {"forget recall": 0 to 1, "forget refused": ..., ...}} of a tidy table."""
    rows = rows.rename(columns={"rouge_l": "recall"})
    table = rows.groupby(["model", "side"])[["recall", "refused"]].mean().unstack()
    table.columns = [f"{side} {metric}" for metric, side in table.columns]
    return table.to_dict("index")


def best_rate(found: Mapping[str, Mapping[str, float]], rates: Sequence[float]) -> float:
    """The rate whose model has the highest retain recall minus forget recall; of equal ones the smallest.

    `found`: `shares` of the models, which are named after their rates.
    """
    return max(sorted(rates), key=lambda rate: round(_apart(found[f"{rate:g}"]), 9))


def _apart(of: Mapping[str, float]) -> float:
    return of["retain recall"] - of["forget recall"]


def told(found: Mapping[str, Mapping[str, float]], rates: Sequence[float], key: str) -> Iterator[str]:
    """A table with a row for each model, and the rate to take, if there is a choice and one helps."""
    yield f"{'rate':>8} {' '.join(f'{column:>15}' for column in _COLUMNS)}"
    for name in (_BEFORE, *(f"{rate:g}" for rate in rates)):
        yield f"{name:>8} {' '.join(f'{found[name][column]:15.3f}' for column in _COLUMNS)}"
    best = best_rate(found, rates)
    apart, before = _apart(found[f"{best:g}"]), _apart(found[_BEFORE])
    line = f"{key}={best:g}: retain recall is {apart:.3f} above forget recall (before: {before:.3f})"
    if round(apart - before, 9) <= 0:
        worst = min(rates, key=lambda rate: found[f"{rate:g}"]["retain recall"])
        least, kept = (found[name]["retain recall"] for name in (f"{worst:g}", _BEFORE))
        fell = f"retain recall fell from {kept:.3f} to {least:.3f} with {worst:g}, so try lower rates"
        rose = "retain recall did not fall, so try higher rates or more steps"
        yield f"no rate separates the sides: at best, with {line}; {fell if least < kept else rose}"
        return
    if len(rates) == 1:
        yield f"{line}; it is the only rate that was tried, so there is no choice"
        return
    line = f"take {line}"
    if best in (min(rates), max(rates)):
        line += f"; it is the {'smallest' if best == min(rates) else 'largest'} that was tried, so try more"
    yield line


if __name__ == "__main__":
    sys.exit(main())
