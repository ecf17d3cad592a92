"""Settings and words of the command line that were tried, with what must happen.

settings.txt is the table of those that Hydra composes; the others stand here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml

from recipe.rerule.schema import shown
from tests.refused.cases import Case, Outcome
from tests.refused.configurations import SettingsCase


def read() -> Iterator[SettingsCase]:
    """The cases of settings.txt, whose head says how a line is read."""
    group = ""
    for line in Path(__file__).with_name("settings.txt").read_text("utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            group = line.strip("[]")
        elif " => " in line:
            settings, _, end = line.partition(" => ")
            outcome, _, named = end.partition(": ")
            pairs = [pair.partition("=")[::2] for pair in settings.split("  ")]
            values = {key: yaml.safe_load(value) for key, value in pairs}
            yield SettingsCase(group, settings, _outcome(outcome), values, named)
        else:
            key, _, written = line.partition(": ")
            for text in written.split(" | "):
                value = yaml.safe_load(text)
                yield SettingsCase(
                    group, f"{key}={text}", "refused", {key: value}, f"{key} is {shown(value)}"
                )


def _outcome(word: str) -> Outcome:
    assert word in ("refused", "warned", "valid"), word
    return word  # type: ignore[return-value]


COMMANDS = "settings, help and commands"
UNKNOWN = [
    (
        "experiment=rule_common",
        "experiment is 'rule_common'; set it to one of custom, muse_books, muse_books/lora_1gpu, muse_news, ",
    ),
    ("experiment=paper/method_common", "experiment is 'paper/method_common'; set it to one of"),
    ("experiment=paper/replay_common", "experiment is 'paper/replay_common'; set it to one of"),
    ("experiment=paper", "experiment is 'paper'; set it to one of"),
    ("experiment=nowhere", "experiment is 'nowhere'; set it to one of"),
    ("experiment=", "experiment is ''; set it to one of"),
    ("platform=tpu", "platform is 'tpu'; set it to one of cpu, gpu"),
    ("platfrom=cpu", "platfrom is no setting; did you mean platform?"),
    ("replay.enabel=true", "replay.enabel is no setting; did you mean replay.enable?"),
    ("replay.tresh=1", "replay.tresh is no setting; did you mean replay.threshold?"),
    ("lr=1", "lr is no setting; did you mean actor_rollout_ref.actor.optim.lr?"),
    ("trainer.total_step=3", "did you mean trainer.total_training_steps?"),
    ("data.batch_size=3", "did you mean data.train_batch_size?"),
    ("data.max_response_len=3", "did you mean data.max_response_length?"),
    ("xyzzy=1", "xyzzy is no setting."),
    ("data=5", "a name without a dot is a group of settings: set its keys"),
    ("data.train_batch_size", "'data.train_batch_size' cannot be read as KEY=VALUE"),
    ("data.stop=[", "'data.stop=[' cannot be read as KEY=VALUE"),
]
"""Overrides that Hydra does not compose, with what the line must hold."""
OPTIONS = [
    ("--multirun", "--multirun is not supported"),
    ("-m", "--multirun is not supported"),
    ("--lr=3", "--lr is no option; write settings as KEY=VALUE"),
    ("-x", "-x is no option"),
]
"""Options that the commands refuse."""
CONFIG_NAMES = [
    (
        "--config-name experiment/rwku",
        "--config-name is experiment/rwku, a part of the configuration",
        "experiment=rwku",
    ),
    ("--config-name=rwku", "--config-name is rwku, a part of", "experiment=rwku"),
    ("-cn experiment/paper/tofu.yaml", "-cn is experiment/paper/tofu, a part of", "experiment=paper/tofu"),
    ("-cn=platform/cpu", "-cn is platform/cpu, a part of", "platform=cpu"),
    (
        "--config-name common/rule_common",
        "--config-name is common/rule_common, a part of",
        "leave the option out",
    ),
]
"""Parts of the configuration, given as all of it; what the line must hold, and how it must end."""
CASES = [
    *read(),
    *(Case(COMMANDS, argument, "refused") for argument, *_ in (*UNKNOWN, *OPTIONS, *CONFIG_NAMES)),
]
