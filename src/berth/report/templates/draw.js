"use strict";
// On a touch screen the buttons never hide, and on a narrow one they stand over the legend.
const narrow = matchMedia("(max-width: 40rem), (pointer: coarse)").matches;
for (const place of document.querySelectorAll("[data-plot]")) {
  const figure = JSON.parse(document.getElementById(place.dataset.plot).textContent);
  for (const trace of figure.data) {
    if (trace.text?.of !== undefined) trace.text = figure.data[trace.text.of].text;
    // Between cells of a few pixels, gaps would be most of what is seen.
    if (trace.xgap && place.clientWidth / figure.layout.xaxis.range[1] < 4) trace.xgap = 0;
  }
  Plotly.newPlot(place, figure.data, figure.layout, {
    responsive: true,
    displaylogo: false,
    displayModeBar: narrow || place.classList.contains("bare") ? false : "hover",
    // Nothing of a report may leave it: the button that uploads a plot is neither shown nor has an address.
    showSendToCloud: false,
    plotlyServerURL: "",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
    toImageButtonOptions: { filename: place.id, scale: 2 },
  });
}
