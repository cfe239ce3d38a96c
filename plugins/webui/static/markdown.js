// Markdown to elements. Text of the model only ever becomes text nodes: there is no way from it to markup or script.

import { t } from "./texts.js";

const INLINE = new RegExp(
  [
    String.raw`\\([\\\`*_{}\[\]()#+\-.!~|>])`, // 1 escaped character
    String.raw`(\`+)(?!\`)([^\n]{1,4000}?)(?<!\`)\2(?!\`)`, // 2, 3 code
    String.raw`\*\*(?=\S)([\s\S]{1,4000}?)(?<=\S)\*\*`, // 4 strong
    String.raw`(?<![\w*])\*(?=[^\s*])([^*\n]{1,2000}?)(?<=\S)\*(?!\*)`, // 5 emphasis
    String.raw`(?<![\w_])_(?=[^\s_])([^_\n]{1,2000}?)(?<=\S)_(?!\w)`, // 6 emphasis
    String.raw`~~(?=\S)([^\n]{1,2000}?)~~`, // 7 struck out
    String.raw`!?\[([^\[\]\n]{1,1000})\]\((?:<)?([^\s()<>]{1,2000}(?:\([^\s()<>]{0,500}\)[^\s()<>]{0,500})?)(?:>)?(?:\s+"[^"\n]{0,500}")?\)`, // 8, 9 link
    String.raw`(https?:\/\/[^\s<>"'\u3000-\u303f\uff00-\uffef]{1,2000})`, // 10 bare link
  ].join("|"),
  "g",
);

/** Return the elements that a text in Markdown stands for. */
export function markdown(text) {
  const fragment = document.createDocumentFragment();
  blocks(text.replace(/\r\n?/g, "\n").split("\n"), fragment, 0);
  return fragment;
}

function element(name, className = "", ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

function blocks(lines, parent, depth) {
  let at = 0;
  while (at < lines.length) {
    const taken = depth < 8 ? block(lines, at, parent, depth) : 0;
    at += taken || paragraph(lines, at, parent, depth);
  }
}

/** Take one block that begins at a line; return how many lines it has, 0 if none begins there. */
function block(lines, at, parent, depth) {
  const line = lines[at];
  if (!line.trim()) return 1;
  let found;
  if ((found = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/.exec(line))) return fence(lines, at, parent, found);
  if ((found = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/.exec(line))) {
    const heading = element(`h${Math.min(found[1].length, 4)}`);
    inline(found[2], heading, 0);
    parent.append(heading);
    return 1;
  }
  if (/^ {0,3}([-*_])( *\1){2,}\s*$/.test(line)) {
    parent.append(element("hr"));
    return 1;
  }
  if (/^ {0,3}>/.test(line)) return quote(lines, at, parent, depth);
  if (itemOf(line)) return list(lines, at, parent, depth);
  if (line.includes("|") && /^[\s|:-]*-[\s|:-]*$/.test(lines[at + 1] ?? "") && lines[at + 1].includes("|")) {
    return table(lines, at, parent);
  }
  return 0;
}

function fence(lines, at, parent, [, mark, name]) {
  let end = at + 1;
  const isEnd = (line) => line.trim().startsWith(mark) && !line.trim().slice(mark.length).replaceAll(mark[0], "").trim();
  while (end < lines.length && !isEnd(lines[end])) end += 1;
  const content = lines.slice(at + 1, end).join("\n");
  const copy = element("button", "quiet", t("copy"));
  copy.type = "button";
  copy.addEventListener("click", () => copyText(content, copy));
  const head = element("header", "", element("span", "", name), copy);
  parent.append(element("div", "code", head, element("pre", "", element("code", "", content))));
  return end - at + 1;
}

async function copyText(content, button) {
  try {
    await navigator.clipboard.writeText(content);
    button.textContent = t("copied");
  } catch {
    button.textContent = t("copy_failed"); // browsers only allow it on https and on this very machine
  }
  setTimeout(() => { button.textContent = t("copy"); }, 1500);
}

function quote(lines, at, parent, depth) {
  let end = at;
  while (end < lines.length && /^ {0,3}>/.test(lines[end])) end += 1;
  const inner = lines.slice(at, end).map((line) => line.replace(/^ {0,3}> ?/, ""));
  const made = element("blockquote");
  blocks(inner, made, depth + 1);
  parent.append(made);
  return end - at;
}

function itemOf(line) {
  return /^( *)([-*+]|\d{1,9}[.)])( +|$)(.*)$/.exec(line);
}

