"""Looking inside a saved buffer, from the command line; tests/golden keeps all lines that it prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recipe.rerule.replay import Replay, ReplayConfig, ReplayStateError, save
from recipe.rerule.replay.__main__ import main
from recipe.rerule.replay.inspection import find
from recipe.rerule.runs import checkpoints
from tests.replay.groups import PAPER_RULES, make_group
from tests.unread import nobody_reads


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
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


def test_an_empty_buffer_can_be_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(Replay(ReplayConfig()), tmp_path)
    assert main(["inspect", str(tmp_path)]) == 0
    assert "0 with 0 rollouts" in capsys.readouterr().out


def test_a_damaged_state_is_refused(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (checkpoint / "replay" / "state.json").write_text("{")
    assert main(["inspect", str(checkpoint)]) == 2
    assert "is damaged" in capsys.readouterr().err


class Numbers:
    """A tokenizer whose text is the numbers of the tokens."""

    def decode(self, ids: list[int]) -> str:
        return "-".join(str(number) for number in ids)


def test_tokenizer_is_loaded_by_its_name_and_brings_the_groups(
    checkpoint: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizers = {"some/model": Numbers()}
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", tokenizers.__getitem__)
    assert main(["inspect", str(checkpoint), "--tokenizer", "some/model"]) == 0
    group = make_group(7, step=2, rewards=[0.0, 0.5], lengths=[1, 2])
    prompt, first, *second = group.prompt_ids.tolist(), *group.response_ids.tolist()
    assert capsys.readouterr().out.splitlines()[-4:] == [
        "       7      2 forget qa           0.250   0.333     1",
        f"    prompt    '{Numbers().decode(prompt)}'",
        f"        0.000 '{first}'",
        f"        0.500 '{Numbers().decode(second)}'",
    ]


def test_run_folder_with_two_checkpoints_names_both(checkpoint: Path) -> None:
    other = checkpoint.with_name("global_step_10")
    save(Replay(ReplayConfig()), other / "replay")
    with pytest.raises(ReplayStateError) as caught:
        find(checkpoint.parent)
    assert str(caught.value) == (
        f"{checkpoint.parent} holds no replay state; it is a run folder with {other}, {checkpoint}; give a "
        "folder global_step_N"
    )


def test_texts_are_in_the_json_object_where_a_tokenizer_is_given(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda name: Numbers())
    assert main(["inspect", str(checkpoint), "--tokenizer", "m", "--json"]) == 0
    stored = json.loads(capsys.readouterr().out)["stored"]
    assert [(one["prompt"], one["step"], one["draws"]) for one in stored] == [
        (5, 1, 1),
        (5, 2, 1),
        (6, 2, 1),
        (7, 2, 1),
    ]
    assert stored[0]["rewards"] == [0.0, 1.0]
    last = stored[-1]
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
