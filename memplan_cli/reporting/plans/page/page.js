"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const map = $("map"), live = $("live");
  const T = data.tensors, count = T.name.length;
  const LEFT = 76, TALLEST_TEXT = 14, ROW = 28;

  // What each tensor's bytes are: the tensor itself, or the one it shares them with.
  const home = T.alias.map((owner, i) => (owner < 0 ? i : owner));
  const members = new Map();
  home.forEach((owner, i) => {
    if (!members.has(owner)) members.set(owner, []);
    members.get(owner).push(i);
  });
  const boxes = [...members].map(([owner, all]) => ({
    owner, all, arena: T.arena[owner], low: T.offset[owner],
    high: T.offset[owner] + Math.max(...all.map((i) => T.bytes[i])),
    first: all.reduce((least, i) => Math.min(least, T.first[i]), Infinity),
    last: all.reduce((most, i) => Math.max(most, T.last[i]), 0),
    hue: (owner * 137) % 360,
  }));
  const boxOf = new Map();
  boxes.forEach((box) => box.all.forEach((i) => boxOf.set(i, box)));

  const state = { arena: data.main, view: null, hover: -1, chosen: -1, tick: -1,
    found: null, sort: "bytes", down: true, rows: [], drag: null };
  const dtypes = [...new Set(T.dtype)].sort();

  const bytes = (n) => {
    if (n < 1024) return `${n} B`;
    const units = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    let k = -1;
    do { n /= 1024; k += 1; } while (n >= 1023.995 && k < units.length - 1);
    return `${n.toFixed(2)} ${units[k]}`;
  };
  const arena = () => data.arenas[state.arena];
  const unit = () => (arena().unit === "1" ? "" : ` x ${arena().unit}`);
  const size = (i) => {
    const u = data.arenas[T.arena[i]].unit;
    return bytes(T.bytes[i]) + (u === "1" ? "" : ` x ${u}`);
  };
  const node = (tick) => data.nodes[tick] || "";
  const pin = (i) => (T.pinned[i] < 0 ? "" : data.reasons[T.pinned[i]]);
  const full = () => ({ x0: 0, x1: Math.max(data.ticks, 1), y0: 0, y1: Math.max(arena().height, 1) });
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // --- canvases ---
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
  const X = (tick, width) => LEFT + ((tick - state.view.x0) / (state.view.x1 - state.view.x0)) * (width - LEFT - 8);
  const Y = (at, height) => height - 6 - ((at - state.view.y0) / (state.view.y1 - state.view.y0)) * (height - 12);

  const colour = (box) => {
    const way = $("colour").value;
    if (way === "dtype") return `hsl(${(dtypes.indexOf(T.dtype[box.owner]) * 67 + 210) % 360} 50% ${css("--light")})`;
    if (way === "peak") {
      const there = box.first <= data.peaks[state.arena] && data.peaks[state.arena] < box.last;
      return there ? `hsl(${box.hue} 65% ${css("--full")})` : css("--dim");
    }
    return `hsl(${box.hue} 55% ${css("--light")})`;
  };

  const drawMap = () => {
    const { pen, width, height } = fit(map);
    const view = state.view, [text, soft, line, dim] = ["--text", "--soft", "--line", "--dim"].map(css);
    pen.clearRect(0, 0, width, height);
    pen.textBaseline = "middle";
    for (let k = 0; k <= 4; k++) {
      const at = view.y0 + ((view.y1 - view.y0) * k) / 4, y = Y(at, height);
      pen.strokeStyle = line; pen.beginPath(); pen.moveTo(LEFT, y); pen.lineTo(width - 8, y); pen.stroke();
      pen.fillStyle = soft; pen.textAlign = "right"; pen.fillText(bytes(Math.round(at)), LEFT - 6, y);
    }
    pen.save(); pen.beginPath(); pen.rect(LEFT, 0, width - LEFT - 8, height); pen.clip();
    pen.textAlign = "left";
    const paints = new Map(boxes.map((box) => [box, colour(box)]));
    for (const box of boxes) {
      if (box.arena !== state.arena || box.last <= view.x0 || box.first >= view.x1
          || box.high <= view.y0 || box.low >= view.y1) continue;
      const x = X(box.first, width), y = Y(box.high, height);
      const w = Math.max(X(box.last, width) - x, 1), h = Math.max(Y(box.low, height) - y, 1);
      const lost = state.found && !box.all.some((i) => state.found.has(i));
      pen.fillStyle = lost ? dim : paints.get(box);
      pen.fillRect(x, y, w, h);
      if (w > 4 && h > 4) { pen.strokeStyle = css("--card"); pen.lineWidth = 1; pen.strokeRect(x, y, w, h); }
      if (w > 64 && h > TALLEST_TEXT && !lost) {
        pen.save(); pen.beginPath(); pen.rect(x, y, w, h); pen.clip();
        pen.fillStyle = text; pen.fillText(T.name[box.owner].slice(0, 200), Math.max(x, LEFT) + 4, y + h / 2);
        pen.restore();
      }
    }
    for (const [i, dash] of [[state.chosen, []], [state.hover, [3, 2]]]) {
      const box = boxOf.get(i);
      if (!box || box.arena !== state.arena) continue;
      const x = X(box.first, width), y = Y(box.high, height);
      pen.strokeStyle = text; pen.lineWidth = 2; pen.setLineDash(dash);
      pen.strokeRect(x, y, Math.max(X(box.last, width) - x, 2), Math.max(Y(box.low, height) - y, 2));
      pen.setLineDash([]);
    }
    marks(pen, width, height);
    if (unit()) {
      pen.fillStyle = text; pen.textAlign = "right"; pen.fillText(`every size${unit()}`, width - 14, 12);
    }
    pen.restore();
  };

  const marks = (pen, width, height) => {
    const lines = [[data.peaks[state.arena], css("--peak"), [4, 3]], [state.tick, css("--soft"), [1, 2]]];
    for (const [tick, paint, dash] of lines) {
      if (tick === undefined || tick < 0) continue;
      const x = X(tick + 0.5, width);
      pen.strokeStyle = paint; pen.lineWidth = 1; pen.setLineDash(dash);
      pen.beginPath(); pen.moveTo(x, 0); pen.lineTo(x, height); pen.stroke(); pen.setLineDash([]);
    }
  };

  const steps = (pen, curve, top, width, height, close) => {
    const y = (v) => height - 18 - (v / top) * (height - 26);
    pen.beginPath(); pen.moveTo(X(0, width), y(0));
    curve.ticks.forEach((tick, k) => {
      pen.lineTo(X(tick, width), y(k ? curve.bytes[k - 1] : 0));
      pen.lineTo(X(tick, width), y(curve.bytes[k]));
    });
    if (close) pen.closePath();
  };

  const drawLive = () => {
    const { pen, width, height } = fit(live);
    const curve = data.curves[state.arena], other = state.arena === data.main ? data.other : null;
    pen.clearRect(0, 0, width, height);
    const top = Math.max(...curve.bytes, ...(other ? other.bytes : []), 1);
    pen.fillStyle = css("--soft"); pen.textAlign = "right"; pen.textBaseline = "middle";
    pen.fillText(bytes(top), LEFT - 6, 8); pen.fillText("0", LEFT - 6, height - 18);
    pen.textBaseline = "bottom"; pen.textAlign = "left"; pen.fillText(`step ${Math.ceil(state.view.x0)}`, LEFT, height);
    pen.textAlign = "right"; pen.fillText(`step ${Math.floor(state.view.x1)}`, width - 8, height);
    pen.save(); pen.beginPath(); pen.rect(LEFT, 0, width - LEFT - 8, height - 16); pen.clip();
    steps(pen, curve, top, width, height, true); pen.fillStyle = css("--fill"); pen.fill();
    pen.strokeStyle = css("--curve"); pen.lineWidth = 1.5; pen.stroke();
    if (other) {
      // Dashes: where both are the same, both must show.
      steps(pen, other, top, width, height, false);
      pen.strokeStyle = css("--other"); pen.setLineDash([6, 5]); pen.stroke(); pen.setLineDash([]);
    }
    marks(pen, width, height);
    pen.restore();
  };

  let pending = 0;
  const draw = () => {
    if (!pending) pending = requestAnimationFrame(() => { pending = 0; drawMap(); drawLive(); });
  };

  // --- what the pointer and the keyboard do ---
  const at = (event) => {
    const frame = map.getBoundingClientRect(), view = state.view;
    const x = (event.clientX - frame.left - LEFT) / (frame.width - LEFT - 8);
    const y = (frame.bottom - 6 - event.clientY) / (frame.height - 12);
    return { tick: view.x0 + x * (view.x1 - view.x0), place: view.y0 + y * (view.y1 - view.y0), x, y };
  };
  const under = ({ tick, place }) => {
    const box = boxes.find((b) => b.arena === state.arena && b.first <= tick && tick < b.last && b.low <= place && place < b.high);
    if (!box) return -1;
    const now = box.all.find((i) => T.first[i] <= tick && tick < T.last[i]);
    return now === undefined ? box.owner : now;
  };
  const liveAt = (tick) => {
    const { ticks, bytes: values } = data.curves[state.arena];
    let low = 0, high = ticks.length;
    while (low < high) { const mid = (low + high) >> 1; if (ticks[mid] <= tick) low = mid + 1; else high = mid; }
    return low ? values[low - 1] : 0;
  };
  const about = (i) => {
    const when = state.tick >= 0 && state.tick < data.ticks
      ? `step ${state.tick}, ${node(state.tick)}: ${bytes(liveAt(state.tick))}${unit()} live` : "";
    if (i < 0) return when;
    const mates = boxOf.get(i).all.filter((j) => j !== i).slice(0, 4).map((j) => T.name[j]);
    return [`${T.name[i]}: ${T.dtype[i]} [${T.shape[i]}], ${size(i)} at offset ${T.offset[i]}, steps ${T.first[i]} to ${T.last[i] - 1}`,
      pin(i) ? `whole run: ${pin(i)}` : `made by ${node(T.first[i])}, last read by ${node(T.last[i] - 1)}`,
      mates.length ? `shares its bytes with ${mates.join(", ")}` : "", when].filter(Boolean).join(" · ");
  };
  const say = () => { $("about").textContent = about(state.hover >= 0 ? state.hover : state.chosen); };

  const clamp = (view) => {
    const whole = full();
    for (const [a, b] of [["x0", "x1"], ["y0", "y1"]]) {
      const most = whole[b] - whole[a], least = a === "x0" ? 2 : Math.min(64, most);
      const span = Math.min(Math.max(view[b] - view[a], least), most);
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
  const reset = () => { state.view = full(); draw(); };

  map.addEventListener("pointermove", (event) => {
    const here = at(event);
    if (state.drag) {
      pan(state.drag.x - here.x, state.drag.y - here.y);
      state.drag = { ...at(event), moved: true };
      return;
    }
    state.tick = here.x >= 0 ? Math.floor(here.tick) : -1;
    state.hover = under(here); say(); draw();
  });
  map.addEventListener("pointerdown", (event) => { state.drag = { ...at(event), moved: false }; map.setPointerCapture(event.pointerId); });
  map.addEventListener("pointerup", (event) => {
    if (state.drag && !state.drag.moved) choose(under(at(event)), true);
    state.drag = null;
  });
  map.addEventListener("pointerleave", () => { state.hover = -1; state.tick = -1; say(); draw(); });
  map.addEventListener("dblclick", reset);
  map.addEventListener("wheel", (event) => {
    // The page scrolls unless the map was clicked: nobody likes a trap.
    if (document.activeElement !== map && !event.ctrlKey) return;
    event.preventDefault();
    const { x, y } = at(event);
    zoom(Math.exp(event.deltaY / 400), x, y, event.shiftKey ? "y" : event.altKey ? "x" : "xy");
  }, { passive: false });
  const keys = {
    ArrowLeft: () => pan(-0.1, 0), ArrowRight: () => pan(0.1, 0), ArrowUp: () => pan(0, 0.1), ArrowDown: () => pan(0, -0.1),
    "+": () => zoom(0.7, 0.5, 0.5, "xy"), "=": () => zoom(0.7, 0.5, 0.5, "xy"), "-": () => zoom(1 / 0.7, 0.5, 0.5, "xy"),
    0: reset, n: () => step(1), p: () => step(-1), Escape: () => choose(-1, false),
  };
  map.addEventListener("keydown", (event) => {
    if (keys[event.key] && !event.ctrlKey && !event.metaKey) { event.preventDefault(); keys[event.key](); }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && document.activeElement.tagName !== "INPUT") { event.preventDefault(); $("search").focus(); }
  });

  // --- the table: only the rows in sight exist ---
  const columns = {
    name: (i) => T.name[i], bytes: (i) => T.bytes[i], dtype: (i) => T.dtype[i], shape: (i) => T.shape[i],
    offset: (i) => T.offset[i], first: (i) => T.first[i], made: (i) => (pin(i) ? "" : node(T.first[i])),
    read: (i) => pin(i) || node(T.last[i] - 1),
  };
  const shown = {
    ...columns, bytes: size, first: (i) => `${T.first[i]} to ${T.last[i] - 1}`,
    made: (i) => (pin(i) ? "(whole run)" : node(T.first[i])),
  };
  const sortRows = () => {
    const key = columns[state.sort], way = state.down ? -1 : 1;
    const list = [];
    for (let i = 0; i < count; i++) if (!state.found || state.found.has(i)) list.push(i);
    list.sort((a, b) => {
      const x = key(a), y = key(b);
      return (x < y ? -way : x > y ? way : 0) || a - b;
    });
    state.rows = list;
    document.querySelectorAll("#rows th").forEach((th) => {
      th.setAttribute("aria-sort", th.dataset.key === state.sort ? (state.down ? "descending" : "ascending") : "none");
      th.firstChild.textContent = th.dataset.name + (th.dataset.key === state.sort ? (state.down ? " ▾" : " ▴") : "");
    });
    $("found").textContent = state.found ? `${list.length} of ${count} tensors` : `${count} tensors`;
    fill();
  };
  const gap = (rows) => {
    const tr = document.createElement("tr"), td = document.createElement("td");
    tr.className = "gap"; td.colSpan = 8; td.style.height = `${rows * ROW}px`;
    tr.append(td);
    return tr;
  };
  const fill = (all) => {
    const list = $("rows"), body = list.querySelector("tbody");
    const start = all ? 0 : Math.max(0, Math.floor(list.scrollTop / ROW) - 10);
    const end = all ? Math.min(100, state.rows.length) : Math.min(state.rows.length, start + 40);
    const lines = state.rows.slice(start, end).map((i) => {
      const tr = document.createElement("tr");
      tr.dataset.tensor = i;
      if (i === state.chosen) tr.className = "on";
      for (const key of Object.keys(columns)) {
        const td = document.createElement("td");
        td.textContent = shown[key](i);
        td.title = td.textContent;
        if (key === "bytes" || key === "offset" || key === "first") td.className = "n";
        tr.append(td);
      }
      return tr;
    });
    body.replaceChildren(...(all ? lines : [gap(start), ...lines, gap(state.rows.length - end)]));
  };
  const choose = (i, scroll) => {
    state.chosen = i;
    if (i >= 0 && T.arena[i] !== state.arena) { state.arena = T.arena[i]; $("arena").value = state.arena; reset(); }
    const row = state.rows.indexOf(i);
    if (scroll && row >= 0) $("rows").scrollTop = Math.max(0, row * ROW - 120);
    say(); fill(); draw();
  };
  const step = (by) => {
    if (!state.rows.length) return;
    const row = state.rows.indexOf(state.chosen);
    choose(state.rows[(row + by + state.rows.length) % state.rows.length], true);
  };
  const search = () => {
    const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const peak = $("only").checked;
    const hit = (i) => {
      if (peak) {
        const tick = data.peaks[T.arena[i]], box = boxOf.get(i);
        if (!(box.first <= tick && tick < box.last)) return false;
      }
      const text = `${T.name[i]} ${T.dtype[i]} ${T.shape[i]} ${columns.made(i)} ${columns.read(i)}`.toLowerCase();
      return words.every((word) => text.includes(word));
    };
    state.found = words.length || peak ? new Set([...Array(count).keys()].filter(hit)) : null;
    $("rows").scrollTop = 0;
    sortRows(); draw();
  };

  $("search").addEventListener("input", search);
  $("search").addEventListener("keydown", (event) => { if (event.key === "Enter") step(event.shiftKey ? -1 : 1); });
  $("only").addEventListener("change", search);
  $("colour").addEventListener("change", draw);
  $("reset").addEventListener("click", reset);
  $("arena").addEventListener("change", () => { state.arena = Number($("arena").value); reset(); });
  $("rows").addEventListener("scroll", () => fill());
  $("rows").addEventListener("click", (event) => {
    const head = event.target.closest("th"), row = event.target.closest("tr[data-tensor]");
    if (head) {
      state.down = head.dataset.key === state.sort ? !state.down : head.dataset.key === "bytes";
      state.sort = head.dataset.key; sortRows();
    } else if (row) choose(Number(row.dataset.tensor), false);
  });

  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const theme = (name) => { document.documentElement.dataset.theme = name; draw(); };
  $("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  dark.addEventListener("change", () => theme(dark.matches ? "dark" : "light"));
  window.addEventListener("beforeprint", () => { theme("light"); fill(true); drawMap(); drawLive(); });
  window.addEventListener("afterprint", () => { theme(dark.matches ? "dark" : "light"); fill(); });
  new ResizeObserver(draw).observe(map);

  if (data.arenas.length) {
    state.view = full();
    theme(dark.matches ? "dark" : "light");
    sortRows(); drawMap(); drawLive();
  }
  document.body.dataset.ready = "yes";
})();
