"""The settings of `recipe.rerule.unlearn`, and what its --help says. Imports neither torch nor verl."""

from __future__ import annotations

from recipe.rerule.training.keys import shared, stage1, usage
from recipe.rerule.training.keys.kinds import Choice, Elsewhere, Key, Number, Text, Whole
from recipe.rerule.unlearning import method

_NOT_HERE = (
    *("data.train_", "data.val_", "data.custom_cls", "data.pad_mode", "data.enable_thinking"),
    *("data.prompt_files", "data.retain_share", "data.max_response_length", "data.stop", "signal.", "stop"),
)
_OTHERWISE = ("data.truncation", "data.train_batch_size", "data.micro_batch_size_per_gpu")

_MODEL = Text("a Hugging Face folder or name")
_METHOD = (
    Key("method.name", Text(), "name of the preset", null="no preset"),
    Key("method.forget", Choice(method.FORGET_TERMS), "the term on the answers to forget", shown=True),
    Key("method.retain", Choice(method.RETAIN_TERMS), "the term on rows to keep", shown=True),
    Key(
        "method.alternate", Choice(method.ALTERNATE_TERMS), "the term on other answers to the forget prompts"
    ),
    Key("method.forget_weight", Number(), "factor of the forget term", shown=True),
    Key("method.retain_weight", Number(), "factor of the retain term", shown=True),
    Key("method.alternate_weight", Number(), "factor of the alternate term", shown=True),
    Key("method.beta", Number(above=0), "beta of npo, simnpo and dpo", null="for other terms", shown=True),
    Key("method.gamma", Number(), "gamma of simnpo, as in its paper", shown=True),
    Key("method.divergence", Choice(method.DIVERGENCES), "divergence of flat", shown=True),
    Key("method.dpo_scale", Number(above=0), "factor of the loss of dpo", null="1", shown=True),
    Key("method.alpha", Number(low=0), "alpha of whp", null="for other terms", shown=True),
    Key("method.labels", Choice(method.LABELS), "labels of whp", shown=True),
    Key("method.kl_positions", Choice(method.KL_POSITIONS), "positions that the kl is averaged over"),
    Key("method.smoothing", Number(), "r of SGA, which sets both weights", null="none", shown=True),
    Key("method.retain_rows", Whole(1, 1024), "retain rows for each forget row", shown=True),
    Key("method.alternate_rows", Whole(1, 1024), "alternate rows for each forget row"),
    Key(
        "method.alternate_answers",
        Choice(method.ALTERNATE_ANSWERS),
        "where alternate answers come from: data.alternate, or other rows of data.forget or data.retain",
    ),
    Key("reference.path", _MODEL, "the frozen model to compare with", null="model.path"),
    Key(
        "reinforced.path", _MODEL, "of whp: model.path, trained on data.forget", null="not needed", shown=True
    ),
)
_FILE = Text("the path of a parquet file")
_DATA = (
    Key("data.forget", _FILE, "answers to forget (forget_gold.parquet)", null="not needed", shown=True),
    Key("data.retain", _FILE, "rows to keep (retain.parquet)", null="not needed", shown=True),
    Key("data.alternate", _FILE, "refusals (alternate.parquet)", null="not needed", shown=True),
    Key("data.train_files", Elsewhere("null"), "not used", null="not used"),
    Key(
        "data.train_batch_size", shared.COUNT, "forget rows in each step, without their partners", shown=True
    ),
    Key(
        "data.micro_batch_size_per_gpu",
        shared.COUNT,
        "forget rows a pass of one device, partners not counted",
        shown=True,
    ),
    Key("data.truncation", Choice(("error", "right")), "what happens to longer rows", shown=True),
)


def _as_in_stage1(key: Key) -> bool:
    return not key.name.startswith(_NOT_HERE) and key.name not in _OTHERWISE


KEYS: tuple[Key, ...] = (*_METHOD, *_DATA, *filter(_as_in_stage1, stage1.KEYS))
"""All that are checked one by one."""

COMMAND = usage.Command(
    "python -m recipe.rerule.unlearn",
    "Unlearning methods that are not reinforcement, on verl's SFT trainer; --list prints them.\n"
    "The model ends up in the folder model of trainer.default_local_dir.",
    "unlearn",
    "unlearn_trainer",
    (
        "method=npo_gdr experiment=tiny model.path=MODEL data.forget=DIR/forget_gold.parquet "
        "data.retain=DIR/retain.parquet trainer.default_local_dir=outputs/npo_gdr",
        "--list --json",
    ),
    KEYS,
    groups=("method", "experiment", "platform"),
    further=("stage1",),
)
