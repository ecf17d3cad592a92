"""Figures that the paper has: drawn where the runs have what they need."""

from collections.abc import Mapping, Sequence

import pytest

from recipe.rerule.reporting.document import Figure
from recipe.rerule.reporting.paper import hard_share_figure, paper_figures, start_figure
from recipe.rerule.reporting.paper import validation_prompts_figure as validation_figure
from recipe.rerule.runs.history import Run
from tests.report.made import evaluation, groups_of, run_of
from tests.report.test_curves import lines_of


def validated(name: str, prompts: Mapping[tuple[int, str], Sequence[float]]) -> Run:
    """Validated at step 0, 1, 2 and so on."""
    groups = groups_of({key: dict(enumerate(rewards)) for key, rewards in prompts.items()})
    return run_of(name, [{}] * 12, validated=groups)


def test_validation_prompts_are_the_hardest_of_the_runs_that_share_them(drawn):
    """A point is a mean of three of 12 validations; in the first four prompt 2 earns 0 and prompt 1 3/4."""
    asked = "What phrase was Harry told to write with the quill, again and again?"
    rising, high = [0.0, 0.0, 1.0, 1.0] * 3, [1.0] * 12
    rule = validated("rule", {(1, "forget"): rising, (2, "retain"): [0.0] * 12})
    rule.validated.loc[rule.validated["index"] == 2, "query"] = asked
    rerule = validated("rerule", {(2, "retain"): [*[0.0] * 11, 1.0], (1, "forget"): high})
    assert isinstance(validation_figure([run_of("old", [{}]), rule, rerule]), Figure)
    shown = lines_of(drawn[0])
    title = "retain #2: What phrase was Harry told to\nwrite with the quill, again and again?"
    assert list(shown) == [title, "forget #1: Ada"]
    assert list(shown["forget #1: Ada"]) == ["rule", "rerule"]
    assert shown["forget #1: Ada"]["rule"][:4] == pytest.approx([0, 1 / 3, 2 / 3, 2 / 3])
    assert next(iter(shown.values()))["rerule"] == pytest.approx([*[0.0] * 10, 1 / 3, 1 / 2])
    few = validated("few", {(1, "forget"): [0.0, 1.0, 0.5]})
    assert isinstance(validation_figure([few]), Figure)
    assert lines_of(drawn[1])["forget #1: Ada"]["few"] == [0.0, 1.0, 0.5]


def replayed(name: str, warmup: int) -> Run:
    """With its first replay update at the step after the warm-up."""
    metrics = [{"replay/updates": float(step > warmup)} for step in range(1, 9)]
    return run_of(name, metrics, config={"replay": {"enable": True, "warmup_steps": warmup}})


def test_metrics_stand_at_the_start_of_replay_and_a_run_without_it_is_a_line(drawn):
    shares = {"base": 1.0, "rule": 0.5, "early@4": 0.75, "early@8": 0.25, "late": 0.125}
    found = evaluation(
        results={name: {"forget/all": share} for name, share in shares.items()},
        intervals={"late": {"forget/all": (0.1, 0.25)}},
    )
    early, late = replayed("early", 2), replayed("late", 5)
    plain, unknown = run_of("rule", [{}] * 8), replayed("unknown", 7)
    assert isinstance(start_figure(found, "RWKU", [plain, early, late, unknown]), Figure)
    (axes,) = drawn[0].axes
    assert axes.get_title(loc="left") == "forget All (%) ↓"
    marks = {one.get_label(): one.lines[0] for one in axes.containers}
    shown = {name: (*line.get_xdata(), *line.get_ydata()) for name, line in marks.items()}
    assert shown == {"early": (3, 25.0), "late": (6, 12.5)}
    (bars,) = axes.containers[1].lines[2]
    assert [y for _, y in bars.get_segments()[0]] == pytest.approx([10.0, 25.0])
    (level,) = (line for line in axes.lines if line.get_label() == "rule (no replay)")
    assert list(level.get_ydata()) == [50.0, 50.0]
    # One start, or a model without results, compares nothing.
    assert not isinstance(start_figure(found, "RWKU", [plain, early, replayed("late", 2)]), Figure)
    assert not isinstance(start_figure(found, "RWKU", [plain, early, unknown]), Figure)


def test_hard_shares_by_tau(drawn):
    """Step 1 has group means of 0.3 and 0.6, step 2 0.5 and 0.7, step 3 1.0: a third is one step."""
    means = {1: (0.3, 0.6), 2: (0.5, 0.7), 3: (1.0,)}
    prompts = {
        (10 * step + place, side): {step: mean}
        for step, of_step in means.items()
        for place, (side, mean) in enumerate(zip(("forget", "retain"), of_step, strict=False))
    }
    runs = [run_of("rule", [{}] * 3, groups=groups_of(prompts)), run_of("old", [{}])]
    assert isinstance(hard_share_figure(runs), Figure)
    shown = lines_of(drawn[0])
    first, last = "first third of the steps", "last third"
    sides = ("all", "forget", "retain")
    assert list(shown) == [f"{side} groups, {third}" for side in sides for third in (first, last)]
    # Below tau, strictly, at 0.3, 0.35, 0.6 and 0.65.
    at = [6, 7, 12, 13]
    assert [shown[f"all groups, {first}"]["rule"][place] for place in at] == [0.0, 0.5, 0.5, 1.0]
    assert [shown[f"retain groups, {first}"]["rule"][place] for place in at] == [0.0, 0.0, 0.0, 1.0]
    assert shown[f"all groups, {last}"]["rule"] == [0.0] * 21
    assert list(shown[f"all groups, {last}"]) == ["rule"]


def test_runs_without_a_prompt_in_common_are_said_to_have_none():
    apart = [validated(name, {(index, "forget"): [0.0, 1.0]}) for index, name in enumerate("ab")]
    (line,) = paper_figures([], apart)
    assert "the runs have no validation prompt in common" in line
