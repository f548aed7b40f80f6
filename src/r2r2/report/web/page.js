"use strict";
// Values under the pointer, at the arrow keys and under a finger; names are set as text only.
const tip = document.getElementById("tip");
let shown = null;

function make(name, kind, said) {
  const node = document.createElement(name);
  if (kind) node.className = kind;
  if (said !== undefined) node.textContent = said;
  return node;
}

function hide() {
  if (shown) shown.cursor.replaceChildren();
  shown = null;
  tip.hidden = true;
}

function valuesAt(view, place) {
  const found = [];
  for (const line of view.data.lines) {
    if (view.off.has(line.line)) continue;
    for (const value of line.values) if (value[0] === place) found.push([line, value]);
  }
  return found.sort((a, b) => a[1][2] - b[1][2]);
}

function fill(view, place, found) {
  const { title, x, at } = view.data;
  const where = x ? `${x} ${at[place][1]}` : "";
  const rows = make("table");
  for (const [line, [, , , value, within, of]] of found) {
    const row = rows.insertRow();
    const name = row.insertCell();
    name.append(make("i", line.hollow ? `${line.style} hollow` : line.style), line.name);
    row.append(make("td", "value", value));
    row.append(make("td", "within", within && `[${within}]`));
    row.append(make("td", "of", of));
  }
  tip.replaceChildren(make("p", "", [title, where].filter(Boolean).join(" · ")), rows);
}

function mark(view, place, found) {
  const space = view.svg.namespaceURI;
  const box = view.svg.viewBox.baseVal;
  const cursor = [];
  if (!view.data.down) {
    const rule = document.createElementNS(space, "line");
    const x = view.data.at[place][0];
    for (const [key, value] of [["x1", x], ["x2", x], ["y1", view.top], ["y2", box.height - view.bottom]]) {
      rule.setAttribute(key, value);
    }
    cursor.push(rule);
  }
  for (const [line, [, x, y]] of found) {
    const dot = document.createElementNS(space, "circle");
    dot.setAttribute("class", line.hollow ? `${line.style} hollow` : line.style);
    for (const [key, value] of [["cx", x], ["cy", y], ["r", 4.5]]) dot.setAttribute(key, value);
    cursor.push(dot);
  }
  view.cursor.replaceChildren(...cursor);
}

function put(view, place, found, event) {
  const box = view.svg.getBoundingClientRect();
  const scale = box.width / view.svg.viewBox.baseVal.width;
  const [, x, y] = found[0][1];
  const left = event ? event.clientX : box.left + x * scale;
  const top = event ? event.clientY : box.top + y * scale;
  const { offsetWidth: width, offsetHeight: height } = tip;
  const beside = left + 18 + width > innerWidth ? left - 18 - width : left + 18;
  const above = top - height - 14 < 4 ? top + 20 : top - height - 14;
  tip.style.left = `${Math.max(6, Math.min(beside, innerWidth - width - 6))}px`;
  tip.style.top = `${Math.max(4, Math.min(above, innerHeight - height - 4))}px`;
}

function show(view, place, event) {
  const found = valuesAt(view, place);
  if (!found.length) return hide();
  if (shown !== view) hide();
  if (tip.hidden || view.place !== place) {
    fill(view, place, found);
    mark(view, place, found);
  }
  shown = view;
  view.place = place;
  tip.hidden = false;
  put(view, place, found, event);
}

function nearest(view, event) {
  const box = view.svg.getBoundingClientRect();
  const scale = view.svg.viewBox.baseVal.width / box.width;
  const down = view.data.down;
  const here = (down ? event.clientY - box.top : event.clientX - box.left) * scale;
  let best = 0;
  view.data.at.forEach(([at], place) => {
    if (Math.abs(at - here) < Math.abs(view.data.at[best][0] - here)) best = place;
  });
  return best;
}

function press(view, event) {
  const last = view.data.at.length - 1;
  const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -last, End: last };
  if (event.key === "Escape") return hide();
  if (!(event.key in steps)) return;
  event.preventDefault();
  const from = view.place === undefined ? 0 : view.place + steps[event.key];
  show(view, Math.max(0, Math.min(last, from)));
}

function watch(hit, data, off) {
  const svg = hit.parentNode.querySelector("svg");
  const [top, bottom] = data.margins || [0, 0];
  const view = { hit, svg, data, off, top, bottom, cursor: svg.querySelector(".cursor") };
  hit.addEventListener("pointermove", (event) => show(view, nearest(view, event), event));
  hit.addEventListener("pointerdown", (event) => show(view, nearest(view, event), event));
  hit.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && hide());
  hit.addEventListener("keydown", (event) => press(view, event));
  hit.addEventListener("focus", () => hit.matches(":focus-visible") && show(view, view.place || 0));
  hit.addEventListener("blur", hide);
}

function explain(figure, off) {
  for (const key of figure.querySelectorAll(".key")) {
    const line = Number(key.dataset.line);
    const parts = figure.querySelectorAll(`g[data-line="${line}"]`);
    const light = (on) => {
      figure.classList.toggle("focused", on && !off.has(line));
      for (const part of parts) part.classList.toggle("lit", on);
    };
    key.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && light(true));
    key.addEventListener("pointerleave", () => light(false));
    key.addEventListener("click", () => {
      const away = !off.has(line);
      if (away) off.add(line); else off.delete(line);
      key.setAttribute("aria-pressed", String(!away));
      for (const part of parts) part.classList.toggle("off", away);
      light(false);
    });
  }
}

for (const figure of document.querySelectorAll("figure")) {
  const data = JSON.parse(figure.querySelector("script").textContent);
  const off = new Set();
  figure.querySelectorAll(".hit").forEach((hit, number) => watch(hit, data[number], off));
  explain(figure, off);
}
document.addEventListener("pointerdown", (event) => {
  if (!event.target.classList.contains("hit")) hide();
});
// What the keyboard asked for stays: focus itself may have scrolled to it.
function follow() {
  if (!shown || !shown.hit.matches(":focus-visible")) return hide();
  const box = shown.hit.getBoundingClientRect();
  if (box.bottom > 0 && box.top < innerHeight) show(shown, shown.place); else hide();
}
addEventListener("scroll", follow, { passive: true });

// Light or dark: as the system has it, until the button says otherwise.
const root = document.documentElement;
const button = document.getElementById("theme");
const system = matchMedia("(prefers-color-scheme: dark)");
const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);

function name() {
  button.textContent = dark() ? "Light" : "Dark";
  button.setAttribute("aria-label", `Change to ${dark() ? "light" : "dark"} colours`);
}

try {
  const kept = localStorage.getItem("r2r2-theme");
  if (kept === "light" || kept === "dark") root.dataset.theme = kept;
} catch { /* Some browsers keep nothing for local files. */ }
button.addEventListener("click", () => {
  root.dataset.theme = dark() ? "light" : "dark";
  try { localStorage.setItem("r2r2-theme", root.dataset.theme); } catch { /* As above. */ }
  name();
});
system.addEventListener("change", name);
name();
button.hidden = false;
