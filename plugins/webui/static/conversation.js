// The conversation that is shown: its history, what is being said, and what comes by itself.

import { Failed, follow, get, newName, pause, post } from "./api.js";
import { t } from "./texts.js";
import { TurnView } from "./turn_view.js";

export class Conversation extends EventTarget {
  /**
   * Dispatches `changed` (something began or ended) and `connection` (detail: true or false).
   * @param {string} name as the server knows it
   * @param {HTMLElement} list where the turns are shown
   */
  constructor(name, list) {
    super();
    this.name = name;
    this.list = list;
    this.isLoaded = false;
    this.views = new Map();
    this.sending = new Set();
    this.leaving = new AbortController();
  }

  /** Stop listening; the turns go on without us. */
  leave() {
    this.leaving.abort();
  }

  get hasLeft() {
    return this.leaving.signal.aborted;
  }

  get isEmpty() {
    return this.list.childElementCount === 0;
  }

  get isRunning() {
    return [...this.views.values()].some((view) => !view.isDone);
  }

  /** Read the history: all at first, later what came while nobody listened. */
  async load() {
    const { turns } = await get("/api/history", { conversation: this.name }, this.leaving.signal);
    if (this.hasLeft) return;
    this.isLoaded = true;
    for (const turn of turns) this.#fromHistory(turn);
    this.#changed();
  }

  /** Say something; it is sent again until the agent has it. */
  async say(text) {
    const view = new TurnView(text, Date.now() / 1000);
    this.#show(view);
    view.waiting();
    const delivery = newName("d-");
    this.sending.add(delivery);
    await this.#send(view, text, delivery);
  }

  async #send(view, text, delivery) {
    let wait = 500;
    while (!this.hasLeft) {
      try {
        const body = { conversation: this.name, text, delivery_id: delivery };
        const accepted = await post("/api/send", body, undefined);
        this.#connected(true);
        this.#accepted(view, accepted);
        return;
      } catch (error) {
        if (!(error instanceof Failed) || !error.passes) {
          view.unsent(`${t("not_sent")} ${error.message}`, [t("send_again"), () => this.#send(view, text, delivery)]);
          return;
        }
        view.unsent(t("not_sent_yet"));
        this.#connected(false);
        await pause(wait, this.leaving.signal);
        wait = Math.min(wait * 1.7, 5000);
      }
    }
  }

  #accepted(view, { turn_id: turnId, ticket }) {
    if (this.views.has(turnId)) {
      view.root.remove(); // the history was read in the same moment and shows it already
      return;
    }
    view.sent(turnId);
    view.waiting();
    this.views.set(turnId, view);
    this.#follow(view, ticket);
  }

  /** Someone sent a message in this conversation: another page of the same person, or this one. */
  onTurn(event) {
    if (this.sending.has(event.delivery_id) || this.views.has(event.turn_id)) return;
    const view = new TurnView(event.text, Date.now() / 1000);
    this.#show(view);
    this.#accepted(view, event);
  }

  /** The agent sent something here. Mostly it is the answer to a turn, which the history knows better. */
  async onOutput(event) {
    if (this.views.has(event.turn_id)) return;
    await this.load();
    const isShown = this.views.has(event.turn_id) || [...this.views.values()].some((view) => view.text === event.text);
    if (isShown || this.hasLeft || this.isRunning) return;
    const view = new TurnView("", Date.now() / 1000);
    view.finish("answer", event.text);
    this.views.set(event.turn_id || event.output_id, view);
    this.#show(view);
    this.#changed();
  }

  async stop() {
    await post("/api/stop", { conversation: this.name });
  }

  #fromHistory(turn) {
    const known = this.views.get(turn.turn_id);
    if (known) {
      if (turn.outcome && !known.isDone) known.finish(turn.outcome, turn.answer, turn.error);
      return;
    }
    const view = new TurnView(turn.kind === "self" ? "" : turn.text, turn.time);
    this.#show(view);
    if (turn.outcome) {
      view.sent(turn.turn_id);
      this.views.set(turn.turn_id, view);
      view.finish(turn.outcome, turn.answer, turn.error);
    } else {
      this.#accepted(view, turn);
    }
  }

  async #follow(view, ticket) {
    this.#changed();
    for await (const item of follow(ticket, this.leaving.signal)) {
      if (this.hasLeft || view.isDone) break;
      this.#connected(item.type !== "lost");
      view.take(item);
      view.root.dispatchEvent(new CustomEvent("grown", { bubbles: true }));
    }
    if (!this.hasLeft) this.#changed();
  }

  #show(view) {
    this.list.append(view.root);
    view.root.dispatchEvent(new CustomEvent("grown", { bubbles: true }));
    this.#changed();
  }

  #changed() {
    this.dispatchEvent(new Event("changed"));
  }

  #connected(isConnected) {
    this.dispatchEvent(new CustomEvent("connection", { detail: isConnected }));
  }
}
