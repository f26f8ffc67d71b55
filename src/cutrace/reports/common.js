// Functions that the scripts of several pages share.
"use strict";
const $ = (id) => document.getElementById(id);
const data = (id) => JSON.parse($(id).textContent);

/** An element: text goes in as text, never as markup. */
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "class") element.className = value;
    else if (name in element && typeof value !== "string") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

const KERNELS = ["#7fb2f0", "#8fd0c6", "#b5a6f2", "#f0b27f", "#9fd08a", "#ec9fc0", "#d6c46a", "#86c5e6"];
const COLORS = { copy: "#4fb98a", fill: "#c9b458", graph: "#a48be0", api: "#a9b6c6", wait: "#e98f6d", nvtx: "#93a8f0", mark: "#6f86e8", region: "#5fb6d9", rest: "#8f98a5" };
const WORDS = { kernel: "kernel", copy: "copy", fill: "memory fill", graph: "CUDA graph", api: "API call", wait: "waiting call", nvtx: "NVTX range", mark: "NVTX mark", region: "region", rest: "left out" };

function colorOf(style) {
  if (style[2] !== "kernel") return COLORS[style[2]] || COLORS.rest;
  let sum = 7;
  for (const letter of style[0]) sum = (sum * 31 + letter.codePointAt(0)) >>> 0;
  return KERNELS[sum % KERNELS.length];
}
/** A time as text, in the unit of its size or in that of another time. */
function time(ns, like = ns) {
  const size = Math.abs(like);
  const [scale, unit] = size < 1e3 ? [1, "ns"] : size < 1e6 ? [1e3, "us"] : size < 1e9 ? [1e6, "ms"] : [1e9, "s"];
  return (like === ns ? Number((ns / scale).toPrecision(5)) : Number((ns / scale).toFixed(3)).toLocaleString("en")) + unit;
}

/** Scale a number by a step until it is below it, with the unit of each scale; rounding may carry into the next one. */
function scaled(value, step, units) {
  let at = 0;
  const digits = (unit) => unit[1];
  while (at < units.length - 1 && Math.abs(Number(value.toFixed(digits(units[at])))) >= step) { value /= step; at += 1; }
  return [value, units[at]];
}
const TIMES = [["ns", 0], ["us", 1], ["ms", 2], ["s", 3]];
const SIZES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"].map((unit) => [unit, 1]);

/** A value in the unit of a column as text, as the tables of the command line have it. */
function amount(value, unit) {
  if (value === null || value === undefined || Number.isNaN(value)) return "-";
  if (typeof value === "string") return value;
  if (unit === "1") return value > 0 && value < 0.0005 ? "<0.1%" : (100 * value).toFixed(1) + "%";
  if (unit === "ns" || unit === "change") {
    const [number, [name, digits]] = scaled(value, 1000, TIMES);
    return (unit === "change" && value > 0 ? "+" : "") + number.toFixed(digits) + name;
  }
  if (unit === "moment") return "@" + Math.trunc(value);
  if (unit === "bytes" || unit === "bytes/s") {
    const [number, [name]] = scaled(value, 1024, SIZES);
    return `${number.toFixed(1).replace(/\.0$/, "")} ${name}${unit === "bytes/s" ? "/s" : ""}`;
  }
  if (Number.isInteger(value) || Math.abs(value) >= 9999.5) return Math.round(value).toLocaleString("en");
  return Number(value.toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 12 });
}

/** The lower-case words of a search field; all of them have to be in a text that is found. */
const wordsOf = (field) => field.value.toLowerCase().split(/\s+/).filter(Boolean);

/** The key "/" goes to a search field. */
function slashKey(field) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.key !== "/" || event.target.matches("input")) return;
    event.preventDefault();
    field.focus();
    field.select();
  });
}

/** Of the buttons with a data attribute the one clicked last is pressed; act() gets its value. */
function choice(name, act) {
  const buttons = [...document.querySelectorAll(`[data-${name}]`)];
  for (const button of buttons) {
    button.addEventListener("click", () => {
      for (const other of buttons) other.setAttribute("aria-pressed", other === button);
      act(button.dataset[name]);
    });
  }
}

/** The cleared context of a canvas of this size in CSS pixels, in the resolution of the screen. */
function cleared(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1, wide = Math.round(width * ratio), high = Math.round(height * ratio);
  canvas.style.height = height + "px";
  if (canvas.width !== wide || canvas.height !== high) { canvas.width = wide; canvas.height = high; }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.textBaseline = "middle";
  return context;
}
const MONO = "11px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace";

/** Show a tooltip in a box beside a point, with a title and lines. */
function showTip(tip, box, x, y, title, lines) {
  tip.hidden = false;
  tip.replaceChildren(make("b", {}, title), ...lines.filter(Boolean).map((line) => make("div", {}, line)));
  const wide = tip.offsetWidth, tall = tip.offsetHeight;
  tip.style.left = Math.max(4, Math.min(x + 14, box.clientWidth - wide - 6)) + "px";
  tip.style.top = (y + 18 + tall < box.clientHeight || y < tall + 12 ? y + 18 : y - tall - 10) + "px";
}

const sample = make("i", { hidden: true });
document.body.append(sample);

/** A colour of the style for a canvas: an element has the one of the chosen theme. */
function color(name) {
  sample.style.color = `var(--${name})`;
  return getComputedStyle(sample).color;
}

/** The button "theme" turns light and dark; redraw() draws canvases again. */
function themeButton(redraw) {
  const scheme = matchMedia("(prefers-color-scheme: dark)"), root = document.documentElement;
  scheme.addEventListener("change", redraw);
  $("theme").addEventListener("click", () => {
    root.dataset.theme = (root.dataset.theme || (scheme.matches ? "dark" : "light")) === "dark" ? "light" : "dark";
    redraw();
  });
}
