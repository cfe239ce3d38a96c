// The chat page: wires the parts together.

import { get, newName, post } from "./api.js";
import { Conversation } from "./conversation.js";
import { markdown } from "./markdown.js";
import { Sidebar } from "./sidebar.js";
import { language, loadTexts, switchLanguage, t } from "./texts.js";
import { restoreTheme, switchTheme } from "./theme.js";

const byId = (id) => document.getElementById(id);
const NEAR_END = 80;
const NOTICES = 4;

class App {
  constructor() {
    this.sidebar = new Sidebar(byId("conversations"), (name) => this.open(name));
    this.conversation = null;
    this.models = { kind: "unknown", names: [] };
    this.isAtEnd = true;
    this.lost = new Set();
  }

  async start() {
    restoreTheme();
    await loadTexts();
    this.#wire();
    this.open(new URLSearchParams(location.hash.slice(1)).get("c") || newName("w-"), { focus: true });
    this.#listen();
    await Promise.all([this.#refreshState(), this.#refreshList()]);
  }

  /** Show a conversation. */
  open(name, { focus = false } = {}) {
    if (this.conversation?.name === name) return this.#drawer(false);
    this.conversation?.leave();
    const turns = byId("turns");
    turns.replaceChildren();
    history.replaceState(null, "", `#c=${encodeURIComponent(name)}`);
    this.conversation = new Conversation(name, turns);
    this.conversation.addEventListener("changed", () => this.#onChanged());
    this.conversation.addEventListener("connection", (event) => this.#connection("turn", event.detail));
    this.lost.delete("turn");
    this.isAtEnd = true;
    this.sidebar.choose(name);
    this.#drawer(false);
    if (focus || matchMedia("(pointer: fine)").matches) byId("input").focus();
    this.#load(this.conversation);
  }

  async #load(conversation) {
    this.#onChanged();
    try {
      await conversation.load();
      this.#connection("load", true);
    } catch (error) {
      if (conversation.hasLeft) return;
      this.#connection("load", false);
      setTimeout(() => { if (!conversation.hasLeft) this.#load(conversation); }, 1500);
    }
  }

  #onChanged() {
    const conversation = this.conversation;
    byId("empty").hidden = !(conversation.isEmpty && conversation.isLoaded);
    byId("stop").hidden = !conversation.isRunning;
    byId("title").textContent = this.sidebar.titleOf(conversation.name) || t("new_conversation");
    if (!conversation.isRunning && !conversation.isEmpty && this.wasRunning) this.#refreshList();
    this.wasRunning = conversation.isRunning;
  }

  async #refreshList() {
    try {
      await this.sidebar.refresh();
      this.#onChanged();
    } catch {
      this.#retry ??= setTimeout(() => { this.#retry = null; this.#refreshList(); }, 3000);
    }
  }

  #retry = null;

  async #refreshState() {
    try {
      const state = await get("/api/state");
      byId("account-name").textContent = state.name;
      this.models = state.models;
    } catch {
      return; // asked again when the event stream is back
    }
    this.#drawBanner();
  }

  #drawBanner() {
    const words = { embedded: "banner_embedded", none: "banner_none" }[this.models.kind];
    const banner = byId("banner");
    banner.hidden = !words;
    if (!words) return;
    byId("banner-words").replaceChildren(markdown(t(words, { model: this.models.names[0] ?? "" })));
    byId("banner-how").replaceChildren(markdown(t("banner_how")));
  }

  /** Listen to what happens without our asking; after a break, read what we missed. */
  #listen() {
    const events = new EventSource("/api/events");
    let wasLost = false;
    events.addEventListener("open", () => {
      this.#connection("events", true);
      if (!wasLost) return;
      wasLost = false;
      this.#refreshState();
      this.#refreshList();
      this.#load(this.conversation);
    });
    events.addEventListener("error", () => {
      wasLost = true;
      this.#connection("events", false);
      if (events.readyState === EventSource.CLOSED) setTimeout(() => this.#listenAgain(), 2000);
    });
    events.addEventListener("message", (message) => this.#onEvent(JSON.parse(message.data)));
  }

  async #listenAgain() {
    await this.#refreshState(); // leads to the login page if that is why
    this.#listen();
    this.#refreshList();
    this.#load(this.conversation);
  }

  #onEvent(event) {
    if (event.type === "state") return this.#refreshState();
    if (event.type === "notice") return showNotice(event);
    const isHere = event.conversation === this.conversation.name;
    if (isHere && event.type === "turn") this.conversation.onTurn(event);
    if (isHere && event.type === "output") this.conversation.onOutput(event).catch(() => this.#load(this.conversation));
    if (!isHere && event.type === "output") {
      this.sidebar.markUnread(event.conversation);
      this.#refreshList();
    }
    if (event.type === "turn" && !this.sidebar.titleOf(event.conversation)) this.#refreshList();
  }

  #connection(what, isConnected) {
    if (isConnected) this.lost.delete(what);
    else this.lost.add(what);
    const line = byId("connection");
    line.classList.toggle("lost", this.lost.size > 0);
    line.textContent = this.lost.size ? t("reconnecting") : "";
  }

