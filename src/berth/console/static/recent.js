"use strict";
// The last hour or day: drawn anew with each sample, and when another span is chosen.
(() => {
  const EVERY_MS = 30000;
  const get = (id) => document.getElementById(id);

  let asked = 0;
  async function draw(span) {
    asked += 1;
    const turn = asked;
    const answer = await fetch(`/now/recent?span=${span}`).catch(() => null);
    const text = answer?.ok ? await answer.text().catch(() => null) : null;
    if (text === null || turn !== asked) return; // another span was chosen meanwhile
    const fresh = new DOMParser().parseFromString(text, "text/html");
    const part = document.activeElement?.closest?.(".spans") ? "recent" : null;
    for (const each of get("recent-parts").querySelectorAll("details")) {
      const again = fresh.querySelector(`details[data-part="${each.dataset.part}"]`);
      if (again !== null) again.open = each.open;
    }
    berth.localise(fresh);
    get("recent-parts").replaceWith(document.importNode(fresh.getElementById("recent-parts"), true));
    get("recent").replaceWith(document.importNode(fresh.getElementById("recent"), true));
    if (part !== null) get(part).querySelector("a[aria-current]").focus();
  }

  document.querySelector("main").addEventListener("click", (event) => {
    const link = event.target.closest(".spans a");
    if (link === null) return;
    event.preventDefault();
    history.replaceState(null, "", link.href);
    draw(link.dataset.span);
  });
  setInterval(() => { if (!document.hidden) draw(get("recent").dataset.span); }, EVERY_MS);
})();
