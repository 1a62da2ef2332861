
// --- what the pointer and the keyboard do ---
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

$("search").addEventListener("input", search);
$("search").addEventListener("keydown", (event) => { if (event.key === "Enter") step(event.shiftKey ? -1 : 1); });
$("only").addEventListener("change", search);
$("color").addEventListener("change", redraw);
$("merge").addEventListener("change", redraw);
$("reset").addEventListener("click", reset);
$("copy").addEventListener("click", copy);
$("by").addEventListener("change", () => only(null));
$("depth").addEventListener("input", () => { redraw(); only(null); });
$("ungroup").addEventListener("click", () => only(null));
$("arena").addEventListener("change", () => {
  state.arena = Number($("arena").value);
  settle(); reset(); search(); group();
});
$("rows").addEventListener("scroll", () => fill());
$("rows").addEventListener("click", (event) => {
  const head = event.target.closest("th"), line = event.target.closest("tr[data-tensor]");
  if (head) {
    state.down = head.dataset.key === state.sort ? !state.down : head.dataset.key === "bytes";
    state.sort = head.dataset.key; sortRows();
  } else if (line) choose(Number(line.dataset.tensor), false);
});

if (data.arenas.length) {
  $("arena").value = ALL;
  fields();
  settle();
  state.view = full();
  themes.push(() => { prepare(); legend(); drawMap(); drawLive(); });
  window.addEventListener("beforeprint", () => { theme("light"); fill(true); });
  window.addEventListener("afterprint", () => { theme(dark.matches ? "dark" : "light"); fill(); });
  new ResizeObserver(draw).observe(map);
  widths(); sortRows(); group(); prepare(); legend(); drawMap(); drawLive();
}
document.body.dataset.ready = "yes";
