"""The report's page in a real browser: it works offline, on a phone, without JavaScript and by keyboard."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Request

from recipe.rerule.evaluation import tidy
from recipe.rerule.report import main

MODELS = ("base", "rule", "rerule")
PROBES, PAGE = 90, 20
FIVE_MEGABYTES = 5_000_000


def answers() -> list[dict[str, Any]]:
    """Records of 90 probes and three models, drawn by a fixed seed; one with HTML in it."""
    draw = random.Random(5)
    records = []
    for model in MODELS:
        for index in range(PROBES):
            forget = index < 60
            refused = model != "base" and draw.random() < (0.7 if forget else 0.1)
            text = "I don't know." if refused else draw.choice(["Paris", "Rome", "<b>Oslo</b> & co"])
            records.append(
                {
                    "model": model,
                    "probe": index,
                    "side": "forget" if forget else "retain",
                    "kind": ("qa", "fb", "aa")[index % 3],
                    "fact": f"probe {index}",
                    "sample": 0,
                    "family": "role_play" if index % 6 == 2 else "direct",
                    "subject": "Ada Quill" if forget else "Ben Orr",
                    "prompt": f"Where was number {index} born?",
                    "golds": ["Paris"],
                    "response": text,
                    "rouge_l": float(text == "Paris"),
                    "refused": refused,
                }
            )
    return records


RECORDS = answers()


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a report with results, intervals, tests, a run and answers."""
    folder = tmp_path_factory.mktemp("report")
    evaluation, run = write_evaluation(folder / "evaluation"), folder / "run"
    (run / "records").mkdir(parents=True)
    steps = [  # replay from the third step on
        {"step": step, "data": {"reward/forget/mean": step / 4, "replay/updates": step > 2}}
        for step in range(1, 5)
    ]
    lines = "".join(json.dumps(step) + "\n" for step in steps)
    (run / "records" / "metrics.jsonl").write_text(lines)
    arguments = ["--results", f"{evaluation}", "--run", f"rerule={run}", "--out", f"{folder / 'out'}"]
    assert main(arguments) == 0
    return folder / "out" / "report.html"


def write_evaluation(folder: Path) -> Path:
    """An evaluation of MODELS with intervals, a constant answer and RECORDS."""
    folder.mkdir()
    results = {
        model: {"forget/recall": 1.0 - 0.4 * place, "retain/recall": 0.9, "forget/refusal_rate": 0.3 * place}
        for place, model in enumerate(MODELS)
    }
    files = {
        "results": results,
        "anchors": {"always refuses, naming the target": {"forget/recall": 0.05, "retain/recall": 0.04}},
        "intervals": {
            model: {metric: [n - 0.05, n + 0.05] for metric, n in row.items()}
            for model, row in results.items()
        },
        "meta": {"benchmark": "world", "conventions": {"rouge_l": "recall"}, "command": "evaluate"},
    }
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    tidy.write(folder, tidy.from_rows(RECORDS))
    return folder


