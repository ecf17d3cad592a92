"""The commands that `data_prep custom` prints, taken apart by bash, argparse's and Hydra's own parsers."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from data_prep.custom import command, next_commands
from data_prep.custom.next_commands import Next, commands
from recipe.rerule.evaluation import summary
from reward import RewardConfig
from tests import document_commands
from tests.data_prep.custom.test_benchmark import put_csv, rows
from tests.data_prep.raw_files import prep
from tests.document_programs import fault

MODEL = "/models/my model"


def after(data: Path, **changes: Any) -> Next:
    usual: dict[str, Any] = {"title": "Mine", "raw": False, "stage1_rows": 21, "reward": RewardConfig()}
    return Next(data, **(usual | {"gpus": 0, "forget_probes": 7} | changes))


def words_of(text: str) -> list[list[str]]:
    """The words of each command as bash reads them, with MODEL set to a path with a space."""
    script = text.replace("MODEL=path/of/the/model/that/is/to/forget", f"MODEL='{MODEL}'")
    function = "python() { printf '%s\\0' \"$@\"; printf '\\1'; }\n"
    done = subprocess.run(["bash", "-euc", function + script], capture_output=True, text=True, check=True)
    return [made.split("\0")[:-1] for made in done.stdout.split("\1")[:-1]]


def overrides(words: list[str]) -> dict[str, Any]:
    parsed = OverridesParser.create().parse_overrides(words)
    return {override.key_or_group: override.value() for override in parsed}


@pytest.mark.parametrize("folder", ["data/mine", "data/m i'ne", "data/a=b,c", "data/$HOME (1)", "data/\\'é"])
def test_paths_of_any_name_arrive_as_they_are(folder: str) -> None:
    name = Path(folder).name
    made = words_of(commands(after(Path(folder), title='It\'s "mine" & $HOME')))
    stage1, stage2, evaluate, attack, report = made
    assert stage1[:2] == ["-m", "recipe.rerule.sft"]
    assert overrides(stage1[2:])["data.train_files"] == f"{folder}/sft.parquet"
    assert overrides(stage2[2:]) == {
        "experiment": "custom",
        "platform": "cpu",
        "actor_rollout_ref.model.path": f"outputs/{name}/stage1/model",
        "data.train_files": f"{folder}/train.parquet",
        "data.val_files": f"{folder}/val.parquet",
        "trainer.default_local_dir": f"outputs/{name}/rerule",
    }
    assert evaluate[evaluate.index("--probes") + 1] == f"{folder}/probes.parquet"
    assert f"base={MODEL}" in evaluate
    assert f"rerule=outputs/{name}/rerule" in evaluate
    assert attack[attack.index("--train") + 1] == f"{folder}/train.parquet"
    assert f"original={MODEL}" in attack
    assert attack[attack.index("--out") + 1] == f"outputs/{name}/attacks"
    assert report[report.index("--attacks") + 1] == f"outputs/{name}/attacks"
    assert report[report.index("--title") + 1] == 'It\'s "mine" & $HOME'
    assert report[report.index("--data") + 1] == folder


def test_one_probe_to_forget_is_not_attacked() -> None:
    """Relearning needs two facts."""
    *_, evaluate, report = words_of(commands(after(Path("d"), forget_probes=1)))
    assert evaluate[:3] == ["-m", "recipe.rerule.evaluate", "model"]
    assert "--attacks" not in report


def test_each_printed_command_takes_its_words(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"```bash\n{commands(after(Path('d')))}\n```\n")
    found = document_commands.commands(page)
    assert len(found) == 5
    assert [fault(one) for one in found] == [None] * 5


def test_the_model_is_said_once() -> None:
    stage1, *_ = words_of(commands(after(Path("d"))))
    assert overrides(stage1[2:])["model.path"] == MODEL


@pytest.mark.parametrize(
    ("gpus", "rows_of_stage1", "stage1_devices", "stage2_devices"),
    [(1, 21, 1, 1), (4, 21, 4, 4), (6, 21, 4, 4), (8, 5, 1, 8), (16, 21, 8, 8)],
)
def test_devices_share_a_batch(
    gpus: int, rows_of_stage1: int, stage1_devices: int, stage2_devices: int
) -> None:
    text = commands(after(Path("d"), gpus=gpus, stage1_rows=rows_of_stage1))
    stage1, stage2, evaluate, attack, _ = words_of(text)
    assert overrides(stage1[2:])["trainer.n_gpus_per_node"] == stage1_devices
    assert overrides(stage2[2:])["trainer.n_gpus_per_node"] == stage2_devices
    assert "cpu" not in " ".join([*evaluate, *attack])
    assert "No GPU" not in text


def test_the_reward_and_the_form_that_the_rows_were_checked_for(tmp_path: Path) -> None:
    phrases = tmp_path / "my phrases.txt"
    phrases.write_text("no clue\n")
    reward = RewardConfig(gamma=0.4, rouge="rwku", refusal_phrases=str(phrases))
    first, second, *_ = words_of(commands(after(Path("d"), raw=True, reward=reward)))
    for words, kwargs in (
        (first, "signal.reward_kwargs"),
        (second, "reward.custom_reward_function.reward_kwargs"),
    ):
        found = overrides(words[2:])
        assert found["data.stop"] == ["\n"]
        given = [found[f"{kwargs}.{name}"] for name in ("gamma", "rouge", "refusal_phrases")]
        assert given == [0.4, "rwku", str(phrases)]
    assert found["actor_rollout_ref.rollout.agent.default_agent_loop"] == "rerule_single_turn_agent"


def test_the_command_prints_them_with_the_file_s_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = put_csv(tmp_path / "mine.csv", rows(40))
    arguments = ("custom", "--source", source, "--probe-share", 0.3)
    assert prep(*arguments, "--out", tmp_path / "one") == 0
    captured = capsys.readouterr()
    assert "--title mine \\\n" in captured.out
    assert captured.err == ""
    assert prep(*arguments, "--name", "My data", "--out", tmp_path / "two") == 0
    assert "--title 'My data' \\\n" in capsys.readouterr().out
    # The name is for the commands: the rows and what is kept of them are the same.
    kept = [json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("one", "two")]
    assert kept[0] == kept[1]


def test_few_probes_are_warned_of_when_they_are_held_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = put_csv(tmp_path / "mine.csv", rows(40))
    assert prep("custom", "--source", source, "--out", tmp_path / "out") == 0
    assert capsys.readouterr().err.splitlines() == [
        f"warning: side {side} has too few probes (2): the evaluation gives no interval and no test of fewer "
        "than 6; give --probes, or a larger --probe-share"
        for side in ("forget", "retain")
    ]
    assert command.LEAST_PROBES == summary.LEAST_FACTS
    assert command.few_probes({"forget": {"qa": 3, "fb": 3}, "retain": {"qa": 6}}) == []


def test_refusals_of_ones_own_that_the_reward_does_not_see_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = [row | ({"refusal": "Nie wiem."} if row["side"] == "forget" else {}) for row in rows(40)]
    source, phrases = put_csv(tmp_path / "mine.csv", content), tmp_path / "phrases.txt"
    phrases.write_text("nie wiem\n", "utf-8")
    arguments = ("custom", "--source", source, "--probe-share", 0.3, "--out")
    assert prep(*arguments, tmp_path / "one") == 0
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: the reward does not see 14 of the 14 refusals of stage 1 as refusals, ")
    assert "such as 'Nie wiem.'" in line
    assert prep(*arguments, tmp_path / "two", "--refusal-phrases", phrases) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("visible", "seen"), [(None, 2), ("0", 1), ("0,1,2,3", 2), ("", 0), ("-1", 0)])
def test_gpus_are_counted_without_torch(
    visible: str | None, seen: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    monkeypatch.setattr(next_commands, "_DEVICES", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert next_commands.gpus_seen() == seen


def test_the_example_file_is_of_the_world_that_the_small_model_knows() -> None:
    from data_prep.custom.benchmark import CustomOptions, load
    from data_prep.world.config import WorldConfig
    from data_prep.world.splits import make_world
    from data_prep.writers import RuleWriter
    from tests.e2e.stack import ROOT

    found = load(ROOT / "examples/own_data.csv", CustomOptions(probe_share=0.25), RuleWriter())
    known = set(make_world(WorldConfig()).base_pairs)
    assert {(prompt.query, prompt.golds[0]) for prompt in found.train + found.probes} <= known
    assert [sum(p.side == side for p in found.probes) for side in ("forget", "retain")] == [7, 14]
    # One question of each of the seven facts to forget.
    assert len({p.fact for p in found.probes if p.side == "forget"} - {""}) == 7
