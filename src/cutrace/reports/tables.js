// Tables of a page: a click on a head sorts, a field filters. All rows are data of the page; the page shows the first.
const SHOWN = 200;

/** The number in the string of a cell without a value of its own: "1.5us", "64 MiB", "1,234", "-". Null for no number. */
function numberIn(text) {
  const match = text.match(/^([+-]?[\d,]*\.?\d+(?:e[+-]?\d+)?)\s*(\S*)/);
  if (!match) return null;
  const units = { us: 1e3, ms: 1e6, s: 1e9, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, PiB: 2 ** 50 };
  const prefixes = { k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, E: 1e18 };
  const unit = match[2].replace("/s", ""), scale = units[unit] || (/^.(B|OP|FLOP)$/.test(unit) && prefixes[unit[0]]) || 1;
  return Number(match[1].replaceAll(",", "")) * scale;
}

function sortable(figures) {
  const table = figures.querySelector("table"), body = table.tBodies[0], note = figures.querySelector(".note"), script = figures.querySelector("script");
  const heads = [...table.tHead.rows[0].cells];
  const texts = heads.map((head) => head.classList.contains("text"));
  const elements = [...body.rows];
  const given = script && JSON.parse(script.textContent);
  const rows = given ? given.rows : elements.map((row) => [...row.cells].map((cell, at) => texts[at] ? cell.textContent : cell.dataset.value ? Number(cell.dataset.value) : numberIn(cell.textContent)));
  const words = rows.map((row, at) => given ? "" : elements[at].textContent.toLowerCase());
  const textOf = (at) => words[at] ||= rows[at].filter((_, column) => texts[column]).join(" ").toLowerCase();
  const elementOf = (at) => elements[at] ||= make("tr", {}, ...rows[at].map((value, column) => {
    const text = amount(value, given.units[column]), name = heads[column].classList.contains("name");
    return make("td", { class: heads[column].className }, name ? make("div", { title: text }, text) : text);
  }));
  const hidden = given ? given.others : 0, rest = note?.textContent;
  const state = { column: -1, down: false, most: SHOWN };
  const field = make("input", { type: "search", placeholder: "Filter", "aria-label": "Filter rows" });
  const compare = (a, b) => {
    const [one, other] = [rows[a][state.column], rows[b][state.column]];
    // Cells without a value come last in both directions.
    if (one === other) return a - b;
    if (one === null || other === null) return one === null ? 1 : -1;
    return (state.down ? -1 : 1) * (one < other ? -1 : 1);
  };
  const show = () => {
    const wanted = wordsOf(field);
    const found = [...rows.keys()].filter((at) => wanted.every((word) => textOf(at).includes(word)));
    if (state.column >= 0) found.sort(compare);
    body.replaceChildren(...found.slice(0, state.most).map(elementOf));
    if (!note) return;
    const shown = Math.min(found.length, state.most), left = found.length - shown;
    const count = `${shown.toLocaleString("en")} of ${found.length.toLocaleString("en")} rows. `;
    const more = make("button", { type: "button" }, "all");
    more.addEventListener("click", () => { state.most = Infinity; show(); });
    note.replaceChildren(count, left ? more : "", hidden ? " " + rest : "");
  };
  heads.forEach((head, column) => {
    const button = make("button", { type: "button" }, head.textContent);
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      // Numbers start with the largest one.
      state.down = state.column === column ? !state.down : !texts[column];
      state.column = column;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      show();
    });
  });
  body.addEventListener("click", (event) => event.target.closest(".name > div")?.classList.toggle("whole"));
  if (rows.length > 8) figures.prepend(field);
  field.addEventListener("input", show);
}
document.querySelectorAll(".figures").forEach(sortable);
