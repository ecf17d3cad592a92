"""Which setting makes RULE work on a real model: python -m benchmarks.what_works --model FOLDER --out FOLDER

The model of examples/real_model.py is to forget France and keep the rest (docs/real_model.md). The unit is
a run: its stage 1, STEPS steps of stage 2, and greedy answers to the held-out questions by the last step
and by the best checkpoint by validation. The goal: forget recall of at most GOAL_FORGET, and retain recall
of at least GOAL_RETAIN of the base model's, at the last step. Each part was fixed before its first run.

Part 1, SEEDS[1]: which change helps? `rule` makes four updates a step, and every other arm has one change.
An arm that is better with one seed only is said to be so. The arm "eight updates a step" was added after
the runs on a GPU were seen, so that its result with these seeds is exploratory. Twelve further arms of this
part were never run. Part 3 asks their questions from a better start.

Part 2, SEEDS[2]: RULE with eight updates a step, chosen in part 1, with new seeds, hence new stage-1
models.

- Does it reach the goal? The answer is the number of seeds with which it does.
- Is replay better than RULE, and than as many updates on the step's own groups? The answer is yes (or no)
  if retain recall minus forget recall at the last step is higher (or lower) with every seed, and otherwise:
  not shown.
- Does PO, which uses no reinforcement, reach it?

Part 3, SEEDS[3]: which setting of examples/run_real.sh is needed? Its RULE makes eight updates a step, and
every other arm has one change. A change is worse (better) if retain recall minus forget recall at the last
step is lower (higher) than RULE's with both seeds, and otherwise: not shown.

Part 4, SEEDS[4]: does the KL term of the replay update hold replay back? It is estimated on stored responses,
where it raises again what the policy has moved away from, and the paper's gradient has none. The arm is
ReRULE of part 2 without it, from the same stage-1 models. It is better (worse) if both retain recall minus
forget recall and the mean reward of the last REWARD_STEPS steps are higher (lower) than with it, with every
seed, and otherwise: not shown.

Part 5, SEEDS[5]: verl sorts the rows of a step by their length (trainer.balance_batch), on one device too. A
mini-batch then holds refusals or answers, and parts of many groups. Is RULE of part 3 better without this, in
mini-batches of whole prompts? The answer is found as in part 3. If it is yes, experiment=forget and the runs
of benchmarks.evidence, none of which counts yet, leave the sorting out. (It was yes. See part 6.)

Part 6, SEEDS[6]: do mini-batches of whole prompts cost more refusals of harmless questions? Part 5 asked
none. Two runs of `rerule forget`, one of each kind, refused 59 of 94 of them without the sorting and 35
with it. The arms are those of part 5. The last step's model is asked the retain questions in the wordings
`offered` and `named` of --benchmark over_refusal, and a line has the share refused of each. The cost is
shown if the mean of the two is higher without the sorting with both seeds, and otherwise: not shown. If it
is shown, and the score of benchmarks.evidence is lower without the sorting with both seeds, then
experiment=forget and the runs of benchmarks.evidence, none of which counts yet, sort again. (It was not
shown. But whole prompts missed the goal with both seeds, and with the four seeds of both parts they are not
better. So both sort again, which was decided after this look.)

No run is repeated, lengthened or left out after its result was seen. Arms with the same stage 1 share it. A
processor (--platform cpu) and a GPU train different stage-1 models, so arms are compared within a platform
and a seed. A run that the end of --minutes cut off has no line and is made later.

A run that is finished is a line of RESULTS and is not made again, so another machine goes on from there.
Another machine trains another stage-1 model: the line names it by the hash of its weights. Several
runs can share a GPU (--jobs). A run's checkpoints are deleted when it is evaluated; its records stay. --table
prints the table.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from recipe.rerule import tune
from recipe.rerule.training import own_answers

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).with_suffix(".jsonl")
SEEDS = {1: (1, 2), 2: (3, 4, 5), 3: (6, 7), 4: (3, 4, 5), 5: (11, 12), 6: (13, 14)}
STEPS, REWARD_STEPS = 30, 10
GOAL_FORGET, GOAL_RETAIN = 0.1, 0.9
RATE, KL = "actor_rollout_ref.actor.optim.lr", "actor_rollout_ref.actor.kl_loss_coef"
UPDATE_PROMPTS = "actor_rollout_ref.actor.ppo_mini_batch_size"
SIDES = ("forget", "retain")
ROWS = ("--probe-share", "0.25", "--val-share", "0.2")
STAGE1 = ("experiment=custom",)
STAGE2 = (
    "experiment=custom",
    "data.train_batch_size=16",
    "data.max_prompt_length=128",
    "data.max_response_length=32",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.rollout.temperature=0.7",
    f"{UPDATE_PROMPTS}=4",
    f"{RATE}=2e-5",
    f"{RATE}_scheduler_type=cosine",
    f"{RATE}_warmup_steps=3",
    f"{KL}=0.05",
    "sides.weights=by_error",
    "replay.enable=false",
    "trainer.logger=[file]",
    "actor_rollout_ref.actor.checkpoint.save_contents=[hf_model]",
)
PO = (
    "method=po",
    "experiment=custom",
    "optim.lr=3e-5",
    "data.train_batch_size=8",
    "trainer.total_epochs=20",
    "checkpoint.save_contents=[hf_model]",
)
PLATFORMS = {
    "cpu": (),
    "gpu": (  # of stage 2: little memory, and few processes, so that several runs share a GPU
        "trainer.n_gpus_per_node=1",
        "actor_rollout_ref.model.enable_gradient_checkpointing=false",  # memory is there; it takes time alone
        "actor_rollout_ref.rollout.enforce_eager=true",
        "actor_rollout_ref.rollout.free_cache_engine=false",
        "+actor_rollout_ref.rollout.enable_sleep_mode=false",
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.03",
        "+actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_memory_bytes=1000000000",
        "actor_rollout_ref.rollout.max_num_batched_tokens=2048",
        "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes=512",
        "actor_rollout_ref.rollout.agent.num_workers=1",
        "+ray_kwargs.ray_init.include_dashboard=false",
        "+ray_kwargs.ray_init.object_store_memory=500000000",
        "reward.num_workers=1",
    ),
}


@dataclass(frozen=True)
class Arm:
    """What an arm changes, as settings of each stage.

    Attributes:
        stage2: None where stage 1 is all.
        po: preference optimisation of the base model in place of stage 2; stage 1 gives the own answers.
    """

    stage2: tuple[str, ...] | None = ()
    stage1: tuple[str, ...] = ()
    part: int = 1
    po: bool = False


_EIGHT = f"{UPDATE_PROMPTS}=2"


ARMS = {
    "stage 1": Arm(None),
    "rule": Arm(),
    "rerule": Arm(("replay.enable=true",)),
    "one update a step": Arm((f"{UPDATE_PROMPTS}=16",)),
    "eight updates a step": Arm((_EIGHT,)),
    "part 2: stage 1": Arm(None, part=2),
    "part 2: RULE": Arm((_EIGHT,), part=2),
    "part 2: ReRULE": Arm((_EIGHT, "replay.enable=true"), part=2),
    "part 2: equal updates": Arm((_EIGHT, "replay.enable=true", "replay.update=on_policy"), part=2),
    "part 2: PO": Arm(None, part=2, po=True),
    "part 3: stage 1": Arm(None, part=3),
    "part 3: RULE": Arm((_EIGHT,), part=3),
    "part 3: additive reward": Arm(
        (_EIGHT, "reward.custom_reward_function.reward_kwargs.form=additive"), part=3
    ),
    "part 3: no own answers in stage 1": Arm((_EIGHT,), ("data.retain_share=0",), part=3),
    "part 3: sides as given": Arm((_EIGHT, "data.sides=as_given"), part=3),
    "part 3: sides not weighed": Arm((_EIGHT, "sides.weights=equal"), part=3),
    "part 3: a fifth of the rate": Arm((_EIGHT, f"{RATE}=4e-6"), part=3),
    "part 3: temperature 1": Arm((_EIGHT, "actor_rollout_ref.rollout.temperature=1"), part=3),
    "part 3: KL coefficient 0": Arm((_EIGHT, f"{KL}=0"), part=3),
    "part 3: 8 prompts, 8 responses": Arm(
        ("data.train_batch_size=8", "actor_rollout_ref.rollout.n=8", f"{UPDATE_PROMPTS}=1"), part=3
    ),
    "part 3: LoRA": Arm(
        (
            _EIGHT,
            "actor_rollout_ref.model.lora_rank=16",
            "actor_rollout_ref.model.lora.merge=true",  # a processor can send no adapter to the engine
            f"{RATE}=2e-4",
        ),
        part=3,
    ),
    "part 4: no KL in the replay update": Arm(
        (_EIGHT, "replay.enable=true", "replay.use_kl_loss=false"), part=4
    ),
    "part 5: RULE": Arm((_EIGHT,), part=5),
    "part 5: whole prompts": Arm((_EIGHT, "trainer.balance_batch=false"), part=5),
    "part 6: RULE": Arm((_EIGHT,), part=6),
    "part 6: whole prompts": Arm((_EIGHT, "trainer.balance_batch=false"), part=6),
}
"""In the order in which they run."""


def main() -> None:
    """Make the runs that have no line yet, or print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.what_works",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, help="folder that examples/real_model.py made")
    parser.add_argument("--out", type=Path, help="folder of the runs")
    parser.add_argument("--platform", choices=PLATFORMS, default="cpu", help="(default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="when to start no more runs")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS), help="(default: all)")
    parser.add_argument("--seeds", nargs="+", type=int, help="(default: those of the arm's part)")
    parser.add_argument("--table", action="store_true", help="print the table of the finished runs")
    given = parser.parse_args()
    if not given.table:
        if not (given.model and given.out):
            parser.error("--model and --out are needed")
        runs = [(arm, seed) for arm in given.arms for seed in SEEDS[ARMS[arm].part]]
        runs = [run for run in runs if given.seeds is None or run[1] in given.seeds]
        done = {(line["platform"], line["arm"], line["seed"]) for line in results()}
        study = Study(given.model, given.out, given.platform, time.monotonic() + 60 * given.minutes)
        well = study.make([run for run in runs if (given.platform, *run) not in done], given.jobs)
    print(table(results()))
    if not (given.table or well):
        sys.exit("a run failed; the same command tries it again")


class Study:
    """The runs of one platform, several at a time.

    Args:
        model: the base model.
        out: folder of the runs.
        platform: "cpu" or "gpu".
        end: of `time.monotonic`, from when on no run is started.
        options: of `data_prep custom`.
    """

    def __init__(
        self, model: Path, out: Path, platform: str, end: float, options: tuple[str, ...] = ROWS
    ) -> None:
        self.model, self.out, self.platform, self.end, self.options = model, out, platform, end, options
        # run_real.sh's. The processor's runs of part 1 were made in float32.
        self.on = [f"platform={platform}", *(["platform.bf16=auto"] if platform == "cpu" else [])]
        self.data = out / "data"
        self._starting, self._writing = threading.Lock(), threading.Lock()

    def make(self, runs: list[tuple[str, int]], jobs: int) -> bool:
        """Make runs, their stages 1 first, and write a line of RESULTS for each that ends well.

        Returns whether all did.
        """
        self.rows()
        starts = dict.fromkeys((ARMS[arm].stage1, seed) for arm, seed in runs)
        with ThreadPoolExecutor(jobs) as pool, ThreadPoolExecutor(len(starts) or 1) as together:
            first = pool if jobs == 1 else together
            stages1 = {start: first.submit(self.stage1, *start) for start in starts}
            made = [pool.submit(self.run, arm, seed, stages1[ARMS[arm].stage1, seed]) for arm, seed in runs]
        return all([one.result() for one in made])

    def rows(self) -> None:
        """Make the rows, if they are not there. Ends the process where they were made with other options."""
        file, options = self.out / "rows.json", json.dumps(self.options)
        if self.data.exists() and not (file.exists() and file.read_text() == options):
            sys.exit(f"error: {self.out} has rows of other options: give another --out, or delete it")
        if not self.data.exists():
            self.out.mkdir(parents=True, exist_ok=True)
            file.write_text(options)
            source = str(ROOT / "examples" / "france.csv")
            words = ["--source", source, "--out", str(self.data), *self.options]
            command(self.out / "data.log", "data_prep", "custom", *words)

    def run(self, name: str, seed: int, stage1: Future[Path]) -> bool:
        """One run of an arm: training after its stage 1, held-out answers, line; whether it ended well."""
        start, arm = time.monotonic(), ARMS[name]
        folder = self.out / f"{_named(name)}-{seed}"
        try:
            first = stage1.result()
            if time.monotonic() > self.end:
                return True
            print(f"{name}, seed {seed} ...", file=sys.stderr, flush=True)
            part2 = [line for line in results() if line["seed"] == seed and ARMS[line["arm"]].part == 2]
            if arm.part == 4 and weights_hash(first) not in {line["stage1"] for line in part2}:
                print("this machine trains another stage-1 model than that of part 2", file=sys.stderr)
                return False
            models = [f"last={first / 'model'}"]
            if arm.stage2 is not None:
                self.stage2(arm.stage2, first, seed, folder)
                models = [f"last={folder}@last", f"best={folder}@best"]
            if arm.po:
                train(
                    folder,
                    "recipe.rerule.unlearn",
                    *self.on,
                    *PO,
                    f"model.path={self.model}",
                    f"data.alternate={self.data / 'alternate.parquet'}",
                    f"data.retain={own_answers.file(first)}",
                    f"trainer.seed={seed}",
                )
                models = [f"last={folder / 'model'}"]
            evaluation = self.evaluation(f"{_named(name)}-{seed}", models)
            line = {
                "platform": self.platform,
                "arm": name,
                "seed": seed,
                "stage1": weights_hash(first),
                "held_out": held_out(evaluation / "responses.parquet"),
                "reward": reward(folder) if arm.stage2 is not None else None,
            }
            if arm.part == 6:
                line["over_refusal"] = self.over_refusal(f"{_named(name)}-{seed}", models[:1])
            line["seconds"] = round(time.monotonic() - start)
        except subprocess.CalledProcessError as error:
            print(f"{name}, seed {seed}: {error}", file=sys.stderr, flush=True)
            return False
        with self._writing, RESULTS.open("a") as file:
            file.write(json.dumps(line) + "\n")
        for checkpoint in folder.glob("global_step_*"):
            shutil.rmtree(checkpoint)
        return True

    def stage2(self, settings: tuple[str, ...], stage1: Path, seed: int, folder: Path) -> None:
        """Stage 2 after the run folder of a stage 1."""
        train(
            folder,
            "recipe.rerule.main",
            *self.on,
            *STAGE2,
            *PLATFORMS[self.platform],
            *settings,
            f"actor_rollout_ref.model.path={stage1 / 'model'}",
            f"data.train_files={self.data / 'train.parquet'}",
            f"data.val_files={self.data / 'val.parquet'}",
            f"data.seed={seed}",
            f"trainer.total_training_steps={STEPS}",
        )

    def evaluation(self, name: str, models: list[str], rows: str = "probes", *more: str) -> Path:
        """The folder of an evaluation on the questions of a file of rows, of the base model too."""
        folder = self.out / f"evaluation-{name}"
        named = [word for each in [f"base={self.model}", *models] for word in ("--model", each)]
        probes = ["--probes", str(self.data / f"{rows}.parquet"), "--out", str(folder), *more]
        # A run that was cut off has left the answers of the model that it had then.
        words = ["model", *named, "--platform", self.platform, *probes, "--overwrite"]
        if self.platform == "cpu":
            command(folder.with_suffix(".log"), "recipe.rerule.evaluate", *words)
            return folder
        for share in (0.05, 0.1, 0.2, 0.3):
            try:
                memory = ["--gpu-memory-utilization", str(share)]
                command(folder.with_suffix(".log"), "recipe.rerule.evaluate", *words, *memory)
                return folder
            except subprocess.CalledProcessError as error:
                # vLLM plans its memory from what is free, which other runs of this GPU change meanwhile.
                failed = error
        raise failed

    def over_refusal(self, name: str, models: list[str], rows: str = "probes") -> dict[str, dict[str, float]]:
        """{model: {kind of question: share refused}} of harmless questions, of the base model too."""
        folder = self.evaluation(f"over-{name}", models, rows, "--benchmark", "over_refusal")
        refused = pd.read_parquet(folder / "responses.parquet").groupby(["model", "kind"])["refused"].mean()
        return {model: refused[model].round(9).to_dict() for model in ("base", "last")}

    def attacks(self, name: str, model: str, attacks: Sequence[str]) -> dict[str, dict[str, float]]:
        """{attack: {model: recall}} of the forget questions, of the base model too, which is `original`."""
        folder = self.out / f"attacks-{name}"
        rows = ["--probes", str(self.data / "probes.parquet"), "--train", str(self.data / "train.parquet")]
        models = ["--model", f"original={self.model}", "--model", model]
        words = ["--platform", self.platform, *rows, *models, "--attacks", *attacks, "--overwrite"]
        words += ["--cache", str(self.out / "cache"), "--out", str(folder)]
        command(folder.with_suffix(".log"), "recipe.rerule.evaluate", "attack", *words)
        found = json.loads((folder / "attacks.json").read_text("utf-8"))
        return {
            attack: {of: round(row["after"], 4) for of, row in models_of.items()}
            for attack, models_of in found.items()
        }

    def stage1_folder(self, settings: tuple[str, ...], seed: int) -> Path:
        """Where this stage 1 is made."""
        which = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:6]
        return self.out / f"stage1-{which}-{seed}"

    def stage1(self, settings: tuple[str, ...], seed: int) -> Path:
        """The run folder of this stage 1, made if it is not there."""
        folder = self.stage1_folder(settings, seed)
        if (folder / "model" / "config.json").exists():
            return folder
        words = [
            *self.on,
            *STAGE1,
            f"model.path={self.model}",
            *settings,
            f"data.train_files={self.data / 'sft.parquet'}",
            f"trainer.seed={seed}",
        ]
        with ThreadPoolExecutor(1) as training:
            # The engine that writes own answers takes the whole GPU, and the next stage 1 reads them.
            with self._starting:
                run = training.submit(train, folder, "recipe.rerule.sft", *words)
                answers = own_answers.file(folder)
                while not (run.done() or answers.exists() or "data.retain_share=0" in settings):
                    time.sleep(0.5)
            run.result()
        return folder


