// Draws panels of numbers: a picture whose cells the pointer and the arrow keys select, and a table.
//
// A panel is an object {name, title, measure, axes, x, y, matrix, up, cut}; a scale is an object
// {low, high, colors, dark}. The page has an element #tip, which describes the selected cell.
const tip = document.querySelector("#tip");
const mark = document.createElement("div");
mark.className = "mark";
const FONT = '11px system-ui, "Noto Sans", sans-serif';
const LABEL_HEIGHT = 11;
const AXIS_HEIGHT = 15;  // room for the name of an axis
const PAD = 5;
const LONGEST = 28;  // characters of a label
const HEAD = /[.]head[0-9]+$/;
const darkTheme = window.matchMedia("(prefers-color-scheme: dark)");

// Creates an element. The text is never parsed as HTML.
function create(tag, text, parent) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (parent) parent.append(element);
  return element;
}

function short(text) {
  const characters = Array.from(text);
  if (characters.length <= LONGEST) return text;
  return characters.slice(0, 18).join("") + "\u2026" + characters.slice(-9).join("");
}

function format(value) {
  return value === null ? "no number" : String(Number(value.toPrecision(4)));
}

// Interpolates between the colours of the scale.
function color(scale, value) {
  const stops = darkTheme.matches ? scale.dark : scale.colors;
  const last = stops.length - 1;
  const position = (value - scale.low) / (scale.high - scale.low) * last;
  const clamped = Math.min(last, Math.max(0, position));
  const i = Math.min(last - 1, Math.floor(clamped));
  const mix = (c, k) => Math.round(c + (clamped - i) * (stops[i + 1][k] - c));
  return "rgb(" + stops[i].map(mix).join(",") + ")";
}

