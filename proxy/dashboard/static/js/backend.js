// One backend in full, with what its cache can be asked to do.

import { controlOf } from "./control.js";
import { el } from "./dom.js";
import { count, percent, seconds, short } from "./format.js";

export function showBackend(name, store, open) {
  const one = store.state?.backends.find((each) => each.name === name);
  if (!one) throw new Error(`no backend ${name} is configured`);
  open(`Backend ${name}`, [facts(one), el("h3", {}, "KV control"), ...controlOf(one)]);
}

function facts(one) {
  const { view, load, learned } = one;
  const fact = (label, value, isWide = false) => el("div", { class: isWide ? "wide" : null }, el("dt", {}, label), el("dd", {}, value));
  return el(
    "dl",
    { class: "sums" },
    fact("Address", one.url, true),
    fact("Engine", one.engine),
    fact("State", one.state),
    fact("Requests", `${count(load.requests)}, ${count(load.decodes)} decoding`),
    fact("Prefill queue", `${count(load.prefill_tokens)} tokens`),
    fact("Learned prefill", learned.prefill_tokens_per_s === null ? "not yet" : `${short(learned.prefill_tokens_per_s)} tokens/s`),
    fact("Inter-token latency", learned.itl_s === null ? "not yet" : seconds(learned.itl_s)),
    fact("KV in use", percent(one.kv_usage, 0)),
    fact("Capacity", one.capacity_tokens ? `${count(one.capacity_tokens)} tokens` : "unknown"),
    fact("Block size", one.block_size ? `${one.block_size} tokens` : "unknown"),
    fact("View", one.state === "down" ? `${view.source}, not heard now` : view.status ? `${view.source}, ${view.status.replace("_", " ")}` : view.source),
    fact("Blocks known", one.state === "down" ? "–" : count(view.blocks)),
    fact("Behind by", seconds(view.lag_s)),
    fact("Gaps, replays", `${count(view.gaps)}, ${count(view.replays)}`),
    fact("Incarnation", count(view.incarnation)),
  );
}
