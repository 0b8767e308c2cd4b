// Where the runs of the tree are drawn: numbers alone, no elements.

const LEFT = 20;
const TOP = 16;
const GAP = 38;
const PITCH = 30;
const LABEL = 190;
const CHARACTER = 6.4;

export const widthOf = (tokens) => 30 + 17 * Math.log2(1 + tokens / 48);

// Prompts that passed make a branch thick; so does each lane that needs room.
export function thicknessOf(hits, lanes) {
  return Math.max(4, 3 * Math.min(lanes, 8), Math.min(24, 3 + 2.4 * Math.log2(1 + hits)));
}

// Return every run with its place, parents before children. Runs keep the order in
// which they were first seen, so that nothing jumps while one looks.
export function layOut(root, lanesOf, orderOf, labelOf) {
  const places = [];
  let bottom = TOP;
  const place = (node, parent, level) => {
    const isRoot = parent === null;
    const one = {
      node,
      parent,
      level,
      x: isRoot ? LEFT : parent.x + Math.max(parent.w + GAP, parent.room),
      room: isRoot ? 0 : CHARACTER * labelOf(node).length + 8,
      w: isRoot ? 0 : widthOf(node.tokens),
      h: isRoot ? 10 : thicknessOf(node.hits, lanesOf(node)),
      children: [],
    };
    places.push(one);
    const children = [...node.children].sort((a, b) => orderOf(a.id) - orderOf(b.id));
    one.children = children.map((child) => place(child, one, level + 1));
    if (one.children.length) one.y = (one.children[0].y + one.children.at(-1).y) / 2;
    else {
      one.y = bottom + Math.max(PITCH, one.h + 14) / 2;
      bottom += Math.max(PITCH, one.h + 14);
    }
    return one;
  };
  place(root, null, 0);
  const right = Math.max(...places.map((one) => one.x + one.w));
  return { places, width: right + LABEL, height: bottom + TOP };
}

// A band from the end of one run to the begin of the next, as thick as that one.
export function link(from, to) {
  const [x0, x1] = [from.x + from.w, to.x];
  const middle = (x0 + x1) / 2;
  const half = to.h / 2;
  const near = Math.min(half, Math.max(2, from.h / 2));
  const y0 = from.y;
  return (
    `M${x0} ${y0 - near}C${middle} ${y0 - near} ${middle} ${to.y - half} ${x1} ${to.y - half}` +
    `V${to.y + half}C${middle} ${to.y + half} ${middle} ${y0 + near} ${x0} ${y0 + near}Z`
  );
}
