// The stream of decisions: one line each, which opens the whole explanation.

import { classBar } from "./bars.js";
import { byId, el, rove } from "./dom.js";
import { clock, count, seconds } from "./format.js";

const MAX_ROWS = 100;
const HEADS = ["Time", "Request", "Model", "Backend", "Why", "Prompt", "Tokens", "First token", "Status"];

let isPaused = false;
let rows = new Map();

export function bindDecisions(onChange) {
  byId("decision-filter").addEventListener("input", onChange);
  byId("pause").addEventListener("click", (event) => {
    isPaused = !isPaused;
    event.target.setAttribute("aria-pressed", isPaused);
    event.target.textContent = isPaused ? "Go on" : "Pause";
    onChange();
  });
}

export function renderDecisions({ decisions }) {
  const body = byId("decision-body") ?? build();
  if (isPaused && body.childElementCount) return;
  const words = byId("decision-filter").value.trim().toLowerCase();
  const shown = [...decisions.values()].reverse().filter((one) => !words || text(one).includes(words)).slice(0, MAX_ROWS);
  const before = rows;
  rows = new Map();
  for (const one of shown) {
    const known = before.get(one.request_id);
    rows.set(one.request_id, known?.one === one ? known : { one, row: rowOf(one) });
  }
  const focused = document.activeElement?.closest?.("tr")?.dataset.id;
  const nodes = [...rows.values()].map(({ row }) => row);
  if (!nodes.length) nodes.push(el("tr", {}, el("td", { colspan: HEADS.length, class: "blank" }, words ? "None of the newest decisions match." : "No request has come yet. Send one to the data port.")));
  if (nodes.length !== body.childElementCount || nodes.some((node, at) => node !== body.children[at])) body.replaceChildren(...nodes);
  refocus(body, focused);
}

const text = (one) => `${one.request_id} ${one.model} ${one.chosen ?? ""} ${one.reason} ${one.status}`.toLowerCase();

function refocus(body, id) {
  const links = [...body.querySelectorAll("a")];
  const link = id && links.find((one) => one.closest("tr").dataset.id === id);
  if (link && document.activeElement !== link) link.focus({ preventScroll: true });
  if (links.length && !links.some((one) => one.tabIndex === 0)) (link || links[0]).tabIndex = 0;
}

function build() {
  const body = el("tbody", { id: "decision-body", onkeydown: (event) => rove(event, [...event.currentTarget.querySelectorAll("a")]) });
  byId("decision-list").replaceChildren(
    el("table", { class: "cards" }, el("thead", {}, el("tr", {}, HEADS.map((name) => el("th", { scope: "col" }, name)))), body),
  );
  return body;
}

function rowOf(one) {
  const cells = [
    clock(one.time),
    el("a", { href: `#decision/${encodeURIComponent(one.request_id)}`, tabindex: -1 }, one.request_id.slice(0, 24)),
    one.model ?? "–",
    el("b", {}, one.chosen ?? "–"),
    one.attempts > 1 ? `${one.reason}, try ${one.attempts}` : one.reason,
    one.grade === "exact" ? count(one.prompt_tokens) : `≈ ${count(one.prompt_tokens)}`,
    one.tokens ? classBar(one.tokens) : el("small", {}, one.status === null ? "under way" : "–"),
    seconds(one.ttft_s),
    el("span", { class: "status", "data-bad": one.status !== null && one.status >= 400 }, one.status ?? "…"),
  ];
  return el("tr", { "data-id": one.request_id }, cells.map((cell, at) => el("td", { "data-label": HEADS[at] }, cell)));
}
