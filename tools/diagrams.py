"""Diagrams of the documentation: ``python -m tools.diagrams docs``.

Each function of DIAGRAMS draws one SVG file. Diagrams show ideas; ``tools.figures`` draws the
weights of trained models.
"""

import argparse
import html
import re
from collections.abc import Callable
from pathlib import Path

# Classes of boxes with their fill and outline, and classes of arrows with their colour.
BOXES = {
    "layer": ("#e4edf7", "#3b6ea5"),
    "embedding": ("#f1f3f5", "#7b8794"),
    "fusion": ("#fdebd3", "#c2711b"),
    "output": ("#f1f3f5", "#52606d"),
}
ARROWS = {
    "flow": "#52606d",
    "fuse": "#c2711b",
    "connect": "#6b46c1",
    "attend": "#2f855a",
    "residual": "#c53030",
}
TALL = 34  # height of a box with one line of text


class Diagram:
    """An SVG picture. Lengths are in pixels; y grows downwards."""

    def __init__(self, title: str, width: int, height: int):
        self.title = title
        self.width = width
        self.height = height
        self.parts: list[str] = []

    def box(self, kind: str, x: float, y: float, width: float, text: str = "") -> None:
        """Draw a box with text; (x, y) is its upper left corner."""
        self.block(kind, x, y, width, TALL, text)

    def block(
        self, kind: str, x: float, y: float, width: float, height: float, text: str = ""
    ) -> None:
        """Draw a box of any height."""
        self.parts.append(
            f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" '
            f'rx="5"/>'
        )
        if text:
            self.text(x + width / 2, y + height / 2 + 5, text)

    def circle(self, kind: str, x: float, y: float, text: str) -> None:
        """Draw an operation around (x, y)."""
        self.parts.append(f'<circle class="{kind}" cx="{x:g}" cy="{y:g}" r="14"/>')
        self.text(x, y + 5, text)

    def arrow(self, kind: str, path: str) -> None:
        """Draw an arrow along an SVG path."""
        self.parts.append(f'<path class="{kind}" d="{path}"/>')

    def line(self, path: str, color: str, dashed: bool = False) -> None:
        """Draw a line along an SVG path."""
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<path d="{path}" fill="none" stroke="{color}" stroke-width="1.5"{dashes}/>'
        )

    def text(self, x: float, y: float, text: str, kind: str = "", color: str = "") -> None:
        """Write text centred at x on the baseline y; ``_{...}`` is a subscript."""
        style = f' style="fill:{color}"' if color else ""
        name = f' class="{kind}"' if kind else ""
        self.parts.append(f'<text x="{x:g}" y="{y:g}"{name}{style}>{_with_subscripts(text)}</text>')

    def notes(self, x: float, y: float, *lines: str) -> None:
        """Write lines of small text."""
        for i, line in enumerate(lines):
            self.text(x, y + 17 * i, line, "note")

    def column(self, names: list[str], x: float, bottom: float, step: float, width: float) -> None:
        """Draw a stack: the embedding at ``bottom`` and the layers above it."""
        for i, name in enumerate(names):
            self.box("layer" if i else "embedding", x, bottom - i * step, width, name)
        for i in range(len(names) - 1):
            y = bottom - i * step
            self.arrow("flow", f"M{x + width / 2:g} {y:g} V{y - step + TALL + 2:g}")

    def svg(self) -> str:
        """Return the content of the SVG file."""
        size = f"{self.width} {self.height}"
        head = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" '
            f'width="{self.width}" height="{self.height}" role="img">',
            f"<title>{html.escape(self.title)}</title>",
            *_style(),
            f'<rect width="{self.width}" height="{self.height}" rx="8" fill="#fff"/>',
        ]
        return "\n".join([*head, *self.parts, "</svg>"]) + "\n"


def _style() -> list[str]:
    lines = [
        "<style>",
        'text { font: 14px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2933; '
        "text-anchor: middle; }",
        ".title { font-size: 16px; font-weight: 600; }",
        ".note { font-size: 12.5px; fill: #52606d; }",
        ".down { font-size: 10px; }",
    ]
    for name, (fill, edge) in BOXES.items():
        lines.append(f".{name} {{ fill: {fill}; stroke: {edge}; stroke-width: 1.5; }}")
    for name, color in ARROWS.items():
        marker = f"marker-end: url(#{name})"
        lines.append(f".{name} {{ fill: none; stroke: {color}; stroke-width: 1.7; {marker}; }}")
    lines += ["</style>", "<defs>"]
    for name, color in ARROWS.items():
        lines.append(
            f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            f'markerHeight="7" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="{color}"/></marker>'
        )
    return [*lines, "</defs>"]


