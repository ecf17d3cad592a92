"""Adapters before a run starts: their size, and those that could not be merged or sampled with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
from omegaconf import DictConfig, OmegaConf

from recipe.rerule.schema import SettingsError
from recipe.rerule.training import lora
from recipe.rerule.training.settings import lora as lora_settings

LLAMA3 = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
}
"""Llama-3-8B, as far as its size goes."""
SMALL = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2}


def put_config(folder: Path, **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(LLAMA3 | changes))
    return folder


def section(folder: Path, **changes: Any) -> DictConfig:
    values = {
        "path": str(folder),
        "trust_remote_code": False,
        "lora_rank": 4,
        "lora_alpha": 8,
        "target_modules": "all-linear",
        "exclude_modules": None,
        "target_parameters": None,
        "lora_adapter_path": None,
        "lora": {"rank": 0, "merge": False},
    }
    return OmegaConf.create(values | changes)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return put_config(tmp_path / "model", **SMALL)


def test_the_adapter_of_all_linear_layers_of_llama_3_8b(tmp_path: Path) -> None:
    """r (in + out) of seven linear maps a layer; without the head."""
    built = lora.adapted(section(put_config(tmp_path), lora_rank=32))
    hidden, inner, key_values = 4096, 14336, 1024
    attention = 2 * (hidden + hidden) + 2 * (hidden + key_values)
    by_hand = 32 * 32 * (attention + 3 * (hidden + inner))
    trained, whole = built.get_nb_trainable_parameters()
    assert trained == by_hand == 83_886_080
    assert whole - trained == 8_030_261_248
    assert {weight.device.type for weight in built.parameters()} == {"meta"}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"lora": {"rank": 8}}, "key.lora.rank is 8, which is for verl's other engines"),
    ({"lora_rank": 0, "lora_adapter_path": "a"}, "key.lora_adapter_path is a, but key.lora_rank is 0"),
    ({"target_parameters": ["x"]}, "key.target_parameters is ['x'], but only adapters on modules"),
]
MODULES: list[tuple[dict[str, Any], str]] = [
    ({"target_modules": ["nothing"]}, "key.target_modules is ['nothing']: Target modules {'nothing'} not"),
    (
        {"target_modules": ["q_proj", "embed_tokens"]},
        "key.target_modules takes model.embed_tokens too, which is of type Embedding",
    ),
]


@pytest.mark.parametrize(("changes", "line"), REFUSED)
def test_settings_with_which_verl_breaks(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(SettingsError) as raised:
        lora_settings.check(section(Path("x"), **changes), "key")
    assert str(raised.value).startswith(line)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("changes", "line"), MODULES)
def test_adapters_that_cannot_be_merged(changes: dict[str, Any], line: str, small: Path) -> None:
    with pytest.raises(SettingsError) as raised:
        lora_settings.check_modules(section(small, **changes), "key")
    assert str(raised.value).startswith(line)


def test_a_tied_head_has_no_adapter(tmp_path: Path) -> None:
    tied = put_config(tmp_path / "tied", **SMALL, tie_word_embeddings=True)
    with pytest.raises(SettingsError, match="takes lm_head too, which is tied to the embeddings"):
        lora_settings.check_modules(section(tied, target_modules=["lm_head"]), "key")
    loose = put_config(tmp_path / "loose", **SMALL)
    lora_settings.check_modules(section(loose, target_modules=["lm_head"]), "key")


def test_conv1d_of_gpt_2_is_refused(tmp_path: Path) -> None:
    """Its weight is transposed, so that W + B A would be a wrong matrix of the right shape."""
    folder = tmp_path / "gpt2"
    folder.mkdir()
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 32}
    (folder / "config.json").write_text(
        json.dumps({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]} | sizes)
    )
    with pytest.raises(SettingsError, match="of type Conv1D"):
        lora_settings.check_modules(section(folder, target_modules=["c_proj"]), "key")


def test_allowed_adapters(small: Path, tmp_path: Path) -> None:
    for changes in (
        {},
        {"target_modules": r".*layers\.1\..*q_proj"},
        {"exclude_modules": ["down_proj"]},
        {"lora_rank": 0, "target_modules": ["nothing"]},
        {"path": "a/name", "target_modules": ["nothing"]},
    ):
        model = section(small, **changes)
        lora_settings.check(model, "key")
        lora_settings.check_modules(model, "key")


@pytest.fixture
def put_adapter(tmp_path: Path) -> Callable[..., str]:
    """put_adapter(**settings): the folder of an adapter that peft configures so."""

    def put(**settings: Any) -> str:
        config = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
        peft.LoraConfig(**config | settings).save_pretrained(str(tmp_path / "adapter"))
        return str(tmp_path / "adapter")

    return put


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({}, None),
        ({"r": 8}, "whose rank is 8, but key.lora_rank is 4; set it to 8"),
        ({"lora_alpha": 16}, "whose alpha is 16, but key.lora_alpha is 8; set it to 16"),
        ({"use_dora": True}, "an adapter with use_dora True, which cannot be merged"),
        ({"use_rslora": True}, "an adapter with use_rslora True"),
        ({"bias": "all"}, "an adapter with bias all"),
        ({"modules_to_save": ["lm_head"]}, "an adapter with modules_to_save ['lm_head']"),
        ({"rank_pattern": {"q_proj": 2}}, "an adapter with rank_pattern {'q_proj': 2}"),
    ],
)
def test_an_adapter_to_go_on_with(
    settings: dict[str, Any], line: str | None, small: Path, put_adapter: Callable[..., str]
) -> None:
    model = section(small, lora_adapter_path=put_adapter(**settings))
    if line is None:
        return lora_settings.check_modules(model, "key")
    with pytest.raises(SettingsError) as raised:
        lora_settings.check_modules(model, "key")
    assert line in str(raised.value)
    assert str(raised.value).startswith(f"key.lora_adapter_path is {model.lora_adapter_path}, ")


@pytest.mark.parametrize(
    ("rank", "merge", "platform", "line"),
    [
        (512, False, "gpu", None),
        (513, True, "gpu", None),
        (4, True, "cpu", None),
        (0, False, "cpu", None),
        (513, False, "gpu", "vLLM samples with adapters of rank 512 at most"),
        (4, False, "cpu", "platform=cpu cannot send a LoRA adapter to the rollout engine"),
    ],
)
def test_adapters_that_the_rollout_engine_takes(
    rank: int, merge: bool, platform: str, line: str | None
) -> None:
    model = section(Path("x"), lora_rank=rank, lora={"rank": 0, "merge": merge})
    config = {
        "platform": {"name": platform},
        "actor_rollout_ref": {"model": model, "rollout": {"name": "vllm"}},
    }
    if line is None:
        return lora_settings.check_rollout(OmegaConf.create(config))
    with pytest.raises(SettingsError, match=line):
        lora_settings.check_rollout(OmegaConf.create(config))


@pytest.mark.parametrize(
    ("path", "use_kl_loss", "warned"), [("a", True, True), ("a", False, False), (None, True, False)]
)
def test_the_reference_lacks_an_adapter_to_go_on_with(
    path: str | None, use_kl_loss: bool, warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    model = section(Path("x"), lora_adapter_path=path)
    config = {"actor_rollout_ref": {"model": model, "actor": {"use_kl_loss": use_kl_loss}}}
    lora_settings.warn_of_reference(OmegaConf.create(config))
    line = "warning: with actor_rollout_ref.model.lora_adapter_path the reference of the KL term is "
    assert capsys.readouterr().err.startswith(line) == warned


@pytest.mark.full  # importing vllm takes long
def test_vllm_s_highest_rank() -> None:
    from typing import get_args

    from vllm.config.lora import MaxLoRARanks

    assert max(get_args(MaxLoRARanks)) == lora_settings.HIGHEST_RANK
