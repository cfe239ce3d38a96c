// The texts of the page, in the language of whoever looks at it. They come from the server's catalogue.

let texts = {};
let current = "en";

/** Load the texts in `wanted` ("en", "zh"), or in the language that the server chooses. */
export async function loadTexts(wanted = "") {
  const response = await fetch(`/api/texts?lang=${encodeURIComponent(wanted)}`);
  if (!response.ok) throw new Error(`texts: ${response.status}`);
  const answer = await response.json();
  texts = answer.texts;
  current = answer.language;
  document.documentElement.lang = current === "zh" ? "zh-Hans" : current;
  applyTexts(document);
}

export function language() {
  return current;
}

/** Keep a choice for a year; the server reads it too, for its own messages. */
export async function switchLanguage() {
  const next = current === "zh" ? "en" : "zh";
  document.cookie = `ha_lang=${next}; path=/; max-age=31536000; samesite=strict`;
  await loadTexts(next);
}

/** Return a text with its {placeholders} filled in; the key itself where there is none. */
export function t(key, values = {}) {
  return (texts[key] ?? key).replace(/\{(\w+)\}/g, (whole, name) => String(values[name] ?? whole));
}

function applyTexts(root) {
  for (const element of root.querySelectorAll("[data-text]")) element.textContent = t(element.dataset.text);
  for (const element of root.querySelectorAll("[data-hint]")) element.placeholder = t(element.dataset.hint);
  for (const element of root.querySelectorAll("[data-label]")) {
    element.setAttribute("aria-label", t(element.dataset.label));
    element.title = t(element.dataset.label);
  }
}

/** A time as people say it: the hour today, the date before. `seconds` since 1970. */
export function when(seconds) {
  const time = new Date(seconds * 1000);
  const isToday = time.toDateString() === new Date().toDateString();
  const style = isToday ? { hour: "2-digit", minute: "2-digit" } : { month: "short", day: "numeric" };
  return new Intl.DateTimeFormat(document.documentElement.lang, style).format(time);
}
