(() => {
  const search = $("search"), count = $("count"), all = count.textContent;
  const rows = [...document.querySelectorAll("#tests tbody tr")];
  const texts = rows.map((row) => row.firstChild.textContent.toLowerCase());
  search.addEventListener("input", () => {
    const words = wordsOf(search);
    rows.forEach((row, at) => { row.hidden = !words.every((word) => texts[at].includes(word)); });
    const found = rows.filter((row) => !row.hidden).length;
    count.textContent = words.length ? found.toLocaleString("en") + " of " + rows.length.toLocaleString("en") : all;
  });
  slashKey(search);
  themeButton(redrawCharts);
})();
