// The page to play on. The server holds the games; here they are shown, and what is asked for is sent there.

import { ask, byId, connect, el, setUpTheme, titled, words } from "./dom.js";
import { Head } from "./head.js";

const SHOWN = { " ": "Space", ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓", PageUp: "PgUp", PageDown: "PgDn" };
const KEEP_REPEATING = 70; // milliseconds between two actions of a key held down, at one's own pace

let setup = null, epoch = -1, lanes = [], playing = false, session = null, held = null, lastAct = 0, choices = null;
let newest = 0;

const places = new URLSearchParams();
try { session = sessionStorage.getItem("achieve-session"); } catch { /* a reloaded page then begins anew */ }

const send = connect(
  () => { if (session) places.set("session", session); return `play/socket?${places}`; },
  (message, data) => {
    if (message.kind === "hello") {
      session = message.session;
      try { sessionStorage.setItem("achieve-session", session); } catch { /* as above */ }
      note(null);
    } else if (message.kind === "refused") note({ level: "error", text: message.text });
    else if (message.kind === "update") take(message, data);
  },
  (refused) => { if (!refused) note({ level: "error", text: "The server does not answer; trying again …" }); },
);

function take(message, data) {
  if (message.note) note(message.note); // also where there is no game yet, since it could not begin
  if (message.setup) build(message.setup);
  if (message.epoch !== epoch && !message.setup && setup === null) return;
  epoch = message.epoch;
  playing = message.playing;
  message.lanes.forEach((told, n) => {
    const lane = lanes[n];
    if (!lane) return;
    lane.points.length = Math.min(lane.points.length, told.from);
    lane.points.push(...told.points);
    Object.assign(lane, { at: told.at, driver: told.driver, over: told.over, stuck: told.stuck, script: told.script, has: told.has });
  });
  let start = 0;
  message.pictures.forEach((size, n) => { draw(n, data.slice(start, start + size)); start += size; });
  show();
}

async function draw(n, png) {
  const lane = lanes[n], number = ++newest;
  if (!lane || !png.byteLength) return;
  const picture = await createImageBitmap(new Blob([png], { type: "image/png" }));
  if (lane !== lanes[n] || lane.drawn > number) return; // decoded after a later one
  lane.drawn = number;
  const { canvas } = lane;
  if (canvas.width !== picture.width || canvas.height !== picture.height) {
    canvas.width = picture.width;
    canvas.height = picture.height;
  }
  canvas.getContext("2d").drawImage(picture, 0, 0);
  canvas.dataset.frames = Number(canvas.dataset.frames ?? 0) + 1;
}

function build(told) {
  setup = told;
  const focused = document.activeElement?.classList?.contains("game") || document.activeElement === document.body;
  byId("lanes").after(byId("keys")); // out of the lane that goes
  lanes = told.lanes.map((about, n) => buildLane(about, n));
  byId("lanes").className = `lanes ${lanes.length === 2 ? "two" : "one"}`;
  byId("lanes").replaceChildren(...lanes.map((lane) => lane.element));
  byId("where").textContent = `${told.title}, world ${told.world}`;
  document.title = `${told.title} · achieve`;
  buildKeys();
  const own = lanes.length === 1 ? lanes[0] : lanes.find((lane) => !lane.about.agent);
  if (own) (own.about.agent || lanes.length === 2 ? own.stage : own.side).append(byId("keys")); // where there is room
  choose();
  if (focused) lanes[0].game.focus({ preventScroll: true });
}

function buildLane(about, n) {
  const lane = { about, points: [], at: 0, driver: "human", over: false, drawn: 0, has: {} };
  lane.canvas = el("canvas", { width: 288, height: 288, "aria-hidden": "true" });
  lane.game = el("div", { class: "game", tabindex: 0, role: "application", "aria-label": `The game of ${about.agent ?? "you"}` }, lane.canvas);
  lane.facts = el("p", { class: "facts" });
  lane.hand = el("button", { type: "button", class: "hand", title: "Key X", on: { click: () => handOver(n) } });
  lane.list = el("ul", { class: "achievements", "aria-label": "Achievements" });
  lane.chips = setup.achievements.map((name) => {
    const when = el("span", { class: "when" });
    const chip = el("li", {}, el("span", {}, titled(name)), when);
    lane.list.append(chip);
    return { chip, when };
  });
  const name = about.agent ? el("h2", {}, about.agent, " ", el("small", {}, about.trained)) : el("h2", {}, about.player === "recording" ? "Recording" : "You");
  const exports = el("p", { class: "exports" }, "Save the episode: ",
    el("a", { download: true, class: "save-video" }, "video"), " · ", el("a", { download: true, class: "save-replay" }, "replay file"));
  lane.exports = exports;
  lane.stage = el("div", { class: "stage" }, name, lane.game, lane.facts, about.agent || about.player === "recording" ? lane.hand : null, exports);
  const side = lane.side = el("div", { class: "side" }, lane.list);
  if (about.head) {
    lane.head = new Head(about, setup, { seek: (to) => send({ do: "seek", to }), rediscover: () => send({ do: "discover", lane: n }) });
    side.append(lane.head.element);
  }
  lane.element = el("section", { class: "lane", "aria-label": about.agent ?? "You" }, lane.stage, side);
  return lane;
}

function buildKeys() {
  const shown = new Map();
  for (const [key, action] of Object.entries(setup.keys)) {
    if (!shown.has(action)) shown.set(action, []);
    shown.get(action).push(SHOWN[key] ?? (key.length === 1 ? key.toUpperCase() : key));
  }
  const buttons = [...shown].sort(([one], [other]) => one - other).map(([action, keys]) =>
    el("button", { type: "button", class: "key", on: { click: () => act(action) } },
      ...keys.slice(0, 2).map((key) => el("kbd", {}, key)), ` ${words(setup.actions[action])}`));
  const hand = setup.lanes.some((lane) => lane.player !== "you") ? [["X", "take over, hand back"]] : [];
  const others = [["Enter", "play or pause"], [".", "step"], [",", "back"], ...hand, ["V", "new world"], ["Esc", "leave the game, to reach the buttons with Tab"]];
  byId("keys").replaceChildren(
    el("div", { class: "key-row", "aria-label": "Actions" }, ...buttons),
    el("p", { class: "quiet" }, ...others.flatMap(([key, what]) => [el("kbd", {}, key), ` ${what}  `])),
  );
}

function show() {
  const longest = Math.max(0, ...lanes.map((lane) => lane.points.length - 1)), at = Math.max(0, ...lanes.map((lane) => lane.at));
  const human = lanes.some((lane) => lane.driver === "human");
  lanes.forEach(showLane);
  const scrub = byId("scrub"), stuck = lanes.map((lane) => lane.stuck).find(Boolean);
  scrub.max = longest;
  if (document.activeElement !== scrub || playing) scrub.value = at;
  scrub.disabled = byId("back").disabled = Boolean(stuck);
  scrub.title = stuck ?? "";
  byId("place").textContent = `${at} / ${longest}`;
  byId("play").textContent = playing ? "❚❚" : "▶";
  byId("play").setAttribute("aria-label", playing ? "Pause" : human ? "Play in real time" : "Play");
  document.body.dataset.playing = playing;
}

function showLane(lane, n) {
  const now = lane.points[lane.at];
  if (!now) return;
  const unlocked = new Map();
  for (let step = 1; step <= lane.at; step++) for (const name of lane.points[step].new ?? []) if (!unlocked.has(name)) unlocked.set(name, step);
  lane.chips.forEach(({ chip, when }, number) => {
    const step = unlocked.get(number), text = step === undefined ? "" : String(step);
    if (when.textContent === text) return;
    when.textContent = text;
    chip.className = step === undefined ? "" : step === lane.at ? "done fresh" : "done";
    if (step === lane.at) byId("said").textContent = `${titled(setup.achievements[number])}, step ${step}`;
  });
  const action = now.a === null ? "start" : words(setup.actions[now.a]), who = lane.driver === "human" ? "you play" : lane.driver === "agent" ? "agent plays" : "recording plays";
  lane.facts.replaceChildren(
    fact("step", lane.at), fact("return", now.total.toFixed(1)), fact("unlocked", `${unlocked.size} / ${setup.achievements.length}`),
    fact(lane.over ? "over" : who, action));
  lane.game.setAttribute("aria-description", Object.entries(lane.has).map(([name, count]) => `${words(name)} ${count}`).join(", "));
  lane.element.dataset.step = lane.at;
  lane.element.dataset.driver = lane.driver;
  lane.element.dataset.over = lane.over;
  lane.hand.textContent = lane.driver === "human" ? (lane.about.agent ? "Hand back to the agent" : "Hand back to the recording") : "Take over";
  lane.hand.disabled = lane.driver === "human" && !lane.about.agent && !lane.script;
  for (const [kind, link] of [["video", lane.exports.querySelector(".save-video")], ["replay", lane.exports.querySelector(".save-replay")]]) {
    link.href = `play/${session}/${n}/${kind}`;
  }
  lane.head?.show(lane.points, lane.at, lane.driver, playing);
}

const fact = (label, value) => el("span", {}, el("small", {}, label), ` ${value}`);

function note(told) {
  const shown = byId("note");
  shown.hidden = !told;
  shown.className = `note ${told?.level ?? ""}`;
  shown.textContent = told?.text ?? "";
}

// What is asked for

function act(action) {
  if (!lanes.some((lane) => lane.driver === "human")) note({ level: "info", text: "The agent plays. X takes over." });
  else send({ do: "act", action });
}

function handOver(n) {
  const lane = lanes[n], to = lane.driver === "human" ? (lane.about.agent ? "agent" : "recording") : "human";
  note(null);
  send({ do: "hand", lane: n, to });
  lane.game.focus({ preventScroll: true });
}

const toggle = () => send({ do: playing ? "pause" : "play" });
const back = () => send({ do: "seek", to: Math.max(0, Math.max(...lanes.map((lane) => lane.at)) - 1) });

function begin() {
  note(null);
  const players = [byId("first").value, byId("second").value].filter(Boolean), number = byId("world").value.trim();
  if (players.includes("recording")) { send({ do: "new" }); return; }
  send({ do: "new", players, env: byId("env").value || null, world: /^\d+$/.test(number) ? Number(number) : null });
  byId("world").value = "";
}

function choose() {
  if (!choices) return;
  const agents = choices.agents.map(({ key, name }) => [key, name]), now = setup?.lanes ?? [], recording = now[0]?.player === "recording";
  const options = (list, chosen) => list.map(([value, text]) => el("option", { value, selected: value === chosen }, text));
  byId("first").replaceChildren(...options([...(recording ? [["recording", "The recording"]] : []), ["you", "You"], ...agents], now[0]?.player));
  byId("second").replaceChildren(...options([["", "nobody"], ["you", "You"], ...agents], now[1]?.player ?? ""));
  byId("env").replaceChildren(...options(choices.envs.map((name) => [name, name]), setup?.env));
  byId("env-label").hidden = now.some((lane) => lane.agent) || choices.envs.length < 2;
}

byId("choose").addEventListener("submit", (event) => { event.preventDefault(); begin(); lanes[0]?.game.focus({ preventScroll: true }); });
byId("first").addEventListener("change", () => {
  const alone = [byId("first").value, byId("second").value].every((player) => player === "you" || player === "");
  byId("env-label").hidden = !alone;
});
byId("play").addEventListener("click", toggle);
byId("step").addEventListener("click", () => send({ do: "step" }));
byId("back").addEventListener("click", back);
byId("scrub").addEventListener("input", (event) => send({ do: "seek", to: Number(event.target.value) }));
byId("speed").addEventListener("change", (event) => send({ do: "speed", fps: Number(event.target.value) }));

document.addEventListener("keydown", (event) => {
  const target = event.target;
  if (!setup || event.ctrlKey || event.altKey || event.metaKey || target.closest("input:not([type=range]), select, textarea")) return;
  const inGame = Boolean(target.closest(".game")) || target === document.body, key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (event.key === "Escape") { target.blur(); byId("new").focus(); return; }
  if (!inGame && (["Enter", " ", "Tab"].includes(key) || key.startsWith("Arrow"))) return; // a button's or the slider's own
  if (key === "Tab" && (event.shiftKey || !target.closest(".game"))) return;
  const action = setup.keys[key];
  if (action !== undefined) {
    if (key === "Tab" && !lanes.some((lane) => lane.driver === "human")) return;
    event.preventDefault();
    if (playing) {
      if (!event.repeat) { held = key; send({ do: "hold", action }); act(action); }
    } else if (!event.repeat || event.timeStamp - lastAct > KEEP_REPEATING) {
      lastAct = event.timeStamp;
      act(action);
    }
    return;
  }
  const does = { Enter: toggle, ".": () => send({ do: "step" }), ",": back, v: begin, x: () => handOver(lanes.findIndex((lane) => lane.about.agent || lane.about.player === "recording")) }[key];
  if (does) { event.preventDefault(); if (key !== "x" || lanes.some((lane) => lane.about.agent || lane.about.player === "recording")) does(); }
});
document.addEventListener("keyup", (event) => {
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (key === held) { held = null; send({ do: "hold", action: null }); }
});
addEventListener("blur", () => { if (held) { held = null; send({ do: "hold", action: null }); } });
addEventListener("resize", () => lanes.forEach((lane) => lane.head?.show(lane.points, lane.at, lane.driver)));

setUpTheme(() => { if (setup) show(); });
ask("choices").then((told) => { choices = told; choose(); });
