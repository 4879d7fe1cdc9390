"use strict";
// What the pages of the live cluster share: parts that are drawn again, changes with a question first, local times.
(() => {
  const AGAIN_MS = 2000; // a page asks for itself at most this often

  function localise(root) {
    for (const each of root.querySelectorAll("time[data-ms]")) {
      const ms = Number(each.dataset.ms);
      each.dateTime = each.title = new Date(ms).toISOString();
      each.textContent = berth.moment(ms);
    }
  }

  function bind(root) {
    for (const button of root.querySelectorAll("button.act")) {
      button.addEventListener("click", () => berth.change(button.dataset, {}));
    }
    for (const form of root.querySelectorAll("form.operate")) {
      form.addEventListener("submit", (event) => {
        event.preventDefault();
        berth.change(form.dataset, Object.fromEntries(new FormData(form)));
      });
    }
  }

  // Ask, then change. `what` has source, action, id, question and command; `values` what a form adds.
  berth.change = async (what, values) => {
    const body = { source: what.source, action: what.action, id: values.id ?? what.id ?? "" };
    if (values.value !== undefined) body.value = values.value;
    const texts = berth.texts ?? {};
    const question = what.question ?? texts[`ask_${what.action}`] ?? what.action;
    const [node, index] = body.id.includes(":") ? body.id.split(":") : ["", ""];
    const chosen = { NODE: node, INDEX: index, NAME: body.id, VALUE: body.value ?? "" };
    const command = what.command.replace(/\b(NODE|INDEX|NAME|VALUE)(?=\b|M\b)/g, (word) => chosen[word]);
    if (!await berth.confirm(question, command)) return;
    try {
      const told = await berth.send("/api/v1/actions", body);
      berth.tell(told.done);
      berth.changed?.();
      again();
    } catch { /* it was told */ }
  };

  berth.ticked = (root) => [...root.querySelectorAll("input[type=checkbox]:checked")];
  const jobOf = (box) => `${box.dataset.source} ${box.value}`; // two sources may have jobs of one id

  let asked = 0;
  let waits = null;
  async function again() {
    if (waits !== null) return;
    const left = asked + AGAIN_MS - performance.now();
    waits = setTimeout(async () => {
      asked = performance.now();
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } }).catch(() => null);
      waits = null;
      if (answer === null || !answer.ok || document.querySelector("dialog[open]")) return;
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const old of document.querySelectorAll("[data-refresh]")) {
        const part = fresh.getElementById(old.id);
        const here = old.contains(document.activeElement) ? document.activeElement : null;
        if (part === null || (here !== null && here.matches("input:not([type=checkbox]), select, textarea"))) continue;
        localise(part);
        if (part.innerHTML === old.dataset.as) continue;
        const address = here?.getAttribute("href"), ticked = new Set(berth.ticked(old).map(jobOf));
        old.dataset.as = part.innerHTML;
        old.replaceChildren(...document.importNode(part, true).childNodes);
        bind(old);
        for (const each of old.querySelectorAll("input[type=checkbox]")) {
          each.checked = ticked.has(jobOf(each));
          if (here?.type === "checkbox" && jobOf(here) === jobOf(each)) each.focus();
        }
        if (address) old.querySelector(`a[href="${CSS.escape(address)}"]`)?.focus();
        berth.choice?.();
      }
      document.title = fresh.title;
    }, Math.max(0, left));
  }
  berth.again = again;
  berth.localise = localise;

  localise(document);
  bind(document);
  if (document.querySelector("[data-refresh]")) {
    let seen = null;
    berth.listen("look", (told) => {
      const what = `${told.boot} ${told.jobs} ${told.sources.map((each) => each.here).join()}`;
      if (seen !== null && seen !== what) again();
      seen = what;
    });
  }
})();
