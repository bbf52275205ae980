"""Heatmaps as one HTML file that needs nothing else: a browser draws the panels from the numbers inside."""

import html
import json
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fusetk.errors import DataError
from fusetk.plotting.panel import Page, Panel, numbers, scales

LARGE = 50_000_000  # characters; what is larger makes browsers slow
STOPS = 17  # colours of a scale, between which the page interpolates

log = logging.getLogger(__name__)


def save_page(pages: Sequence[Page], path: Path, title: str, colors: str = "blue") -> None:
    """Write the pages, between which a slider moves, to ``path``. Raises DataError when it cannot be written."""
    text = render(pages, title, colors)
    if len(text) > LARGE:
        megabytes = len(text) // 1_000_000
        log.warning(
            "%s has %d MB, which may be slow to open; draw fewer sentences (--lines), layers or heads",
            path,
            megabytes,
        )
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}") from error


def render(pages: Sequence[Page], title: str, colors: str = "blue") -> str:
    """The file's text. Whatever words contain, they cannot leave the JSON that they stand in, and are only ever shown as text."""
    data = json.dumps(
        _data(pages, title, colors), ensure_ascii=False, allow_nan=False, separators=(",", ":")
    )
    for character in (
        "<>&\u2028\u2029"
    ):  # </script> and <!-- would end or change the element, even inside of a string
        data = data.replace(character, f"\\u{ord(character):04x}")
    parts = {"title": html.escape(title), "data": data}
    return re.sub(
        "@(title|data)@", lambda match: parts[match[1]], _TEMPLATE
    )  # in one pass: what is put in is not searched


def _data(pages: Sequence[Page], title: str, colors: str) -> dict[str, Any]:
    measures = scales([panel for page in pages for panel in page.panels], colors)
    return {
        "title": title,
        "scales": {
            name: {"low": scale.low, "high": scale.high, "colors": _stops(scale.map)}
            for name, scale in measures.items()
        },
        "pages": [
            {
                "number": page.number,
                "source": page.source,
                "target": page.target,
                "panels": [_panel(panel) for panel in page.panels],
            }
            for page in pages
        ],
    }


def _panel(panel: Panel) -> dict[str, Any]:
    return {
        **numbers(panel),
        "name": panel.name,
        "up": panel.up,
        "matrix": [[_short(v) for v in row] for row in panel.matrix],
    }


def _short(value: float) -> float | None:
    """A number of float32 in as few digits as say which it is; None for what is not finite."""
    return float(str(np.float32(value))) if np.isfinite(value) else None


def _stops(name: str) -> list[list[int]]:
    """Red, green and blue, 0 to 255, at equal distances along a map of matplotlib."""
    import matplotlib

    found: list[list[int]] = (
        np.rint(matplotlib.colormaps[name](np.linspace(0, 1, STOPS))[:, :3] * 255)
        .astype(int)
        .tolist()
    )
    return found


