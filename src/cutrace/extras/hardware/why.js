themeButton(() => {});
