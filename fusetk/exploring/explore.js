// The page of `fusetk explore`. docs/explore.md describes the requests. All text is inserted as
// text, never as HTML.
const find = (selector, parent = document) => parent.querySelector(selector);
const runs = [];  // a RunView for each run
const form = {
  text: find("#text"), prefix: find("#prefix"), target: find("#target"), beam: find("#beam"),
};
// Tokens that the user chose by a click: {run, tokens}, or null if the prefix is the typed text.
let chosen = null;

// Requests ----------------------------------------------------------------------------------------

async function send(path, body, signal) {
  const options = body && { method: "POST", body: JSON.stringify(body), signal };
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The service does not answer: is fusetk explore still running?");
  }
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

function showError(element, error) {
  element.textContent = error ? sentence(error.message) : "";
  element.hidden = !error;
}

function sentence(text) {
  const first = text.slice(0, 1).toUpperCase() + text.slice(1);
  return /[.?!]$/.test(first) ? first : first + ".";
}

// Numbers and differences -------------------------------------------------------------------------

function percent(logProbability) {
  const value = 100 * Math.exp(logProbability);
  if (value >= 9.95) return Math.round(value) + " %";
  return value >= 0.05 ? value.toFixed(1) + " %" : "< 0.1 %";
}

const decimal = (value) => value === null ? "\u2013" : value.toFixed(2).replace("-", "\u2212");

// Adds a bar for a probability; the number is beside it.
function addMeter(logProbability, parent) {
  const meter = create("meter", undefined, parent);
  meter.value = Math.exp(logProbability);
  meter.setAttribute("aria-hidden", "true");
}

// Returns the words of two texts with the smallest number of changes: [kind, word], where the kind
// is "same", "del" (only in the first text) or "ins" (only in the second).
function difference(before, after) {
  const a = before.split(" ");
  const b = after.split(" ");
  // common[i][j] is the length of the longest common subsequence of a[i:] and b[j:].
  const common = Array.from({ length: a.length + 1 }, () => new Array(b.length + 1).fill(0));
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      const longer = Math.max(common[i + 1][j], common[i][j + 1]);
      common[i][j] = a[i] === b[j] ? common[i + 1][j + 1] + 1 : longer;
    }
  }
  const words = [];
  let i = 0;
  let j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      words.push(["same", a[i++]]);
      j++;
    } else if (j === b.length || (i < a.length && common[i + 1][j] >= common[i][j + 1])) {
      words.push(["del", a[i++]]);
    } else {
      words.push(["ins", b[j++]]);
    }
  }
  return words;
}

function addDifference(label, before, after, parent) {
  const line = create("p", undefined, parent);
  create("span", label + " ", line);
  if (before === after) {
    line.append("the same translation");
    return line;
  }
  for (const [kind, word] of difference(before, after)) {
    if (kind === "same") line.append(word + " ");
    else {
      create(kind, word, line);
      line.append(" ");
    }
  }
  return line;
}

// Heatmaps ----------------------------------------------------------------------------------------

// Returns one scale for each measure, which covers those of several answers.
function mergeScales(answers) {
  const merged = {};
  for (const { scales } of answers) {
    for (const [name, scale] of Object.entries(scales)) {
      const other = merged[name] ?? scale;
      const signed = scale.low < 0 ? scale : other;  // a scale of negative numbers has other colours
      const high = Math.max(scale.high, other.high);
      const low = signed.low < 0 ? -Math.max(high, -scale.low, -other.low) : 0;
      merged[name] = { ...signed, low, high: low < 0 ? -low : high };
    }
  }
  return merged;
}