_TEMPLATE = r"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>@title@</title>
<style>
:root { color-scheme: light dark; --back: #fff; --text: #1a1a1a; --faint: #666; --empty: #efe6d3; --line: #8886; }
@media (prefers-color-scheme: dark) { :root { --back: #17191c; --text: #e6e6e6; --faint: #a0a0a0; --empty: #4a443a; } }
body { margin: 1rem 1.5rem; background: var(--back); color: var(--text); font: 14px/1.4 system-ui, "Noto Sans", sans-serif; }
h1 { font-size: 1.15rem; margin: 0 0 .5rem; }
#choose { display: flex; gap: .6rem; align-items: center; margin: .5rem 0; }
#choose[hidden] { display: none; }
#choose input { flex: 1; max-width: 40rem; }
#choose button { font: inherit; padding: .1rem .7rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem .8rem; margin: .5rem 0; }
dt { color: var(--faint); } dd { margin: 0; }
#bars { display: flex; flex-wrap: wrap; gap: .3rem 2rem; margin: .5rem 0; color: var(--faint); font-size: 12px; }
#bars canvas { vertical-align: middle; margin: 0 .4rem; }
#panels { display: flex; flex-wrap: wrap; gap: 1rem 1.6rem; align-items: flex-end; }
figure { margin: 0; position: relative; max-width: 100%; overflow-x: auto; }
figcaption { margin-top: .2rem; }
.break { flex-basis: 100%; }
canvas { display: block; } #bars canvas { display: inline; }
#tip { position: fixed; pointer-events: none; background: var(--back); border: 1px solid var(--faint); border-radius: 4px;
  padding: .3rem .6rem; box-shadow: 0 2px 8px #0005; max-width: 30rem; white-space: pre-line; overflow-wrap: anywhere; z-index: 2; }
#mark { position: absolute; pointer-events: none; box-sizing: border-box; border: 2px solid #e8710a; }
</style>
</head>
<body>
<h1></h1>
<div id="choose" hidden><button type="button" aria-label="previous sentence">&#8592;</button>
<input type="range" min="1" value="1" aria-label="sentence"><button type="button" aria-label="next sentence">&#8594;</button>
<output></output></div>
<dl></dl><div id="bars"></div><div id="panels"></div><div id="tip" hidden></div>
<noscript>The panels are drawn by JavaScript, which is switched off.</noscript>
<script id="data" type="application/json">@data@</script>
<script>
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const find = (query) => document.querySelector(query);
const tip = find("#tip"), slider = find("#choose input"), mark = document.createElement("div");
mark.id = "mark";
const FONT = '11px system-ui, "Noto Sans", sans-serif', PAD = 5, LONGEST = 28;
let now = 0;

function make(tag, text, parent) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;  // never innerHTML: words are text
  if (parent) parent.append(made);
  return made;
}

function short(text) {
  const characters = Array.from(text);
  return characters.length <= LONGEST ? text : characters.slice(0, 18).join("") + "\u2026" + characters.slice(-9).join("");
}

function color(scale, value) {
  const last = scale.colors.length - 1;
  const at = Math.min(last, Math.max(0, (value - scale.low) / (scale.high - scale.low) * last));
  const i = Math.min(last - 1, Math.floor(at)), part = at - i;
  return "rgb(" + scale.colors[i].map((c, k) => Math.round(c + part * (scale.colors[i + 1][k] - c))).join(",") + ")";
}

function surface(canvas, width, height) {
  const dots = Math.min(window.devicePixelRatio || 1, 16000 / Math.max(width, height));
  canvas.width = Math.ceil(width * dots);
  canvas.height = Math.ceil(height * dots);
  canvas.style.width = width + "px";
  canvas.style.height = height + "px";
  const pen = canvas.getContext("2d");
  pen.scale(dots, dots);
  pen.font = FONT;
  pen.textBaseline = "middle";
  return pen;
}

function panel(one, parent) {
  const figure = make("figure", undefined, parent), canvas = make("canvas", undefined, figure);
  const caption = make("figcaption", one.title, figure);
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", one.title);
  const rows = one.y.length, columns = one.x.length, scale = data.scales[one.measure], style = getComputedStyle(document.body);
  const most = Math.max(rows, columns), cell = Math.max(3, Math.min(most > 30 ? 16 : 22, Math.floor(9000 / most)));
  const measure = canvas.getContext("2d");
  measure.font = FONT;
  const room = (words) => Math.max(0, ...words.map((word) => measure.measureText(short(word)).width)) + 2 * PAD;
  const left = room(one.y), top = room(one.x), beside = columns === 1 ? 60 : 0;
  const width = left + columns * cell + beside + 1, pen = surface(canvas, width, top + rows * cell + 1);
  caption.style.maxWidth = Math.max(width, 220) + "px";
  const row = (i) => one.up ? rows - 1 - i : i;  // from the top
  for (let r = 0; r < rows; r++) {
    for (let c = 0; c < columns; c++) {
      const value = one.matrix[r][c];
      pen.fillStyle = value === null ? style.getPropertyValue("--empty") : color(scale, value);
      pen.fillRect(left + c * cell, top + row(r) * cell, cell, cell);
    }
  }
  pen.strokeStyle = style.getPropertyValue("--line");
  pen.lineWidth = 0.5;
  pen.beginPath();
  for (let c = 0; c <= columns; c++) { pen.moveTo(left + c * cell, top); pen.lineTo(left + c * cell, top + rows * cell); }
  for (let r = 0; r <= rows; r++) { pen.moveTo(left, top + r * cell); pen.lineTo(left + columns * cell, top + r * cell); }
  pen.stroke();
  if (one.cut) {
    pen.fillStyle = "#e8710a";
    pen.fillRect(left + one.cut * cell - 1, top - PAD, 2, rows * cell + PAD);
  }
  pen.fillStyle = style.getPropertyValue("--text");
  const step = Math.ceil(11 / cell);  // of the labels, where cells are lower than a line
  pen.textAlign = "right";
  for (let r = 0; r < rows; r += step) pen.fillText(short(one.y[r]), left - PAD, top + (row(r) + 0.5) * cell);
  pen.textAlign = "left";
  if (beside) for (let r = 0; r < rows; r++) {
    const value = one.matrix[r][0];
    if (value !== null) pen.fillText(shown(value), left + cell + PAD, top + (row(r) + 0.5) * cell);
  }
  for (let c = 0; c < columns; c += step) {
    pen.save();
    pen.translate(left + (c + 0.5) * cell, top - PAD);
    pen.rotate(-Math.PI / 2);
    pen.fillText(short(one.x[c]), 0, 0);
    pen.restore();
  }
  const hover = (event) => {
    const box = canvas.getBoundingClientRect();
    const c = Math.floor((event.clientX - box.left - left) / cell), r = Math.floor((event.clientY - box.top - top) / cell);
    if (c < 0 || r < 0 || c >= columns || r >= rows) return leave();
    tell(one, row(r), c, event);
    const size = cell + 1 + "px";
    Object.assign(mark.style, { left: left + c * cell + "px", top: top + r * cell + "px", width: size, height: size });
    figure.append(mark);
  };
  canvas.addEventListener("pointermove", hover);
  canvas.addEventListener("pointerdown", hover);
  canvas.addEventListener("pointerleave", leave);
}

function shown(value) {
  return value === null ? "no number" : String(Number(value.toPrecision(4)));
}

function tell(one, r, c, event) {
  const number = (axis, i) => /word|source|target|look/.test(axis) ? " (" + (i + 1) + ")" : "";  // words come again, layers do not
  const place = (axis, words, i, start) => (axis || "at") + ": " + words[i] + number(axis, i - start);
  const value = one.measure + ": " + shown(one.matrix[r][c]), second = one.cut && c >= one.cut;
  const kind = one.cut ? one.axes[0].split(" | ")[second ? 1 : 0] : one.axes[0];
  tip.textContent = [one.title, place(kind, one.x, c, second ? one.cut : 0), place(one.axes[1], one.y, r, 0), value].join("\n");
  tip.hidden = false;
  const right = event.clientX + 16 + tip.offsetWidth > window.innerWidth, low = event.clientY + 16 + tip.offsetHeight > window.innerHeight;
  tip.style.left = Math.max(0, right ? event.clientX - 12 - tip.offsetWidth : event.clientX + 16) + "px";
  tip.style.top = Math.max(0, low ? event.clientY - 12 - tip.offsetHeight : event.clientY + 16) + "px";
}

function leave() {
  tip.hidden = true;
  mark.remove();
}

function bars() {
  const parent = find("#bars");
  parent.replaceChildren();
  for (const [name, scale] of Object.entries(data.scales)) {
    const bar = make("span", name + ": " + shown(scale.low), parent), canvas = make("canvas", undefined, bar);
    const pen = surface(canvas, 120, 12);
    for (let x = 0; x < 120; x++) {
      pen.fillStyle = color(scale, scale.low + (scale.high - scale.low) * (x + 0.5) / 120);
      pen.fillRect(x, 0, 1.5, 12);
    }
    bar.append(shown(scale.high));
  }
}

function show(i) {
  now = Math.max(0, Math.min(data.pages.length - 1, i));
  const page = data.pages[now], words = find("dl"), panels = find("#panels");
  leave();
  slider.value = now + 1;
  find("output").textContent = "sentence " + page.number + " (" + (now + 1) + " of " + data.pages.length + ")";
  words.replaceChildren();
  for (const side of ["source", "target"]) if (page[side]) { make("dt", side, words); make("dd", page[side], words).dir = "auto"; }
  panels.replaceChildren();
  let before = "";
  for (const one of page.panels) {
    const group = /[.]head[0-9]+$/.test(one.name) ? one.name.replace(/[.]head[0-9]+$/, "") : one.name.split(".")[0];  // a layer, a side
    if (before && group !== before) make("div", "", panels).className = "break";
    before = group;
    panel(one, panels);
  }
}

find("h1").textContent = data.title;
find("#choose").hidden = data.pages.length < 2;
slider.max = data.pages.length;
slider.addEventListener("input", () => show(slider.value - 1));
document.querySelectorAll("#choose button").forEach((button, i) => button.addEventListener("click", () => show(now + (i ? 1 : -1))));
document.addEventListener("keydown", (event) => {
  if (event.target === slider || event.altKey || event.ctrlKey || event.metaKey) return;  // the slider has its own keys
  if (event.key === "ArrowLeft") show(now - 1);
  if (event.key === "ArrowRight") show(now + 1);
});
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { bars(); show(now); });
bars();
show(0);
</script>
</body>
</html>
"""
