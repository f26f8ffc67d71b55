"use strict";
(() => {
  const search = document.getElementById("search"), count = document.getElementById("count"), all = count.textContent;
  const rows = [...document.querySelectorAll("#tests tbody tr")];
  const texts = rows.map((row) => row.firstChild.textContent.toLowerCase());
  search.addEventListener("input", () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let found = 0;
    rows.forEach((row, at) => {
      row.hidden = !words.every((word) => texts[at].includes(word));
      found += !row.hidden;
    });
    count.textContent = words.length ? found.toLocaleString("en") + " of " + rows.length.toLocaleString("en") : all;
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && event.target !== search) { event.preventDefault(); search.focus(); search.select(); }
  });
})();
