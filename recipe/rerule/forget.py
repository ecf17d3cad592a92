"""Forget in one command: `python -m recipe.rerule.forget --help`, or `rerule forget`.

It runs the commands that exist one after the other, each in its own process. At the end it says in words what
the model has forgotten and kept (`evaluation.verdict`).

OUT/settings.json                       what OUT is made with; other settings or rows are refused
OUT/about.csv                           with --about: the rows that the model writes
OUT/data, npo_gdr, stage1, METHOD       the rows, and a run folder of each training
OUT/evaluation, over_refusal, attacks, report.html   results
OUT/PART.log, PART.1.log, ...           all that the command of a part has printed, a file for each start

Exit codes: 0 the limits are kept, 3 they are not, 2 something was refused, 130 and 143 stopped by SIGINT and
SIGTERM. Where a part fails, its own.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from recipe.rerule import about, chain, io, process
from recipe.rerule.chain import Part
from recipe.rerule.evaluation.tasks.over_refusal import harmless_questions
from recipe.rerule.process import ArgumentParser
from recipe.rerule.runs import run_folder
from recipe.rerule.unlearning import presets
from reward.keyword import names_of

BROKEN = 3
"""The exit code where the limits are not kept."""
BASE, SETTINGS, ABOUT = "base", "settings.json", "about.csv"
_REINFORCED = ("rule", "rerule")
_BEFORE, _BEFORE_SETTINGS = "npo_gdr", ("optim.lr=1e-5", "trainer.total_epochs=10")
"""What --robust trains by before stage 1: those of benchmarks/robust.py."""
_STAGE1, _TEMPLATE = "stage1:", "data.apply_chat_template_kwargs"
_NOT_TRAINED = ("data", f"{ABOUT}.answers", "own_answers")
"""Folders of OUT that are made before anything is trained. Answers are kept by question and model."""
_DESCRIPTION = """\
Make a model forget what it knows about one thing, or what a file of questions asks about it, and keep
everything else. The command makes the rows, trains, evaluates on questions that were held out, attacks the
model a little and writes a report.
A command that was stopped goes on where it was if you start it again."""
_EXAMPLE = """\
example:
  rerule forget --model MODEL --facts examples/france.csv --name France --out outputs/france
  rerule forget --model MODEL --about France --review --out outputs/france

exit codes: 0: the limits are kept; 3: they are not; 2: something was refused; else that of the part that
failed. docs/own_data.md explains the file and the parts."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes as the module says."""
    doing: list[str] = []
    with process.stoppable(lambda: f"the same command goes on with {doing[-1]}" if doing else ""):
        options = _parser().parse_args(arguments)
        try:
            return _forget(options, doing)
        except (ValueError, OSError) as error:
            return io.fail(error, 2)


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="python -m recipe.rerule.forget", description=_DESCRIPTION, epilog=_EXAMPLE)
    add = parser.add_argument
    start = parser.add_mutually_exclusive_group(required=True)
    start.add_argument("--model", metavar="M", help="the model: a folder, or a name on the Hub")
    text = "an earlier --out of this command: its model forgets more, and what it forgot is asked again"
    start.add_argument("--from", dest="earlier", type=Path, metavar="FOLDER", help=text)
    rows = parser.add_mutually_exclusive_group(required=True)
    text = "CSV of question, answer and side (forget, retain), as `data_prep custom` takes it"
    rows.add_argument("--facts", type=Path, metavar="FILE", help=text)
    text = "what is to be forgotten: the model itself writes the rows (`python -m recipe.rerule.about`); "
    rows.add_argument("--about", action="append", metavar="NAME", help=f"{text}repeat it for more")
    add("--review", action="store_true", help="with --about: stop after the rows, for you to edit them")
    about.add_generator(parser)
    add("--out", type=Path, required=True, metavar="FOLDER", help="where everything goes")
    text = "what is to be forgotten, which a refusal should name, or names with | between them"
    add("--name", help=f"{text} (default: the column keyword)")
    text = "share of the retain rows that get a second row: the same question, with words that name the "
    text += "target"
    add("--named-share", type=float, default=0.0, metavar="X", help=f"{text} (default: %(default)s)")
    text = "rule, rerule (with replay), or a method of `recipe.rerule.unlearn --list` (default: rule)"
    add("--method", choices=[*_REINFORCED, *presets.names()], default="rule", metavar="NAME", help=text)
    text = "train by NPO before stage 1 (--method rule, rerule): attacks brought back less from such models "
    text += "with each of three seeds (docs/real_model.md)"
    add("--robust", action="store_true", help=text)
    text = "train adapters in place of whole models; not tried: another LoRA setting missed the goal with "
    text += "both seeds (docs/real_model.md)"
    add("--lora", action="store_true", help=text)
    add("--platform", choices=("gpu", "cpu"), help="default: gpu where this machine has one, else cpu")
    text = "a setting of the training that unlearns (stage 2, or the other method), which decides the most; "
    text += "stage1:KEY=VALUE is one of stage 1; repeat the option for more"
    add("--set", action="append", default=[], metavar="KEY=VALUE", help=text)
    text = "limit: share of held-out questions about the target that are answered (default: %(default)s)"
    add("--forget-at-most", type=float, default=0.1, metavar="X", help=text)
    text = "limit: answers to other held-out questions, as a share of those before (default: %(default)s)"
    add("--retain-at-least", type=float, default=0.9, metavar="X", help=text)
    text = "a table of harmless questions, as XSTest and OR-Bench publish theirs: how many are refused"
    add("--harmless", type=Path, metavar="FILE", help=f"{text}, before and after")
    add("--dry-run", action="store_true", help="print the commands, and run and write nothing")
    return parser


