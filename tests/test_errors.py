"""Failures end in one line and an exit code."""

from __future__ import annotations

import pytest
import ray
from hydra import compose, initialize_config_module
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from recipe.rerule import errors


def test_the_named_kinds_become_one_line_and_an_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_, errors.one_line(ValueError, code=2):
        raise ValueError("first\n  second")
    assert exit_.value.code == 2
    assert capsys.readouterr().err == "error: first second\n"


def test_other_kinds_pass_through() -> None:
    with pytest.raises(KeyError), errors.one_line(ValueError, code=2):
        raise KeyError("x")


def test_a_remote_failure_is_told_by_its_cause() -> None:
    cause = RuntimeError("rollout engine 0 is dead")
    wrapped = ray.exceptions.RayTaskError("run", "a long traceback", cause)
    assert errors.describe(wrapped) == "RuntimeError: rollout engine 0 is dead"


def test_a_message_repeated_by_rebuilding_is_told_once() -> None:
    assert errors.describe(RuntimeError("died", "died")) == "RuntimeError: died"


@pytest.mark.parametrize("override", ["replay.tau=0.5", "experiment=nowhere", "platform=tpu"])
def test_a_wrong_override_is_one_line_that_names_it(override: str) -> None:
    with (
        pytest.raises((HydraException, OmegaConfBaseException)) as raised,
        initialize_config_module("recipe.rerule.config", version_base=None),
    ):
        compose("rerule_trainer", [override])
    line = errors.describe(raised.value)
    assert "\n" not in line
    assert override.split("=")[-1] in line or override.split("=")[0] in line


def test_a_warning_is_one_line_on_stderr_and_nothing_ends(capsys: pytest.CaptureFixture[str]) -> None:
    errors.warn("replay.warmup_steps is 15,\n  but the run has 3 steps")
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "warning: replay.warmup_steps is 15, but the run has 3 steps\n"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (FileNotFoundError(2, "No such file or directory", "a/b.csv"), "a/b.csv: no such file or directory"),
        (PermissionError(13, "Permission denied"), "permission denied"),
        (
            OSError(18, "Invalid cross-device link", "a/.mine.draft-01ab23cd/draft", None, "a/mine"),
            "a/mine and a/mine: invalid cross-device link",
        ),
        (ValueError("a/.mine.draft-01ab23cd/draft/train.parquet: row 3"), "a/mine/train.parquet: row 3"),
        (ValueError("'.mine.draft-01ab23cd/draft' is bad"), "'mine' is bad"),
        (ValueError("a/.mine.draft/b: row 3"), "a/.mine.draft/b: row 3"),
    ],
)
def test_neither_the_systems_numbers_nor_the_names_of_drafts_are_shown(error: Exception, line: str) -> None:
    assert errors.describe(error) == line


def test_a_failure_is_printed_and_gives_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert errors.fail(ValueError("a\nb"), 2) == 2
    assert capsys.readouterr().err == "error: a b\n"
