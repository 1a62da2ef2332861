
// --- the table: only the rows in sight exist ---
const ROW = 28, WIDEST = 44, MARGIN = 3;
const columns = {
  name: (i) => T.name[i], bytes: sizeNow, size: expression, dtype: (i) => data.dtypes[T.dtype[i]],
  shape: (i) => data.shapes[T.shape[i]], offset: placeNow, first: (i) => T.first[i],
  category: WAYS.category, made: (i) => (pin(i) ? "" : node(T.first[i])), read: (i) => pin(i) || node(T.last[i] - 1),
};
const shown = {
  ...columns, bytes: (i) => bytes(sizeNow(i)), first: (i) => `${T.first[i]} to ${T.last[i] - 1}`,
  made: (i) => (pin(i) ? "(whole run)" : node(T.first[i])),
};
const heads = [...document.querySelectorAll("#rows th")], keysShown = heads.map((th) => th.dataset.key);
const widths = () => {
  // A column is as wide as its longest text, up to a limit: the table scrolls, nothing collapses.
  let whole = 0;
  heads.forEach((th) => {
    const text = shown[th.dataset.key];
    let longest = th.dataset.name.length + 2;
    for (let i = 0; i < count && longest < WIDEST; i++) longest = Math.max(longest, String(text(i)).length);
    const wide = Math.min(longest, WIDEST) + MARGIN;
    th.style.width = `${wide}ch`;
    whole += wide;
  });
  document.querySelector("#rows table").style.width = `max(100%, ${whole}ch)`;
};
const sortRows = () => {
  const key = columns[state.sort], way = state.down ? -1 : 1, list = [];
  for (let i = 0; i < count; i++) if (!state.found || state.found.has(i)) list.push(i);
  const cells = list.map(key), order = list.map((_, k) => k);
  order.sort((a, b) => (cells[a] < cells[b] ? -way : cells[a] > cells[b] ? way : 0) || list[a] - list[b]);
  state.rows = order.map((k) => list[k]);
  heads.forEach((th) => {
    const on = th.dataset.key === state.sort;
    th.setAttribute("aria-sort", on ? (state.down ? "descending" : "ascending") : "none");
    th.firstChild.textContent = th.dataset.name + (on ? (state.down ? " ▾" : " ▴") : "");
  });
  $("found").textContent = state.found ? `${list.length} of ${count} tensors` : `${count} tensors`;
  fill();
};
const gap = (rows) => {
  const tr = document.createElement("tr"), td = document.createElement("td");
  tr.className = "gap"; td.colSpan = heads.length; td.style.height = `${rows * ROW}px`;
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
    for (const key of keysShown) {
      const td = put("td", shown[key](i));
      td.title = td.textContent;
      if (key === "bytes" || key === "offset" || key === "first") td.className = "n";
      tr.append(td);
    }
    return tr;
  });
  body.replaceChildren(...(all ? lines : [gap(start), ...lines, gap(state.rows.length - end)]));
};

// --- one tensor: what is known of it, to read and to copy ---
const aliases = (i, most) => {
  const others = boxOf[i].all.filter((j) => j !== i), names = others.slice(0, most).map((j) => T.name[j]);
  if (!others.length) return "";
  const rest = others.length - names.length;
  return `shares its bytes with ${names.join(", ")}${rest ? ` and ${rest} more` : ""}`;
};
const told = (i, most) => [
  `${T.name[i]}: ${columns.dtype(i)} [${columns.shape(i)}], ${bytes(sizeNow(i))}${symbolic(i) ? ` (${expression(i)})` : ""} at offset ${placeNow(i)}, steps ${T.first[i]} to ${T.last[i] - 1}`,
  pin(i) ? `whole run: ${pin(i)}` : `made by ${node(T.first[i])}${data.type.length ? `, a ${typeOf(i)}` : ""}, last read by ${node(T.last[i] - 1)}`,
  `${WAYS.category(i)}${regionOf(i) >= 0 ? `, ${WAYS.region(i)}` : ""}; module ${WAYS.module(i)}`, aliases(i, most),
];
const say = () => {
  const i = state.hover >= 0 ? state.hover : state.chosen;
  const when = state.tick >= 0 && state.tick < data.ticks
    ? `step ${state.tick}, ${node(state.tick)}: ${bytes(liveIn(now.curve, state.tick))} live` : "";
  // What is chosen is told whole, and what the pointer passes in short.
  const lines = i < 0 ? [when] : [...told(i, i === state.chosen ? Infinity : 4), when];
  $("about").textContent = lines.filter(Boolean).join("\n");
  $("story").hidden = state.chosen < 0;
};
const story = (i) => {
  const at = data.symbols.map(({ name }, k) => `${name}=${values[k]}`).join(", ");
  const there = boxOf[i].first <= now.peak && now.peak < boxOf[i].last;
  return [...told(i, Infinity), `${there ? "live" : "not live"} at the peak, step ${now.peak}, ${node(now.peak)}`,
    at ? `sizes at ${at}` : "", document.title].filter(Boolean).join("\n");
};
const copy = async () => {
  const text = story(state.chosen);
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = put("textarea", text);
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  $("copied").textContent = "copied";
};
const choose = (i, scroll) => {
  state.chosen = i;
  $("copied").textContent = "";
  if (i >= 0 && !isShown(boxOf[i])) { state.arena = T.arena[i]; $("arena").value = state.arena; settle(); reset(); }
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
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean), peak = $("only").checked;
  const hit = (i) => {
    const box = boxOf[i];
    if (peak && !(isShown(box) && box.first <= now.peak && now.peak < box.last)) return false;
    if (state.group && WAYS[state.group[0]](i) !== state.group[1]) return false;
    if (!words.length) return true;
    const text = `${T.name[i]} ${columns.dtype(i)} ${columns.shape(i)} ${columns.made(i)} ${columns.read(i)} ${data.type.length ? typeOf(i) : ""}`.toLowerCase();
    return words.every((word) => text.includes(word));
  };
  state.found = words.length || peak || state.group ? new Set([...Array(count).keys()].filter(hit)) : null;
  $("rows").scrollTop = 0;
  sortRows(); draw();
};
