"""A headless Chromium."""

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

_FLAGS = "--disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-sync"
_FLAGS += " --disable-component-update"


@pytest.fixture(scope="module")  # Playwright runs an event loop, beside which no test can run one of its own
def chromium() -> Iterator[Browser]:
    """The machine's own Chromium; without one tests are skipped, or fail if RERULE_REQUIRE_CHROMIUM is 1."""
    names = ("chromium", "chromium-browser", "google-chrome")
    executable = next(filter(None, map(shutil.which, names)), None)
    if executable is None:
        missing = "no Chromium; apt-get install chromium or brew install --cask chromium"
        end = pytest.fail if os.environ.get("RERULE_REQUIRE_CHROMIUM") == "1" else pytest.skip
        end(missing)
    with sync_playwright() as playwright:
        # Playwright gives each launch an empty profile of its own, and removes it.
        browser = playwright.chromium.launch(
            executable_path=executable, args=_FLAGS.split(), chromium_sandbox=False
        )
        yield browser
        browser.close()
