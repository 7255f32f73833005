"use strict";
// Tooltips with exact values: the pointer, or the arrow keys on a focused chart, select an epoch or step.
for (const figure of document.querySelectorAll("figure[data-chart]")) {
  const stops = JSON.parse(figure.querySelector("script").textContent);
  if (!stops.length) continue;
  const plot = figure.querySelector(".plot"), tip = figure.querySelector(".tip"), cursor = figure.querySelector(".cursor");
  let at = -1;
  const show = (number) => {
    at = Math.max(0, Math.min(stops.length - 1, number));
    const [x, name, rows] = stops[at];
    tip.replaceChildren();
    tip.append(Object.assign(document.createElement("b"), { textContent: name }));
    for (const [who, text] of rows) {
      const line = document.createElement("div");
      for (const part of [who, text]) line.append(Object.assign(document.createElement("span"), { textContent: part }));
      tip.append(line);
    }
    tip.hidden = cursor.hidden = false;
    cursor.style.left = x + "%";
    const wide = plot.clientWidth, room = tip.offsetWidth + 14, place = (x / 100) * wide;
    tip.style.left = Math.max(0, Math.min(wide - tip.offsetWidth, place + room > wide ? place - room : place + 14)) + "px";
    plot.setAttribute("aria-valuenow", at + 1);
    plot.setAttribute("aria-valuetext", name + ": " + rows.map((row) => row[0] + " " + row[1]).join("; "));
  };
  const hide = () => { tip.hidden = cursor.hidden = true; };
  const nearest = (event) => {
    const box = plot.getBoundingClientRect(), x = (100 * (event.clientX - box.left)) / box.width;
    let best = 0;
    stops.forEach((stop, number) => { if (Math.abs(stop[0] - x) < Math.abs(stops[best][0] - x)) best = number; });
    show(best);
  };
  plot.setAttribute("role", "slider");
  plot.setAttribute("tabindex", "0");
  plot.setAttribute("aria-valuemin", "1");
  plot.setAttribute("aria-valuemax", stops.length);
  plot.setAttribute("aria-valuenow", "1");
  plot.setAttribute("aria-valuetext", stops[0][1] + ": " + stops[0][2].map((row) => row[0] + " " + row[1]).join("; "));
  plot.addEventListener("pointermove", nearest);
  plot.addEventListener("pointerdown", nearest);
  plot.addEventListener("pointerleave", () => { if (document.activeElement !== plot) hide(); });
  plot.addEventListener("focus", () => { if (plot.matches(":focus-visible")) show(Math.max(at, 0)); });
  plot.addEventListener("blur", hide);
  plot.addEventListener("keydown", (event) => {
    const to = { ArrowRight: at + 1, ArrowUp: at + 1, ArrowLeft: at - 1, ArrowDown: at - 1, Home: 0, End: stops.length - 1,
      PageUp: at + Math.ceil(stops.length / 10), PageDown: at - Math.ceil(stops.length / 10) }[event.key];
    if (event.key === "Escape") hide();
    if (to === undefined) return;
    event.preventDefault();
    show(to);
  });
}
for (const button of document.querySelectorAll("button.copy")) {
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
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((each) => { each.open = true; }));
