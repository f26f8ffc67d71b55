(() => {
  const list = $("tests"), detail = $("detail"), search = $("search"), entries = [...list.children];
  const texts = entries.map((li) => li.textContent.toLowerCase());
  let filter = "", stop = null;

  let kept;
  const styles = () => (kept = kept || data("styles"));

  // The list

  function narrow() {
    const words = wordsOf(search);
    let found = 0;
    entries.forEach((li, at) => {
      const state = !filter || filter in li.dataset || li.dataset.state === filter;
      const show = state && words.every((word) => texts[at].includes(word));
      li.hidden = !show;
      found += show;
    });
    $("none").hidden = found > 0;
  }
  search.addEventListener("input", narrow);
  choice("filter", (chosen) => { filter = chosen; narrow(); });
  function move(by) {
    const shown = entries.filter((li) => !li.hidden);
    const now = shown.findIndex((li) => li.firstChild.hasAttribute("aria-current"));
    const next = shown[Math.min(Math.max(now + by, 0), shown.length - 1)];
    if (next) { location.hash = next.firstChild.hash; next.scrollIntoView({ block: "nearest" }); }
  }
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target.matches("input");
    if (event.key === "Escape" && typing) { event.target.value = ""; event.target.dispatchEvent(new Event("input")); event.target.blur(); }
    else if (typing && event.target === search && event.key === "Enter") { move(0); search.blur(); }
    else if (typing) return;
    else if (event.key === "j") move(1);
    else if (event.key === "k") move(-1);
  });
  slashKey(search);
  themeButton(() => stop && stop.redraw());

  // A test

  function open() {
    const number = /^#t(\d+)$/.exec(location.hash);
    const holder = number && $("c" + number[1]);
    for (const link of list.querySelectorAll("[aria-current]")) link.removeAttribute("aria-current");
    document.body.classList.toggle("open", Boolean(holder));
    if (stop) { stop.end(); stop = null; }
    if (!holder) { detail.replaceChildren(make("p", { class: "hint" }, "Choose a test.")); return; }
    entries[number[1]].firstChild.setAttribute("aria-current", "true");
    show(data(holder.id), $("p" + number[1]));
    detail.scrollTop = 0;
    if (document.body.clientWidth <= 760) window.scrollTo(0, 0);
  }

  const PERFETTO = "https://ui.perfetto.dev";

  /** Hand a compressed trace to Perfetto in a window of its own, which answers when it can take it. */
  function perfetto(test, trace) {
    const packed = Uint8Array.from(atob(trace), (letter) => letter.charCodeAt(0));
    const ui = window.open(PERFETTO + "/#!/?enablePlugins=com.meta.GpuCompute,dev.perfetto.GpuByProcess");
    if (!ui) return;
    const asking = setInterval(() => (ui.closed ? stop() : ui.postMessage("PING", PERFETTO)), 100);
    const answered = (event) => {
      if (event.source !== ui || event.data !== "PONG") return;
      stop();
      ui.postMessage({ perfetto: { buffer: packed.buffer, title: test.name, fileName: "trace.pftrace.gz" } }, PERFETTO);
    };
    const stop = () => { clearInterval(asking); removeEventListener("message", answered); };
    addEventListener("message", answered);
  }

  function show(test, trace) {
    const back = make("button", { id: "back", type: "button" }, "← all tests");
    back.addEventListener("click", () => { location.hash = ""; });
    const copy = make("button", { type: "button" }, "copy id");
    copy.addEventListener("click", () => {
      const done = () => { copy.textContent = "copied"; setTimeout(() => { copy.textContent = "copy id"; }, 1200); };
      if (navigator.clipboard) navigator.clipboard.writeText(test.nodeid).then(done, () => {});
    });
    const look = trace && make("button", { type: "button", title: "The trace goes from this page to that one. Perfetto asks whether to open it." }, "open in Perfetto");
    if (look) look.addEventListener("click", () => perfetto(test, data(trace.id)));
    const badge = make("span", { class: "badge" }, make("i", { class: "dot " + test.key }), test.state);
    detail.replaceChildren(
      back, make("h2", { class: "mono" }, test.name), make("p", { class: "id mono" }, test.nodeid),
      make("div", { class: "facts" }, badge, make("span", { class: "badge" }, "test " + test.outcome),
        ...test.facts.map((fact) => make("span", {}, fact)), make("span", {}, test.reason)),
      make("div", { class: "links" }, look, ...test.links.map(([name, path]) => make("a", { href: path, download: "" }, name)),
        test.golden ? make("span", { class: "hint" }, "golden: " + test.golden) : null, copy),
      ...(test.added.length ? [make("pre", { class: "say bad mono" }, test.added.join("\n"))] : []),
      ...test.problems.map((words) => make("p", { class: "say bad" }, "not verified: " + words)),
      ...test.notes.map((words) => make("p", { class: "say warn" }, words)),
      ...metrics(test.tables), ...recorded(test.user));
    if (test.timeline) stop = timeline(test.timeline, detail);
    detail.append(...topKernels(test.kernels));
  }

  /** Parts of a metric that are shown at once. */
  const SOME = 6;
  function metrics(tables) {
    if (!tables.length) return [make("h3", {}, "Metrics"), make("p", { class: "hint" }, "Nothing was measured.")];
    const compared = tables.some((table) => table.rows.some((row) => row.verdict));
    const columns = compared ? ["metric", "golden", "now", "rule", "verdict", ""] : ["metric", "now", ""];
    const head = make("tr", {}, ...columns.map((name) =>
      make("th", { class: name === "golden" || name === "now" ? "num" : name, scope: "col" }, name)));
    const body = make("tbody");
    const dull = [];
    for (const table of tables) {
      const rows = table.rows.map((row) => {
        const items = row.parts.map(([name, count]) => make("li", {}, count + "\u00a0" + name));
        const rest = items.length > SOME + 1 ? items.splice(SOME) : [];
        const said = make("td", { class: "said" }, row.detail ? make("div", {}, row.detail) : "",
          items.length ? make("ul", { class: "parts" }, ...items) : "",
          rest.length ? make("details", { class: "parts" }, make("summary", {}, rest.length + " more"), make("ul", { class: "parts" }, ...rest)) : "");
        const cells = [make("td", {}, row.name)];
        if (compared) cells.push(make("td", { class: "num" }, row.golden || ""));
        cells.push(make("td", { class: "num now" }, row.now));
        if (compared) cells.push(make("td", { class: "rule" }, row.rule || ""), make("td", { class: row.verdict === "SAME" ? "verdict same" : "verdict" }, row.verdict || ""));
        const line = make("tr", { class: row.mark || "" }, ...cells, said);
        if (row.dull) dull.push(line);
        return line;
      });
      if (table.region) {
        const title = make("tr", { class: "region" }, make("th", { colSpan: columns.length, scope: "rowgroup" }, "region " + table.region));
        if (table.rows.every((row) => row.dull)) dull.push(title);
        rows.unshift(title);
      }
      body.append(...rows);
    }
    const out = [make("h3", {}, "Metrics"), make("div", { class: "scroll" }, make("table", { class: compared ? "metrics compared" : "metrics" }, make("thead", {}, head), body))];
    if (dull.length) {
      const more = make("button", { type: "button", class: "more", "aria-expanded": "false" });
      const turn = (hide) => {
        for (const line of dull) line.hidden = hide;
        more.textContent = (hide ? "show " : "hide ") + dull.length + " that are zero and as before";
        more.setAttribute("aria-expanded", String(!hide));
      };
      more.addEventListener("click", () => turn(!dull[0].hidden));
      turn(true);
      out.push(more);
    }
    return out;
  }

  function recorded(user) {
    if (!user.length) return [];
    const rows = user.map(([name, value]) => make("tr", {}, make("td", {}, name), make("td", { class: "said" }, value)));
    return [make("h3", {}, "Recorded by the test"), make("div", { class: "scroll" }, make("table", {}, make("tbody", {}, ...rows)))];
  }

  function topKernels(kernels) {
    if (!kernels.length) return [];
    const head = ["kernel", "count", "total", "mean", "min", "max"];
    const rows = kernels.map(([name, ...cells]) => {
      const bar = make("span", { class: "bar" });
      bar.style.width = 100 * cells.pop() + "%";
      return make("tr", {}, make("td", { class: "kernel" }, name, bar), ...cells.map((cell) => make("td", { class: "num" }, cell)));
    });
    return [make("h3", {}, "Top kernels"), make("div", { class: "scroll" }, make("table", {},
      make("thead", {}, make("tr", {}, ...head.map((name, at) => make("th", { class: at ? "num" : "", scope: "col" }, name)))),
      make("tbody", {}, ...rows)))];
  }

  // The timeline

  const ROW = 17, TITLE = 20, AXIS = 22, PAD = 5;

  function timeline(picture, parent) {
    const table = styles(), slices = [], lanes = [];
    let y = AXIS, group = null, first = Infinity, last = -Infinity;
    for (const [title, owner, flat] of picture.lanes) {
      if (owner !== group && owner) { lanes.push({ y, head: owner }); y += TITLE; }
      group = owner;
      let depths = 1, start = 0;
      for (let at = 0; at < flat.length; at += 5) {
        start += flat[at];
        const style = table[flat[at + 2]];
        const slice = { start, end: start + flat[at + 1], style, y: y + PAD + flat[at + 3] * ROW, link: flat[at + 4], color: colorOf(style) };
        depths = Math.max(depths, flat[at + 3] + 1);
        if (!["nvtx", "region", "mark"].includes(style[2])) { first = Math.min(first, slice.start); last = Math.max(last, slice.end); }
        slices.push(slice);
      }
      lanes.push({ y, title, height: depths * ROW + 2 * PAD });
      y += depths * ROW + 2 * PAD;
    }
    const height = y + 4;
    if (!(first < last)) { first = 0; last = Math.max(picture.span, 1); }
    const margin = (last - first) * 0.02 + 1;
    const home = [first - margin, last + margin];
    const limits = [Math.min(home[0], -margin), Math.max(home[1], picture.span + margin)];
    let [from, to] = home;
    let width = 0, hovered = null, pinned = null, needle = "", frame = 0;
    const linked = new Map();
    for (const slice of slices) if (slice.link) linked.set(slice.link, [...(linked.get(slice.link) || []), slice]);

    const canvas = make("canvas", { tabindex: "0", role: "img", "aria-label": "Timeline of " + slices.length + " slices in " + picture.lanes.length + " lanes. Use n and p to go from slice to slice." });
    const tip = make("div", { class: "tip", hidden: true });
    const shaft = make("div", { class: "shaft" }, canvas);
    const box = make("div", { class: "picture" }, shaft, tip);
    const find = make("input", { type: "search", placeholder: "find in the timeline", "aria-label": "Find in the timeline" });
    const count = make("span", { class: "hint" });
    const button = (words, title, act) => {
      const made = make("button", { type: "button", title, "aria-label": title }, words);
      made.addEventListener("click", act);
      return made;
    };
    const left = picture.left ? make("span", { class: "say-left" }, picture.left.toLocaleString("en") + " slices are left out: open the trace to see all") : null;
    const kinds = [...new Set(slices.map((slice) => slice.style[2]))];
    parent.append(make("h3", {}, "Timeline"),
      make("div", { class: "timebar" }, button("+", "Zoom in", () => zoom(0.5)), button("−", "Zoom out", () => zoom(2)),
        button("fit", "Show all calls and GPU work", () => view(...home)), button("window", "Show the whole window of the test", () => view(...limits)),
        find, count, make("span", { class: "grow" }), left),
      box,
      make("div", { class: "legend" }, ...kinds.map((kind) => {
        const swatch = make("i");
        swatch.style.background = kind === "kernel" ? KERNELS[0] : COLORS[kind];
        return make("span", {}, swatch, WORDS[kind] || kind);
      })),
      make("p", { class: "keys" }, "Drag to move, Ctrl+wheel or + − to zoom, double click on a slice to fill the view with it. Keys: ← → move, ↑ ↓ zoom, n p next and previous slice, 0 fit."));

    const gutter = () => Math.min(170, Math.max(84, width * 0.17));
    const x = (ns) => gutter() + ((ns - from) / (to - from)) * (width - gutter());
    const at = (pixel) => from + ((pixel - gutter()) / (width - gutter())) * (to - from);

    function view(a, b) {
      const whole = limits[1] - limits[0];
      const span = Math.min(Math.max(b - a, 20), whole);
      const middle = (a + b) / 2;
      from = Math.min(Math.max(middle - span / 2, limits[0]), limits[1] - span);
      to = from + span;
      redraw();
    }
    function zoom(by, around = (from + to) / 2) { view(around - (around - from) * by, around + (to - around) * by); }
    function redraw() { if (!frame) frame = requestAnimationFrame(draw); }

    function fitted(context, text, room) {
      if (room < 16) return "";
      const letters = Math.floor(room / 6.3);
      return text.length <= letters ? text : letters > 2 ? text.slice(0, letters - 1) + "…" : "";
    }
    function matches(slice) { return !needle || slice.style[0].toLowerCase().includes(needle); }

    function draw() {
      frame = 0;
      width = shaft.clientWidth;
      if (!width) return;
      const ink = color("ink"), soft = color("soft"), line = color("line"), grid = color("grid"), lane = color("lane"), head = color("head"), accent = color("accent");
      const c = cleared(canvas, width, height), edge = gutter();
      lanes.forEach((one, number) => {
        c.fillStyle = one.head ? head : number % 2 ? lane : "transparent";
        c.fillRect(0, one.y, width, one.head ? TITLE : one.height);
      });
      // Ticks
      const raw = ((to - from) / (width - edge)) * 110;
      const power = 10 ** Math.floor(Math.log10(raw));
      const step = Math.max(power * [1, 2, 5, 10].find((m) => m * power >= raw), 1);
      const ticks = [];
      for (let t = Math.ceil(Math.max(at(edge), from) / step) * step; t < to; t += step) {
        ticks.push(t);
        c.fillStyle = grid;
        c.fillRect(x(t), AXIS, 1, height);
      }
      // Slices
      c.save();
      c.beginPath();
      c.rect(edge, AXIS, width - edge, height);
      c.clip();
      c.font = MONO;
      const shown = pinned || hovered;
      for (const slice of slices) {
        if (slice.end < from || slice.start > to) continue;
        const a = Math.max(x(slice.start), edge - 2), b = Math.min(x(slice.end), width + 2), wide = Math.max(b - a, 1.2);
        c.globalAlpha = matches(slice) ? 1 : 0.15;
        c.fillStyle = slice.color;
        if (slice.style[2] === "rest") {
          c.globalAlpha *= 0.45;
          c.fillRect(a, slice.y + ROW / 3, wide, ROW / 3 - 1);
        } else if (slice.style[2] === "mark") {
          c.beginPath(); c.moveTo(a, slice.y + 1); c.lineTo(a + 4, slice.y + 8); c.lineTo(a, slice.y + 15); c.lineTo(a - 4, slice.y + 8); c.fill();
        } else {
          c.fillRect(a, slice.y, wide > 3 ? wide - 0.6 : wide, ROW - 2);
          const text = fitted(c, slice.style[0], wide - 6);
          if (text) { c.fillStyle = "#14181f"; c.fillText(text, a + 3, slice.y + ROW / 2 - 0.5); }
        }
        c.globalAlpha = 1;
      }
      // The slice under the pointer, and the slices that belong to it.
      if (shown) {
        const family = shown.link ? linked.get(shown.link) : [shown];
        c.lineWidth = 2;
        c.strokeStyle = accent;
        for (const slice of family) {
          const a = x(slice.start), b = Math.max(x(slice.end), a + 2);
          c.strokeRect(a - 0.5, slice.y - 0.5, b - a + 1, ROW - 1);
        }
        const call = family.find((slice) => slice.style[2] === "api" || slice.style[2] === "wait");
        if (call) {
          c.lineWidth = 1.2;
          for (const slice of family) {
            if (slice === call) continue;
            const x0 = x(call.start), x1 = x(slice.start);
            c.beginPath(); c.moveTo(x0, call.y + ROW - 2);
            c.bezierCurveTo(x0, (call.y + slice.y) / 2, x1, (call.y + slice.y) / 2, x1, slice.y); c.stroke();
          }
        }
      }
      c.restore();
      // Titles
      c.fillStyle = line;
      c.fillRect(edge - 1, AXIS, 1, height);
      c.font = "12px system-ui, sans-serif";
      for (const one of lanes) {
        c.fillStyle = one.head ? ink : soft;
        const words = one.head || one.title, room = one.head ? width - 20 : edge - 14;
        let text = words;
        while (text && c.measureText(text).width > room) text = text.slice(0, -2);
        c.fillText(text.length < words.length ? text.slice(0, -1) + "…" : text, one.head ? 8 : 12, one.y + (one.head ? TITLE / 2 : PAD + ROW / 2 - 1));
      }
      // The axis stays in sight
      const top = shaft.scrollTop;
      c.fillStyle = color("card");
      c.fillRect(0, top, width, AXIS);
      c.fillStyle = line;
      c.fillRect(0, top + AXIS - 1, width, 1);
      for (const t of ticks) {
        c.fillStyle = grid;
        c.fillRect(x(t), top + AXIS - 6, 1, 6);
        c.fillStyle = soft;
        const words = time(t, step);
        if (x(t) + 3 + c.measureText(words).width < width) c.fillText(words, x(t) + 3, top + AXIS / 2 - 1);
      }
    }

    function pick(event) {
      const box = canvas.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
      let best = null, distance = 5;
      for (const slice of slices) {
        if (py < slice.y || py >= slice.y + ROW) continue;
        const a = x(slice.start), b = x(slice.end), away = px < a ? a - px : px > b ? px - b : 0;
        // The nearest of the slices that are narrower than a pixel.
        if (away < distance || (away === 0 && distance === 0 && best && slice.end - slice.start < best.end - best.start)) { best = slice; distance = away; }
      }
      return px < gutter() ? null : best;
    }
    function point(slice, px, py) {
      tip.hidden = !slice;
      if (!slice) return;
      const launched = slice.link && slice.style[2] === "kernel" ? linked.get(slice.link).find((one) => one.style[2] === "api") : null;
      showTip(tip, box, px, py - shaft.scrollTop, slice.style[0] || "(no name)", [
        WORDS[slice.style[2]] + (slice.end > slice.start ? " of " + time(slice.end - slice.start) : "") + ", at " + time(slice.start),
        launched && "launched by " + launched.style[0] + ", " + time(slice.start - launched.start) + " before", slice.style[1]]);
    }
    function select(slice) {
      pinned = slice;
      if (!slice) { point(null); redraw(); return; }
      const span = to - from, middle = (slice.start + slice.end) / 2;
      if (slice.start < from || slice.end > to) view(middle - span / 2, middle + span / 2);
      if (slice.y < shaft.scrollTop + AXIS || slice.y + ROW > shaft.scrollTop + shaft.clientHeight) shaft.scrollTop = slice.y - shaft.clientHeight / 2;
      point(slice, Math.max(x(Math.max(slice.start, from)), gutter()), slice.y);
      redraw();
    }
    function step(by) {
      const order = slices.filter(matches).sort((a, b) => a.start - b.start || a.y - b.y);
      const now = order.indexOf(pinned);
      let next = now + by;
      if (now < 0) next = by > 0 ? order.findIndex((slice) => slice.start >= from) : order.findLastIndex((slice) => slice.start <= to);
      if (order[next]) select(order[next]);
    }

    const pointers = new Map();
    let moved = false, gap = 0;
    canvas.addEventListener("pointerdown", (event) => {
      pointers.set(event.pointerId, event.clientX);
      canvas.setPointerCapture(event.pointerId);
      moved = false;
    });
    canvas.addEventListener("pointermove", (event) => {
      if (pointers.has(event.pointerId)) {
        const by = event.clientX - pointers.get(event.pointerId), scale = (to - from) / (width - gutter());
        if (pointers.size === 2) {
          pointers.set(event.pointerId, event.clientX);
          const [a, b] = [...pointers.values()], wide = Math.max(Math.abs(a - b), 10);
          if (gap) zoom(gap / wide, at((a + b) / 2 - canvas.getBoundingClientRect().left));
          gap = wide;
          moved = true;
        } else if (moved || Math.abs(by) > 3) {
          moved = true;
          canvas.classList.add("moving");
          point(null);
          hovered = pinned = null;
          pointers.set(event.pointerId, event.clientX);
          view(from - by * scale, to - by * scale);
        }
        return;
      }
      if (pinned) return;
      const slice = pick(event), rect = canvas.getBoundingClientRect();
      if (slice !== hovered) { hovered = slice; redraw(); }
      point(slice, event.clientX - rect.left, event.clientY - rect.top);
    });
    const release = (event) => { pointers.delete(event.pointerId); gap = 0; canvas.classList.remove("moving"); };
    canvas.addEventListener("pointerup", (event) => { release(event); if (!moved) select(pick(event)); });
    canvas.addEventListener("pointercancel", release);
    canvas.addEventListener("pointerleave", () => { if (!pinned) { hovered = null; point(null); redraw(); } });
    canvas.addEventListener("dblclick", (event) => {
      const slice = pick(event);
      if (slice) { const room = Math.max((slice.end - slice.start) * 0.1, 10); view(slice.start - room, slice.end + room); select(slice); }
    });
    canvas.addEventListener("wheel", (event) => {
      const span = to - from;
      if (event.ctrlKey || event.metaKey) { event.preventDefault(); zoom(Math.exp(event.deltaY * 0.003), at(event.offsetX)); }
      else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        event.preventDefault();
        const by = ((event.deltaX || event.deltaY) / width) * span;
        view(from + by, to + by);
      } else return;
      if (pinned) select(null);
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const by = (to - from) * 0.15;
      const keys = {
        ArrowLeft: () => view(from - by, to - by), ArrowRight: () => view(from + by, to + by), a: () => view(from - by, to - by), d: () => view(from + by, to + by),
        ArrowUp: () => zoom(0.7), ArrowDown: () => zoom(1.43), w: () => zoom(0.7), s: () => zoom(1.43), "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2),
        0: () => view(...home), n: () => step(1), p: () => step(-1), Escape: () => select(null),
      };
      const act = keys[event.key];
      if (!act) return;
      event.preventDefault();
      act();
      if (pinned && event.key !== "n" && event.key !== "p") select(null);
    });
    find.addEventListener("input", () => {
      needle = find.value.toLowerCase();
      const found = needle ? slices.filter(matches).length : 0;
      count.textContent = needle ? found + " of " + slices.length : "";
      pinned = null;
      point(null);
      redraw();
    });
    find.addEventListener("keydown", (event) => { if (event.key === "Enter") step(event.shiftKey ? -1 : 1); });

    shaft.addEventListener("scroll", () => { if (!pinned) point(null); redraw(); });
    const watcher = new ResizeObserver(redraw);
    watcher.observe(shaft);
    return { redraw, end() { watcher.disconnect(); cancelAnimationFrame(frame); } };
  }

  addEventListener("hashchange", open);
  open();
  if (!location.hash && entries.length && document.body.clientWidth > 760) history.replaceState(null, "", entries[0].firstChild.hash), open();
})();
