// One decision in full: what each candidate would have cost, and how it ended.

import { COSTS, classBar, costBar } from "./bars.js";
import { el } from "./dom.js";
import { clock, count, percent, plural, seconds } from "./format.js";
import { CLASSES } from "./palette.js";
import { call } from "./server.js";

const MAX_CANDIDATES = 12;

export async function showDecision(id, open) {
  const record = await call(`/api/decisions/${encodeURIComponent(id)}`);
  open(`Request ${id}`, [
    el("p", { class: "lead" }, sentence(record)),
    facts(record),
    el("h3", {}, "Candidates"),
    candidates(record),
    el("h3", {}, "Outcome"),
    ...outcome(record),
    ...shadow(record),
  ]);
}

const matched = (one) => one.matched_tokens.gpu + one.matched_tokens.host + one.matched_tokens.disk;

export function sentence(record) {
  if (record.chosen === null) return "Not sent: the queue refused it, or its client left.";
  const chosen = record.candidates.find((one) => one.backend === record.chosen);
  const others = record.candidates.filter((one) => one !== chosen && one.cost.total_s !== null);
  const next = others.sort((a, b) => a.cost.total_s - b.cost.total_s)[0];
  const had = chosen ? matched(chosen) : 0;
  const parts = [`Sent to ${record.chosen}, where ${count(had)} of ${plural(record.prompt_tokens, "prompt token")} were cached`];
  if (chosen?.cost.total_s != null && next) {
    const gap = next.cost.total_s - chosen.cost.total_s;
    parts.push(`the next best, ${next.backend}, had ${count(matched(next))} and would have cost ${seconds(Math.abs(gap))} ${gap < 0 ? "less" : "more"}`);
  }
  return `${parts.join("; ")}.`;
}

const isPriced = (record) => record.candidates.some((one) => one.cost.total_s !== null);

function facts(record) {
  const fact = (name, value) => el("div", {}, el("dt", {}, name), el("dd", {}, value));
  return el(
    "dl",
    { class: "sums" },
    fact("Time", clock(record.time)),
    fact("Model", record.model ?? "–"),
    fact("Policy", record.policy),
    fact("Reason", record.reason),
    fact("Prompt", `${count(record.prompt_tokens)} (${record.grade})`),
    fact("Attempts", count(record.attempts)),
  );
}

function candidates(record) {
  const priced = record.candidates.filter((one) => one.cost.total_s !== null);
  const most = Math.max(0, ...priced.map((one) => one.cost.total_s));
  const order = (one) => one.cost.total_s ?? Infinity;
  const sorted = [...record.candidates].sort((a, b) => (b.backend === record.chosen) - (a.backend === record.chosen) || order(a) - order(b));
  const body = el("tbody", {}, sorted.slice(0, MAX_CANDIDATES).map((one) => candidate(one, record, most)));
  const rest = sorted.slice(MAX_CANDIDATES);
  const more = rest.length
    ? el("button", { type: "button", onclick: (event) => (body.append(...rest.map((one) => candidate(one, record, most))), event.target.remove()) }, `Show ${plural(rest.length, "more")}`.replace("mores", "more"))
    : null;
  const legend = el("ul", { class: "legend" }, COSTS.map(([key, name]) => el("li", {}, el("i", { class: `of-${key}` }), name)));
  const heads = ["Backend", "View", "Cached there", "Cost", "Total"].map((name) => el("th", { scope: "col" }, name));
  return el("div", {}, priced.length ? legend : null, el("table", { class: "cards" }, el("thead", {}, el("tr", {}, heads)), body), more);
}

function candidate(one, record, most) {
  const { gpu, host, disk } = one.matched_tokens;
  const below = [host ? `${count(host)} on host` : "", disk ? `${count(disk)} on disk` : ""].filter(Boolean);
  const isChosen = one.backend === record.chosen;
  const cell = (name, ...content) => el("td", { "data-label": name }, ...content);
  return el(
    "tr",
    { class: isChosen ? "chosen" : null, "aria-current": isChosen ? "true" : null },
    cell("Backend", el("b", {}, one.backend), isChosen ? el("small", {}, "chosen") : one.state === "up" ? null : el("small", {}, one.state)),
    cell("View", one.view),
    cell("Cached there", count(gpu), below.length ? el("small", {}, below.join(", ")) : null),
    cell("Cost", one.cost.total_s === null ? el("small", {}, one.state !== "up" || isPriced(record) ? "not a candidate" : "not priced") : costBar(one.cost, most)),
    cell("Total", seconds(one.cost.total_s)),
  );
}

function outcome({ outcome, prompt_tokens }) {
  if (!outcome) return [el("p", { class: "quiet" }, "Still under way.")];
  const fact = (name, value) => el("div", {}, el("dt", {}, name), el("dd", {}, value));
  const rows = [
    el(
      "dl",
      { class: "sums" },
      fact("Status", outcome.error ? `${outcome.status} ${outcome.error}` : count(outcome.status)),
      fact("Foretold", `${count(outcome.predicted_tokens)} cached`),
      fact("Engine reported", outcome.cached_tokens === null ? "nothing" : `${count(outcome.cached_tokens)} cached`),
      fact("First token", seconds(outcome.ttft_s)),
      fact("Whole answer", seconds(outcome.duration_s)),
      fact("Tokens out", count(outcome.output_tokens)),
    ),
  ];
  if (outcome.difference) rows.push(el("p", {}, DIFFERENCES[outcome.difference] ?? outcome.difference));
  if (outcome.tokens) rows.push(classBar(outcome.tokens), classList(outcome.tokens, prompt_tokens));
  return rows;
}

const DIFFERENCES = {
  evicted: "The engine had less than foretold: blocks were evicted after the decision.",
  not_announced: "The engine had less than foretold: another request had only begun to compute them.",
  came_later: "The engine had more than foretold: blocks came after the decision.",
  unexplained: "The engine had less than it had announced, and nothing explains it. That counts against its view.",
};

function classList(tokens, total) {
  const used = CLASSES.filter(([key]) => tokens[key] > 0);
  return el(
    "ul",
    { class: "legend" },
    used.map(([key, name, meaning]) =>
      el("li", { title: meaning }, el("i", { class: `of-${key}` }), `${name} `, el("b", {}, `${count(tokens[key])} (${percent(tokens[key] / total, 0)})`)),
    ),
  );
}

function shadow({ shadow: other, chosen }) {
  if (!other) return [];
  const what = other.chosen === chosen ? "the same" : other.chosen;
  return [el("h3", {}, "Shadow policy"), el("p", {}, `${other.policy} would have chosen ${what}, with ${count(other.matched_tokens)} tokens cached there.`)];
}
