"use strict";
// On a touch screen the buttons never hide, and on a narrow one they stand over the legend.
const narrow = matchMedia("(max-width: 40rem), (pointer: coarse)").matches;

// The values of a picture as lines: a series' name, then its values; of parallel coordinates a column an axis.
function csvOf(figure) {
  const cell = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const values = (told) => {
    if (told?.bdata === undefined) return Array.isArray(told) ? told : [];
    const kinds = { f8: Float64Array, f4: Float32Array, i4: Int32Array, i2: Int16Array, i1: Int8Array, u1: Uint8Array, u2: Uint16Array, u4: Uint32Array };
    const bytes = Uint8Array.from(atob(told.bdata), (character) => character.charCodeAt(0));
    return [...new kinds[told.dtype](bytes.buffer)];
  };
  // On a logarithmic axis a place of t stands for unit · (10^t - 1); `meta` has the unit.
  const amounts = (trace, name, places) => {
    const unit = trace.meta?.[name];
    return unit === undefined ? places : places.map((at) => unit * (10 ** at - 1));
  };
  const lines = [];
  for (const trace of figure.data) {
    if (trace.dimensions !== undefined) {
      // What was not measured lies below its axis's zero; no amount is negative.
      const columns = trace.dimensions.map((each) => {
        const column = values(each.values);
        return amounts(trace, each.label, column).map((amount, at) => (column[at] < 0 ? null : amount));
      });
      lines.push(trace.dimensions.map((each) => each.label));
      columns[0]?.forEach((_, at) => lines.push(columns.map((column) => column[at])));
      continue;
    }
    const [x, y] = [amounts(trace, "x", values(trace.x)), values(trace.y)];
    if (trace.z !== undefined) {
      const [deep, wide] = trace.z.shape?.split(",").map(Number) ?? [trace.z.length, 0];
      const flat = values(trace.z);
      const row = (at) => (trace.z.bdata === undefined ? values(trace.z[at]) : flat.slice(at * wide, at * wide + wide));
      // A calendar's cells have their days with them; what is no day of it has none.
      const days = typeof trace.customdata?.[0]?.[0] === "string" ? trace.customdata : null;
      if (lines.length === 0) lines.push(days ? ["day", "value"] : ["x", "y", "value"]);
      for (let down = 0; down < deep; down++)
        row(down).forEach((value, at) => {
          if (!days) lines.push([x[at] ?? at, y[down] ?? down, value]);
          else if (days[down][at]) lines.push([days[down][at], value]);
        });
      continue;
    }
    const title = (axis, otherwise) => axis?.title?.text || otherwise;
    const { xaxis, yaxis } = figure.layout;
    if (lines.length === 0) lines.push(["series", title(xaxis, "x"), title(yaxis, trace.orientation === "h" ? "name" : "y")]);
    // The bars of a horizontal chart lie at numbers, which its axis has names for.
    const { tickvals, ticktext } = figure.layout.yaxis ?? {};
    const named = trace.orientation === "h" && tickvals !== undefined;
    const down = named ? y.map((at) => ticktext[values(tickvals).indexOf(at)] ?? at) : y;
    x.forEach((across, at) => lines.push([trace.name, across, down[at]]));
  }
  return lines.map((line) => line.map(cell).join(",")).join("\n") + "\n";
}

function csvButton(place, figure) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "csv";
  button.textContent = "CSV";
  button.addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([csvOf(figure)], { type: "text/csv" }));
    link.download = `${place.id}.csv`;
    link.click();
    URL.revokeObjectURL(link.href);
  });
  return button;
}

// After each picture the browser has time to show it and to scroll; where it tells when it is idle, until then.
const rest = () =>
  new Promise((resolve) =>
    typeof requestIdleCallback === "undefined" ? setTimeout(resolve) : requestIdleCallback(resolve, { timeout: 200 }),
  );
// Resolves once all pictures are drawn, or the page has said why there are none.
const drawn = (async () => {
  if (!(await library.then(() => true, () => false))) return;
  for (const place of document.querySelectorAll("[data-plot]")) {
    const figure = JSON.parse(document.getElementById(place.dataset.plot).textContent);
    for (const trace of figure.data) {
      if (trace.text?.of !== undefined) trace.text = figure.data[trace.text.of].text;
      if (trace.type === "parcoords" && place.clientWidth < 560) {
        trace.labelfont.size = 10;
        for (const axis of trace.dimensions) axis.visible = !figure.layout.meta.narrow_hides.includes(axis.label);
      }
      // Between cells of a few pixels, gaps would be most of what is seen.
      if (trace.xgap && place.clientWidth / figure.layout.xaxis.range[1] < 4) trace.xgap = 0;
    }
    if (place.clientWidth < 560) {
      for (const [key, axis] of Object.entries(figure.layout)) {
        if (!key.startsWith("xaxis") || !(axis.ticktext?.length > 3)) continue;
        // Of twelve months, every third has room for its name; of times, keep the first and one of each unit.
        const texts = axis.ticktext;
        const kept = (at) => (texts.length === 12 ? at % 3 === 0 : at === 0 || !/^10+ /.test(texts[at]));
        for (const name of ["tickvals", "ticktext"]) axis[name] = axis[name].filter((_, at) => kept(at));
        axis.tickangle = 0;
      }
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
    const caption = place.parentElement.querySelector("figcaption");
    if (caption !== null) caption.append(csvButton(place, figure));
    await rest();
  }
})();
// A page that is printed by a program is printed as soon as it has loaded, so that loading ends with the last picture: a
// frame that is still being written keeps it open.
const unfinished = document.createElement("iframe");
unfinished.hidden = true;
document.body.append(unfinished);
unfinished.contentDocument.open();
drawn.finally(() => {
  unfinished.contentDocument.close();
  unfinished.remove();
});
