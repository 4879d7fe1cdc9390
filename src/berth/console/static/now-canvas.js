"use strict";
// A map of many GPUs on a canvas: a cell a GPU, a row of cells a node, nodes of one rack in a block.
const gpuMap = (() => {
  const CELL = 10, GAP = 2, PAD = 10, HEAD = 16, MOST_TALL = 16;
  let places = []; // {x, y, gpu, node} of each cell, in the order of the keys
  let at = -1;
  let canvas, choose, labels;

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colours = () => ({
    free: colour("--free"), busy: colour("--t2"), shared: colour("--t0"), idle: colour("--t1"), unknown: colour("--t4"),
    stranger: colour("--stranger"), drained: colour("--soft"), broken: colour("--bad"), ink: colour("--ink"), soft: colour("--soft"), ground: colour("--ground"), focus: colour("--focus"),
  });

  // One cell; each kind has a mark of its own beside its colour.
  function cell(context, x, y, size, kind, paint) {
    context.fillStyle = paint[kind];
    context.fillRect(x, y, size, size);
    context.strokeStyle = paint.ground;
    context.lineWidth = 1.5;
    context.beginPath();
    if (kind === "idle") context.fillStyle = paint.ground, context.fillRect(x + 3, y + 3, size - 6, size - 6);
    if (kind === "shared") context.moveTo(x + size / 2, y), context.lineTo(x + size / 2, y + size);
    if (kind === "drained") context.moveTo(x, y + size / 2), context.lineTo(x + size, y + size / 2);
    if (kind === "stranger") context.moveTo(x, y + size), context.lineTo(x + size, y);
    if (kind === "broken") context.moveTo(x, y), context.lineTo(x + size, y + size), context.moveTo(x + size, y), context.lineTo(x, y + size);
    if (kind === "unknown") context.moveTo(x + 2, y + size - 2), context.lineTo(x + size - 2, y + size - 2);
    context.stroke();
  }

  function layout(nodes, width) {
    places = [];
    const blocks = new Map();
    for (const node of nodes) {
      const name = node.gpus[0].rack;
      if (!blocks.has(name)) blocks.set(name, []);
      blocks.get(name).push(node);
    }
    const heads = [];
    let x = 0, y = 0, tall = 0;
    for (const [name, members] of blocks) {
      for (let first = 0; first < members.length; first += MOST_TALL) {
        const part = members.slice(first, first + MOST_TALL);
        const wide = Math.max(...part.map((node) => node.gpus.length)) * (CELL + GAP);
        if (x > 0 && x + wide > width) { x = 0; y += tall + PAD; tall = 0; }
        if (first === 0 && name) heads.push({ x, y: y + HEAD - 5, name, wide });
        part.forEach((node, row) => node.gpus.forEach((gpu, column) => places.push({
          x: x + column * (CELL + GAP), y: y + (name ? HEAD : 0) + row * (CELL + GAP), gpu, node,
        })));
        tall = Math.max(tall, (name ? HEAD : 0) + part.length * (CELL + GAP));
        x += wide + PAD;
      }
    }
    return { heads, height: y + tall + GAP };
  }

  function draw(nodes, kindOf) {
    const width = Math.max(280, canvas.parentElement.clientWidth - 4);
    const { heads, height } = layout(nodes, width);
    const scale = Math.min(window.devicePixelRatio || 1, 2, 16000 / Math.max(height, 1));
    canvas.width = width * scale;
    canvas.height = height * scale;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    const paint = colours();
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = paint.soft;
    for (const head of heads) context.fillText(head.name, head.x, head.y, Math.max(head.wide, 30));
    for (const place of places) cell(context, place.x, place.y, CELL, kindOf(place.gpu), paint);
    if (at >= places.length) at = -1;
    if (at >= 0) {
      context.strokeStyle = paint.focus;
      context.lineWidth = 2.5;
      context.strokeRect(places[at].x - 2, places[at].y - 2, CELL + 4, CELL + 4);
    }
  }

  function go(to) {
    if (places.length === 0) return;
    at = Math.max(0, Math.min(places.length - 1, to));
    choose(places[at].gpu);
    const box = canvas.getBoundingClientRect();
    const y = box.top + places[at].y;
    if (y < 0 || y > window.innerHeight - 40) window.scrollBy(0, y - window.innerHeight / 2);
  }

  // The first GPU of the node before or behind that of the one chosen.
  function ofNode(step) {
    let to = Math.max(at, 0);
    const node = places[to].node;
    while (places[to] !== undefined && places[to].node === node) to += step;
    if (places[to] === undefined) return Math.max(at, 0);
    const found = places[to].node;
    while (places[to - 1] !== undefined && places[to - 1].node === found) to -= 1;
    return to;
  }

  function begin(place, whenChosen) {
    canvas = place;
    choose = whenChosen;
    canvas.addEventListener("keydown", (event) => {
      const to = { ArrowRight: () => at + 1, ArrowLeft: () => at - 1, ArrowDown: () => ofNode(1), ArrowUp: () => ofNode(-1), Home: () => 0, End: () => places.length - 1 }[event.key];
      if (to === undefined || places.length === 0) return;
      event.preventDefault();
      go(to());
    });
    canvas.addEventListener("click", (event) => {
      const found = places.findIndex((each) => event.offsetX >= each.x - 1 && event.offsetX <= each.x + CELL + 1 && event.offsetY >= each.y - 1 && event.offsetY <= each.y + CELL + 1);
      if (found >= 0) go(found);
    });
  }

  return { begin, draw, cell, colours };
})();
