"""Every command of the documents exists, takes its words, and is run by a test or marked as not tried.

A block of commands is marked in the paragraph right before it: with "**Not tried ...**", or with
"**Run by hand ...**" where somebody ran it and no test does.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.document_commands import DOCUMENTS, ROOT, CommandLine, blocks, commands
from tests.document_programs import fault, needs_gpu, program_of, starts

RUN_BY = {
    "benchmarks.gpu_check": "tests/benchmarks/test_gpu_check.py",
    "benchmarks.replay_overhead": "tests/benchmarks/test_replay_overhead.py",
    "data_prep custom": "tests/test_experiments.py",
    "data_prep tofu": "tests/data_prep/test_main.py",
    "data_prep world": "tests/data_prep/test_main.py",
    "examples/run_muse_books.sh": "tests/e2e/test_run_scripts.py",
    "examples/run_muse_news.sh": "tests/e2e/test_run_scripts.py",
    "examples/before_after.py": "tests/test_example_scripts.py",
    "examples/real_model.py": "tests/test_real_model.py",
    "examples/run_real.sh": "tests/e2e/test_real.py",
    "examples/run_rwku.sh": "tests/e2e/test_run_scripts.py",
    "examples/run_tofu.sh": "tests/e2e/test_run_scripts.py",
    "recipe.rerule.check install": "tests/preflight/test_installation.py",
    "recipe.rerule.check stage1": "tests/test_experiments.py",
    "recipe.rerule.check stage2": "tests/test_experiments.py",
    "recipe.rerule.evaluate": "tests/evaluation/test_registry.py",
    "recipe.rerule.evaluate attack": "tests/evaluation/attacks/test_command.py",
    "recipe.rerule.evaluate judge": "tests/evaluation/judge_server.py",
    "recipe.rerule.evaluate model": "tests/e2e/test_ends.py",
    "recipe.rerule.evaluate score": "tests/evaluation/test_registry.py",
    "recipe.rerule.evaluate utility": "tests/evaluation/tasks/test_rwku_utility.py",
    "recipe.rerule.export": "tests/report/test_export.py",
    "recipe.rerule.main": "tests/e2e/test_stage2.py",
    "recipe.rerule.minimal": "tests/test_minimal.py",
    "recipe.rerule.replay inspect": "tests/replay/test_inspection.py",
    "recipe.rerule.report": "tests/report/test_report.py",
    "recipe.rerule.sft": "tests/e2e/test_lora.py",
    "recipe.rerule.task_vector": "tests/unlearning/test_task_vectors.py",
    "recipe.rerule.unlearn": "tests/e2e/test_unlearn_command.py",
    "vllm.entrypoints.openai.api_server": "tests/e2e/test_generate.py",
}
"""Program to a file of tests that starts it."""
SCRIPT_OF = {"make quickstart": "examples/quickstart.sh", "make real": "examples/run_real.sh"}
"""Target to the one script that it runs, which the test of e2e/ with the target's name runs too."""
OF_THE_TESTS = {"make setup", "make test", "make test-full", "make lint", "make docs", "pytest"}
"""What makes the environment in which the tests run, or runs them."""

COMMANDS = [command for path in DOCUMENTS for command in commands(path)]
IN_BLOCKS = [command for command in COMMANDS if not command.inline]


def place(command: CommandLine) -> str:
    return f"{command.place} {command.text[:50]}"


def test_the_documents_have_commands() -> None:
    assert len(IN_BLOCKS) > 60
    assert len(COMMANDS) - len(IN_BLOCKS) > 30


@pytest.mark.parametrize("command", COMMANDS, ids=place)
def test_a_command_exists_and_takes_its_words(command: CommandLine) -> None:
    assert fault(command) is None, command.text


@pytest.mark.parametrize("command", [one for one in IN_BLOCKS if not one.mark], ids=place)
def test_a_command_without_a_mark_is_run_by_a_test(command: CommandLine) -> None:
    program = program_of(command)
    assert program in {*RUN_BY, *SCRIPT_OF, *OF_THE_TESTS}, (
        f"{command.place}: {program} is not in RUN_BY: mark it"
    )
    assert not needs_gpu(command), f"{command.place} is for a GPU, on which nobody has run it: mark it"


@pytest.mark.parametrize("program", RUN_BY)
def test_the_test_that_is_said_to_run_a_program_starts_it(program: str) -> None:
    assert starts(ROOT / RUN_BY[program], program)


def test_a_target_is_run_by_its_script() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target, script in SCRIPT_OF.items():
        recipe = makefile.split(f"\n{target.removeprefix('make ')}:")[1].split("\n\n")[0]
        assert f"bash {script}" in recipe
        assert starts(ROOT / f"tests/e2e/test_{target.removeprefix('make ')}.py", script)


def test_run_by_names_only_what_the_documents_use() -> None:
    assert set(RUN_BY) <= {program_of(command) for command in COMMANDS}


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
        ("python -m data_prep world --out X --seeds 2", "--seeds"),
        ("python -m benchmarks.rwku_scoring A B", "takes no B"),
    ],
)
def test_a_wrong_command_is_found(line: str, told: str, tmp_path: Path) -> None:
    (command,) = found_in(f"Text.\n\n    {line}\n", tmp_path)
    assert told in str(fault(command))


def test_blocks_lines_variables_and_marks_are_read(tmp_path: Path) -> None:
    text = """# Page
    Q=out
    python -m data_prep world \\
        --out $Q/world   # a comment

**Not tried on a GPU.** This one is for a GPU:

```bash
. .venv/bin/activate && python -m recipe.rerule.main experiment=paper/rwku
for t in a b; do
  HF_HUB_OFFLINE=1 make test
done
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
    assert [(one.place, one.words[-1], one.mark, one.inline) for one in found] == [
        ("page.md:3", "out/world", "", False),
        ("page.md:9", "experiment=paper/rwku", "not tried", False),
        ("page.md:11", "test", "not tried", False),
        ("page.md:22", "train", "", True),
        ("page.md:22", "recipe.rerule.report", "", True),
    ]
    assert found[2].environment == {"HF_HUB_OFFLINE": "1"}
    assert needs_gpu(found[1])
    assert len(blocks(text)) == 3


def test_a_block_of_commands_holds_nothing_else(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"page\.md:4: 'pyhton' begins a line"):
        found_in("Text.\n\n    make test\n    pyhton -m data_prep\n", tmp_path)
