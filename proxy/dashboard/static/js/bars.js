// Small bars: shares of a whole, with their numbers in words for those who cannot see.

import { el } from "./dom.js";
import { count, percent, seconds } from "./format.js";
import { CLASSES } from "./palette.js";

// One bar of token classes; its text names every class that is not empty.
export function classBar(tokens, total = null) {
  const sum = CLASSES.reduce((all, [key]) => all + tokens[key], 0);
  const whole = total ?? sum;
  const used = CLASSES.filter(([key]) => tokens[key] > 0);
  const words = used.map(([key, name]) => `${name} ${count(tokens[key])}`).join(", ");
  return el(
    "span",
    { class: "stack", role: "img", "aria-label": words || "no tokens", title: words },
    used.map(([key]) =>
      el("i", {
        class: `of-${key}`,
        style: { width: `${whole ? (100 * tokens[key]) / whole : 0}%` },
      }),
    ),
  );
}

export const COSTS = [
  ["wait_s", "Wait"],
  ["miss_s", "Miss"],
  ["decode_s", "Decode"],
];

// One candidate's cost on a scale that all candidates of a decision share.
export function costBar(cost, most) {
  const words = COSTS.map(([key, name]) => `${name} ${seconds(cost[key])}`).join(", ");
  return el(
    "span",
    { class: "stack", role: "img", "aria-label": words, title: words },
    COSTS.filter(([key]) => cost[key] > 0).map(([key]) =>
      el("i", { class: `of-${key}`, style: { width: `${most ? (100 * cost[key]) / most : 0}%` } }),
    ),
  );
}

export function meter(share, label, text = null) {
  const known = share !== null && share !== undefined;
  const width = known ? Math.min(100, 100 * share) : 0;
  return el(
    "span",
    { class: "meter", title: label },
    el("span", { class: "track" }, el("i", { style: { width: `${width}%` } })),
    el("b", {}, text ?? (known ? percent(share, 0) : "–")),
  );
}