# ---- the parts ----


def plan(options: argparse.Namespace, model: str) -> list[Part]:
    """All parts in their order, as far as is known now what is finished and what the rows allow.

    Args:
        model: the folder, in place of a name on the Hub.
    """
    out, method, platform, parts = options.out, options.method, options.platform, list[Part]()
    set1 = [one.removeprefix(_STAGE1) for one in options.set if one.startswith(_STAGE1)]
    set2 = [one for one in options.set if not one.startswith(_STAGE1)]
    template = {one.partition(f"{_TEMPLATE}.")[2] for one in options.set} - {""}
    on = ["--platform", platform, *(word for one in sorted(template) for word in ("--template", one))]
    if options.about:
        words = ["recipe.rerule.about", "--model", model, *on, "--out", f"{options.facts}"]
        words += [word for name in options.about for word in ("--about", name)]
        if options.generator:
            words += ["--generator", options.generator, "--generator-model", options.generator_model]
        # No row about other things names a target by another name ("USA"), or what was forgotten before.
        never = [name for name in names_of(options.name) if name not in (*options.about, _joined(options))]
        for _, before in earlier(options):
            never += shlex.split(before.get("about", "")) or names_of(before["name"])
        words += [word for name in never for word in ("--never", name)]
        parts += [Part("about", "questions and the model's answers", words, options.facts.is_file())]
    data, stage1, run = out / "data", out / "stage1", out / method
    evaluation, attacks, page = out / "evaluation", out / "attacks", out / "report.html"
    made, probes = (data / "manifest.json").is_file(), data / "probes.parquet"
    # Until something is trained on them, rows are made again: their file may have been corrected.
    words = ["data_prep", "custom", "--source", f"{options.facts}", "--probe-share", "0.25"]
    words += ["--keyword", options.name] if options.name else []
    words += ["--named-share", f"{options.named_share}"] if options.named_share else []
    words += ["--rows-of", f"{options.earlier / 'data'}"] if options.earlier else []
    words += ["--out", f"{data}", *(["--overwrite"] if made else [])]
    parts += [Part("rows", "rows", words, made and _is_trained(out))]

    adapter = "/lora_1gpu" if options.lora else ""
    cpu = ["platform.bf16=auto"] if platform == "cpu" else []
    custom = [f"experiment=custom{adapter}", f"platform={platform}", *cpu]
    folder = process.override("trainer.default_local_dir", run)

    def by(preset: str, settings: Sequence[str]) -> Part:
        """The training of the model by a method of `unlearn`."""
        words = ["recipe.rerule.unlearn", f"method={preset}", *custom, process.override("model.path", model)]
        words += [
            process.override(f"data.{side}", data / file)
            for side, file in presets.answer_files(preset).items()
        ]
        words += [process.override("trainer.default_local_dir", out / preset)]
        words += ["checkpoint.save_contents=[hf_model]", *settings]  # without what only a resumed run reads
        return Part(preset, f"training by {preset}", words, _has_model(out / preset), anew=out / preset)

    if method in _REINFORCED:
        first = [process.override("data.train_files", data / "sft.parquet")]
        first += [process.override("trainer.default_local_dir", stage1), *set1]
        base, unlearnt = (process.override("model.path", one) for one in (model, out / _BEFORE / "model"))
        second = [f"experiment=forget{adapter}", f"platform={platform}", *cpu]
        second += ["actor_rollout_ref.model.lora.merge=true"] if adapter and cpu else []
        second += ["replay.enable=false"] if method == "rule" else []
        second += [process.override("data.train_files", data / "train.parquet")]
        second += [process.override("data.val_files", data / "val.parquet"), folder, *set2]
        start, there = "actor_rollout_ref.model.path", _has_model(stage1)
        done = any(b"stage 2 finished: " in log.read_bytes() for log in chain.logs(out, method))
        check1 = ["recipe.rerule.check", "stage1", *custom, base, *first]
        check2 = ["recipe.rerule.check", "stage2", process.override(start, model), *second]
        train1 = ["recipe.rerule.sft", *custom, unlearnt if options.robust else base, *first]
        train = ["recipe.rerule.main", process.override(start, stage1 / "model"), *second]
        parts += [
            Part("check_stage1", "check of stage 1", check1, there),
            Part("check_stage2", "check of stage 2", check2, done),
            *([by(_BEFORE, _BEFORE_SETTINGS)] if options.robust else []),
            Part("stage1", "stage 1: refusals", train1, there, anew=stage1),
            Part(method, "stage 2: rewards on both sides", train, done),
        ]
        # The last step: on a real model, the best step by validation on few rows was worse.
        models, runs = [f"stage1={stage1 / 'model'}", f"{method}={run}@last"], ["--run", f"{method}={run}"]
    else:
        parts += [by(method, set2)]
        models, runs = [f"{method}={run / 'model'}"], []

    lengths = [one.partition("=")[2] for one in set2 if one.startswith("data.max_response_length=")]
    on += [word for one in lengths[-1:] for word in ("--max-tokens", one)]
    asked = [*on, "--probes", f"{probes}", "--model"]
    words = ["recipe.rerule.evaluate", "model", *asked, f"{BASE}={model}"]
    words += [word for one in models for word in ("--model", one)] + ["--out", f"{evaluation}"]
    parts += [Part("evaluation", "evaluation on held-out questions", words, evaluation.is_dir())]
    over = out / "over_refusal"
    words = ["recipe.rerule.evaluate", "model", "--benchmark", over.name, *asked, f"{BASE}={model}"]
    words += ["--model", models[-1], "--out", f"{over}"]
    words += ["--harmless", f"{options.harmless}"] if options.harmless else []
    does = "harmless questions that sound near refusing"
    parts += [Part(over.name, does, words, over.is_dir())]
    for number, (former, settings) in enumerate(earlier(options), start=1):
        again = out / f"earlier{number}"
        words = ["recipe.rerule.evaluate", "model", *on, "--out", f"{again}"]
        words += ["--probes", f"{former / 'data' / 'probes.parquet'}", "--model", models[-1]]
        parts += [Part(again.name, f"evaluation on {settings['name']}", words, again.is_dir())]
    results = ["--results", f"{evaluation}", "--results", f"{over}"]
    if not probes.is_file() or _facts(probes) > 1:  # relearning trains on half of the facts
        words = ["recipe.rerule.evaluate", "attack", *asked, f"original={model}", "--model", models[-1]]
        words += ["--train", f"{data / 'train.parquet'}", "--attacks", "samples", "relearn_forget_half"]
        parts += [Part("attacks", "short attacks", [*words, "--out", f"{attacks}"], attacks.is_dir())]
        results += ["--attacks", f"{attacks}"]
    words = ["recipe.rerule.report", "--title", _target(options) or options.facts.stem, "--base", BASE]
    words += [*results, *runs, "--data", f"{data}", "--overwrite", "--out", f"{page}"]
    return [*parts, Part("report", "report", words, page.is_file())]


