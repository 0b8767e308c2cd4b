// The runs as branches: lanes for the backends that hold them, faded when cold.

import { svg } from "./dom.js";
import { age, count, plural, short } from "./format.js";
import { layOut, link } from "./layout.js";
import { MAX_COLOURS, backendColour, shareColour } from "./palette.js";

const GHOST_MS = 8000;

const has = (bits, at) => ((BigInt(`0x${bits}`) >> BigInt(at)) & 1n) === 1n;

// The backends that hold a run, each with the share of it that they hold.
export function holdersOf(node, names) {
  const held = names.map((name, at) => ({ at, name, share: has(node.held, at) ? 1 : 0 }));
  for (const [at, tokens] of node.part ?? []) held[at].share = tokens / node.tokens;
  return held.filter((one) => one.share > 0);
}

export const lower = (node, tier, names) =>
  node[tier] ? names.filter((_, at) => has(node[tier], at)) : [];

export class Tree {
  constructor(box, onSelect) {
    this.box = box;
    this.onSelect = onSelect;
    this.serial = new Map();
    this.before = new Map();
    this.ghosts = new Map();
    this.selected = null;
    this.highlighted = null;
    this.focus = null;
    box.addEventListener("keydown", (event) => this.key(event));
  }

  draw(view, retained) {
    const names = view.backends;
    this.names = names;
    this.noteEvictions(view);
    const lanes = (node) => (names.length > MAX_COLOURS ? 1 : node.num_held);
    this.retained = retained;
    const laid = layOut(view.root, lanes, (id) => this.orderOf(id), (node) => this.text(node));
    this.places = laid.places;
    const width = Math.max(laid.width, this.box.clientWidth - 4);
    const drawing = svg("svg", {
      width,
      height: laid.height,
      viewBox: `0 0 ${width} ${laid.height}`,
      role: "tree",
      "aria-label": `${plural(view.num_shown, "branch").replace("branchs", "branches")} of the prefix tree`,
    });
    const [root, ...branches] = laid.places;
    drawing.append(svg("g", { class: "links" }, branches.map((one) => svg("path", { d: link(one.parent, one) }))));
    drawing.append(...branches.map((one) => this.branch(one)));
    drawing.append(svg("circle", { class: "root", cx: root.x, cy: root.y, r: 5 }));
    const hadFocus = this.box.contains(document.activeElement);
    const { scrollLeft, scrollTop } = this.box;
    this.box.replaceChildren(drawing);
    this.box.scrollTo(scrollLeft, scrollTop);
    this.setFocus(this.focus, hadFocus);
  }

  orderOf(id) {
    if (!this.serial.has(id)) this.serial.set(id, this.serial.size);
    return this.serial.get(id);
  }

  // What a backend held at the last look and holds no more is shown for a while.
  noteEvictions(view) {
    const now = performance.now();
    const seen = new Map();
    const visit = (node, cut) => {
      const held = new Map(holdersOf(node, view.backends).map((one) => [one.name, one.share * node.tokens]));
      const before = this.before.get(node.id) ?? cut;
      const lost = lostBy(before, held, node);
      if (lost.length) this.ghosts.set(node.id, { until: now + GHOST_MS, names: lost });
      seen.set(node.id, { held, hash: node.hash, tokens: node.tokens });
      for (const child of node.children) visit(child, before && remainder(before, node, child));
    };
    visit(view.root, null);
    this.before = seen;
    for (const [id, ghost] of this.ghosts) if (ghost.until < now) this.ghosts.delete(id);
    for (const id of this.serial.keys()) if (this.serial.size > 5000 && !seen.has(id)) this.serial.delete(id);
  }

  branch(one) {
    const { node } = one;
    const ghost = this.ghosts.get(node.id);
    const isRetained = this.isRetained(node);
    const group = svg("g", {
      class: `branch${ghost ? " evicted" : ""}${isRetained ? " retained" : ""}${this.selected === node.id ? " selected" : ""}`,
      role: "treeitem",
      tabindex: -1,
      "aria-level": one.level,
      "aria-selected": this.selected === node.id,
      "aria-label": this.words(node, ghost, isRetained),
      "data-id": node.id,
      onclick: () => this.select(node.id, false),
    });
    const heat = node.num_held ? warmth(node.last_used_s) : 0.14;
    group.append(
      svg("rect", { class: "hit-area", x: one.x - 8, y: one.y - Math.max(12, one.h / 2), width: one.w + 96, height: Math.max(24, one.h) }),
      svg("rect", { class: "run", x: one.x, y: one.y - one.h / 2, width: one.w, height: one.h, rx: Math.min(5, one.h / 2) }),
      svg("g", { opacity: heat }, this.lanes(one)),
    );
    if (ghost) group.append(svg("rect", { class: "ghost", x: one.x - 2, y: one.y - one.h / 2 - 2, width: one.w + 4, height: one.h + 4, rx: 5 }));
    group.append(this.label(one));
    return group;
  }

