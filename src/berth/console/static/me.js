"use strict";
// Asks what smaller requests would have changed; the answer takes a replay, so it comes only when it is wanted.
(() => {
  const button = document.getElementById("waits-ask");
  if (button === null) return;
  const page = JSON.parse(document.getElementById("page-data").textContent);
  const place = document.getElementById("waits-told");
  const line = (text) => {
    const paragraph = document.createElement("p");
    paragraph.textContent = text;
    return paragraph;
  };
  button.addEventListener("click", async () => {
    button.disabled = true;
    place.replaceChildren(line(page.texts.loading));
    try {
      const answer = await fetch(`/me/waits?${new URLSearchParams({ user: page.user })}`);
      const told = await answer.json();
      const lines = answer.ok ? told : [told.detail ?? `${answer.status}`];
      place.replaceChildren(...lines.map(line));
    } catch (error) {
      place.replaceChildren(line(String(error)));
    }
    button.disabled = false;
  });
})();
