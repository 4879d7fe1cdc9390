"use strict";
// Filters of a history's page: sums over all cells that are chosen, and a median of the sampled waits among them.
(async () => {
  const place = document.getElementById("filter-data");
  if (place === null) return;
  const told = JSON.parse(place.textContent);
  const packed = Uint8Array.from(atob(told.data), (character) => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const buffer = await new Response(stream).arrayBuffer();
  const kinds = { u4: Uint32Array, i4: Int32Array, f4: Float32Array, f8: Float64Array };
  const columns = {};
  for (const [name, [kind, at, length]] of Object.entries(told.columns)) {
    columns[name] = new kinds[kind](buffer, at, length);
  }
  const facets = Object.keys(told.names);
  const control = (name) => document.getElementById(`filter-${name}`);
  for (const name of facets) {
    told.names[name].forEach((text, at) => control(name).add(new Option(text, String(at))));
  }
  const dayOf = (text) => Math.floor(Date.parse(`${text}T00:00:00Z`) / 86400000);
  const dateOf = (day) => new Date(day * 86400000).toISOString().slice(0, 10);
  let first = Infinity, last = -Infinity;
  for (const day of columns.day) {
    if (day < first) first = day;
    if (day > last) last = day;
  }
  for (const name of ["from", "to"]) {
    control(name).min = dateOf(first);
    control(name).max = dateOf(last);
  }
  const hours = (value) => value.toLocaleString("en", { maximumFractionDigits: 1 });
  const length = (s) =>
    s < 60 ? `${s.toFixed(0)} s` : s < 3600 ? `${(s / 60).toFixed(1)} min` : `${(s / 3600).toFixed(1)} h`;

  function chosen(prefix) {
    const wanted = facets.filter((name) => control(name).value !== "");
    const values = wanted.map((name) => [columns[prefix + name], Number(control(name).value)]);
    const from = control("from").value ? dayOf(control("from").value) : -Infinity;
    const to = control("to").value ? dayOf(control("to").value) : Infinity;
    const days = columns[`${prefix}day`];
    return (at) => days[at] >= from && days[at] <= to && values.every(([column, value]) => column[at] === value);
  }

  function show() {
    const by = control("by").value;
    const groups = new Map();
    const sums = ["tries", "held", "wasted", "measured", "idle"];
    const total = Object.fromEntries(sums.map((name) => [name, 0]));
    const counts = chosen("");
    for (let at = 0; at < columns.day.length; at++) {
      if (!counts(at)) continue;
      const key = columns[by][at];
      let group = groups.get(key);
      if (group === undefined) groups.set(key, (group = Object.fromEntries(sums.map((name) => [name, 0]))));
      for (const name of sums) {
        group[name] += columns[name][at];
        total[name] += columns[name][at];
      }
    }
    const sampled = chosen("sample.");
    const waits = columns["sample.wait_s"].filter((_, at) => sampled(at)).sort();
    const idle = (sum) => (sum.measured ? hours(sum.idle) : "not measured");
    const figures = [
      ["attempts", total.tries.toLocaleString("en")],
      ["GPU-hours held", hours(total.held)],
      ["GPU-hours idle, of those measured", idle(total)],
      ["GPU-hours of failed attempts", hours(total.wasted)],
      [
        `median wait, of ${waits.length.toLocaleString("en")} sampled attempts`,
        waits.length ? length(waits[Math.floor((waits.length - 1) / 2)]) : "–",
      ],
    ];
    const list = control("figures");
    list.replaceChildren();
    for (const [name, value] of figures) {
      const [term, definition] = [document.createElement("dt"), document.createElement("dd")];
      term.textContent = name;
      definition.textContent = value;
      list.append(term, definition);
    }
    const body = control("rows");
    body.replaceChildren();
    const rows = [...groups].sort((a, b) => b[1].held - a[1].held || a[0] - b[0]);
    for (const [key, sum] of rows.slice(0, 20)) {
      const row = body.insertRow();
      const head = document.createElement("th");
      head.scope = "row";
      head.textContent = told.names[by][key];
      row.append(head);
      const share = total.held ? `${((sum.held / total.held) * 100).toFixed(1)} %` : "–";
      for (const text of [hours(sum.held), share, idle(sum), hours(sum.wasted), sum.tries.toLocaleString("en")]) {
        row.insertCell().textContent = text;
      }
    }
    control("more").textContent = rows.length > 20 ? `… and ${rows.length - 20} more` : "";
  }
  for (const name of [...facets, "from", "to", "by"]) control(name).addEventListener("change", show);
  control("reset").addEventListener("click", () => {
    for (const name of [...facets, "from", "to"]) control(name).value = "";
    show();
  });
  show();
  document.getElementById("filter").dataset.ready = "yes";
})();
