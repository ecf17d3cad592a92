"""Memory of a run: by hand for Llama-3-8B with an adapter, and what is said of cards and machines."""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from recipe.rerule.schema import SettingsError
from recipe.rerule.training import lora, memory
from recipe.rerule.training.memory import GB, Run, Sizes
from tests.training.made import composed

LLAMA3_CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "tie_word_embeddings": False,
}  # fmt: skip
"""Llama-3-8B, as far as its size goes."""
SMALL_CONFIG = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
SMALL_CONFIG |= {"num_attention_heads": 4, "num_key_value_heads": 2}
ADAPTER = 32 * 32 * (2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336))
"""Of rank 32: r (in + out) of four linear maps of attention and three more in each of 32 layers."""
LAYER = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096
EMBEDDINGS = 128256 * 4096
BASE = 32 * LAYER + 2 * EMBEDDINGS + 4096
LLAMA3 = Sizes(BASE, ADAPTER, 2 * EMBEDDINGS + 4096, EMBEDDINGS, 4096, 14336, 32, 128256, 2048)
LONGEST = 512 + 1024
ACTOR, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.model"
BOUND, TOKENS = f"{ACTOR}.ppo_micro_batch_size_per_gpu", f"{ACTOR}.ppo_max_token_len_per_gpu"
ON_80 = Run(1, 4, 2 * LONGEST, 4 * LONGEST, LONGEST, BOUND, engine_share=0.45)
ON_40 = Run(1, 2, LONGEST, LONGEST, LONGEST, BOUND, param_offload=True, engine_share=0.6)
FUSED = f"{MODEL}.use_fused_kernels=true"  # as of a folder with a config.json of Llama
FOR_40_GB = [f"{ACTOR}.fsdp_config.param_offload=true", f"{TOKENS}=4096", FUSED]
FOR_40_GB += ["actor_rollout_ref.rollout.gpu_memory_utilization=0.6"]
"""As config/common/lora_1gpu.yaml has them."""


def put_config(folder: Path, **changes: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(LLAMA3_CONFIG | changes))
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Llama-3-8B with an adapter; building it takes seconds."""
    folder = put_config(tmp_path_factory.mktemp("llama3"))
    config = composed(2, f"{MODEL}.path={folder}", f"{MODEL}.lora_rank=32", f"{MODEL}.lora_alpha=8")
    return lora.adapted(config.actor_rollout_ref.model)


@pytest.fixture
def llama3(built: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a model that is built once for all tests."""
    monkeypatch.setattr(lora, "adapted", lambda model: built)
    return Path("llama3")


def test_sizes_are_those_of_the_model(built: Any) -> None:
    assert memory.sizes(built) == LLAMA3
    assert (BASE, ADAPTER) == (8_030_261_248, 83_886_080)
    trained, whole = built.get_nb_trainable_parameters()
    assert (trained, whole - trained) == (ADAPTER, BASE)
    assert {weight.device.type for weight in built.parameters()} == {"meta"}


WHOLE = replace(LLAMA3, adapter=0)
ON_PROCESSOR = replace(ON_80, reference=1, checkpointing=False, fused=True)
ON_HOST = Run(1, 4, 1024, longest=LONGEST, on_host=True, engine_share=0.6, reference=1, fused=True)


@pytest.mark.parametrize(
    ("model", "run", "totals"),
    [
        (LLAMA3, ON_80, [49.676, 53.356, 35.128]),
        (LLAMA3, ON_40, [27.420, 37.295, 2.671]),
        (LLAMA3, replace(ON_80, devices=2), [32.944, 36.792, 18.564]),
        (LLAMA3, replace(ON_80, merge=True), [49.676, 55.290, 35.128]),
        (LLAMA3, replace(ON_80, optimizer_offload=True), [49.676, 52.685, 34.457]),
        (LLAMA3, replace(ON_80, param_offload=True, optimizer_offload=True), [49.676, 52.685, 2]),
        (LLAMA3, replace(ON_80, fused=True), [43.109, 53.356, 35.128]),
        (LLAMA3, Run(1, 4, 1024), [40.466]),
        (WHOLE, ON_80, [144.697, 116.424, 98.363]),
        (WHOLE, ON_HOST, [17.146, 22.162, 2]),
        # A critic has 32.121 GB of weights, as much of gradients, and twice as much of moments.
        (WHOLE, replace(ON_80, critic=3), [273.181, 212.787, 194.726]),
        (WHOLE, replace(ON_80, critic=1), [273.181, 148.545, 130.484]),
        (LLAMA3, replace(ON_80, engine_devices=4), [49.676, 41.185, 35.128]),
    ],
)
def test_what_each_moment_takes_by_hand(model: Sizes, run: Run, totals: list[float]) -> None:
    """In GB: of a base weight 4 bytes, of a trained one 16, and 12 of them while weights are sent.

    In addition 2 bytes of each gathered weight, kept number and weight of the engine; of a token's logits 12,
    or 10 of log-probs; 4 of the largest tensor where the engine gets it alone; 2 GB each for CUDA and engine.
    """
    found = [sum(parts.values()) / GB for parts in memory.moments(model, run).values()]
    assert found == pytest.approx(totals, abs=0.001)


