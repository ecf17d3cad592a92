"""The report's page in a real browser: it works offline, on a phone, without JavaScript and by keyboard."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from recipe.rerule.evaluation import tidy
from recipe.rerule.report import main
from tests.data_prep.raw_files import put_lines
from tests.golden.inputs import put_json
from tests.report.made import response

MODELS = ("base", "rule", "rerule")
PROBES, PAGE = 90, 20


def answers() -> Iterator[dict[str, Any]]:
    """Records of 90 probes and three models, drawn by a fixed seed; one with HTML in it."""
    draw = random.Random(5)
    for model in MODELS:
        for index in range(PROBES):
            forget = index < 60
            refused = model != "base" and draw.random() < (0.7 if forget else 0.1)
            text = "I don't know." if refused else draw.choice(["Paris", "Rome", "<b>Oslo</b> & co"])
            side, subject = ("forget", "Ada Quill") if forget else ("retain", "Ben Orr")
            labels = {"kind": ("qa", "fb", "aa")[index % 3], "side": side, "subject": subject}
            labels["family"] = "role_play" if index % 6 == 2 else "direct"
            yield response(model, index, text, prompt=f"Where was number {index} born?", **labels)


RECORDS = list(answers())
OF = {model: [record for record in RECORDS if record["model"] == model] for model in MODELS}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a report with results, a run with replay from the third step on, and RECORDS."""
    folder = tmp_path_factory.mktemp("report")
    evaluation = folder / "evaluation"
    results = {
        model: {"forget/recall": 1.0 - 0.4 * place, "retain/recall": 0.9, "forget/refusal_rate": 0.3 * place}
        for place, model in enumerate(MODELS)
    }
    anchors = {"always refuses, naming the target": {"forget/recall": 0.05, "retain/recall": 0.04}}
    for name, content in (("results", results), ("anchors", anchors), ("meta", {"benchmark": "world"})):
        put_json(evaluation / f"{name}.json", content)
    tidy.write(evaluation, tidy.from_rows(RECORDS))
    steps = ({"step": n, "data": {"reward/forget/mean": n / 4, "replay/updates": n > 2}} for n in range(1, 5))
    put_lines(folder / "run/records/metrics.jsonl", steps)
    arguments = ["--results", f"{evaluation}", "--run", f"rerule={folder / 'run'}"]
    assert main([*arguments, "--out", f"{folder / 'out'}"]) == 0
    return folder / "out" / "report.html"


