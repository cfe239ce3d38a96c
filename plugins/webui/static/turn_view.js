// One turn on the page: what was said, what the agent does about it, what it answers.

import { markdown } from "./markdown.js";
import { t, when } from "./texts.js";

function make(name, className, text = "") {
  const element = document.createElement(name);
  element.className = className;
  element.textContent = text;
  return element;
}

export class TurnView {
  /**
   * @param {string} said what the person said; empty where the agent began by itself
   * @param {number} time seconds since 1970
   */
  constructor(said, time) {
    this.root = make("li", "turn");
    this.turnId = "";
    this.isDone = false;
    this.text = "";
    this.notice = make("div", "meta");
    this.reasoning = make("details", "reasoning");
    this.reasoningText = make("div", "");
    this.tools = make("div", "tools");
    this.answer = make("div", "answer prose");
    this.state = make("div", "state");
    if (said) {
      const bubble = make("div", "said", said);
      bubble.title = when(time);
      this.root.append(bubble, this.notice);
    }
    this.reasoning.append(make("summary", "", t("thoughts")), this.reasoningText);
    this.root.append(this.reasoning, this.tools, this.answer, this.state);
    this.#hideEmpty();
  }

  /** Show that the agent has it and nothing came yet. */
  waiting() {
    const dots = make("span", "waiting");
    dots.append(make("i", ""), make("i", ""), make("i", ""));
    dots.setAttribute("role", "img");
    dots.setAttribute("aria-label", t("working"));
    this.state.className = "state";
    this.state.replaceChildren(dots);
    this.#hideEmpty();
  }

  /** Show what keeps the message from being sent; `action` is a [label, function] to do about it. */
  unsent(message, action = null) {
    this.notice.replaceChildren(make("span", "", message));
    if (action) {
      const button = make("button", "", action[0]);
      button.type = "button";
      button.addEventListener("click", action[1], { once: true });
      this.notice.append(button);
    }
    this.state.replaceChildren();
    this.#hideEmpty();
  }

  sent(turnId) {
    this.turnId = turnId;
    this.notice.replaceChildren();
    this.#hideEmpty();
  }

  /** Take one item of the turn, as the kernel gives them. */
  take(item) {
    const known = {
      started: () => {},
      ping: () => {},
      lost: () => {},
      reset: () => this.#reset(),
      delta: () => this.#grow(item.text),
      reasoning: () => this.#think(item.text),
      tool: () => this.#tool(item.tool, item.status),
      outcome: () => this.finish(item.outcome, item.text, item.error),
      failed: () => this.finish("error", "", item.error),
    };
    known[item.type]?.();
    this.#hideEmpty();
  }

  /** Show how the turn ended. */
  finish(outcome, text, error = null) {
    this.isDone = true;
    cancelAnimationFrame(this.frame);
    this.frame = undefined;
    if (outcome !== "error" || text) this.text = text ?? "";
    this.answer.replaceChildren(markdown(this.text));
    const words = {
      error: () => [t("failed"), error?.message, error?.hint].filter(Boolean).join(" "),
      stopped: () => t("stopped"),
      merged: () => t("merged"),
      skipped: () => [t("skipped"), error?.message].filter(Boolean).join(" "),
    };
    this.state.className = outcome === "error" ? "state bad" : "state";
    this.state.textContent = words[outcome]?.() ?? (this.text ? "" : t("no_words"));
    this.reasoning.open = false;
    this.#hideEmpty();
  }

  #reset() {
    this.text = "";
    this.reasoningText.textContent = "";
    this.tools.replaceChildren();
    this.answer.replaceChildren();
    this.waiting();
  }

  #grow(text) {
    this.text += text;
    if (this.frame !== undefined) return;
    // A frame for what came meanwhile; a long text is drawn less often, so that the page stays quick.
    this.frame = requestAnimationFrame(() => {
      const began = performance.now();
      this.answer.replaceChildren(markdown(this.text));
      this.state.replaceChildren();
      this.#hideEmpty();
      const took = performance.now() - began;
      this.frame = undefined;
      if (took > 16 && !this.isDone) {
        this.frame = 0;
        setTimeout(() => { this.frame = undefined; this.#grow(""); }, took * 4);
      }
      this.root.dispatchEvent(new CustomEvent("grown", { bubbles: true }));
    });
  }

  #think(text) {
    this.reasoningText.textContent += text;
  }

  #tool(name, status) {
    let chip = [...this.tools.children].findLast((each) => each.dataset.tool === name && each.dataset.status === "started");
    if (!chip || status === "started") {
      chip = make("span", "tool");
      chip.dataset.tool = name;
      this.tools.append(chip);
    }
    chip.dataset.status = status;
    chip.classList.toggle("failed", status === "failed");
    const mark = { started: "…", ok: "✓", failed: "✗" }[status] ?? "";
    chip.textContent = `${name} ${mark}`;
    chip.title = t(`tool_${status}`);
  }

  #hideEmpty() {
    this.notice.hidden = !this.notice.childNodes.length;
    this.reasoning.hidden = !this.reasoningText.textContent;
    this.tools.hidden = !this.tools.childNodes.length;
    this.answer.hidden = !this.answer.childNodes.length;
    this.state.hidden = !this.state.childNodes.length;
  }
}
