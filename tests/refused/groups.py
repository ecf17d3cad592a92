"""How the input of each group of `cases.txt` is tried: a function for each, which says what came of it."""

import gzip
import json
import math
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import peft
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch
from omegaconf import OmegaConf

from data_prep.__main__ import main as data_prep
from data_prep.world import stage1 as world_stage1
from examples import benchmark, quickstart, stages
from recipe.rerule import about, evaluate, io, minimal, task_vector
from recipe.rerule.evaluation.engine.models import Model, check_models, resolve_models, with_prefixes
from recipe.rerule.evaluation.probes import read_probes, read_training_rows
from recipe.rerule.preflight import checks
from recipe.rerule.preflight import models as preflight_models
from recipe.rerule.preflight import settings as preflight_settings
from recipe.rerule.replay import Replay, ReplayConfig, load
from recipe.rerule.replay import save as save_replay
from recipe.rerule.runs import checkpoints, run_folder
from recipe.rerule.schema import SettingsError, shown
from recipe.rerule.training import learning
from tests import made_models, made_runs, made_tokenizers
from tests.data_prep.generate import server
from tests.data_prep.raw_files import author_rows, put_array, put_custom, put_rwku
from tests.document_programs import composed
from tests.evaluation.attacks.conftest import put_probes
from tests.evaluation.attacks.conftest import words as attack_words
from tests.evaluation.conftest import write_probes
from tests.golden import commands
from tests.golden.evaluation_inputs import tofu_log
from tests.golden.golden import ROOT
from tests.golden.inputs import put_attacked, put_json
from tests.made_worlds import SMALL
from tests.refused import configurations, endpoints, models, playground, rows
from tests.refused.rows import rl, stored
from tests.refused.table import Case, told
from tests.replay.groups import PAPER_RULES, make_group
from tests.report import made_attacks

NAMES = {
    **vars(made_models),
    **vars(made_tokenizers),
    **vars(server),
    **vars(models),
    **vars(rows),
    **vars(endpoints),
    **{"gzip": gzip, "math": math, "torch": torch, "Path": Path, "WEB_APP": playground.WEB_APP},
    "OURS": io.stamp(io.DATA, ["train.parquet"]),
    **{"dumps": json.dumps, "tofu_log": tofu_log, "attacks": made_attacks.files},
    "author_rows": author_rows,
    **{name: getattr(made_attacks, name) for name in ("usual", "with_numbers", "RELEARN")},
}
"""What an expression of the table may name."""


SCRIPTS = {
    "run_muse_books.sh": partial(benchmark.script, "muse_books"),
    "quickstart.sh": quickstart.script,
}
"""Scripts of examples/ that are one program, by name."""


@dataclass
class Ended:
    """What came of an input: error lines, warning lines, and what else was printed or found.

    Where several commands were given the input, `errors` has the line of each of these `commands`.
    """

    errors: list[str]
    warnings: list[str] = field(default_factory=list)
    said: str = ""
    commands: int = 1


@dataclass
class Place:
    """Where an input is tried: `here` is an empty folder, `shared` gives folders that are made once."""

    here: Path
    shared: Callable[[Callable[[Path], Any]], Path]
    patch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def tried(
        self, call: Callable[[], object], *, watched: Path | None = None, strict: bool = False
    ) -> Ended:
        """What came of a call, which must write nothing where it is refused.

        watched: a folder in which nothing may change then, besides `here`.
        strict: it is a command, which ends with code 2 or 0 and prints no other lines on stderr.
        """
        folders = [self.here, *([watched] if watched else [])]
        before, errors = listing(*folders), []
        try:
            code = call()
        except SystemExit as ended:
            code = ended.code or 0
        except ValueError as error:
            errors, code = [f"error: {error}"], None
        out, err = self.capsys.readouterr()
        lines = told(err)
        errors += [line for line in lines if line.startswith("error: ")]
        warnings = [line for line in lines if line.startswith("warning: ")]
        if strict:
            others = [line for line in lines if not line.startswith(("error: ", "warning: "))]
            assert (code, others) == (2 if errors else 0, [])
        if errors:
            assert listing(*folders) == before
        return Ended(errors, warnings, out)


