(() => {
  const ROW = 19, KINDS = ["range", "kernel", "copy", "fill", "graph"], RANGE = "#a9b6c6";
  const { names, frames: flat, left, before } = data("frames");
  const place = $("flame"), about = $("about"), find = $("find"), found = $("found");
  const WIDTHS = { gpu: 3, cpu: 5, before: 6 };

  // Frames with their parents and children; parents come first.
  const path = [];
  const frames = flat.map((use) => {
    const [depth, name, kind] = use;
    path.length = depth;
    const frame = { use, depth, name: names[name], kind: KINDS[kind], parent: path[depth - 1] || null, children: [], x: 0, wide: 0 };
    if (frame.parent) frame.parent.children.push(frame);
    path.push(frame);
    return frame;
  });
  const root = frames[0];
  let measure = WIDTHS.gpu, zoomed = root, hovered = null, chosen = root, needle = "", width = 0, waiting = 0;

  const canvas = make("canvas", { tabindex: "0", role: "img", "aria-label": "Flame graph of " + frames.length + " frames. Use the arrow keys to go from frame to frame." });
  const tip = make("div", { class: "tip", hidden: true });
  const box = make("div", { class: "picture" }, canvas, tip);
  place.append(box);
  if (left) place.append(make("p", { class: "note" }, left.toLocaleString("en") + " small frames are left out."));

  /** Red for more than before, blue for less. A larger change has a stronger colour. */
  function change(frame) {
    const now = frame.use[3], then = frame.use[6], share = now === then ? 0 : (now - then) / Math.max(now, then);
    const pale = Math.round(225 - 135 * Math.min(Math.abs(share), 1));
    return share > 0 ? `rgb(240,${pale},${pale})` : share < 0 ? `rgb(${pale},${Math.min(pale + 40, 225)},245)` : "#d5dae2";
  }
  const shade = (frame) => before ? change(frame) : frame.kind === "range" ? RANGE : colorOf([frame.name, "", frame.kind]);
  const matches = (frame) => !needle || frame.name.toLowerCase().includes(needle);
  const percent = (part, whole) => whole ? (100 * part / whole).toFixed(part && part / whole < 0.001 ? 3 : 1) + "%" : "-";

  /** The place of each frame. Children are side by side below their parent, as wide as their share of it. */
  function layout() {
    for (const frame of frames) frame.wide = 0;
    const whole = zoomed.use[measure];
    for (let one = zoomed; one; one = one.parent) { one.x = 0; one.wide = whole || one === zoomed ? 1 : 0; }
    const stack = [zoomed];
    while (stack.length) {
      const frame = stack.pop();
      let x = frame.x;
      for (const child of frame.children) {
        child.x = x;
        child.wide = whole ? child.use[measure] / whole : 0;
        x += child.wide;
        if (child.wide * width >= 0.4) stack.push(child);
      }
    }
  }
  function redraw() { if (!waiting) waiting = requestAnimationFrame(draw); }

  function draw() {
    waiting = 0;
    width = box.clientWidth;
    if (!width) return;
    layout();
    const visible = frames.filter((frame) => frame.wide * width >= 0.4);
    const height = ROW * (visible.reduce((most, frame) => Math.max(most, frame.depth), 0) + 1) + 2;
    const c = cleared(canvas, width, height);
    c.font = MONO;
    for (const frame of visible) {
      const x = frame.x * width, y = frame.depth * ROW + 1, wide = frame.wide * width;
      c.globalAlpha = matches(frame) ? frame.depth < zoomed.depth ? 0.55 : 1 : 0.2;
      c.fillStyle = shade(frame);
      c.fillRect(x, y, wide > 2 ? wide - 0.7 : wide, ROW - 1);
      const letters = Math.floor((wide - 6) / 6.7);
      if (letters > 2) {
        c.fillStyle = "#14181f";
        c.fillText(frame.name.length <= letters ? frame.name : frame.name.slice(0, letters - 1) + "…", x + 3, y + ROW / 2);
      }
    }
    c.globalAlpha = 1;
    c.strokeStyle = color("accent");
    c.lineWidth = 2;
    const marked = hovered || (document.activeElement === canvas ? chosen : null);
    if (marked && marked.wide) c.strokeRect(marked.x * width + 1, marked.depth * ROW + 2, Math.max(marked.wide * width - 2, 1), ROW - 3);
  }

  function facts(frame) {
    const [, , , gpu, operations, cpu, gpuBefore, operationsBefore] = frame.use;
    const lines = [time(gpu) + " of GPU time, " + percent(gpu, root.use[3]) + ", in " + operations.toLocaleString("en") + (operations === 1 ? " operation" : " operations")];
    if (cpu) lines.push(time(cpu) + " of CPU time");
    if (before) lines.push("before: " + time(gpuBefore) + " in " + operationsBefore.toLocaleString("en") + "; " + (gpu >= gpuBefore ? "+" : "") + time(gpu - gpuBefore));
    return lines;
  }
  function tell(frame) {
    const line = [];
    for (let one = frame; one && one !== root; one = one.parent) line.unshift(one.name);
    about.replaceChildren(make("b", {}, line.join(" › ") || root.name), make("br"), facts(frame).join("; "));
  }
  function choose(frame) { chosen = frame; tell(frame); redraw(); }
  function zoom(frame) {
    zoomed = frame.use[measure] ? frame : root;
    hovered = null;
    tip.hidden = true;
    choose(zoomed);
  }

  function pick(event) {
    const area = canvas.getBoundingClientRect(), x = (event.clientX - area.left) / area.width, depth = Math.floor((event.clientY - area.top) / ROW);
    return frames.find((frame) => frame.depth === depth && frame.wide && x >= frame.x && x < frame.x + frame.wide) || null;
  }
  canvas.addEventListener("pointermove", (event) => {
    if (event.pointerType === "touch") return;
    hovered = pick(event);
    tip.hidden = !hovered;
    if (hovered) {
      const area = box.getBoundingClientRect();
      showTip(tip, box, event.clientX - area.left, event.clientY - area.top, hovered.name, facts(hovered));
    }
    redraw();
  });
  canvas.addEventListener("pointerleave", () => { hovered = null; tip.hidden = true; redraw(); });
  canvas.addEventListener("click", (event) => { const frame = pick(event); if (frame) zoom(frame); });
  canvas.addEventListener("focus", redraw);
  canvas.addEventListener("blur", redraw);
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const shown = (chosen.parent ? chosen.parent.children : [root]).filter((frame) => frame.wide * width >= 0.4), now = shown.indexOf(chosen);
    const next = {
      ArrowDown: chosen.children.find((frame) => frame.wide * width >= 0.4), ArrowUp: chosen.parent,
      ArrowRight: chosen.depth > zoomed.depth ? shown[now + 1] : null, ArrowLeft: chosen.depth > zoomed.depth ? shown[now - 1] : null,
    };
    if (event.key in next) { if (next[event.key]) choose(next[event.key]); }
    else if (event.key === "Enter") zoom(chosen);
    else if (event.key === "Escape") zoom(zoomed.parent || root);
    else if (event.key === "0") zoom(root);
    else return;
    event.preventDefault();
  });
  slashKey(find);
  find.addEventListener("input", () => {
    needle = find.value.trim().toLowerCase();
    // The GPU time of the outermost matching frames, so that no time counts twice.
    let sum = 0;
    const inside = new Set();
    for (const frame of frames) {
      if (!needle || inside.has(frame.parent)) { inside.add(frame); continue; }
      if (matches(frame)) { inside.add(frame); sum += frame.use[measure]; }
    }
    found.textContent = needle ? time(sum) + ", " + percent(sum, root.use[measure]) : "";
    redraw();
  });
  choice("width", (key) => {
    measure = WIDTHS[key];
    zoom(zoomed);
    find.dispatchEvent(new Event("input"));
  });
  // A page with only a flame graph has no charts.
  themeButton(() => { redraw(); if (typeof redrawCharts === "function") redrawCharts(); });
  new ResizeObserver(redraw).observe(box);
  tell(root);
  redraw();
})();
