"""Every command of the documents exists and takes its words."""

from pathlib import Path

import pytest

from tests.document_commands import DOCUMENTS, commands
from tests.document_programs import fault


def test_every_command_exists_and_takes_its_words() -> None:
    found = [command for path in DOCUMENTS for command in commands(path)]
    assert sum(not command.inline for command in found) > 60
    assert sum(command.inline for command in found) > 30
    wrong = {command.text: fault(command) for command in found}
    assert {text: told for text, told in wrong.items() if told is not None} == {}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("python -m recipe.rerule.nothing", "nothing that can be run"),
        ("python -m recipe.rerule.report --outcome X --out Y", "--outcome"),
        ("python -m recipe.rerule.evaluate model --out X", "required"),
        ("python -m recipe.rerule.main experiment=tiny replay.enabled=false", "replay.enabled is no setting"),
        ("python -m recipe.rerule.sft experiment=tny", "tny"),
        ("python -m recipe.rerule.check install platfrm=cpu", "usage"),
        ("python -m recipe.rerule.check install platform=tpu", "usage"),
        ("python -m recipe.rerule.check install gpu", "usage"),
        ("rerule trian", "no word trian"),
        ("make quikstart", "no target quikstart"),
        ("make setup TORCH=1", "no variable TORCH=1"),
        ("bash examples/run_tof.sh", "does not exist"),
        ("MODLE=x bash examples/run_tofu.sh", "no variable MODLE"),
    ],
)
def test_a_wrong_command_is_found(line: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(f"Text.\n\n    {line}\n")
    (command,) = commands(tmp_path / "page.md")
    assert told in str(fault(command))
