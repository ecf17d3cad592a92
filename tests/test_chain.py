"""Commands one after the other: the line of progress, and what a reader is shown of a log."""

import pytest

from recipe.rerule import chain


def test_the_line_of_progress(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the output is no terminal it comes once a minute; the time left is by hand."""
    clock = [0.0]
    monkeypatch.setattr(chain.time, "monotonic", lambda: clock[0])
    progress = chain.Progress(set())

    def at(seconds: float, text: str) -> str:
        clock[0] = seconds
        progress.show(text.encode())
        return capsys.readouterr().out.removesuffix("\n")

    assert at(59, "loading\n") == ""
    assert at(60, "loading\n") == "  60 s"
    assert at(100, "\x1b[36m(Runner pid=1)\x1b[0m step 1/10  forget: rew") == ""
    assert at(110, "ard 0.5\n") == ""
    step = "step 3/10  forget: reward 0.6"
    assert at(130, f"{step}\n") == f"  130 s, about 70 s left; {step}"
    told = "stage 1: 30 steps, batch 8, 21 rows"
    assert at(131, f"stage 1: nothing wrong\n{told}\n") == f"  {told}"
    clock[0] = 135
    progress.show(b"warning: too fast\n\x1b[36m(Runner pid=1)\x1b[0m warning: too fast\n")
    assert capsys.readouterr().err == "warning: too fast\n"
    assert at(190, "evaluate: 12 of 57 requests, 30 s, about 90 s left; base\n") == (
        "  190 s, about 90 s left; evaluate: 12 of 57 requests"
    )
    assert at(290, "loading\n") == "  290 s; evaluate: 12 of 57 requests"  # that time is over
    progress = chain.Progress(set())
    assert at(300, "Epoch 1/4:  50%|#####     | 1/2\r") == ""
    later = at(400, "Epoch 2/4:   0%|          | 0/2 step:2 - \r")
    assert later == "  110 s, about 600 s left; Epoch 2/4:   0%"
    bar = "model:  24%|##4       | 176/737 [00:03<{}, 57.60answer/s]\r"
    assert at(460, bar.format("?")) == "  170 s, about 540 s left; Epoch 2/4:   0%"
    assert at(520, bar.format("1:02:05")) == "  230 s, about 3725 s left; model:  24%"
