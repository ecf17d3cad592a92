from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from data_prep.build import BuildOptions, build, cut, summary
from data_prep.checks import LeakError
from data_prep.contract import ContractError, read_rows, read_sft_rows
from data_prep.prompts import Benchmark, PromptForm
from reward import RewardConfig
from tests.data_prep.made_prompts import NAME, benchmark, forget_prompt, retain_prompt

FILES = {
    *("train.parquet", "val.parquet", "sft.parquet", "probes.parquet", "manifest.json"),
    *("forget_gold.parquet", "retain.parquet", "alternate.parquet"),
}
REWARD = RewardConfig(rouge="rwku", gamma=0.25)


def made() -> Benchmark:
    """Both sides in two modes, with two duplicates, a contradiction and text that is not ASCII."""
    base = benchmark()
    added = [
        forget_prompt(10, f"{NAME} was born in ___.", mode="fb"),
        forget_prompt(11, "Où est née Mira Okonjo, l’auteure 🙂?", mode="qa"),
        retain_prompt(12, "what is fact 1 about Bo Fell"),
        retain_prompt(13, "what is fact 2 about Bo Fell"),
        retain_prompt(14, f"{NAME} was born in ___?", mode="fb"),
    ]
    return replace(
        base,
        train=[*base.train, *added],
        stage1=[*base.stage1, *added[:2]],
        form=PromptForm(raw=True, templates={"qa": "Question: {query}\nAnswer: "}),
        settings={"seed": 42, "source": "raw"},
        sources={"b.json": "2" * 64, "a.json": "1" * 64},
        notes={"corrected": 3, "nothing": 0},
    )


def write(
    target: Path, source: Benchmark | None = None, *, overwrite: bool = False, **options: Any
) -> dict[str, Any]:
    return build(source or made(), target, overwrite=overwrite, options=BuildOptions(REWARD, **options))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_folder_and_its_rows(tmp_path: Path) -> None:
    write(tmp_path / "out")
    assert set(contents(tmp_path / "out")) == FILES
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    train = read_rows(tmp_path / "out/train.parquet")
    assert [row["extra_info"]["index"] for row in train] == [0, 1, 2, 100, 101, 102, 10, 11, 12, 13, 14]
    assert {row["extra_info"]["split"] for row in train} == {"train"}
    assert train[7]["prompt"][0]["content"] == "Question: Où est née Mira Okonjo, l’auteure 🙂?\nAnswer: "
    assert {row["extra_info"]["split"] for row in read_rows(tmp_path / "out/val.parquet")} == {"val"}
    assert {row["extra_info"]["split"] for row in read_rows(tmp_path / "out/probes.parquet")} == {"probe"}
    stage1 = read_sft_rows(tmp_path / "out/sft.parquet")
    assert [row["extra_info"]["index"] for row in stage1] == [0, 1, 2, 10, 11]
    assert all(row["messages"][1]["content"] == f"I don't know anything about {NAME}." for row in stage1)


def test_the_manifest_counts_what_the_files_hold(tmp_path: Path) -> None:
    returned = write(tmp_path / "out")
    manifest = json.loads((tmp_path / "out/manifest.json").read_text(encoding="utf-8"))
    assert manifest == returned
    for name in ("train", "val", "probes"):
        table = pq.read_table(tmp_path / f"out/{name}.parquet")
        sides = [cell["ground_truth"]["type"] for cell in table.column("reward_model").to_pylist()]
        modes = [cell["mode"] for cell in table.column("extra_info").to_pylist()]
        counts = Counter(zip(sides, modes, strict=True))
        listed = {(side, mode): n for side, of in manifest["rows"][name].items() for mode, n in of.items()}
        assert listed == counts
    assert manifest["rows"]["train"] == {"forget": {"qa": 4, "fb": 1}, "retain": {"qa": 5, "fb": 1}}
    assert manifest["rows"]["sft"] == {"forget": {"qa": 4, "fb": 1}}
    assert pq.read_metadata(tmp_path / "out/sft.parquet").num_rows == 5
    assert manifest["files"] == {
        name: hashlib.sha256((tmp_path / "out" / name).read_bytes()).hexdigest()
        for name in sorted(FILES - {"manifest.json"})
    }


def test_the_manifest_keeps_settings_sources_and_findings(tmp_path: Path) -> None:
    manifest = write(tmp_path / "out")
    assert manifest["benchmark"] == "made_up"
    assert manifest["settings"] == {"seed": 42, "source": "raw"}
    assert manifest["checked_for"] == {"rouge": "rwku", "gamma": 0.25}
    assert list(manifest["sources"].items()) == [("a.json", "1" * 64), ("b.json", "2" * 64)]
    assert set(manifest["versions"]) == {"python", "pyarrow", "rerule"}
    assert manifest["notes"] == {"corrected": 3, "nothing": 0}
    assert manifest["not_written"] == []
    assert manifest["limit"] is None
    findings = {name: origins for name, origins in manifest["checks"].items() if origins}
    assert findings == {
        "duplicates": ["retain.json:12 (row 12)", "retain.json:13 (row 13)"],
        "contradictions": ["forget.json:10 (row 10)"],
    }


def test_the_same_prompts_give_the_same_bytes(tmp_path: Path) -> None:
    write(tmp_path / "a" / "out")
    write(tmp_path / "b" / "other")
    assert contents(tmp_path / "a" / "out") == contents(tmp_path / "b" / "other")


