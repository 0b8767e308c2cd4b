// Calls to the admin port. The token lives in this tab alone, and goes with it.

const KEY = "warmroute.token";

export const token = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => sessionStorage.setItem(KEY, value),
  drop: () => sessionStorage.removeItem(KEY),
};

export function headers(more = {}) {
  const value = token.get();
  return value ? { ...more, Authorization: `Bearer ${value}` } : more;
}

export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export async function call(path, body) {
  const options = { headers: headers(), cache: "no-store" };
  if (body !== undefined) {
    options.method = "POST";
    options.headers = headers({ "Content-Type": "application/json" });
    options.body = JSON.stringify(body);
  }
  const response = await fetch(path, options);
  const answer = await response.json().catch(() => null);
  if (!response.ok)
    throw new Refusal(response.status, answer?.error?.message ?? `status ${response.status}`);
  return answer;
}