// A group of heatmaps of a run with the choice of view, layer and head.
class Heatmaps {
  constructor(run, kind, views, element) {
    this.run = run;
    this.kind = kind;  // "layers" or "attention": the heatmaps of two runs share their colours
    this.views = views;
    this.element = element;
    this.answer = null;
    this.figures = [];
    element.replaceChildren(find("#maps").content.cloneNode(true));
    this.error = find(".error", element);
    this.selects = {};
    for (const name of ["view", "layer", "head"]) {
      this.selects[name] = find("." + name + " select", element);
      this.selects[name].addEventListener("change", () => this.change(name));
    }
    for (const view of views) addOption(this.selects.view, view.what, view.title);
    if (views.length) this.offer();
    else {
      find(".controls", element).hidden = true;
      find(".bars", element).textContent = kind === "layers"
        ? "This model has no fusion and no connection with weights."
        : "This model has no attention.";
    }
  }

  // Fills the choices of layer and head for the current view.
  offer() {
    const view = this.view();
    const { layer, head } = this.selects;
    const isAttention = view.layers.length > 0;
    layer.replaceChildren();
    head.replaceChildren();
    addOption(layer, "", isAttention ? "all" : "mean over the words");
    view.layers.forEach((number) => addOption(layer, number, number));
    view.readers.forEach((name, i) => addOption(layer, i + 1, name + ", at each word"));
    if (isAttention) addOption(head, "mean", "mean");
    addOption(head, "all", "all");
    if (!isAttention) addOption(head, "mean", "mean");
    for (let number = 1; number <= view.heads; number++) addOption(head, number, number);
    find(".layer span", this.element).textContent = isAttention ? "Layer" : "Reader";
    find(".head span", this.element).textContent = isAttention ? "Head" : "Hop";
    find(".view", this.element).hidden = this.views.length < 2;
    find(".layer", this.element).hidden = layer.children.length < 2;
    find(".head", this.element).hidden = !view.heads;
  }

  view() {
    return this.views[this.selects.view.selectedIndex];
  }

  change(name) {
    if (name === "view") this.offer();
    this.load();
  }

  async load() {
    if (!this.views.length || !this.run.translation) return;
    this.abort?.abort();
    this.abort = new AbortController();
    const { layer, head } = this.selects;
    const chosenHead = /^[0-9]+$/.test(head.value) ? Number(head.value) : head.value;
    const body = {
      run: this.run.number,
      text: this.run.text,
      tokens: this.run.translation.tokens,
      what: this.view().what,
      layer: layer.value ? Number(layer.value) : null,
      head: this.view().heads ? chosenHead : null,
    };
    this.element.setAttribute("aria-busy", "true");
    try {
      this.answer = await send("heatmaps", body, this.abort.signal);
      showError(this.error, null);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.answer = null;
      showError(this.error, error);
    }
    this.element.removeAttribute("aria-busy");
    drawHeatmaps(this.kind);
  }

  draw(scales) {
    const own = this.answer?.scales ?? {};
    const used = Object.fromEntries(Object.keys(own).map((name) => [name, scales[name]]));
    leave();
    drawBars(used, find(".bars", this.element));
    this.figures = drawPanels(this.answer?.panels ?? [], used, find(".panels", this.element));
    this.highlight();
  }

  highlight() {
    for (const figure of this.figures) figure.highlight(this.run.step);
  }
}

function addOption(select, value, text) {
  create("option", text, select).value = value;
}

// Draws the heatmaps of one kind in all runs, with common scales.
function drawHeatmaps(kind) {
  const groups = runs.map((run) => run.heatmaps[kind]).filter((group) => group.views.length);
  const scales = mergeScales(groups.map((group) => group.answer).filter(Boolean));
  for (const group of groups) group.draw(scales);
}

// Runs --------------------------------------------------------------------------------------------

class RunView {
  constructor(number, description) {
    this.number = number;
    this.element = find("#run").content.cloneNode(true).firstElementChild;
    find("#runs").append(this.element);
    find(".reload", this.element).addEventListener("click", () => this.reload());
    find(".hold", this.element).addEventListener("click", () => this.begin(this.step + 1));
    find(".tokens", this.element).addEventListener("keydown", (event) => this.moveStep(event));
    this.describe(description);
  }

