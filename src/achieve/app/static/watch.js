// The page to watch runs on. It is told about them about once a second, as far as anything has changed.

import { ask, byId, colour, connect, duration, el, prepared, setUpTheme, titled } from "./dom.js";

// Okabe and Ito's palette, which stays distinct for colour-blind eyes.
const LIGHT = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"];
const DARK = ["#56B4E9", "#E69F00", "#2FC296", "#CC79A7", "#F0E442", "#F07F3C"]; // as bright as dark paper needs

let told = null, metric = null, asked = new Set();
let picked = null; // the runs somebody chose; until then the server chooses, and follows new ones
const number = (value) => (Math.abs(value) >= 999500 ? `${+(value / 1e6).toPrecision(3)}M` : Math.abs(value) >= 1000 ? `${+(value / 1e3).toPrecision(3)}k` : `${+value.toPrecision(4)}`);

const send = connect(
  () => "watch/socket",
  (message) => {
    if (message.kind === "refused") note({ level: "error", text: message.text });
    else if (message.kind === "runs") { if (!told) note(null); told = message; show(); }
  },
  (refused) => { told = null; if (!refused) note({ level: "error", text: "The server does not answer; trying again …" }); },
);

function tell() { send({ do: "show", runs: picked, metric }); }

function note(what) {
  const shown = byId("note");
  shown.hidden = !what;
  shown.className = `note ${what?.level ?? ""}`;
  shown.textContent = what?.text ?? "";
}

function show() {
  const chosen = told.chosen;
  byId("where").textContent = told.folders.join(", ");
  byId("empty").hidden = told.runs.length > 0;
  byId("empty").textContent = "No run here yet. achieve train --preset quick makes one; it appears by itself.";
  const shown = told.runs.filter((run) => chosen.includes(run.key));
  const palette = document.documentElement.dataset.theme === "dark" ? DARK : LIGHT;
  const colours = new Map(shown.map((run) => [run.key, palette[chosen.indexOf(run.key) % palette.length]]));
  const focused = document.activeElement?.dataset?.focus;
  byId("runs").replaceChildren(...told.runs.map((run) => row(run, colours.get(run.key))));
  if (focused) document.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
  byId("detail").hidden = !shown.length;
  const curves = shown.filter((run) => run.curve?.steps);
  const measures = [...new Set(curves.map((run) => run.curve.measure))];
  byId("score-title").textContent = measures.length === 1 && measures[0] !== "score" ? `${titled(measures[0])}, % of the last episodes` : "Score, %";
  chart("score", curves.map((run) => line(run, colours, run.curve.steps, run.curve.score)));
  chart("return", curves.map((run) => line(run, colours, run.curve.steps, run.curve.return)));
  rates(curves, colours);
  metrics(shown, colours);
  machine(told.machine);
}

const line = (run, colours, steps, values) => ({ name: run.name, colour: colours.get(run.key), steps, values });

function row(run, tint) {
  const swatch = el("span", { class: "swatch" });
  if (tint) swatch.style.background = tint;
  const box = el("input", { type: "checkbox", checked: Boolean(tint), "data-focus": `pick-${run.key}`, on: { change: () => pick(run.key) } });
  const status = { training: "training", stopping: "stopping", done: "done", stopped: "stopped", human: "a person" }[run.status];
  const parts = [el("label", {}, box, swatch, el("span", { class: "name" }, run.name), el("span", { class: `badge ${run.status}` }, status))];
  const active = run.status === "training" || run.status === "stopping";
  if (active || tint) {
    parts.push(el("p", { class: "live" }, ...facts(run, active)));
    if (run.status !== "human" && run.ours && run.step !== undefined) parts.push(el("progress", { max: run.total, value: Math.min(run.step, run.total), "aria-label": `Steps of ${run.name}` }));
    const doing = el("p", { class: "doing" });
    if (run.agent) doing.append(el("button", { type: "button", "data-focus": `film-${run.key}`, on: { click: () => film(run) } }, active ? "Film its agent now" : "Film its agent"));
    if (active && run.ours) {
      const waiting = run.status === "stopping" || asked.has(run.key);
      doing.append(el("button", { type: "button", class: "stop", disabled: waiting, "data-focus": `stop-${run.key}`, on: { click: () => stop(run) } }, waiting ? "Stopping …" : "Stop"));
    }
    parts.push(doing);
  }
  return el("li", { "data-run": run.name, "data-status": run.status }, ...parts);
}

function facts(run, active) {
  const out = [];
  const add = (label, value) => { if (value !== undefined && value !== null) out.push(`${out.length ? " · " : ""}${label ? `${label} ` : ""}`, el("b", {}, value)); };
  add("", run.env);
  if (run.status !== "human" && run.step !== undefined) add("step", run.ours ? `${number(run.step)} of ${number(run.total)}` : number(run.step));
  if (active) {
    add("", run.phase || null);
    if (run.rate) add("", `${number(run.rate)} steps/s`);
    if (run.left && run.ours) add("left", duration(run.left));
    if (run.memory_gib) add("memory", `${run.memory_gib} GiB`);
    if (run.gpu_gib) add("GPU", `${run.gpu_gib.toFixed(1)} GiB`);
  }
  const now = run.curve?.now;
  if (now?.score !== null && now?.score !== undefined) add(run.curve.measure, `${now.score.toFixed(2)} %`);
  if (now?.return !== null && now?.return !== undefined) add("return", now.return.toFixed(2));
  if (run.curve) add("episodes", number(run.curve.episodes));
  return out;
}

function pick(key) {
  const chosen = picked ?? told.chosen;
  picked = chosen.includes(key) ? chosen.filter((other) => other !== key) : [...chosen, key].slice(-6);
  tell();
}

