// What could be better: cache killers, the shadow policy, and the conductor's work.

import { byId, el } from "./dom.js";
import { clock, count, percent, plural, seconds, short } from "./format.js";
import { call } from "./server.js";

export const hasInsights = ({ state, conductor }) =>
  Boolean(state && ("cache_killers" in state || state.shadow || conductor));

export function renderInsights(store, refresh) {
  const { state, conductor } = store;
  const cards = [];
  if ("cache_killers" in state) cards.push(killers(state.cache_killers));
  if (state.shadow) cards.push(shadow(state.shadow));
  if (conductor) cards.push(conducting(conductor, refresh));
  const box = byId("insights");
  const key = JSON.stringify([state.cache_killers, state.shadow, conductor]);
  if (box.dataset.key === key) return;
  box.dataset.key = key;
  box.replaceChildren(...cards);
}

function killers(found) {
  const one = (killer) =>
    el(
      "li",
      {},
      el("p", {}, el("b", {}, killer.kind), ` ${killer.sentence}`),
      el("code", { class: "example" }, killer.example),
      el("p", { class: "quiet" }, `${plural(killer.requests, "request")}, at token ${count(killer.token_offset)}, costs ${short(killer.tokens_a_day)} tokens a day`),
    );
  return el(
    "div",
    { class: "card" },
    el("h2", {}, "Cache killers"),
    found.length ? el("ul", { class: "plain killers" }, found.map(one)) : el("p", { class: "quiet" }, "Nothing found that breaks prefixes early."),
  );
}

function shadow(other) {
  const pair = (name, value) => el("div", {}, el("dt", {}, name), el("dd", {}, value));
  // Sums over requests; without one there is no mean.
  const mean = (sums, side) => (other.requests && sums ? sums[side] / other.requests : null);
  const { expected_ttft_s: ttft, matched_tokens: matched } = other;
  return el(
    "div",
    { class: "card" },
    el("h2", {}, "Shadow policy ", el("small", {}, other.policy)),
    el("p", {}, `Decides beside the policy in force and acts on nothing. It agreed in ${percent(other.requests ? other.agreed / other.requests : null, 0)} of ${plural(other.requests, "request")}.`),
    el(
      "dl",
      { class: "sums" },
      pair("Mean expected first token, in force", seconds(mean(ttft, "first"))),
      pair("Mean expected first token, shadow", seconds(mean(ttft, "shadow"))),
      pair("Mean cached tokens, in force", short(mean(matched, "first"))),
      pair("Mean cached tokens, shadow", short(mean(matched, "shadow"))),
    ),
    other.note ? el("p", { class: "quiet" }, other.note) : null,
  );
}

function conducting(conductor, refresh) {
  const verb = conductor.stopped ? "start" : "stop";
  const state = !conductor.enabled ? "off" : conductor.stopped ? "stopped" : "at work";
  const press = async (event) => {
    event.target.disabled = true;
    await call(`/api/conductor/${verb}`, {}).catch(() => null);
    refresh();
  };
  const button = conductor.enabled
    ? el("button", { type: "button", class: conductor.stopped ? null : "danger", onclick: press }, conductor.stopped ? "Start again" : "Stop the conductor")
    : null;
  return el(
    "div",
    { class: "card flush" },
    el("div", { class: "head" }, el("h2", {}, "Conductor ", el("small", {}, state)), button),
    conductor.actions.length ? actions(conductor.actions) : el("p", { class: "blank" }, "It has done nothing yet."),
  );
}

function actions(all) {
  const heads = ["Time", "What", "Backend", "Tokens", "Why", "Came of it"];
  const row = (one) => {
    const cells = [clock(one.time), one.kind, one.backend, short(one.tokens), one.reason, one.outcome ?? "not known yet"];
    return el("tr", {}, cells.map((cell, at) => el("td", { "data-label": heads[at] }, cell)));
  };
  const newest = [...all].sort((a, b) => b.time - a.time).slice(0, 50);
  return el("table", { class: "cards" }, el("thead", {}, el("tr", {}, heads.map((name) => el("th", { scope: "col" }, name)))), el("tbody", {}, newest.map(row)));
}
