// Elements, texts and what both pages share. Texts are set as text, so names are never read as HTML.

export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") for (const [kind, does] of Object.entries(value)) made.addEventListener(kind, does);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export const byId = (id) => document.getElementById(id);
export const titled = (name) => { const text = name.replaceAll("_", " "); return text.charAt(0).toUpperCase() + text.slice(1); };
export const words = (name) => name.replaceAll("_", " ");

export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  return `${Math.floor(whole / 3600)} h ${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")} min`;
}

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// A canvas as sharp as the screen; returns its context in CSS pixels.
export function prepared(canvas) {
  const { clientWidth: width, clientHeight: height } = canvas, ratio = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return [context, width, height];
}

export function setUpTheme(changed = () => {}) {
  let chosen = null;
  try { chosen = localStorage.getItem("achieve-theme"); } catch { /* storage may be switched off */ }
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => { document.documentElement.dataset.theme = chosen ?? (dark.matches ? "dark" : "light"); changed(); };
  dark.addEventListener("change", apply);
  byId("theme").addEventListener("click", () => {
    chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("achieve-theme", chosen); } catch { /* it lasts as long as the page then */ }
    apply();
  });
  apply();
}

export async function ask(path, method = "GET") {
  const answer = await fetch(path, { method });
  const told = await answer.json().catch(() => ({ status: "failed", line: `the server said ${answer.status}` }));
  return told;
}

// A socket that comes back by itself after the server or the tunnel was away.
export function connect(path, hear, lost) {
  let socket, tries = 0, refused = false;
  const open = () => {
    const url = new URL(path(), location.href);
    url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    socket = new WebSocket(url);
    socket.binaryType = "arraybuffer";
    socket.onopen = () => { tries = 0; };
    socket.onmessage = (event) => {
      if (typeof event.data === "string") {
        const message = JSON.parse(event.data);
        refused = refused || message.kind === "refused";
        hear(message, null);
      } else {
        const size = new DataView(event.data).getUint32(0, true);
        hear(JSON.parse(new TextDecoder().decode(new Uint8Array(event.data, 4, size))), event.data.slice(4 + size));
      }
    };
    socket.onclose = () => {
      lost(refused);
      if (!refused) setTimeout(open, Math.min(8000, 500 * 2 ** tries++));
    };
  };
  open();
  return (message) => { if (socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message)); };
}