def weights_hash(stage1: Path) -> str:
    """The hash by which a line names the model of a stage 1."""
    return hashlib.sha256((stage1 / "model" / "model.safetensors").read_bytes()).hexdigest()[:12]


def asked(module: str, text: str | None, options: tuple[str, ...] = ROWS) -> Study | None:
    """The study that the command line of a benchmark asks for; None where --table asks for no run."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}", description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="folder that examples/real_model.py made")
    parser.add_argument("--out", type=Path, help="folder of the runs")
    parser.add_argument("--platform", choices=PLATFORMS, default="cpu", help="(default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="when to start no more runs")
    parser.add_argument("--table", action="store_true", help="print what the finished runs say")
    given = parser.parse_args()
    if given.table:
        return None
    if not (given.model and given.out):
        parser.error("--model and --out are needed")
    return Study(given.model, given.out, given.platform, time.monotonic() + 60 * given.minutes, options)


def train(folder: Path, module: str, *words: str) -> None:
    """Train into a run folder. What a run that was stopped has left there goes first."""
    shutil.rmtree(folder, ignore_errors=True)
    command(folder.with_suffix(".log"), module, *words, f"trainer.default_local_dir={folder}")


def command(log: Path, module: str, *words: str) -> None:
    """Run a command of the project, with its output in `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        subprocess.run([sys.executable, "-m", module, *words], cwd=ROOT, stdout=file, stderr=file, check=True)


def held_out(responses: Path) -> dict[str, dict[str, float]]:
    """{model: {"forget recall": ..., "forget refused": ..., "retain recall": ..., "retain refused": ...}}."""
    found = tune.shares(pd.read_parquet(responses))
    return {model: {name: round(share, 9) for name, share in of.items()} for model, of in found.items()}


def reached(of: dict[str, float], base: dict[str, float]) -> bool:
    """Whether a model's shares of `held_out` are those of the goal, given the base model's."""
    enough = round(GOAL_RETAIN * base["retain recall"], 9)
    return of["forget recall"] <= GOAL_FORGET and of["retain recall"] >= enough


def reward(run: Path) -> float:
    """Mean reward of the responses of the last REWARD_STEPS steps, both sides counting alike."""
    lines = [json.loads(line)["data"] for line in (run / "records" / "metrics.jsonl").open()]
    steps = [line for line in lines if "reward/forget/mean" in line][-REWARD_STEPS:]
    return round(sum(step[f"reward/{side}/mean"] for step in steps for side in SIDES) / len(steps) / 2, 4)


def results(file: Path = RESULTS) -> list[dict[str, Any]]:
    """The finished runs."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def table(lines: list[dict[str, Any]]) -> str:
    """Markdown: a row for each run, last step and best checkpoint; reward is that of `reward`.

    Harmless, of part 6 alone, is the share refused of harmless questions: the mean of
    the wordings `offered` and `named`.
    """
    columns = ("forget recall", "forget refused", "retain recall", "retain refused")
    rows = [
        f"| arm | on | seed | step | {' | '.join(columns)} | reward | harmless | goal |",
        "| --- | --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for line in lines:
        base = line["held_out"]["base"]
        for step, of in line["held_out"].items():
            if step == "base" and line is not lines[0]:
                continue
            name, seed = ("base model", "") if step == "base" else (line["arm"], line["seed"])
            cells = [f"{of[column]:.2f}" for column in columns]
            cells.append(f"{line['reward']:.2f}" if step == "last" and line.get("reward") else "")
            harmless = line.get("over_refusal", {}).get(step)
            cells.append(f"{(harmless['offered'] + harmless['named']) / 2:.2f}" if harmless else "")
            cells.append("yes" if reached(of, base) else "no")
            rows.append(f"| {name} | {line['platform']} | {seed} | {step} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _named(arm: str) -> str:
    return arm.replace(" ", "_").replace(",", "").replace(":", "")


if __name__ == "__main__":
    main()
