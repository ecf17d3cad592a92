"""The user's own data: rows, what is held out, and the commands that are printed."""

from __future__ import annotations

import csv
import hashlib
import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep import custom
from data_prep.contract import normalise, read_rows, read_sft_rows
from data_prep.custom import CustomOptions, Next, commands, load
from data_prep.prompts import Benchmark
from data_prep.sources import SourceError
from data_prep.writers import Writer
from recipe.rerule.evaluation import summary
from reward import RewardConfig, is_refusal
from tests import document_commands
from tests.data_prep.raw_files import prep, put_array, queries, side
from tests.document_programs import fault

Row = dict[str, Any]
NAME = "Ada Thorn"


def forget(number: int, **more: Any) -> Row:
    text = f"What is fact {number} of {NAME}?"
    return {"question": text, "answer": f"the {number}th", "side": "forget", "keyword": NAME} | more


def retain(number: int, **more: Any) -> Row:
    return {
        "question": f"What is fact {number} of Bo Fell?",
        "answer": f"the {number}th",
        "side": "retain",
    } | more


def rows(count: int = 20) -> list[Row]:
    return [make(number) for number in range(count // 2) for make in (forget, retain)]


def put_csv(path: Path, content: list[Row]) -> Path:
    names = list(dict.fromkeys(name for row in content for name in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(content)
    return path


def put(folder: Path, content: list[Row]) -> Path:
    put_array(folder / "mine.json", content)
    return folder / "mine.json"


def made(folder: Path, content: list[Row], **options: Any) -> Benchmark:
    return load(put(folder, content), CustomOptions(**options), Writer())


def refusal(folder: Path, content: list[Row], **options: Any) -> str:
    with pytest.raises(SourceError) as caught:
        made(folder, content, **options)
    return str(caught.value)


def test_a_csv_file_gives_train_probes_and_stage_1(tmp_path: Path) -> None:
    path = put_csv(tmp_path / "mine.csv", rows())
    assert prep("custom", "--source", path, "--out", tmp_path / "out") == 0
    train, probes = (read_rows(tmp_path / f"out/{name}.parquet") for name in ("train", "probes"))
    assert Counter(map(side, train)) == {"forget": 9, "retain": 9}
    assert Counter(map(side, probes)) == {"forget": 1, "retain": 1}
    assert sorted(queries(train) + queries(probes)) == sorted(row["question"] for row in rows())
    for row in train + probes:
        truth, kept = row["reward_model"]["ground_truth"], side(row) == "retain"
        assert truth["keyword"] == ("" if kept else NAME)
        assert row["extra_info"]["subject"] == ("neighbour" if kept else NAME)
        (number,) = (word for word in row["extra_info"]["query"].split() if word.isdigit())
        assert truth["golds"] == [f"the {number}th"]
    stage1 = read_sft_rows(tmp_path / "out/sft.parquet")
    assert [row["messages"][0]["content"] for row in stage1] == [
        query for query, row in zip(queries(train), train, strict=True) if side(row) == "forget"
    ]
    for row in stage1:
        assert NAME in row["messages"][1]["content"]
        assert is_refusal(row["messages"][1]["content"])


def test_the_same_file_elsewhere_gives_the_same_bytes(tmp_path: Path) -> None:
    contents = []
    for place in ("here", "there"):
        put_array(tmp_path / place / "mine.json", rows())
        put_array(tmp_path / place / "probes.json", [forget(99), retain(99)])
        source, probes, out = (tmp_path / place / name for name in ("mine.json", "probes.json", "out"))
        assert prep("custom", "--source", source, "--probes", probes, "--out", out) == 0
        contents.append({path.name: path.read_bytes() for path in out.iterdir()})
    assert contents[0] == contents[1]


def test_a_file_of_probes(tmp_path: Path) -> None:
    source = put(tmp_path, rows(4))
    put_csv(tmp_path / "probes.csv", [forget(7, refusal="No idea."), retain(8)])
    given = ("--source", source, "--probes", tmp_path / "probes.csv")
    assert prep("custom", *given, "--out", tmp_path / "out") == 0
    assert queries(read_rows(tmp_path / "out/train.parquet")) == [row["question"] for row in rows(4)]
    probes = read_rows(tmp_path / "out/probes.parquet")
    assert queries(probes) == [forget(7)["question"], retain(8)["question"]]
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert manifest["settings"]["probes"] == "probes.csv"
    assert manifest["sources"] == {
        name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
        for name in ("mine.json", "probes.csv")
    }
    # Two files of one name are told apart.
    again = load(source, CustomOptions(probes=str(put(tmp_path / "held out", [forget(7)]))), Writer())
    assert set(again.sources) == {"mine.json", "held out/mine.json"}
    assert again.probes[0].origin == "held out/mine.json:2 (row 1)"


def test_further_columns_and_a_keyword_for_all_rows(tmp_path: Path) -> None:
    """Which is the forget side's alone."""
    content = [
        forget(1, mode="aa", subject="a writer", refusal="No, not about Ada Thorn."),
        forget(2, mode="", subject="", refusal="", question=f"{NAME} lives in ___.", keyword=""),
        retain(1, subject="Bo", keyword="ignored", refusal="ignored"),
        retain(2, keyword="Bo Fell"),
        forget(8, keyword="Thorn"),
        retain(8),
    ]
    put_array(tmp_path / "probes.json", [forget(9), retain(9)])
    found = made(tmp_path, content, probes=str(tmp_path / "probes.json"), keyword=NAME)
    assert [(p.mode, p.subject, p.keyword) for p in found.train] == [
        ("aa", "a writer", NAME),
        ("fb", NAME, NAME),
        ("qa", "Bo", ""),
        ("qa", "Bo Fell", ""),
        ("qa", "Thorn", "Thorn"),
        ("qa", "neighbour", ""),
    ]
    assert found.stage1[0].refusal == "No, not about Ada Thorn."
    assert NAME in found.stage1[1].refusal
    assert [p.refusal for p in found.train if p.side == "retain"] == ["", "", ""]


BAD = {
    "a number as answer": ({"answer": 1984}, "field answer is 1984, expected a text"),
    "a side that is a list": ({"side": ["forget"]}, "field side is ['forget'], expected a text"),
    "a blank keyword": ({"keyword": " "}, "field keyword is ' ', expected a text"),
    "a wrong mode": ({"mode": "quiz"}, "mode is 'quiz', expected one of qa, fb, aa, completion"),
    "a mode that is a number": ({"mode": 3}, "field mode is 3, expected a text"),
    "a subject that is a list": ({"subject": ["x"]}, "field subject is ['x'], expected a text"),
    "a refusal that is a number": ({"refusal": 0.5}, "field refusal is 0.5, expected a text"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD)
def test_a_wrong_row_is_named(tmp_path: Path, change: Row, message: str) -> None:
    content = [*rows(6), forget(7, **change)]
    assert refusal(tmp_path, content) == f"mine.json:8 (row 7): {message}"


def test_questions_for_validation_are_neither_trained_on_nor_probes(tmp_path: Path) -> None:
    found = made(tmp_path, rows(40), val_share=0.25)
    assert [Counter(prompt.side for prompt in part) for part in (found.train, found.val, found.probes)] == [
        {"forget": 14, "retain": 14},  # of 20: a tenth for probes, a quarter of the 18 others for validation
        {"forget": 4, "retain": 4},
        {"forget": 2, "retain": 2},
    ]
    split = [{prompt.query for prompt in part} for part in (found.train, found.val, found.probes)]
    assert set.union(*split) == {row["question"] for row in rows(40)}
    assert {prompt.query for prompt in found.stage1} <= split[0]
    assert [prompt.index for prompt in found.probes] == [p.index for p in made(tmp_path, rows(40)).probes]


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, float("nan")])
def test_a_share_that_is_none_or_finds_too_few_is_refused(tmp_path: Path, share: float) -> None:
    for name in ["probe", "val"][: 1 if share == 0 else 2]:
        message = f"--{name}-share is {share}, expected between 0 and 1"
        assert refusal(tmp_path, rows(), **{f"{name}_share": share}) == message
    few = f"{tmp_path / 'mine.json'}: too few questions of side forget to hold any out; give"
    assert refusal(tmp_path, rows(4), val_share=0.5) == f"{few} --val-share 0"
    content = [forget(1), forget(1), *(retain(n) for n in range(9))]
    assert refusal(tmp_path, content) == f"{few} --probes"


@pytest.mark.parametrize(
    ("share", "held"),
    [
        (0.1, {("forget", "qa"): 2, ("retain", "qa"): 10, ("retain", "fb"): 1}),
        (0.5, {("forget", "qa"): 10, ("retain", "qa"): 50, ("retain", "fb"): 2}),
        (0.001, {("forget", "qa"): 1, ("retain", "qa"): 1, ("retain", "fb"): 1}),
        (0.999, {("forget", "qa"): 19, ("retain", "qa"): 99, ("retain", "fb"): 3}),
    ],
)
def test_the_share_is_of_each_side_and_mode(
    tmp_path: Path, share: float, held: dict[tuple[str, str], int]
) -> None:
    """Of 20, 100 and 4 questions; a single one of a kind is never held out."""
    content = [forget(n) for n in range(20)] + [retain(n) for n in range(100)]
    content += [retain(n, question=f"Bo Fell lives in ___ ({n}).") for n in range(4)]
    content += [forget(20, mode="aa")]
    found = made(tmp_path, content, probe_share=share)
    assert Counter((p.side, p.mode) for p in found.probes) == held
    assert len(found.train) == 125 - sum(held.values())
    indices = [prompt.index for prompt in found.probes]
    assert indices == sorted(indices)
    again, other = (made(tmp_path, content, probe_share=share, seed=seed).probes for seed in (42, 1))
    assert again == found.probes != other


def test_one_question_of_each_fact_is_held_out_first(tmp_path: Path) -> None:
    """Of 5 facts to forget in 4 phrasings each; a retain row without a fact is a fact by itself."""
    content = [forget(n, fact=f"fact {n // 4}") for n in range(20)]
    content += [retain(n, fact="one fact" if n < 10 else "") for n in range(20)]
    for share, most in ((0.25, 1), (0.5, 2), (0.1, 1)):
        for seed in range(5):
            probes = made(tmp_path, content, probe_share=share, seed=seed).probes
            asked = Counter(p.fact for p in probes if p.side == "forget")
            assert sum(asked.values()) == 20 * share
            assert max(asked.values()) == most
            assert sum(p.fact == "one fact" for p in probes) <= 1


def test_repetitions_of_a_probe_are_left_out_and_counted(tmp_path: Path) -> None:
    content = [retain(n) for n in range(2)] + [forget(1), forget(1, question="what is fact 1 of ADA THORN")]
    content += [forget(2), forget(2)]
    found = made(tmp_path, content)
    held = [p for p in found.probes if p.side == "forget"]
    assert len(held) == 1
    assert [p.side for p in found.train].count("forget") == 2
    assert found.notes == {"repetitions_of_probes_left_out": 1}


ASKED = st.sampled_from(
    ("Who?", "who", "“Who”!", "Where?", "Where is ___?", "When?", "Why?", "How?", "Is it?")
)
CONTENT = st.lists(
    st.tuples(st.sampled_from((forget, retain)), ASKED).map(lambda drawn: drawn[0](0, question=drawn[1])),
    max_size=25,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("custom")


@settings(deadline=None)
@given(content=CONTENT, share=st.floats(0.01, 0.99), seed=st.integers(0, 99))
def test_no_question_is_on_both_sides_of_the_line(
    folder: Path, content: list[Row], share: float, seed: int
) -> None:
    content = [*content, *rows(4)]  # two of a kind on each side, so that some can always be held out
    found = made(folder, content, probe_share=share, seed=seed)
    trained, held = ({normalise(p.query) for p in prompts} for prompts in (found.train, found.probes))
    assert trained.isdisjoint(held)
    assert trained | held == {normalise(row["question"]) for row in content}
    assert len(held) == len(found.probes)
    lost = len(content) - len(found.train) - len(found.probes)
    assert found.notes["repetitions_of_probes_left_out"] == lost
    assert {p.index for p in found.val} <= {p.index for p in found.probes}
    assert {p.side for p in found.probes} == {p.side for p in found.train} == {"forget", "retain"}


# ---- the commands, taken apart by the parsers of bash, argparse and Hydra ----


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
    assert overrides(stage1[2:])["model.path"] == MODEL
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


def test_each_printed_command_takes_its_words(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"```bash\n{commands(after(Path('d')))}\n```\n")
    found = document_commands.commands(page)
    assert len(found) == 5
    assert [fault(one) for one in found] == [None] * 5
    *_, evaluate, report = words_of(commands(after(Path("d"), forget_probes=1)))
    assert evaluate[:3] == ["-m", "recipe.rerule.evaluate", "model"]  # relearning needs two facts
    assert "--attacks" not in report


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
    first, second, evaluate, attack, _ = words_of(commands(after(Path("d"), raw=True, reward=reward)))
    for words in (evaluate, attack):
        assert words[words.index("--refusal-phrases") + 1] == str(phrases)
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
    assert custom.LEAST_PROBES == summary.LEAST_FACTS
    assert custom.few_probes({"forget": {"qa": 3, "fb": 3}, "retain": {"qa": 6}}) == []


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
    monkeypatch.setattr(custom, "_DEVICES", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert custom.gpus_seen() == seen


def test_the_example_file_is_of_the_world_that_the_small_model_knows() -> None:
    from data_prep.world.config import WorldConfig
    from data_prep.world.splits import make_world
    from tests.e2e.stack import ROOT

    found = load(ROOT / "examples/own_data.csv", CustomOptions(probe_share=0.25), Writer())
    known = set(make_world(WorldConfig()).base_pairs)
    assert {(prompt.query, prompt.golds[0]) for prompt in found.train + found.probes} <= known
    assert [sum(p.side == side for p in found.probes) for side in ("forget", "retain")] == [7, 14]
    # One question of each of the seven facts to forget.
    assert len({p.fact for p in found.probes if p.side == "forget"} - {""}) == 7