def listing(*folders: Path) -> dict[Path, tuple[int, ...]]:
    """Size, time of change and inode of each file and link, and the folders."""
    found = {}
    for path in (path for folder in folders for path in folder.rglob("*")):
        about = path.lstat()
        folder = path.is_dir() and not path.is_symlink()
        found[path] = () if folder else (about.st_size, about.st_mtime_ns, about.st_ino)
    return found


def value(expression: str, **more: Any) -> Any:
    """What an expression of the table makes."""
    return eval(expression, NAMES | more)


# Settings.


def settings(case: Case, place: Place) -> Ended:
    """Settings of a run in which nothing else is wrong; of a key with several values each is tried."""
    folder = place.shared(configurations.build)
    place.patch.syspath_prepend(folder)
    before = listing(folder)
    # What is refused changes nothing, so one copy of the settings does for all values of a key.
    several = len(case.settings) > 1 and case.outcome == "refused" and "method" not in case.settings[0]
    config = configurations.composed(case.group, folder) if several else None
    found = [configurations.findings(case.group, folder, values, config) for values in case.settings]
    assert listing(folder) == before
    errors = [f"error: {line}" for lines, _ in found for line in lines]
    if "=" not in case.given.partition(": ")[0]:
        for line, values in zip(errors, case.settings, strict=True):
            ((key, one),) = values.items()
            assert f"{key} is {shown(one)}" in line
    return Ended(errors, [line for _, lines in found for line in lines], commands=len(found))


def override(case: Case, place: Place) -> Ended:
    """An override that Hydra does not compose."""
    with pytest.raises(SettingsError) as raised:
        composed("recipe.rerule.main", (case.given,))
    return Ended([f"error: {raised.value}"])


def command(case: Case, place: Place) -> Ended:
    """A command with the settings of a run in which nothing is wrong, and these words."""
    folder = place.shared(configurations.build)
    name, *words = case.given.split()
    stages = {"main": configurations.STAGE2, "sft": configurations.STAGE1}
    stages |= {"stage1": configurations.STAGE1, "stage2": configurations.STAGE2}
    of = stages.get(words[0] if name == "check" else name, configurations.UNLEARN)
    run = [*configurations.RUNS[of].split(), f"trainer.default_local_dir={folder}/run"]
    run = [] if "--list" in words else run
    before = listing(folder, place.here)
    first = [name, words.pop(0)] if name == "check" else [name]
    placed = [configurations.placed(folder, word) for word in [*run, *words]]
    ran = commands.run(shlex.join([*first, *placed]), place.here)
    assert (ran.code, ran.out, listing(folder, place.here)) == (2, "", before)
    return Ended([line for line in ran.said if line.startswith("error: ")])


# Rows.


def raw_file(case: Case, place: Place) -> Ended:
    """The name and the bytes of a file for `data_prep custom`; "none", "folder" and "pipe" are no files."""
    name, _, expression = case.given.partition("  ")
    path, out = place.here / name, place.here / "out"
    if path.stem == "folder":
        path.mkdir()
    elif path.stem == "pipe":
        os.mkfifo(path)
    elif path.stem != "none":
        path.write_bytes(value(expression))
    ended = place.tried(lambda: data_prep(["custom", "--source", str(path), "--out", str(out)]), strict=True)
    # Twelve rows leave a probe or two a side, which is said and no fault of the file.
    ended.warnings = [line for line in ended.warnings if "has probes of too few facts" not in line]
    if case.outcome == "valid":
        made = json.loads((out / "manifest.json").read_text())["rows"]
        for side in ("forget", "retain"):
            read = sum(sum(made[part].get(side, {}).values()) for part in ("train", "probes"))
            assert read >= len(rows.LINES) / 2
    return ended


