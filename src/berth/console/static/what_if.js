"use strict";
// Asking, following and showing a what-if.
(() => {
  const form = document.getElementById("ask");
  if (form !== null) {
    const refused = document.getElementById("refused");
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      refused.hidden = true;
      const values = new FormData(form);
      const others = values.get("others").split(",").map((each) => each.trim()).filter(Boolean);
      const number = (name) => (values.get(name) === "" ? null : Number(values.get(name)));
      const sharing = values.get("sharing");
      const body = {
        policies: [...values.getAll("policies"), ...others],
        keep: values.get("keep"), since: values.get("since"), until: values.get("until"), cluster: values.get("cluster"),
        whole_gpus: sharing === "whole", interference: sharing === "whole" ? "none" : sharing,
        user_gpus: number("user_gpus"), user_running: number("user_running"),
      };
      const button = form.querySelector("button[type=submit]");
      button.disabled = true;
      try {
        const answer = await fetch("/api/v1/what-if", {
          method: "POST",
          headers: { "Content-Type": "application/json", "X-Berth-CSRF": berth.csrf },
          body: JSON.stringify(body),
        });
        const told = await answer.json().catch(() => ({}));
        if (answer.ok) {
          location.assign(`/what-if/${encodeURIComponent(told.id)}`);
          return;
        }
        refused.textContent = told.detail ?? `${answer.status} ${answer.statusText}`;
      } catch (error) {
        refused.textContent = String(error);
      } finally {
        button.disabled = false;
      }
      refused.hidden = refused.textContent === "";
      refused.scrollIntoView({ block: "nearest" });
    });
  }

  const question = document.getElementById("question");
  if (question === null) return;
  const address = `/api/v1/what-if/${encodeURIComponent(question.dataset.id)}`;
  for (const button of question.querySelectorAll("[data-do]")) {
    button.addEventListener("click", async () => {
      const what = button.dataset.do;
      if (what === "copy") {
        await navigator.clipboard.writeText(location.href).then(
          () => berth.tell(button.dataset.copied), () => berth.tell(location.href));
      } else if (what === "delete") {
        if (!(await berth.confirm(button.dataset.question, ""))) return;
        const answer = await fetch(address, { method: "DELETE", headers: { "X-Berth-CSRF": berth.csrf } });
        if (answer.ok) location.assign("/what-if");
        else berth.tell((await answer.json().catch(() => ({}))).detail ?? `${answer.status}`);
      } else {
        await berth.send(`${address}/${what}`, {}).then(() => location.reload(), () => undefined);
      }
    });
  }

  // While it is not over, ask how far it is; a console that is away for a while is asked again.
  async function follow() {
    try {
      const answer = await fetch(address);
      if (answer.status === 404) { location.reload(); return; }
      if (answer.ok) {
        const told = await answer.json();
        if (told.place !== question.dataset.place) { location.reload(); return; }
        document.getElementById("progress").value = told.done;
        document.getElementById("done").textContent = `${Math.round(100 * told.done)} %`;
      }
    } catch { /* the network is away */ }
    setTimeout(follow, 1000);
  }
  if (question.dataset.over === "") setTimeout(follow, 1000);

  async function draw() {
    const place = document.getElementById("pictures");
    if (typeof Plotly === "undefined") { place.textContent = place.dataset.none; return; }
    const titles = JSON.parse(place.dataset.titles);
    const answer = await fetch(`${address}/pictures`).catch(() => null);
    if (answer === null || !answer.ok) { place.textContent = place.dataset.none; return; }
    const ink = getComputedStyle(document.documentElement).getPropertyValue("--ink").trim();
    const figures = await answer.json();
    // All places are there before the first picture is drawn, so that each is drawn as wide as it stays.
    const plots = figures.map((each) => {
      const figure = document.createElement("figure");
      const caption = document.createElement("figcaption");
      const plot = document.createElement("div");
      caption.textContent = titles[each.name] ?? each.title;
      const what = each.figure.layout.title?.text;
      if (what) caption.append(Object.assign(document.createElement("small"), { textContent: what }));
      plot.setAttribute("role", "img");
      plot.setAttribute("aria-label", `${titles[each.name] ?? each.title}: ${what ?? ""}`);
      figure.append(caption, plot);
      place.append(figure);
      return plot;
    });
    figures.forEach((each, at) => {
      const { title, ...rest } = each.figure.layout; // the caption has it: a legend of many lines would lie on it
      const legend = { ...rest.legend, y: -0.22, yanchor: "top" };
      const layout = berth.fitted({ ...rest, legend, margin: { ...rest.margin, t: 12 }, font: { ...rest.font, color: ink } }, plots[at].clientWidth);
      Plotly.newPlot(plots[at], each.figure.data, layout, {
        responsive: true, displaylogo: false, displayModeBar: false, showSendToCloud: false, plotlyServerURL: "",
      }).then(berth.dress);
    });
    place.dataset.drawn = "yes";
  }
  if (question.dataset.done !== "") draw();
})();