def _with_subscripts(text: str) -> str:
    below = r'<tspan class="down" dy="4">\1</tspan><tspan dy="-4">&#8203;</tspan>'
    return re.sub(r"_\{(.*?)\}", below, html.escape(text))


# The introduction ---------------------------------------------------------------------------------

LAYERS = ["embedding", "layer 1", "layer 2", "layer 3"]


def fusion() -> Diagram:
    """Draw a usual stack and a fused one."""
    diagram = Diagram("A usual stack of layers, and a stack whose layers are all fused", 760, 310)
    diagram.text(185, 38, "usual: only the highest layer", "title")
    diagram.column(LAYERS, 40, 252, 56, 110)
    diagram.box("output", 215, 84, 110, "prediction")
    diagram.arrow("flow", "M150 101 H213")
    diagram.notes(
        270, 145, "the layers below reach", "the prediction only", "through the highest one"
    )
    diagram.line("M366 24 V286", "#cbd2d9")
    diagram.text(565, 38, "fused: all layers", "title")
    diagram.column(LAYERS, 395, 252, 56, 110)
    diagram.block("fusion", 555, 140, 74, 90, "fusion φ")
    _fuse(diagram, 505, 252, 553, 220, 21)
    diagram.box("output", 652, 168, 96, "prediction")
    diagram.arrow("flow", "M629 185 H650")
    diagram.notes(592, 250, "learned weights,", "for each word")
    return diagram


def _fuse(
    diagram: Diagram, left: float, bottom: float, right: float, end: float, apart: float
) -> None:
    """Draw arrows from the four boxes of a column to points at ``right``, from ``end`` upwards."""
    middle = (left + right) / 2
    for i in range(len(LAYERS)):
        y = bottom - i * 56 + TALL / 2
        target = end - i * apart
        curve = f"C {middle:g} {y:g}, {middle:g} {target:g}, {right:g} {target:g}"
        diagram.arrow("fuse", f"M{left:g} {y:g} {curve}")


def sites() -> Diagram:
    """Draw the sites of an encoder and a decoder, and those of a layer."""
    diagram = Diagram("The four sites of a model: connect, residual, fuse and attend", 900, 470)
    for x in (110, 470):
        diagram.column(LAYERS, x, 376, 66, 130)
        diagram.box("fusion", x + 20, 96, 90, "fuse")
    diagram.box("output", 480, 28, 110, "prediction")
    diagram.arrow("flow", "M535 96 V64")
    for i in range(len(LAYERS)):
        y = 195 + 66 * i
        out = 18 + 16 * i
        diagram.arrow("fuse", f"M110 {y} H{118 - out} q-8 0 -8 -8 V121 q0 -8 8 -8 H128")
        diagram.arrow("fuse", f"M600 {y} H{592 + out} q8 0 8 -8 V121 q0 -8 -8 -8 H582")
    for y, apart in ((393, 26), (327, 14)):
        diagram.arrow("connect", f"M240 {y} H{240 + apart} V265 H242")
        diagram.arrow("connect", f"M470 {y} H{470 - apart} V265 H468")
    for y in (188, 252, 318):
        diagram.line(f"M240 {y} H355", ARROWS["attend"], dashed=True)
        diagram.arrow("attend", f"M220 113 H345 Q355 113 355 123 V{y - 8} q0 8 8 8 H468")
    diagram.text(386, 150, "attend", color=ARROWS["attend"])
    for x in (307, 403):
        diagram.text(x, 386, "connect", color=ARROWS["connect"])
    diagram.text(175, 440, "encoder", "title")
    diagram.text(535, 440, "decoder", "title")
    diagram.notes(355, 428, "dashed: attend may read", "the encoder layers instead")
    diagram.line("M684 24 V446", "#cbd2d9")
    _layer(diagram, 780)
    return diagram