@pytest.fixture
def opened(chromium: Browser, report: Path) -> Iterator[Page]:
    """The page on a desktop, its probes unpacked; at the end nothing was complained of or asked for."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    complaints: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(report.as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")
    yield page
    assert complaints == []
    assert [url for url in requests if not url.startswith("data:")] == [report.as_uri()]
    context.close()


def shown(page: Page) -> int:
    """How many probes the browser says fit."""
    return int(page.locator(".status").inner_text().split()[0])


def test_tables_figures_and_controls_are_there(opened: Page, report: Path) -> None:
    assert report.stat().st_size < 5_000_000
    names = opened.locator("table.report").evaluate_all("tables => tables.map(t => t.ariaLabel)")
    assert {"Results", "All metrics", "Share of hard groups", "Cost of replay"} <= set(names)
    first = opened.locator("table.report").first.inner_text()
    assert "always refuses" in first
    assert "0.600" in first
    images = opened.locator("figure img")
    sizes = images.evaluate_all("all => all.map(image => [image.naturalWidth, image.alt.length])")
    assert len(sizes) == 3
    assert all(width > 1000 and alt > 40 for width, alt in sizes)
    unnamed = opened.locator("select, input, button").evaluate_all(
        "all => all.filter(one => !one.labels?.length && !one.ariaLabel && !one.textContent.trim()).length"
    )
    assert unnamed == 0


FILTERS: dict[tuple[str, str], Callable[[tuple[dict[str, Any], ...]], bool]] = {
    ("section", "retain"): lambda of: of[0]["side"] == "retain",
    ("mode", "fb"): lambda of: of[0]["kind"] == "fb",
    ("family", "role_play"): lambda of: of[0]["family"] == "role_play",
    ("subject", "Ben Orr"): lambda of: of[0]["subject"] == "Ben Orr",
    ("refused", "model:rerule"): lambda of: of[2]["refused"],
    ("refused", "none:"): lambda of: not any(one["refused"] for one in of),
    ("text", "NUMBER 17 born"): lambda of: of[0]["probe"] == 17,
    ("text", "oslo"): lambda of: any("Oslo" in one["response"] for one in of),
    ("text", "nowhere to be found"): lambda of: False,
    ("changed", ""): lambda of: of[0]["response"] != of[2]["response"],
}
"""A control and its value, and which probes then fit, by their records of MODELS."""


def test_filters_filter_as_the_records_say(opened: Page) -> None:
    for (control, value), fits in FILTERS.items():
        place = opened.locator(f"[data-role={control}]")
        if control == "changed":
            place.check()
        elif control == "text":
            place.fill(value)
        else:
            place.select_option(value)
        assert shown(opened) == sum(map(fits, zip(*OF.values(), strict=True))), (control, value)
        if control != "changed":
            opened.get_by_role("button", name="Show all probes").click()
            opened.locator(".status", has_text="90 of").wait_for()
    opened.locator("[data-role=first]").select_option("rule")
    pairs = zip(OF["rule"], OF["rerule"], strict=True)
    assert shown(opened) == sum(one["response"] != other["response"] for one, other in pairs)


def test_answers_are_text_and_pages_turn_by_keyboard(opened: Page) -> None:
    first = opened.locator(".probes > li").first
    assert "Where was number 0 born?" in first.inner_text()
    assert "gold: Paris" in first.inner_text()
    assert first.locator("dt").all_inner_texts() == list(MODELS)
    for answer, model in zip(first.locator("dd").all_inner_texts(), MODELS, strict=True):
        assert answer.startswith(OF[model][0]["response"])
        assert ("refuses" in answer) == OF[model][0]["refused"]
    assert opened.locator(".probes > li").count() == PAGE
    above = opened.get_by_role("navigation", name="Pages of probes, above")
    assert above.get_by_role("button", name="Previous").is_disabled()
    above.get_by_role("button", name="Next").focus()
    for _ in range(4):
        opened.keyboard.press("Enter")
    assert "page 5 of 5" in above.inner_text()
    assert opened.locator(".probes > li").count() == PROBES - 4 * PAGE
    # The button that was pressed can go no further: the focus is on its neighbour, not lost.
    assert opened.evaluate("document.activeElement.textContent") == "Previous"
    assert opened.locator(".status").get_attribute("role") == "status"
    opened.get_by_label("Text").fill("<b>oslo")
    assert "page 1 of" in above.inner_text()
    assert opened.locator(".probes b").count() == 0
    assert shown(opened) > 0
    opened.get_by_role("checkbox", name="rule", exact=True).uncheck()
    assert opened.locator(".probes > li").first.locator("dt").all_inner_texts() == ["base", "rerule"]


def test_a_phone_print_and_a_browser_without_javascript(chromium: Browser, report: Path) -> None:
    page = chromium.new_page(viewport={"width": 375, "height": 812})
    page.goto(report.as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")
    page.locator("details").evaluate_all("all => all.forEach(one => one.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") == 375
    page.emulate_media(media="print")
    assert not page.locator(".browser").is_visible()
    assert page.locator("table.report").first.is_visible()
    page.close()
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report.as_uri())
    assert page.locator("table.report").first.is_visible()
    assert page.locator("figure img").first.is_visible()
    assert not page.locator(".browser").is_visible()
    assert page.get_by_text("needs JavaScript").is_visible()
    context.close()
