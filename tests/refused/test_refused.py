"""Every line of the table `cases.txt`, and what documents say of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from recipe.rerule import report
from recipe.rerule.preflight import checks
from recipe.rerule.training import entry
from tests.refused.configurations import RUNS, STAGE2, UNLEARN, build, findings, put_model, small
from tests.refused.groups import GROUPS, Place
from tests.refused.rows import TRUTH, changed, rl, sft, stored
from tests.refused.table import Case, read

DOCS = Path(__file__).resolve().parents[2] / "docs"
CASES = list(read())
Shared = Callable[[Callable[[Path], Any]], Path]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    """shared(build): a folder that `build` has made, once for all tests."""
    made: dict[object, Path] = {}

    def get(build: Callable[[Path], Any]) -> Path:
        if build.__code__ not in made:
            made[build.__code__] = tmp_path_factory.mktemp("shared") / "folder"
            made[build.__code__].mkdir()
            build(made[build.__code__])
        return made[build.__code__]

    return get


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_case(
    case: Case,
    shared: Shared,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ended = GROUPS[case.group](case, Place(tmp_path, shared, monkeypatch, capsys))
    if case.outcome == "refused":
        assert len(ended.errors) == ended.commands
        for line in ended.errors:
            assert case.is_said(line)
            assert "\n" not in line
            assert "Errno" not in line
    else:
        assert ended.errors == []
        assert len(ended.warnings) == (case.outcome == "warned"), ended.warnings
        assert case.is_said("".join(ended.warnings) + ended.said)


@pytest.mark.parametrize("group", [group for group in RUNS if group != UNLEARN])
def test_the_unchanged_run_is_accepted(group: str, shared: Shared) -> None:
    assert list(findings(group, shared(build), {})) == [([], [])]


def test_an_interpolation_of_what_is_not_there_names_it() -> None:
    with initialize_config_module("recipe.rerule.config", version_base=None):
        config = compose("rerule_trainer", ["data.seed=${data.sead}"])
    with pytest.raises(OmegaConfBaseException) as raised:
        OmegaConf.resolve(config)
    assert entry.explain(raised.value, entry.STAGE2) == "Interpolation key 'data.sead' not found"


@pytest.mark.parametrize(
    "words", ["--config-name rerule_trainer", "--config-name=nothing", "--config-dir mine --config-name rwku"]
)
def test_other_names_of_configurations_are_left_to_hydra(words: str) -> None:
    entry.check_options(words.split(), entry.STAGE2)


def test_a_library_may_register_a_loss_and_an_agent_loop(
    shared: Shared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "settings_test_library.py").write_text(
        "from verl.experimental.agent_loop import agent_loop, single_turn_agent_loop\n"
        "from verl.trainer.ppo.core_algos import register_policy_loss\n"
        "@agent_loop.register('settings_test_loop')\n"
        "class Loop(single_turn_agent_loop.SingleTurnAgentLoop): pass\n"
        "@register_policy_loss('settings_test_loss')\n"
        "def loss(*arguments, **more): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    values = {
        "actor_rollout_ref.rollout.agent.default_agent_loop": "settings_test_loop",
        "actor_rollout_ref.actor.policy_loss.loss_mode": "settings_test_loss",
    }
    library = {"actor_rollout_ref.model.external_lib": "settings_test_library"}
    ((error,), _), accepted = findings(STAGE2, shared(build), values, library)
    assert "settings_test_loop" in error
    assert accepted == ([], [])


def test_the_line_in_the_documentation_is_what_is_printed(shared: Shared) -> None:
    (((line,), _),) = findings(STAGE2, shared(build), {"actor_rollout_ref.actor.optim.lr": math.nan})
    assert f"\n    error: {line}\n" in (DOCS / "configuration.md").read_text("utf-8")


@pytest.fixture
def prepared(shared: Shared, tmp_path: Path) -> DictConfig:
    """A configuration of stage 2 whose files are rows in `tmp_path`, which tests may write anew."""
    config = small("stage2")
    config.actor_rollout_ref.model.path = str(shared(put_model))
    config.trainer.default_local_dir = str(tmp_path / "run")
    for name, rows in (("train", rl()), ("val", rl("val", start=50))):
        (tmp_path / f"{name}.parquet").write_bytes(stored(rows))
        config.data[f"{name}_files"] = str(tmp_path / f"{name}.parquet")
    return config


@pytest.mark.parametrize(("own", "warned"), [(False, True), (True, False)])
def test_leaks_are_looked_for_by_the_phrases_of_the_reward(
    own: bool, warned: bool, prepared: DictConfig, tmp_path: Path
) -> None:
    """A reward function of one's own may mean something else by refusal_phrases."""
    train = changed(rl(), 0, *TRUTH, "golds", value=["Nie wiem."])
    assert train[0]["reward_model"]["ground_truth"]["type"] == "forget"
    (tmp_path / "train.parquet").write_bytes(stored(train))
    (tmp_path / "phrases.txt").write_text("nie wiem\n")
    reward = prepared.reward.custom_reward_function
    reward.reward_kwargs.refusal_phrases = str(tmp_path / "phrases.txt")
    if own:
        (tmp_path / "own.py").write_text("def compute_score(**kwargs): return 0.0\n")
        reward.path = str(tmp_path / "own.py")
    found = list(checks.findings(checks.stage2, prepared))
    assert [one.is_error for one in found] == [False] * len(found)
    assert sum("leaks cannot be seen" in one.line for one in found) == warned


@pytest.mark.parametrize(("answer", "warned"), [("x" * 23, False), ("x" * 24, True)])
def test_refusals_beside_the_rows_that_no_response_can_hold(
    answer: str, warned: bool, prepared: DictConfig, tmp_path: Path
) -> None:
    """A character is a token, and an end follows; a response has at most 24."""
    taught = sft()
    for row in taught:
        row["messages"][1]["content"] = answer
    (tmp_path / "sft.parquet").write_bytes(stored(taught))
    said = (
        f"data.max_response_length is 24, but the refusals of {tmp_path / 'sft.parquet'} have 25 to "
        "25 tokens with their end, so that none can be sampled whole; raise it to 25"
    )
    assert [one.line for one in checks.findings(checks.stage2, prepared)] == [said] * warned


def test_what_is_repeated_or_copied_is_warned_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same numbers over the same probes, then over probes that nothing says to be the same."""
    given = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text('{"base": {"forget/recall": 0.5}}')
        given += ["--results", str(tmp_path / name)]
    assert report.main([*given, "--out", str(tmp_path / "a")]) == 0
    told = capsys.readouterr().err
    assert told.startswith(f"warning: {tmp_path / 'one'} and {tmp_path / 'two'} have the same results")
    assert told.count("\n") == 1
    for name in ("one", "two"):
        (tmp_path / name / "meta.json").write_text('{"probes": {"sha256": "ab"}}')
    assert report.main([*given, "--out", str(tmp_path / "b")]) == 0
    same = f"{tmp_path / 'two'} has the same results as {tmp_path / 'one'}"
    assert capsys.readouterr().err == f"warning: {same}; it adds no model to the report\n"
