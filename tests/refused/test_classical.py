"""Each input of classical_cases.py ends, or does not end, its command as it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recipe.rerule import task_vector
from recipe.rerule.evaluation.engine.models import Model, with_prefixes
from tests.data_prep.raw_files import error_of, prep, put_array, put_rwku
from tests.made_models import put_model
from tests.refused.classical_cases import CASES, GoldCase, PrefixCase, VectorCase

MODELS = [Model("base", Path("m")), Model("icu", Path("m")), Model("run@7", Path("r"), 7)]


def of(kind: type) -> list:
    return [pytest.param(case, id=case.name) for case in CASES if isinstance(case, kind)]


@pytest.mark.parametrize("case", of(GoldCase))
def test_right_answers(case: GoldCase, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if case.rows is not None:
        put_array(tmp_path / "gold.json", list(case.rows))
    arguments = ["rwku", "--source", put_rwku(tmp_path / "raw"), "--target", "Ada Thorn"]
    code = prep(*arguments, "--out", tmp_path / "out", "--gold", tmp_path / "gold.json")
    if case.outcome == "refused":
        assert error_of(capsys) == f"error: {tmp_path}/{case.message}"
        assert code == 2
        assert not (tmp_path / "out").exists()
    else:
        assert code == 0
        manifest = json.loads((tmp_path / "out/1_Ada_Thorn/manifest.json").read_text())
        assert manifest["classical"]["left_out"] == list(case.left_out)


@pytest.mark.parametrize("case", of(VectorCase))
def test_two_models(case: VectorCase, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, bad, out = put_model(tmp_path / "base"), put_model(tmp_path / "bad"), tmp_path / "out"
    case.damage(bad)
    given = ["--base", str(base), "--reinforced", str(bad), "--alpha", "4", "--out", str(out)]
    try:
        code = task_vector.main([*given, *case.arguments])
    except SystemExit as ended:
        code = int(ended.code or 0)
    kind = {"refused": "error", "warned": "warning"}[case.outcome]
    assert error_of(capsys).startswith(f"{kind}: {case.message.format(base=base, bad=bad, out=out)}")
    assert code == (2 if case.outcome == "refused" else 0)
    left = {"bad", "base"} if case.outcome == "refused" else {"bad", "base", "out"}
    assert {path.name for path in tmp_path.iterdir()} == left


@pytest.mark.parametrize("case", of(PrefixCase))
def test_prefixes(case: PrefixCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "blank").write_text(" \n")
    (tmp_path / "latin").write_bytes(b"Vergi\xdf es")
    if case.outcome == "valid":
        assert [bool(model.prefix) for model in with_prefixes(MODELS, case.specs, ["Ada"])] == [0, 0, 1]
        return
    with pytest.raises(ValueError) as caught:  # noqa: PT011  (the whole message is compared)
        with_prefixes(MODELS, case.specs, ["Ada"])
    assert str(caught.value) == case.message
