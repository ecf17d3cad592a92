"""What rows say of themselves; the files that were tried are in tests/refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipe.rerule.training.data_checks import Files, check_stage1, check_stage2, warn_of_refusals
from reward import RewardConfig
from tests.refused.rows import changed, rl, sft


def warnings(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_rows_that_are_as_data_prep_makes_them_are_no_warning(capsys: pytest.CaptureFixture[str]) -> None:
    check_stage2([("a", rl())], [("b", rl("val", start=50))])
    check_stage1([("a", sft())], [])
    assert warnings(capsys) == []


def test_validation_that_is_trained_on_in_part_is_no_warning(capsys: pytest.CaptureFixture[str]) -> None:
    """TOFU forgets rows that it validates on."""
    check_stage2([("a", rl())], [("b", [*rl()[:4], *rl("val", start=50)])])
    assert warnings(capsys) == []


def test_each_kind_of_repetition_is_one_warning_however_many_rows(capsys: pytest.CaptureFixture[str]) -> None:
    files: Files = [("a", rl()), ("b", [*rl()[:3], *rl(words="When", start=3)[:3]])]
    check_stage2(files, [("v", rl("val", start=50))])
    assert warnings(capsys) == [
        "warning: b: row 0 is also row 0 of a, and will count twice in each epoch",
        "warning: b: row 3: extra_info.index 3 is also that of row 3 of a, another prompt; what is kept by "
        "index will mix the two",
    ]


def test_a_control_character_is_named_once_with_its_field(capsys: pytest.CaptureFixture[str]) -> None:
    rows = changed(rl(), 2, "reward_model", "ground_truth", "golds", value=["Esk", "Es\x7fk"])
    check_stage2(
        [("a", changed(rows, 5, "prompt", 0, "content", value="\x00"))], [("v", rl("val", start=50))]
    )
    place = "reward_model.ground_truth.golds holds the control character U+007F at character 3"
    assert warnings(capsys) == [f"warning: a: row 2: {place}; models see it as part of the text"]


def test_forget_rows_that_cannot_show_a_leak_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    rows = rl()
    forget = [n for n, row in enumerate(rows) if row["reward_model"]["ground_truth"]["type"] == "forget"]
    for number, gold in zip(forget, ["I don't know that.", "Ada"], strict=False):
        rows = changed(rows, number, "reward_model", "ground_truth", "golds", value=[gold])
    check_stage2([("a", rows)], [("v", rl("val", start=50))])
    assert warnings(capsys) == [
        "warning: leaks cannot be seen for 2 of 8 forget rows of data.train_files, whose golds are refusals "
        "or hold no word beyond question and keyword; give right answers as golds"
    ]


def test_taught_refusals_that_the_reward_does_not_see(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [*sft(), *sft()]
    rows = changed(rows, 1, "messages", 1, "content", value="Je ne sais pas.")  # a language of the package
    rows = changed(rows, 3, "messages", 1, "content", value="Nie wiem.")  # one in sixteen is let pass
    warn_of_refusals([("a", rows[:8]), ("b", rows[8:])], RewardConfig())
    assert warnings(capsys) == []
    rows = changed(rows, 9, "messages", 1, "content", value="Nie mam pojęcia.")
    warn_of_refusals([("a", rows[:8]), ("b", rows[8:])], RewardConfig())
    [line] = warnings(capsys)
    assert line.startswith(
        "warning: the reward does not see 2 of the 16 refusals of stage 1 as refusals, such as 'Nie wiem.', "
    )
    assert "give it as refusal_phrases of the reward" in line
    phrases = tmp_path / "phrases.txt"
    phrases.write_text("nie wiem\n", "utf-8")
    warn_of_refusals([("a", rows)], RewardConfig(refusal_phrases=str(phrases)))
    assert warnings(capsys) == []
