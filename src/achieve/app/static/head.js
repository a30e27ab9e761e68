// Inside an agent: what it is about to do, what it expects, what it is after, and the graph it has discovered.

import { ask, colour, el, prepared, svg, titled, words } from "./dom.js";

const best = (values) => values.reduce((top, value, place) => (value > values[top] ? place : top), 0);

export class Head {
  constructor(about, setup, actions) {
    this.about = about;
    this.setup = setup;
    this.seek = actions.seek;
    this.drawn = -Infinity;
    this.clusters = about.head.clusters ?? null;
    this.element = el("section", { class: "head", "aria-label": `Inside ${about.agent}` });
    this.intent = el("p", { class: "intent" });
    this.bars = setup.actions.map((name) => {
      const fill = el("span", { class: "fill" }), number = el("span", { class: "number" });
      const row = el("li", {}, el("span", { class: "label" }, words(name)), el("span", { class: "track" }, fill), number);
      return { row, fill, number };
    });
    this.value = el("canvas", { class: "value", role: "img", "aria-label": "Value over the episode" });
    this.valueNow = el("span", { class: "number" });
    this.element.append(
      el("h3", {}, "What it is about to do"), this.intent,
      el("ul", { class: "bars" }, ...this.bars.map((bar) => bar.row)),
      el("h3", {}, "Value ", this.valueNow), this.value,
    );
    this.value.addEventListener("click", (event) => this.seekFrom(event, this.value));
    if (this.clusters) this.addDiscovered();
    else this.addFindOut(actions);
  }

  addDiscovered() {
    const { predicts } = this.about.head;
    this.after = el("p", { class: "after" });
    this.memory = el("p", { class: "after" });
    this.element.append(el("h3", {}, "What it is after"), this.after, this.memory);
    if (predicts) {
      this.map = el("canvas", { class: "map", role: "img", "aria-label": "Similarity of its prediction to each achievement over the episode" });
      this.map.style.height = `${14 * this.clusters.length + 4}px`;
      this.map.addEventListener("click", (event) => this.seekFrom(event, this.map));
      const names = this.clusters.map((cluster) => el("li", {}, titled(cluster.name)));
      this.names = names;
      this.element.append(
        el("h3", {}, "Prediction, step by step"),
        el("p", { class: "quiet" }, "Similarity to each achievement it has discovered; dots mark what was unlocked."),
        el("div", { class: "map-row" }, el("ol", { class: "map-names" }, ...names), this.map),
      );
    } else {
      this.after.textContent = "Its file has no prediction networks: it was trained without distillation, or exported "
        + "without them. What it remembers can be shown, what it is after cannot.";
    }
    this.element.append(
      el("h3", {}, "The graph it has discovered"),
      el("p", { class: "quiet" }, "An arrow means: almost always before. Names come from the game; the agent never saw them."),
      this.graph(),
    );
  }

  addFindOut({ rediscover }) {
    const line = el("p", { class: "quiet", role: "status" });
    const button = el("button", { type: "button" }, "Find out");
    const follow = async (first) => {
      let job = first;
      button.disabled = true;
      while (job.status === "running") {
        line.textContent = job.line;
        await new Promise((done) => setTimeout(done, 2000));
        if (!this.element.isConnected) return;
        job = await ask(`discover/${this.about.player}`);
      }
      button.disabled = false;
      line.textContent = job.status === "failed" ? job.line : "";
      if (job.status === "done") rediscover();
    };
    button.addEventListener("click", async () => follow(await ask(`discover/${this.about.player}`, "POST")));
    ask(`discover/${this.about.player}`).then((job) => { if (job.status === "running") follow(job); });
    this.element.append(
      el("h3", {}, "What it has discovered"),
      el("p", {}, "Not known yet: for that it plays 60 episodes in the background, some minutes without a GPU. Once known, "
        + "it is kept."),
      button, line,
    );
  }

  graph() {
    const width = 118, height = 30, gapX = 34, gapY = 10;
    const xs = this.clusters.map((cluster) => cluster.x), ys = this.clusters.map((cluster) => -cluster.y);
    const top = Math.min(...ys), left = Math.min(...xs);
    const place = (n) => [(xs[n] - left) * (width + gapX) + 4, (ys[n] - top) * (height + gapY) + 4];
    const across = (Math.max(...xs) - left + 1) * (width + gapX), down = (Math.max(...ys) - top + 1) * (height + gapY);
    const drawn = svg("svg", { viewBox: `0 0 ${across - gapX + 8} ${down}`, class: "graph", role: "img" });
    drawn.append(svg("title", {}, "The achievements it has discovered, and what came before what"));
    this.edges = this.about.head.edges.map(([a, b]) => {
      const [x1, y1] = place(a), [x2, y2] = place(b), start = [x1 + width, y1 + height / 2], end = [x2, y2 + height / 2];
      const path = svg("path", { d: `M${start} C${start[0] + 18},${start[1]} ${end[0] - 18},${end[1]} ${end}`, class: "edge" });
      drawn.append(path);
      return { a, b, path };
    });
    this.nodes = this.clusters.map((cluster, n) => {
      const [x, y] = place(n);
      const box = svg("rect", { x, y, width, height, rx: 6 });
      const name = svg("text", { x: x + width / 2, y: y + 13 }, titled(cluster.name));
      const when = svg("text", { x: x + width / 2, y: y + 25, class: "when" }, "");
      const node = svg("g", { class: "node" }, box, name, when);
      drawn.append(node);
      return { node, when };
    });
    return el("div", { class: "scroll", tabindex: 0 }, drawn);
  }

