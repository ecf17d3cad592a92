from __future__ import annotations

import json

from recipe.rerule.replay import StepLog, offer_metrics
from recipe.rerule.replay.log import Departure, Draw, Key
from tests.replay.groups import make_group


def test_offer_metrics_count_hard_groups_by_side_and_mode_and_groups_without_signal() -> None:
    groups = [
        make_group(0, side="forget", mode="qa", rewards=[0.0, 0.0], advantages=[0.0, 0.0]),
        make_group(1, side="forget", mode="fb", rewards=[0.0, 1.0], advantages=[-1.0, 1.0]),
        make_group(2, side="forget", mode="fb", rewards=[1.0, 1.0], advantages=[0.0, 0.0]),
        make_group(3, side="retain", mode="qa", rewards=[1.0, 1.0], advantages=[0.0, 0.0]),
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


def test_shares_of_no_groups_are_left_out() -> None:
    assert offer_metrics([], threshold=0.6) == {"replay/threshold": 0.6}
    assert "replay/hard_share/retain" not in offer_metrics([make_group(side="forget")], threshold=0.6)


def a_step() -> StepLog:
    return StepLog(
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
    assert a_step().metrics() == {
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


def test_record_of_a_step_by_hand_survives_json() -> None:
    assert json.loads(json.dumps(a_step().record())) == {
        "step": 9,
        "threshold": 0.5,
        "gate_open": True,
        "size": 11,
        "stored": [[3, 9]],
        "evicted": [[1, 2, "staleness"], [5, 6, "capacity"], [7, 6, "capacity"]],
        "drawn": [[[3, 9], [8, 4]], [[8, 4]]],
    }


def test_fresh_log_holds_nothing() -> None:
    assert StepLog(step=1, threshold=0.0, offered=[]).metrics() == {
        "replay/size": 0.0,
        "replay/threshold": 0.0,
        "replay/admitted": 0.0,
        "replay/evicted": 0.0,
        "replay/gate_open": 0.0,
        "replay/drawn_groups": 0.0,
        "replay/drawn_zero_signal": 0.0,
        "replay/drawn_tokens": 0.0,
    }
