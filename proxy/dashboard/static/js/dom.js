// Elements from data. Text goes in as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style")
      for (const [key, one] of Object.entries(value)) node.style.setProperty(key, one);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((one) => one !== null && one !== undefined));
  return node;
}

export const el = (tag, props = {}, ...children) =>
  fill(document.createElement(tag), props, children);

export const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

export const byId = (id) => document.getElementById(id);

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttribute(node, name, value) {
  if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

// Let arrow keys move the focus among *items*, of which one can be tabbed to.
export function rove(event, items, keys = ["ArrowUp", "ArrowDown"]) {
  const at = items.indexOf(document.activeElement);
  const to = {
    [keys[0]]: at - 1,
    [keys[1]]: at + 1,
    Home: 0,
    End: items.length - 1,
  }[event.key];
  if (to === undefined || at < 0 || to < 0 || to >= items.length) return false;
  event.preventDefault();
  for (const item of items) item.tabIndex = -1;
  items[to].tabIndex = 0;
  items[to].focus();
  return true;
}