  find(selector) {
    return find(selector, this.element);
  }

  describe(description) {
    this.description = description;
    const { name, checkpoint, model, parameters, source, target, views } = description;
    const size = parameters.toLocaleString("en") + " parameters";
    this.find("h2").textContent = name + ", " + checkpoint;
    this.find(".about").textContent = [source + " to " + target, model, size].join("; ");
    const isLayers = (view) => ["fuse", "connect"].includes(view.what);
    this.heatmaps = {};
    for (const kind of ["layers", "attention"]) {
      const own = views.filter((view) => isLayers(view) === (kind === "layers"));
      this.heatmaps[kind] = new Heatmaps(this, kind, own, this.find("." + kind));
    }
  }

  async reload() {
    this.find(".state").textContent = "loading\u2026";
    try {
      this.describe(await send("reload", { run: this.number }));
      this.free = null;
      showError(this.find(".error"), null);
      this.find(".state").textContent = "loaded";
      if (this.translation) translateAll();
    } catch (error) {
      this.find(".state").textContent = "the model that was loaded before is still in use";
      showError(this.find(".error"), error);
    }
  }

  // Returns the prefix for this run: tokens, if they are tokens of its vocabulary, or text.
  prefix() {
    const origin = chosen && runs[chosen.run].description.vocabulary;
    return chosen && origin === this.description.vocabulary ? chosen.tokens : form.prefix.value;
  }

  async translate() {
    this.abort?.abort();
    this.abort = new AbortController();
    const text = form.text.value.trim();
    const body = {
      run: this.number,
      text,
      beam: Number(form.beam.value) || null,
      prefix: this.prefix(),
      target: form.target.value.trim(),
    };
    this.find(".state").textContent = "translating\u2026";
    this.find(".result").setAttribute("aria-busy", "true");
    try {
      const answer = await send("translate", body, this.abort.signal);
      const key = JSON.stringify([text, body.beam]);
      if (!answer.prefix.tokens.length) {
        this.free = { key, best: answer.translations[0] };
      } else if (this.free?.key !== key) {
        const free = await send("translate", { ...body, prefix: "" }, this.abort.signal);
        this.free = { key, best: free.translations[0] };
      }
      this.text = text;
      this.show(answer);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.find(".state").textContent = "";
      this.find(".result").hidden = true;
      this.find(".result").removeAttribute("aria-busy");
      this.answer = null;
      for (const [kind, group] of Object.entries(this.heatmaps)) {
        group.answer = null;  // hidden heatmaps must not change the colours of the other run
        drawHeatmaps(kind);
      }
      showError(this.find(".error"), error);
    }
  }

  show(answer) {
    this.answer = answer;
    showError(this.find(".error"), null);
    const notes = [answer.source.length + " source tokens, " + answer.seconds.toFixed(2) + " s"];
    for (const [where, words] of [["", answer.unknown], ["prefix: ", answer.prefix.unknown]]) {
      // Each word is isolated, because words from right to left would change the order.
      const isolated = words.map((word) => "\u2068" + word + "\u2069");
      if (words.length) notes.push(where + "unknown to the model: " + isolated.join(" "));
    }
    this.find(".state").textContent = notes.join("; ");
    this.find(".result").hidden = false;
    this.find(".result").removeAttribute("aria-busy");
    this.showChanges();
    this.showHypotheses();
    this.select(0);
  }

  best() {
    return this.answer?.translations[0];
  }

  // Shows what the prefix changed, and the difference from the other run.
  showChanges() {
    const parent = this.find(".changes");
    parent.replaceChildren();
    if (this.answer.prefix.tokens.length && this.free) {  // a reload forgets the free translation
      const before = this.free.best;
      const line = addDifference("change by the prefix:", before.text, this.best().text, parent);
      const values = decimal(before.normalized) + " \u2192 " + decimal(this.best().normalized);
      create("span", " (normalised score " + values + ")", line);
    }
    const first = runs[0].best();
    if (this.number > 0 && first) {
      const label = "difference from " + runs[0].description.name + ":";
      addDifference(label, first.text, this.best().text, parent);
    }
  }

