"use strict";
// Filters of a history's page: sums over all cells that are chosen, and a median of the sampled waits among them.
(async () => {
  const place = document.getElementById("filter-data");
  if (place === null) return;
  await firstDrawn;
  const told = JSON.parse(place.textContent);
  const bytes = new Uint8Array(await (await unpacked(told.data)).arrayBuffer());
  // A column has all lowest bytes of its numbers first, then all second ones, and so on.
  const column = (name) => {
    const [width, at, length] = told.columns[name];
    const values = new Float64Array(length);
    for (let byte = 0, scale = 1; byte < width; byte++, scale *= 256) {
      const first = at + byte * length;
      for (let each = 0; each < length; each++) values[each] += scale * bytes[first + each];
    }
    return values;
  };
  const facets = Object.keys(told.names);
  const codes = Object.fromEntries(facets.map((name) => [name, column(name)]));
  const sums = ["tries", "held", "wasted", "measured", "idle"];
  const values = Object.fromEntries(sums.map((name) => [name, column(name)]));
  for (const name of ["wasted", "measured"]) {  // 0 is nothing, 1 all that was held, any other one more than it is
    const part = values[name];
    for (let at = 0; at < part.length; at++) part[at] = part[at] === 1 ? values.held[at] : Math.max(part[at] - 1, 0);
  }
  // Cells lie by combination of the facets, those of one by date, which is told as the step from the one before.
  const ends = column("cells"), days = column("day");
  for (let at = 1; at < ends.length; at++) ends[at] += ends[at - 1];
  const first = (combination) => (combination ? ends[combination - 1] : 0);
  for (let combination = 0; combination < ends.length; combination++) {
    for (let at = first(combination) + 1; at < ends[combination]; at++) days[at] += days[at - 1];
  }
  const sample = { group: column("sample.group"), day: column("sample.day"), wait: column("sample.wait_s") };

  const control = (name) => document.getElementById(`filter-${name}`);
  for (const name of facets) {
    told.names[name].forEach((text, at) => control(name).add(new Option(text, String(at))));
  }
  const dayOf = (text) => Math.floor(Date.parse(`${text}T00:00:00Z`) / 86400000);
  const dateOf = (day) => new Date(day * 86400000).toISOString().slice(0, 10);
  for (const name of ["from", "to"]) {
    control(name).min = dateOf(told.days[0]);
    control(name).max = dateOf(told.days.at(-1));
  }
  // As durations.py writes hours: few are told in minutes or seconds.
  const hours = (sum) => {
    const hour = sum / told.hour;
    const [factor, unit] = hour === 0 || hour >= 0.1 ? [1, ""] : hour * 60 >= 1 ? [60, " min"] : [3600, " s"];
    if (hour > 0 && hour * 3600 < 0.05) return "< 0.1 s";
    return (hour * factor).toLocaleString("en", { maximumFractionDigits: 1 }) + unit;
  };
  const length = (s) =>
    s < 60 ? `${s.toFixed(0)} s` : s < 3600 ? `${(s / 60).toFixed(1)} min` : `${(s / 3600).toFixed(1)} h`;

  function chosenCombinations() {
    const wanted = facets.filter((name) => control(name).value !== "");
    return ends.map((_, at) => wanted.every((name) => codes[name][at] === Number(control(name).value)));
  }

  // Which of the dates are chosen, as the first of them and the one after the last.
  function chosenDays() {
    return [["from", -Infinity, 0], ["to", Infinity, 1]].map(([name, otherwise, after]) => {
      const wanted = control(name).value ? dayOf(control(name).value) + after : otherwise;
      const found = told.days.findIndex((day) => day >= wanted);
      return found < 0 ? told.days.length : found;
    });
  }

  function show() {
    const by = control("by").value;
    const groups = told.names[by].map(() => null);
    const total = Object.fromEntries(sums.map((name) => [name, 0]));
    const chosen = chosenCombinations();
    const [from, to] = chosenDays();
    for (let combination = 0; combination < ends.length; combination++) {
      if (!chosen[combination]) continue;
      const key = codes[by][combination];
      for (let at = first(combination); at < ends[combination]; at++) {
        if (days[at] < from || days[at] >= to) continue;
        groups[key] ??= Object.fromEntries(sums.map((name) => [name, 0]));
        const group = groups[key];
        group.tries += values.tries[at];
        group.held += values.held[at];
        group.wasted += values.wasted[at];
        group.measured += values.measured[at];
        group.idle += values.idle[at];
      }
    }
    const rows = [...groups.entries()].filter(([, sum]) => sum !== null);
    for (const [, sum] of rows) for (const name of sums) total[name] += sum[name];
    const waits = sample.wait
      .filter((_, at) => chosen[sample.group[at]] && sample.day[at] >= from && sample.day[at] < to)
      .sort();
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
    const names = [...body.previousElementSibling.querySelectorAll("th")].map((head) => head.textContent);
    body.replaceChildren();
    rows.sort((a, b) => b[1].held - a[1].held || a[0] - b[0]);
    for (const [key, sum] of rows.slice(0, 20)) {
      const row = body.insertRow();
      const head = document.createElement("th");
      head.scope = "row";
      head.textContent = told.names[by][key];
      row.append(head);
      const share = total.held ? `${((sum.held / total.held) * 100).toFixed(1)} %` : "–";
      for (const text of [hours(sum.held), share, idle(sum), hours(sum.wasted), sum.tries.toLocaleString("en")]) {
        const cell = row.insertCell();
        cell.dataset.label = names[cell.cellIndex];
        cell.textContent = text;
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
