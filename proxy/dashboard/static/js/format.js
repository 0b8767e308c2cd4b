// Numbers for people.

const whole = new Intl.NumberFormat("en");
const DASH = "–";

export const count = (value) => (value === null || value === undefined ? DASH : whole.format(Math.round(value)));

export function short(value) {
  if (value === null || value === undefined) return DASH;
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]])
    if (Math.abs(value) >= size) {
      const scaled = value / (unit === "k" ? 1e3 : size);
      return `${scaled.toFixed(scaled < 100 ? 1 : 0)}${unit}`;
    }
  return whole.format(Math.round(value));
}

export const percent = (share, digits = 1) =>
  share === null || share === undefined ? DASH : `${(100 * share).toFixed(digits)} %`;

export function seconds(value) {
  if (value === null || value === undefined) return DASH;
  if (value >= 100) return `${value.toFixed(0)} s`;
  if (value >= 1) return `${value.toFixed(2)} s`;
  const ms = 1000 * value;
  if (ms === 0) return "0 ms";
  if (ms >= 0.1) return `${ms.toFixed(ms < 10 ? 1 : 0)} ms`;
  return `${(1e3 * ms).toFixed(0)} µs`;
}

export function age(value) {
  if (value === null || value === undefined) return DASH;
  if (value < 1) return "now";
  if (value < 90) return `${value.toFixed(0)} s ago`;
  if (value < 5400) return `${(value / 60).toFixed(0)} min ago`;
  return `${(value / 3600).toFixed(1)} h ago`;
}

export const bytes = (value) =>
  value >= 1 << 20 ? `${(value / (1 << 20)).toFixed(0)} MiB` : `${(value / 1024).toFixed(0)} KiB`;

export const clock = (unix) => new Date(1000 * unix).toTimeString().slice(0, 8);

export const plural = (num, noun) => `${count(num)} ${noun}${num === 1 ? "" : "s"}`;
