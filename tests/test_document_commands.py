"""Every command of the documents exists and takes its words."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.document_commands import DOCUMENTS, CommandLine, commands
from tests.document_programs import fault


def test_every_command_exists_and_takes_its_words() -> None:
    found = [command for path in DOCUMENTS for command in commands(path)]
    assert sum(not command.inline for command in found) > 60
    assert sum(command.inline for command in found) > 30
    wrong = {command.text: fault(command) for command in found}
    assert {text: told for text, told in wrong.items() if told is not None} == {}


def found_in(text: str, tmp_path: Path) -> list[CommandLine]:
    (tmp_path / "page.md").write_text(text)
    return commands(tmp_path / "page.md")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("python -m recipe.rerule.nothing", "nothing that can be run"),
        ("python -m recipe.rerule.report --outcome X --out Y", "--outcome"),
        ("python -m recipe.rerule.evaluate model --out X", "required"),
        ("python -m recipe.rerule.main experiment=tiny replay.enabled=false", "replay.enabled is no setting"),
        ("python -m recipe.rerule.sft experiment=tny", "tny"),
        ("python -m recipe.rerule.check install platfrm=cpu", "usage"),
        ("rerule trian", "no word trian"),
        ("make quikstart", "no target quikstart"),
        ("make setup TORCH=1", "no variable TORCH=1"),
        ("bash examples/run_tof.sh", "does not exist"),
        ("MODLE=x bash examples/run_tofu.sh", "no variable MODLE"),
    ],
)
def test_a_wrong_command_is_found(line: str, told: str, tmp_path: Path) -> None:
    (command,) = found_in(f"Text.\n\n    {line}\n", tmp_path)
    assert told in str(fault(command))


def test_blocks_lines_and_variables_are_read(tmp_path: Path) -> None:
    text = """# Page
    Q=out
    python -m data_prep world \\
        --out $Q/world   # a comment

```bash
. .venv/bin/activate && HF_HUB_OFFLINE=1 python -m recipe.rerule.main experiment=paper/rwku
make test
```

A table that is no command:

    one | two

```python
python -m none
```
Inline `rerule train` and `rerule/data` and `python -m
recipe.rerule.report`.
"""
    found = found_in(text, tmp_path)
    assert [(one.words[-1], one.inline) for one in found] == [
        ("experiment=paper/rwku", False),
        ("test", False),
        ("out/world", False),
        ("train", True),
        ("recipe.rerule.report", True),
    ]
    assert found[0].environment == {"HF_HUB_OFFLINE": "1"}
    with pytest.raises(ValueError, match=r"page\.md: 'pyhton' begins a line"):
        found_in("Text.\n\n    make test\n    pyhton -m data_prep\n", tmp_path)
