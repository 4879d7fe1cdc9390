"use strict";
// Pictures of the history, and the jobs behind what is clicked in them. All texts of others are set as text.
(() => {
  const page = JSON.parse(document.getElementById("page-data").textContent);
  const texts = page.texts;
  const byId = (id) => document.getElementById(id);
  const SIZE = 25;
  const NUMBERS = new Set(["gpus", "wait_s", "run_s", "gpu_hours", "gpu_use"]);
  let asked = 0;

  function cellOf(name, job) {
    const value = job[name];
    switch (name) {
      case "end_ms": return new Date(value).toISOString().slice(0, 16).replace("T", " ");
      case "gpu_hours": return berth.hours(value);
      case "gpu_use": return value === null ? "–" : `${Math.round(value * 100)} %`;
      case "state": return texts.states[value] ?? value;
      case "application": return value === "unknown" ? texts.unknown : value;
      default: return String(value ?? "");
    }
  }

  // What the address of this page asks for, as the API wants it.
  function wanted() {
    const search = new URLSearchParams(location.search);
    search.delete("groups"); // how long a table of the page is
    if (page.application && !search.has("application")) search.set("application", page.application);
    return search;
  }

  function headOf(search) {
    const parts = [search.get("pick"), search.get("at"), ...search.getAll("range").map((range) => range.replace(":", " ").replace(":", "–"))];
    const told = parts.filter(Boolean).map((part) => (part === "unknown" ? texts.unknown : part)).join(", ");
    return told ? berth.say(texts.of, { what: told }) : texts.all;
  }

  async function listJobs(move) {
    const place = byId("jobs");
    if (place === null) return;
    const search = wanted();
    const picked = search.has("pick") || search.has("at") || search.has("range");
    place.hidden = !picked;
    if (!picked) return;
    const number = Math.max(1, Number.parseInt(search.get("page") ?? "1", 10) || 1);
    search.delete("page");
    const mine = ++asked;
    byId("jobs-title").textContent = headOf(search);
    byId("jobs-caption").textContent = texts.loading;
    const answer = await fetch(`/api/v1/history/jobs?${search}&page=${number}&size=${SIZE}`);
    const told = await answer.json().catch(() => ({}));
    if (mine !== asked) return; // another question came meanwhile
    if (!answer.ok) {
      byId("jobs-caption").textContent = told.detail ?? String(answer.status);
      return;
    }
    showJobs(told);
    if (move) {
      byId("jobs-title").focus({ preventScroll: true });
      place.scrollIntoView({ block: "start" });
    }
  }

  function showJobs(told) {
    const titles = new Map(texts.columns);
    const shown = [...titles.keys()].filter(
      (name) => !["name", "command", "gpu_use"].includes(name) || told.attempts.some((job) => job[name] !== null && job[name] !== ""),
    );
    byId("jobs-head").replaceChildren(...shown.map((name) => {
      const head = document.createElement("th");
      head.scope = "col";
      head.textContent = titles.get(name);
      if (NUMBERS.has(name)) head.className = "number";
      return head;
    }));
    const times = new Map(["wait_s", "run_s"].map((name) => [name, berth.spans(told.attempts.map((job) => job[name]))]));
    byId("jobs-rows").replaceChildren(...told.attempts.map((job, at) => {
      const row = document.createElement("tr");
      for (const name of shown) {
        const cell = document.createElement(name === "job" ? "th" : "td");
        if (name === "job") {
          cell.scope = "row";
          const link = document.createElement("a");
          link.href = `/job/${encodeURIComponent(job.job_id)}`;
          link.textContent = job.job;
          cell.append(link);
        } else {
          cell.textContent = times.get(name)?.[at] ?? cellOf(name, job);
          if (NUMBERS.has(name)) cell.className = "number";
          if (name === "command" || name === "name") cell.className = "wide";
        }
        row.append(cell);
      }
      return row;
    }));
    const pages = Math.max(1, Math.ceil(told.total / told.size));
    byId("jobs-caption").textContent = told.total
      ? berth.say(texts.caption, { total: told.total, page: told.page, pages })
      : texts.none;
    byId("jobs-note").textContent = told.own_only ? texts.own : "";
    byId("jobs-before").disabled = told.page <= 1;
    byId("jobs-next").disabled = told.page >= pages;
  }

  // Change the address and list what it then asks for.
  function go(change, move = true) {
    const search = new URLSearchParams(location.search);
    search.delete("page");
    change(search);
    history.pushState(null, "", `${location.pathname}?${search}`);
    listJobs(move);
  }

  function drill(pick, at) {
    go((search) => {
      for (const [name, value] of [["pick", pick], ["at", at]]) {
        if (value) search.set(name, value); else search.delete(name);
      }
    });
  }

  function turn(step) {
    const search = new URLSearchParams(location.search);
    const number = Math.max(1, (Number.parseInt(search.get("page") ?? "1", 10) || 1) + step);
    search.set("page", String(number));
    history.pushState(null, "", `${location.pathname}?${search}`);
    listJobs(true);
  }

  // Which group and which moment a bar or a point stands for.
  function behind(place, trace, at) {
    return [trace.customdata[at], place.id === "lines" ? trace.x[at] : null];
  }

  // Arrow keys go through bars or points, Enter lists what is behind one.
  function keys(place) {
    let [curve, at] = [0, -1];
    place.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      const other = place.id === "lines" && ["ArrowUp", "ArrowDown"].includes(event.key);
      if (step !== undefined) {
        event.preventDefault();
        if (other) curve = (curve + step + place.data.length) % place.data.length;
        const trace = place.data[curve];
        const count = trace.customdata.length;
        at = other && at >= 0 ? at : Math.min(count - 1, Math.max(0, at + step));
        Plotly.Fx.hover(place, [{ curveNumber: curve, pointNumber: at }]);
        const name = place.id === "lines" ? `${trace.name}, ${trace.x[at]}` : trace.hovertext[at];
        const value = place.id === "lines" ? trace.y[at] : trace.x[at];
        byId(`${place.id}-told`).textContent = berth.say(texts.enter, {
          name: plain(name), value: value === null ? "–" : Number(value).toLocaleString("en", { maximumFractionDigits: 2 }),
        });
      } else if (event.key === "Enter" && at >= 0) {
        event.preventDefault();
        drill(...behind(place, place.data[curve], at));
      }
    });
  }

  // Names in figures are escaped, because Plotly reads markup; here they are shown as they are.
  function plain(text) {
    const known = { "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#x27;": "'", "&amp;": "&" };
    return text.replace(/&(lt|gt|quot|#x27|amp);/g, (found) => known[found]);
  }

  function draw(place) {
    const figure = JSON.parse(byId(place.dataset.plot).textContent);
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const ink = getComputedStyle(document.body).getPropertyValue("--ink").trim();
    figure.layout.font = { ...figure.layout.font, color: ink };
    if (dark) for (const trace of figure.data) if (trace.type === "parcoords") trace.rangefont = { color: "rgba(0,0,0,0)" };
    for (const trace of place.clientWidth < 560 ? figure.data : []) {
      if (trace.type !== "parcoords") continue;
      trace.labelfont.size = 10;
      for (const axis of trace.dimensions) axis.visible = !figure.layout.meta.narrow_hides.includes(axis.label);
    }
    Plotly.newPlot(place, figure.data, berth.fitted(figure.layout, place.clientWidth), {
      responsive: true,
      displaylogo: false,
      displayModeBar: false,
      showSendToCloud: false,
      plotlyServerURL: "",
    }).then(() => { place.dataset.drawn = "yes"; berth.dress(place); });
    if (figure.data[0]?.type === "parcoords") return brush(place);
    place.on("plotly_click", (event) => {
      const point = event.points[0];
      drill(...behind(place, place.data[point.curveNumber], point.pointNumber));
    });
    keys(place);
  }

  // What is brushed on the axes goes into the address as ranges.
  function brush(place) {
    let timer = 0;
    const tell = () => {
      byId("ranges-told").textContent = new URLSearchParams(location.search).getAll("range")
        .map((range) => range.replace(":", " ").replace(":", " – ")).join("; ");
    };
    // Amounts on a logarithmic axis; `meta` has the unit of each.
    const meta = place.data[0].meta ?? {};
    const placed = (name, value) => (name in meta ? Math.log10(1 + value / meta[name]) : value);
    const told = (name, at) => (name in meta ? meta[name] * (10 ** at - 1) : at);
    const show = () => { // ranges of the address onto the axes
      const ranges = new Map(new URLSearchParams(location.search).getAll("range").map((range) => {
        const [name, low, high] = range.split(":");
        return [name, [Number(low), Number(high)].map((end) => placed(name, end))];
      }));
      place.data[0].dimensions.forEach((dimension, at) => {
        const range = ranges.get(dimension.label);
        if (range || dimension.constraintrange) Plotly.restyle(place, { [`dimensions[${at}].constraintrange`]: range ? [range] : null });
      });
      tell();
    };
    const set = (ranges) => go((search) => {
      search.delete("range");
      for (const [name, low, high] of ranges) search.append("range", `${name}:${low}:${high}`);
    }, false);
    const brushed = () => place.data[0].dimensions
      .filter((dimension) => dimension.constraintrange && dimension.label !== "attempts") // of no single attempt
      .map((dimension) => {
        const ends = dimension.constraintrange.flat();
        return [dimension.label, ...[Math.min(...ends), Math.max(...ends)].map((end) => Number(told(dimension.label, end).toPrecision(5)))];
      });
    let showing = false;
    place.on("plotly_restyle", () => {
      if (showing) return;
      clearTimeout(timer);
      timer = setTimeout(() => { set(brushed()); tell(); }, 250);
    });
    const quietly = () => { showing = true; show(); setTimeout(() => { showing = false; }, 50); };
    addEventListener("popstate", quietly);
    byId("ranges").addEventListener("submit", (event) => {
      event.preventDefault();
      const name = byId("range-name").value;
      const low = byId("range-low").value === "" ? 0 : Number(byId("range-low").value);
      const high = byId("range-high").value === "" ? 1e12 : Number(byId("range-high").value);
      set([...new URLSearchParams(location.search).getAll("range").map((range) => range.split(":")).filter((range) => range[0] !== name), [name, low, high]]);
      quietly();
    });
    byId("range-none").addEventListener("click", () => { set([]); quietly(); });
    quietly();
  }

  for (const link of document.querySelectorAll("a.drill")) {
    link.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      const search = new URLSearchParams(new URL(link.href).search);
      drill(search.get("pick"), search.get("at"));
    });
  }
  byId("jobs-before")?.addEventListener("click", () => turn(-1));
  byId("jobs-next")?.addEventListener("click", () => turn(1));
  addEventListener("popstate", () => listJobs(false));
  // On a phone what stands below the first picture is folded away, unless the address leads there.
  const folds = [...document.querySelectorAll("details.fold")];
  if (matchMedia("(max-width: 40rem)").matches) {
    for (const fold of folds) fold.open = Boolean(location.hash) && fold.querySelector(location.hash) !== null;
  }
  for (const place of document.querySelectorAll("[data-plot]")) {
    const fold = place.closest("details:not([open])");
    if (fold === null) draw(place);
    else fold.addEventListener("toggle", function opened() { // also told when it was closed above
      if (!fold.open) return;
      fold.removeEventListener("toggle", opened);
      draw(place);
    });
  }
  listJobs(false);
})();
