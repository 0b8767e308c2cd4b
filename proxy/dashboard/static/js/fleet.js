// The fleet as a table: rows are kept, and only cells that changed are written.

import { meter } from "./bars.js";
import { byId, el, rove, setAttribute, setText } from "./dom.js";
import { count, percent, plural, seconds, short } from "./format.js";

const isDown = (one) => one.state === "down"; // whatever was known of it is not so now
const cached = (one) => (isDown(one) ? -1 : one.view.blocks * (one.block_size ?? 16));
const used = (one) => (one.capacity_tokens && !isDown(one) ? cached(one) / one.capacity_tokens : null);

const COLUMNS = [
  ["Backend", (one) => one.name, null],
  ["State", (one) => one.state, null],
  ["Requests", (one) => one.load.requests, (one) => count(one.load.requests)],
  ["Decoding", (one) => one.load.decodes, (one) => count(one.load.decodes)],
  ["Prefill queue", (one) => one.load.prefill_tokens, (one) => (one.load.prefill_tokens ? `${short(one.load.prefill_tokens)} tok` : "0")],
  ["Learned prefill", (one) => one.learned.prefill_tokens_per_s ?? -1, (one) => (one.learned.prefill_tokens_per_s === null ? "–" : `${short(one.learned.prefill_tokens_per_s)} tok/s`)],
  ["Inter-token", (one) => one.learned.itl_s ?? -1, (one) => seconds(one.learned.itl_s)],
  ["View", (one) => one.view.source, null],
  ["Known cached", cached, null],
  ["KV in use", (one) => one.kv_usage ?? -1, null],
];

const STATES = { up: "●", down: "✕", draining: "◒", starting: "○" };
const SOURCES = { events: "told by its KV events", mirror: "a mirror of what was sent", none: "unknown" };

let sorted = { at: 0, up: true };
const rows = new Map();

export function renderFleet({ state }) {
  const body = byId("fleet-body") ?? build();
  const words = byId("fleet-filter").value.trim().toLowerCase();
  const shown = state.backends.filter((one) => !words || `${one.name} ${one.engine} ${one.state}`.toLowerCase().includes(words));
  const up = state.backends.filter((one) => one.state === "up").length;
  setText(byId("fleet-count"), `${up} of ${plural(state.backends.length, "backend")} up`);
  sort(shown);
  const nodes = shown.map(rowOf);
  if (nodes.length !== body.children.length || nodes.some((node, at) => body.children[at] !== node)) keepFocus(() => body.replaceChildren(...nodes));
  const names = new Set(state.backends.map((one) => one.name));
  for (const name of rows.keys()) if (!names.has(name)) rows.delete(name);
  const links = [...body.querySelectorAll("a")];
  if (links.length && !links.some((link) => link.tabIndex === 0)) links[0].tabIndex = 0;
}

function keepFocus(change) {
  const focused = document.activeElement;
  change();
  if (focused !== document.activeElement && focused.isConnected) focused.focus();
}

function sort(backends) {
  const key = COLUMNS[sorted.at][1];
  const way = sorted.up ? 1 : -1;
  const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
  backends.sort((a, b) => way * compare(key(a), key(b)));
}

function build() {
  const heads = COLUMNS.map(([name], at) =>
    el("th", { scope: "col" }, el("button", { type: "button", onclick: () => sortBy(at) }, name)),
  );
  const body = el("tbody", { id: "fleet-body", onkeydown: (event) => rove(event, [...event.currentTarget.querySelectorAll("a")]) });
  byId("fleet").replaceChildren(el("table", { class: "cards" }, el("thead", {}, el("tr", { id: "fleet-heads" }, heads)), body));
  return body;
}

function sortBy(at) {
  sorted = { at, up: sorted.at === at ? !sorted.up : at < 2 };
  [...byId("fleet-heads").children].forEach((head, one) => {
    if (one === at) head.setAttribute("aria-sort", sorted.up ? "ascending" : "descending");
    else head.removeAttribute("aria-sort");
  });
  document.dispatchEvent(new Event("warmroute:sorted"));
}

function rowOf(one) {
  let row = rows.get(one.name);
  if (!row) {
    row = el("tr", { "data-backend": one.name }, COLUMNS.map(([name]) => el("td", { "data-label": name })));
    row.children[0].append(
      el("a", { href: `#backend/${encodeURIComponent(one.name)}`, tabindex: -1 }, one.name),
      el("small", {}),
    );
    row.children[1].append(el("span", { class: "state" }));
    row.children[7].append(el("span", { class: "source" }), el("small", {}));
    rows.set(one.name, row);
  }
  update(row, one);
  return row;
}

function update(row, one) {
  COLUMNS.forEach(([, , text], at) => text && setText(row.children[at], text(one)));
  setText(row.children[0].lastChild, one.engine);
  const state = row.children[1].firstChild;
  setText(state, `${STATES[one.state] ?? "?"} ${one.state}`);
  setAttribute(state, "data-state", one.state);
  setText(row.children[7].firstChild, one.view.source);
  setAttribute(row.children[7].firstChild, "title", SOURCES[one.view.source] ?? "");
  setText(row.children[7].lastChild, isDown(one) ? "not heard now" : lag(one.view));
  const share = used(one);
  const fits = share === null ? "of an unknown capacity" : `${percent(share, 0)} of the ${count(one.capacity_tokens)} tokens that fit`;
  const known = () => (isDown(one) ? "–" : meter(share, fits, `${short(cached(one))} tok`));
  fill(row.children[8], `${cached(one)} ${share}`, known);
  fill(row.children[9], `${one.kv_usage}`, () => meter(one.kv_usage, "held by running requests, as the engine reports"));
}

function fill(cell, key, make) {
  if (cell.dataset.key === key) return;
  cell.dataset.key = key;
  cell.replaceChildren(make());
}

const lag = (view) => (view.lag_s === null ? "" : `${seconds(view.lag_s)} behind`);