  #wire() {
    const input = byId("input");
    byId("composer").addEventListener("submit", (event) => { event.preventDefault(); this.#say(); });
    input.addEventListener("input", () => this.#fit());
    input.addEventListener("keydown", (event) => {
      // Enter that ends the typing of Chinese characters is not meant for us.
      if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
      event.preventDefault();
      this.#say();
    });
    byId("stop").addEventListener("click", () => this.conversation.stop().catch(() => this.#connection("turn", false)));
    byId("new").addEventListener("click", () => this.open(newName("w-"), { focus: true }));
    byId("logout").addEventListener("click", async () => { await post("/api/logout"); location.assign("/login"); });
    byId("theme").addEventListener("click", switchTheme);
    byId("theme").textContent = "◐";
    byId("language").addEventListener("click", async () => { await switchLanguage(); this.#inLanguage(); });
    byId("menu").addEventListener("click", () => this.#drawer(true));
    byId("shade").addEventListener("click", () => this.#drawer(false));
    document.addEventListener("keydown", (event) => { if (event.key === "Escape") this.#drawer(false); });
    window.addEventListener("hashchange", () => this.#onHash());
    this.#inLanguage();
    this.#scrolling();
  }

  #onHash() {
    const name = new URLSearchParams(location.hash.slice(1)).get("c");
    if (name) this.open(name);
  }

  #inLanguage() {
    byId("language").textContent = language() === "zh" ? "EN" : "中文";
    if (!this.conversation) return;
    this.sidebar.draw();
    this.#drawBanner();
    this.#onChanged();
  }

  #scrolling() {
    const scroller = byId("scroller");
    const toEnd = () => scroller.scrollTo({ top: scroller.scrollHeight });
    scroller.addEventListener("scroll", () => {
      this.isAtEnd = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < NEAR_END;
      byId("latest").hidden = this.isAtEnd;
    });
    scroller.addEventListener("grown", () => { if (this.isAtEnd) toEnd(); });
    new ResizeObserver(() => { if (this.isAtEnd) toEnd(); }).observe(byId("turns"));
    byId("latest").addEventListener("click", toEnd);
  }

  #say() {
    const input = byId("input");
    const text = input.value.trim();
    if (!text) return;
    input.value = "";
    this.#fit();
    this.isAtEnd = true;
    this.conversation.say(text);
  }

  #fit() {
    const input = byId("input");
    byId("send").disabled = !input.value.trim();
    input.style.height = "auto";
    input.style.height = `${input.scrollHeight}px`;
  }

  #drawer(isOpen) {
    byId("sidebar").classList.toggle("open", isOpen);
    byId("menu").setAttribute("aria-expanded", String(isOpen));
    byId("shade").hidden = !isOpen;
  }
}

/** Show what the agent says in a conversation that another program has with it. */
function showNotice(event) {
  const notice = document.createElement("article");
  notice.className = "notice";
  const from = document.createElement("small");
  from.textContent = t("notice_from", { name: event.conversation });
  const words = document.createElement("div");
  words.className = "prose";
  words.append(markdown(event.text));
  const close = document.createElement("button");
  close.type = "button";
  close.className = "quiet icon";
  close.textContent = "×";
  close.setAttribute("aria-label", t("close"));
  close.addEventListener("click", () => notice.remove());
  notice.append(from, words, close);
  const notices = byId("notices");
  notices.append(notice);
  while (notices.childElementCount > NOTICES) notices.firstElementChild.remove();
}

new App().start();