  // The translations that can be selected: those of the beam, then the given one.
  candidates() {
    const { translations, given } = this.answer;
    return given ? [...translations, given] : translations;
  }

  showHypotheses() {
    const body = this.find(".hypotheses tbody");
    body.replaceChildren();
    this.candidates().forEach((translation, i) => {
      const row = create("tr", undefined, body);
      create("td", translation === this.answer.given ? "given" : String(i + 1), row);
      create("td", decimal(translation.normalized), row);
      create("td", decimal(translation.score), row);
      const button = create("button", undefined, create("td", undefined, row));
      button.type = "button";
      button.dir = "auto";
      button.addEventListener("click", () => this.select(i));
      for (const [kind, word] of difference(this.best().text, translation.text)) {
        if (kind === "ins") create("span", word, button).className = "differs";
        if (kind === "same") create("span", word, button);
        if (kind !== "del") button.append(" ");
      }
    });
  }

  // Selects a translation of the table.
  select(i) {
    this.translation = this.candidates()[i];
    this.find(".text").textContent = this.translation.text;
    this.find(".hypotheses tbody").querySelectorAll("button").forEach((button, row) => {
      button.setAttribute("aria-pressed", String(row === i));
    });
    const tokens = this.find(".tokens");
    tokens.replaceChildren();
    const isGiven = this.translation === this.answer.given;
    const forced = isGiven ? 0 : this.answer.prefix.tokens.length;
    this.translation.steps.forEach((step, position) => {
      const button = create("button", step.token, tokens);
      button.type = "button";
      create("small", (position < forced ? "forced, " : "") + percent(step.score), button);
      if (position < forced) button.className = "forced";
      addMeter(step.score, button);
      button.addEventListener("click", () => this.selectStep(position));
    });
    const last = this.translation.steps.length - 1;
    this.selectStep(Math.min(forced, last));
    for (const group of Object.values(this.heatmaps)) group.load();
  }

  // Shows the most probable tokens of a step and marks it in the heatmaps.
  selectStep(position) {
    this.step = position;
    const step = this.translation.steps[position];
    this.find(".tokens").querySelectorAll("button").forEach((button, i) => {
      button.setAttribute("aria-pressed", String(i === position));
      button.tabIndex = i === position ? 0 : -1;
    });
    this.find(".next h3").textContent = "Step " + (position + 1) + ": most probable tokens";
    const body = this.find(".next tbody");
    body.replaceChildren();
    const isListed = step.best.some((other) => other.token === step.token);
    for (const { token, score } of isListed ? step.best : [...step.best, step]) {
      const row = create("tr", undefined, body);
      const button = create("button", token, create("td", undefined, row));
      button.type = "button";
      if (token === step.token) {
        row.className = "taken";
        button.setAttribute("aria-label", token + ", the token of this translation");
        button.append(" \u2190");
      }
      if (position < this.translation.tokens.length && token === "</s>") {
        button.title = "the end of the translation cannot be forced";
      }
      button.disabled = token === "</s>";
      button.addEventListener("click", () => this.begin(position, token));
      const cell = create("td", undefined, row);
      addMeter(score, cell);
      cell.append(percent(score));
      create("td", decimal(score), row);
    }
    const hold = this.find(".hold");
    hold.disabled = position >= this.translation.tokens.length;
    hold.textContent = "Begin with the tokens up to \u201c" + step.token + "\u201d";
    for (const group of Object.values(this.heatmaps)) group.highlight();
  }

