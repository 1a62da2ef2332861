
// --- the map and the live bytes below it ---
const map = $("map"), live = $("live");
const LEFT = 76, TALLEST_TEXT = 14;
const full = () => ({ x0: 0, x1: Math.max(data.ticks, 1), y0: 0, y1: Math.max(now.height, 1) });
const X = (tick, width) => LEFT + ((tick - state.view.x0) / (state.view.x1 - state.view.x0)) * (width - LEFT - 8);
const Y = (at, height) => height - 6 - ((at - state.view.y0) / (state.view.y1 - state.view.y0)) * (height - 12);

const regionOf = (i) => (T.region.length ? T.region[i] : -1);
const typeOf = (i) => (data.type.length ? data.types[data.type[T.first[i]]] : "") || "(not told)";
const moduleOf = (i, depth) => {
  // A node's path says more than its tensor's: exporters number tensors.
  const path = (pin(i) || !node(T.first[i]).includes("/") ? T.name[i] : node(T.first[i])).replace(/^\/+/, "");
  const parts = (path.includes("/") ? path.split("/") : path.split(".")).slice(0, -1);
  return parts.slice(0, depth).join("/") || "(top)";
};
const WAYS = {
  dtype: (i) => data.dtypes[T.dtype[i]], category: (i) => data.categories[T.category[i]], type: typeOf,
  module: (i) => moduleOf(i, Number($("depth").value) || 2),
  region: (i) => (regionOf(i) < 0 ? "(whole)" : data.regions[regionOf(i)].label),
};
let paints = { fill: () => "", kinds: [] };
const prepare = () => {
  const way = $("color").value, light = css("--light"), dim = css("--dim"), strong = css("--full");
  const merged = $("merge").checked && data.regions.length;
  const plain = (box) => {
    if (way === "peak") return box.first <= now.peak && now.peak < box.last ? `hsl(${box.hue} 65% ${strong})` : dim;
    return `hsl(${box.hue} 55% ${light})`;
  };
  if (!WAYS[way]) {
    paints = { kinds: [], fill: (box) => (merged && regionOf(box.owner) >= 0 ? `hsl(${(regionOf(box.owner) * 137 + 40) % 360} 55% ${light})` : plain(box)) };
    return;
  }
  const sums = new Map();
  boxes.forEach((box) => { const kind = WAYS[way](box.owner); sums.set(kind, (sums.get(kind) || 0) + box.high - box.low); });
  const kinds = [...sums.keys()].sort((a, b) => sums.get(b) - sums.get(a) || (a < b ? -1 : 1));
  const hues = new Map(kinds.map((kind, k) => [kind, `hsl(${(k * 137 + 210) % 360} 50% ${light})`]));
  paints = { fill: (box) => hues.get(WAYS[way](box.owner)), kinds: kinds.slice(0, 12).map((kind) => [kind, hues.get(kind)]) };
};
const legend = () => {
  $("legend").replaceChildren(...paints.kinds.map(([kind, hue]) => {
    const line = put("li", kind), key = document.createElement("i");
    key.style.background = hue;
    line.prepend(key);
    return line;
  }));
};

const isLost = (box) => (state.found && !box.all.some((i) => state.found.has(i)));
const drawMap = () => {
  const { pen, width, height } = fit(map);
  const view = state.view, [text, soft, line, dim, card] = ["--text", "--soft", "--line", "--dim", "--card"].map(css);
  pen.textBaseline = "middle";
  for (let k = 0; k <= 4; k++) {
    const at = view.y0 + ((view.y1 - view.y0) * k) / 4, y = Y(at, height);
    pen.strokeStyle = line; pen.beginPath(); pen.moveTo(LEFT, y); pen.lineTo(width - 8, y); pen.stroke();
    pen.fillStyle = soft; pen.textAlign = "right"; pen.fillText(bytes(Math.round(at)), LEFT - 6, y);
  }
  pen.save(); pen.beginPath(); pen.rect(LEFT, 0, width - LEFT - 8, height); pen.clip();
  pen.textAlign = "left";
  const merged = $("merge").checked;
  for (const box of boxes) {
    if (!isShown(box) || box.last <= view.x0 || box.first >= view.x1 || box.high <= view.y0 || box.low >= view.y1) continue;
    const x = X(box.first, width), y = Y(box.high, height), lost = isLost(box);
    const w = Math.max(X(box.last, width) - x, 1), h = Math.max(Y(box.low, height) - y, 1);
    const inRegion = merged && regionOf(box.owner) >= 0;
    pen.fillStyle = lost ? dim : paints.fill(box);
    pen.fillRect(x, y, w, h);
    if (w > 4 && h > 4 && !inRegion) { pen.strokeStyle = card; pen.lineWidth = 1; pen.strokeRect(x, y, w, h); }
    if (w > 64 && h > TALLEST_TEXT && !lost && !inRegion) {
      pen.save(); pen.beginPath(); pen.rect(x, y, w, h); pen.clip();
      pen.fillStyle = text; pen.fillText(T.name[box.owner].slice(0, 200), Math.max(x, LEFT) + 4, y + h / 2);
      pen.restore();
    }
  }
  if (merged) drawRegions(pen, width, height, text);
  if (state.arena === ALL && starts.length > 1) edges(pen, width, height, soft);
  for (const [i, dash] of [[state.chosen, []], [state.hover, [3, 2]]]) {
    const box = boxOf[i];
    if (!box || !isShown(box)) continue;
    const x = X(box.first, width), y = Y(box.high, height);
    pen.strokeStyle = text; pen.lineWidth = 2; pen.setLineDash(dash);
    pen.strokeRect(x, y, Math.max(X(box.last, width) - x, 2), Math.max(Y(box.low, height) - y, 2));
    pen.setLineDash([]);
  }
  marks(pen, width, height);
  pen.restore();
};
const edges = (pen, width, height, paint) => {
  pen.strokeStyle = paint; pen.lineWidth = 1; pen.setLineDash([2, 4]);
  starts.slice(1).forEach((start) => {
    const y = Y(start, height);
    pen.beginPath(); pen.moveTo(LEFT, y); pen.lineTo(width - 8, y); pen.stroke();
  });
  pen.setLineDash([]);
};
const drawRegions = (pen, width, height, text) => data.regions.forEach((region) => {
  const x = X(region.first, width), w = Math.max(X(region.last + 1, width) - x, 2);
  pen.strokeStyle = text; pen.lineWidth = 1.5;
  pen.strokeRect(x, 2, w, height - 4);
  if (w < 40) return;
  pen.save(); pen.beginPath(); pen.rect(x, 0, w, height); pen.clip();
  pen.fillStyle = css("--card"); pen.fillRect(x + 1, 3, Math.min(pen.measureText(region.label).width + 10, w - 2), 17);
  pen.fillStyle = text; pen.fillText(region.label, x + 5, 12);
  pen.restore();
});
const marks = (pen, width, height) => {
  for (const [tick, paint, dash] of [[now.peak, css("--peak"), [4, 3]], [state.tick, css("--soft"), [1, 2]]]) {
    if (tick < 0) continue;
    const x = X(tick + 0.5, width);
    pen.strokeStyle = paint; pen.lineWidth = 1; pen.setLineDash(dash);
    pen.beginPath(); pen.moveTo(x, 0); pen.lineTo(x, height); pen.stroke(); pen.setLineDash([]);
  }
};

