"""How every figure of the report looks, and how panels become an image.

Lines differ by style and marker as well as by colour, and gaps stay gaps.
"""

from __future__ import annotations

import functools
import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import font_manager
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from PIL import Image

from recipe.rerule.io import warn
from recipe.rerule.reporting.document import Figure

_DPI, _COLOURS = 160, 128
_WIDTH_INCHES, _PANEL_INCHES, _SINGLE_PANEL_INCHES = 7.6, 2.15, 3.0
_LEGEND_INCHES, _MARK_INCHES, _LETTER_INCHES = 0.22, 0.68, 0.075

# Okabe-Ito colours, told apart by readers with any colour vision; lines differ by style and marker besides.
LINES: tuple[dict[str, Any], ...] = (
    {"color": "#0072B2", "linestyle": "--", "marker": "o"},
    {"color": "#D55E00", "linestyle": "-", "marker": "s"},
    {"color": "#009E73", "linestyle": "-.", "marker": "^"},
    {"color": "#CC79A7", "linestyle": ":", "marker": "D"},
    {"color": "#7A5C00", "linestyle": (0, (6, 1.5, 1, 1.5, 1, 1.5)), "marker": "v"},
    {"color": "#000000", "linestyle": (0, (1, 2.5)), "marker": "X"},
)
MAX_LINES = len(LINES)
_OTHER_SCRIPTS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "WenQuanYi Zen Hei",
    "Noto Sans Arabic",
    "Noto Sans Thai",
)
_STYLE = {
    # Names of models and subjects may hold dollar signs.
    "text.parse_math": False,
    "font.family": ["DejaVu Sans", *sorted({*_OTHER_SCRIPTS} & {*font_manager.get_font_names()})],
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666666",
    "axes.labelcolor": "#333333",
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.5,
    "lines.markersize": 3.2,
    "legend.frameon": False,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
}


def figure(
    name: str,
    title: str,
    explanation: str,
    alt: str,
    panels: Sequence[Any],
    fill: Callable[[Axes, Any], None],
    x_label: str,
    columns: int = 2,
    height: float | None = None,
) -> Figure:
    """A figure with a panel for each of `panels`, which `fill` draws into its axes.

    Args:
        columns: how many panels stand next to each other at most.
        height: of a panel in inches.
    """
    across = min(columns, len(panels))
    down = -(-len(panels) // across)
    with plt.rc_context(_STYLE):
        canvas, grid = plt.subplots(down, across, squeeze=False, layout="constrained")
        for axes, panel in zip(grid.flat, panels, strict=False):
            fill(axes, panel)
        for axes in grid.flat[len(panels) :]:
            axes.set_visible(False)
        for axes in grid.flat[max(0, len(panels) - across) : len(panels)]:
            axes.set_xlabel(x_label)
        named: dict[str, Any] = {}
        for axes in grid.flat:
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                named.setdefault(label, handle)
        legend_rows = 0
        if named:
            widest = _MARK_INCHES + _LETTER_INCHES * max(map(len, named))
            columns_of_legend = min(len(named), max(1, int(_WIDTH_INCHES / widest)))
            canvas.legend(named.values(), named.keys(), loc="outside upper left", ncols=columns_of_legend)
            legend_rows = -(-len(named) // columns_of_legend)
        each = height or (_PANEL_INCHES if len(panels) > 1 else _SINGLE_PANEL_INCHES)
        canvas.set_size_inches(_WIDTH_INCHES, each * down + _LEGEND_INCHES * legend_rows)
        return Figure(name, title, explanation, alt, png(canvas))


def png(canvas: Canvas) -> bytes:
    """The canvas as a PNG of at most 128 colours; the same drawing gives the same bytes. Closes it."""
    drawn, packed = io.BytesIO(), io.BytesIO()
    with warnings.catch_warnings(record=True) as missing:  # one for each sign that no font has
        warnings.simplefilter("always")
        canvas.savefig(drawn, format="png", dpi=_DPI)
    if missing:
        _warn_of_fonts()
    plt.close(canvas)
    flat = Image.open(drawn).convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
    flat.save(packed, format="PNG", optimize=True)
    return packed.getvalue()


def error_bar(value: float, low: float, high: float) -> list[list[float]] | None:
    """Distances down and up, as `errorbar` takes those of one point; None where an end is NaN."""
    return None if low != low or high != high else [[max(0.0, value - low)], [max(0.0, high - value)]]


def mark_starts(axes: Axes, starts: Mapping[str, int]) -> None:
    """A vertical line at the first replay update of each run; `starts` are steps by run name."""
    for step in sorted(set(starts.values())):
        of_runs = " and ".join(name for name, start in starts.items() if start == step)
        which = "" if len(set(starts.values())) == 1 else f" of {of_runs}"
        label = f"first replay update{which} (step {step})"
        axes.axvline(step, color="#444444", linewidth=1.1, linestyle=(0, (1, 1.5)), label=label, zorder=1)


@functools.cache
def _warn_of_fonts() -> None:
    """Once: the text of the page and the tables has these signs, the figures do not."""
    warn("some names in the figures have signs that no font here has; install Noto Sans CJK, or rename them")
