"""What can be given wrong to `python -m recipe.rerule.minimal`; each is tried by test_minimal.py.

In the options, {root} is a folder with train.parquet, probes.parquet and model, whose files are right.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.refused.cases import Case

GROUP = "minimal.py"
GIVEN = "--model {root}/model --data {root}/train.parquet"


@dataclass(frozen=True)
class MinimalCase(Case):
    """A command line.

    options: of the command, words apart.
    says: what its one line on stderr must name.
    """

    options: str = GIVEN
    says: str = ""


def _refused(name: str, options: str, says: str) -> MinimalCase:
    return MinimalCase(GROUP, name, "refused", options, says)


CASES: list[Case] = [
    MinimalCase(GROUP, "model and data that are right", "valid", f"{GIVEN} --probes {{root}}/probes.parquet"),
    MinimalCase(
        GROUP, "one side alone", "warned", "--model {root}/model --data {root}/forget.parquet", "type retain"
    ),
    _refused("a model without data", "--model {root}/model", "--model and --data go together"),
    _refused("data without a model", "--data {root}/train.parquet", "--model and --data go together"),
    _refused("a model that is not there", GIVEN.replace("model ", "gone "), "{root}/gone"),
    _refused("an empty folder as the model", GIVEN.replace("/model", "/empty"), "--model is {root}/empty"),
    _refused("a model without a tokenizer", GIVEN.replace("/model", "/bare"), "{root}/bare, whose tokenizer"),
    _refused("a model with NaN", GIVEN.replace("/model", "/nan"), "NaN"),
    _refused("no chat template", GIVEN.replace("/model", "/base"), "has no chat template"),
    _refused("data that are not there", GIVEN.replace("train", "gone"), "gone.parquet: no such file"),
    _refused("data that are no parquet", GIVEN.replace("train", "text"), "text.parquet: not a readable"),
    _refused("rows of stage 1", GIVEN.replace("train", "sft"), "sft.parquet: column data_source is missing"),
    _refused("probes as data", GIVEN.replace("train", "probes"), "probes.parquet: row 0"),
    _refused("probes that are not there", f"{GIVEN} --probes {{root}}/gone.parquet", "gone.parquet"),
    _refused("fewer rows than a step takes", f"{GIVEN} --prompts 999", "lower --prompts"),
    _refused("a device that is not there", f"{GIVEN} --device cuda:77", "--device is cuda:77"),
    _refused("a device of no kind", f"{GIVEN} --device tpux", "--device is tpux"),
    _refused("no steps", f"{GIVEN} --steps 0", "'0' is no whole number above 0"),
    _refused("steps in words", f"{GIVEN} --steps many", "'many' is no whole number"),
    _refused("one response a prompt", f"{GIVEN} --rollouts 1", "--rollouts is 1"),
    _refused("no learning rate", f"{GIVEN} --learning-rate 0", "--learning-rate is 0.0"),
    _refused("a learning rate that is NaN", f"{GIVEN} --learning-rate nan", "--learning-rate is nan"),
    _refused("an infinite learning rate", f"{GIVEN} --learning-rate inf", "--learning-rate is inf"),
    _refused("a seed in words", f"{GIVEN} --seed x", "argument --seed: 'x' is no whole number"),
    _refused("a seed too large", f"{GIVEN} --seed {2**70}", "argument --seed: "),
    _refused("an unknown option", f"{GIVEN} --epochs 3", "--epochs"),
    _refused("another folder as the world", "--world {root}/own", "{root}/own/world is not the world"),
    _refused("a file as the world", "--world {root}/train.parquet", "train.parquet"),
]