// Sets the size of a canvas in CSS pixels and returns its drawing context.
function resize(canvas, width, height) {
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

// Computes the positions of a panel's cells, in CSS pixels.
function layout(panel, canvas) {
  const measure = canvas.getContext("2d");
  measure.font = FONT;
  const width = (word) => measure.measureText(short(word)).width;
  const widest = (words) => Math.max(0, ...words.map(width));
  const rows = panel.y.length;
  const columns = panel.x.length;
  const most = Math.max(rows, columns);
  const cell = Math.max(3, Math.min(most > 30 ? 16 : 22, Math.floor(9000 / most)));
  const [across, up] = panel.axes.map((name) => measure.measureText(name).width + PAD);
  const left = widest(panel.y) + 2 * PAD + (panel.axes[1] ? AXIS_HEIGHT : 0);
  const labels = widest(panel.x) + 2 * PAD + (panel.axes[0] ? AXIS_HEIGHT : 0);
  const top = Math.max(labels, up - rows * cell);
  const beside = columns === 1 ? 60 : 0;  // room for the numbers of a single column
  return {
    rows, columns, cell, left, top, beside,
    axis: top - labels + AXIS_HEIGHT / 2,  // middle of the name of the columns
    width: left + Math.max(columns * cell + beside + 1, across),
    height: top + rows * cell + 1,
    row: (i) => panel.up ? rows - 1 - i : i,  // index from the top, and back
  };
}

function drawCells(pen, panel, scale, place, style) {
  const { rows, columns, cell, left, top } = place;
  for (let r = 0; r < rows; r++) {
    for (let c = 0; c < columns; c++) {
      const value = panel.matrix[r][c];
      pen.fillStyle = value === null ? style.getPropertyValue("--empty") : color(scale, value);
      pen.fillRect(left + c * cell, top + place.row(r) * cell, cell, cell);
    }
  }
  pen.strokeStyle = style.getPropertyValue("--line");
  pen.lineWidth = 0.5;
  pen.beginPath();
  for (let c = 0; c <= columns; c++) {
    pen.moveTo(left + c * cell, top);
    pen.lineTo(left + c * cell, top + rows * cell);
  }
  for (let r = 0; r <= rows; r++) {
    pen.moveTo(left, top + r * cell);
    pen.lineTo(left + columns * cell, top + r * cell);
  }
  pen.stroke();
  if (panel.cut) {  // the line between source and target columns
    pen.fillStyle = style.getPropertyValue("--mark");
    pen.fillRect(left + panel.cut * cell - 1, top - PAD, 2, rows * cell + PAD);
  }
}

function drawLabels(pen, panel, place, style) {
  const { rows, columns, cell, left, top } = place;
  const middle = (r) => top + (place.row(r) + 0.5) * cell;
  const step = Math.ceil(LABEL_HEIGHT / cell);  // small cells have no room for every label
  pen.fillStyle = style.getPropertyValue("--text");
  pen.textAlign = "right";
  for (let r = 0; r < rows; r += step) pen.fillText(short(panel.y[r]), left - PAD, middle(r));
  pen.textAlign = "left";
  if (place.beside) {
    for (let r = 0; r < rows; r++) {
      const value = panel.matrix[r][0];
      if (value !== null) pen.fillText(format(value), left + cell + PAD, middle(r));
    }
  }
  for (let c = 0; c < columns; c += step) {
    pen.save();
    pen.translate(left + (c + 0.5) * cell, top - PAD);
    pen.rotate(-Math.PI / 2);
    pen.fillText(short(panel.x[c]), 0, 0);
    pen.restore();
  }
}

// Writes the name of the columns above them, and that of the rows upwards from the lowest row.
function drawAxes(pen, panel, place, style) {
  pen.fillStyle = style.getPropertyValue("--faint");
  pen.textAlign = "left";
  pen.fillText(panel.axes[0], place.left, place.axis);
  pen.save();
  pen.translate(AXIS_HEIGHT / 2, place.top + place.rows * place.cell);
  pen.rotate(-Math.PI / 2);
  pen.fillText(panel.axes[1], 0, 0);
  pen.restore();
}

// Places an element over cells of a panel.
function cover(element, place, column, row, columns, rows) {
  Object.assign(element.style, {
    left: place.left + column * place.cell + "px",
    top: place.top + row * place.cell + "px",
    width: columns * place.cell + 1 + "px",
    height: rows * place.cell + 1 + "px",
  });
}

// Draws a panel and returns its figure, which has a function highlight(step).
function drawPanel(panel, scale, parent) {
  const figure = create("figure", undefined, parent);
  const canvas = create("canvas", undefined, figure);
  const caption = create("figcaption", panel.title, figure);
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", panel.title + "; the arrow keys read its numbers");
  canvas.tabIndex = 0;
  const place = layout(panel, canvas);
  const style = getComputedStyle(document.body);
  const pen = resize(canvas, place.width, place.height);
  caption.style.maxWidth = Math.max(place.width, 220) + "px";
  drawCells(pen, panel, scale, place, style);
  drawLabels(pen, panel, place, style);
  drawAxes(pen, panel, place, style);
  addNumbers(panel, figure);
  listen(panel, figure, canvas, place);
  figure.highlight = highlighter(panel, figure, place);
  return figure;
}

// Lets the pointer and the arrow keys select cells.
function listen(panel, figure, canvas, place) {
  const { rows, columns, cell, left, top } = place;
  const cursor = { column: 0, row: 0 };  // the cell that the keys selected; the top row is 0
  const select = (column, row) => {
    Object.assign(cursor, { column, row });
    cover(mark, place, column, row, 1, 1);
    figure.append(mark);
  };
  const hover = (event) => {
    const box = canvas.getBoundingClientRect();
    const c = Math.floor((event.clientX - box.left - left) / cell);
    const r = Math.floor((event.clientY - box.top - top) / cell);
    if (c < 0 || r < 0 || c >= columns || r >= rows) return leave();
    select(c, r);
    showTip(panel, place.row(r), c, event.clientX, event.clientY);
  };
  const selectByKey = (column, row) => {
    const c = Math.max(0, Math.min(columns - 1, column));
    const r = Math.max(0, Math.min(rows - 1, row));
    select(c, r);
    mark.scrollIntoView({ block: "nearest", inline: "nearest" });
    const box = mark.getBoundingClientRect();
    showTip(panel, place.row(r), c, box.right, box.bottom);
  };
  const moves = {
    ArrowLeft: () => [cursor.column - 1, cursor.row],
    ArrowRight: () => [cursor.column + 1, cursor.row],
    ArrowUp: () => [cursor.column, cursor.row - 1],
    ArrowDown: () => [cursor.column, cursor.row + 1],
    Home: () => [0, cursor.row],
    End: () => [columns - 1, cursor.row],
  };
  canvas.addEventListener("pointermove", hover);
  canvas.addEventListener("pointerdown", hover);
  canvas.addEventListener("pointerleave", leave);
  canvas.addEventListener("blur", leave);
  canvas.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "Escape") leave();
    if (!Object.hasOwn(moves, event.key)) return;
    event.preventDefault();
    event.stopPropagation();
    selectByKey(...(tip.hidden ? [cursor.column, cursor.row] : moves[event.key]()));
  });
}

