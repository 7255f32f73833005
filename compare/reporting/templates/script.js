"use strict";
// What the pages do beyond being read. Everything can be seen without it.
document.documentElement.classList.add("live");
const all = (selector, within = document) => [...within.querySelectorAll(selector)];

// Charts. Positions are percentages of the whole horizontal axis; a view is the part of it that is shown.
const hidden = {}; // by group, what the checkboxes hide
const isShown = (group, key) => !key.split(" ").some((token) => hidden[group]?.has(token));

class Chart {
  constructor(figure) {
    this.figure = figure;
    this.group = figure.dataset.group;
    this.stops = JSON.parse(figure.querySelector("script").textContent);
    this.views = JSON.parse(figure.dataset.views ?? "[]");
    this.ways = figure.dataset.ways && JSON.parse(figure.dataset.ways);
    for (const part of ["plot", "tip", "cursor", "chosen", "xs", "ys"]) this[part] = figure.querySelector("." + part);
    this.names = this.plot.dataset.names && JSON.parse(this.plot.dataset.names);
    this.at = -1;
    this.fixed = all("circle.mark, svg.at, line.epoch, line.bar", this.plot).map((each) => {
      const names = { circle: ["cx"], line: ["x1", "x2"] }[each.tagName] ?? ["x"];
      return { each, names, x: parseFloat(each.getAttribute(names[0])) };
    });
    const ticks = (within, side) => all("span:not(.name)", within).map((each) => [parseFloat(each.style[side]), each.textContent]);
    this.whole = { low: 0, high: 100, ticks: ticks(this.xs, "left"), x_name: this.xs.querySelector(".name").textContent };
    this.view = this.whole;
    this.heights = ticks(this.ys, "top");
    this.lines = all("path.curve, path.core, path.interval", this.plot).map((each) => [each, each.getAttribute("d")]);
    this.marks = all("circle.mark, svg.at", this.plot).filter((each) => !each.querySelector(".cross")).map((each) => {
      const name = each.tagName === "circle" ? "cy" : "y";
      return [each, name, parseFloat(each.getAttribute(name))];
    });
  }
  rows(stop) {
    if (this.names) return this.names.map((name, number) => [name, stop[2][number]]);
    return stop[2].filter((row) => isShown(this.group, row[2]));
  }
  place(x) { return (100 * (x - this.view.low)) / (this.view.high - this.view.low); }
  nearest(x) {
    let best = 0;
    this.stops.forEach((stop, number) => { if (Math.abs(stop[0] - x) < Math.abs(this.stops[best][0] - x)) best = number; });
    return best;
  }
  said(stop) { return stop[1] + ": " + this.rows(stop).map((row) => row[0] + " " + row[1]).join("; "); }
  select(number) {
    const inside = this.stops.flatMap((stop, k) => (stop[0] >= this.view.low && stop[0] <= this.view.high ? [k] : []));
    this.at = Math.max(inside[0] ?? 0, Math.min(inside.at(-1) ?? 0, number));
    const stop = this.stops[this.at];
    this.plot.setAttribute("aria-valuenow", this.at + 1);
    this.plot.setAttribute("aria-valuetext", this.said(stop));
    for (const other of charts.filter((each) => each.group === this.group)) {
      other.mark(stop[0], other === this || other.figure.dataset.kind === this.figure.dataset.kind);
    }
  }
  mark(x, withValues) { // beside the lines, at the height of their middle
    const left = this.place(x), stop = this.stops[this.nearest(x)], rows = stop ? this.rows(stop) : [];
    this.cursor.hidden = left < 0 || left > 100;
    this.cursor.style.left = left + "%";
    this.tip.hidden = this.cursor.hidden || !withValues || !rows.length;
    if (this.tip.hidden) return;
    const line = (tag, texts) => {
      const made = document.createElement(tag);
      made.append(...texts.map((text) => Object.assign(document.createElement("span"), { textContent: text })));
      return made;
    };
    this.tip.replaceChildren(line("b", [stop[1]]), ...rows.map((row) => line("div", row.slice(0, 2))));
    const wide = this.plot.clientWidth, room = this.tip.offsetWidth + 16, at = (left / 100) * wide;
    const beside = at + room > wide ? at - room : at + 16;
    this.tip.style.left = Math.max(0, Math.min(wide - this.tip.offsetWidth, beside)) + "px";
    const heights = rows.map((row) => row[3]).filter((y) => typeof y === "number");
    const middle = heights.length ? (Math.min(...heights) + Math.max(...heights)) / 2 : 50;
    const top = (middle / 100) * this.plot.clientHeight - this.tip.offsetHeight / 2;
    this.tip.style.top = Math.max(0, Math.min(this.plot.clientHeight - this.tip.offsetHeight, top)) + "px";
  }
  unmark() { this.tip.hidden = this.cursor.hidden = true; }
  zoom(view) {
    this.view = view;
    const part = view.low > 0 || view.high < 100;
    for (const area of all("svg.area", this.plot)) {
      const height = area.getAttribute("viewBox").split(" ")[3];
      area.setAttribute("viewBox", `${10 * view.low} 0 ${10 * (view.high - view.low)} ${height}`);
      area.classList.toggle("part", part);
    }
    for (const { each, names, x } of this.fixed) {
      const to = this.place(x);
      names.forEach((name) => each.setAttribute(name, to + "%"));
      each.classList.toggle("away", to < -0.5 || to > 100.5);
    }
    const label = (text, x) => {
      const made = Object.assign(document.createElement("span"), { textContent: text });
      if (x === undefined) made.className = "name"; else made.style.left = this.place(x) + "%";
      return made;
    };
    this.xs.replaceChildren(...view.ticks.map(([x, text]) => label(text, x)), label(view.x_name));
    this.unmark();
  }
  draw(ways) { // the lines as they are, or each point as the mean of five; on a linear or a logarithmic axis
    if (!this.ways) return;
    const { low, high, bottom, ticks } = this.ways, log = ways.has("log") && ticks.length > 0;
    const position = (value) => 100 * (1 - Math.log(Math.max(value, bottom) / bottom) / Math.log(high / bottom));
    const bent = (y) => (log ? position(high - (y / 100) * (high - low)) : y);
    const redrawn = (path, most) => path.split(/(?=M)/).map((part) => {
      const place = /([ML])(\S+) ([\d.-]+)/g, heights = [...part.matchAll(place)].map((each) => each[3] / 10);
      let k = -1;
      return part.replace(place, (_, pen, x) => {
        const reach = Math.max(0, Math.min(most, ++k - 1, heights.length - 1 - k)); // a part begins with a point twice
        const near = heights.slice(k - reach, k + reach + 1), mean = near.reduce((sum, y) => sum + y, 0) / near.length;
        return `${pen}${x} ${(10 * bent(mean)).toFixed(1)}`;
      });
    }).join("");
    for (const [each, path] of this.lines) {
      each.setAttribute("d", redrawn(path, ways.has("smooth") && !each.classList.contains("interval") ? 2 : 0));
    }
    for (const [each, name, y] of this.marks) each.setAttribute(name, bent(y) + "%");
    const shown = log ? ticks.map(([value, text]) => [position(value), text]) : this.heights;
    const rules = all("line.rule", this.plot), svg = rules[0]?.parentElement;
    this.ys.replaceChildren(...shown.map(([y, text]) => {
      const made = Object.assign(document.createElement("span"), { textContent: text });
      made.style.top = y + "%";
      return made;
    }));
    svg?.prepend(...shown.map(([y]) => {
      const made = rules[0].cloneNode();
      for (const name of ["y1", "y2"]) made.setAttribute(name, y + "%");
      return made;
    }));
    rules.forEach((each) => each.remove());
    for (const each of all("line.zero", this.plot)) each.classList.toggle("away", log);
    this.unmark();
  }
  part(low, high) { // what was chosen by dragging: a few of its steps are named below it
    let next = low;
    const ticks = this.stops.flatMap(([x, text]) => {
      if (x < next || x > high) return [];
      next = x + (high - low) / 4;
      return [[x, text.split(", ").slice(0, 2).join(", ")]];
    });
    return { low, high, ticks, x_name: "double-click to see all " + this.group };
  }
  drag() { // chooses a part of the horizontal axis, with a mouse: fingers scroll
    const { plot, chosen } = this;
    let from = null;
    const range = (event) => [from, this.along(event)].sort((a, b) => a - b);
    plot.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "mouse" && event.button === 0) from = this.along(event);
    });
    plot.addEventListener("pointermove", (event) => {
      if (from === null) return;
      const [left, right] = range(event).map((x) => this.place(x));
      Object.assign(chosen.style, { left: left + "%", width: right - left + "%" });
      chosen.hidden = right - left < 1;
    });
    addEventListener("pointerup", (event) => {
      if (from === null) return;
      const [low, high] = range(event);
      from = null;
      if (!chosen.hidden && this.stops.some(([x]) => x >= low && x <= high)) {
        this.beside().forEach((each) => each.zoom(this.part(low, high)));
        if (this.group === "steps") all("[data-view]").forEach((each) => each.setAttribute("aria-pressed", false));
      }
      chosen.hidden = true;
    });
    plot.addEventListener("dblclick", () => {
      this.beside().forEach((each) => { each.zoom(each.views[0]?.name ? each.views[0] : each.whole); each.show(); });
      if (this.group === "steps") document.querySelector("[data-view]")?.setAttribute("aria-pressed", true);
    });
  }
  beside() { return charts.filter((each) => each.group === this.group && each.stops.length > 2); } // they zoom together
  along(event) { // where on the whole axis the pointer is, within what is shown
    const box = this.plot.getBoundingClientRect(), share = (event.clientX - box.left) / box.width;
    return this.view.low + Math.max(0, Math.min(1, share)) * (this.view.high - this.view.low);
  }
  show() { // hides the lines that are not chosen, and fits the axis to the longest of the others
    const lines = all("g[data-key]", this.plot);
    for (const each of lines) each.classList.toggle("away", !isShown(this.group, each.dataset.key));
    const ends = lines.filter((each) => each.dataset.end && !each.classList.contains("away"));
    if (this.views.length && !this.views[0].name) {
      const end = Math.max(0, ...ends.map((each) => parseFloat(each.dataset.end)));
      this.zoom(this.views.find((view) => view.high >= end) ?? this.views.at(-1));
    }
    this.unmark();
  }
  listen() {
    const { plot, stops } = this;
    const hide = () => charts.filter((each) => each.group === this.group).forEach((each) => each.unmark());
    const follow = (event) => this.select(this.nearest(this.along(event)));
    const now = { role: "slider", tabindex: 0, "aria-valuemin": 1, "aria-valuemax": stops.length, "aria-valuenow": 1 };
    for (const [name, value] of Object.entries(now)) plot.setAttribute(name, value);
    plot.setAttribute("aria-valuetext", this.said(stops[0]));
    plot.addEventListener("pointermove", follow);
    plot.addEventListener("pointerdown", follow);
    if (stops.length > 2) this.drag();
    plot.addEventListener("pointerleave", () => { if (document.activeElement !== plot) hide(); });
    plot.addEventListener("focus", () => { if (plot.matches(":focus-visible")) this.select(Math.max(this.at, 0)); });
    plot.addEventListener("blur", hide);
    plot.addEventListener("keydown", (event) => {
      const tenth = Math.ceil(stops.length / 10), at = this.at;
      const to = { ArrowRight: at + 1, ArrowUp: at + 1, ArrowLeft: at - 1, ArrowDown: at - 1, Home: 0, End: stops.length - 1,
        PageUp: at + tenth, PageDown: at - tenth }[event.key];
      if (event.key === "Escape") hide();
      if (to === undefined) return;
      event.preventDefault();
      this.select(to);
    });
  }
}

