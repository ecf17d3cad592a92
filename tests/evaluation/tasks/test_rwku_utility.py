"""The utility sets: RWKU's files, lm-eval's tasks over them and, where lm-eval is there, a run on a model."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from recipe.rerule.evaluate import main
from recipe.rerule.evaluation.tasks.rwku_utility import evaluate_utility, utility_rows, write_tasks

HAS_LM_EVAL = importlib.util.find_spec("lm_eval") is not None
needs_lm_eval = pytest.mark.skipif(
    not HAS_LM_EVAL, reason="lm-eval, of the extra 'utility', is not installed"
)
DATA = Path(__file__).resolve().parents[4] / "shared" / "data" / "rwku" / "targets"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"no RWKU data at {DATA}")

MMLU = {
    "task": "abstract_algebra",
    "question": " Is it? ",
    "choices": ["Who", "it", "wrote", "1"],
    "answer": 2,
    "examples": [{"question": "Was it?", "choices": ["1", "2", "3", "4"], "answer": 1}],
}
BBH = {
    "task": "navigate",
    "question": "Who?",
    "answer": "True",
    "cot": "Do it.\n\nQ: a\nA: So the answer is b.\n",
}
TRUTHFUL = {
    "question": "Who wrote it?",
    "mc1_targets": {"choices": ["Who", "it"], "labels": [1, 0]},
    "mc2_targets": {"choices": ["Who", "wrote", "it"], "labels": [1, 1, 0]},
}
TRIVIA = {"question": "Who wrote it?", "answers": ["Ada Quill", "Ada"]}
FILES = {"retain_mmlu": [MMLU], "retain_bbh": [BBH], "truthful": [TRUTHFUL], "triviaqa": [TRIVIA]}
SETS = {"mmlu": [MMLU], "bbh": [BBH], "truthfulqa": [TRUTHFUL], "triviaqa": [TRIVIA]}


def written(folder: Path, files: dict[str, Any]) -> Path:
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def document(folder: Path, name: str) -> dict[str, Any]:
    (line,) = (folder / f"rwku_{name}.jsonl").read_text().splitlines()
    return json.loads(line)


def test_sets_are_those_whose_files_are_there(tmp_path: Path):
    assert utility_rows(written(tmp_path, FILES)) == SETS
    (tmp_path / "retain_bbh.json").unlink()
    assert list(utility_rows(tmp_path)) == ["mmlu", "truthfulqa", "triviaqa"]


def test_compact_files_give_each_row_its_tasks_examples(tmp_path: Path):
    row = {key: value for key, value in MMLU.items() if key != "examples"}
    shared = {"abstract_algebra": MMLU["examples"], "anatomy": []}
    compact = {"few_shot_field": "examples", "few_shot_by_task": shared, "rows": [row]}
    assert utility_rows(written(tmp_path, {"retain_mmlu.compact": compact})) == {"mmlu": [MMLU]}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "has none of retain_mmlu.json, retain_bbh.json, truthful.json, triviaqa.json"),
        ({"triviaqa": []}, "triviaqa.json: holds no rows"),
        ({"triviaqa": [TRIVIA, {"question": "Who?"}]}, "triviaqa.json: row 1: answers is missing, empty"),
        ({"retain_bbh": [BBH | {"answer": float("nan")}]}, "retain_bbh.json: row 0: answer is missing"),
        ({"retain_mmlu.compact": {"rows": []}}, "retain_mmlu.compact.json: not as expected (KeyError"),
    ],
)
def test_wrong_files_are_named(tmp_path: Path, files: dict[str, Any], message: str):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        utility_rows(written(tmp_path, files))
    assert message in str(caught.value)


def test_prompts_are_lm_evals_with_the_files_examples(tmp_path: Path):
    assert len(write_tasks(SETS, Path("/tasks"), tmp_path)) == 5
    assert document(tmp_path, "mmlu") == {
        "text": (
            "The following are multiple choice questions (with answers) about abstract algebra.\n\n"
            "Was it?\nA. 1\nB. 2\nC. 3\nD. 4\nAnswer: B\n\n"
            "Is it?\nA. Who\nB. it\nC. wrote\nD. 1\nAnswer:"
        ),
        "answer": 2,
    }
    assert document(tmp_path, "bbh") == {
        "text": "Do it.\n\nQ: a\nA: So the answer is b.\n\nQ: Who?\nA: Let's think step by step.\n",
        "target": "True",
    }
    assert document(tmp_path, "truthfulqa_mc2") == TRUTHFUL
    # The template of lm-eval's task adds the question mark.
    assert document(tmp_path, "triviaqa") == {
        "question": "Who wrote it",
        "answer": {"aliases": ["Ada Quill", "Ada"]},
    }


def test_data_are_local_and_definitions_lm_evals(tmp_path: Path):
    tasks = write_tasks({"triviaqa": [TRIVIA]}, Path("/tasks"), tmp_path)
    assert list(tasks) == ["rwku_triviaqa"]
    definition = json.loads((tmp_path / "rwku_triviaqa.yaml").read_text())
    assert definition["include"] == "/tasks/triviaqa/default.yaml"
    assert definition["dataset_path"] == "json"
    assert definition["dataset_kwargs"]["data_files"] == {"test": str(tmp_path / "rwku_triviaqa.jsonl")}


def test_the_right_choice_must_come_first(tmp_path: Path):
    wrong = TRUTHFUL | {"mc1_targets": {"choices": ["Who", "it"], "labels": [0, 1]}}
    with pytest.raises(ValueError, match="right choice of 'Who wrote it"):
        write_tasks({"truthfulqa": [wrong]}, Path("/tasks"), tmp_path)


@pytest.mark.skipif(HAS_LM_EVAL, reason="lm-eval is installed")
def test_a_missing_lm_eval_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (tmp_path / "target").mkdir()
    target = written(tmp_path / "target", FILES)
    arguments = ["--model", model, "--target", target, "--out", tmp_path / "out", "--platform", "cpu"]
    assert main(["utility", *map(str, arguments)]) == 2
    error = capsys.readouterr().err
    assert (
        error == "error: lm-eval is not installed, which the utility sets need: pip install -e '.[utility]'\n"
    )
    assert not (tmp_path / "out").exists()


def test_a_folder_without_a_model_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    given = ["utility", "--model", str(tmp_path), "--target", "t", "--out", str(tmp_path / "out")]
    assert main(given) == 2
    assert "it has no config.json" in capsys.readouterr().err


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests.made_tokenizers import LLAMA3_TEMPLATE, byte_level

    folder = tmp_path_factory.mktemp("model")
    tokenizer = byte_level(LLAMA3_TEMPLATE)
    tokenizer.pad_token = tokenizer.eos_token
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        # Of random weights, larger ones tell choices apart.
        initializer_range=0.5,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def choice_log_likelihoods(model: Path, turn: str, choices: list[str]) -> list[float]:
    """Sum of log-probabilities of each choice after the chat prompt, by a plain forward pass."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, network = AutoTokenizer.from_pretrained(model), AutoModelForCausalLM.from_pretrained(model)
    messages = [{"role": "user", "content": turn}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    found = []
    for choice in choices:
        answer = tokenizer(choice, add_special_tokens=False).input_ids
        with torch.no_grad():
            logits = network(torch.tensor([prompt + answer])).logits[0]
        log_probs = logits.log_softmax(-1)
        found.append(sum(log_probs[len(prompt) - 1 + i, token].item() for i, token in enumerate(answer)))
    return found


@needs_lm_eval
def test_lm_eval_scores_what_a_plain_forward_pass_does(tmp_path: Path, tiny_model: Path):
    import numpy as np

    questions = [MMLU | {"answer": answer} for answer in range(4)]
    metrics, samples = evaluate_utility(SETS | {"mmlu": questions}, tiny_model, platform="cpu")
    assert set(metrics) == {
        f"utility/{name}" for name in ("mmlu", "bbh", "truthfulqa_mc1", "truthfulqa_mc2", "triviaqa")
    }
    # Each of the four letters is right once.
    assert metrics["utility/mmlu"] == 0.25
    sample = next(sample for sample in samples if sample["task"] == "mmlu")
    write_tasks(SETS, Path("/tasks"), tmp_path)
    by_letter = choice_log_likelihoods(tiny_model, document(tmp_path, "mmlu")["text"], list("ABCD"))
    # lm-eval counts the newlines that end the chat template with each choice, alike.
    found = np.array([response[0] for response in sample["responses"]])
    assert found - found[0] == pytest.approx(np.array(by_letter) - by_letter[0], abs=1e-3)
    mc2 = next(sample for sample in samples if sample["task"] == "truthfulqa_mc2")
    shares = np.exp([response[0] for response in mc2["responses"]])
    assert metrics["utility/truthfulqa_mc2"] == pytest.approx(shares[:2].sum() / shares.sum(), abs=1e-6)


@needs_lm_eval
@needs_data
def test_a_targets_own_files(tmp_path: Path, tiny_model: Path):
    out = tmp_path / "out"
    target = DATA / "1_Stephen_King"
    arguments = ["--model", tiny_model, "--target", target, "--out", out, "--platform", "cpu"]
    assert main(["utility", *map(str, arguments), "--limit", "2"]) == 0
    assert all(0 <= value <= 1 for value in json.loads((out / "results.json").read_text()).values())
    assert len((out / "samples.jsonl").read_text().splitlines()) == 10
    meta = json.loads((out / "meta.json").read_text())
    assert meta["questions"] == {"mmlu": 171, "bbh": 81, "truthfulqa": 50, "triviaqa": 100}
