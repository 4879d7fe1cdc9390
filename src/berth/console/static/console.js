"use strict";
// What every page of the console shares: requests that change something, messages, and news from the server.
const berth = {
  csrf: document.querySelector('meta[name="csrf"]').content,

  // A text with its values; `{n:# job|# jobs}` is a number with its noun, as in pages.py.
  say(text, values) {
    return text.replace(/\{(\w+)(?::([^{}|]*)\|([^{}]*))?\}/g, (all, name, one, many) => {
      if (!(name in values)) return all;
      const value = values[name];
      const shown = typeof value === "number" ? value.toLocaleString("en-US", { maximumFractionDigits: 1 }) : String(value);
      return one === undefined ? shown : (value === 1 ? one : many).replace("#", shown);
    });
  },

  // A moment in the reader's own time; of today only the hour.
  moment(ms) {
    const at = new Date(ms);
    const day = at.toDateString() === new Date().toDateString() ? {} : { dateStyle: "medium" };
    return at.toLocaleString(document.documentElement.lang, { ...day, timeStyle: "short", hourCycle: "h23" });
  },

  // A length of time, as words.py writes it.
  span(seconds) {
    const [size, unit] = [[86400, "d"], [3600, "h"], [60, "min"]].find(([each]) => seconds >= 2 * each) ?? [1, "s"];
    const digits = unit === "s" ? 0 : 1;
    const number = (Math.max(0, seconds) / size).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
    return berth.say(JSON.parse(document.body.dataset.units)[unit], { number });
  },

  // Lengths of time that stand in one column, in one unit, as words.py writes them.
  spans(all) {
    const largest = Math.max(0, ...all.filter((each) => each !== null));
    const [size, unit] = [[86400, "d"], [3600, "h"], [60, "min"]].find(([each]) => largest >= 2 * each) ?? [1, "s"];
    const decimal = (value) => value === 0 ? "0" : value < 0.1 ? value.toLocaleString("en-US", { maximumSignificantDigits: 1 })
      : value.toLocaleString("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
    const text = JSON.parse(document.body.dataset.units)[unit];
    return all.map((each) => each === null ? "–" : berth.say(text, { number: decimal(Math.max(0, each) / size) }));
  },

  // Hours in a column that says so, as formats.py writes them: few are told in minutes or seconds.
  hours(amount) {
    const [factor, unit] = amount === 0 || amount >= 0.1 ? [1, "h"] : amount * 60 >= 1 ? [60, "min"] : [3600, "s"];
    const shown = amount && amount < 1000 ? 1 : 0;
    const digits = { minimumFractionDigits: shown, maximumFractionDigits: shown };
    const number = amount > 0 && amount * 3600 < 0.05 ? "< 0.1" : (amount * factor).toLocaleString("en-US", digits);
    return unit === "h" ? number : berth.say(JSON.parse(document.body.dataset.units)[unit], { number });
  },

  // A sentence that the server's sources have composed, in the language of the page; `pairs` are templates in both.
  sentence(said, pairs) {
    for (const [template, other] of pairs) {
      const plain = template.replace(/[.*+?^$()|[\]\\]/g, "\\$&").replace(/\{(\w+)\}/g, "(?<$1>.+?)");
      const found = said.match(new RegExp(`^${plain}$`, "s"));
      if (found !== null) return berth.say(other, { ...found.groups });
    }
    return said;
  },

  // Draw texts and lines of a figure in the colours of the page, now and when these change.
  dress(place) {
    const draw = () => {
      const style = getComputedStyle(document.documentElement);
      const [ink, line] = ["--ink", "--line"].map((name) => style.getPropertyValue(name).trim());
      const axes = Object.keys(place.layout).filter((name) => /^[xy]axis\d*$/.test(name));
      Plotly.relayout(place, Object.fromEntries([["font.color", ink], ...axes.flatMap((name) => [[`${name}.gridcolor`, line], [`${name}.zerolinecolor`, line]])]));
    };
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  },

  // A layout with fewer and level ticks where it is drawn on a phone, so that no label lies on another.
  fitted(layout, width) {
    if (width >= 480 || layout.xaxis === undefined) return layout;
    const axis = { ...layout.xaxis, tickangle: 0, nticks: 4 };
    if (axis.ticktext?.length > 3) {
      // Of times, keep the first and one of each unit.
      const kept = axis.ticktext.map((text, at) => (at === 0 || !/^10+ /.test(text) ? at : -1)).filter((at) => at >= 0);
      axis.ticktext = kept.map((at) => layout.xaxis.ticktext[at]);
      axis.tickvals = kept.map((at) => layout.xaxis.tickvals[at]);
    }
    return { ...layout, xaxis: axis };
  },

  // Send a change; gives what the server answers, or tells what it refused and throws.
  async send(address, body, refused = berth.tell) {
    const answer = await fetch(address, {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Berth-CSRF": berth.csrf },
      body: JSON.stringify(body),
    });
    const told = await answer.json().catch(() => ({}));
    if (!answer.ok) {
      refused(told.detail ?? `${answer.status} ${answer.statusText}`);
      throw new Error(`${answer.status}`);
    }
    return told;
  },

  // Show a message for some seconds; screen readers say it.
  tell(text) {
    const place = document.getElementById("told");
    place.textContent = text;
    clearTimeout(berth.timer);
    berth.timer = setTimeout(() => { place.textContent = ""; }, 8000);
  },

  // Call `hear` with the data of each event of this name. A browser without EventSource asks every two seconds.
  listen(name, hear) {
    if (typeof EventSource === "undefined") {
      setInterval(async () => {
        const answer = await fetch(`/events/last/${name}`).catch(() => null);
        berth.away(answer === null);
        if (answer?.ok) hear(await answer.json());
        else if (answer?.status === 401) location.reload(); // the session has ended: its page says what to do
      }, 2000);
      return;
    }
    const tell = (event) => hear(JSON.parse(event.data));
    berth.hearers = [...(berth.hearers ?? []), [name, tell]];
    if (berth.source === undefined) berth.connect();
    else berth.source.addEventListener(name, tell);
  },

  // It connects again by itself where the line is cut; where something else answered meanwhile, it has to be made anew.
  connect() {
    berth.source = new EventSource("/events");
    berth.source.addEventListener("open", () => berth.away(false));
    for (const [name, tell] of berth.hearers) berth.source.addEventListener(name, tell);
    berth.source.addEventListener("error", () => {
      berth.away(true);
      if (berth.source.readyState !== EventSource.CLOSED) return;
      setTimeout(async () => {
        const answer = await fetch("/api/v1/sources").catch(() => null);
        if (answer !== null && answer.status === 401) location.reload(); // the session has ended: its page says what to do
        else berth.connect();
      }, 3000);
    });
  },

  // Say above the page that the console does not answer, after a while in which one that restarts is back.
  away(gone) {
    const place = document.getElementById("away");
    if (!gone) {
      clearTimeout(berth.awayTimer);
      berth.awayTimer = undefined;
      place.textContent = "";
    } else if (berth.awayTimer === undefined) {
      const since = berth.moment(Date.now());
      berth.awayTimer = setTimeout(() => { place.textContent = berth.say(place.dataset.text, { time: since }); }, 5000);
    }
  },

  // Ask before a change is made, with the command that does the same; gives whether to go on.
  confirm(question, command) {
    return new Promise((resolve) => {
      const dialog = document.createElement("dialog");
      const text = document.createElement("p");
      text.textContent = question;
      const line = document.createElement("pre");
      line.textContent = command;
      const [yes, no] = ["yes", "no"].map((value) => {
        const button = document.createElement("button");
        button.value = value;
        button.textContent = document.body.dataset[value] ?? value;
        button.addEventListener("click", () => dialog.close(value));
        return button;
      });
      dialog.append(text, ...(command ? [line] : []), yes, " ", no);
      dialog.addEventListener("close", () => { dialog.remove(); resolve(dialog.returnValue === "yes"); });
      document.body.append(dialog);
      dialog.showModal();
      no.focus();
    });
  },
};

document.getElementById("log-out")?.addEventListener("click", async () => {
  await berth.send("/logout", {});
  location.assign("/");
});

// Cells of wide tables have the names of their columns, which console.css shows where a row is a card.
(() => {
  const name = () => {
    for (const table of document.querySelectorAll(".scroll table")) {
      const heads = [...table.querySelectorAll("thead th, thead td")].map((head) => head.textContent.trim());
      table.classList.toggle("cards", heads.length > 3);
      for (const row of table.tBodies[0]?.rows ?? []) {
        if (row.cells.length !== heads.length) continue;
        for (const [at, cell] of [...row.cells].entries()) if (cell.dataset.label !== heads[at]) cell.dataset.label = heads[at];
      }
    }
  };
  new MutationObserver(name).observe(document.querySelector("main"), { childList: true, subtree: true });
  name();
})();
