"use strict";
// Values on hover, by keyboard and by touch. Names are only ever set as text.
const tip = document.getElementById("tip");
let shown = null;

function makeElement(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function hide() {
  if (shown) shown.cursor.replaceChildren();
  shown = null;
  tip.hidden = true;
}

function valuesAt(view, index) {
  const values = [];
  for (const line of view.data.lines) {
    if (view.hidden.has(line.line)) continue;
    for (const value of line.values) if (value[0] === index) values.push([line, value]);
  }
  return values.sort((a, b) => a[1][2] - b[1][2]);
}

function fillTip(view, index, values) {
  const { title, x, at } = view.data;
  const position = x ? `${x} ${at[index][1]}` : "";
  const table = makeElement("table");
  for (const [line, [, , , value, interval, detail]] of values) {
    const row = table.insertRow();
    const name = row.insertCell();
    name.append(makeElement("i", line.hollow ? `${line.style} hollow` : line.style), line.name);
    row.append(makeElement("td", "value", value));
    row.append(makeElement("td", "within", interval && `[${interval}]`));
    row.append(makeElement("td", "of", detail));
  }
  tip.replaceChildren(makeElement("p", "", [title, position].filter(Boolean).join(" · ")), table);
}

function drawCursor(view, index, values) {
  const namespace = view.svg.namespaceURI;
  const box = view.svg.viewBox.baseVal;
  const cursor = [];
  if (!view.data.rows) {
    const rule = document.createElementNS(namespace, "line");
    const x = view.data.at[index][0];
    for (const [key, value] of [["x1", x], ["x2", x], ["y1", view.top], ["y2", box.height - view.bottom]]) {
      rule.setAttribute(key, value);
    }
    cursor.push(rule);
  }
  for (const [line, [, x, y]] of values) {
    const dot = document.createElementNS(namespace, "circle");
    dot.setAttribute("class", line.hollow ? `${line.style} hollow` : line.style);
    for (const [key, value] of [["cx", x], ["cy", y], ["r", 4.5]]) dot.setAttribute(key, value);
    cursor.push(dot);
  }
  view.cursor.replaceChildren(...cursor);
}

function placeTip(view, values, event) {
  const box = view.svg.getBoundingClientRect();
  const scale = box.width / view.svg.viewBox.baseVal.width;
  const [, x, y] = values[0][1];
  const left = event ? event.clientX : box.left + x * scale;
  const top = event ? event.clientY : box.top + y * scale;
  const { offsetWidth: width, offsetHeight: height } = tip;
  const beside = left + 18 + width > innerWidth ? left - 18 - width : left + 18;
  const above = top - height - 14 < 4 ? top + 20 : top - height - 14;
  tip.style.left = `${Math.max(6, Math.min(beside, innerWidth - width - 6))}px`;
  tip.style.top = `${Math.max(4, Math.min(above, innerHeight - height - 4))}px`;
}

function show(view, index, event) {
  const values = valuesAt(view, index);
  if (!values.length) return hide();
  if (shown !== view) hide();
  if (tip.hidden || view.index !== index) {
    fillTip(view, index, values);
    drawCursor(view, index, values);
  }
  shown = view;
  view.index = index;
  tip.hidden = false;
  placeTip(view, values, event);
}

function nearest(view, event) {
  const box = view.svg.getBoundingClientRect();
  const scale = view.svg.viewBox.baseVal.width / box.width;
  const pointer = (view.data.rows ? event.clientY - box.top : event.clientX - box.left) * scale;
  let best = 0;
  view.data.at.forEach(([position], index) => {
    if (Math.abs(position - pointer) < Math.abs(view.data.at[best][0] - pointer)) best = index;
  });
  return best;
}

function onKey(view, event) {
  const last = view.data.at.length - 1;
  const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -last, End: last };
  if (event.key === "Escape") return hide();
  if (!(event.key in steps)) return;
  event.preventDefault();
  const index = view.index === undefined ? 0 : view.index + steps[event.key];
  show(view, Math.max(0, Math.min(last, index)));
}

function listen(hit, data, hidden) {
  const svg = hit.parentNode.querySelector("svg");
  const [top, bottom] = data.margins;
  const view = { hit, svg, data, hidden, top, bottom, cursor: svg.querySelector(".cursor") };
  hit.addEventListener("pointermove", (event) => show(view, nearest(view, event), event));
  hit.addEventListener("pointerdown", (event) => show(view, nearest(view, event), event));
  hit.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && hide());
  hit.addEventListener("keydown", (event) => onKey(view, event));
  hit.addEventListener("focus", () => hit.matches(":focus-visible") && show(view, view.index || 0));
  hit.addEventListener("blur", hide);
}

function connectLegend(figure, hidden) {
  for (const key of figure.querySelectorAll(".key")) {
    const line = Number(key.dataset.line);
    const parts = figure.querySelectorAll(`g[data-line="${line}"]`);
    const highlight = (on) => {
      figure.classList.toggle("focused", on && !hidden.has(line));
      for (const part of parts) part.classList.toggle("lit", on);
    };
    key.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && highlight(true));
    key.addEventListener("pointerleave", () => highlight(false));
    key.addEventListener("click", () => {
      const hide = !hidden.has(line);
      if (hide) hidden.add(line); else hidden.delete(line);
      key.setAttribute("aria-pressed", String(!hide));
      for (const part of parts) part.classList.toggle("off", hide);
      highlight(false);
    });
  }
}

for (const figure of document.querySelectorAll("figure")) {
  const data = JSON.parse(figure.querySelector("script").textContent);
  const hidden = new Set();
  figure.querySelectorAll(".hit").forEach((hit, number) => listen(hit, data[number], hidden));
  connectLegend(figure, hidden);
}
document.addEventListener("pointerdown", (event) => {
  if (!event.target.classList.contains("hit")) hide();
});
// Keep values that the keyboard requested: focusing the figure may have scrolled the page.
function onScroll() {
  if (!shown || !shown.hit.matches(":focus-visible")) return hide();
  const box = shown.hit.getBoundingClientRect();
  if (box.bottom > 0 && box.top < innerHeight) show(shown, shown.index); else hide();
}
addEventListener("scroll", onScroll, { passive: true });

// The system's color scheme applies until the button overrides it.
const root = document.documentElement;
const button = document.getElementById("theme");
const systemDark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : systemDark.matches);

function labelButton() {
  button.textContent = isDark() ? "Light" : "Dark";
  button.setAttribute("aria-label", `Switch to the ${isDark() ? "light" : "dark"} theme`);
}

try {
  const stored = localStorage.getItem("r2r2-theme");
  if (stored === "light" || stored === "dark") root.dataset.theme = stored;
} catch { /* Some browsers have no storage for local files. */ }
button.addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  try { localStorage.setItem("r2r2-theme", root.dataset.theme); } catch { /* As above. */ }
  labelButton();
});
systemDark.addEventListener("change", labelButton);
labelButton();
button.hidden = false;

// Notes are closed until a mark leads to them, and printed in full.
function openNotes() {
  const note = location.hash.startsWith("#note-") && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const notes = note && note.closest("details");
  if (!notes || notes.open) return;
  notes.open = true;
  note.scrollIntoView();
}
addEventListener("hashchange", openNotes);
openNotes();
const opened = [];
addEventListener("beforeprint", () => {
  for (const notes of document.querySelectorAll("details:not([open])")) {
    notes.open = true;
    opened.push(notes);
  }
});
addEventListener("afterprint", () => {
  for (const notes of opened.splice(0)) notes.open = false;
});
