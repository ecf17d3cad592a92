"""Looking inside a saved buffer, from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from recipe.rerule.replay import Replay, ReplayConfig, ReplayStateError, RolloutGroup, save
from recipe.rerule.replay.__main__ import main
from recipe.rerule.replay.inspection import find, group_lines, summary, summary_lines
from recipe.rerule.runs import checkpoints
from tests.replay.groups import PAPER_RULES
from tests.unread import nobody_reads

MakeGroup = Callable[..., RolloutGroup]


@pytest.fixture
def checkpoint(make_group: MakeGroup, tmp_path: Path) -> Path:
    """Steps 1 and 2, three prompts; prompt 5 twice; all drawn once at step 2; group 6 has no signal."""
    sizes = {"min_groups": 4, "warmup_steps": 1, "capacity": 8, "groups_per_update": 4}
    replay = Replay(ReplayConfig.from_dict({**PAPER_RULES, **sizes, "threshold": 1.0}))
    replay.offer([make_group(5, step=1, rewards=[0.0, 1.0], lengths=[2, 3])], step=1)
    second = [
        make_group(5, step=2, rewards=[0.5, 0.5], lengths=[1, 1], advantages=[1.0, -2.0]),
        make_group(6, step=2, rewards=[0.0, 0.0], lengths=[4, 4], side="retain", mode="fb"),
        make_group(7, step=2, rewards=[0.0, 0.5], lengths=[1, 2]),
    ]
    replay.offer(second, step=2)
    assert len(replay.draw(2)) == 4
    folder = tmp_path / "run" / "global_step_2"
    save(replay, folder / "replay", {"rollout.n": 2})
    return folder


def test_the_summary_counts_what_is_there(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(checkpoint), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["folder"] == str(checkpoint / "replay")
    assert found["run"] == {"rollout.n": 2}
    assert found["gate_open"] is True
    assert (found["groups"], found["rollouts"], found["response_tokens"]) == (4, 8, 5 + 2 + 8 + 3)
    # A token: 4 bytes of id, 1 of mask, 4 each of old, reference and advantage; a row: 4 + 4; 3 prompt ids.
    assert found["bytes"] == 18 * 17 + 8 * 8 + 4 * 3 * 4
    assert found["sides_and_modes"] == {"forget/qa": 3, "retain/fb": 1}
    assert found["without_signal"] == 1
    assert found["step"] == {"min": 1, "mean": 1.75, "max": 2}
    assert found["draws"] == {"min": 1, "mean": 1.0, "max": 1}
    assert found["mean_reward"] == {"min": 0.0, "mean": (0.5 + 0.5 + 0.0 + 0.25) / 4, "max": 0.5}
    assert found["signal"]["max"] == 1.5
    assert found["prompts"] == 3
    assert found["most_stored"][0] == [5, 2]


def test_it_ends_as_by_sigpipe_where_nobody_reads(checkpoint: Path) -> None:
    with nobody_reads(), pytest.raises(SystemExit) as ended:
        main(["inspect", str(checkpoint / "replay")])
    assert ended.value.code == 141


def test_a_person_gets_lines_and_may_ask_for_every_group(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(checkpoint / "replay")]) == 0
    short = capsys.readouterr().out.splitlines()
    assert main(["inspect", str(checkpoint), "--groups"]) == 0
    long = capsys.readouterr().out.splitlines()
    assert long[: len(short)] == short
    assert any("groups" in line and "4 with 8 rollouts, 18 response tokens" in line for line in short)
    assert [line.split()[:2] for line in long[-4:]] == [["5", "1"], ["5", "2"], ["6", "2"], ["7", "2"]]
    assert long[-3].split()[2:] == ["forget", "qa", "0.500", "1.500", "1"]


def test_an_empty_buffer_can_be_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(Replay(ReplayConfig()), tmp_path)
    assert main(["inspect", str(tmp_path)]) == 0
    assert "0 with 0 rollouts" in capsys.readouterr().out


def test_a_run_folder_is_refused_with_its_checkpoints(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(checkpoint.parent)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert str(checkpoint) in error


def test_a_damaged_state_is_refused(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (checkpoint / "replay" / "state.json").write_text("{")
    assert main(["inspect", str(checkpoint)]) == 2
    assert "is damaged" in capsys.readouterr().err


def test_every_line_a_person_sees(checkpoint: Path) -> None:
    assert summary_lines(summary(checkpoint / "replay")) == [
        f"{checkpoint}/replay",
        "  saved by a run with      rollout.n 2",
        "  replay                   started",
        "  groups                   4 with 8 rollouts, 18 response tokens, 0.0 MB",
        "  side and mode            forget/qa 3  retain/fb 1",
        "  without policy gradient  1",
        "  stored at step           1 to 2, mean 1.8",
        "  times drawn              1 to 1, mean 1.0",
        "  mean reward              0.000 to 0.500, mean 0.312",
        "  mean |advantage|         0.000 to 1.500, mean 0.608",  # 3/5, 3/2, 0, 1/3
        "  prompts                  3, most often 5 (2x)  6 (1x)  7 (1x)",
    ]


def test_every_line_of_an_empty_buffer(tmp_path: Path) -> None:
    save(Replay(ReplayConfig()), tmp_path)
    assert summary_lines(summary(tmp_path)) == [
        str(tmp_path),
        "  saved by a run with      nothing noted",
        "  replay                   not started",
        "  groups                   0 with 0 rollouts, 0 response tokens, 0.0 MB",
        "  side and mode            none",
        "  without policy gradient  0",
        "  stored at step           -",
        "  times drawn              -",
        "  mean reward              -",
        "  mean |advantage|         -",
        "  prompts                  0",
    ]


def test_several_of_a_kind_stand_side_by_side(checkpoint: Path) -> None:
    values = summary(checkpoint / "replay")
    values |= {"run": {"rollout.n": 2, "model": "tiny"}, "bytes": 1_260_000}
    lines = summary_lines(values)
    assert lines[1] == "  saved by a run with      rollout.n 2  model tiny"
    assert lines[3].endswith(" 1.3 MB")


class Numbers:
    """A tokenizer whose text is the numbers of the tokens."""

    def decode(self, ids: list[int]) -> str:
        return "-".join(str(number) for number in ids)


def test_every_line_of_the_groups(checkpoint: Path, make_group: MakeGroup) -> None:
    header = "  prompt   step side   mode        reward     |A| draws"
    rows = [
        "       5      1 forget qa           0.500   0.600     1",
        "       5      2 forget qa           0.500   1.500     1",
        "       6      2 retain fb           0.000   0.000     1",
        "       7      2 forget qa           0.250   0.333     1",
    ]
    assert group_lines(checkpoint / "replay") == [header, *rows]
    with_texts = group_lines(checkpoint / "replay", Numbers())
    assert len(with_texts) == 1 + 4 * (1 + 1 + 2)
    assert [with_texts[0], *with_texts[1::4]] == [header, *rows]
    group = make_group(7, step=2, rewards=[0.0, 0.5], lengths=[1, 2])
    prompt, first, *second = group.prompt_ids.tolist(), *group.response_ids.tolist()
    assert with_texts[14:] == [
        f"    prompt    '{Numbers().decode(prompt)}'",
        f"        0.000 '{first}'",
        f"        0.500 '{Numbers().decode(second)}'",
    ]


def test_tokenizer_is_loaded_by_its_name_and_brings_the_groups(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizers = {"some/model": Numbers()}
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", tokenizers.__getitem__)
    assert main(["inspect", str(checkpoint), "--tokenizer", "some/model"]) == 0
    folder = checkpoint / "replay"
    lines = [*summary_lines(summary(folder)), "", *group_lines(folder, Numbers())]
    assert capsys.readouterr().out.splitlines() == lines


def test_most_often_stored_prompts_are_five_at_most(make_group: MakeGroup, tmp_path: Path) -> None:
    replay = Replay(ReplayConfig(admission="all"))
    replay.offer([make_group(index, step=1) for index in range(7)], step=1)
    save(replay, tmp_path)
    assert len(summary(tmp_path)["most_stored"]) == 5


def test_folder_without_a_state_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"error: {tmp_path} holds no replay state; give a folder global_step_N\n"
    )


def test_run_folder_with_two_checkpoints_names_both(checkpoint: Path) -> None:
    other = checkpoint.with_name("global_step_10")
    save(Replay(ReplayConfig()), other / "replay")
    with pytest.raises(ReplayStateError) as caught:
        find(checkpoint.parent)
    assert str(caught.value) == (
        f"{checkpoint.parent} holds no replay state; it is a run folder with {other}, {checkpoint}; give a "
        "folder global_step_N"
    )


def test_help_tells_every_option(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    texts = []
    for arguments in (["--help"], ["inspect", "--help"]):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 0
        texts.append(" ".join(capsys.readouterr().out.split()))
    for told in (
        "usage: python -m recipe.rerule.replay [-h] COMMAND ...",
        "Look inside the replay buffer that a run saved with its checkpoint.",
        "inspect show what the replay buffer of a checkpoint holds",
        "python -m recipe.rerule.replay inspect outputs/rerule/global_step_20 --groups --json",
    ):
        assert told in texts[0]
    for told in (
        "replay inspect [-h] [--groups] [--tokenizer MODEL] [--json] CHECKPOINT",
        "CHECKPOINT a folder global_step_N of a run, or its replay/",
        "--groups also one line for each stored group",
        "--tokenizer MODEL also the texts of each group, decoded with the tokenizer of this model",
        "--json print one JSON object instead; with --groups it has `stored`",
        "examples: python -m recipe.rerule.replay inspect outputs/rerule/global_step_20",
    ):
        assert told in texts[1]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "the following arguments are required: COMMAND; see python -m recipe.rerule.replay --help"),
        (
            ["look"],
            "argument COMMAND: invalid choice: 'look' (choose from 'inspect'); "
            "see python -m recipe.rerule.replay --help",
        ),
        (
            ["inspect"],
            "the following arguments are required: CHECKPOINT; "
            "see python -m recipe.rerule.replay inspect --help",
        ),
    ],
)
def test_other_commands_are_refused(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert capsys.readouterr().err == f"error: {reason}\n"


def test_groups_are_in_the_json_object_too(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(checkpoint), "--groups", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(group["prompt"], group["step"], group["draws"]) for group in found["stored"]] == [
        (5, 1, 1),
        (5, 2, 1),
        (6, 2, 1),
        (7, 2, 1),
    ]
    assert found["stored"][0]["rewards"] == [0.0, 1.0]
    assert found["groups"] == 4
    assert main(["inspect", str(checkpoint), "--json"]) == 0
    assert "stored" not in json.loads(capsys.readouterr().out)


def test_texts_are_in_the_json_object_where_a_tokenizer_is_given(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda name: Numbers())
    assert main(["inspect", str(checkpoint), "--tokenizer", "m", "--json"]) == 0
    last = json.loads(capsys.readouterr().out)["stored"][-1]
    assert [len(text.split("-")) for text in last["responses"]] == [1, 2]
    assert len(last["prompt_text"].split("-")) == 3


def test_a_checkpoint_that_does_not_count_is_warned_about(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["inspect", str(checkpoint), "--json"]
    assert main(arguments) == 0
    told = capsys.readouterr().err
    assert told.startswith(f"warning: {checkpoint} is no complete checkpoint")
    assert "complete.json is missing" in told
    assert told.count("\n") == 1
    checkpoints.finish(checkpoint.parent, 2)
    assert main(arguments) == 0
    assert capsys.readouterr().err == ""
    (checkpoint / "complete.json").write_text("[" * 10_000)
    assert main(arguments) == 0
    assert "complete.json is damaged" in capsys.readouterr().err


def test_a_tokenizer_that_is_none_is_refused(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(checkpoint), "--tokenizer", str(checkpoint)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"error: --tokenizer {checkpoint} has no tokenizer that can be read: ")
    assert told.count("\n") == 1
