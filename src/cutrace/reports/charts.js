// Charts of a page. uPlot draws axes and zooms; this file draws the content between the axes.
const AXIS_FONT = "11px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
const SERIES = ["s0", "s1", "s2", "s3", "s4", "s5"];
// More bars than these stand side by side; more rows of a heat map have the farthest ones above it.
const LISTED = 24, FARTHEST = 6, WINDOWS = 8;
// A value stands out beyond this robust z-score and this share of the median, as in the sentences.
const OUTSTANDING = 6, AWAY = 0.03, FEWEST = 4;
const NOTHING = 255;
const VIRIDIS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
const SECOND = 1e9, DAY = 86400 * SECOND;

// Numbers

const median = (sorted) => sorted.length ? (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2 : NaN;
const ascending = (values) => Float64Array.from(values).sort();
const quantile = (sorted, share) => sorted[Math.round(share * (sorted.length - 1))];
const PREFIXES = ["", "k", "M", "G", "T", "P", "E"].map((name) => [name, 1]);
/** A number with three digits and a prefix. */
function prefixed(value) {
  const [number, [prefix]] = scaled(value, 1000, PREFIXES);
  return `${Number(number.toPrecision(3))} ${prefix}`.trim();
}
const signed = (value, unit) => (value > 0 ? "+" : "") + amount(value, unit);

/** A number of bytes in the largest unit in which a step is not too small. */
function sizeTick(bytes, largest, step) {
  let unit = SIZES.length - 1;
  while (unit > 0 && (largest < 1024 ** unit || step < 0.05 * 1024 ** unit)) unit -= 1;
  return `${(bytes / 1024 ** unit).toLocaleString("en", { maximumFractionDigits: 2 })} ${SIZES[unit][0]}`;
}

/** The values of an axis in one unit. Labels that uPlot leaves out are null. */
function tickTexts(unit, ticks) {
  const known = ticks.filter((tick) => tick !== null);
  const largest = Math.max(...known.map(Math.abs));
  const step = known.length > 1 ? known[1] - known[0] : largest;
  return ticks.map((tick) => {
    if (tick === null) return "";
    if (tick === 0) return "0";
    if (unit === "ns" || unit === "change") return time(tick, largest);
    if (unit === "bytes" || unit === "bytes/s") return sizeTick(tick, largest, step) + (unit === "bytes/s" ? "/s" : "");
    if (unit === "1") return (100 * tick).toFixed(Math.max(0, Math.ceil(-Math.log10(100 * step) - 1e-9))) + "%";
    return amount(tick, unit);
  });
}

// Steps between the ticks of an axis.
const DECIMAL = [];
for (let power = -6; power <= 24; power++) DECIMAL.push(...[1, 2, 5].map((first) => Number(`${first}e${power}`)));
const BINARY = [...Array(60).keys()].map((power) => 2 ** power);
const WHOLE = DECIMAL.filter((step) => step >= 1);
const CLOCK = [
  ...DECIMAL.filter((step) => step < SECOND),
  ...[1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200].map((seconds) => seconds * SECOND),
  ...[1, 2, 5, 10, 20, 50, 100].map((days) => days * DAY),
];

/** The wall clock at this number of ns after the start, after the first day with its date; `step` (ns) gives the digits.
 * Without a wall clock, the time since. */
function clockText(start, ns, step) {
  if (!start.day) return time(Math.round(ns), Math.max(step, 1));
  const since = start.at + Math.round(ns), days = Math.floor(since / DAY), at = since - days * DAY;
  const date = new Date(Date.parse(start.day) + days * (DAY / 1e6)).toISOString().slice(5, 10);
  if (step >= DAY) return date;
  const digits = step >= SECOND ? 0 : Math.min(9, Math.ceil(-Math.log10(step / SECOND) - 1e-9));
  const whole = Math.floor(at / SECOND), parts = [whole / 3600, whole / 60 % 60, whole % 60];
  const fraction = digits ? "." + String(at % SECOND).padStart(9, "0").slice(0, digits) : "";
  return (days ? `${date} ` : "") + parts.map((part) => String(Math.floor(part)).padStart(2, "0")).join(":") + fraction;
}

// Axes: what uPlot needs of each

function valueAxis(unit, label) {
  const binary = unit === "bytes" || unit === "bytes/s";
  return {
    label, incrs: binary ? BINARY : unit === "" ? WHOLE : DECIMAL,
    values: (u, ticks) => tickTexts(unit, ticks),
  };
}

/** A logarithmic axis. Less than a decade has ticks at equal distances, many decades have the powers of ten. */
function logAxis(unit, label) {
  const splits = (u, axis, low, high) => {
    const decades = Math.log10(high / low), first = Math.floor(Math.log10(low));
    if (decades < 1) {
      const step = DECIMAL.find((one) => one * 5 >= high - low), begin = Math.ceil(low / step);
      return Array.from({ length: Math.floor(high / step) - begin + 1 }, (_, at) => (begin + at) * step);
    }
    const powers = Array.from({ length: Math.ceil(decades) + 1 }, (_, at) => 10 ** (first + at));
    const ticks = decades > 3 ? powers : powers.flatMap((power) => [power, 2 * power, 5 * power]);
    return ticks.filter((tick) => tick >= low && tick <= high);
  };
  return { label, splits, filter: (u, ticks) => ticks, values: (u, ticks) => ticks.map((tick) => unit === "ns" ? time(tick) : amount(tick, unit)) };
}

function clockAxis(start) {
  return {
    label: start.day ? `wall clock from ${start.day}, UTC` : "time since the start", incrs: CLOCK, space: 100,
    splits: (u, axis, low, high, step) => {
      const origin = start.day ? start.at : 0, ticks = [];
      for (let tick = Math.ceil((origin + low) / step) * step - origin; tick <= high; tick += step) ticks.push(tick);
      return ticks;
    },
    values: (u, ticks, axis, space, step) => ticks.map((tick) => start.day ? clockText(start, tick, step) : time(tick, Math.max(...ticks))),
  };
}

/** An axis of labels by their index. */
function labelAxis(labels, label, space) {
  return {
    label, space, incrs: WHOLE,
    values: (u, ticks) => ticks.map((tick) => Number.isInteger(tick) && labels[tick] !== undefined ? labels[tick] : ""),
  };
}

/** A string that fits into this number of pixels, shortened in the middle. */
function fitted(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  let letters = text.length;
  const cut = () => text.slice(0, Math.ceil(letters * 0.6)) + "…" + text.slice(text.length - Math.floor(letters * 0.4));
  while (letters > 1 && context.measureText(cut()).width > room) letters -= 1;
  return cut();
}

/** The whole axis. Names at the side get at most a third of the chart, on a phone nearly half of it. */
function wholeAxis({ room, ...axis }, side) {
  const texts = axis.values;
  const measured = (u, ticks) => {
    if (!ticks) return 40;
    u.ctx.font = AXIS_FONT;
    return Math.ceil(Math.max(24, ...ticks.map((text) => u.ctx.measureText(text).width))) + 14;
  };
  const values = !side ? texts : (u, ticks, ...more) => {
    u.ctx.font = AXIS_FONT;
    return texts(u, ticks, ...more).map((text) => fitted(u.ctx, text, u.width * (room || (u.width < 600 ? 0.45 : 0.3))));
  };
  const lines = { stroke: () => color("grid"), width: 1 };
  return {
    stroke: () => color("soft"), font: AXIS_FONT, labelFont: AXIS_FONT, labelSize: 18, gap: 4, grid: lines, ticks: { ...lines, size: 5 },
    size: side ? measured : 30, ...axis, label: axis.label || null, values,
  };
}

// A plot: two axes, a drawing, a tooltip

const plots = new Set();
const drawCharts = () => plots.forEach((u) => u.redraw(false));

/**
 * Add a plot to an element. It has axes `x` and `y` with `min`, `max`, `axis` and perhaps `log`, `draw(u, context)` in
 * pixels of the canvas, `tip(x, y)` with a title and lines, and a `height`. Both axes zoom if `both`; the first row is
 * on top with `down`; the plots in `others` follow the zoom of x. `totals` are strings beside the rows, on the right.
 */
function addPlot(host, { x, y, draw, tip, height, both, down, others, totals }) {
  const box = make("div", { class: "plot" }), note = make("div", { class: "tip", hidden: true });
  const back = make("button", { type: "button", class: "back", hidden: true }, "whole chart");
  box.append(note, back);
  host.append(box);
  const home = () => { u.setScale("x", { min: x.min, max: x.max }); u.setScale("y", { min: y.min, max: y.max }); };
  back.addEventListener("click", home);
  const point = (u) => {
    const { left, top } = u.cursor;
    const told = left >= 0 && tip(u.posToVal(left, "x"), u.posToVal(top, "y"), u);
    note.hidden = !told;
    if (told) showTip(note, box, left + u.over.offsetLeft, top + u.over.offsetTop, told[0], told[1]);
  };
  const zoomed = (u, key) => {
    const { x: across, y: up } = u.scales;
    back.hidden = across.min === x.min && across.max === x.max && up.min === y.min && up.max === y.max;
    if (key === "x") (others || []).forEach((other) => {
      if (other.scales.x.min !== across.min || other.scales.x.max !== across.max) other.setScale("x", { min: across.min, max: across.max });
    });
  };
  const within = (u) => {
    const context = u.ctx, { left, top, width, height: tall } = u.bbox;
    context.save();
    context.beginPath();
    context.rect(left, top, width, tall);
    context.clip();
    draw(u, context);
    context.restore();
  };
  const beside = (u) => {
    u.ctx.font = AXIS_FONT.replace(/\d+/, (size) => size * uPlot.pxRatio);
    u.ctx.textAlign = "left";
    u.ctx.textBaseline = "middle";
    u.ctx.fillStyle = color("ink");
    totals.forEach((total, at) => u.ctx.fillText(total, u.bbox.left + u.bbox.width + 6 * uPlot.pxRatio, u.valToPos(at, "y", true)));
  };
  const options = {
    width: Math.max(box.clientWidth, 200), height, legend: { show: false }, padding: [8, totals ? 100 : 34, 0, null],
    cursor: { points: { show: false }, drag: { x: true, y: Boolean(both), uni: both ? 24 : undefined }, bind: { dblclick: () => home } },
    scales: {
      x: { time: false, distr: x.log ? 3 : 1, range: (u, low, high) => [low, high] },
      y: { auto: false, distr: y.log ? 3 : 1, dir: down ? -1 : 1, range: () => [y.min, y.max] },
    },
    series: [{}, { paths: () => null, points: { show: false } }],
    axes: [wholeAxis(x.axis, false), wholeAxis(y.axis, true)],
    hooks: { draw: totals ? [within, beside] : [within], setCursor: [point], setScale: [zoomed] },
  };
  const u = new uPlot(options, [[x.min, x.max], [null, null]], box);
  plots.add(u);
  const watch = new ResizeObserver(() => {
    const width = Math.max(box.clientWidth, 200);
    if (width !== u.width) u.setSize({ width, height });
  });
  watch.observe(box);
  u.remove = () => { watch.disconnect(); plots.delete(u); u.destroy(); box.remove(); };
  return u;
}

/** A group of buttons with one pressed button; act() gets the value of this button. */
function chooser(label, values, chosen, act) {
  const group = make("span", { class: "chooser", role: "group", "aria-label": label }, label);
  for (const [value, text] of Object.entries(values)) {
    const button = make("button", { type: "button", "aria-pressed": String(value === chosen) }, text);
    button.addEventListener("click", () => {
      for (const other of group.querySelectorAll("button")) other.setAttribute("aria-pressed", String(other === button));
      act(value);
    });
    group.append(button);
  }
  return group;
}

/** A legend of series; none for a single one. */
function legendOf(names) {
  if (names.length < 2) return "";
  const entries = names.map((name, at) => {
    const mark = make("i");
    mark.style.background = `var(--${SERIES[at % SERIES.length]})`;
    return make("span", {}, mark, name);
  });
  return make("p", { class: "legend" }, ...entries);
}

// Kinds of charts. Each gets the element for its plots and the data of the page.

/** How often values of each bin occur: `begins`, `ends`, `counts`. */
function histogram(host, { unit, begins, ends, counts }) {
  const most = Math.max(...counts);
  let plot;
  const show = (scale) => {
    plot?.remove();
    const log = scale === "log";
    const y = { min: log ? 0.5 : 0, max: log ? most * 2 : most * 1.05, log, axis: log ? logAxis("", "times") : valueAxis("", "times") };
    // Zero has no place on a logarithmic axis.
    const x = { min: Math.max(begins[0], 0.5) / 1.02, max: ends.at(-1) * 1.02, log: true, axis: logAxis(unit, "duration") };
    const draw = (u, context) => {
      context.fillStyle = color("s0");
      const bottom = u.valToPos(y.min, "y", true);
      counts.forEach((count, at) => {
        const left = u.valToPos(Math.max(begins[at], 0.5), "x", true), right = u.valToPos(ends[at], "x", true), top = u.valToPos(count, "y", true);
        context.fillRect(left, top, Math.max(right - left - (right - left > 4 ? 1 : 0), 1), bottom - top);
      });
    };
    const tip = (value) => {
      const at = begins.findIndex((begin, number) => value >= begin && value < ends[number]);
      return at < 0 ? null : [`${amount(begins[at], unit)} to ${amount(ends[at], unit)}`, [`${counts[at].toLocaleString("en")} times`]];
    };
    plot = addPlot(host, { x, y, draw, tip, height: 240 });
  };
  const controls = chooser("Axis of times", { linear: "linear", log: "logarithmic" }, "linear", show);
  host.before(make("div", { class: "controls" }, controls));
  show("linear");
}

/** The indices of values that stand out from the median, above or below it. */
function outstanding(values) {
  const middle = median(ascending(values));
  const away = median(ascending(values.map((value) => Math.abs(value - middle))));
  if (values.length < FEWEST || !(middle > 0)) return new Set();
  const far = (value) => Math.abs(value - middle) > Math.max(OUTSTANDING * 1.4826 * away, AWAY * middle);
  return new Set(values.map((value, at) => far(value) ? at : -1).filter((at) => at >= 0));
}

/** A triangle that points down to a place (turn 0), or to the right (turn -1). */
function markAt(context, x, y, turn) {
  const size = 4 * uPlot.pxRatio;
  context.save();
  context.translate(x, y);
  context.rotate(turn * Math.PI / 2);
  context.fillStyle = color("outlier");
  context.beginPath();
  context.moveTo(-size, 0);
  context.lineTo(size, 0);
  context.lineTo(0, 1.6 * size);
  context.fill();
  context.restore();
}

/** A bar for each label; several series are stacked: up from zero, and down if they are negative. */
function bars(host, { unit, labels, series }) {
  const stacks = labels.map((label, at) => {
    let above = 0, below = 0;
    return series.map(({ values }) => {
      const value = values[at], from = value < 0 ? below : above;
      if (value < 0) below += value; else above += value;
      return [from, from + value];
    });
  });
  const edges = stacks.flat(2), least = Math.min(0, ...edges), most = Math.max(0, ...edges), extent = most - least || 1;
  const range = { min: least && least - 0.04 * extent, max: most && most + 0.04 * extent };
  if (range.min === range.max) range.max = 1;
  const lines = (at) => series.map(({ name, values }) => (series.length > 1 ? name + ": " : "") + amount(values[at], unit));
  host.before(legendOf(series.map(({ name }) => name)));
  if (labels.length <= LISTED) return listed(host, { unit, labels, stacks, range, lines });
  const totals = labels.map((_, at) => series.reduce((sum, { values }) => sum + values[at], 0));
  const marked = series.length > 1 ? new Set() : outstanding(totals);
  let plot;
  const show = (by) => {
    plot?.remove();
    const order = [...labels.keys()];
    if (by === "size") order.sort((a, b) => totals[b] - totals[a] || a - b);
    const shown = order.map((at) => labels[at]);
    const x = { min: -0.5, max: labels.length - 0.5, axis: labelAxis(shown, "", 90) };
    const y = { ...range, axis: valueAxis(unit, "") };
    const draw = (u, context) => {
      const ratio = uPlot.pxRatio;
      // Bars that stand out come last and are wide enough to be seen.
      for (const important of [false, true]) order.forEach((at, place) => {
        if (marked.has(at) !== important) return;
        const left = u.valToPos(place - 0.5, "x", true), wide = u.valToPos(place + 0.5, "x", true) - left;
        if (important) {
          // Its neighbours may be in the same pixel, and it may have no height.
          context.fillStyle = color("card");
          context.fillRect(left - ratio, u.bbox.top, Math.max(wide, 2 * ratio) + 2 * ratio, u.bbox.height);
          markAt(context, left + Math.max(wide, 2 * ratio) / 2, u.bbox.top, 0);
        }
        stacks[at].forEach(([from, to], number) => {
          context.fillStyle = color(important ? "outlier" : SERIES[number % SERIES.length]);
          const top = u.valToPos(Math.max(from, to), "y", true), bottom = u.valToPos(Math.min(from, to), "y", true);
          context.fillRect(left, top, Math.max(wide - (wide > 5 ? 1 : 0), important ? 2 * ratio : 1), bottom - top);
        });
      });
    };
    const tip = (value) => {
      const at = order[Math.round(value)];
      return at === undefined ? null : [labels[at], lines(at)];
    };
    plot = addPlot(host, { x, y, draw, tip, height: 240 });
  };
  const controls = chooser("Order", { rank: "as listed", size: "largest first" }, "rank", show);
  host.before(make("div", { class: "controls" }, controls));
  if (marked.size) host.before(make("p", { class: "legend" }, make("span", {}, make("i", { class: "outlier" }), "stands out from the median")));
  show("rank");
}

/** Bars one below the other, each under its name. */
function listed(host, { unit, labels, stacks, range, lines }) {
  const x = { ...range, axis: valueAxis(unit, "") };
  const y = { min: -0.5, max: labels.length - 0.5, axis: { values: (u, ticks) => ticks.map(() => ""), splits: () => [], size: 8 } };
  const draw = (u, context) => {
    const ratio = uPlot.pxRatio, zero = u.valToPos(0, "x", true);
    context.font = `${12 * ratio}px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif`;
    context.textBaseline = "alphabetic";
    context.textAlign = "left";
    labels.forEach((label, at) => {
      const top = u.valToPos(at - 0.5, "y", true), tall = u.valToPos(at + 0.5, "y", true) - top;
      stacks[at].forEach(([from, to], number) => {
        context.fillStyle = color(SERIES[number % SERIES.length]);
        const left = u.valToPos(Math.min(from, to), "x", true), right = u.valToPos(Math.max(from, to), "x", true);
        context.fillRect(left, top + tall * 0.55, Math.max(right - left, 1), tall * 0.36);
      });
      const room = u.bbox.width - 8 * ratio, total = lines(at).length > 1 ? "" : `  ${lines(at)[0]}`;
      context.fillStyle = color("ink");
      context.fillText(fitted(context, label, room - context.measureText(total).width) + total, u.bbox.left + 4 * ratio, top + tall * 0.45);
    });
    context.fillStyle = color("soft");
    context.fillRect(zero, u.bbox.top, ratio, u.bbox.height);
  };
  const tip = (_, value) => labels[Math.round(value)] === undefined ? null : [labels[Math.round(value)], lines(Math.round(value))];
  addPlot(host, { x, y, draw, tip, height: labels.length * 36 + 50, down: true });
}

/** Lines over wall time (`start`, `step`) or over `labels`, one for each of `series`; null where there is no value. */
function lines(host, { unit, start, step, labels, series, label, height, near }) {
  const known = series.flatMap(({ values }) => values.filter((value) => value !== null));
  const count = series[0].values.length, highest = Math.max(0, ...known), lowest = Math.min(highest, ...known);
  // Small changes are seen where the axis starts near the smallest value.
  const room = near ? (highest - lowest || highest || 1) * 0.15 : highest * 0.08 || 1;
  const least = near ? lowest - room : Math.min(0, lowest * 1.08);
  const at = labels ? (index) => index : (index) => (index + 0.5) * step;
  const x = labels ? { min: -0.5, max: count - 0.5, axis: labelAxis(labels, "", 80) } : { min: 0, max: count * step, axis: clockAxis(start) };
  const y = { min: least, max: highest + room, axis: valueAxis(unit, label || "") };
  host.before(legendOf(series.map(({ name }) => name)));
  const draw = (u, context) => series.forEach(({ values }, number) => {
    context.strokeStyle = context.fillStyle = color(SERIES[number % SERIES.length]);
    context.lineWidth = 1.5 * uPlot.pxRatio;
    context.lineJoin = "round";
    context.beginPath();
    let open = false;
    const dots = count <= 60;
    values.forEach((value, index) => {
      if (value === null) { open = false; return; }
      const left = u.valToPos(at(index), "x", true), top = u.valToPos(value, "y", true);
      if (open) context.lineTo(left, top); else context.moveTo(left, top);
      // A value between two gaps is no line.
      const alone = !open && (values[index + 1] ?? null) === null;
      if (dots || alone) { const size = (dots ? 5 : 3) * uPlot.pxRatio; context.fillRect(left - size / 2, top - size / 2, size, size); context.moveTo(left, top); }
      open = true;
    });
    context.stroke();
  });
  const tip = (value) => {
    const index = labels ? Math.round(value) : Math.floor(value / step);
    if (index < 0 || index >= count) return null;
    const title = labels ? labels[index] : clockText(start, index * step, step);
    const texts = series.slice(0, 12).map(({ name, values }) => values[index] === null ? "" : `${name}: ${amount(values[index], unit)}`);
    return [title, texts.some(Boolean) ? texts : ["nothing"]];
  };
  addPlot(host, { x, y, draw, tip, height: height || 240 });
}

/**
 * Lanes one below the other over the time since the start, up to `span` (ns). Each has a `label`, a `total` as text, the
 * `kind` of its colour, a `unit`, and `values` from 0 to `most`: each `width` (ns) long, or between `edges` (ns).
 */
function lanes(host, { span, lanes: given }) {
  const even = ({ values, width }) => Array.from({ length: values.length + 1 }, (_, at) => Math.min(at * width, span));
  const all = given.map((lane) => ({ ...lane, edges: lane.edges || even(lane) }));
  const x = { min: 0, max: span, axis: valueAxis("ns", "time since the start") };
  const y = { min: -0.5, max: all.length - 0.5, axis: { ...labelAxis(all.map(({ label }) => label), "", 14), grid: { show: false }, room: 0.3 } };
  const draw = (u, context) => all.forEach(({ kind, part, most, edges, values }, at) => {
    const top = u.valToPos(at - 0.46, "y", true), bottom = u.valToPos(at + 0.42, "y", true), ratio = uPlot.pxRatio;
    const tall = (bottom - top) * (part ? 0.7 : 1);
    context.fillStyle = color("lane");
    context.fillRect(u.bbox.left, bottom - tall, u.bbox.width, tall);
    context.fillStyle = color(kind);
    values.forEach((value, index) => {
      if (!(value > 0) || edges[index + 1] < u.scales.x.min || edges[index] > u.scales.x.max) return;
      // Values other than zero stay visible.
      const left = u.valToPos(edges[index], "x", true), right = u.valToPos(edges[index + 1], "x", true), high = Math.max(tall * Math.min(value / most, 1), ratio);
      context.fillRect(left, bottom - high, Math.max(right - left, 0.5), high);
    });
  });
  const tip = (at, place) => {
    const lane = all[Math.round(place)];
    if (!lane) return null;
    const index = lane.edges.findLastIndex((edge) => edge <= at), value = lane.values[index];
    if (value === undefined) return null;
    return [lane.label, [`${amount(lane.edges[index], "ns")} to ${amount(lane.edges[index + 1], "ns")}`, amount(value, lane.unit)]];
  };
  addPlot(host, { x, y, draw, tip, height: all.length * 28 + 56, down: true, totals: all.map(({ total }) => total) });
}

/** Colours from the first to the last, as many as `size`. */
function ramp(stops, size) {
  const colors = new Uint8ClampedArray(3 * size);
  for (let at = 0; at < size; at++) {
    const place = at / (size - 1) * (stops.length - 1), below = Math.min(Math.floor(place), stops.length - 2), share = place - below;
    for (let part = 0; part < 3; part++) colors[3 * at + part] = stops[below][part] + (stops[below + 1][part] - stops[below][part]) * share;
  }
  return colors;
}

/**
 * Rows of cells over wall time (`start`, `step`) or over `columns`. A pixel shows its cell that is the farthest from the
 * median, so that one slow row of thousands is seen. `differences`: the values are differences already.
 */
function heat(host, { unit, labels, hosts, start, step, columns, levels, cells, differences }) {
  const values = Float32Array.from(atob(cells), (letter) => letter.charCodeAt(0) === NOTHING ? NaN : levels[letter.charCodeAt(0)]);
  const rows = labels.length, count = values.length / rows;
  // The difference of each cell from the median of its column.
  const away = differences ? values : new Float32Array(values.length);
  const medians = new Float32Array(count);
  if (!differences) for (let column = 0; column < count; column++) {
    const own = [];
    for (let row = 0; row < rows; row++) if (!Number.isNaN(values[row * count + column])) own.push(values[row * count + column]);
    medians[column] = median(ascending(own));
    for (let row = 0; row < rows; row++) away[row * count + column] = values[row * count + column] - medians[column];
  }
  const sorted = ascending(values.filter((value) => !Number.isNaN(value)));
  const distances = ascending(away.filter((value) => !Number.isNaN(value)).map(Math.abs));
  // Differences that are too small for a sentence have a pale colour, also if there are no larger differences.
  const least = AWAY * (differences ? 1 : Math.abs(median(sorted)));
  const limit = Math.max(quantile(distances, 0.98), least) || 1;
  const low = quantile(sorted, 0.01), high = quantile(sorted, 0.99);
  // Mean differences of windows of columns: a rank whose clock is wrong is above the median as often as below it.
  const window = Math.max(1, Math.round(count / WINDOWS));
  const scores = labels.map((_, row) => {
    let score = 0;
    for (let begin = 0; begin < count; begin += window) {
      const own = away.subarray(row * count + begin, row * count + Math.min(begin + window, count)).filter((value) => !Number.isNaN(value));
      if (own.length) score += (own.reduce((sum, value) => sum + value, 0) / own.length) ** 2;
    }
    return score;
  });
  const means = labels.map((_, row) => {
    const own = values.subarray(row * count, (row + 1) * count).filter((value) => !Number.isNaN(value));
    return own.reduce((sum, value) => sum + value, 0) / (own.length || 1);
  });
  const marked = differences ? new Set() : outstanding(means);
  const sums = Array.from({ length: columns ? count : 0 }, (_, column) => {
    let sum = 0;
    for (let row = 0; row < rows; row++) sum += away[row * count + column] ** 2 || 0;
    return sum;
  });
  const farthestFirst = (all) => [...all.keys()].sort((a, b) => all[b] - all[a] || a - b);
  const farthest = farthestFirst(scores);
  const choices = { by: differences || rows < FEWEST ? "value" : "difference", order: columns && count > LISTED ? "distance" : "rank" };
  // The column at each place.
  let places = [...Array(count).keys()];
  const relative = () => differences || choices.by === "difference";
  const palette = () => {
    if (!relative()) return ramp(VIRIDIS, 256);
    return ramp(["below", "middle", "above"].map((name) => color(name).match(/[\d.]+/g).map(Number)), 256);
  };
  const share = (cell) => relative() ? (away[cell] / limit + 1) / 2 : (values[cell] - low) / (high - low || 1);

  const surface = document.createElement("canvas");
  const paint = (order) => (u, context) => {
    const colors = palette(), { width, height } = u.bbox;
    const first = Math.max(0, Math.floor(u.scales.x.min / (columns ? 1 : step) + (columns ? 0.5 : 0)));
    const last = Math.min(count, Math.ceil(u.scales.x.max / (columns ? 1 : step) + (columns ? 0.5 : 0)));
    const upper = Math.max(0, Math.floor(u.scales.y.min + 0.5)), lower = Math.min(order.length, Math.ceil(u.scales.y.max + 0.5));
    if (last <= first || lower <= upper) return;
    const wide = Math.min(last - first, Math.round(width)), tall = Math.min(lower - upper, Math.round(height));
    const image = new ImageData(wide, tall);
    for (let y = 0; y < tall; y++) {
      const from = upper + Math.floor(y * (lower - upper) / tall), to = Math.max(from + 1, upper + Math.floor((y + 1) * (lower - upper) / tall));
      for (let x = 0; x < wide; x++) {
        const begin = first + Math.floor(x * (last - first) / wide), end = Math.max(begin + 1, first + Math.floor((x + 1) * (last - first) / wide));
        let best = -1, most = -1;
        for (let row = from; row < to; row++) for (let column = begin; column < end; column++) {
          const cell = order[row] * count + places[column], far = Math.abs(away[cell]);
          if (far > most) { most = far; best = cell; }
        }
        if (best < 0) continue;
        const shade = 3 * Math.min(255, Math.max(0, Math.round(255 * share(best)))), at = 4 * (y * wide + x);
        image.data[at] = colors[shade];
        image.data[at + 1] = colors[shade + 1];
        image.data[at + 2] = colors[shade + 2];
        image.data[at + 3] = 255;
      }
    }
    surface.width = wide;
    surface.height = tall;
    surface.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    const edge = (column) => u.valToPos(columns ? column - 0.5 : column * step, "x", true);
    const line = (row) => u.valToPos(row - 0.5, "y", true);
    context.drawImage(surface, edge(first), line(upper), edge(last) - edge(first), line(lower) - line(upper));
    order.forEach((row, place) => { if (marked.has(row)) markAt(context, u.bbox.left, line(place + 0.5), -1); });
  };
  const tipOf = (order) => (across, down, u) => {
    const column = places[columns ? Math.round(across) : Math.floor(across / step)], place = Math.round(down);
    if (order[place] === undefined || column === undefined) return null;
    let row = order[place];
    // The row that is drawn of the rows in one pixel.
    const pixels = u.bbox.height / uPlot.pxRatio, each = (u.scales.y.max - u.scales.y.min) / pixels;
    if (each > 1) for (let other = place - Math.floor(each); other <= place + each; other++) {
      if (order[other] !== undefined && Math.abs(away[order[other] * count + column]) > Math.abs(away[row * count + column])) row = order[other];
    }
    const cell = row * count + column, value = values[cell];
    const where = columns ? columns[column] : `${clockText(start, column * step, step)}, for ${amount(step, "ns")}`;
    const told = Number.isNaN(value) ? "nothing" : differences ? signed(value, unit) : amount(value, unit);
    const compared = Number.isNaN(value) || differences || rows < FEWEST ? "" : `${signed(away[cell], unit)} from the median, ${amount(medians[column], unit)}`;
    return [labels[row], [hosts?.[row] || "", where, told, compared]];
  };

  const scale = make("p", { class: "scale" });
  const showScale = () => {
    const canvas = make("canvas", { width: 256, height: 1 }), colors = palette(), image = new ImageData(256, 1);
    for (let at = 0; at < 256; at++) image.data.set([colors[3 * at], colors[3 * at + 1], colors[3 * at + 2], 255], 4 * at);
    canvas.getContext("2d").putImageData(image, 0, 0);
    const [from, to] = relative() ? [-limit, limit] : [low, high];
    const text = (value) => relative() ? signed(value, unit) : amount(value, unit);
    scale.replaceChildren(make("span", {}, text(from)), canvas, make("span", {}, text(to)), make("span", {}, relative() ? "from the median" : ""),
      marked.size ? make("span", { class: "marked" }, "▶ stands out from the median") : "");
  };
  let made = [];
  const show = () => {
    made.forEach((plot) => plot.remove());
    made = [];
    showScale();
    if (columns) places = choices.order === "rank" ? [...columns.keys()] : farthestFirst(sums);
    const x = columns ? { min: -0.5, max: count - 0.5, axis: labelAxis(places.map((column) => columns[column]), "", 90) } : { min: 0, max: count * step, axis: clockAxis(start) };
    // Cells without a value stay empty, so there are no lines.
    const bare = { grid: { show: false } };
    const rowsOf = (order) => ({ min: -0.5, max: order.length - 0.5, axis: { ...labelAxis(order.map((row) => labels[row]), "", 14), ...bare } });
    const others = [];
    const add = (order, height) => {
      const plot = addPlot(host, { x: { ...x, axis: { ...x.axis, ...bare } }, y: rowsOf(order), draw: paint(order), tip: tipOf(order), height, both: true, down: true, others });
      made.push(plot);
      others.push(plot);
    };
    if (rows > LISTED && !columns) {
      host.append(make("p", { class: "hint" }, "The farthest from the median"));
      made.push({ remove: ((note) => () => note.remove())(host.lastChild) });
      add(farthest.slice(0, FARTHEST), FARTHEST * 18 + 56);
    }
    const order = columns || choices.order === "rank" ? [...labels.keys()] : farthest;
    add(order, Math.min(480, rows * 20) + 56);
  };
  const controls = [];
  if (rows >= FEWEST && !differences) controls.push(chooser("Colour", { difference: "difference from the median", value: "value" }, choices.by, (by) => { choices.by = by; showScale(); drawCharts(); }));
  if ((columns ? count : rows) >= FEWEST) controls.push(chooser(columns ? "Columns" : "Rows", { rank: "as listed", distance: "farthest first" }, choices.order, (order) => { choices.order = order; show(); }));
  host.before(make("div", { class: "controls" }, ...controls));
  host.after(scale);
  themed.push(showScale);
  show();
}

/**
 * Rates of kernels and ceilings of a GPU (operations per second), by operations per byte, on logarithmic axes. A `slope`
 * is a ceiling in bytes per second. `points` have the `details` of their tooltips.
 */
function roofline(host, { points, ceilings }) {
  const slopes = ceilings.filter(({ slope }) => slope), flats = ceilings.filter(({ slope }) => !slope).sort((a, b) => b.rate - a.rate);
  const steepest = Math.max(...slopes.map(({ rate }) => rate));
  // From a power of ten below the smallest value to slightly above the largest one.
  const extent = (values, label) => {
    const known = values.length ? values : [1], min = 10 ** Math.floor(Math.log10(0.8 * Math.min(...known)));
    const axis = { ...logAxis("", label), values: (u, ticks) => ticks.map(prefixed) };
    return { min, max: Math.max(1.8 * Math.max(...known), 10 * min), log: true, axis };
  };
  const x = extent([...points.map((point) => point.x), ...flats.flatMap(({ rate }) => slopes.map((slope) => rate / slope.rate))], "operations per byte of DRAM");
  const y = extent([...points, ...flats].map((one) => one.y || one.rate), "operations per second");
  const roofs = [
    ...slopes.map((one) => ({ ...one, from: x.min, to: flats.length ? flats[0].rate / one.rate : x.max, at: (value) => value * one.rate })),
    ...flats.map((one) => ({ ...one, from: Math.max(one.rate / steepest, x.min), to: x.max, at: () => one.rate })),
  ];
  const draw = (u, context) => {
    const ratio = uPlot.pxRatio, left = (value) => u.valToPos(value, "x", true), top = (value) => u.valToPos(value, "y", true);
    const line = ({ from, to, at, measured }) => {
      context.setLineDash(measured ? [6 * ratio, 4 * ratio] : []);
      context.beginPath();
      context.moveTo(left(from), top(at(from)));
      context.lineTo(left(to), top(at(to)));
      context.stroke();
    };
    const placed = [];
    // Labels are placed from the right to the left, so that none covers another one.
    const place = ({ label, from, rate, measured }) => {
      const base = top(rate) + (measured ? 13 : -4) * ratio, near = placed.filter((other) => Math.abs(other.base - base) < 13 * ratio);
      const begin = Math.min(u.bbox.left + u.bbox.width, ...near.map((other) => other.begin)) - 6 * ratio - context.measureText(label).width;
      if (begin < left(from)) return;
      context.fillText(label, begin, base);
      placed.push({ base, begin });
    };
    const along = ({ label, rate, measured }) => {
      const begin = Math.max(u.scales.x.min, u.scales.y.min / rate), end = 10 * begin;
      context.save();
      context.translate(left(begin), top(begin * rate));
      context.rotate(Math.atan2(top(end * rate) - top(begin * rate), left(end) - left(begin)));
      context.fillText(label, (measured ? 30 : 12) * ratio, (measured ? 16 : -7) * ratio);
      context.restore();
    };
    context.font = AXIS_FONT.replace(/\d+/, (size) => size * ratio);
    context.textAlign = "left";
    context.textBaseline = "alphabetic";
    context.lineWidth = 2 * ratio;
    roofs.forEach((roof) => {
      context.strokeStyle = context.fillStyle = color(roof.kind);
      if (roof.from < roof.to) line(roof);
      if (roof.slope) along(roof); else place(roof);
    });
    context.setLineDash([]);
    context.lineWidth = ratio;
    context.strokeStyle = color("card");
    context.textAlign = "center";
    context.textBaseline = "middle";
    points.forEach((point) => {
      context.beginPath();
      context.arc(left(point.x), top(point.y), 9 * ratio, 0, 2 * Math.PI);
      context.fillStyle = color(point.kind);
      context.fill();
      context.stroke();
      context.fillStyle = color("card");
      context.fillText(point.number, left(point.x), top(point.y));
    });
  };
  const tip = (across, up, u) => {
    const away = (value, other, axis) => Math.abs(u.valToPos(value, axis) - u.valToPos(other, axis));
    const point = points.findLast((one) => Math.hypot(away(one.x, across, "x"), away(one.y, up, "y")) < 10);
    if (point) return [point.details[0], point.details.slice(1)];
    const roof = roofs.find(({ from, to, at }) => across >= from && across <= to && away(at(across), up, "y") < 4);
    return roof ? [roof.label, []] : null;
  };
  addPlot(host, { x, y, draw, tip, height: host.clientWidth < 600 ? 420 : 520, both: true });
}

const CHARTS = { histogram, bars, lines, lanes, heat, roofline };
const themed = [drawCharts];
for (const figure of document.querySelectorAll("figure[data-chart]")) {
  const { kind, ...given } = JSON.parse(figure.querySelector("script").textContent);
  const host = make("div", {});
  figure.append(host);
  CHARTS[kind](host, given);
}
const redrawCharts = () => themed.forEach((draw) => draw());
