"use strict";
// The GPUs of this moment: a tile each, or a map where there are many; told of changes, and filtered here.
(() => {
  const MOST_TILES = 200, ROWS = 100, IDLE_PCT = 5;
  const texts = berth.texts = JSON.parse(document.getElementById("texts").textContent);
  const get = (id) => document.getElementById(id);
  const operates = get("operate") !== null;
  const form = get("choose");
  let gpus = new Map();
  let boot = null, version = -1, nowMs = Date.now(), chosen = null, rows = ROWS, waiting = null, loading = false;

  const key = (gpu) => `${gpu.source} ${gpu.node} ${gpu.index}`;
  const { say } = berth;
  const sentence = (text) => berth.sentence(text, texts.composed);
  const gib = (mib) => (mib / 1024).toFixed(mib < 10240 ? 1 : 0);
  function make(tag, kind, ...inside) {
    const found = document.createElement(tag);
    if (kind) found.className = kind;
    found.append(...inside);
    return found;
  }

  function kindOf(gpu) {
    if (gpu.health) return "broken";
    if (gpu.drained) return "drained";
    if (gpu.tenants.length === 0) return gpu.strangers.length ? "stranger" : "free";
    if (gpu.use_pct === null) return "unknown";
    if (gpu.use_pct < IDLE_PCT) return "idle";
    return gpu.tenants.length > 1 ? "shared" : "busy";
  }

  function wanted(gpu) {
    const values = new FormData(form);
    const user = values.get("user");
    return (!values.get("model") || gpu.model === values.get("model"))
      && (!values.get("partition") || gpu.partition === values.get("partition"))
      && (!user || gpu.tenants.some((each) => each.user === user));
  }

  function meter(name, parts, value) {
    const rail = make("span", "rail");
    for (const [part, kind] of parts) {
      const piece = make("i", kind);
      piece.style.width = `${Math.max(0, Math.min(100, part))}%`;
      rail.append(piece);
    }
    return make("span", "meter", make("span", "", name), rail, make("span", "value", value));
  }

  function fill(tile, gpu) {
    const kind = kindOf(gpu);
    tile.className = `tile ${kind}`;
    const said = (text, amount) => say(text, { amount });
    const promised = gpu.tenants.reduce((sum, each) => sum + each.milli / 10, 0);
    const promisedMib = gpu.tenants.reduce((sum, each) => sum + each.mem_mib, 0);
    const head = make("span", "head", make("b", "", `${texts.gpu} ${gpu.index}`), make("span", "what", texts[kind]));
    const meters = make(
      "span", "meters",
      meter(texts.compute, gpu.tenants.map((each, at) => [each.milli / 10, `c${at % 6}`]), said(texts.promised, `${Math.round(promised)} %`)),
      meter(texts.memory, gpu.tenants.map((each, at) => [partOf(gpu, each.mem_mib), `c${at % 6}`]), said(texts.promised, `${gib(promisedMib)} GiB`)),
      meter(texts.compute, gpu.use_pct === null ? [] : [[gpu.use_pct, "cu"]], gpu.use_pct === null ? "–" : said(texts.inuse, `${Math.round(gpu.use_pct)} %`)),
      meter(texts.memory, gpu.used_mib === null ? [] : memoryParts(gpu), gpu.used_mib === null ? "–" : said(texts.inuse, `${gib(gpu.used_mib)} GiB`)),
    );
    const list = make("span", "tenants");
    gpu.tenants.forEach((each, at) => list.append(make("span", "", make("i", `c${at % 6}`), `${each.job} · ${each.user} · ${each.milli / 10} %`)));
    for (const each of gpu.strangers) list.append(make("span", "", make("i", "cs"), `${sentence(each.what)} · ${gib(each.mem_mib)} GiB`));
    if (gpu.health) list.append(make("span", "", sentence(gpu.health)));
    tile.replaceChildren(head, meters, list);
    tile.setAttribute("aria-pressed", String(chosen === key(gpu)));
  }

  function partOf(gpu, mib) {
    return 100 * mib / Math.max(1, gpu.mem_mib);
  }

  function memoryParts(gpu) {
    const part = (mib) => partOf(gpu, mib);
    const strange = gpu.strangers.reduce((sum, each) => sum + each.mem_mib, 0);
    if (gpu.tenants.every((each) => each.used_mib !== null)) {
      return [...gpu.tenants.map((each, at) => [part(each.used_mib), `c${at % 6}`]), [part(strange), "cs"]];
    }
    return [[part(gpu.used_mib - strange), "cu"], [part(strange), "cs"]];
  }

  const tiles = new Map();
  function drawTiles(nodes) {
    get("tiles").hidden = false;
    get("map").hidden = true;
    const there = [...tiles.keys()].join("\n");
    const needed = nodes.flatMap((node) => node.gpus.map(key)).join("\n");
    if (there !== needed || there === "") {
      tiles.clear();
      const blocks = nodes.map((node) => {
        const held = node.gpus.filter((gpu) => gpu.tenants.length).length;
        const small = make("small", "", ` ${node.gpus[0].model} · ${say(texts.gpus, { n: node.gpus.length })} · ${say(texts.held, { n: held })}`);
        const list = make("ul", "tiles");
        for (const gpu of node.gpus) {
          const tile = make("button", "tile");
          tile.type = "button";
          tile.addEventListener("click", () => choose(gpu));
          tiles.set(key(gpu), tile);
          list.append(make("li", "", tile));
        }
        return make("section", "node", make("h2", "", node.name, small), list);
      });
      get("tiles").replaceChildren(...(blocks.length ? blocks : [make("p", "soft", texts.none)]));
    }
    for (const node of nodes) for (const gpu of node.gpus) fill(tiles.get(key(gpu)), gpu);
    get("tiles").setAttribute("aria-busy", "false");
  }

  function drawMap(nodes) {
    get("tiles").hidden = true;
    get("map").hidden = false;
    tiles.clear();
    get("tiles").replaceChildren();
    gpuMap.draw(nodes, kindOf);
  }

  function byNode() {
    const found = new Map();
    for (const gpu of gpus.values()) {
      if (!wanted(gpu)) continue;
      const name = `${gpu.source} ${gpu.node}`;
      if (!found.has(name)) found.set(name, { name: gpu.node, gpus: [] });
      found.get(name).gpus.push(gpu);
    }
    return [...found.values()];
  }

  function table(nodes) {
    if (!get("twin").open) return;
    const lines = nodes.slice(0, rows).map((node) => {
      const measured = node.gpus.filter((gpu) => gpu.use_pct !== null);
      const users = [...new Set(node.gpus.flatMap((gpu) => gpu.tenants.map((each) => each.user)))];
      const remarks = node.gpus.filter((gpu) => gpu.health || gpu.drained).map((gpu) => `${texts.gpu} ${gpu.index}: ${sentence(gpu.health) || texts.drained}`);
      const head = make("th", "", node.name);
      head.scope = "row";
      const number = (value) => make("td", "number", value);
      return make("tr", "", head, make("td", "", [...new Set(node.gpus.map((gpu) => gpu.model))].join(", ")), number(node.gpus.length),
        number(node.gpus.filter((gpu) => gpu.tenants.length).length),
        number(Math.round(node.gpus.reduce((sum, gpu) => sum + gpu.tenants.reduce((all, each) => all + each.milli, 0), 0) / 10 / node.gpus.length)),
        number(measured.length ? Math.round(measured.reduce((sum, gpu) => sum + gpu.use_pct, 0) / measured.length) : "–"),
        number(node.gpus.some((gpu) => gpu.used_mib !== null) ? gib(node.gpus.reduce((sum, gpu) => sum + (gpu.used_mib ?? 0), 0)) : "–"),
        make("td", "wide", users.slice(0, 12).join(", ") + (users.length > 12 ? " …" : "")), make("td", "wide", remarks.join("; ") || "–"));
    });
    get("twin").querySelector("tbody").replaceChildren(...lines);
    get("more-rows").hidden = nodes.length <= rows;
  }

  function legend(nodes) {
    const counts = {};
    for (const node of nodes) for (const gpu of node.gpus) counts[kindOf(gpu)] = (counts[kindOf(gpu)] ?? 0) + 1;
    const paint = gpuMap.colours();
    get("legend").replaceChildren(...["busy", "shared", "idle", "unknown", "free", "stranger", "drained", "broken"].filter((kind) => counts[kind]).map((kind) => {
      const sample = document.createElement("canvas");
      sample.width = sample.height = 14;
      gpuMap.cell(sample.getContext("2d"), 0, 0, 14, kind, paint);
      sample.setAttribute("aria-hidden", "true");
      return make("li", "", sample, `${texts[kind]} ${counts[kind].toLocaleString("en-US")}`);
    }));
  }

  function draw() {
    waiting = null;
    const nodes = byNode();
    const count = nodes.reduce((sum, node) => sum + node.gpus.length, 0);
    legend(nodes);
    if (count > MOST_TILES) drawMap(nodes); else drawTiles(nodes);
    table(nodes);
    detail();
  }
  function drawSoon() { waiting ??= requestAnimationFrame(draw); }

  function choose(gpu) {
    chosen = chosen === key(gpu) && get("map").hidden ? null : key(gpu);
    drawSoon();
  }

  let shown = "";
  function detail() {
    const gpu = gpus.get(chosen);
    const as = gpu ? JSON.stringify(gpu) : "";
    if (as === shown) return;
    shown = as;
    if (!gpu) { get("detail").replaceChildren(); return; }
    const list = make("ul", "");
    gpu.tenants.forEach((each, at) => {
      const link = make("a", "", `${texts.job} ${each.job}`);
      link.href = `/job/${encodeURIComponent(each.job)}?source=${encodeURIComponent(gpu.source)}`;
      const ran = each.since_ms === null ? "" : `, ${say(texts.for, { time: berth.span((nowMs - each.since_ms) / 1000) })}`;
      list.append(make("li", "", make("i", `swatch c${at % 6}`), link, ` · ${each.user} · ${say(texts.of, { part: each.milli / 10, memory: gib(each.mem_mib) })}${ran}${each.measured ? `, ${texts.measured}` : ""}`));
    });
    for (const each of gpu.strangers) list.append(make("li", "", make("i", "swatch cs"), `${texts.stranger}: ${sentence(each.what)}, ${gib(each.mem_mib)} GiB`));
    const used = gpu.used_mib === null ? texts.notknown : say(texts.used, { used: gib(gpu.used_mib), all: gib(gpu.mem_mib) });
    const facts = [gpu.model, texts[kindOf(gpu)], gpu.use_pct === null ? "" : `${texts.compute} ${Math.round(gpu.use_pct)} %`, used, gpu.partition, gpu.rack && say(texts.rack, { name: gpu.rack }), sentence(gpu.health)];
    const close = make("button", "", texts.close);
    close.type = "button";
    close.addEventListener("click", () => { chosen = null; drawSoon(); });
    const parts = [make("h2", "", `${gpu.node} · ${texts.gpu} ${gpu.index}`), make("div", "", facts.filter(Boolean).join(" · ")), list];
    if (operates && texts.commands[gpu.source]?.drain) {
      const action = gpu.drained ? "undrain" : "drain";
      const button = make("button", action === "drain" ? "danger" : "", texts[action]);
      button.type = "button";
      button.addEventListener("click", () => berth.change({ source: gpu.source, action, id: `${gpu.node}:${gpu.index}`, command: texts.commands[gpu.source][action] }, {}));
      parts.push(button, " ");
    }
    get("detail").replaceChildren(...parts, close);
  }

  async function load() {
    if (loading) return;
    loading = true;
    const answer = await fetch("/api/v1/gpus").catch(() => null);
    loading = false;
    if (answer === null || !answer.ok) { setTimeout(load, 2000); return; }
    const news = await answer.json();
    gpus = new Map(news.gpus.map((gpu) => [key(gpu), gpu]));
    boot = news.boot; version = news.version; nowMs = news.now_ms;
    drawSoon();
  }

  function sources(found) {
    const lines = found.map((each) => {
      const line = make("li", each.here ? "here" : "gone", make("b", "", each.name), " ");
      if (each.here) line.append(texts.here + (each.policy ? ` · ${say(texts.policy, { name: each.policy })}` : ""));
      else line.append(`${texts.gone} ${berth.moment(each.since_ms)}: ${sentence(each.why)}`);
      for (const note of each.notes) line.append(make("br"), make("span", "note", sentence(note)));
      return line;
    });
    get("sources").replaceChildren(...lines);
  }

  berth.listen("look", (news) => {
    nowMs = news.now_ms;
    const values = { ...news.counts, use: news.counts.use_pct === null ? "–" : `${Math.round(news.counts.use_pct)} %` };
    get("answer").textContent = say(texts.answer, values);
    get("more").textContent = say(texts.more, values);
    document.title = `${say(texts.title, values)} · berth`;
    if (news.sources.length) sources(news.sources);
    if (news.boot === boot && news.version === version) return;
    if (news.gpus === null || news.boot !== boot || news.version !== version + 1) { load(); return; }
    for (const gpu of news.gpus) gpus.set(key(gpu), gpu);
    version = news.version;
    drawSoon();
  });

  form.addEventListener("change", () => {
    const query = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
    history.replaceState(null, "", `/now${query.size ? `?${query}` : ""}`);
    drawSoon();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  get("twin").addEventListener("toggle", drawSoon);
  get("more-rows").addEventListener("click", () => { rows += 500; drawSoon(); });
  gpuMap.begin(get("canvas"), (gpu) => { chosen = key(gpu); drawSoon(); });
  let width = window.innerWidth;
  window.addEventListener("resize", () => { if (width !== window.innerWidth) { width = window.innerWidth; drawSoon(); } });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawSoon);
  load();
})();