function list(lines, at, parent, depth) {
  const [, indent, mark] = itemOf(lines[at]);
  const isOrdered = /\d/.test(mark);
  const made = element(isOrdered ? "ol" : "ul");
  if (isOrdered) made.start = Number.parseInt(mark, 10);
  let end = at;
  while (end < lines.length) {
    const item = itemOf(lines[end]);
    if (!item || item[1].length !== indent.length || /\d/.test(item[2]) !== isOrdered) break;
    const inner = [item[4]];
    const width = item[1].length + item[2].length + 1;
    end += 1;
    while (end < lines.length && belongsToItem(lines, end, indent.length)) {
      inner.push(lines[end].replace(new RegExp(`^ {0,${width}}`), ""));
      end += 1;
    }
    const entry = element("li");
    blocks(inner, entry, depth + 1);
    if (entry.children.length && entry.firstChild.nodeName === "P") entry.firstChild.replaceWith(...entry.firstChild.childNodes);
    made.append(entry);
  }
  parent.append(made);
  return end - at;
}

function belongsToItem(lines, at, indent) {
  const line = lines[at];
  if (!line.trim()) return /^ /.test(lines[at + 1] ?? "") && leading(lines[at + 1]) > indent;
  return leading(line) > indent;
}

function leading(line) {
  return line.length - line.trimStart().length;
}

function table(lines, at, parent) {
  const cells = (line) => line.trim().replace(/^\||(?<!\\)\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
  const row = (line, name) => element("tr", "", ...cells(line).map((cell) => {
    const made = element(name);
    inline(cell, made, 0);
    return made;
  }));
  let end = at + 2;
  const body = element("tbody");
  while (end < lines.length && lines[end].includes("|") && lines[end].trim()) body.append(row(lines[end++], "td"));
  parent.append(element("div", "table", element("table", "", element("thead", "", row(lines[at], "th")), body)));
  return end - at;
}

function paragraph(lines, at, parent, depth) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !startsBlock(lines, end)) end += 1;
  const made = element("p");
  const text = lines.slice(at, end).map((line) => line.trimStart()).join("\n");
  inline(text, made, depth);
  parent.append(made);
  return end - at;
}

function startsBlock(lines, at) {
  return block(lines, at, document.createDocumentFragment(), 7) > 0;
}

function inline(text, parent, depth) {
  let last = 0;
  for (const found of text.matchAll(INLINE)) {
    plain(text.slice(last, found.index), parent);
    last = found.index + found[0].length;
    const [whole, escaped, , code, strong, star, underscore, struck, label, target, bare] = found;
    if (escaped !== undefined) parent.append(escaped);
    else if (code !== undefined) parent.append(element("code", "", code.replace(/^ (.*) $/, "$1")));
    else if (strong !== undefined) nested("strong", strong, parent, depth);
    else if ((star ?? underscore) !== undefined) nested("em", star ?? underscore, parent, depth);
    else if (struck !== undefined) nested("s", struck, parent, depth);
    else if (target !== undefined) link(target, label, parent, whole);
    else last -= whole.length - bareLink(bare, parent);
  }
  plain(text.slice(last), parent);
}

/** Text with its line breaks: models mean them, other than Markdown's rules have it. */
function plain(text, parent) {
  text.split("\n").forEach((line, number) => {
    if (number) parent.append(element("br"));
    if (line) parent.append(line);
  });
}

function nested(name, text, parent, depth) {
  const made = element(name);
  if (depth < 6) inline(text, made, depth + 1);
  else made.append(text);
  parent.append(made);
}

/** Append a link without the punctuation that ends its sentence; return how many characters it took. */
function bareLink(address, parent) {
  let target = address.replace(/[.,;:!?*_~]+$/, "");
  if (target.endsWith(")") && !target.includes("(")) target = target.replace(/\)+$/, "");
  link(target, target, parent, target);
  return target.length;
}

function link(target, label, parent, otherwise) {
  if (!/^(https?:\/\/|mailto:)/i.test(target)) {
    parent.append(otherwise);
    return;
  }
  const made = element("a", "", label);
  made.href = target;
  made.target = "_blank";
  made.rel = "noopener noreferrer nofollow";
  parent.append(made);
}