def _layer(diagram: Diagram, x: float) -> None:
    """Draw the sub-layers of an encoder layer, around x, with their residual connections."""
    diagram.arrow("flow", f"M{x:g} 404 V346")
    for name, below, box, above in (("attention", 380, 310, 268), ("feed-forward", 230, 174, 132)):
        diagram.box("layer", x - 60, box, 120, name)
        diagram.arrow("flow", f"M{x:g} {box} V{above + 16}")
        diagram.circle("output", x, above, "+")
        diagram.arrow("residual", f"M{x:g} {below} H{x + 78:g} V{above} H{x + 16:g}")
    diagram.arrow("flow", f"M{x:g} 254 V210")
    diagram.arrow("flow", f"M{x:g} 118 V76")
    diagram.text(x + 64, 398, "residual", color=ARROWS["residual"])
    diagram.text(x, 440, "inside a layer", "title")


# Fusions ------------------------------------------------------------------------------------------


def average() -> Diagram:
    """Draw the mean of all layers."""
    diagram = Diagram("The output is the mean of all layers, then normalised", 620, 260)
    diagram.column(LAYERS, 40, 196, 56, 110)
    diagram.block("fusion", 250, 72, 90, 114, "mean")
    _fuse(diagram, 150, 196, 248, 171, 28)
    for i in range(len(LAYERS)):
        diagram.text(226, 165 - 28 * i, "¼", "note")
    diagram.box("fusion", 385, 112, 60, "LN")
    diagram.box("output", 490, 112, 90, "output")
    diagram.arrow("flow", "M340 129 H383")
    diagram.arrow("flow", "M445 129 H488")
    return diagram


def ffn() -> Diagram:
    """Draw a network that reads the concatenation of all layers."""
    diagram = Diagram("A network with one hidden layer reads the concatenated layers", 760, 270)
    diagram.column(LAYERS, 40, 196, 56, 110)
    for i in range(len(LAYERS)):
        diagram.block("layer" if i else "embedding", 250, 176 - 40 * i, 60, 40, f"z_{{{i}}}")
    _fuse(diagram, 150, 196, 248, 196, 40)
    diagram.notes(280, 240, "concatenation")
    for x, text in ((365, "W_{1}"), (455, "σ"), (535, "W_{2}"), (615, "LN")):
        tall = {365: 100, 455: 100, 535: 40, 615: 40}[x]
        diagram.block("fusion", x, 136 - tall / 2, 50, tall, text)
    diagram.notes(435, 210, "hidden units")
    diagram.arrow("flow", "M310 136 H363")
    diagram.arrow("flow", "M415 136 H453")
    diagram.arrow("flow", "M505 136 H533")
    diagram.arrow("flow", "M585 136 H613")
    diagram.arrow("flow", "M665 136 H688")
    diagram.text(722, 141, "output")
    return diagram


# Connections --------------------------------------------------------------------------------------


def dense() -> Diagram:
    """Draw the buffer of features, and what each layer reads and adds."""
    diagram = Diagram("Each layer reads all features below it and adds a few", 710, 330)
    first, growth, depth = 170, 112, 4
    left, buffer = 50, 250
    diagram.block("embedding", left, buffer, first, 36, "h_{0}")
    for i in range(1, depth + 1):
        x = left + first + growth * (i - 1)  # right end of the features that layer i reads
        y = buffer - 12 - 54 * i
        diagram.block("layer", x, buffer, growth, 36, f"h_{{{i}}}")
        for k in range(i):
            begin = left + first + growth * (k - 1) if k else left
            width = growth if k else first
            diagram.block("layer" if k else "embedding", begin, y + 10, width, 14)
        diagram.box("layer", x + 30, y, growth - 40, f"layer {i}")
        diagram.arrow("connect", f"M{x} {y + 17} H{x + 28}")
        diagram.arrow("flow", f"M{x + 10 + growth / 2:g} {y + TALL} V{buffer - 2}")
    diagram.notes(left + first / 2, 306, "embedding")
    diagram.notes(left + first + growth * depth / 2, 306, "each layer adds a few features")
    return diagram


