// What the scripts of several pages share.
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
function time(ns) {
  const size = Math.abs(ns);
  const [scale, unit] = size < 1e3 ? [1, "ns"] : size < 1e6 ? [1e3, "us"] : size < 1e9 ? [1e6, "ms"] : [1e9, "s"];
  return Number((ns / scale).toPrecision(5)) + unit;
}

/** The button "theme" turns light and dark; redraw() draws canvases again. */
function themeButton(redraw) {
  $("theme").addEventListener("click", () => {
    const dark = getComputedStyle(document.documentElement).getPropertyValue("--page").trim() === "#12151a";
    document.documentElement.dataset.theme = dark ? "light" : "dark";
    redraw();
  });
}
