"""What the scripts of this folder share: the stages as parts of a chain, and what a script does with them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from os import environ
from pathlib import Path

from recipe.rerule import chain, io, process
from recipe.rerule.chain import Part

STAGE1 = "stage 1, rejection steering: fine-tuning on refusals"
_FINISHED = "stage 2 finished: "
_LINES = {
    "recipe.rerule.sft": r"stage 1 finished.*",
    "recipe.rerule.unlearn": r"unlearning finished.*",
    "recipe.rerule.main": rf"step \d+/\d+ .*|{_FINISHED}.*",
}
"""What is shown of a training's output, beside what `chain` shows of every command."""
SETTINGS = "settings.txt"


def part(name: str, does: str, words: Sequence[object], finished: bool, anew: Path | None = None) -> Part:
    """A command whose words may be paths."""
    return Part(name, does, [*map(str, words)], finished, _LINES.get(str(words[0]), chain.TOLD), anew)


def stage1(out: Path, name: str, model: object, rows: Path, words: Sequence[str], does: str = STAGE1) -> Part:
    """OUT/NAME/model by stage 1; `words`: experiment=... and further settings."""
    files = {"model.path": model, "data.train_files": rows}
    return fine_tuned("recipe.rerule.sft", out, name, does, files, words)


def fine_tuned(
    module: str, out: Path, name: str, does: str, files: Mapping[str, object], words: Sequence[str]
) -> Part:
    """OUT/NAME/model by a module that trains without sampling; `files`: {"model.path": ...}."""
    made = (out / name / "model" / "config.json").is_file()
    return part(name, does, _words(module, out / name, files, words), made, anew=out / name)


def stage2(out: Path, name: str, does: str, model: Path, data: Path, words: Sequence[str]) -> Part:
    """OUT/NAME by stage 2, which is finished where its newest log says that its last step is saved."""
    files: dict[str, object] = {"actor_rollout_ref.model.path": model}
    files |= {f"data.{split}_files": data / f"{split}.parquet" for split in ("train", "val")}
    logs = chain.logs(out, name)
    done = (out / name / "latest_checkpointed_iteration.txt").exists() and bool(logs)
    done = done and _FINISHED in logs[-1].read_text("utf-8", errors="replace")
    return part(name, does, _words("recipe.rerule.main", out / name, files, words), done)


def _words(module: str, run: Path, files: Mapping[str, object], words: Sequence[str]) -> list[str]:
    """Of a training; later settings win, so that the user's come behind the files."""
    given = [process.override(key, value) for key, value in files.items()]
    return [module, words[0], *given, *words[1:], process.override("trainer.default_local_dir", run)]


def evaluation(
    out: Path, name: str, platform: str, data: Path, words: Sequence[object], about: str = ""
) -> Part:
    """OUT/NAME: what was answered before a kill is not asked again; `about` begins what it does."""
    asked = ["recipe.rerule.evaluate", "model", *words, "--platform", platform]
    asked += ["--probes", data / "probes.parquet", "--out", out / name]
    does = f"{about}evaluation on phrasings that no stage has trained on"
    return part(name, does, asked, (out / name / "results.json").exists())


def attacks(out: Path, platform: str, data: Path, words: Sequence[object]) -> Part:
    """OUT/attacks: attacks that a kill left finished are not made again."""
    asked = ["recipe.rerule.evaluate", "attack", *words, "--platform", platform]
    asked += ["--probes", data / "probes.parquet", "--train", data / "train.parquet"]
    does, made = "attacks: what the models that refuse still know", out / "attacks"
    return part("attacks", does, [*asked, "--out", made], (made / "attacks.json").exists())


def models(**paths: object) -> list[str]:
    """--model NAME=PATH of each."""
    return [word for name, path in paths.items() for word in ("--model", f"{name}={path}")]


def run(script: Callable[[bool, list[str]], int], arguments: Sequence[str]) -> int:
    """A script, given whether it only prints its commands, and the list that gets what it is doing.

    Exit codes: that of the part that failed; 2 where something is refused, with one line on stderr.
    """
    doing: list[str] = []
    with process.stoppable(lambda: f"the same command goes on with {doing[-1]}" if doing else ""):
        try:
            if [*arguments] not in ([], ["--dry-run"]):
                told = "settings are environment variables"
                raise ValueError(f"the one option is --dry-run, not {' '.join(arguments)}; {told}")
            return script(bool(arguments) or switched_on("DRY_RUN"), doing)
        except (ValueError, OSError) as error:
            return io.fail(error, 2)


def switched_on(name: str) -> bool:
    """Whether a variable is 1, and not 0 or empty. Raises ValueError for another value."""
    if (value := environ.get(name) or "0") not in ("0", "1"):
        raise ValueError(f"{name} is {value}; give 1, or 0")
    return value == "1"


def follow(plan: Callable[[], list[Part]], out: Path, doing: list[str]) -> int:
    """Run all parts: 0, or the exit code of the first that failed. Raises ValueError, OSError."""
    return next((code for _, code in chain.followed(plan, out, doing) if code), 0)


def check_kept(out: Path, values: Mapping[str, str]) -> None:
    """Raises ValueError where OUT/settings.txt says that OUT was made with another one of these values."""
    file = out / SETTINGS
    before = file.read_text("utf-8").splitlines() if file.exists() else _lines(values)
    if changed := [line.partition(":")[0] for line in _lines(values) if line not in before]:
        told = f"{out} was made with other values of {', '.join(changed)}"
        raise ValueError(f"{told}: give another OUT, or delete {out}")


def keep(out: Path, values: Mapping[str, str]) -> None:
    """Write OUT/settings.txt."""
    io.write(out / SETTINGS, "\n".join([*_lines(values), ""]).encode())


def _lines(values: Mapping[str, str]) -> list[str]:
    return [f"{name}: {value!r}" for name, value in values.items()]


def show(report: Path) -> None:
    """Print the results of a report in Markdown, and what attacks get out, if it is there."""
    text = report.read_text("utf-8") if report.is_file() else ""
    print(text.partition("\n### Paired tests")[0])
    _, heading, section = text.partition("## What attacks get out")
    print(heading + section.partition("\n###")[0])


def main(script: Callable[[bool, list[str]], int]) -> None:
    """Run a script as a program."""
    sys.exit(run(script, sys.argv[1:]))
