"""Looking inside a saved buffer, from the command line; tests/golden keeps all lines that it prints."""

import json
from pathlib import Path
from typing import Any

import pytest

from recipe.rerule.replay import Replay, ReplayConfig, save
from recipe.rerule.replay.__main__ import main
from recipe.rerule.runs import checkpoints
from tests.replay.groups import PAPER_RULES, make_group

LAST: dict[str, Any] = {"index": 7, "step": 2, "rewards": [0.0, 0.5], "lengths": [1, 2]}


class Numbers:
    """A tokenizer whose text is the numbers of the tokens."""

    def decode(self, ids: list[int]) -> str:
        return "-".join(str(number) for number in ids)


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Steps 1 and 2, three prompts; prompt 5 twice; all drawn once at step 2; group 6 has no signal."""
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", {"some/model": Numbers()}.__getitem__)
    sizes = {"min_groups": 4, "warmup_steps": 1, "capacity": 8, "groups_per_update": 4}
    replay = Replay(ReplayConfig.from_dict({**PAPER_RULES, **sizes, "threshold": 1.0}))
    replay.offer([make_group(5, step=1, rewards=[0.0, 1.0], lengths=[2, 3])], step=1)
    second = [
        make_group(5, step=2, rewards=[0.5, 0.5], lengths=[1, 1], advantages=[1.0, -2.0]),
        make_group(6, step=2, rewards=[0.0, 0.0], lengths=[4, 4], side="retain", mode="fb"),
        make_group(**LAST),
    ]
    replay.offer(second, step=2)
    assert len(replay.draw(2)) == 4
    folder = tmp_path / "run" / "global_step_2"
    save(replay, folder / "replay", {"rollout.n": 2})
    return folder


def inspect(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> tuple[str, str]:
    """What the command prints, and says on stderr."""
    assert main(["inspect", *map(str, words)]) == code
    return capsys.readouterr()


def test_the_summary_counts_what_is_there(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(inspect(capsys, checkpoint, "--json")[0])
    assert found["signal"].pop("mean") == pytest.approx((3 / 5 + 1.5 + 0 + 1 / 3) / 4)
    assert found == {
        "folder": str(checkpoint / "replay"),
        "run": {"rollout.n": 2},
        "gate_open": True,
        "groups": 4,
        "rollouts": 8,
        "response_tokens": 5 + 2 + 8 + 3,
        # A token: id, mask, old, reference and advantage; a row: length and reward; 3 ids a prompt.
        "bytes": 18 * (4 + 1 + 4 + 4 + 4) + 8 * (4 + 4) + 4 * 3 * 4,
        "sides_and_modes": {"forget/qa": 3, "retain/fb": 1},
        "without_signal": 1,
        "step": {"min": 1, "mean": 1.75, "max": 2},
        "draws": {"min": 1, "mean": 1.0, "max": 1},
        "mean_reward": {"min": 0.0, "mean": (0.5 + 0.5 + 0.0 + 0.25) / 4, "max": 0.5},
        "signal": {"min": 0.0, "max": 1.5},
        "prompts": 3,
        "most_stored": [[5, 2], [6, 1], [7, 1]],
    }


def test_an_empty_buffer_can_be_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(Replay(ReplayConfig()), tmp_path)
    assert "0 with 0 rollouts" in inspect(capsys, tmp_path)[0]


def test_a_tokenizer_brings_the_texts_of_the_groups(checkpoint: Path, capsys: Any) -> None:
    told, _ = inspect(capsys, checkpoint, "--tokenizer", "some/model")
    group = make_group(**LAST)
    prompt, first, *second = group.prompt_ids.tolist(), *group.response_ids.tolist()
    texts = [Numbers().decode(ids) for ids in (prompt, [first], second)]
    assert "  prompt   step side   mode        reward     |A| draws" in told.splitlines()
    assert told.splitlines()[-4:] == [
        "       7      2 forget qa           0.250   0.333     1",
        f"    prompt    '{texts[0]}'",
        f"        0.000 '{texts[1]}'",
        f"        0.500 '{texts[2]}'",
    ]
    stored = json.loads(inspect(capsys, checkpoint, "--tokenizer", "some/model", "--json")[0])["stored"]
    found = [(one["prompt"], one["step"], one["draws"]) for one in stored]
    assert found == [(5, 1, 1), (5, 2, 1), (6, 2, 1), (7, 2, 1)]
    assert stored[0]["rewards"] == [0.0, 1.0]
    assert [stored[-1]["prompt_text"], *stored[-1]["responses"]] == texts


def test_a_checkpoint_that_does_not_count_is_warned_about(checkpoint: Path, capsys: Any) -> None:
    told = inspect(capsys, checkpoint)[1]
    assert told.startswith(
        f"warning: {checkpoint} is no complete checkpoint, so that no run goes on from it: "
    )
    assert "complete.json is missing" in told
    assert told.count("\n") == 1
    checkpoints.finish(checkpoint.parent, 2)
    assert inspect(capsys, checkpoint)[1] == ""
    (checkpoint / "complete.json").write_text("[" * 10_000)
    assert "complete.json is damaged" in inspect(capsys, checkpoint)[1]


def test_what_cannot_be_read_is_one_line(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = checkpoint.with_name("global_step_10")
    save(Replay(ReplayConfig()), other / "replay")
    (other / "replay" / "state.json").write_text("{")
    assert inspect(capsys, other, code=2)[1].startswith(f"error: {other}/replay/state.json is damaged or of ")
    run = checkpoint.parent
    assert inspect(capsys, run, code=2)[1] == (
        f"error: {run} holds no replay state; it is a run folder with {other}, {checkpoint}; give a folder "
        "global_step_N\n"
    )
    (run / "complete.json").touch()
    told = f"error: {run} holds no replay state: its run had no replay (replay.enable=false)\n"
    assert inspect(capsys, run, code=2)[1] == told
