"use strict";
// Leaves the picture as text in the page, where the process that started this browser reads it.
const plot = document.getElementById("plot");
drawn.then(async () => {
  const url = await Plotly.toImage(plot, { format: plot.dataset.wanted, width: 1100, height: plot.layout.height, scale: 2 });
  const text = document.createElement("pre");
  text.id = "image";
  text.textContent = url;
  document.body.replaceChildren(text);
});