  lanes(one) {
    const { node } = one;
    if (this.highlighted !== null) return this.highlight(one);
    const held = holdersOf(node, this.names);
    if (this.names.length > MAX_COLOURS) {
      const share = node.num_held / this.names.length;
      return node.num_held ? [lane(one, 0, 1, 1, shareColour(share))] : [];
    }
    return held.map((each, at) => lane(one, at, held.length, each.share, backendColour(each.at)));
  }

  highlight(one) {
    const at = this.highlighted;
    const mine = holdersOf(one.node, this.names).find((each) => each.at === at);
    return mine ? [lane(one, 0, 1, mine.share, backendColour(this.names.length > MAX_COLOURS ? 0 : at))] : [];
  }

  isRetained(node) {
    return [node.hash, ...(node.ends ?? [])].some((hash) => this.retained.has(hash));
  }

  text(node) {
    const words = [`${short(node.tokens)} tok`, `${short(node.hits)}×`];
    if (node.omitted) words.push(`+${short(node.omitted)} more`);
    if (this.isRetained(node)) words.push("retained");
    if (this.ghosts.has(node.id)) words.push("evicted");
    return words.join(" · ");
  }

  label(one) {
    const [x, y] = one.children.length ? [one.x + 1, one.y - one.h / 2 - 4] : [one.x + one.w + 7, one.y + 4];
    return svg("text", { x, y }, this.text(one.node));
  }

  words(node, ghost, isRetained) {
    const held = holdersOf(node, this.names).map((one) => one.name);
    const who = held.length > 4 ? `${held.length} backends` : held.join(", ") || "no backend";
    return (
      `${count(node.tokens)} tokens, held by ${who}, ${plural(node.hits, "prompt")}, used ${age(node.last_used_s)}` +
      `${isRetained ? ", retained" : ""}${ghost ? `, evicted by ${ghost.names.join(", ")}` : ""}`
    );
  }

  select(id, moves = true) {
    this.selected = id;
    this.focus = id;
    for (const item of this.items()) {
      item.classList.toggle("selected", item.dataset.id === id);
      item.setAttribute("aria-selected", item.dataset.id === id);
    }
    this.setFocus(id, moves);
    this.onSelect();
  }

  items() {
    return [...this.box.querySelectorAll("[role=treeitem]")];
  }

  setFocus(id, really) {
    const items = this.items();
    const item = items.find((one) => one.dataset.id === id) ?? items[0];
    if (!item) return;
    for (const one of items) one.setAttribute("tabindex", one === item ? 0 : -1);
    this.focus = item.dataset.id;
    if (really) item.focus({ preventScroll: this.selected !== id });
  }

  place(id) {
    return this.places?.find((one) => one.node.id === id);
  }

  key(event) {
    const here = this.place(document.activeElement?.dataset?.id);
    if (!here) return;
    const visible = this.places.slice(1);
    const at = visible.indexOf(here);
    const to = {
      ArrowUp: visible[at - 1],
      ArrowDown: visible[at + 1],
      ArrowLeft: here.parent?.parent ? here.parent : null,
      ArrowRight: here.children[0],
      Home: visible[0],
      End: visible.at(-1),
    }[event.key];
    if (event.key === "Enter" || event.key === " ") this.select(here.node.id);
    else if (event.key === "Escape") this.select(null);
    else if (to) this.setFocus(to.node.id, true);
    else return;
    event.preventDefault();
  }
}

// Who had more of a run than now. A run that is shorter now has lost its end, or has
// only got a fork: then what it had goes on in a child.
function lostBy(before, held, node) {
  if (!before) return [];
  const isFork = node.children.length + node.omitted > 0;
  const reach = isFork ? Math.min(before.tokens, node.tokens) : before.tokens;
  return [...before.held].filter(([name, tokens]) => (held.get(name) ?? 0) < Math.min(tokens, reach) - 0.5).map(([name]) => name);
}

// What is known from before of the child that was the end of its parent.
function remainder(before, node, child) {
  if (child.hash !== before.hash || node.tokens >= before.tokens) return null;
  const held = new Map([...before.held].map(([name, tokens]) => [name, Math.max(0, tokens - node.tokens)]));
  return { held, hash: before.hash, tokens: before.tokens - node.tokens };
}

// Used in the last seconds: full; each tenfold of the age fades it.
export const warmth = (age_s) => Math.max(0.25, 1 - 0.25 * Math.max(0, Math.log10(Math.max(1, age_s ?? 1e9) / 5)));

function lane(one, at, of, share, colour) {
  const height = one.h / of;
  const top = one.y - one.h / 2 + at * height;
  return svg("rect", {
    x: one.x,
    y: top + (of > 1 ? 0.4 : 0),
    width: Math.max(3, one.w * share),
    height: Math.max(1.5, height - (of > 1 ? 0.8 : 0)),
    rx: Math.min(4, height / 2),
    style: { fill: colour },
  });
}
