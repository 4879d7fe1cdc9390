"use strict";
// The form that submits a job: it stays as it is where the job is refused, and says why.
(() => {
  const form = document.querySelector("#submit form");
  const refused = form.querySelector("[role=alert]");
  const refuse = (why) => { refused.textContent = why; refused.hidden = false; };
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = form.querySelector("button");
    refused.hidden = button.disabled = true;
    const body = { source: form.dataset.source, ...Object.fromEntries(new FormData(form)) };
    try {
      const told = await berth.send("/api/v1/jobs", body, refuse);
      form.elements.command.value = "";
      berth.tell(berth.say(form.dataset.done, told));
      berth.again();
    } catch (error) {
      if (refused.hidden) refuse(String(error)); // the network is away
    } finally {
      button.disabled = false;
    }
  });
})();
