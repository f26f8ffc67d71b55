themeButton(redrawCharts);
