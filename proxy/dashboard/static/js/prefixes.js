// The radix view: the tree, its legend, and the branch that is looked at.

import { byId, el, setText, svg } from "./dom.js";
import { age, count, plural, short } from "./format.js";
import { MAX_COLOURS, backendColour, shareColour } from "./palette.js";
import { walk } from "./store.js";
import { Tree, holdersOf, lower } from "./tree.js";

const MAX_NAMED = 12;
const RETAINED_S = 600;

let tree = null;
let latest = null;

export function renderPrefixes(store) {
  latest = store;
  const { view } = store;
  if (!view) {
    byId("tree").replaceChildren(el("p", { class: "blank" }, "Looking at the caches …"));
    return;
  }
  tree ??= new Tree(byId("tree"), () => renderBranch(latest));
  const held = view.num_blocks;
  setText(byId("tree-count"), `${count(held)} blocks in ${plural(view.num_runs, "run")}; the ${count(view.num_shown)} most used are shown`);
  renderLegend(view);
  if (!view.num_shown) byId("tree").replaceChildren(el("p", { class: "blank" }, "Nothing is cached yet, as far as known. Send a prompt, and it appears here."));
  else tree.draw(view, retainedOf(store));
  renderBranch(store);
}

function retainedOf({ conductor }) {
  const held = new Set();
  const since = Date.now() / 1000 - RETAINED_S;
  for (const one of conductor?.actions ?? []) if (one.kind === "retain" && one.time > since) held.add(one.hash);
  return held;
}

function renderLegend(view) {
  const box = byId("tree-legend");
  const names = view.backends;
  const key = names.join("\n");
  if (box.dataset.key === key) return;
  box.dataset.key = key;
  tree.highlighted = null;
  box.replaceChildren(...(names.length > MAX_COLOURS ? manyLegend(names) : names.map(chip)));
}

function chip(name, at) {
  return el(
    "button",
    { type: "button", class: "chip", "aria-pressed": "false", onclick: (event) => highlight(at, event.currentTarget) },
    el("i", { style: { background: backendColour(at) } }),
    name,
  );
}

function manyLegend(names) {
  const scale = [0.05, 0.25, 0.4, 0.6, 0.75, 0.95].map((share) => el("i", { style: { background: shareColour(share) } }));
  const choice = el(
    "select",
    { "aria-label": "Highlight a backend", onchange: (event) => highlight(Number(event.target.value)) },
    el("option", { value: -1 }, "all backends"),
    names.map((name, at) => el("option", { value: at }, name)),
  );
  return [el("span", { class: "scale" }, "held by few ", scale, " by all"), choice];
}

function highlight(at, button = null) {
  const same = tree.highlighted === at || at < 0;
  tree.highlighted = same ? null : at;
  for (const one of byId("tree-legend").querySelectorAll("button")) one.setAttribute("aria-pressed", one === button && !same);
  renderPrefixes(latest);
}

function renderBranch(store) {
  const box = byId("branch");
  const node = tree?.selected && [...walk(store.view.root)].find((one) => one.id === tree.selected);
  if (!node) {
    box.replaceChildren(
      el("h3", {}, "How to read it"),
      el("p", {}, "Each branch is a stretch of tokens that prompts share, from left to right. The more prompts passed it, the thicker it is. Its colours are the backends that hold it; a lane that ends early is held in part."),
      el("p", {}, "Branches that were not used for a while fade. A dashed outline marks what was just evicted."),
      el("p", { class: "quiet" }, "Choose a branch, by mouse or with the arrow keys, for its figures."),
    );
    return;
  }
  box.replaceChildren(...branchFacts(store, node));
}

function branchFacts(store, node) {
  const names = store.view.backends;
  const held = holdersOf(node, names);
  const tiers = ["host", "disk"].flatMap((tier) => lower(node, tier, names).map((name) => `${name} (${tier})`));
  const fact = (name, ...value) => [el("dt", {}, name), el("dd", {}, ...value)];
  return [
    el("h3", {}, `${count(node.tokens)} tokens`),
    el(
      "dl",
      { class: "facts" },
      fact("Prefix up to its end", `${count(node.start + node.tokens)} tokens`),
      fact("Prompts that passed", count(node.hits)),
      fact("Last used", age(node.last_used_s)),
      fact("Held by", held.length ? el("ul", { class: "plain" }, held.slice(0, MAX_NAMED).map((one) => holder(one, node, names))) : "no backend any more", held.length > MAX_NAMED ? `and ${held.length - MAX_NAMED} more` : ""),
      tiers.length ? fact("In lower tiers", tiers.join(", ")) : [],
      fact("Branches behind", count(node.children.length + node.omitted)),
      fact("Block hash at its end", el("code", {}, node.hash)),
    ),
    el("h4", {}, "Prompts since you look"),
    spark(store.hits.get(node.id) ?? []),
    el("p", { class: "quiet" }, "Its text cannot be shown: prompts are hashed, never kept."),
  ];
}

function holder(one, node, names) {
  const colour = names.length > MAX_COLOURS ? shareColour(0.9) : backendColour(one.at);
  const part = one.share < 1 ? ` (first ${count(one.share * node.tokens)})` : "";
  return el("li", {}, el("i", { style: { background: colour } }), one.name + part);
}

function spark(line) {
  const base = line[0] ?? 0;
  const most = Math.max(1, (line.at(-1) ?? 0) - base);
  const step = 220 / Math.max(1, line.length - 1);
  const points = line.map((hits, at) => `${(at * step).toFixed(1)},${(38 - (34 * (hits - base)) / most).toFixed(1)}`);
  const grown = (line.at(-1) ?? 0) - base;
  return el(
    "figure",
    { class: "spark" },
    svg("svg", { viewBox: "0 0 220 40", role: "img", "aria-label": `${grown} more prompts` }, svg("polyline", { points: points.join(" ") })),
    el("figcaption", {}, `+${short(grown)}`),
  );
}
