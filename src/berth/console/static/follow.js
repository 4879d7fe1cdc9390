"use strict";
// The output of a job as it is written: asked for each second until the job has ended. The oldest text goes first.
(() => {
  const EVERY_MS = 1000, MOST = 1 << 20;
  const place = document.getElementById("output"), says = document.getElementById("follows");
  let next = null, going = false;

  async function follow() {
    going = true;
    for (;;) {
      const answer = await fetch(place.dataset.address + (next === null ? "" : `&after=${next}`)).catch(() => null);
      const told = answer?.ok ? await answer.json().catch(() => null) : null; // null: it broke off
      if (told !== null) {
        const below = place.scrollHeight - place.scrollTop - place.clientHeight < 8;
        const again = next !== null && told.next < next; // the file was begun anew
        const before = next === null || again || told.skipped ? "" : place.dataset.text ?? "";
        next = told.next;
        const left = told.skipped ? `${berth.say(place.dataset.skipped, { count: told.skipped })}\n` : "";
        const text = (before + left + told.text).slice(-MOST);
        if (text !== (place.dataset.text ?? "")) {
          place.dataset.text = text;
          // A line that was written over, as by a progress bar, is shown as it was last.
          place.textContent = text.replace(/\r+\n/g, "\n").replace(/[^\n]*\r(?=[^\n])/g, "");
          if (below) place.scrollTop = place.scrollHeight;
        }
        says.textContent = told.ended ? says.dataset.ended : says.dataset.on;
        if (told.ended) break;
      } else if (answer !== null && answer.status !== 429 && answer.status < 500 && answer.status !== 404) break;
      await new Promise((resolve) => { setTimeout(resolve, EVERY_MS); });
    }
    going = false;
  }

  berth.changed = () => { if (!going) follow(); }; // it may run again
  place.scrollTop = place.scrollHeight;
  follow();
})();
