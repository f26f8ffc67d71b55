// Draw each heat map, a byte a cell (255: no value), and show the cell under the pointer.
const drawings = [...document.querySelectorAll("canvas[data-heat]")].map((canvas) => {
  const heat = data(canvas.dataset.heat);
  const cells = Uint8Array.from(atob(heat.cells), (letter) => letter.charCodeAt(0));
  const output = canvas.closest("figure").querySelector("output");
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / box.width * canvas.width);
    const row = Math.floor((event.clientY - box.top) / box.height * canvas.height);
    const level = column < 0 || column >= canvas.width ? undefined : cells[row * canvas.width + column];
    if (level !== undefined) {
      output.textContent = `${heat.labels[row]}, after ${heat.times[column]}: ${level === 255 ? "nothing" : heat.texts[level]}`;
    }
  });
  return () => {
    const context = canvas.getContext("2d"), image = context.createImageData(canvas.width, canvas.height);
    const [low, high] = ["low", "high"].map((name) => color(name).match(/\d+/g).map(Number));
    cells.forEach((level, at) => {
      if (level === 255) return;
      for (let part = 0; part < 3; part++) image.data[4 * at + part] = low[part] + (high[part] - low[part]) * level / 254;
      image.data[4 * at + 3] = 255;
    });
    context.putImageData(image, 0, 0);
  };
});
const draw = () => drawings.forEach((drawing) => drawing());
draw();
themeButton(draw);
