"""The projected step: one part by hand, and the table of docs/gpu.md."""

from pathlib import Path

import pytest

from benchmarks import projected_step

PAGE = Path(__file__).resolve().parents[2] / "docs" / "gpu.md"


def test_an_update_by_hand_and_the_table_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    """64 rows of 170 tokens on each of four GPUs, four forward passes' worth, at 35 % of 312 TFLOP/s."""
    flops = 4 * 64 * 170 * 2 * (8.03e9 + 32 * 4096 * 170)
    assert projected_step.parts("A100", 4)["on-policy update"] == pytest.approx(flops / (0.35 * 312e12))
    projected_step.main()
    assert capsys.readouterr().out in PAGE.read_text("utf-8")