@pytest.mark.parametrize(
    ("run", "card", "shortage"),
    [
        (ON_80, 80, None),
        (ON_80, 40, "the update needs 49.7 GB"),
        (ON_40, 40, None),
        (replace(ON_40, engine_share=0.99), 40, "sampling needs 42.3 GB"),
        (
            replace(ON_40, engine_share=0.4),
            40,
            "0.4 of it holds the engine's weights and no response of 1536",
        ),
    ],
)
def test_which_cards_are_too_small_and_why(run: Run, card: int, shortage: str | None) -> None:
    """A token takes two bytes for each of 2,048 keys and values of 32 layers in the engine: 128 KiB."""
    found = memory.shortage(LLAMA3, run, card * GB)
    assert (found or "").startswith(shortage or "")
    assert (found is None) == (shortage is None)
    room = 0.45 * 80e9 - 2 * (BASE + ADAPTER) - 2e9
    assert memory.cached_tokens(LLAMA3, ON_80, 80 * GB) == int(room // 131072) == 135_587
    room += 1.5 * (BASE + ADAPTER)
    assert memory.cached_tokens(LLAMA3, replace(ON_80, engine_devices=4), 80 * GB) == int(room // 32768)


@pytest.mark.parametrize(
    "benchmark",
    ["rwku", *(pytest.param(name, marks=pytest.mark.full) for name in ("tofu", "muse_books", "muse_news"))],
)
def test_the_experiments_fit_their_cards(benchmark: str, llama3: Path) -> None:
    experiment = f"experiment={benchmark}/lora_1gpu"
    on_80, table = said(composed(2, experiment, f"{MODEL}.path={llama3}", FUSED))
    assert on_80[-1].endswith("tokens at once")
    assert "a card of 80 GB is enough" in on_80[-1]
    assert "a card of 40 GB is too small" in on_80[-2]
    assert table[0] == ["nothing"] * 4
    on_40, table = said(composed(2, experiment, f"{MODEL}.path={llama3}", *FOR_40_GB))
    assert "a card of 40 GB is enough" in on_40[-2]
    assert table == [["nothing"] * 4, ["as set"] * 4, ["as set"] * 4]
    static = ["data.use_dynamic_bsz=false", "data.micro_batch_size_per_gpu=2"]
    first, table = said(composed(1, experiment, f"model.path={llama3}", *static))
    assert [line.rpartition(": ")[2] for line in first][1:] == [
        "a card of 24 GB is too small, because the update needs 26.4 GB",
        "a card of 40 GB is enough",
        "a card of 80 GB is enough",
    ]
    assert table[0] == ["nothing", "as set", "as set", "as set"]


def said(config: Any) -> tuple[list[str], list[list[str]]]:
    """The lines of moments and cards, and the cells of the table that follows them."""
    lines = memory.said(config)
    about = [line for line in lines if line.startswith("memory of a device, computed and not measured: ")]
    rows = [re.split("  +", line)[1:] for line in lines[-3:]]
    assert len(lines) == len(about) + 2 + len(rows)
    return about, rows


def test_the_settings_are_those_of_the_run() -> None:
    def found(*more: str) -> Run:
        return memory.of_run(composed(2, "experiment=rwku/lora_1gpu", f"{MODEL}.path=x", *more))

    assert found() == Run(1, 2, 16384, 16384, LONGEST, TOKENS, engine_share=0.45)
    more = found("trainer.n_gpus_per_node=4", "actor_rollout_ref.rollout.tensor_model_parallel_size=2")
    assert (more.devices, more.on_machine, more.engine_devices) == (4, 4, 2)
    critic = ["algorithm.adv_estimator=gae", "critic.fsdp.optimizer_offload=true"]
    assert [found().critic, found(critic[0]).critic, found(*critic).critic] == [None, 3, 1]
    for_40 = Run(1, 2, 4096, 4096, LONGEST, TOKENS, param_offload=True, engine_share=0.6, fused=True)
    assert found(*FOR_40_GB) == for_40
    rows = found(f"{ACTOR}.use_dynamic_bsz=false", f"{BOUND}=2")
    assert (rows.update_tokens, rows.log_prob_tokens, rows.tokens_key) == (2 * LONGEST, 16 * LONGEST, BOUND)
    whole = found(f"{MODEL}.lora_rank=0", FUSED)
    assert (whole.reference, whole.fused, whole.checkpointing) == (True, True, True)
    in_reward = [f"{ACTOR}.use_kl_loss=false", "algorithm.use_kl_in_reward=true", f"{MODEL}.lora_rank=0"]
    assert found(*in_reward).reference == 1
    kept = [
        memory.of_run(composed(1, "experiment=rwku", f"stop={stop}")).keeps for stop in ("none", "signal")
    ]
    assert kept == [False, True]


@pytest.mark.parametrize(
    ("model", "run", "total"),
    [
        (WHOLE, ON_PROCESSOR, 277.160),
        # Once more 45.097 of activations, .268 of logits, 4.8 of processes, 66.39 of an engine and its cache.
        (WHOLE, replace(ON_PROCESSOR, on_machine=2), 393.715),
        (WHOLE, replace(ON_PROCESSOR, on_machine=2, engine_devices=2), 327.326),
        (WHOLE, replace(ON_PROCESSOR, critic=3), 405.644),
        (LLAMA3, Run(1, 4, 50), 34.184),
        (LLAMA3, Run(1, 4, 50, keeps=True), 34.520),
    ],
)
def test_what_a_machine_takes_by_hand(
    model: Sizes, run: Run, total: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Llama keeps 14 numbers of its width and 4 of its middle layers a token and layer."""
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "2")
    assert sum(memory.machine_bytes(model, run).values()) / GB == pytest.approx(total, abs=0.001)


@pytest.mark.parametrize(
    ("free", "total", "line"), [(10, 16, None), (6, 16, "6.0 GB of 16.0 are free"), (6, 7, "refused")]
)
def test_a_run_that_needs_more_than_there_is(
    free: float, total: float, line: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4.8 GB for the processes, 4.3 GB for a cache of 4 GiB, and next to nothing for a model of this size."""
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "4")
    monkeypatch.setattr(memory, "free_bytes", lambda: (free * GB, total * GB))
    folder = put_config(tmp_path, **SMALL_CONFIG)
    config = composed(2, "experiment=tiny", f"{MODEL}.path={folder}")
    if line == "refused":
        with pytest.raises(SettingsError, match="lower VLLM_CPU_KVCACHE_SPACE"):
            list(memory.warnings(config))
        return
    said = list(memory.warnings(config))
    assert len(said) == (line is not None)
    assert all(str(line) in of and of.startswith("the run needs up to 9.") for of in said)


UNLIMITED = {"max": "max", "current": "70", "stat": "inactive_file 60"}


@pytest.mark.parametrize(
    ("line", "groups", "expected"),
    [
        ("0::/a/b", {}, (50, 100)),
        ("0::/a/b", {".": {"max": "64", "current": "40", "stat": "anon 9\ninactive_file 15"}}, (39, 64)),
        (
            "0::/a/b",
            {"a": {"max": "32", "current": "30", "stat": "inactive_file 8"}, "a/b": UNLIMITED},
            (10, 32),
        ),
        (
            "9:cpu:/c\n4:memory:/a\n0::/",
            {"memory/a": {"limit_in_bytes": "40", "usage_in_bytes": "30", "stat": "total_inactive_file 5"}},
            (15, 40),
        ),
    ],
)
def test_the_memory_of_the_smallest_group_counts(
    line: str, groups: dict[str, dict[str, str]], expected: tuple[int, int], tmp_path: Path, monkeypatch: Any
) -> None:
    """Without a limit it is the machine's: 50 bytes of 100. Files that were read count as free."""
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=50, total=100))
    monkeypatch.setattr(memory, "_GROUPS", tmp_path)
    monkeypatch.setattr(memory, "_GROUPS_OF_PROCESS", tmp_path / "cgroup")
    (tmp_path / "cgroup").write_text(f"{line}\n")
    for folder, files in groups.items():
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (tmp_path / folder / f"memory.{name}").write_text(text)
    assert memory.free_bytes() == expected


