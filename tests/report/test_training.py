"""Tables of training runs."""

import math
from dataclasses import replace

import pytest

from data_prep.contract import text_row, write_sft_rows
from recipe.rerule.reporting.document import value_of
from recipe.rerule.reporting.training import (
    cost_table,
    hard_share,
    hard_share_table,
    joint,
    settings_table,
    theory_of,
    tokens_table,
)
from tests.evaluation.conftest import make_probe, write_probes
from tests.made_tokenizers import byte_level
from tests.report.made import evaluation, groups_of, run_of, texts


def config(admission: str = "hard", threshold: float | None = 0.4, enable: bool = True, **more) -> dict:
    return {"replay": {"enable": enable, "admission": admission, "threshold": threshold} | more}


STORED = [{"replay/admitted": 3.0}, {"replay/admitted": 4.0}]
RULE = run_of("rule", [{}, {}], config=config(enable=False))
RERULE = run_of("rerule", STORED, config=config())
RANDOM = run_of("random", STORED, config=config("random"))
MOVING = run_of("moving", STORED, config=config(threshold_rule="quantile"))


def test_runs_stand_by_what_they_store_with_their_results_and_the_published():
    """A run's results are those of the model of its name, or of its last checkpoint."""
    shares = {"rerule": 0.25, "random": 0.5, "rule@5": 0.625, "rule@10": 0.75}
    results = {name: {"knowmem_f": share} for name, share in shares.items()}
    muse = evaluation(benchmark="muse_books", results=results, anchors={})
    table = settings_table([RULE, MOVING, RERULE, RANDOM, run_of("unknown", STORED)], muse)
    assert texts(table) == {
        "moving": ["hard", "–", "7", "–"],  # another rule replaces its threshold
        "rerule": ["hard", "0.4", "7", "25.0"],
        "rule": ["none", "–", "–", "75.0"],
        "random": ["random", "0.4", "7", "50.0"],
    }
    published = texts(table, "published")
    assert published["ReRULE, random storage (ReRULE paper, storage table, single run)"][3] == "1.5"
    assert published["ReRULE, tau 0.6 (ReRULE paper, tau table, single run)"][3] == "1.3"
    rwku = evaluation(results=results)  # nothing is published of its settings
    assert settings_table([RULE, RERULE], rwku) is None
    assert settings_table([RERULE, RANDOM], rwku) is not None
    assert settings_table([RERULE, run_of("b", STORED, config=config(threshold=0.6))], rwku) is not None


def test_hard_share_is_of_the_first_and_the_last_third():
    rewards = {
        (0, "forget"): {1: 0.3, 2: 0.5, 4: 0.9, 5: 0.2},
        (1, "retain"): {1: 0.59999996, 3: 0.0, 5: 0.59},  # the first is 0.6 in float32: not below it
    }
    moving = run_of("moving", [{}] * 5, groups=groups_of(rewards))  # a third is 2 steps
    table = hard_share_table([moving, replace(moving, name="tau", config=config(threshold=0.4))])
    # At 0.6, step 1 has one hard group of two, step 2 its only one; step 4 none, step 5 both.
    assert texts(table)["moving"] == ["0.6", "0.750", "1.000", "0.000", "0.500", "0.500", "1.000"]
    assert texts(table)["tau"] == ["0.4", "0.250", "0.500", "0.000", "0.250", "0.500", "0.000"]
    published = [value_of(row, table.columns[1]) for row in table.rows if row.kind == "published"]
    assert published == [0.675, 0.475, 0.543]
    assert math.isnan(hard_share(run_of("none", [{}]), 0.6, [1], ["forget"]))


def test_cost_by_hand():
    step = {"timing_s/step": 10.0, "timing_s/testing": 4.0, "timing_s/save_checkpoint": 1.0}
    plain, slower = {"timing_s/step": 6.0}, {**step, "timing_s/step": 11.0}
    seconds = {"update": 1.5, "draw": 0.25, "offer": 0.25, "train": 99.0}  # train is a part of update
    replay = {"replay/updates": 1.0} | {f"replay/seconds/{name}": value for name, value in seconds.items()}
    replayed = [{"timing_s/step": 8.0, **replay}, {"timing_s/step": 10.0, **replay}]
    rule = run_of("rule", [step, slower, plain, {"timing_s/step": 7.0}, {}])
    nodes = {"trainer": {"n_gpus_per_node": 4, "nnodes": 2}}
    rerule = run_of("rerule", [step, plain, *replayed], config=nodes)
    cells = texts(cost_table([rule, rerule]))
    # Step 1 warms up; replay starts at step 3: 6 s before, 18 / 2 from then on; 4 of 18 and 4 of 24. In all
    # 34 s, and 29 s without validation and checkpoint, on 8 devices; 4 / 30 and 4 / 20.
    hours = ["0.00944", "0.00806", "0.0756", "0.0644"]
    shares = ["22.2%", "16.7%", "+13.3%", "+20.0%"]
    assert cells["rerule"] == ["4", *hours, "6.00", "9.00", "2.00", *shares]
    # Step 2 has 5 s of validation and checkpoint; step 5 was not timed.
    assert cells["rule"] == ["5", "0.00944", "0.00667", "–", "–", "6.00", "6.50", *["–"] * 5]
    assert texts(cost_table([run_of("untimed", [{}])]))["untimed"] == ["1", *["–"] * 11]
    published = texts(cost_table([rule]), "published")["RWKU, ReRULE † (ReRULE paper, 4 A800, single run)"]
    assert published == ["–", "22.3", "–", "89.2", *["–"] * 6, "+5.2%", "–"]