@pytest.fixture
def opened(chromium: Browser, report: Path) -> Iterator[Page]:
    """The page on a desktop, its probes unpacked; at the end nothing was complained of or asked for."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    complaints: list[str] = []
    requests: list[Request] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request))
    page.goto(report.as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")
    yield page
    assert complaints == []
    assert {request.url.split(":")[0] for request in requests} <= {"file", "data"}
    assert [request.url for request in requests if request.url.startswith("file:")] == [report.as_uri()]
    context.close()


def shown(page: Page) -> int:
    """How many probes the browser says fit."""
    return int(page.locator(".status").inner_text().split()[0])


def choose(page: Page, control: str, value: str) -> None:
    page.locator(f"[data-role={control}]").select_option(value)


def of_model(model: str) -> list[dict[str, Any]]:
    return [record for record in RECORDS if record["model"] == model]


def test_tables_and_figures_are_there_and_every_control_has_a_name(opened: Page, report: Path) -> None:
    assert report.stat().st_size < FIVE_MEGABYTES
    names = opened.locator("table.report").evaluate_all("tables => tables.map(t => t.ariaLabel)")
    assert {"Results", "All metrics", "Share of hard groups", "Cost of replay"} <= set(names)
    first = opened.locator("table.report").first.inner_text()
    assert "always refuses" in first
    assert "0.600" in first
    images = opened.locator("figure img")
    assert images.count() == 3
    sizes = images.evaluate_all("all => all.map(image => [image.naturalWidth, image.alt.length])")
    assert all(width > 1000 and alt > 40 for width, alt in sizes)
    unnamed = opened.locator("select, input, button").evaluate_all(
        "all => all.filter(one => !one.labels?.length && !one.ariaLabel && !one.textContent.trim()).length"
    )
    assert unnamed == 0


def test_filters_filter_as_the_records_say(opened: Page) -> None:
    base, rerule = of_model("base"), of_model("rerule")
    refusing = {r["probe"] for r in RECORDS if r["refused"]}
    cases = [
        ({"section": "retain"}, 30),
        ({"section": "retain", "mode": "fb"}, sum(r["side"] == "retain" and r["kind"] == "fb" for r in base)),
        ({"family": "role_play"}, sum(r["family"] == "role_play" for r in base)),
        ({"subject": "Ben Orr"}, 30),
        ({"refused": "model:rerule"}, sum(r["refused"] for r in rerule)),
        ({"refused": "none:"}, PROBES - len(refusing)),
    ]
    assert shown(opened) == PROBES
    for choices, count in cases:
        for control, value in choices.items():
            choose(opened, control, value)
        assert shown(opened) == count, choices
        opened.get_by_role("button", name="Show all probes").click()
        opened.locator(".status", has_text=re.compile("^90 of")).wait_for()


def test_changed_compares_two_models_and_search_looks_at_prompts_golds_and_answers(opened: Page) -> None:
    changed = opened.get_by_label("only answers that differ between")
    changed.check()
    differing = {
        (a, b): sum(x["response"] != y["response"] for x, y in zip(of_model(a), of_model(b), strict=True))
        for a, b in (("base", "rerule"), ("rule", "rerule"))
    }
    assert 0 < differing["rule", "rerule"] != differing["base", "rerule"]
    assert shown(opened) == differing["base", "rerule"]
    choose(opened, "first", "rule")
    assert shown(opened) == differing["rule", "rerule"]
    changed.uncheck()
    oslo = len({r["probe"] for r in RECORDS if "Oslo" in r["response"]})
    for text, count in (("NUMBER 17 born", 1), ("oslo", oslo), ("nowhere to be found", 0)):
        opened.get_by_label("Text").fill(text)
        assert shown(opened) == count
    assert opened.locator(".probes > li").count() == 0


def test_answers_stand_side_by_side_and_are_text_not_html(opened: Page) -> None:
    first = opened.locator(".probes > li").first
    assert "Where was number 0 born?" in first.inner_text()
    assert "gold: Paris" in first.inner_text()
    assert first.locator("dt").all_inner_texts() == list(MODELS)
    expected = [of_model(model)[0] for model in MODELS]
    for answer, record in zip(first.locator("dd").all_inner_texts(), expected, strict=True):
        assert answer.startswith(record["response"])
        assert ("refuses" in answer) == record["refused"]
    opened.get_by_label("Text").fill("<b>oslo")
    assert opened.locator(".probes b").count() == 0
    assert shown(opened) > 0
    opened.get_by_role("checkbox", name="rule", exact=True).uncheck()
    assert opened.locator(".probes > li").first.locator("dt").all_inner_texts() == ["base", "rerule"]


def test_pages_turn_by_keyboard_and_are_announced(opened: Page) -> None:
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
    choose(opened, "section", "forget")
    assert "page 1 of 3" in above.inner_text()


def test_a_phone_needs_no_sideways_scrolling_and_print_leaves_the_probe_browser_out(
    chromium: Browser, report: Path
) -> None:
    page = chromium.new_page(viewport={"width": 375, "height": 812})
    page.goto(report.as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")
    page.locator("details").evaluate_all("all => all.forEach(one => one.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") == 375
    sources = page.locator("figure img").evaluate_all("all => all.map(image => image.naturalWidth)")
    assert all(width < 700 for width in sources)  # the narrow form, whose letters keep their size
    page.emulate_media(media="print")
    assert not page.locator(".browser").is_visible()
    assert page.locator("table.report").first.is_visible()
    page.close()


def test_tables_and_figures_are_there_without_javascript(chromium: Browser, report: Path) -> None:
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report.as_uri())
    assert page.locator("table.report").first.is_visible()
    assert page.locator("figure img").first.is_visible()
    assert not page.locator(".browser").is_visible()
    assert page.get_by_text("needs JavaScript").is_visible()
    context.close()


def column(page: Page, name: str, place: int) -> list[str]:
    """Texts of a column of the table of that name, in the order on the page, without intervals."""
    cells = page.get_by_role("table", name=name, exact=True).locator(f"tbody tr > :nth-child({place})")
    return [text.split("\n")[0] for text in cells.all_inner_texts()]


def test_a_heading_sorts_the_rows_of_each_part_of_its_table(opened: Page) -> None:
    name = "Cost of replay"
    table = opened.get_by_role("table", name=name, exact=True)
    table.evaluate(
        """table => {
            const rows = [["a", 2], ["b", null], ["c", 10], ["d", 2]];
            const body = table.tBodies[0];
            body.replaceChildren(...rows.map(([lead, value]) => {
                const row = document.createElement("tr");
                row.append(document.createElement("th"), document.createElement("td"));
                row.cells[0].textContent = lead;
                row.cells[1].textContent = value ?? "–";
                if (value !== null) row.cells[1].dataset.value = value;
                return row;
            }));
        }"""
    )
    heading = table.locator("thead tr").last.locator("th").nth(1)
    button = heading.get_by_role("button")
    found = []
    for _ in range(3):
        button.focus()
        opened.keyboard.press("Enter")
        found.append(("".join(column(opened, name, 1)[:4]), heading.get_attribute("aria-sort")))
    assert found == [("cadb", "descending"), ("adcb", "ascending"), ("abcd", None)]