def test_the_gpu_that_is_here_is_spoken_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All weights of 8 billion parameters: 16 bytes of each at the update on one device, 2 on eight."""
    words = ["experiment=rwku", f"{MODEL}.path={put_config(tmp_path)}"]
    one, eight = (composed(2, *words, f"trainer.n_gpus_per_node={devices}") for devices in (1, 8))
    assert list(memory.warnings(one)) == []
    monkeypatch.setattr(memory, "card_bytes", lambda: 85.0 * GB)
    (line,) = memory.warnings(one)
    assert line.startswith("the GPU here has 85.0 GB, which is too small by what is computed, because the up")
    assert list(memory.warnings(eight)) == []
    about, table = said(one)
    assert "the card that is here (85.0 GB) is too small" in about[-1]
    assert table == [
        ["nothing"] * 4,
        ["full_1gpu", "full_1gpu", "full_1gpu", "as set"],
        ["full_1gpu", "full_2gpu", "as set", "as set"],
    ]
    page = (Path(__file__).resolve().parents[2] / "docs" / "gpu.md").read_text("utf-8")
    assert "\n".join(f"    {line}" for line in memory.said(one)[-4:]) in page


QWEN3_4B = {**LLAMA3_CONFIG, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
QWEN3_4B |= {"vocab_size": 151936, "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36}
QWEN3_4B |= {"head_dim": 128, "tie_word_embeddings": True}
LLAMA32_3B = {"hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28}
LLAMA32_3B |= {"num_attention_heads": 24, "tie_word_embeddings": True}


@pytest.mark.parametrize(
    ("shape", "cards", "model", "enough", "short"),
    [
        ("lora_24gb", 24, QWEN3_4B, 24, None),
        ("lora_24gb", 24, LLAMA32_3B, 24, None),
        ("lora_24gb", 24, {}, 80, "the update needs"),
        ("full_2gpu", 80, {}, 80, None),
        ("full_1gpu", 80, {}, 40, None),
    ],
)
def test_the_settings_for_fewer_cards_fit_theirs(
    shape: str, cards: int, model: dict[str, Any], enough: int, short: str | None, tmp_path: Path
) -> None:
    """In both stages; stage 1 of full_2gpu needs the second GPU alone."""
    folder = put_config(tmp_path, **model)
    run = composed(2, "experiment=rwku", f"+common={shape}", f"{MODEL}.path={folder}")
    sizes = memory.model_sizes(run)
    assert sizes is not None
    found = memory.shortage(sizes, memory.of_run(run), cards * GB)
    assert (found or "").startswith(short or "")
    assert (found is None) == (short is None)
    assert memory.shortage(sizes, memory.of_run(run), enough * GB) is None
    first_shape = {"lora_24gb": "+common=lora_1gpu", "full_2gpu": "trainer.n_gpus_per_node=2"}
    words = first_shape.get(shape, f"+common={shape}")
    first = composed(1, "experiment=rwku", words, f"model.path={folder}")
    assert memory.shortage(sizes, memory.of_run(first), enough * GB) is None


def test_weights_that_stay_on_the_host_need_a_large_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 bytes of each weight there, and 2 of the reference's."""
    monkeypatch.setattr(memory, "card_bytes", lambda: 80.0 * GB)
    monkeypatch.setattr(memory, "free_bytes", lambda: (60 * GB, 64 * GB))
    config = composed(2, "experiment=rwku", "+common=full_1gpu", f"{MODEL}.path={put_config(tmp_path)}")
    (line,) = memory.warnings(config)
    assert "need 145 GB of this machine's memory, which has 64 GB" in line
    assert "memory of a machine's processor, computed and not measured: 144.5 GB" in memory.said(config)[0]


def test_a_group_of_rows_passes_together_in_unlearn() -> None:
    """And nodes that each hold a copy of the weights share it among their own devices."""
    static = ["data.use_dynamic_bsz=false", "data.micro_batch_size_per_gpu=2", "model.path=x"]
    config = composed(1, "experiment=rwku", *static)
    assert memory.of_run(config).update_tokens == 2 * 1024
    of_method = memory.of_run(config, group=3, frozen=2)
    assert (of_method.update_tokens, of_method.reference) == (3 * 2 * 1024, 2)
    nodes = composed(2, "experiment=rwku", f"{MODEL}.path=x", "trainer.nnodes=2")
    assert memory.of_run(nodes).devices == 4
