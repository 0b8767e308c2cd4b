// The token classes over time, stacked.

import { byId, el, setText } from "./dom.js";
import { short } from "./format.js";
import { CLASSES, resolve } from "./palette.js";

// A sample is a time and the sums in the order of the ledger.
const AT = { hit: 1, cold: 2, evicted: 3, elsewhere: 4, unpredicted: 5 };

const HEIGHT = 246;

let plot = null;
let rates = null;

// Tokens a second between samples; a restart, where sums fall, is a gap.
export function ratesOf(samples) {
  const times = [];
  const columns = CLASSES.map(() => []);
  for (let at = 1; at < samples.length; at++) {
    const [before, after] = [samples[at - 1], samples[at]];
    const span = after[0] - before[0];
    const steps = CLASSES.map(([key]) => after[AT[key]] - before[AT[key]]);
    if (span <= 0 || steps.some((step) => step < 0)) continue;
    times.push(after[0]);
    steps.forEach((step, one) => columns[one].push(step / span));
  }
  return [times, ...columns];
}

// Each series on top of those before it; the highest is drawn first.
function stacked([times, ...columns]) {
  const sums = times.map(() => 0);
  const layers = columns.map((column) => column.map((value, at) => (sums[at] += value)));
  return [times, ...layers.reverse()];
}

function build(box) {
  const series = [...CLASSES].reverse().map(([key]) => ({
    fill: resolve(`--of-${key}`),
    stroke: resolve("--card"),
    width: 0.75,
    points: { show: false },
    paths: uPlot.paths.stepped({ align: -1 }),
  }));
  const time = uPlot.fmtDate("{HH}:{mm}:{ss}");
  const axis = { stroke: resolve("--quiet"), grid: { stroke: resolve("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  return new uPlot(
    {
      width: box.clientWidth,
      height: HEIGHT,
      padding: [12, 28, 0, 0],
      legend: { show: false },
      cursor: { y: false, points: { show: false }, drag: { x: false, y: false } },
      scales: { y: { range: (_, low, high) => [0, Math.max(1, high * 1.08)] } },
      axes: [{ ...axis, size: 30, space: 90, values: (_, ticks) => ticks.map((unix) => time(new Date(1000 * unix))) }, { ...axis, size: 52, values: (_, ticks) => ticks.map(short) }],
      series: [{}, ...series],
      hooks: { setCursor: [(one) => showLegend(one.cursor.idx)] },
    },
    stacked(rates),
    box,
  );
}

function showLegend(at) {
  const last = rates[0].length - 1;
  const place = at ?? last;
  CLASSES.forEach(([key], one) => {
    const value = place < 0 ? null : rates[one + 1][place];
    setText(byId(`legend-${key}`), value === null ? "–" : `${short(value)}/s`);
  });
}

function makeLegend() {
  byId("legend").replaceChildren(
    ...CLASSES.map(([key, name, meaning]) =>
      el("li", { title: meaning }, el("i", { class: `of-${key}` }), name, el("b", { id: `legend-${key}` }, "–")),
    ),
  );
}

export function renderChart({ history }) {
  const box = byId("chart");
  rates = ratesOf(history);
  if (!byId("legend").childElementCount) makeLegend();
  const has = rates[0].length > 1;
  box.classList.toggle("empty", !has);
  box.dataset.note = has ? "" : "Drawn once there are a few samples: one every 5 s.";
  if (!has) return redraw();
  plot ??= build(box);
  if (plot.width !== box.clientWidth) plot.setSize({ width: box.clientWidth, height: HEIGHT });
  plot.setData(stacked(rates));
  showLegend(plot.cursor.idx);
}

// Colours are drawn into the canvas, so others need another one.
export function redraw() {
  plot?.destroy();
  plot = null;
}
