
// --- boxes, and what they are at the values of the symbols ---
const T = data.tensors, count = T.name.length, ALL = -1;
const home = T.alias.map((owner, i) => (owner < 0 ? i : owner));
const boxOf = new Array(count), boxes = [];
home.forEach((owner, i) => {
  let box = boxOf[owner];
  if (!box) {
    box = boxOf[owner] = { owner, all: [], arena: T.arena[owner], own: T.offset[owner], units: 0,
      first: Infinity, last: 0, low: 0, high: 0, hue: (owner * 137) % 360 };
    boxes.push(box);
  }
  boxOf[i] = box;
  box.all.push(i);
  box.units = Math.max(box.units, T.bytes[i]);
  box.first = Math.min(box.first, T.first[i]);
  box.last = Math.max(box.last, T.last[i]);
});

const state = { arena: ALL, view: null, hover: -1, chosen: -1, tick: -1, found: null,
  sort: "bytes", down: true, rows: [], drag: null, group: null };
const values = data.symbols.map((symbol) => symbol.value);
const factors = data.arenas.map(() => 1), starts = data.arenas.map(() => 0);
const now = { height: 0, curve: null, peak: -1 };

const node = (tick) => data.nodes[tick] || "";
const pin = (i) => data.reasons[T.pinned[i]];
const sizeNow = (i) => T.bytes[i] * factors[T.arena[i]];
const placeNow = (i) => (state.arena === ALL ? starts[T.arena[i]] : 0) + T.offset[i] * factors[T.arena[i]];
const symbolic = (i) => data.arenas[T.arena[i]].unit !== "1";
const expression = (i) => (symbolic(i) ? `${T.bytes[i]}*${data.arenas[T.arena[i]].unit}` : `${T.bytes[i]}`);
const isShown = (box) => state.arena === ALL || box.arena === state.arena;

const settle = () => {
  const next = data.units.map((unit) => evaluate(unit, values));
  const bad = next.findIndex((factor) => !Number.isFinite(factor) || factor < 0);
  $("wrong").textContent = bad < 0 ? "" : `${data.arenas[bad].unit} is no size at these values: the map is the one before`;
  if (bad >= 0) return false;
  let top = 0;
  next.forEach((factor, k) => { factors[k] = factor; starts[k] = top; top += data.arenas[k].height * factor; });
  place(top);
  return true;
};
const place = (top) => {
  now.height = state.arena === ALL ? top : data.arenas[state.arena].height * factors[state.arena];
  for (const box of boxes) {
    box.low = placeNow(box.owner);
    box.high = box.low + box.units * factors[box.arena];
  }
  now.curve = curveOf(boxes.filter(isShown), (box) => box.high - box.low);
  now.peak = now.curve.ticks.length ? now.curve.ticks[highest(now.curve)] : -1;
  const most = now.peak < 0 ? 0 : liveIn(now.curve, now.peak);
  $("peak").textContent = now.peak < 0 ? "" : `${bytes(most)} at step ${now.peak}, ${node(now.peak)}`;
};

// --- a field and a slider for each symbol ---
const lowerBound = () => {
  const curve = curveOf(boxes, (box) => box.units * factors[box.arena]);
  return curve.bytes.length ? curve.bytes[highest(curve)] : 0;
};
const figures = () => {
  const naive = data.figures.naive ? evaluate(data.figures.naive, values) : null;
  for (const [name, sum] of [...Object.entries(data.figures), ["lower bound", null]]) {
    const card = document.querySelector(`[data-figure="${name}"]`), value = sum ? evaluate(sum, values) : lowerBound();
    card.querySelector("strong").textContent = Number.isFinite(value) ? bytes(value) : "no size";
    const saved = card.querySelector(".saved");
    if (saved) saved.textContent = naive ? ` (${(100 * (1 - value / naive)).toFixed(1)}% saved)` : "";
  }
};
const enter = (k, value) => {
  if (!Number.isInteger(value) || value < 0) {
    $("wrong").textContent = `${data.symbols[k].name} must be a whole number, 0 or more`;
    return;
  }
  values[k] = value;
  document.querySelectorAll(`#fields [data-symbol="${k}"]`).forEach((field) => {
    if (field.type === "range" && value > Number(field.max)) field.max = value;
    if (Number(field.value) !== value) field.value = value;
  });
  if (!settle()) return;
  figures(); reset(); sortRows(); group();
};
const fields = () => data.symbols.forEach(({ name, value, source }, k) => {
  const label = document.createElement("label"), number = document.createElement("input");
  const slider = document.createElement("input");
  label.append(put("span", name), number, slider, put("small", source === "unknown" ? "no value is known: any will do" : `${source}: ${value}`));
  Object.assign(number, { type: "number", min: 0, step: 1, value });
  Object.assign(slider, { type: "range", min: 1, step: 1, max: Math.max(64, 4 * value), value });
  number.setAttribute("aria-label", name);
  slider.setAttribute("aria-label", `${name}, slider`);
  for (const field of [number, slider]) {
    field.dataset.symbol = k;
    field.addEventListener("input", () => enter(k, field.value === "" ? NaN : Number(field.value)));
  }
  $("fields").append(label);
});
