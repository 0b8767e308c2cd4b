// Colours: of token classes, of backends, and of a share. All are told apart by
// people with any colour vision (after Okabe & Ito, and Tol), and never stand alone.

export const CLASSES = [
  ["hit", "Hit", "served from a cache"],
  ["cold", "Cold", "never seen before"],
  ["elsewhere", "Elsewhere", "cached on another backend"],
  ["evicted", "Evicted", "was cached, is gone"],
  ["unpredicted", "Unpredicted", "promised, but computed"],
];

export const MAX_COLOURS = 8;

export const backendColour = (at) => `var(--lane-${at % MAX_COLOURS})`;

// Of a share from 0 to 1, for fleets with more backends than there are colours.
export const shareColour = (share) => `var(--share-${Math.min(5, Math.floor(share * 6))})`;

// A canvas cannot read variables: let a hidden element resolve them.
export function resolve(name) {
  const probe = document.createElement("i");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}