  seekFrom(event, canvas) {
    const box = canvas.getBoundingClientRect();
    this.seek(Math.round(((event.clientX - box.left) / box.width) * Math.max(1, this.points.length - 1)));
  }

  show(points, at, driver, playing = false) {
    this.points = points;
    const now = points[at];
    if (!now) return;
    // The curves hold the whole episode: while it goes on, five times a second is often enough for them.
    this.drawing = !playing || performance.now() - this.drawn > 200;
    if (this.drawing) this.drawn = performance.now();
    if (now.p) {
      const chosen = words(this.setup.actions[now.choice]);
      this.intent.textContent = driver === "agent" ? `It will ${chosen === "noop" ? "wait" : chosen}.` : `It would ${chosen === "noop" ? "wait" : chosen}; you play.`;
      this.bars.forEach(({ row, fill, number }, n) => {
        fill.style.width = `${100 * now.p[n]}%`;
        number.textContent = `${Math.round(100 * now.p[n])} %`;
        row.className = n === now.choice ? "chosen" : "";
      });
      this.valueNow.textContent = now.v.toFixed(2);
    } else {
      this.intent.textContent = "The episode is over.";
    }
    if (this.drawing) this.drawValue(at);
    if (this.clusters) this.showDiscovered(now, at);
  }

  showDiscovered(now, at) {
    const aim = now.ahead ? best(now.ahead) : null;
    if (now.ahead) {
      const order = now.ahead.map((value, n) => [value, n]).sort((a, b) => b[0] - a[0]).slice(0, 3);
      this.after.replaceChildren(...order.map(([value, n], place) =>
        el("span", { class: place ? "aim" : "aim first" }, `${titled(this.clusters[n].name)} `, el("small", {}, value.toFixed(2)))));
    }
    const last = now.memory ? best(now.memory) : null;
    const used = this.about.head.remembers ? "" : " (it does not act on it: this network has no memory)";
    this.memory.textContent = now.p === undefined ? "" : last === null ? "It remembers no achievement yet."
      : `It remembers ${titled(this.clusters[last].name)}, similarity ${now.memory[last].toFixed(2)}${used}.`;
    const reached = new Map();
    for (let step = 1; step <= at; step++) {
      const point = this.points[step];
      if (point.r > this.setup.threshold && point.memory) {
        const which = best(point.memory);
        if (!reached.has(which)) reached.set(which, step);
      }
    }
    this.nodes.forEach(({ node, when }, n) => {
      node.setAttribute("class", `node${reached.has(n) ? " reached" : ""}${n === aim ? " aimed" : ""}`);
      when.textContent = reached.has(n) ? `step ${reached.get(n)}` : n === aim ? "after this" : "";
    });
    for (const { a, b, path } of this.edges) path.setAttribute("class", reached.has(a) && reached.has(b) ? "edge lit" : "edge");
    if (this.map && this.drawing) this.drawMap(at);
  }

  drawValue(at) {
    if (!this.value.clientWidth) return;
    const [context, width, height] = prepared(this.value);
    const values = this.points.map((point) => point.v).filter((value) => value !== undefined);
    if (!values.length) return;
    const low = Math.min(0, ...values), high = Math.max(...values, low + 0.1), steps = Math.max(1, this.points.length - 1);
    const x = (step) => (step / steps) * (width - 2) + 1, y = (value) => height - 3 - ((value - low) / (high - low)) * (height - 6);
    context.strokeStyle = colour("accent");
    context.lineWidth = 1.5;
    context.beginPath();
    this.points.forEach((point, step) => { if (point.v !== undefined) context.lineTo(x(step), y(point.v)); });
    context.stroke();
    context.fillStyle = colour("good");
    this.points.forEach((point, step) => { if (point.new) context.fillRect(x(step) - 1, height - 4, 2, 4); });
    context.strokeStyle = colour("ink");
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(x(at), 0);
    context.lineTo(x(at), height);
    context.stroke();
  }

  drawMap(at) {
    if (!this.map.clientWidth) return;
    const [context, width] = prepared(this.map), rows = this.clusters.length, row = 14;
    const columns = Math.min(this.points.length, Math.max(1, Math.floor(width))), wide = width / columns;
    context.fillStyle = colour("accent");
    for (let column = 0; column < columns; column++) {
      const point = this.points[Math.floor((column * this.points.length) / columns)];
      if (!point.ahead) continue;
      for (let n = 0; n < rows; n++) {
        const strength = Math.max(0, (point.ahead[n] - 0.2) / 0.8);
        if (strength < 0.03) continue;
        context.globalAlpha = strength ** 1.5;
        context.fillRect(column * wide, n * row + 2, wide + 0.5, row - 2);
      }
    }
    context.globalAlpha = 1;
    const steps = Math.max(1, this.points.length - 1);
    context.fillStyle = colour("good");
    this.points.forEach((point, step) => {
      if (!(point.r > this.setup.threshold) || !point.memory) return;
      context.beginPath();
      context.arc((step / steps) * width, best(point.memory) * row + 2 + (row - 2) / 2, 4, 0, 7);
      context.fill();
    });
    context.strokeStyle = colour("ink");
    context.beginPath();
    context.moveTo((at / steps) * width, 0);
    context.lineTo((at / steps) * width, rows * row + 4);
    context.stroke();
    const now = this.points[at], aim = now?.ahead ? best(now.ahead) : -1;
    this.names.forEach((name, n) => { name.className = n === aim ? "aimed" : ""; });
  }
}
