// The figure that matters most, large.

import { classBar } from "./bars.js";
import { byId, el } from "./dom.js";
import { count, percent, short } from "./format.js";
import { CLASSES } from "./palette.js";

export function renderTotals({ state }) {
  const { tokens } = state;
  const twice = CLASSES.filter(([key]) => !["hit", "cold"].includes(key));
  byId("paid").replaceChildren(
    el("h2", {}, "Paid twice"),
    el("p", { class: "huge", id: "paid-twice" }, percent(state.paid_twice_ratio)),
    el(
      "p",
      { class: "quiet" },
      "of all prompt tokens were computed although the fleet had computed them before.",
    ),
    classBar(tokens),
    el(
      "dl",
      { class: "sums" },
      pair("Prompt tokens", short(tokens.prompt), tokens.prompt),
      pair("Served from cache", percent(share(tokens.hit, tokens.prompt)), tokens.hit),
      twice.map(([key, name]) => pair(name, short(tokens[key]), tokens[key])),
      state.queue ? pair("Held back", count(state.queue.requests), state.queue.requests, "requests wait for a busy backend") : null,
      pair("Prefix index", percent(state.index.bytes / state.index.cap_bytes), state.index.blocks, "blocks"),
    ),
  );
}

const share = (part, all) => (all ? part / all : null);

function pair(name, text, exact, unit = "tokens") {
  return el("div", { title: `${count(exact)} ${unit}` }, el("dt", {}, name), el("dd", { "data-exact": exact }, text));
}

export function renderWarnings({ state }) {
  const rows = (state.warnings ?? []).slice(0, 8).map((one) =>
    el("li", { "data-level": one.level }, el("b", {}, one.level === "bad" ? "Now" : "In doubt"), el("span", {}, sentence(one))),
  );
  const more = (state.warnings ?? []).length - rows.length;
  if (more > 0) rows.push(el("li", {}, el("span", {}, `and ${count(more)} more`)));
  const box = byId("warnings");
  const words = rows.map((row) => row.textContent).join("\n");
  // Said again only when it is something new: screen readers listen to it.
  if (box.dataset.words === words) return;
  box.dataset.words = words;
  box.replaceChildren(rows.length ? el("ul", { class: "card warnings" }, rows) : "");
}

// A sentence that begins with a backend's name keeps the name as it is.
function sentence({ sentence: text, backend }) {
  const isName = backend !== null && text.startsWith(backend);
  return `${isName ? text[0] : text[0].toUpperCase()}${text.slice(1)}.`;
}
