"""Methods and presets: which rows a group has, what a method needs, and what does not fit."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from typing import Any, get_args

import pytest

from recipe.rerule import schema
from recipe.rerule.unlearning import losses, presets, whp
from recipe.rerule.unlearning.method import Method, MethodError
from tests.e2e.stack import ROOT

# Terms, files, and rows that pass forward and backward; by hand.
PRESETS = {
    "ga": ("ga", "none", "none", "forget", 1, 1),
    "ga_gdr": ("ga", "nll", "none", "forget retain", 2, 2),
    "ga_klr": ("ga", "kl", "none", "forget retain", 3, 2),
    "npo": ("npo", "none", "none", "forget", 2, 1),
    "npo_gdr": ("npo", "nll", "none", "forget retain", 3, 2),
    "npo_klr": ("npo", "kl", "none", "forget retain", 4, 2),
    "simnpo": ("simnpo", "none", "none", "forget", 1, 1),
    "simnpo_gdr": ("simnpo", "nll", "none", "forget retain", 2, 2),
    "simnpo_klr": ("simnpo", "kl", "none", "forget retain", 3, 2),
    "dpo": ("dpo", "none", "none", "forget alternate", 4, 2),
    "dpo_gdr": ("dpo", "nll", "none", "forget alternate retain", 5, 3),
    "po": ("none", "nll", "nll", "alternate retain", 2, 2),
    "mismatch": ("none", "nll", "nll", "forget retain", 2, 2),
    "llmu": ("ga", "kl", "nll", "forget retain", 8, 7),
    "flat": ("flat", "none", "none", "forget alternate", 2, 2),
    "sga": ("ga", "nll", "none", "forget retain", 2, 2),
    "whp": ("whp", "none", "none", "forget", 3, 1),
    "rejection_steering": ("none", "none", "nll", "alternate", 1, 1),
    "retain_model": ("none", "nll", "none", "retain", 1, 1),
}
ALIASES = {"gd": "ga_gdr", "kl": "ga_klr", "npo_rt": "npo_gdr", "dpo_rt": "dpo_gdr"}


def test_the_presets_are_these() -> None:
    assert set(presets.names()) == PRESETS.keys() | ALIASES.keys()
    assert get_args(schema.Divergence) == losses.DIVERGENCES
    assert get_args(schema.Labels) == whp.LABELS


@pytest.mark.parametrize("name", PRESETS)
def test_the_list_says_terms_files_and_passes(name: str) -> None:
    (entry,) = [entry for entry in presets.listed() if entry["method"] == name]
    forget, retain, alternate, data, forward, backward = PRESETS[name]
    assert entry == {
        "method": name,
        "forget": forget,
        "retain": retain,
        "alternate": alternate,
        "data": data.split(),
        "passes": {"forward": forward, "backward": backward},
    }
    assert presets.load(name).name == name


@pytest.mark.parametrize(("alias", "name"), ALIASES.items())
def test_an_alias_is_the_method_under_another_name(alias: str, name: str) -> None:
    assert dataclasses.replace(presets.load(alias), name=name) == presets.load(name)


def test_numbers_of_the_presets() -> None:
    assert {presets.load(name).beta for name in ("npo", "npo_gdr", "npo_klr", "dpo", "dpo_gdr")} == {0.1}
    assert (presets.load("simnpo").beta, presets.load("simnpo").gamma) == (2.5, 0.0)
    llmu = presets.load("llmu")
    assert (llmu.forget_weight, llmu.alternate_weight, llmu.retain_weight) == (0.5, 1.0, 1.0)
    assert (llmu.alternate_rows, llmu.alternate_answers) == (5, "retain")
    assert presets.load("mismatch").alternate_answers == "forget"
    assert presets.load("sga").smoothing == 0.4
    assert presets.load("flat").divergence == "pearson"
    assert (presets.load("whp").alpha, presets.load("whp").labels) == (5.0, "argmax")
    assert all(presets.load(name).dpo_scale is None for name in presets.names())
    assert all(presets.load(name).kl_positions == "all" for name in presets.names())


def test_a_term_that_compares_distributions_needs_the_logits() -> None:
    needing = {name for name in PRESETS if presets.load(name).needs_logits}
    assert needing == {"ga_klr", "npo_klr", "simnpo_klr", "llmu", "whp"}
    both = dataclasses.replace(presets.load("npo_klr"), forget="whp", alpha=5.0)
    assert (both.referenced, both.reinforced) == (("forget", "retain"), ("forget",))
    assert (both.passes.forward, both.passes.backward) == (5, 2)


def test_a_group_has_the_leading_row_first() -> None:
    assert presets.load("llmu").layout == ("forget", *["alternate"] * 5, "retain")
    assert presets.load("po").layout == ("alternate", "retain")
    assert presets.load("dpo_gdr").layout == ("forget", "alternate", "retain")
    assert presets.load("retain_model").leading == "retain"


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"forget": "none", "retain": "none"}, "are all none; choose a term"),
    ({"beta": None}, "method.beta is null, but method.forget=npo needs"),
    ({"forget": "whp"}, "method.alpha is null, but method.forget=whp needs"),
    ({"retain": "none", "smoothing": 0.4}, "method.smoothing is set, which needs method.forget=ga"),
    ({"forget": "dpo", "alternate_rows": 2}, "method.alternate_rows is 2, but method.forget=dpo compares"),
    ({"alternate": "nll", "alternate_rows": 5}, "data.alternate holds one row for each forget row"),
    ({"forget": "none", "retain_rows": 3}, "method.retain_rows is 3, but the method has retain rows alone"),
    ({"alfa": 1}, "method.alfa is no setting; the keys are alpha, alternate"),
]


@pytest.mark.parametrize(("changes", "named"), WRONG)
def test_terms_that_do_not_fit_are_refused(changes: dict[str, Any], named: str) -> None:
    values = dataclasses.asdict(presets.load("npo_gdr")) | changes
    with pytest.raises(MethodError) as raised:
        Method.of(values)
    assert named in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_command_lists_them_without_torch(tmp_path: Any) -> None:
    code = (
        "import sys; sys.argv = ['unlearn', '--list', '--json']; from recipe.rerule import unlearn; "
        "unlearn.main(); assert not {'torch', 'verl', 'pyarrow', 'hydra'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)}
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == presets.listed()


def test_the_table_has_a_line_for_each() -> None:
    lines = presets.as_table().splitlines()
    assert [line.split()[0] for line in lines[1 : 1 + len(presets.names())]] == presets.names()
    notes = lines[1 + len(presets.names()) :]
    needing = [name for name in presets.names() if presets.load(name).reinforced]
    assert [line.split()[0] for line in notes if "also needs reinforced.path" in line] == needing
    *aliases, last = ALIASES
    *names, name = ALIASES.values()
    assert notes[-1] == f"{', '.join(aliases)} and {last} are other names of {', '.join(names)} and {name}."
