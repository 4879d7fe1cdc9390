"use strict";
// The first-time hint of a page, until it was understood; the browser remembers that.
for (const place of document.querySelectorAll("[data-hint]")) {
  const key = `berth-hint-${place.dataset.hint}`;
  let known = null;
  try { known = localStorage.getItem(key); } catch { /* no storage: the hint comes each time */ }
  place.hidden = known !== null;
  place.querySelector("button").addEventListener("click", () => {
    place.hidden = true;
    try { localStorage.setItem(key, "understood"); } catch { /* as above */ }
    document.getElementById("main").focus();
  });
}