def parquet_rows(case: Case, place: Place) -> Ended:
    """Files of training (or the probes), and of validation; a number is an earlier file, given again."""
    given, _, validation = case.given.partition("  ")
    train = _files(place.here, "train", value(given), [])
    if case.group == "probes of evaluate":
        return place.tried(lambda: read_probes(Path(train[0])))
    config = configurations.composed(case.group, place.shared(configurations.build))
    usual = [stored(rl("val", start=50))] if case.group == configurations.ROWS2 else []
    val = _files(place.here, "val", value(validation) if validation else usual, train)
    config.data.train_files, config.data.val_files = train, val or None
    config.trainer.default_local_dir = str(place.here / "run")
    check = configurations.CHECKS[case.group]
    return place.tried(lambda: checks.require(check, config))


def _files(folder: Path, name: str, contents: list[bytes | int], train: list[str]) -> list[str]:
    paths: list[str] = []
    for number, content in enumerate(contents):
        if isinstance(content, int):
            paths.append((train or paths)[content])
        else:
            paths.append(str(folder / f"{name}{number}.parquet"))
            Path(paths[-1]).write_bytes(content)
    return paths


# Models, run folders, checkpoints.


def model_folder(case: Case, place: Place) -> Ended:
    """A change of a whole model, which both stages and evaluate are given."""
    model = _changed_model(case, place)
    return _together(
        *_stages(place, model, place.here / "run"),
        place.tried(lambda: check_models(resolve_models([f"name={model}"]))),
    )


def tokenizer(case: Case, place: Place) -> Ended:
    """A change of a whole model, which both stages and `unlearn` are given."""
    place.patch.setattr("builtins.input", lambda *_: "y")  # nobody is asked whether to trust the code
    model = _changed_model(case, place)
    folder = place.shared(configurations.build)
    config = configurations.composed(configurations.UNLEARN, folder, "method=rejection_steering")
    config.data.alternate, config.model.path = f"{folder}/SFT", str(model)
    config.trainer.default_local_dir = str(place.here / "unlearned")
    unlearned = place.tried(lambda: checks.require(checks.unlearn, config))
    ended = _together(*_stages(place, model, place.here / "run"), unlearned)
    assert not (place.here / "model" / "executed").exists()
    return ended


def a_run_folder(case: Case, place: Place) -> Ended:
    """A run folder below one with a file, an empty folder and a link to nothing; and files in it."""
    (place.here / "file").touch()
    (place.here / "empty").mkdir()
    (place.here / "link").symlink_to(place.here / "nothing")
    name, _, names = case.given.partition("  ")
    given = value(name)
    playground.plant(place.here / given, dict.fromkeys(names.split(), "mine"))
    folder = str(place.here / given) if given.strip() else given
    return _together(*_stages(place, place.shared(configurations.put_model), folder))