def test_what_is_dropped_is_not_written(tmp_path: Path) -> None:
    manifest = write(tmp_path / "out", drops=("duplicates", "contradictions"))
    indices = [row["extra_info"]["index"] for row in read_rows(tmp_path / "out/train.parquet")]
    assert indices == [0, 1, 2, 100, 101, 102, 11, 14]
    assert [row["extra_info"]["index"] for row in read_sft_rows(tmp_path / "out/sft.parquet")] == [
        0,
        1,
        2,
        11,
    ]
    assert manifest["notes"]["dropped_duplicates"] == 2
    assert manifest["notes"]["dropped_contradictions"] == 1
    assert not any(manifest["checks"].values())


def test_a_limit_cuts_each_side_stage_1_and_the_probes(tmp_path: Path) -> None:
    manifest = write(tmp_path / "out", limit=1)
    assert manifest["limit"] == 1
    rows = {name: read_rows(tmp_path / f"out/{name}.parquet") for name in ("train", "val", "probes")}
    sides = [row["reward_model"]["ground_truth"]["type"] for row in rows["train"]]
    assert sides == ["forget", "retain"]
    assert len(rows["probes"]) == len(read_sft_rows(tmp_path / "out/sft.parquet")) == 1
    assert sum(manifest["rows"]["train"]["forget"].values()) == 1


def test_a_limit_above_all_counts_changes_no_row(tmp_path: Path) -> None:
    whole = made()
    assert cut(whole, 11).stage1 == whole.stage1
    assert cut(whole, 11).probes == whole.probes
    assert sorted(cut(whole, 11).train, key=lambda p: p.index) == sorted(whole.train, key=lambda p: p.index)


def test_a_leak_is_found_in_what_a_limit_leaves_out(tmp_path: Path) -> None:
    for limit in (1, 2, 3):
        with pytest.raises(LeakError):
            write(tmp_path / "out", LEAKY, limit=limit)


def test_a_folder_is_replaced_only_on_request(tmp_path: Path) -> None:
    write(tmp_path / "out")
    before = contents(tmp_path / "out")
    other = replace(made(), name="other")
    with pytest.raises(ValueError, match=r"out exists already: give another folder, or --overwrite"):
        write(tmp_path / "out", other)
    assert contents(tmp_path / "out") == before
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"out/mine\.txt is not named in manifest\.json"):
        write(tmp_path / "out", other, overwrite=True)
    assert contents(tmp_path / "out") == {**before, "mine.txt": b"mine"}
    (tmp_path / "out" / "mine.txt").unlink()
    write(tmp_path / "out", other, overwrite=True)
    assert set(contents(tmp_path / "out")) == FILES
    assert read_rows(tmp_path / "out/train.parquet")[0]["data_source"] == "rerule/other"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_unrelated_folder_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").write_text("cat")
    for overwrite in (False, True):
        with pytest.raises(ValueError, match=r"photos (exists already|has no manifest\.json)"):
            write(tmp_path / "photos", overwrite=overwrite)
    assert contents(tmp_path / "photos") == {"cat.png": b"cat"}
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


LEAKY = replace(made(), train=[*made().train, retain_prompt(20, "Tell me of Bo Fell.")])
BAD_MODE = replace(made(), train=[*made().train, retain_prompt(20, "Who?", mode="quiz")])
SAME_INDEX = replace(made(), probes=[*made().probes, retain_prompt(200, "Who?")])
BAD_SFT = replace(made(), stage1=[forget_prompt(1, "Who?", refusal=" ")])
NO_VAL = replace(made(), val=[])


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    ("source", "kind"),
    [(LEAKY, LeakError), *((bad, ContractError) for bad in (BAD_MODE, SAME_INDEX, BAD_SFT, NO_VAL))],
    ids=["leak", "mode", "index", "sft", "no val"],
)
def test_an_error_leaves_everything_as_it_was(
    tmp_path: Path, source: Benchmark, kind: type[ValueError], overwrite: bool
) -> None:
    target = tmp_path / "out"
    if overwrite:
        write(target)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(kind) as caught:
        write(target, source, overwrite=overwrite)
    assert "\n" not in str(caught.value)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert list(tmp_path.iterdir()) == ([target] if overwrite else [])


def test_the_summary_tells_rows_and_findings(tmp_path: Path) -> None:
    source = replace(made(), failures=("blank of Who?: no JSON (5 attempts)",))
    shown = summary(Path("data/out"), write(tmp_path / "out", source)).splitlines()
    assert shown == [
        "data/out:",
        "  train.parquet       forget 5 (qa 4, fb 1); retain 6 (qa 5, fb 1)",
        "  val.parquet         forget 1 (qa 1); retain 1 (qa 1)",
        "  sft.parquet         forget 5 (qa 4, fb 1)",
        "  probes.parquet      forget 1 (qa 1); retain 1 (qa 1)",
        "  forget_gold.parquet forget 5 (qa 4, fb 1)",
        "  retain.parquet      retain 6 (qa 5, fb 1)",
        "  alternate.parquet   forget 5 (qa 4, fb 1)",
        "       3 corrected",
        "         not written: blank of Who?: no JSON (5 attempts)",
        "         mismatch.parquet is not written: all right answers of the forget side are the same",
        "       2 training prompts that occur before on the same side: retain.json:12 (row 12), "
        "retain.json:13 (row 13)",
        "       1 training prompts to forget that are also to be kept: forget.json:10 (row 10)",
    ]


def test_the_summary_lists_a_few_places_and_the_manifest_all(tmp_path: Path) -> None:
    repeated = [retain_prompt(20 + n, "What is fact 0 about Bo Fell?") for n in range(7)]
    manifest = write(tmp_path / "out", replace(made(), train=[*benchmark().train, *repeated]))
    assert len(manifest["checks"]["duplicates"]) == 7
    (line,) = (line for line in summary(tmp_path, manifest).splitlines() if "occur before" in line)
    assert line.count("retain.json") == 5
    assert line.endswith("(row 24), ...")
