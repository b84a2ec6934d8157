"""Bar charts as SVG text, without a plotting library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#888888", "#000000")
BAR, GAP, LEFT, WIDTH, TOP = 11, 12, 130, 560, 56


def bars(title: str, groups: Mapping[str, Mapping[str, float]], series: Sequence[str]) -> str:
    """Horizontal bars, one group of bars per row of `groups` (name -> series -> value), a line at the value 1."""
    drawn = [s for s in series if any(s in values for values in groups.values())]
    colours = {s: COLOURS[k % len(COLOURS)] for k, s in enumerate(drawn)}
    largest = max((v for values in groups.values() for v in values.values()), default=1.0)
    scale = WIDTH / max(largest, 1.0)
    parts = [f'<text x="8" y="18" font-size="14">{escape(title)}</text>']
    for k, name in enumerate(drawn):
        x = 8 + 125 * k
        parts.append(f'<rect x="{x}" y="30" width="10" height="10" fill="{colours[name]}"/>')
        parts.append(f'<text x="{x + 14}" y="39">{escape(name)}</text>')
    y = TOP
    for group, values in groups.items():
        shown = [s for s in drawn if s in values]
        height = BAR * max(len(shown), 1)
        parts.append(f'<text x="{LEFT - 8}" y="{y + height / 2 + 4:.0f}" text-anchor="end">{escape(group)}</text>')
        for k, name in enumerate(shown):
            at, length = y + BAR * k, values[name] * scale
            fill = colours[name]
            parts.append(f'<rect x="{LEFT}" y="{at}" width="{length:.1f}" height="{BAR - 1}" fill="{fill}"/>')
            parts.append(f'<text x="{LEFT + length + 3:.1f}" y="{at + 9}">{values[name]:.2f}</text>')
        y += height + GAP
    one = LEFT + scale
    parts.append(f'<path d="M{one:.1f} {TOP - 6}V{y - GAP + 6}" stroke="#000" stroke-dasharray="3 3"/>')
    width = max(LEFT + WIDTH + 50, 8 + 125 * len(drawn))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y}" font-family="sans-serif" font-size="10">'
    )
    return "\n".join([head, f'<rect width="{width}" height="{y}" fill="#fff"/>', *parts, "</svg>"]) + "\n"