def test_runs_of_one_name_have_one_row():
    """As those of RWKU's targets: 36 s and 72 s, of which 18 s are validation; 18 s and 9 s a step."""
    first = run_of("rule", [{"timing_s/step": 18.0}] * 2)
    second = run_of("rule", [{"timing_s/step": 12.0, "timing_s/testing": 3.0}] * 6)
    table = joint(cost_table([first, second, run_of("other", [{}])]))
    assert texts(table) == {
        "rule (2 runs)": ["8", "0.03", "0.025", "–", "–", "13.50", *["–"] * 6],
        "other": ["1", *["–"] * 11],
    }
    assert len(joint(hard_share_table([first, second])).rows) == 4  # three are published, two by one name
    assert "the mean of the other numbers" in table.caption
    alike = settings_table([RANDOM, RANDOM, RERULE], evaluation(results={"random": {"forget/all": 0.25}}))
    assert texts(joint(alike)) == {
        "rerule": ["hard", "0.4", "7", "–"], "random (2 runs)": ["random", "0.4", "14", "25.0"],
    }  # fmt: skip
    assert joint(alone := cost_table([first])) is alone


def test_tokens_of_rows_that_were_used(tmp_path):
    """Forget rows of 3 + 2 and 1 + 1 tokens, a retain row of 2 + 1; the second gold answer does not count.

    The forget rollouts have 100 and 20 tokens; of the retain ones the tokens are not known.
    """
    golds = [("forget", "Who wrote it", ["wrote it"]), ("forget", "Who", ["it", "not counted"])]
    golds.append(("retain", "Who wrote", ["it"]))
    rows = [
        make_probe(index, side, "qa", gold, messages=[{"role": "user", "content": text}])
        for index, (side, text, gold) in enumerate(golds)
    ]
    write_probes(tmp_path / "train.parquet", rows)
    visits = {(0, "forget"): {1: (0.5, 100), 2: (0.5, 20)}, (2, "retain"): {1: 0.5}}
    metrics = [{"replay/drawn_tokens": 1000.0}, {"replay/drawn_tokens": 500.0}]
    control = [{"replay/drawn_tokens": 0.0}, {"replay/drawn_tokens": 0.0, "replay/own_tokens": 900.0}]
    run = run_of("mine", metrics, groups=groups_of(visits), folder=tmp_path / "run")
    with pytest.raises(ValueError, match=r"run mine: no tokenizer in .*leave --data out"):
        tokens_table([run], tmp_path)
    # 5 of 5 + 2 forget tokens and of 8 tokens of two texts, all 3 of retain
    labels = {"index": 0, "mode": "completion", "subject": "Ada"}
    said = enumerate(("Who wrote it", "it it it it it"))
    whole = [text_row(text, labels | {"index": n}) for n, text in said]
    write_sft_rows(tmp_path / "forget_text.parquet", whole)
    expected = ["5", "71.4%", "62.50%", "3", "100.0%", "–", "120", "–", "1,500"]
    tokenizer = byte_level(adds_bos=False)
    tokenizer.save_pretrained(tmp_path / "stage1")
    started = {"actor_rollout_ref": {"model": {"path": f"{tmp_path / 'stage1'}"}}}
    assert texts(tokens_table([replace(run, config=started)], tmp_path))["mine"] == expected
    tokenizer.save_pretrained(tmp_path / "run" / "global_step_3" / "actor" / "huggingface")
    assert texts(tokens_table([run], tmp_path))["mine"] == expected
    again = replace(run, metrics=run_of("mine", control).metrics)
    assert texts(tokens_table([again], tmp_path))["mine"] == [*expected[:-1], "900"]
    of_target = replace(run, config={"data": {"train_files": f"elsewhere/{tmp_path.name}/train.parquet"}})
    assert texts(tokens_table([of_target], tmp_path.parent))["mine"] == expected
    strange = replace(run, groups=groups_of(visits | {(9, "retain"): {1: 0.5}}))
    with pytest.raises(ValueError, match=r"trained on prompt 9, which .*train.parquet lacks"):
        tokens_table([strange], tmp_path)


# The terms of the paper's bound.

PROMPTS = {
    (0, "forget"): {1: (0.25, 100), 2: (0.25, 40), 3: (0.75, 20)},
    (1, "retain"): {1: (0.5, 300), 3: (0.5, 60)},
}
METRICS = [
    {"replay/threshold": 0.5},
    {"replay/threshold": 0.6, "replay/drawn_tokens": 100.0, "replay/effective_sample_size": 1.0},
    {"replay/threshold": 0.6, "replay/drawn_tokens": 300.0, "replay/effective_sample_size": 0.8},
]
VALIDATIONS = {
    step: {"val-health/forget/refused": forget, "val-health/retain/refused": retain}
    for step, (forget, retain) in {0: (0.5, 0.25), 3: (0.875, 0.125)}.items()
}


def test_the_terms_of_the_bound_by_hand() -> None:
    """Hard are 100 tokens of step 1 (.5 is not below .5), 40 of step 2, 60 of step 3; eta is 340 / 400."""
    cells = theory_of(run_of("rerule", METRICS, groups=groups_of(PROMPTS), validations=VALIDATIONS))
    assert cells == {
        "hard tokens on-policy": 200,
        "hard tokens replayed": 400,
        "eta": pytest.approx(0.85),
        "effective": pytest.approx(540),
        "ratio of bounds": pytest.approx(math.sqrt(200 / 540)),
        "risk first": 0.75,  # half of the forget prompts answered, a quarter of the retain prompts refused
        "risk last": 0.25,
    }