def _joined(options: argparse.Namespace) -> str:
    return " and ".join(options.about)


def _target(options: argparse.Namespace) -> str:
    """The first of the names that --name gives."""
    return "".join(names_of(options.name or "")[:1])


def earlier(options: argparse.Namespace) -> list[tuple[Path, dict[str, str]]]:
    """The folders of --from, the last first, with their settings; a name is there. Raises ValueError."""
    found, folder = list[tuple[Path, dict[str, str]]](), options.earlier
    while folder:
        settings = io.read_record(folder / SETTINGS) if (folder / SETTINGS).is_file() else {}
        if not {"name", "method"} <= settings.keys() or not (folder / "evaluation").is_dir():
            raise ValueError(f"--from {folder}: no finished folder of this command")
        found.append((folder, settings | {"name": settings["name"] or folder.name}))
        folder = Path(settings["from"]) if "from" in settings else None
    return found


def _is_trained(out: Path) -> bool:
    """Whether a part has begun that goes by the rows and settings; drafts of folders have a dot."""
    return any(one.is_dir() and one.name[0] != "." and one.name not in _NOT_TRAINED for one in out.glob("*"))


def _has_model(run: Path) -> bool:
    return (run / "model" / "config.json").is_file()


def _facts(probes: Path) -> int:
    """How many facts the held-out questions about the target ask for."""
    from data_prep.contract import read_rows

    told = [row["extra_info"] for row in read_rows(probes) if row["extra_info"]["section"] == "forget"]
    return len({one.get("fact") or one["index"] for one in told})