def value_residual() -> Diagram:
    """Draw the values of the lowest layer as a part of the values of all layers."""
    diagram = Diagram("Each layer uses the mean of its own values and the lowest layer's", 560, 310)
    for i in range(1, 5):
        y = 250 - 66 * (i - 1)
        middle = y + TALL / 2
        diagram.box("layer", 60, y, 150, f"self-attention {i}")
        diagram.box("embedding", 400, y, 110, f"values V_{{{i}}}")
        if i > 1:
            diagram.arrow("flow", f"M135 {y + 66} V{y + TALL + 2}")
            diagram.circle("fusion", 285, middle, "½")
            diagram.arrow("fuse", f"M271 {middle:g} H212")
            diagram.arrow("flow", f"M400 {middle:g} H301")
            diagram.arrow(
                "connect",
                f"M350 {middle + 32:g} C 350 {middle + 20:g}, 320 "
                f"{middle + 12:g}, 300 {middle + 8:g}",
            )
    diagram.arrow("flow", "M400 267 H212")
    diagram.line("M350 267 V101", ARROWS["connect"])
    diagram.text(372, 232, "V_{1}", color=ARROWS["connect"])
    diagram.text(240, 57, "V′_{4}", color=ARROWS["fuse"])
    return diagram


# Sub-layers and cells -----------------------------------------------------------------------------


def scaled() -> Diagram:
    """Draw the four scaled residual sums."""
    diagram = Diagram("Four residual sums with a factor", 760, 350)
    kinds = [
        ("rezero", "a", True, False, "a number, 0 at first"),
        ("layer-scale", "l", True, False, "a vector, small at first"),
        ("deep-norm", "α", False, True, "a constant"),
        ("admin", "w", False, True, "a vector"),
    ]
    for i, (name, factor, is_branch, normalises, note) in enumerate(kinds):
        left = 40 + 185 * i
        x = left + 45  # of the branch
        skip = left + 110
        diagram.text(left + 70, 34, name, "title")
        diagram.text(left + 70, 320, f"{factor}: {note}", "note")
        diagram.text(skip, 294, "x")
        diagram.line(f"M{skip} 280 V262 H{x}", ARROWS["flow"])
        diagram.arrow("flow", f"M{x} 262 V242")
        diagram.box("layer", x - 35, 206, 70, "f")
        if is_branch:
            diagram.arrow("flow", f"M{x} 206 V188")
            diagram.circle("fusion", x, 172, factor)
            diagram.arrow("flow", f"M{x} 158 V130 H{skip - 16}")
            diagram.arrow("flow", f"M{skip} 262 V146")
        else:
            diagram.arrow("flow", f"M{x} 206 V130 H{skip - 16}")
            diagram.arrow("flow", f"M{skip} 262 V239")
            diagram.circle("fusion", skip, 223, factor)
            diagram.arrow("flow", f"M{skip} 209 V146")
        diagram.circle("output", skip, 130, "+")
        if normalises:
            diagram.arrow("flow", f"M{skip} 116 V100")
            diagram.box("output", skip - 30, 64, 60, "LN")
        diagram.arrow("flow", f"M{skip} {64 if normalises else 116} V48")
    return diagram


def recurrent() -> Diagram:
    """Draw the deep transition from one state to the next."""
    diagram = Diagram("The step from one state to the next is deep", 770, 330)
    cells = ["L-GRU", "T-GRU_{1}", "T-GRU_{2}"]
    for i, step in enumerate(("t−1", "t", "t+1")):
        left = 100 + 210 * i
        x = left + 55
        diagram.text(x, 312, f"x_{{{step}}}")
        diagram.arrow("flow", f"M{x} 296 V266")
        for k, cell in enumerate(cells):
            y = 230 - 70 * k
            diagram.box("fusion" if k == 0 else "layer", left, y, 110, cell)
            diagram.arrow("flow", f"M{x} {y} V{y - 34 if k < 2 else 36}")
            diagram.text(x + 30, y - 14, f"s_{{{step},{k}}}")
        # The next step reads the highest state.
        diagram.arrow("connect", f"M{x} 60 H{left + 160} V247 H{left + 208}")
    diagram.arrow("connect", "M50 247 H98")
    return diagram


DIAGRAMS: dict[str, Callable[[], Diagram]] = {
    "fusion": fusion,
    "sites": sites,
    "figures/average": average,
    "figures/dense": dense,
    "figures/ffn": ffn,
    "figures/recurrent": recurrent,
    "figures/scaled": scaled,
    "figures/value-residual": value_residual,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="draw the diagrams of the documentation")
    parser.add_argument("docs", type=Path)
    folder = parser.parse_args().docs
    for name, draw in DIAGRAMS.items():
        (folder / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