def checkpoint(case: Case, place: Place) -> Ended:
    """A change of the checkpoint of a run, from which stage 2 goes on, and the mode.

    The model, `MODEL` in the change, is given by its relative path.
    """
    change, _, mode = case.given.partition("  ")
    run, model = place.here / "run", place.shared(configurations.put_model)
    folder = checkpoints.step_folder(run, 3)
    for name in ("data.pt", "config.json", "actor/optim_world_size_1_rank_0.pt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"content")
    checkpoints.finish(run, 3)
    try:
        value(change, MODEL=model)(folder)
    except PermissionError:
        pytest.skip("only root can give a file to another user")
    return _together(*_stages(place, Path(os.path.relpath(model)), run, mode or "auto"))


def _changed_model(case: Case, place: Place) -> Path:
    folder = shutil.copytree(place.shared(configurations.put_model), place.here / "model")
    found = value(f"({case.given})")(folder)
    return found if isinstance(found, Path) else folder


def _stages(place: Place, model: Path, folder: Path | str, mode: str = "disable") -> Iterator[Ended]:
    """The checks of both stages with this model and run folder; stage 1 does not go on."""
    for number, group in ((1, configurations.STAGE1), (2, configurations.STAGE2)):
        if number == 1 and mode != "disable":
            continue
        if mode != "disable":
            run_folder.begin(folder, number)  # type: ignore[arg-type]
        config = configurations.composed(group, place.shared(configurations.build))
        (config.model if number == 1 else config.actor_rollout_ref.model).path = str(model)
        config.trainer.default_local_dir, config.trainer.resume_mode = str(folder), mode
        config.trainer.resume_from_path = f"{folder}/global_step_3" if mode == "resume_path" else None
        check = configurations.CHECKS[group]
        yield place.tried(lambda: checks.require(check, config))  # noqa: B023


def _together(*ended: Ended) -> Ended:
    assert all(len(one.errors) <= 1 for one in ended)
    return Ended([line for one in ended for line in one.errors], commands=len(ended))


def adapter(case: Case, place: Place) -> Ended:
    """What differs from a section of a model with an adapter; llama, gpt2 and peft make folders."""

    def folder(content: dict[str, Any]) -> str:
        (place.here / "config.json").write_text(json.dumps(content))
        return str(place.here)

    def llama(**more: Any) -> str:
        sizes = {"hidden_size": 16, "intermediate_size": 24, "vocab_size": 64, "num_attention_heads": 4}
        return folder(made_models.CONFIG | sizes | more)

    def gpt2() -> str:
        sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 32}
        return folder({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]} | sizes)

    def saved(weights: str = "adapter_model.safetensors", **more: Any) -> str:
        usual = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
        peft.LoraConfig(**usual | more).save_pretrained(str(place.here / "adapter"))
        safetensors.torch.save_file({"weight": torch.zeros(1)}, place.here / "adapter" / weights)
        return str(place.here / "adapter")

    changes = value(f"dict({case.given})", llama=llama, gpt2=gpt2, peft=saved)
    section = {"lora_rank": 4, "lora_alpha": 8, "target_modules": "all-linear"}
    section |= {"lora": {"rank": 0, "merge": False}}
    none = ("exclude_modules", "target_parameters", "lora_adapter_path")
    section |= {"trust_remote_code": False} | dict.fromkeys(none) | {"path": changes.get("path") or llama()}
    model = OmegaConf.create(section | changes)

    def check() -> None:
        preflight_settings.check_adapter(model, "key")
        preflight_models.check_adapter(model, "key")

    return place.tried(check)


# Commands in this process.


def outputs(case: Case, place: Place) -> Ended:
    """A command in the folder of `playground.build`, and further files of the user's."""
    line, _, planted = case.given.partition("  ")
    playground.stub_slow_parts(place.patch)
    root = playground.copy(place.shared(playground.build), place.here / "root")
    files = value(planted or "{}")
    playground.plant(root, files)
    names = [*playground.OWN, "mine.csv", *files]
    mine = playground.snapshot(root, names)
    name, _, arguments = line.partition(" ")
    ended = place.tried(lambda: playground.call(name, root, arguments), strict=True)
    assert playground.snapshot(root, names) == mine
    if case.outcome == "valid":  # a few rows leave few probes, and one answer changes nothing: both are said
        ended.warnings = []
    return ended


def input_file(case: Case, place: Place) -> Ended:
    """A command line, and what its {file} holds: text, a JSON value, None for no file.

    {out} is where nothing is, and {buffer} a saved replay buffer.
    """
    line, _, expression = case.given.partition("  ")
    file, content = place.here / "input.json", value(expression)
    if content is not None:
        file.write_text(content if isinstance(content, str) else json.dumps(content))
    places = {"file": file, "out": place.here / "out", "buffer": ROOT / "tests/replay/fixtures/buffer"}
    name, *words = line.format(**places).split()
    return place.tried(lambda: playground.COMMANDS[name](words), strict=True)


