// KV control: only what the engine can do, never without asking, always with a result.

import { el } from "./dom.js";
import { plural } from "./format.js";
import { call } from "./server.js";

const MAX_RESULT = 4000;

const VERBS = {
  snapshot: { name: "Snapshot", what: "lists the blocks that are resident", needs: [], harmless: true },
  flush: { name: "Flush", what: "drops every block that no request uses", needs: [] },
  evict: { name: "Evict", what: "drops the blocks of this prompt", needs: ["prompt"] },
  retain: { name: "Retain", what: "keeps the blocks of this prompt for a time", needs: ["prompt", "ttl_s"] },
  release: { name: "Release", what: "lets retained blocks of this prompt go", needs: ["prompt"] },
  demote: { name: "Demote", what: "makes the blocks of this prompt the next to go", needs: ["prompt"] },
  offload: { name: "Offload", what: "moves the blocks of this prompt to host memory", needs: ["prompt"] },
  restore: { name: "Restore", what: "brings the blocks of this prompt back", needs: ["prompt"] },
  policy: { name: "Eviction policy", what: "puts this policy in force; without a name, tells which one is", needs: ["name"] },
  budget: { name: "Token budget", what: "tells the budget inside a sequence", needs: [], harmless: true },
};

const describe = (verb) => VERBS[verb] ?? { name: verb, what: "does what its name says", needs: [] };

const FIELDS = {
  prompt: () => el("label", {}, "Text of the prompt", el("textarea", { name: "prompt", rows: 3, required: true })),
  ttl_s: () => el("label", {}, "For seconds", el("input", { name: "ttl_s", type: "number", min: 1, max: 86400, value: 600, required: true })),
  name: () => el("label", {}, "Policy", el("input", { name: "name", placeholder: "lru", maxlength: 256 })),
};

export function controlOf(backend) {
  const able = Object.keys(backend.kv).filter((verb) => backend.kv[verb] === true);
  const unable = Object.keys(backend.kv).filter((verb) => backend.kv[verb] !== true);
  const form = el("div", { class: "control" });
  const buttons = able.map((verb) =>
    el("button", { type: "button", "data-verb": verb, onclick: () => ask(form, backend.name, verb) }, describe(verb).name),
  );
  return [
    buttons.length ? el("div", { class: "row" }, buttons) : el("p", {}, "Its cache cannot be asked for anything:"),
    form,
    unable.length ? el("details", { open: !buttons.length }, el("summary", {}, `Why not ${plural(unable.length, buttons.length ? "other verb" : "verb")}`), reasons(backend, unable)) : null,
  ];
}

function reasons(backend, verbs) {
  const grouped = Map.groupBy ? Map.groupBy(verbs, (verb) => backend.kv[verb]) : new Map(verbs.map((verb) => [backend.kv[verb], [verb]]));
  return el("ul", {}, [...grouped].map(([why, some]) => el("li", {}, el("b", {}, some.map((verb) => describe(verb).name).join(", ")), `: ${why ?? "not known"}`)));
}

function ask(box, backend, verb) {
  const { name, what, needs, harmless } = describe(verb);
  const form = el(
    "form",
    { onsubmit: (event) => (event.preventDefault(), run(box, form, backend, verb)) },
    el("p", {}, el("b", {}, name), ` on ${backend} ${what}.`),
    needs.map((field) => FIELDS[field]()),
    el(
      "div",
      { class: "row" },
      el("button", { type: "submit", class: harmless ? "primary" : "danger" }, harmless ? `Run ${name.toLowerCase()}` : `Yes, ${name.toLowerCase()}`),
      el("button", { type: "button", onclick: () => box.replaceChildren() }, "Cancel"),
    ),
  );
  box.replaceChildren(form);
  form.querySelector("textarea, input, button").focus();
}

async function run(box, form, backend, verb) {
  const body = { backend };
  for (const [key, value] of new FormData(form)) if (value !== "") body[key] = key === "ttl_s" ? Number(value) : value;
  const result = el("output", { class: "result", role: "status" }, "Asked, waiting for the engine …");
  box.replaceChildren(result);
  try {
    const { results } = await call(`/api/kv/${verb}`, body);
    const answer = results[backend];
    result.dataset.state = answer?.error ? "bad" : "good";
    result.replaceChildren(answer?.error ? `${answer.error.code}: ${answer.error.message}` : told(answer));
  } catch (error) {
    result.dataset.state = "bad";
    result.replaceChildren(error.message);
  }
}

function told(answer) {
  const text = JSON.stringify(answer, null, 1);
  const cut = text.length > MAX_RESULT ? `${text.slice(0, MAX_RESULT)}\n… and ${plural(text.length - MAX_RESULT, "character")} more` : text;
  return el("pre", { tabindex: 0 }, cut);
}
