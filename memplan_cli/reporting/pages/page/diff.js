
// --- two maps at one scale of bytes ---
const LEFT = 76, TONES = ["--dim", "--bad", "--good"];
const tallest = Math.max(1, ...data.sides.map((side) => side.height));
const sides = ["before", "after"].map((name, k) => {
  const side = data.sides[k], byOwner = new Map();
  side.name.forEach((_, i) => {
    const owner = side.alias[i] < 0 ? i : side.alias[i];
    const box = byOwner.get(owner) || { owner, all: [], size: 0, first: Infinity, last: 0, kind: 0, low: side.offset[owner] };
    box.all.push(i);
    box.size = Math.max(box.size, side.bytes[i]);
    box.first = Math.min(box.first, side.first[i]);
    box.last = Math.max(box.last, side.last[i]);
    box.kind = Math.max(box.kind, side.kind[i]);
    byOwner.set(owner, box);
  });
  const boxes = [...byOwner.values()], curve = curveOf(boxes, (box) => box.size);
  const peak = curve.ticks.length ? curve.ticks[highest(curve)] : -1;
  return { ...side, name: side.name, canvas: $(name), boxes, curve, peak, label: name };
});
const X = (side, tick, width) => LEFT + (tick / Math.max(side.ticks, 1)) * (width - LEFT - 8);
const Y = (at, height) => height - 6 - (at / tallest) * (height - 12);

const drawSide = (side) => {
  const { pen, width, height } = fit(side.canvas);
  const [text, soft, line, card] = ["--text", "--soft", "--line", "--card"].map(css), tones = TONES.map(css);
  pen.textBaseline = "middle";
  for (let k = 0; k <= 4; k++) {
    const y = Y((tallest * k) / 4, height);
    pen.strokeStyle = line; pen.beginPath(); pen.moveTo(LEFT, y); pen.lineTo(width - 8, y); pen.stroke();
    pen.fillStyle = soft; pen.textAlign = "right"; pen.fillText(bytes(Math.round((tallest * k) / 4)), LEFT - 6, y);
  }
  pen.textAlign = "left";
  for (const box of side.boxes) {
    const x = X(side, box.first, width), y = Y(box.low + box.size, height);
    const w = Math.max(X(side, box.last, width) - x, 1), h = Math.max(Y(box.low, height) - y, 1);
    pen.globalAlpha = box.kind ? 0.75 : 1;
    pen.fillStyle = tones[box.kind]; pen.fillRect(x, y, w, h);
    pen.globalAlpha = 1;
    if (w > 4 && h > 4) { pen.strokeStyle = box.kind ? card : line; pen.strokeRect(x, y, w, h); }
    if (w > 64 && h > 14) {
      pen.save(); pen.beginPath(); pen.rect(x, y, w, h); pen.clip();
      pen.fillStyle = text; pen.fillText(side.name[box.owner].slice(0, 200), x + 4, y + h / 2);
      pen.restore();
    }
  }
  if (side.peak < 0) return;
  const x = X(side, side.peak + 0.5, width);
  pen.strokeStyle = css("--peak"); pen.setLineDash([4, 3]);
  pen.beginPath(); pen.moveTo(x, 0); pen.lineTo(x, height); pen.stroke(); pen.setLineDash([]);
};
const tell = (side, event) => {
  const frame = side.canvas.getBoundingClientRect();
  const tick = Math.floor(((event.clientX - frame.left - LEFT) / (frame.width - LEFT - 8)) * side.ticks);
  const place = ((frame.bottom - 6 - event.clientY) / (frame.height - 12)) * tallest;
  const when = tick >= 0 && tick < side.ticks ? `${side.label}, step ${tick}, ${side.nodes[tick]}: ${bytes(liveIn(side.curve, tick))} live` : "";
  const box = side.boxes.find((b) => b.first <= tick && tick < b.last && b.low <= place && place < b.low + b.size);
  const lines = box ? box.all.map((i) => {
    const was = side.was[i], other = side.label === "before" ? "after" : "before";
    return `${side.name[i]}: ${bytes(side.bytes[i])}, steps ${side.first[i]} to ${side.last[i] - 1}; ${was === null ? `not there ${other}` : was === side.bytes[i] ? `the same ${other}` : `${bytes(was)} ${other}`}`;
  }) : [];
  $("about").textContent = [...lines, when].filter(Boolean).join("\n");
};
const drawAll = () => sides.forEach(drawSide);
sides.forEach((side) => {
  side.canvas.addEventListener("pointermove", (event) => tell(side, event));
  side.canvas.addEventListener("pointerleave", () => { $("about").textContent = ""; });
});
themes.push(drawAll);
new ResizeObserver(drawAll).observe($("before"));
window.addEventListener("beforeprint", () => theme("light"));
window.addEventListener("afterprint", () => theme(dark.matches ? "dark" : "light"));
drawAll();
document.body.dataset.ready = "yes";
