"use strict";
// The use of a job's GPUs over time, drawn by Plotly where it is there; the table below says the same.
(() => {
  const place = document.getElementById("series");
  if (typeof Plotly === "undefined") { place.hidden = true; return; }
  const told = JSON.parse(document.getElementById("points").textContent);
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const times = told.points.map((each) => new Date(each.time_ms));
  const traces = [{ x: times, y: told.points.map((each) => each.use_pct), name: told.use, mode: "lines", line: { color: colour("--t0") } }];
  if (told.points.some((each) => each.mem_mib !== null)) {
    traces.push({
      x: times, y: told.points.map((each) => each.mem_mib === null ? null : each.mem_mib / 1024), name: told.memory,
      mode: "lines", yaxis: "y2", line: { color: colour("--t5"), dash: "dash" },
    });
  }
  const axis = { gridcolor: colour("--line"), zerolinecolor: colour("--line"), rangemode: "tozero" };
  Plotly.newPlot(place, traces, {
    paper_bgcolor: "transparent", plot_bgcolor: "transparent", font: { color: colour("--ink") }, height: 320,
    margin: { l: 55, r: 55, t: 10, b: 60 }, legend: { orientation: "h", y: -0.3 },
    xaxis: { ...axis, title: { text: told.time } }, yaxis: { ...axis, title: { text: told.use }, range: [0, 105] },
    // Ticks of its own at round numbers: those of the other axis would fall on 4.01 and 8.02 GiB.
    yaxis2: { ...axis, title: { text: told.memory }, overlaying: "y", side: "right", showgrid: false, tickmode: "auto", nticks: 6 },
  }, { responsive: true, displaylogo: false, displayModeBar: false }).then(berth.dress);
})();