# ---- the chain ----


def _forget(options: argparse.Namespace, doing: list[str]) -> int:
    """The exit code. `doing` gets each part as it begins. Raises ValueError and OSError."""
    from recipe.rerule.evaluation.engine.models import check_models, resolve_models
    from recipe.rerule.evaluation.verdict import rounds, verdict

    out = options.out
    options.platform = options.platform or process.platform_here()
    if options.earlier:
        method = earlier(options)[0][1]["method"]
        made = f"{method}@last" if method in _REINFORCED else f"{method}/model"
        options.model = f"{resolve_models([f'{BASE}={options.earlier / made}'])[0].path}"
    if options.about:
        options.facts, options.name = out / ABOUT, options.name or _joined(options)
    settings = _checked(options)
    if options.dry_run:
        print(chain.printed(plan(options, options.model)))
        return 0
    models = resolve_models([f"{BASE}={options.model}"])
    check_models(models)
    with io.naming_full_disk(out), run_folder.held(out, "--out"):
        io.write(out / SETTINGS, settings.encode())
        for part, code in chain.followed(lambda: plan(options, f"{models[0].path}"), out, doing):
            if code and "stage1" in part.name:
                print(f"a setting of stage 1 is given as --set {_STAGE1}KEY=VALUE", file=sys.stderr)
            if code:
                return code
            if part.name == "about":
                io.write(out / SETTINGS, _checked(options).encode())  # with the rows that are there now
                if options.review:
                    start = ["--from", options.earlier] if options.earlier else ["--model", options.model]
                    words = [*map(str, start), "--facts", f"{options.facts}", "--name", options.name]
                    print(
                        f"edit {options.facts}, then go on with:\nrerule forget "
                        f"{shlex.join([*words, '--out', f'{out}'])} and your other options"
                    )
                    return 0
    limits = options.forget_at_most, options.retain_at_least
    lines, kept = verdict(out, (BASE, options.method), _target(options) or "the target", *limits)
    if options.earlier:
        former = [(folder, settings["name"], settings["method"]) for folder, settings in earlier(options)]
        table, shares = rounds([*former[::-1], (out, _target(options) or options.facts.stem, options.method)])
        lines += table
        for name, share in shares:
            if share > options.forget_at_most:
                kept = False
                limit = f"are answered, limit {options.forget_at_most:.1%}"
                lines.append(f"NOT within the limits: {share:.1%} of the questions about {name} {limit}.")
    print("\n".join(["", *lines, f"report: {out / 'report.html'}"]))
    return 0 if kept else BROKEN