def endpoint(case: Case, place: Place) -> Ended:
    """A server that answers every call so, and further options."""
    behaviour, _, more = case.given.partition("  ")
    with server.ChatServer(lambda number, call: value(behaviour)) as running:
        given = ["--base-url", running.url, "--model", server.MODEL, "--timeout", "20", *more.split()]
        ended = _written(place, *given)
        assert 1 <= len(running.calls) <= 50
    return ended


def endpoint_options(case: Case, place: Place) -> Ended:
    """Options of an endpoint; {url} is a good server's, and two variables hold what is no key."""
    place.patch.setenv("TWO_LINES", f"{server.KEY}\nkey")
    place.patch.setenv("UMLAUT", f"{server.KEY}schlüssel")
    with server.ChatServer() as running:
        tls = running.url.replace("http", "https")
        given = case.given.format(url=running.url, tls=tls, model=server.MODEL, key=server.KEY)
        ended = _written(place, *shlex.split(given))
        assert running.calls == []
    return ended


def _written(place: Place, *given: str) -> Ended:
    """`data_prep custom` whose refusals an endpoint writes; the key must not be shown."""
    place.patch.setenv("OPENAI_API_KEY", server.KEY)
    place.patch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    cache = place.shared(lambda folder: None)
    source, out = place.shared(put_custom) / "mine.json", place.here / "out"
    line = f"custom --source {source} --out {out} --cache {cache} --attempts 2"
    ended = place.tried(lambda: data_prep([*line.split(), *given]), strict=True)
    assert server.KEY[:12] not in "".join(ended.errors)
    assert "draft" not in "".join(ended.errors)
    return ended


def minimal_command(case: Case, place: Place) -> Ended:
    """Options of minimal.py; {root} has a small world with its model, and files that are wrong."""
    root = place.shared(_put_world)
    words = [word.format(root=root) for word in case.given.split()]
    few = [] if case.outcome == "refused" else ["--steps", "1", "--prompts", "2", "--rollouts", "2"]
    return place.tried(lambda: minimal.main([*words, *few]), watched=root)


def rows_of_a_model(case: Case, place: Place) -> Ended:
    """Words of `recipe.rerule.about`; {here} has a model, which is asked nothing, and earlier rows."""
    made_models.put_model(place.here / "model")
    (place.here / "earlier.csv").touch()
    usual = "--model {here}/model --about France --out {here}/rows.csv --platform cpu "
    words = shlex.split((usual + case.given).format(here=place.here))
    return place.tried(lambda: about.main(words), strict=True)


def attack(case: Case, place: Place) -> Ended:
    """Words of `evaluate attack` on made-up people; {wrong} has what the command cannot work with.

    Membership inference is asked of texts, as MUSE has them.
    """
    people = place.shared(put_attacked)
    wrong = place.shared(lambda folder: _put_wrong(folder, people))
    control = "--control" not in case.given and "reference" not in case.given
    words = attack_words(people, place.here / "out", control, muse="membership" in case.given)
    given = case.given.format(wrong=wrong).split()
    place.capsys.readouterr()  # of making the people
    return place.tried(lambda: evaluate.main([*words, *given]), watched=wrong, strict=True)


def _put_wrong(folder: Path, people: Path) -> None:
    """Models, rows and a folder of the user's."""
    for name in ("refusing", "control"):
        shutil.copytree(people / "models" / name, folder / name)
    template = folder / "control/chat_template.jinja"
    template.write_text(template.read_text().replace("<bos>", "<bos><bos>"))
    (folder / "refusing/chat_template.jinja").unlink()
    rows = [one for one in read_training_rows(people / "data/train.parquet") if one.section == "forget"]
    write_probes(folder / "forget.parquet", rows)
    put_probes(people, folder / "few.parquet", 1, 8)
    playground.plant(folder, {"mine/mine.txt": "mine"})
    for name, texts in {"one": ["Home of Ada"], "long": ["Ada", " is" * 600], "two": ["Ada", "Bo"]}.items():
        put_json(folder / name / "forget.json", texts)
        put_json(folder / name / "holdout.json", ["Cleo", "Dan"])


