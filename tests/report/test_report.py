"""`recipe.rerule.report`: what it writes, prints, warns of and replaces; tests/refused: what it refuses."""

from recipe.rerule.report import main
from tests.data_prep.raw_files import contents

WORLD = {"base": {"forget/recall": 0.9, "retain/recall": 0.95}}


def test_only_an_earlier_report_is_replaced_and_only_when_asked(write_evaluation, tmp_path, capsys):
    """--out names the page; what stands next to it is kept."""
    folder = tmp_path / "quickstart"
    folder.mkdir()
    (folder / "other.txt").write_text("kept")
    results = write_evaluation("evaluation", results=WORLD) / "results.json"
    arguments = ["--results", f"{results}", "--out", f"{folder / 'mine.html'}"]
    assert main(arguments) == 0
    assert {"other.txt", "mine.html", "mine.md", "mine/results_world.csv"} <= set(contents(folder))
    assert main([*arguments, "--title", "Another", "--overwrite"]) == 0
    assert "Another" in (folder / "mine.html").read_text()
    for link in ("mine.html", "mine.md", "mine"):
        (folder / link).rename(tmp_path / "elsewhere")
        (folder / link).symlink_to(tmp_path / "elsewhere")
        before = contents(tmp_path)
        assert main([*arguments, "--overwrite"]) == 2
        assert f"{link} was not written by a report" in capsys.readouterr().err
        assert contents(tmp_path) == before
        (folder / link).unlink()
        (tmp_path / "elsewhere").rename(folder / link)


def test_data_of_one_s_own_and_what_shows_nothing(write_evaluation, tmp_path, capsys):
    numbers = {"forget/recall": 0.5, "retain/recall": 1.0}
    results = {"base": numbers, "rule": numbers, "rerule": numbers | {"forget/recall": 0.0}}
    facts = {"forget": 2, "forget/qa": 2, "retain": 9, "retain/qa": 9}
    meta = {"benchmark": "custom", "probes": {"sha256": "1", "facts": facts}}
    own = ["--results", f"{write_evaluation('own', results=results, meta=meta)}"]
    world = write_evaluation("evaluation", results=WORLD)
    titled = [*own, "--results", f"{world}", "--title", "Mine", "--out", f"{tmp_path / 'out'}"]
    assert main(titled) == 0
    told = capsys.readouterr()
    assert told.out.startswith("Mine\n")
    assert "\n\nEmbedded world\n" in told.out  # the world keeps its own name
    page = (tmp_path / "out" / "report.md").read_text()
    assert page.startswith("# Mine\n")
    assert "## Mine\n" in page
    assert [line for line in told.err.splitlines() if not line.startswith("report: ")] == [  # its progress
        "warning: Mine: too few facts for intervals and tests, which need 6: forget (2)",
        "warning: Mine: no number of rule differs from base: if that is the model before, nothing was "
        "forgotten",
    ]
    assert main([*own, "--base", "rerule", "--out", f"{tmp_path / 'other'}"]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("Your data\n")
    assert "differs from" not in told.err
