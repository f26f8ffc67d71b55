// Tables need no more than tables.js.
themeButton(() => {});