const outline = (pen, curve, top, width, height) => {
  const y = (v) => height - 18 - (v / top) * (height - 26);
  pen.beginPath(); pen.moveTo(X(0, width), y(0));
  curve.ticks.forEach((tick, k) => {
    pen.lineTo(X(tick, width), y(k ? curve.bytes[k - 1] : 0));
    pen.lineTo(X(tick, width), y(curve.bytes[k]));
  });
  pen.closePath();
};
const drawLive = () => {
  const { pen, width, height } = fit(live);
  const { curve } = now, top = Math.max(curve.bytes.length ? curve.bytes[highest(curve)] : 0, 1);
  pen.fillStyle = css("--soft"); pen.textAlign = "right"; pen.textBaseline = "middle";
  pen.fillText(bytes(top), LEFT - 6, 8); pen.fillText("0", LEFT - 6, height - 18);
  pen.textBaseline = "bottom"; pen.textAlign = "left"; pen.fillText(`step ${Math.ceil(state.view.x0)}`, LEFT, height);
  pen.textAlign = "right"; pen.fillText(`step ${Math.floor(state.view.x1)}`, width - 8, height);
  pen.save(); pen.beginPath(); pen.rect(LEFT, 0, width - LEFT - 8, height - 16); pen.clip();
  outline(pen, curve, top, width, height); pen.fillStyle = css("--fill"); pen.fill();
  pen.strokeStyle = css("--curve"); pen.lineWidth = 1.5; pen.stroke();
  marks(pen, width, height);
  pen.restore();
};
let pending = 0;
const draw = () => {
  if (!pending) pending = requestAnimationFrame(() => { pending = 0; drawMap(); drawLive(); });
};
const redraw = () => { prepare(); legend(); draw(); };
const reset = () => { state.view = full(); redraw(); };

// --- where the pointer is, and what lies there ---
const at = (event) => {
  const frame = map.getBoundingClientRect(), view = state.view;
  const x = (event.clientX - frame.left - LEFT) / (frame.width - LEFT - 8);
  const y = (frame.bottom - 6 - event.clientY) / (frame.height - 12);
  return { tick: view.x0 + x * (view.x1 - view.x0), place: view.y0 + y * (view.y1 - view.y0), x, y };
};
const under = ({ tick, place: address }) => {
  const box = boxes.find((b) => isShown(b) && b.first <= tick && tick < b.last && b.low <= address && address < b.high);
  if (!box) return -1;
  const there = box.all.find((i) => T.first[i] <= tick && tick < T.last[i]);
  return there === undefined ? box.owner : there;
};
const clamp = (view) => {
  const whole = full();
  for (const [a, b] of [["x0", "x1"], ["y0", "y1"]]) {
    const longest = whole[b] - whole[a], least = a === "x0" ? Math.min(2, longest) : Math.min(64, longest);
    const span = Math.min(Math.max(view[b] - view[a], least), longest);
    const middle = (view[a] + view[b]) / 2;
    view[a] = Math.min(Math.max(middle - span / 2, whole[a]), whole[b] - span);
    view[b] = view[a] + span;
  }
  state.view = view; draw();
};
const zoom = (by, x, y, sides) => {
  const v = { ...state.view };
  if (sides.includes("x")) { const c = v.x0 + x * (v.x1 - v.x0); v.x0 = c - (c - v.x0) * by; v.x1 = c + (v.x1 - c) * by; }
  if (sides.includes("y")) { const c = v.y0 + y * (v.y1 - v.y0); v.y0 = c - (c - v.y0) * by; v.y1 = c + (v.y1 - c) * by; }
  clamp(v);
};
const pan = (x, y) => {
  const v = { ...state.view }, w = (v.x1 - v.x0) * x, h = (v.y1 - v.y0) * y;
  v.x0 += w; v.x1 += w; v.y0 += h; v.y1 += h; clamp(v);
};