def _put_world(root: Path) -> None:
    world, model = world_stage1.prepare(root / "made", SMALL)
    for name in ("train", "probes", "sft"):
        shutil.copy(world / f"{name}.parquet", root / f"{name}.parquet")
    read = pq.read_table(root / "train.parquet")
    forget = [row["reward_model"]["ground_truth"]["type"] == "forget" for row in read.to_pylist()]
    pq.write_table(read.filter(forget), root / "forget.parquet")
    (root / "text.parquet").write_text("no parquet")
    (root / "empty").mkdir()
    (root / "own" / "world").mkdir(parents=True)
    (root / "own" / "world" / "mine.txt").write_text("mine")
    for name in ("model", "nan", "base"):
        shutil.copytree(model, root / name)
    (root / "base" / "chat_template.jinja").unlink()
    models.nan(models.NORM)(root / "nan")
    made_models.put_model(root / "bare")


def script(case: Case, place: Place) -> Ended:
    """Variables, and a script of examples/ with its words. OUT has the files named last."""
    given, _, names = case.given.partition("  ")
    playground.plant(place.here / "out", dict.fromkeys(names.split(), "mine"))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    words = [f"OUT={place.here}/out", "RAY_AUTH_MODE=token", f"PATH={path}", *shlex.split(given)]
    variables, (name, *arguments) = words[: words.index("bash")], words[words.index("bash") + 1 :]
    if name in SCRIPTS:  # the program that the script starts (tests/test_example_scripts.py)
        for variable in variables:
            place.patch.setenv(*variable.split("=", 1))
        ended = place.tried(lambda: stages.run(SCRIPTS[name], arguments), strict=True)
        assert ended.said == ""
        return ended
    before = listing(place.here)
    done = subprocess.run(["env", *words], cwd=ROOT / "examples", capture_output=True, text=True)
    assert (done.returncode, listing(place.here), done.stdout) == (2, before, "")
    return Ended(done.stderr.splitlines())


# Methods without a reward.


def gold(case: Case, place: Place) -> Ended:
    """Rows of a file for --gold, or None for no file; the manifest says what is left out."""
    given, out = value(case.given), place.here / "out"
    if given is not None:
        put_array(place.here / "gold.json", given)
    source, answers = put_rwku(place.here / "raw"), place.here / "gold.json"
    line = f"rwku --source {source} --out {out} --gold {answers} --target"
    ended = place.tried(lambda: data_prep([*line.split(), "Ada Thorn"]), strict=case.outcome == "refused")
    if not ended.errors:
        manifest = json.loads((out / "1_Ada_Thorn/manifest.json").read_text())
        ended = Ended([], [], " ".join(manifest["classical"]["left_out"]))
    return ended


def vector(case: Case, place: Place) -> Ended:
    """A change of the reinforced model, and further options."""
    change, _, more = case.given.partition("  ")
    base, bad, out = (place.here / name for name in ("base", "bad", "out"))
    made_models.put_model(base)
    value(change)(made_models.put_model(bad))
    line = f"--base {base} --reinforced {bad} --alpha 4 --out {out} {more}"
    ended = place.tried(lambda: task_vector.main(line.split()), strict=True)
    assert (case.outcome == "refused") != out.exists()
    return ended


def prefix(case: Case, place: Place) -> Ended:
    """Values of --prefix, for models base, icu and run@7; of a valid one, which models have it."""
    place.patch.chdir(place.here)
    (place.here / "blank").write_text(" \n")
    (place.here / "latin").write_bytes(b"Vergi\xdf es")
    three = [Model("base", Path("m")), Model("icu", Path("m")), Model("run@7", Path("r"), 7)]
    found: list[Model] = []
    ended = place.tried(lambda: found.extend(with_prefixes(three, case.given.split(), ["Ada"])))
    ended.said = str([bool(model.prefix) for model in found])
    return ended