  moveStep(event) {
    const last = this.translation.steps.length - 1;
    const moves = { ArrowLeft: this.step - 1, ArrowRight: this.step + 1, Home: 0, End: last };
    if (!Object.hasOwn(moves, event.key) || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    this.selectStep(Math.max(0, Math.min(last, moves[event.key])));
    this.find(".tokens").children[this.step].focus();
  }

  // Makes translations begin with the first ``length`` tokens of this one, and perhaps one more.
  begin(length, token) {
    const tokens = this.translation.tokens.slice(0, length);
    if (token !== undefined) tokens.push(token);
    chosen = { run: this.number, tokens };
    translateAll();
  }
}

// The form ----------------------------------------------------------------------------------------

async function translateAll() {
  const message = find("#message");
  showError(message, form.text.value.trim() ? null : new Error("Type a sentence."));
  if (!message.hidden) return form.text.focus();
  if (!find("#ask").reportValidity()) return;  // the beam is not a number within the limits
  if (chosen) form.prefix.value = chosen.tokens.join(" ");
  store();
  const first = chosen ? runs[chosen.run] : runs[0];
  const others = runs.filter((run) => run !== first);
  const vocabularies = new Set(runs.map((run) => run.description.vocabulary));
  if (chosen && vocabularies.size > 1) {
    // Other vocabularies have other tokens: those runs get the text of the complete words.
    await first.translate();
    showPrefix(first);
    await Promise.all(others.map((run) => run.translate()));
  } else {
    await Promise.all(runs.map((run) => run.translate()));
    showPrefix(first);
  }
  for (const run of runs) if (run.answer) run.showChanges();
  document.body.dataset.done = Number(document.body.dataset.done ?? 0) + 1;
}

// Shows the complete words of the chosen tokens in the field of the prefix.
function showPrefix(run) {
  if (chosen && run.answer) form.prefix.value = run.answer.prefix.text;
  find("#clear").disabled = !(form.prefix.value || chosen);
}

// Stores the form in the address of the page.
function store() {
  const values = new URLSearchParams();
  values.set("text", form.text.value.trim());
  if (form.beam.value) values.set("beam", form.beam.value);
  if (form.target.value.trim()) values.set("target", form.target.value.trim());
  if (chosen) values.set("tokens", JSON.stringify(chosen));
  else if (form.prefix.value.trim()) values.set("prefix", form.prefix.value.trim());
  history.replaceState(null, "", "#" + values);
}

// Fills the form from the address of the page.
function restore() {
  const values = new URLSearchParams(location.hash.slice(1));
  for (const [name, field] of Object.entries(form)) field.value = values.get(name) ?? "";
  chosen = null;
  try {
    const stored = JSON.parse(values.get("tokens"));
    if (runs.includes(runs[stored?.run]) && Array.isArray(stored.tokens)) chosen = stored;
  } catch {
    // The address was edited: the tokens are ignored.
  }
  if (form.text.value) translateAll();
}

find("#ask").addEventListener("submit", (event) => {
  event.preventDefault();
  translateAll();
});
form.text.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.isComposing) return;
  event.preventDefault();
  translateAll();
});
form.text.addEventListener("input", () => {
  if (form.text.value.includes("\n")) form.text.value = form.text.value.replace(/\s*\n\s*/g, " ");
});
form.prefix.addEventListener("input", () => {
  chosen = null;
  find("#clear").disabled = !form.prefix.value;
});
find("#clear").addEventListener("click", () => {
  chosen = null;
  form.prefix.value = "";
  translateAll();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") leave();
});
window.addEventListener("hashchange", restore);
darkTheme.addEventListener("change", () => {
  for (const kind of ["layers", "attention"]) drawHeatmaps(kind);
});

async function start() {
  try {
    const { runs: descriptions, limits } = await send("runs");
    form.beam.max = limits.beam;
    form.beam.placeholder = descriptions[0].beam;
    descriptions.forEach((description, i) => runs.push(new RunView(i, description)));
    document.title = descriptions.map((description) => description.name).join(", ") + " \u2013 fusetk";
    restore();
  } catch (error) {
    showError(find("#message"), error);
  }
}

start();
