// The list of conversations.

import { get } from "./api.js";
import { t, when } from "./texts.js";

export class Sidebar {
  /**
   * @param {HTMLElement} list
   * @param {(name: string) => void} onChosen
   */
  constructor(list, onChosen) {
    this.list = list;
    this.onChosen = onChosen;
    this.entries = [];
    this.unread = new Set();
    this.current = "";
  }

  /** Ask for the list again. */
  async refresh() {
    this.entries = (await get("/api/conversations")).conversations;
    this.draw();
  }

  /** Mark a conversation as the one that is shown. */
  choose(name) {
    this.current = name;
    this.unread.delete(name);
    this.draw();
  }

  markUnread(name) {
    this.unread.add(name);
    this.draw();
  }

  titleOf(name) {
    return this.entries.find((entry) => entry.conversation === name)?.title ?? "";
  }

  draw() {
    this.list.replaceChildren(...this.entries.map((entry) => this.#entry(entry)));
  }

  #entry({ conversation, title, last_time: time }) {
    const name = document.createElement("span");
    name.className = "name";
    name.textContent = title || t("untitled");
    const at = document.createElement("span");
    at.className = "when";
    at.textContent = time ? when(time) : "";
    const button = document.createElement("button");
    button.type = "button";
    button.title = name.textContent;
    button.setAttribute("aria-current", String(conversation === this.current));
    button.append(name, at);
    button.addEventListener("click", () => this.onChosen(conversation));
    const item = document.createElement("li");
    item.classList.toggle("unread", this.unread.has(conversation));
    item.append(button);
    return item;
  }
}
