// Live updates: server-sent events, read with fetch, because an EventSource cannot
// bring a token. A lost connection is shown, and tried again until it heals.

import { headers } from "./server.js";

const SILENT_MS = 6000;
const FIRST_RETRY_MS = 400;
const LAST_RETRY_MS = 5000;

export class Stream {
  constructor(onEvent, onStatus) {
    this.onEvent = onEvent;
    this.onStatus = onStatus;
    this.retryMs = FIRST_RETRY_MS;
    this.abort = null;
    this.timer = null;
    addEventListener("online", () => this.timer && this.open(this.path));
  }

  open(path) {
    this.close();
    this.path = path;
    this.abort = new AbortController();
    this.read(this.abort);
  }

  close() {
    clearTimeout(this.timer);
    clearTimeout(this.watch);
    this.timer = null;
    this.abort?.abort();
    this.abort = null;
  }

  async read(abort) {
    let why = "the server ended the stream";
    try {
      const response = await fetch(this.path, {
        headers: headers(),
        signal: abort.signal,
        cache: "no-store",
      });
      if (response.status === 401) return this.denied(abort);
      if (!response.ok) throw new Error(`status ${response.status}`);
      await this.parse(response.body.pipeThrough(new TextDecoderStream()), abort);
    } catch (error) {
      why = error.message;
    }
    if (this.abort === abort) this.lost(why);
  }

  async parse(text, abort) {
    let rest = "";
    this.alive(abort);
    for (const reader = text.getReader(); ; ) {
      const { done, value } = await reader.read();
      if (done || this.abort !== abort) return;
      this.alive(abort);
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) this.dispatch(part);
    }
  }

  dispatch(part) {
    const at = part.indexOf("\ndata: ");
    if (!part.startsWith("event: ") || at < 0) return;
    this.retryMs = FIRST_RETRY_MS;
    this.onStatus("live");
    this.onEvent(part.slice(7, at), JSON.parse(part.slice(at + 7)));
  }

  // A server that is gone without a word says nothing for some seconds.
  alive(abort) {
    clearTimeout(this.watch);
    this.watch = setTimeout(() => abort.abort(), SILENT_MS);
  }

  denied(abort) {
    if (this.abort !== abort) return;
    this.close();
    this.onStatus("denied");
  }

  lost(why) {
    clearTimeout(this.watch);
    this.onStatus("lost", why);
    const wait = this.retryMs * (0.75 + Math.random() / 2);
    this.retryMs = Math.min(LAST_RETRY_MS, 2 * this.retryMs);
    this.timer = setTimeout(() => this.open(this.path), wait);
  }
}
