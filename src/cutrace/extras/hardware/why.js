// The names of kernels in the list link to their sections.
const names = $("k0") ? document.querySelectorAll(".figures")[0].querySelectorAll("td.name > div") : [];
[...names].forEach((name, at) => name.replaceChildren(make("a", { href: `#k${at}` }, name.textContent)));
themeButton(redrawCharts);
