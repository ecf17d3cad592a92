"""The cost model against numbers worked by hand."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks import replay_overhead
from benchmarks.replay_overhead import (
    MUSE,
    RWKU,
    TOFU,
    Assumptions,
    Cluster,
    Model,
    Setting,
    Step,
    corners,
    first_replay_step,
    generation_seconds,
    implied_update_seconds,
    main,
    measured,
    needed_hard_share,
    overhead,
    replay_steps,
    rounding_interval,
    run_hours,
    step,
)

# Round numbers: 1e9 parameters, no layers, so no attention and no cache; 2 GPUs of 1e12 FLOP/s and 1e11
# bytes/s that work at full rate; 4 groups of 2 rollouts, 10 + 40 tokens a row, two micro-batches a GPU.
MODEL = Model(1e9, layers=0, hidden=1, kv_width=1)
SMALL = Setting(
    name="small",
    model=MODEL,
    steps=10,
    min_groups=8,
    warmup_steps=4,
    hard_share=0.5,
    prompt_tokens=10,
    response_tokens=40,
    response_limit=100,
    micro_batch=2,
    log_prob_micro_batch=4,
    validation_rows=8,
    groups=4,
    rollouts=2,
    replayed_groups=4,
)
CLUSTER = Cluster(
    gpus=2, flops=1e12, memory_bandwidth=1e11, memory=80e9, link=1e12, network=1e9, weight_sync=1e9
)
GIVEN = Assumptions(
    utilisation=1,
    decode_efficiency=1,
    longest_over_mean=2,
    replay_factor=0.5,
    bookkeeping_share=0.01,
    other_seconds=1,
    startup_seconds=100,
)


def test_a_step_by_hand() -> None:
    # 4 rows a GPU x 50 tokens x 2e9 FLOPs: 0.4 s a forward pass, 4 of these a training pass. Decoding: the
    # longest response, 80 tokens, reads 2e9 bytes each time: 1.6 s. 2e9 bytes to the engine at 1e9 a second.
    parts = step(SMALL, CLUSTER, GIVEN)
    rule = 1.6 + 0.4 + 0.4 + 1.6 + 2.0 + 1.0 + 1.6
    assert parts.rule == pytest.approx(rule)
    hand = Step(1.6, 0.4, 0.4, 1.6, 2.0, 1.0, 1.6, replay=0.5 * 2.0 + 0.01 * rule)
    assert asdict(parts) == pytest.approx(asdict(hand))


def test_one_micro_batch_needs_no_pass_for_log_probs() -> None:
    parts = step(replace(SMALL, micro_batch=4), CLUSTER, GIVEN)
    assert parts.replay == pytest.approx(0.5 * 1.6 + 0.01 * 8.6)


def test_between_nodes_the_network_decides() -> None:
    # Half of 2e9 bytes come from the other GPU, at 1e9 a second: 1 s a transfer. One log-prob micro-batch,
    # two training micro-batches of three transfers each.
    parts = step(SMALL, replace(CLUSTER, gpus_per_node=1), GIVEN)
    assert (parts.old_log_probs, parts.update) == pytest.approx((1.0, 6.0))


def test_attention_and_cache_by_hand() -> None:
    model = Model(1e9, layers=10, hidden=1000, kv_width=500)
    # 100 tokens: 2e9 x 100, and 2 x 10 x 1000 x 100 x 100 of causal attention.
    assert model.forward_flops(100) == pytest.approx(2e11 + 2e8)
    assert model.kv_bytes == 2 * 2 * 10 * 500
    # 4 rows, 40 tokens each, on average over 10 + 20 cached ones of 20,000 bytes, beside 80 readings of 2e9.
    seconds = generation_seconds(replace(SMALL, model=model), CLUSTER, GIVEN, rows=8)
    assert seconds == pytest.approx((80 * 2e9 + 4 * 40 * 30 * 2e4) / 1e11)


def test_caches_that_do_not_fit_are_read_in_turns() -> None:
    # 0.6 x 5e9 - 2e9 leaves 1e9 bytes; 4 rows x 50 tokens x 2e7 bytes want 4e9: four turns of 40 tokens.
    model = Model(1e9, layers=10, hidden=1000, kv_width=500_000)
    seconds = generation_seconds(replace(SMALL, model=model), replace(CLUSTER, memory=5e9), GIVEN, rows=8)
    assert seconds == pytest.approx((4 * 40 * 2e9 + 4 * 40 * 30 * 2e7) / 1e11)


def test_many_rows_decode_at_the_speed_of_arithmetic() -> None:
    # 400 rows a GPU x 40 tokens x 2e9 FLOPs.
    assert generation_seconds(SMALL, CLUSTER, GIVEN, rows=800) == pytest.approx(32.0)


def test_hours_by_hand() -> None:
    # Half of 4 groups a step: 8 are there at step 4; replay at steps 5 to 10.
    assert (first_replay_step(SMALL), replay_steps(SMALL)) == (5, 6)
    rule, rerule = 100 + 10 * 8.6, 100 + 10 * 8.6 + 6 * 1.086
    twice = replace(SMALL, runs=2)
    assert run_hours(twice, CLUSTER, GIVEN) == pytest.approx((2 * rule / 3600, 2 * rerule / 3600))
    assert overhead(SMALL, CLUSTER, GIVEN) == pytest.approx(rerule / rule - 1)


def test_the_gate_of_the_papers_settings() -> None:
    assert [replay_steps(setting) for setting in (RWKU, MUSE, TOFU)] == [22, 161, 5]
    assert first_replay_step(replace(RWKU, hard_share=0.1)) == 32  # 100 groups at 3.2 a step
    assert first_replay_step(replace(MUSE, hard_share=0.5)) == 32  # 500 groups at 16 a step
    assert replay_steps(replace(TOFU, hard_share=0.2)) == 0  # 80 groups at 6.4 a step: step 13 of 11
    assert needed_hard_share(MUSE) == pytest.approx(500 / (32 * 27))


@pytest.mark.parametrize(
    ("hours", "interval"),
    [
        ((21.2, 22.3), (22.25 / 21.25 - 1, 22.35 / 21.15 - 1)),
        ((6.8, 7.1), (7.05 / 6.85 - 1, 7.15 / 6.75 - 1)),
        ((1.8, 2.0), (1.95 / 1.85 - 1, 2.05 / 1.75 - 1)),
    ],
)
def test_what_rounding_leaves_possible(hours: tuple[float, float], interval: tuple[float, float]) -> None:
    assert rounding_interval(hours) == pytest.approx(interval)


def test_seconds_of_a_replay_update_by_the_papers_hours() -> None:
    assert implied_update_seconds(RWKU) == pytest.approx((3960 / 220, 3600 / 220, 4320 / 220))
    assert implied_update_seconds(TOFU) == pytest.approx((720 / 5, 360 / 5, 1080 / 5))


def test_corners_are_all_combinations() -> None:
    held = list(corners(GIVEN))
    assert len(held) == len(set(held)) == 3 * 2 ** (len(replay_overhead.RANGES) - 1)
    assert GIVEN.response_scale in {corner.response_scale for corner in held}


def test_defaults_lie_in_their_ranges() -> None:
    for name, (low, high) in replay_overhead.RANGES.items():
        assert low < getattr(Assumptions(), name) < high


def run_folder(folder: Path, checkpointing: bool, own_pass: bool) -> Path:
    """Four steps in which replay takes 0.6 of the seconds of old log-probs and update, for as many tokens."""
    (folder / "records").mkdir(parents=True)
    data = {
        "timing_s/step": 10.0,
        "timing_s/old_log_prob": 1.0,
        "timing_s/update_actor": 4.0 + 3.0,
        "replay/seconds": 3.0,
        "replay/seconds/update": 3.0,
        "replay/bookkeeping_seconds": 0.04,
        "replay/drawn_tokens": 1000,
        "perf/total_num_tokens": 1000,
    }
    data |= {"replay/seconds/log_prob": 0.5} if own_pass else {}
    lines = [json.dumps({"step": number, "data": data}) for number in range(1, 5)]
    (folder / "records" / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    model = f"{{enable_gradient_checkpointing: {str(checkpointing).lower()}}}"
    (folder / "config.yaml").write_text(f"actor_rollout_ref: {{model: {model}}}\n")
    return folder


@pytest.mark.parametrize(
    ("checkpointing", "own_pass", "counted"),
    [(False, False, 3 / 4), (False, True, 1), (True, False, 4 / 5), (True, True, 1)],
)
def test_shares_of_a_recorded_run(
    tmp_path: Path, checkpointing: bool, own_pass: bool, counted: float
) -> None:
    shares = measured(run_folder(tmp_path / "run", checkpointing, own_pass))
    assert shares.keys() == set(replay_overhead.MEASURED)
    assert shares == pytest.approx({"replay_factor": 0.6 / counted, "bookkeeping_share": 0.004})


def test_a_run_without_replay_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="holds no recorded run with replay"):
        measured(tmp_path)
    run = run_folder(tmp_path / "rule", checkpointing=False, own_pass=False)
    records = (run / "records" / "metrics.jsonl").read_text().replace("1000", "0")
    (run / "records" / "metrics.jsonl").write_text(records)
    (run / "config.yaml").write_text("replay: {enable: false}\n")
    with pytest.raises(SystemExit, match="holds no recorded run with replay"):
        measured(run)


def test_the_last_line_is_json_and_options_are_taken(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = run_folder(tmp_path / "run", checkpointing=False, own_pass=True)
    main(["--run", str(run), "--utilisation", "0.25", "--bookkeeping-share", "0.003"])
    printed = capsys.readouterr().out
    figures = json.loads(printed.splitlines()[-1])
    given = figures["assumptions"]
    assert (given["utilisation"], given["replay_factor"], given["bookkeeping_share"]) == (0.25, 0.6, 0.003)
    assert [one["name"] for one in figures["checks"]] == ["RWKU", "MUSE-Books", "TOFU"]
    assert figures["checks"][0]["overhead"]["paper"] == pytest.approx(22.3 / 21.2 - 1)
    for one in figures["checks"]:
        low, high = one["overhead"]["range"]
        assert low <= one["overhead"]["predicted"] <= high
    assert [row["what"] for row in figures["longer_responses"]][1:] == [
        "1024 tokens",
        "4096 tokens",
        "16384 tokens",
    ]
    assert "RWKU: replay at 22 of 37 steps" in printed
