"""Probes in the data contract, and model folders."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from data_prep.contract import rl_row, write_rows
from recipe.rerule.evaluation.probes import Probe, Reference
from tests.made_models import put_weights

# By section, as TOFU has it: on its own authors alone is there a paraphrase.
REFERENCES = {"forget": Reference(("London", "Rome"), "It is Paris."), "retain_unseen": Reference(("Porto",))}


def make_probe(index: int, section: str, mode: str, golds: Sequence[str], **changes: Any) -> Probe:
    question = f"Question {index}?"
    fields: dict[str, Any] = {
        **{"family": "direct", "subject": "Ada Quill", "query": question, "data_source": "rerule/world"},
        "messages": [{"role": "user", "content": question}],
    }
    return Probe(index, section, mode, golds=list(golds), **(fields | changes))


def write_probes(path: Path, probes: Sequence[Probe]) -> Path:
    """Write probes as rows of the data contract."""
    rows = [
        rl_row(
            data_source=probe.data_source,
            prompt=probe.messages[0]["content"],
            side="forget" if probe.section == "forget" else "retain",
            golds=probe.golds,
            query=probe.query,
            raw=probe.raw,
            reference=probe.reference
            and {**vars(probe.reference), "perturbed": [*probe.reference.perturbed]},
            keyword=probe.subject if probe.section == "forget" else "",
            extra_info={
                "split": "probe",
                **{name: vars(probe)[name] for name in ("index", "mode", "subject", "section", "family")},
                **({"fact": probe.fact} if probe.fact else {}),
            },
        )
        for probe in probes
    ]
    write_rows(path, rows)
    return path


@pytest.fixture
def probes_file(tmp_path: Path) -> Path:
    probes = [
        make_probe(0, "forget", "qa", ["Paris"]),
        make_probe(1, "forget", "qa", ["seven old lamps", "lamps"]),
        make_probe(2, "forget", "aa", ["Ada Quill"], family="role_play"),
        make_probe(3, "forget", "aa", ["a baker"], family="prefix_injection"),
        make_probe(4, "retain", "fb", ["red kite"], subject="Ben Orr"),
        make_probe(5, "retain_unseen", "qa", ["Lisbon"], subject="Cleo Marsh", raw=True),
    ]
    return write_probes(tmp_path / "probes.parquet", probes)


@pytest.fixture
def model_folder(tmp_path: Path) -> Callable[..., Path]:
    """model_folder(name, files {name: text}): a folder with those files, a config.json and weights."""

    def make(name: str, **files: str) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        for file, text in {"config.json": "{}", **files}.items():
            (folder / file).write_text(text)
        put_weights(folder)
        return folder

    return make