# Replay rules, finished runs.


def _own(
    *methods: str, init: str = "def __init__(self, config, rng): self.config, self.rng = config, rng"
) -> str:
    """A module with the class Own."""
    return "\n".join(["class Own:", *(f"    {line}" for line in (init, *methods))]) + "\n"


_METHODS = {
    "ADMIT": "def admit(self, groups, threshold): return groups",
    "SAMPLE": "def sample(self, groups, k, step): return groups[:k]",
    "VICTIM": "def victim(self, groups): return 0",
    "UPDATE": "def update(self, groups): return 0.6",
    "STATE": "def state(self): return {'seen': 3}",
    "RESTORE": "def restore(self, state): self.seen = state['seen']",
}


def rule(case: Case, place: Place) -> Ended:
    """A setting, the source of the module my_rules with a rule of the user's own, and the rule's name.

    The line names the setting and the rule.
    """
    setting, expression, *path = case.given.split("  ")
    name = path[0] if path else "my_rules:Own"
    if source := value(expression, own=_own, **_METHODS):
        (place.here / "my_rules.py").write_text(source)
    place.patch.syspath_prepend(place.here)
    place.patch.setattr(sys, "dont_write_bytecode", True)
    state = place.shared(lambda folder: None) / f"{abs(hash(case))}"

    def attempt() -> None:
        small = {"capacity": 4, "groups_per_update": 2, "min_groups": 2, "warmup_steps": 1}
        config = ReplayConfig(**(PAPER_RULES | small | {setting: name}))
        replay = Replay(config)
        if case.group == "replay rules, made":
            return
        for step in range(1, 4):
            replay.offer([make_group(index, step, rewards=[0.0, 0.5]) for index in range(2)], step)
            replay.draw(step)
        save_replay(replay, state)
        if case.group == "replay rules, resumed":
            replay = Replay(config)
            load(replay, state)
            (found,) = replay._rules.values()
            assert found.rule.seen == 3

    ended = place.tried(attempt)
    sys.modules.pop("my_rules", None)
    assert all(f"replay.{setting}" in line and name in line for line in ended.errors)
    return ended


def finished_run(case: Case, place: Place) -> Ended:
    """Losses of a stage 1, or the mean rewards of a stage 2's forget side and what else differs."""
    given = value(f"dict({case.given})", RISING=(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8))
    if "losses" in given:
        return place.tried(
            lambda: learning.warn_after(made_runs.stage1_run(place.here, given["losses"]), stage=1)
        )
    return place.tried(lambda: learning.warn_after(made_runs.stage2_run(place.here, **given), stage=2))


GROUPS: dict[str, Callable[[Case, Place], Ended]] = {
    **dict.fromkeys(configurations.RUNS, settings),
    "overrides of stage 2": override,
    "commands": command,
    "raw files of data_prep": raw_file,
    **dict.fromkeys(("rows of stage 1", "rows of stage 2", "probes of evaluate"), parquet_rows),
    "model folders": model_folder,
    "tokenizers and code of stages 1 and 2": tokenizer,
    "run folders": a_run_folder,
    "checkpoints to resume from": checkpoint,
    "adapters": adapter,
    "output folders and inputs inside them": outputs,
    "endpoint of generated data": endpoint,
    "options of an endpoint": endpoint_options,
    **dict.fromkeys(("inputs of evaluate score", "inputs of the report and others"), input_file),
    **dict.fromkeys((f"replay rules, {when}" for when in ("made", "at a step", "resumed")), rule),
    "minimal.py": minimal_command,
    "rows that a model writes": rows_of_a_model,
    "evaluate attack": attack,
    "scripts of examples": script,
    "right answers (--gold)": gold,
    "task vectors": vector,
    "prefixes of models (--prefix)": prefix,
    **dict.fromkeys(("finished runs of stage 1", "finished runs of stage 2"), finished_run),
}
