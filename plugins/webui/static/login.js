// The login page. Without this script the form works as well, in English.

import { language, loadTexts, switchLanguage } from "./texts.js";
import { restoreTheme } from "./theme.js";

const byId = (id) => document.getElementById(id);

async function logIn(event) {
  event.preventDefault();
  const problem = byId("problem");
  problem.hidden = true;
  try {
    const response = await fetch("/login", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ key: byId("key").value }),
    });
    if (response.ok) {
      location.assign("/");
      return;
    }
    problem.textContent = (await response.json()).error.message;
  } catch (error) {
    problem.textContent = String(error.message ?? error);
  }
  problem.hidden = false;
  byId("key").select();
}

async function start() {
  restoreTheme();
  byId("login").addEventListener("submit", logIn);
  const languageButton = byId("language");
  const name = () => { languageButton.textContent = language() === "zh" ? "English" : "中文"; };
  languageButton.addEventListener("click", async () => { await switchLanguage(); name(); });
  await loadTexts();
  name();
}

start();
