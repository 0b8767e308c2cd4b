// What the page knows, bounded however long it stays open.

const MAX_DECISIONS = 300;
const MAX_SAMPLES = 720;
const MAX_HISTORY = 60;

export class Store {
  constructor(onChange) {
    this.onChange = onChange;
    this.state = null;
    this.history = [];
    this.decisions = new Map();
    this.view = null;
    this.hits = new Map();
    this.conductor = null;
  }

  take(event, data) {
    this[`${event}Event`]?.(data);
  }

  // Events of the stream, by their names.

  stateEvent(data) {
    this.state = data;
    this.onChange("state");
  }

  changeEvent(data) {
    if (!this.state) return;
    const { backends = [], order, dropped = [], ...fields } = data;
    Object.assign(this.state, fields);
    for (const key of dropped) delete this.state[key];
    this.state.backends = merged(this.state.backends, backends, order);
    this.onChange("state");
  }

  historyEvent(data) {
    this.history = data;
    this.onChange("history");
  }

  sampleEvent(data) {
    this.history.push(data);
    if (this.history.length > MAX_SAMPLES) this.history.shift();
    this.onChange("history");
  }

  decisionsEvent(data) {
    for (const one of data) this.decisions.set(one.request_id, one);
    for (const id of this.decisions.keys()) {
      if (this.decisions.size <= MAX_DECISIONS) break;
      this.decisions.delete(id);
    }
    this.onChange("decisions");
  }

  viewEvent(data) {
    this.view = data;
    const before = this.hits;
    this.hits = new Map();
    for (const node of walk(data.root)) {
      const line = before.get(node.id) ?? [];
      line.push(node.hits);
      if (line.length > MAX_HISTORY) line.shift();
      this.hits.set(node.id, line);
    }
    this.onChange("view");
  }
}

export function* walk(node) {
  yield node;
  for (const child of node.children) yield* walk(child);
}

function merged(before, changed, order) {
  const all = new Map(before.map((one) => [one.name, one]));
  for (const one of changed) all.set(one.name, { ...all.get(one.name), ...one });
  return order ? order.map((name) => all.get(name)) : [...all.values()];
}
