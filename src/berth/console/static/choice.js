"use strict";
// Jobs of the queue that are chosen together, and what is done to all of them after one question.
(() => {
  const bar = document.getElementById("choice");
  const rows = document.getElementById("live-rows");
  const buttons = [...bar.querySelectorAll("button[data-action]")];

  berth.choice = () => {
    const count = berth.ticked(rows).length;
    document.getElementById("chosen").textContent = berth.say(bar.dataset.chosen, { count });
    for (const button of buttons) button.disabled = count === 0;
  };

  async function change(action, question) {
    const jobs = berth.ticked(rows).map((each) => ({ id: each.value, ...each.dataset }));
    const may = jobs.filter((each) => JSON.parse(each.commands)[action]);
    const lines = may.map((each) => JSON.parse(each.commands)[action]).join("\n");
    if (!may.length) { berth.tell(bar.dataset.none); return; }
    if (!await berth.confirm(berth.say(question, { count: may.length }), lines)) return;
    const why = [];
    let done = 0;
    for (const each of may) {
      const told = await fetch("/api/v1/actions", {
        method: "POST", headers: { "Content-Type": "application/json", "X-Berth-CSRF": berth.csrf },
        body: JSON.stringify({ source: each.source, action, id: each.id }),
      }).catch(() => null);
      if (told?.ok) done += 1;
      else why.push(`${each.id}: ${(await told?.json().catch(() => null))?.detail ?? told?.statusText ?? ""}`);
    }
    for (const each of berth.ticked(rows)) each.checked = false;
    berth.choice();
    berth.tell([berth.say(bar.dataset.done, { count: done }), ...why.slice(0, 3)].join("; "));
    berth.again();
  }

  rows.addEventListener("change", berth.choice);
  document.getElementById("choose-all").addEventListener("click", () => {
    const all = [...rows.querySelectorAll("input[type=checkbox]")];
    const on = all.some((each) => !each.checked);
    for (const each of all) each.checked = on;
    berth.choice();
  });
  for (const button of buttons) button.addEventListener("click", () => change(button.dataset.action, button.dataset.question));
  berth.choice();
})();
