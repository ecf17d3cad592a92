"""Real vLLM against transformers, on models of random weights made here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from data_prep.contract import rl_row, write_rows
from recipe.rerule import evaluate
from recipe.rerule.evaluation import tidy
from tests.evaluation.engine.made_models import CHARACTERS, SPECIAL, save_model

MAX_TOKENS = 16


def greedy_by_transformers(folder: Path, prompts: list[str], raw: list[bool]) -> list[str]:
    """One prompt at a time, hence without padding; the prompt's tokens built by hand, not by the template."""
    import torch
    from transformers import AutoModelForCausalLM

    ids = {token: index for index, token in enumerate((*SPECIAL, *CHARACTERS))}
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    responses = []
    for prompt, alone in zip(prompts, raw, strict=True):
        content = [ids[character] for character in prompt]
        tokens = content if alone else [ids["<bos>"], ids["<user>"], *content, ids["<assistant>"]]
        output = model.generate(torch.tensor([tokens]), do_sample=False, max_new_tokens=MAX_TOKENS)[0]
        new = output[len(tokens) :].tolist()
        responses.append("".join(CHARACTERS[token - len(SPECIAL)] for token in new if token >= len(SPECIAL)))
    return responses


def up_to_newline(responses: list[str], chosen: list[bool]) -> list[str]:
    """The chosen responses cut at their first newline, the others whole."""
    return [text.split("\n")[0] if cut else text for text, cut in zip(responses, chosen, strict=True)]


def probes_file(path: Path, prompts: list[str], raw: list[bool]) -> Path:
    rows = [
        rl_row(
            data_source="rerule/test",
            prompt=prompt,
            side="retain",
            golds=["a"],
            keyword="",
            raw=raw[index],
            extra_info={
                "index": index,
                "mode": "qa",
                "subject": "Ben",
                "split": "probe",
                "section": "retain",
                "family": "direct",
            },
        )
        for index, prompt in enumerate(prompts)
    ]
    write_rows(path, rows)
    return path


def arguments(models: dict[str, Path], probes: Path, out: Path) -> list[str]:
    named = [part for name, folder in models.items() for part in ("--model", f"{name}={folder}")]
    rest = ["--probes", f"{probes}", "--out", f"{out}", "--platform", "cpu", "--max-tokens", f"{MAX_TOKENS}"]
    return ["model", *named, *rest]


@pytest.mark.e2e
@pytest.mark.usefixtures("unchanged_environment")
@pytest.mark.timeout(300)
def test_greedy_responses_are_those_of_transformers_token_by_token(tmp_path):
    """Through a fresh engine, after one swap of weights and the swap back, and through a second engine.

    Half of the prompts are raw.
    """
    models = {
        "first": save_model(tmp_path / "first", seed=0, layers=2),
        "swapped": save_model(tmp_path / "swapped", seed=1, layers=2),
        "first again": tmp_path / "first",
        "deeper": save_model(tmp_path / "deeper", seed=2, layers=3),
    }
    prompts = [f"Where does person {number} live{'?' * (number % 5)}" for number in range(16)]
    raw = [number % 2 == 0 for number in range(16)]
    out = tmp_path / "out"
    assert evaluate.main(arguments(models, probes_file(tmp_path / "probes.parquet", prompts, raw), out)) == 0
    found: dict[str, list[str]] = {name: [] for name in models}
    for model, rows in tidy.read(out).groupby("model", sort=False):
        found[model] = rows["response"].tolist()
    whole = {name: greedy_by_transformers(folder, prompts, raw) for name, folder in models.items()}
    expected = {name: up_to_newline(responses, raw) for name, responses in whole.items()}
    assert found == expected
    # The comparison says something only where responses differ between prompts and between models.
    assert min(len(set(responses)) for responses in expected.values()) >= 4
    assert expected["first"] != expected["swapped"]
    for name, responses in whole.items():
        assert responses != expected[name]  # a newline ends a response to a raw prompt
        assert any("\n" in response for response in expected[name])  # and none to a chat


@pytest.mark.e2e
@pytest.mark.usefixtures("unchanged_environment")
@pytest.mark.timeout(300)
def test_weights_that_vllm_refuses_end_the_command_with_the_reason(tmp_path, capfd):
    """The header is whole, so that only loading shows that the weights are of another shape."""
    folder = save_model(tmp_path / "broken", seed=0, layers=2)
    config = json.loads((folder / "config.json").read_text())
    config["intermediate_size"] *= 2
    (folder / "config.json").write_text(json.dumps(config))
    probes = probes_file(tmp_path / "probes.parquet", ["Who?"], [False])
    assert evaluate.main(arguments({"broken": folder}, probes, tmp_path / "out")) == 1
    error = capfd.readouterr().err.splitlines()[-1]
    assert error.startswith("error: model broken: vLLM failed: ")
    assert not (tmp_path / "out").exists()
