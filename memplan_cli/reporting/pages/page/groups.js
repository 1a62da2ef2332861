
// --- bytes by module, category, type: in all, and at the peak ---
const MOST_GROUPS = 200;
const group = () => {
  const by = $("by").value, sums = new Map();
  $("deep").hidden = by !== "module";
  const sumOf = (kind) => {
    if (!sums.has(kind)) sums.set(kind, { kind, tensors: 0, whole: 0, live: 0 });
    return sums.get(kind);
  };
  for (let i = 0; i < count; i++) {
    const sum = sumOf(WAYS[by](i));
    sum.tensors += 1;
    sum.whole += sizeNow(i);
  }
  for (const box of boxes) {
    if (isShown(box) && box.first <= now.peak && now.peak < box.last) sumOf(WAYS[by](box.owner)).live += box.high - box.low;
  }
  const list = [...sums.values()].sort((a, b) => b.live - a.live || b.whole - a.whole || (a.kind < b.kind ? -1 : 1));
  const all = list.reduce((sum, each) => sum + each.live, 0);
  const lines = list.slice(0, MOST_GROUPS).map(({ kind, tensors, whole, live: size }) => {
    const button = put("button", kind);
    button.type = "button";
    button.setAttribute("aria-pressed", Boolean(state.group) && state.group[1] === kind);
    button.addEventListener("click", () => only([by, kind]));
    return row(button, tensors, bytes(whole), bytes(size), all ? `${((100 * size) / all).toFixed(1)}%` : "");
  });
  const given = by === "category" ? Object.entries(data.given) : [];
  $("sums").replaceChildren(...lines, ...given.map(([kind, size]) => row(`${kind}, not on the map`, "", bytes(size), "", "")));
  $("more").textContent = list.length > MOST_GROUPS ? `and ${list.length - MOST_GROUPS} more groups` : "";
};
const row = (first, ...cells) => {
  const tr = document.createElement("tr"), head = document.createElement("td");
  head.append(first);
  tr.append(head, ...cells.map((cell) => put("td", cell, "n")));
  return tr;
};
const only = (chosen) => {
  state.group = chosen;
  $("ungroup").hidden = !chosen;
  search(); group();
};