def _checked(options: argparse.Namespace) -> str:
    """The text of settings.json. Raises ValueError: options do not fit, or --out holds something else."""
    out, model = options.out, Path(options.model)
    for one in options.set:
        if "=" not in one:
            raise ValueError(f"--set {one!r} is not KEY=VALUE or {_STAGE1}KEY=VALUE")
        if one.startswith(_STAGE1) and options.method not in _REINFORCED:
            raise ValueError(f"--set {one}: --method {options.method} has no stage 1")
        if one.removeprefix(_STAGE1).lstrip("+").startswith("trainer.default_local_dir="):
            raise ValueError(f"--set {one}: --out says where everything goes; leave it out")
    if options.robust and options.method not in _REINFORCED:
        raise ValueError(f"--robust: --method {options.method} has no stage 1, before which it trains")
    shares = {"--forget-at-most": options.forget_at_most, "--retain-at-least": options.retain_at_least}
    for option, share in shares.items():
        if not 0 <= share <= 2:
            raise ValueError(f"{option} {share:g} is a share, such as 0.1 or 0.9")
    if options.method == "whp" and not any(one.startswith("reinforced.path=") for one in options.set):
        raise ValueError("--method whp needs --set reinforced.path=MODEL (docs/methods.md)")
    if not options.about and (options.review or options.generator or options.generator_model):
        raise ValueError("--review and --generator are for rows that are written: give --about")
    if (options.generator is None) != (options.generator_model is None):
        raise ValueError("--generator and --generator-model go together: give both, or neither")
    there = options.facts.is_file()
    if not there and not options.about:
        raise ValueError(f"--facts {options.facts}: no such file")
    own = options.facts.resolve() == (out / ABOUT).resolve()
    inputs = ("--facts", None if own else options.facts), ("--model", model), ("--from", options.earlier)
    io.check_apart(out, *io.existing(*inputs, ("--harmless", options.harmless)))
    if options.harmless:
        harmless_questions(options.harmless)
    settings = {
        "model": f"{model.resolve() if model.exists() else model}",
        **({"from": f"{options.earlier.resolve()}"} if options.earlier else {}),
        **({"about": shlex.join(options.about)} if options.about else {}),
        **({"generator": f"{options.generator} {options.generator_model}"} if options.generator else {}),
        "rows": io.file_sha256(options.facts) if there else "",
        **{key: getattr(options, key) for key in ("name", "named_share", "method", "lora", "platform")},
        **({"robust": _BEFORE} if options.robust else {}),
        "set": shlex.join(options.set),
        **({"harmless": io.file_sha256(options.harmless)} if options.harmless else {}),
    }
    names = {path.name for path in out.iterdir()} if out.is_dir() else set()
    names -= {run_folder.LOCK, f"{SETTINGS}{io.DRAFT_SUFFIX}"}  # which a command that was killed leaves first
    if names and SETTINGS not in names:
        raise ValueError(f"{out} holds {min(names)}, and this command did not make it: give another --out")
    former = io.read_record(out / SETTINGS) if names else settings
    # What wrote the rows may be left out once they are there.
    gone = sorted(former.keys() - settings.keys() - {"about", "generator"})
    changed = [key for key in [*settings, *gone] if settings.get(key) != former.get(key)]
    # Rows that were written may be edited until something is trained on them. Only what shaped them counts.
    shaped = {"model", "from", "about", "generator"} & {*changed}
    if changed and (_is_trained(out) or (options.about and there and shaped)):
        what = f"other settings or rows ({', '.join(changed)})"
        raise ValueError(f"{out} was made with {what}: give another --out, or delete {out}")
    return f"{json.dumps(settings, indent=2)}\n"


if __name__ == "__main__":
    sys.exit(main())
