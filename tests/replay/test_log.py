"""What is logged of a step, by hand."""

import json

from recipe.rerule.replay import StepLog, offer_metrics
from recipe.rerule.replay.log import Departure, Draw, Key
from tests.replay.groups import make_group

STEP = StepLog(
    step=9,
    threshold=0.5,
    offered=[make_group(3, 9, rewards=[0.0, 0.5]), make_group(4, 9, rewards=[1.0, 1.0])],
    stored=[Key(3, 9)],
    departures=[
        Departure(Key(1, 2), "staleness"),
        Departure(Key(5, 6), "capacity"),
        Departure(Key(7, 6), "capacity"),
    ],
    draws=[
        Draw([make_group(3, 9), make_group(8, 4, advantages=[0.0, 0.0])], staleness=[0, 5], reuse=[0, 1]),
        Draw([make_group(8, 4, lengths=[1, 9], prompt_length=5)], staleness=[5], reuse=[2]),
    ],
    size=11,
    gate_open=True,
)


def test_metrics_of_a_step_by_hand() -> None:
    assert STEP.metrics() == {
        "replay/size": 11.0,
        "replay/threshold": 0.5,
        "replay/admitted": 1.0,
        "replay/evicted": 3.0,
        "replay/evicted/staleness": 1.0,
        "replay/evicted/capacity": 2.0,
        "replay/gate_open": 1.0,
        "replay/hard_share": 0.5,
        "replay/hard_share/forget": 0.5,
        "replay/hard_share/forget/qa": 0.5,
        "replay/zero_signal_share": 0.5,
        "replay/drawn_groups": 3.0,
        "replay/drawn_zero_signal": 1.0,
        "replay/drawn_tokens": 2 * (2 * 3 + 2 + 3) + (2 * 5 + 1 + 9.0),
        "replay/staleness_min": 0.0,
        "replay/staleness_mean": 10 / 3,
        "replay/staleness_max": 5.0,
        "replay/reuse_min": 0.0,
        "replay/reuse_mean": 1.0,
        "replay/reuse_max": 2.0,
    }


def test_the_record_of_a_step_by_hand_survives_json() -> None:
    assert json.loads(json.dumps(STEP.record())) == {
        "step": 9,
        "threshold": 0.5,
        "gate_open": True,
        "size": 11,
        "stored": [[3, 9]],
        "evicted": [[1, 2, "staleness"], [5, 6, "capacity"], [7, 6, "capacity"]],
        "drawn": [[[3, 9], [8, 4]], [[8, 4]]],
    }


def test_the_shares_of_offered_groups_count_by_side_and_mode() -> None:
    groups = [
        make_group(0, rewards=[0.0, 0.0], advantages=[0.0, 0.0]),
        make_group(1, mode="fb", rewards=[0.0, 1.0], advantages=[-1.0, 1.0]),
        make_group(2, mode="fb", rewards=[1.0, 1.0], advantages=[0.0, 0.0]),
        make_group(3, side="retain", rewards=[1.0, 1.0], advantages=[0.0, 0.0]),
    ]
    assert offer_metrics(groups, threshold=0.6) == {
        "replay/threshold": 0.6,
        "replay/hard_share": 2 / 4,
        "replay/hard_share/forget": 2 / 3,
        "replay/hard_share/forget/qa": 1.0,
        "replay/hard_share/forget/fb": 1 / 2,
        "replay/hard_share/retain": 0.0,
        "replay/hard_share/retain/qa": 0.0,
        "replay/zero_signal_share": 3 / 4,
    }


def test_what_nothing_was_counted_for_is_left_out() -> None:
    counts = ("size", "admitted", "evicted", "gate_open", "drawn_groups", "drawn_zero_signal", "drawn_tokens")
    expected = {"replay/threshold": 0.6, **{f"replay/{name}": 0.0 for name in counts}}
    assert StepLog(step=1, threshold=0.6, offered=[]).metrics() == expected