const charts = all("figure[data-chart]").map((figure) => new Chart(figure));
for (const chart of charts) if (chart.stops.length) chart.listen();
for (const box of all("input[data-shows]")) {
  const choose = () => {
    const { of: group, shows } = box.dataset;
    (hidden[group] ??= new Set())[box.checked ? "delete" : "add"](shows);
    charts.filter((each) => each.group === group).forEach((each) => each.show());
  };
  box.addEventListener("change", choose);
  if (!box.checked) choose(); // kept by the browser when the page was loaded again
}
for (const button of all("[data-view]")) {
  button.addEventListener("click", () => {
    all("[data-view]").forEach((each) => each.setAttribute("aria-pressed", each === button));
    for (const each of charts) if (each.views[button.dataset.view]?.name) each.zoom(each.views[button.dataset.view]);
  });
}
const ways = new Set();
for (const button of all("[data-way]")) {
  button.addEventListener("click", () => {
    const { way } = button.dataset;
    ways[ways.has(way) ? "delete" : "add"](way);
    button.setAttribute("aria-pressed", ways.has(way));
    charts.forEach((each) => each.draw(ways));
  });
}

// The list of runs: filter and sort.
for (const form of all(".filters")) {
  const rows = all("tbody tr[data-date]"), body = rows[0]?.parentElement, told = form.querySelector("output");
  const lists = all("select", form), asked = new URLSearchParams(location.hash.slice(1)); // so that a choice can be shared
  for (const each of lists) {
    if ([...each.options].some((option) => option.value === asked.get(each.name))) each.value = asked.get(each.name);
  }
  const apply = () => {
    const chosen = Object.fromEntries(lists.map((each) => [each.name, each.value]));
    const set = lists.filter((each) => each.selectedIndex > 0).map((each) => [each.name, each.value]);
    if (set.length || location.hash) history.replaceState(null, "", "#" + new URLSearchParams(set));
    const { sort, ...filters } = chosen;
    for (const row of rows) row.hidden = Object.entries(filters).some(([name, value]) => value && row.dataset[name] !== value);
    const [by, backwards] = [sort.replace("-", ""), sort.startsWith("-")];
    rows.sort((a, b) => a.dataset[by].localeCompare(b.dataset[by], "en", { numeric: true }) * (backwards ? -1 : 1));
    body?.append(...rows);
    const shown = rows.filter((row) => !row.hidden).length;
    told.textContent = shown === rows.length ? "" : `${shown} of ${rows.length} runs shown`;
    for (const head of all("th[data-sort]")) {
      head.ariaSort = head.dataset.sort === by ? (backwards ? "descending" : "ascending") : null;
    }
  };
  for (const head of all("th[data-sort]")) {
    const button = Object.assign(document.createElement("button"), { type: "button", className: "sort", textContent: head.textContent });
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const sort = form.querySelector("[name=sort]"), by = head.dataset.sort;
      sort.value = sort.value === by ? "-" + by : by;
      apply();
    });
  }
  form.addEventListener("change", apply);
  apply();
}

for (const button of all("button.copy")) {
  button.addEventListener("click", async () => {
    const text = button.parentElement.querySelector("pre").textContent;
    let done = true;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const field = Object.assign(document.createElement("textarea"), { value: text });
      document.body.append(field);
      field.select();
      done = document.execCommand("copy");
      field.remove();
      button.focus();
    }
    button.textContent = done ? "Copied" : "Press Ctrl+C";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
}
// Open all details before printing.
addEventListener("beforeprint", () => all("details").forEach((each) => { each.open = true; }));
