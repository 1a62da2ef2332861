// --- the page's data, numbers as people read them, light and dark ---
const $ = (id) => document.getElementById(id);
// Large data is compressed, as `_data_element` in plan_page.py writes it.
const readData = async ({ type, textContent }) => {
  if (type === "application/json") return JSON.parse(textContent);
  const compressed = new Blob([Uint8Array.from(atob(textContent), (c) => c.charCodeAt(0))]);
  return new Response(compressed.stream().pipeThrough(new DecompressionStream("deflate"))).json();
};
const data = await readData($("data"));

const bytes = (n) => {
  if (Math.abs(n) < 1024) return `${n} B`;
  const units = ["KiB", "MiB", "GiB", "TiB", "PiB"];
  let k = -1;
  do { n /= 1024; k += 1; } while (Math.abs(n) >= 1023.995 && k < units.length - 1);
  return `${n.toFixed(2)} ${units[k]}`;
};
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const put = (tag, text, kind) => {
  const made = document.createElement(tag);
  made.textContent = text;
  if (kind) made.className = kind;
  return made;
};

// A sum of products of symbols and functions: as `evaluable` in page_data.py writes it.
const FUNCTIONS = {
  floor: (a, b) => Math.floor(a / b), ceiling: (a, b) => Math.ceil(a / b),
  mod: (a, b) => a - b * Math.floor(a / b), min: Math.min, max: Math.max,
};
const evaluate = (sum, values) => sum.reduce((all, [number, atoms]) => all + atoms.reduce((part, atom) => part
  * (typeof atom === "number" ? values[atom] : FUNCTIONS[atom[0]](...atom[1].map((each) => evaluate(each, values)))), number), 0);

// The bytes live from each tick on, of boxes with `first`, `last` and a size.
const curveOf = (boxes, sizeOf) => {
  const deltas = new Map();
  for (const box of boxes) {
    const size = sizeOf(box);
    deltas.set(box.first, (deltas.get(box.first) || 0) + size);
    deltas.set(box.last, (deltas.get(box.last) || 0) - size);
  }
  const ticks = [...deltas.keys()].sort((a, b) => a - b);
  let live = 0;
  return { ticks, bytes: ticks.map((tick) => (live += deltas.get(tick))) };
};
const highest = (curve) => curve.bytes.reduce((best, value, k) => (value > curve.bytes[best] ? k : best), 0);
const liveIn = ({ ticks, bytes: values }, tick) => {
  let low = 0, high = ticks.length;
  while (low < high) { const mid = (low + high) >> 1; if (ticks[mid] <= tick) low = mid + 1; else high = mid; }
  return low ? values[low - 1] : 0;
};

const fit = (canvas) => {
  const ratio = window.devicePixelRatio || 1;
  const { width, height } = canvas.getBoundingClientRect();
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.font = "12px system-ui, sans-serif";
  return { pen, width, height };
};

const dark = window.matchMedia("(prefers-color-scheme: dark)");
const themes = [];
const theme = (name) => { document.documentElement.dataset.theme = name; themes.forEach((redraw) => redraw()); };
document.documentElement.dataset.theme = dark.matches ? "dark" : "light";
$("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
dark.addEventListener("change", () => theme(dark.matches ? "dark" : "light"));
