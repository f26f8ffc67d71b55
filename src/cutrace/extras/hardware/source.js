// The tables need only tables.js.
themeButton(() => {});
