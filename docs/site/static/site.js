// Search, the theme, the menu of a phone, and copying of commands. Without scripts the pages are complete.
"use strict";
const top_ = document.documentElement, words = top_.dataset;
const byId = (id) => document.getElementById(id);

byId("site-theme").addEventListener("click", () => {
  const dark = top_.dataset.theme ? top_.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  top_.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("theme", top_.dataset.theme); } catch { /* it lasts until the next page */ }
});

byId("site-menu").addEventListener("click", () => {
  const open = byId("site-nav").classList.toggle("open");
  byId("site-menu").setAttribute("aria-expanded", open);
});
document.querySelector("#site-nav [aria-current]")?.scrollIntoView({ block: "center" });

if (navigator.clipboard) {
  for (const pre of document.querySelectorAll("main pre:not(:has(.language-text))")) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = words.copy;
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(pre.textContent);
      button.textContent = words.copied;
      setTimeout(() => { button.textContent = words.copy; }, 1500);
    });
    const box = document.createElement("div");
    box.className = "code";
    pre.replaceWith(box);
    box.append(pre, button);
  }
}

// The index is a script: a page that was opened as a file may not fetch.
const input = byId("site-search"), results = byId("site-results");
let sections, loading;
window.searchIndex = (rows) => {
  const fold = (text) => text.normalize("NFKC").toLowerCase();
  sections = rows.map((row) => ({ ...row, inPage: fold(row.page), inHeading: fold(row.heading), inText: fold(row.text) }));
  show();
};
function load() {
  if (loading) return;
  loading = document.createElement("script");
  loading.src = words.root + input.dataset.index;
  document.head.append(loading);
}

// same has the documents' words for those of people.
const same = {
  stuck: ["stay"], hang: ["stay"], hung: ["stay"], back: ["returned"], lost: ["missing"], delet: ["end", "gone"], kill: ["gone", "dead"],
  crash: ["restart"], ip: ["address"], bandwidth: ["slow"], perf: ["slow"], "all-reduce": ["slow"],
  airgap: ["air gap"], "air-gap": ["air gap"], "air-gapp": ["air gap"], disconnect: ["air gap"],
};

const stop = new Set("a an and are as at be but can do does for from get has have how i if in is it its my not of on or the to was what when where which why with without".split(" "));

// terms returns the words of a question that matter, and neighboring pairs of Chinese characters. A plural
// finds the singular.
function terms(question) {
  const all = new Set();
  for (const word of question.normalize("NFKC").toLowerCase().match(/[\p{Script=Han}]+|[^\s\p{Script=Han}"“”,;?!()]+/gu) || []) {
    if (/\p{Script=Han}/u.test(word) && word.length > 2) {
      for (let i = 0; i + 2 <= word.length; i++) all.add(word.slice(i, i + 2));
    } else if (!stop.has(word)) {
      all.add(word.length > 3 ? word.replace(/(ies|es|s|ed|ing|ion|e)$/, "") || word : word);
    }
  }
  return all.size ? [...all] : [question.trim().toLowerCase()];
}

// find returns the best sections: those that have more of the rarer terms, in the heading
// rather than in the text, and are of a section of the menu with more weight.
function find(question) {
  const wanted = terms(question).map((term) => {
    const all = [term, ...(same[term] || [])];
    const has = new Map(); // of a section the word that it has
    for (const s of sections) {
      const word = all.find((w) => s.inText.includes(w) || s.inHeading.includes(w) || s.inPage.includes(w));
      if (word) has.set(s, word);
    }
    return { all, has, weight: Math.log(1 + sections.length / (1 + has.size)) };
  }).filter((w) => w.has.size > 0);
  const total = wanted.reduce((sum, w) => sum + w.weight, 0);
  const phrase = question.trim().toLowerCase();
  const found = [];
  for (const s of sections) {
    let score = 0, matched = 0, named = 0;
    for (const { has, weight } of wanted) {
      const term = has.get(s);
      if (!term) continue;
      matched += weight;
      const word = (text) => text.split(/[^\p{L}\p{N}_.-]+/u).some((w) => w.startsWith(term));
      if (s.inPage.includes(term)) score += weight * (word(s.inPage) ? 3 : 1);
      if (s.inHeading.includes(term)) {
        score += weight * (word(s.inHeading) ? 4 : 2);
        named += term.length;
      }
      if (s.inText.includes(term)) score += weight * (1 + Math.min(s.inText.split(term).length, 6) / 6);
    }
    if (!matched) continue;
    score *= (matched / total) ** 2 * (1 + named / (s.inHeading.length + 4)); // it has most of the question, and is named by it
    if (phrase.length > 3 && (s.inText.includes(phrase) || s.inHeading.includes(phrase))) score *= 1.6;
    if (s.inHeading === phrase || (!s.heading && s.inPage === phrase)) score *= 2;
    found.push({ s, score: score / (1 + Math.log1p(s.inText.length / 3000)) * s.weight });
  }
  return { found: found.sort((a, b) => b.score - a.score).slice(0, 12).map((f) => f.s), wanted: wanted.flatMap((w) => w.all) };
}

// marked appends text to an element, with the terms in bold.
function marked(to, text, wanted) {
  const escaped = wanted.map((term) => term.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).sort((a, b) => b.length - a.length);
  for (const [i, part] of text.split(new RegExp(`(${escaped.join("|")})`, "i")).entries()) {
    const piece = document.createElement(i % 2 ? "mark" : "span");
    piece.textContent = part;
    to.append(piece);
  }
}

function show() {
  const question = input.value.trim();
  results.hidden = !question || !sections;
  if (results.hidden) return;
  const { found, wanted } = find(question);
  results.replaceChildren(...found.map((s) => {
    const item = document.createElement("li"), link = document.createElement("a"), title = document.createElement("b"), text = document.createElement("small");
    link.href = words.root + s.url;
    title.textContent = s.heading ? `${s.page} › ${s.heading}` : s.page;
    const at = Math.max(0, Math.min(...wanted.map((term) => s.inText.indexOf(term)).filter((i) => i >= 0)) - 60);
    const begin = Number.isFinite(at) ? at : 0;
    marked(text, (begin ? "… " : "") + s.text.slice(begin, begin + 180), wanted);
    link.append(title, text);
    item.append(link);
    return item;
  }));
  if (!found.length) results.textContent = words.none;
}

input.addEventListener("focus", load);
input.addEventListener("input", () => { load(); show(); });
document.addEventListener("keydown", (event) => {
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName);
  if (event.key === "/" && !typing) {
    event.preventDefault();
    input.focus();
  } else if (event.key === "Escape") {
    results.hidden = true;
    byId("site-nav").classList.remove("open");
  } else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && !results.hidden) {
    const links = [input, ...results.querySelectorAll("a")];
    const at = links.indexOf(document.activeElement);
    if (at < 0) return;
    event.preventDefault();
    links[(at + (event.key === "ArrowDown" ? 1 : links.length - 1)) % links.length].focus();
  } else if (event.key === "Enter" && document.activeElement === input) {
    results.querySelector("a")?.click();
  }
});
document.addEventListener("click", (event) => {
  if (!event.target.closest(".search")) results.hidden = true;
  for (const menu of document.querySelectorAll(".versions[open]")) if (!menu.contains(event.target)) menu.open = false;
});
