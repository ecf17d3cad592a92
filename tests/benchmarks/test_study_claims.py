"""The sentences of docs/results.md and of the README's paragraph on the study, held to the committed runs."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.study import claims
from benchmarks.study.arms import OURS
from benchmarks.study.attacked.results import read as read_attacks
from benchmarks.study.attacked.statements import SAMPLES, in_survival
from benchmarks.study.claim_values import NOT_SO, listed, when
from benchmarks.study.claims import IN_README, missing, opening, paragraph, unheld
from benchmarks.study.larger.statements import in_pages
from benchmarks.study.planned import statements as planned
from benchmarks.study.planned.plan import COUNTED_BASES
from benchmarks.study.planned.results import read_results as read_planned
from benchmarks.study.planned.statements import Answers
from benchmarks.study.results import read_results
from benchmarks.study.runs import StudyRun
from benchmarks.study.statements import page_claims, readme_claims
from recipe.rerule.evaluation.attacks.material import FORGET

PAGE, SAVINGS, SURVIVAL, README = (
    Path(name).read_text(encoding="utf-8")
    for name in ("docs/results.md", "docs/savings.md", "docs/survival.md", "README.md")
)
IN_STUDY = paragraph(README, IN_README)


@pytest.fixture(scope="module")
def runs() -> list[StudyRun]:
    return read_results(Path("benchmarks/study/results.parquet"))


@pytest.fixture(scope="module")
def answers() -> Answers:
    return Answers(read_planned(Path("benchmarks/study/planned.parquet")))


@pytest.fixture(scope="module")
def of_page(runs: list[StudyRun], answers: Answers) -> list[str]:
    larger = read_planned(Path("benchmarks/study/larger/results.parquet"))
    return [*page_claims(runs), *planned.in_results(answers), *in_pages(larger)]


def test_each_statement_and_number_of_the_pages_is_from_the_runs(
    monkeypatch: pytest.MonkeyPatch, of_page: list[str]
) -> None:
    assert len(of_page) > 80
    monkeypatch.setattr(sys, "argv", ["claims", "benchmarks/study/results.parquet"])
    options = claims.parser().parse_args()
    found = claims.pages(options)
    names = [page.name for page in found]
    assert (
        names
        == [f"docs/{name}.md" for name in ("results", "savings", "larger", "survival")] + ["README.md"] * 2
    )
    assert [text for page in found for text in page.wrong()] == []
    assert all(page.claims for page in found)


def test_other_planned_runs_make_other_statements(answers: Answers) -> None:
    assert missing(opening(SAVINGS), planned.in_savings(answers)) == []
    better = [
        replace(run, final=run.final | {"retain/recall": 1.0, "retain_unseen/recall": 1.0})
        if run.arm == OURS and run.base in COUNTED_BASES
        else run
        for run in answers.runs
    ]
    found = missing(opening(SAVINGS), planned.in_savings(Answers(better)))
    assert f"{NOT_SO}**Replay is not shown to be better than RULE itself**" in found
    assert any("in mean score, with p = 0.00" in text for text in found)


def test_other_attacks_make_other_statements() -> None:
    attacks = read_attacks(Path("benchmarks/study/attacked/results.parquet"))
    own = dict(attacks.sets[FORGET])
    own[SAMPLES, "equal_updates"], own[SAMPLES, OURS] = own[SAMPLES, OURS], own[SAMPLES, "equal_updates"]
    changed = replace(attacks, sets={**attacks.sets, FORGET: own})
    found = missing(claims.section(SURVIVAL, claims.IN_SURVIVAL), in_survival(changed))
    assert any("-0.082 (-0.156 to -0.026)" in text for text in found)
    assert any(text.startswith(f"{NOT_SO}**Sixteen samples") for text in found)
    assert any(text.startswith(f"{NOT_SO}The four arms have the same order") for text in found)
    one_less = {(name, arm): dict(list(bases.items())[1:]) for (name, arm), bases in own.items()}
    with pytest.raises(ValueError, match="7 of 8 bases were attacked"):
        in_survival(replace(attacks, sets={FORGET: one_less}))


def test_questions_have_no_statement_while_a_run_is_missing(answers: Answers) -> None:
    counts = [run for run in answers.runs if (run.world, run.arm, run.base) == ("tofu", "rule", 218)]
    with pytest.raises(ValueError, match="some runs that count are missing"):
        Answers([run for run in answers.runs if run is not counts[0]])
    without_idea = [run for run in answers.runs if (run.arm, run.base) != (answers.idea, 218)]
    with pytest.raises(ValueError, match="some runs that count are missing"):
        Answers(without_idea)


def test_a_changed_number_and_a_new_one_are_found(of_page: list[str]) -> None:
    changed = PAGE.replace("RULE gains +0.239 from", "RULE gains +0.339 from")
    assert changed != PAGE
    assert missing(changed, of_page) == ["RULE gains +0.239 from twice the learning rate"]
    assert [text for text in unheld(changed, of_page) if "+0.339" in text]
    (more,) = unheld(PAGE + "\nReplay gains 0.5 in all.\n", of_page)
    assert "gains 0.5 in all" in more


def test_other_runs_make_other_statements(runs: list[StudyRun]) -> None:
    worse = [
        replace(run, final=run.final | {"retain/recall": 0.0}) if run.arm == OURS else run for run in runs
    ]
    found = missing(IN_STUDY, readme_claims(worse))
    assert any("0 of 4 worlds and against equal updates in 0 of 4" in text for text in found)


def test_what_does_not_hold_can_stand_nowhere() -> None:
    assert when(True, "so it is") == "so it is"
    assert missing("so it is", [when(False, "so it is")]) == [f"{NOT_SO}so it is"]
    assert (listed(["a"]), listed(["a", "b", "c"])) == ("`a`", "`a`, `b` and `c`")


def test_tables_code_and_settings_are_no_text() -> None:
    page = "Held 0.5.\n| 0.6 |\n\n    run --x 0.7\n\n`y=0.8` and a setting 0.9, with\n35 % more.\n"
    assert [text.split()[-2:] for text in unheld(page, ["Held 0.5"], ["a setting 0.9"])] == [["%", "more."]]


def test_the_command_names_what_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results, page, readme = "benchmarks/study/results.parquet", tmp_path / "page.md", tmp_path / "README.md"
    page.write_text(PAGE.replace("in 10 of the 12 rows", "in all rows"))
    readme.write_text(README)
    command = ["claims", results, "--page", str(page), "--readme", str(readme)]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit, match=r"not there: and is smaller at the last validation in 10 of the 12"):
        claims.main()
    page.write_text(PAGE)
    claims.main()
    assert "parts of sentences as in the runs" in capsys.readouterr().out
    readme.write_text("No such paragraph.")
    with pytest.raises(SystemExit, match="error: the README has no paragraph"):
        claims.main()