// Returns a function that marks the row or column of a step of decoding, counted from 0. A step
// below 0 removes the mark. A panel that does not belong to the decoder is not marked.
function highlighter(panel, figure, place) {
  const bar = document.createElement("div");
  bar.className = "step";
  const isDecoder = panel.name.startsWith("decoder.");
  const isRow = isDecoder && ["target", "query"].includes(panel.axes[1]);
  const isColumn = isDecoder && panel.axes[0] === "input token";
  return (step) => {
    bar.remove();
    if (isRow && step >= 0 && step < place.rows) {
      cover(bar, place, 0, place.row(step), place.columns, 1);
      figure.append(bar);
    }
    if (isColumn && step >= 0 && step < place.columns) {
      cover(bar, place, step, 0, 1, place.rows);
      figure.append(bar);
    }
  };
}

// Adds a table with the numbers of a panel. It is made when the user opens it.
function addNumbers(panel, figure) {
  const details = create("details", undefined, figure);
  create("summary", "numbers", details);
  details.addEventListener("toggle", () => {
    if (!details.open || details.children.length > 1) return;
    const table = create("table", undefined, details);
    const head = create("tr", undefined, create("thead", undefined, table));
    create("th", (panel.axes[1] || "") + " \\ " + (panel.axes[0] || ""), head);
    for (const word of panel.x) create("th", word, head).scope = "col";
    const body = create("tbody", undefined, table);
    const order = panel.y.map((_, i) => panel.up ? panel.y.length - 1 - i : i);
    for (const r of order) {
      const row = create("tr", undefined, body);
      create("th", panel.y[r], row).scope = "row";
      for (const value of panel.matrix[r]) create("td", value === null ? "" : format(value), row);
    }
  });
}

// Describes one cell beside a point of the window.
function showTip(panel, r, c, x, y) {
  // Words may repeat in a sentence: their numbers tell them apart. Layers do not repeat.
  const isText = (axis) => /token|word|source|target|key|query/.test(axis);
  const number = (axis, i) => isText(axis) ? " (" + (i + 1) + ")" : "";
  const describe = (axis, words, i, start) =>
    (axis || "at") + ": " + words[i] + number(axis, i - start);
  const second = panel.cut && c >= panel.cut;
  const column = panel.cut ? panel.axes[0].split(" | ")[second ? 1 : 0] : panel.axes[0];
  tip.textContent = [
    panel.title,
    describe(column, panel.x, c, second ? panel.cut : 0),
    describe(panel.axes[1], panel.y, r, 0),
    panel.measure + ": " + format(panel.matrix[r][c]),
  ].join("\n");
  tip.hidden = false;
  tip.style.left = 0;  // near the right edge of the window, the text would be narrow
  const pastRight = x + 16 + tip.offsetWidth > window.innerWidth;
  const pastBottom = y + 16 + tip.offsetHeight > window.innerHeight;
  tip.style.left = Math.max(0, pastRight ? x - 12 - tip.offsetWidth : x + 16) + "px";
  tip.style.top = Math.max(0, pastBottom ? y - 12 - tip.offsetHeight : y + 16) + "px";
}

function leave() {
  tip.hidden = true;
  mark.remove();
}

// Draws panels, lowest layer first, and returns their figures. The heads of a layer share a row; so
// do the other panels of a side.
function drawPanels(panels, scales, parent) {
  parent.replaceChildren();
  let before = "";
  return panels.map((panel) => {
    const name = panel.name;
    const group = HEAD.test(name) ? name.replace(HEAD, "") : name.split(".")[0];
    if (before && group !== before) create("div", "", parent).className = "break";
    before = group;
    return drawPanel(panel, scales[panel.measure], parent);
  });
}

// Draws the colour bar of each scale with its limits.
function drawBars(scales, parent) {
  parent.replaceChildren();
  for (const [name, scale] of Object.entries(scales)) {
    const entry = create("span", name + ": ", parent);
    const bar = create("span", format(scale.low), entry);
    bar.className = "bar";
    const canvas = create("canvas", undefined, bar);
    canvas.setAttribute("aria-hidden", "true");
    const pen = resize(canvas, 120, 12);
    for (let x = 0; x < 120; x++) {
      pen.fillStyle = color(scale, scale.low + (scale.high - scale.low) * (x + 0.5) / 120);
      pen.fillRect(x, 0, 1.5, 12);
    }
    bar.append(format(scale.high));
  }
}