async function stop(run) {
  asked.add(run.key);
  show();
  const answer = await ask(`watch/${run.key}/stop`, "POST");
  note({ level: answer.status === "failed" ? "error" : "info", text: answer.line });
  asked.delete(run.key);
}

async function film(run) {
  const card = byId("film"), video = byId("film-video"), state = byId("film-line");
  card.hidden = false;
  video.hidden = true;
  byId("film-title").textContent = `${run.name}: its agent in an unseen world`;
  let job = await ask(`watch/${run.key}/film`, "POST");
  card.scrollIntoView({ block: "nearest" });
  while (job.status === "running") {
    state.textContent = `Filming, from the last checkpoint: ${job.line}`;
    await new Promise((done) => setTimeout(done, 1000));
    job = await ask(`watch/${run.key}/film`);
  }
  state.textContent = job.status === "done" ? `Filmed at ${new Date().toLocaleTimeString()}, from the last checkpoint.` : job.line;
  if (job.status === "done") { video.src = `watch/${run.key}/film.mp4?${Date.now()}`; video.hidden = false; video.onloadedmetadata = () => video.scrollIntoView({ block: "nearest" }); }
}

function rates(runs, colours) {
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.curve.rates)))];
  byId("rates").replaceChildren(...names.map((name) => el("li", {}, el("span", {}, titled(name)),
    el("span", { class: "stack" }, ...runs.map((run) => {
      const rate = run.curve.rates[name], fill = el("span", { class: "fill" });
      fill.style.width = `${rate ?? 0}%`;
      fill.style.background = colours.get(run.key);
      return el("span", { class: "rate" }, el("span", { class: "track" }, fill), el("span", { class: "number" }, rate === null || rate === undefined ? "–" : rate.toFixed(rate < 9.95 ? 1 : 0)));
    })))));
}

function metrics(runs, colours) {
  const names = [...new Set(runs.flatMap((run) => run.metrics ?? []))].sort(), select = byId("metric");
  byId("metric-card").hidden = !names.length;
  if (!names.length) { chart("chosen-metric", []); return; }
  if (!names.includes(metric)) { metric = names.includes("entropy") ? "entropy" : names[0]; tell(); }
  if (select.options.length !== names.length || [...select.options].some((option, n) => option.value !== names[n])) {
    select.replaceChildren(...names.map((name) => el("option", { value: name }, name.replaceAll("_", " "))));
  }
  select.value = metric;
  chart("chosen-metric", runs.filter((run) => run.metric).map((run) => line(run, colours, run.metric.steps, run.metric.values)), false);
}

function machine(state) {
  const parts = [`This machine: ${state.cores} cores`];
  if (state.cpu !== null) parts.push(`${state.cpu} % busy`);
  if (state.memory_gib !== null) parts.push(`${state.memory_gib} GiB of memory free`);
  for (const gpu of state.gpus) parts.push(`${gpu.name}: ${gpu.busy} % busy, ${gpu.used_gib} of ${gpu.total_gib} GiB`);
  byId("machine").textContent = parts.join(" · ");
}

function chart(id, lines, fromZero = true) {
  const canvas = byId(id);
  if (!canvas.clientWidth) return;
  const [context, width, height] = prepared(canvas), left = 44, bottom = 24, top = 8, right = 8;
  canvas.dataset.points = lines.reduce((sum, each) => sum + each.values.filter((value) => value !== null).length, 0);
  const values = lines.flatMap((each) => each.values).filter((value) => value !== null), last = Math.max(1, ...lines.flatMap((each) => each.steps));
  context.font = "11px system-ui, Liberation Sans, Arial, sans-serif";
  context.fillStyle = colour("quiet");
  if (!values.length) { context.fillText("nothing yet", left, height / 2); return; }
  let low = Math.min(fromZero ? 0 : Infinity, ...values), high = Math.max(...values);
  if (low === high) high = low + 1;
  const x = (step) => left + (step / last) * (width - left - right), y = (value) => height - bottom - ((value - low) / (high - low)) * (height - bottom - top);
  context.strokeStyle = colour("line");
  context.lineWidth = 1;
  for (const tick of ticks(low, high)) {
    context.beginPath(); context.moveTo(left, y(tick)); context.lineTo(width - right, y(tick)); context.stroke();
    context.textAlign = "right"; context.fillText(number(tick), left - 6, y(tick) + 4);
  }
  for (const tick of ticks(0, last)) { context.textAlign = tick === 0 ? "left" : "center"; context.fillText(number(tick), Math.min(x(tick), width - 18), height - 7); }
  for (const each of lines) {
    context.strokeStyle = each.colour;
    context.lineWidth = 2;
    context.beginPath();
    let drawing = false;
    each.steps.forEach((step, n) => {
      if (each.values[n] === null) { drawing = false; return; }
      if (drawing) context.lineTo(x(step), y(each.values[n])); else context.moveTo(x(step), y(each.values[n]));
      drawing = true;
    });
    context.stroke();
    const ends = each.values.length - 1;
    if (ends === 0 || values.length === 1) { context.fillStyle = each.colour; context.fillRect(x(each.steps[0]) - 2, y(each.values[0]) - 2, 4, 4); context.fillStyle = colour("quiet"); }
  }
}

function ticks(low, high) {
  const rough = (high - low) / 4, unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * unit).find((size) => size >= rough), out = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + step / 1e6; tick += step) out.push(Math.abs(tick) < step / 1e6 ? 0 : tick);
  return out;
}

byId("metric").addEventListener("change", (event) => { metric = event.target.value; tell(); });
addEventListener("resize", () => { if (told) show(); });
setUpTheme(() => { if (told) show(); });
ask("choices").then((choices) => { byId("to-play").hidden = !choices.agents?.length; });
