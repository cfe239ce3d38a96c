// What the page asks the server for.

/** An answer other than 2xx. `status` is 0 where there was no answer at all. */
export class Failed extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }

  /** Whether the same request may succeed later: nobody answered, or something is restarting. */
  get passes() {
    return this.status === 0 || this.status === 429 || this.status >= 500;
  }
}

async function ask(path, options = {}) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failed(0, String(error.message ?? error));
  }
  if (response.ok) return response;
  if (response.status === 401) location.assign("/login");
  let message = `${response.status} ${response.statusText}`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // Not one of our own answers: a proxy's, for example. The status says enough.
  }
  throw new Failed(response.status, message);
}

export async function get(path, values = {}, signal = undefined) {
  const query = new URLSearchParams(values).toString();
  return (await ask(query ? `${path}?${query}` : path, { signal })).json();
}

export async function post(path, body = {}, signal = undefined) {
  const headers = { "Content-Type": "application/json" };
  return (await ask(path, { method: "POST", headers, body: JSON.stringify(body), signal })).json();
}

/** Yield the items of a turn, as far as this connection carries. */
export async function* followOnce(ticket, signal) {
  const response = await ask(`/api/follow?ticket=${encodeURIComponent(ticket)}`, { signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) if (line) yield JSON.parse(line);
    }
  } finally {
    reader.cancel().catch(() => {}); // the connection may be gone already, which is what we want
  }
}

/** Yield the items of a turn until its outcome, over as many connections as it takes; `reset` where it starts again. */
export async function* follow(ticket, signal) {
  let wait = 300;
  for (;;) {
    try {
      for await (const item of followOnce(ticket, signal)) {
        wait = 300;
        yield item;
        if (item.type === "outcome" || item.type === "failed") return;
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Failed && !error.passes) {
        yield { type: "failed", error: { message: error.message } };
        return;
      }
    }
    if (signal.aborted) return;
    yield { type: "lost" };
    await pause(wait, signal);
    if (signal.aborted) return;
    wait = Math.min(wait * 1.7, 5000);
    yield { type: "reset" };
  }
}

export function pause(ms, signal = undefined) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
  });
}

/** A name that nobody else will think of. */
export function newName(prefix) {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return prefix + Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
