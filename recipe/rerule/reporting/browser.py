"""HTML of a probe browser: its controls, and its data packed into the page; assets/browser.js fills it."""

from __future__ import annotations

import base64
import json
import zlib
from html import escape
from typing import Any

from recipe.rerule.reporting.document import Browser

_SELECTS = (
    ("section", "Side"),
    ("mode", "Mode"),
    ("family", "Family"),
    ("subject", "Subject"),
    ("refused", "Refusal"),
)
_PAGER = (
    '<nav class="pager" data-role="{place}" aria-label="Pages of probes, {place}">'
    '<button type="button" data-turn="-1">Previous</button>'
    '<span data-role="where"></span>'
    '<button type="button" data-turn="1">Next</button></nav>'
)


def browser_html(browser: Browser) -> str:
    """The browser, hidden until the script has filled it; without one a line says where the answers are."""
    name = escape(browser.name)
    return "\n".join(
        [
            f'<p class="small">{escape(browser.note)}</p>',
            '<p class="small print-only">The probe browser is left out in print.</p>',
            '<p class="small">The browser over single probes needs JavaScript; every answer is also in '
            "responses.jsonl of the evaluation.</p>",
            f'<div class="browser" id="{name}" hidden>',
            _filters(),
            '<p class="status" role="status" data-role="status"></p>',
            _PAGER.format(place="above"),
            '<ol class="probes" data-role="probes"></ol>',
            _PAGER.format(place="below"),
            "</div>",
            f'<script type="text/plain" id="{name}-data">{pack(browser.data)}</script>',
        ]
    )


def _filters() -> str:
    selects = "".join(
        f'<label>{label}<select data-role="{role}"></select></label>\n' for role, label in _SELECTS
    )
    return (
        '<form class="filters" data-role="filters" role="search" aria-label="Filter the probes">\n'
        f"{selects}"
        '<label>Text<input type="search" data-role="text" autocomplete="off"></label>\n'
        '<fieldset data-role="comparison"><legend>Changed</legend>'
        '<label><input type="checkbox" data-role="changed"> only answers that differ between</label>'
        '<select data-role="first" aria-label="first model"></select> and '
        '<select data-role="second" aria-label="second model"></select></fieldset>\n'
        '<fieldset data-role="models"><legend>Models shown</legend></fieldset>\n'
        '<div><button type="reset">Show all probes</button></div>\n</form>'
    )


def pack(data: Any) -> str:
    """JSON, deflated (zlib), in base64."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode("utf-8", "replace"), 9)).decode("ascii")


def unpack(text: str) -> Any:
    """What `pack` was given."""
    return json.loads(zlib.decompress(base64.b64decode(text)))
