// The probe browser: unpacks the probes of each section, filters them, and shows a page of them at a time.
"use strict";

(function () {
  const PAGE = 20;
  const MODELS_AT_FIRST = 4;

  async function unpack(text) {
    const bytes = Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  }

  function element(tag, text, className) {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  }

  function fill(select, options) {
    for (const [value, text] of options) select.append(new Option(text, value));
  }

  class Browser {
    constructor(root, data) {
      this.root = root;
      this.data = data;
      this.models = Object.keys(data.answers);
      this.place = Object.fromEntries(data.fields.map((field, place) => [field, place]));
      this.page = 0;
      this.haystacks = [];
      this.fillControls();
      this.listen();
      this.apply();
      root.hidden = false;
    }

    find(name) {
      return this.root.querySelector(`[data-role="${name}"]`);
    }

    field(probe, name) {
      return this.data.probes[probe][this.place[name]];
    }

    fillControls() {
      for (const name of ["section", "mode", "family", "subject"]) {
        const values = [...new Set(this.data.probes.map((probe) => probe[this.place[name]]))];
        fill(this.find(name), [["", "all"], ...values.map((value) => [value, value || "(none)"])]);
        this.find(name).parentElement.hidden = values.length < 2;
      }
      const models = this.models.map((model) => [model, model]);
      fill(this.find("refused"), [["", "whether or not"], ["any:", "any model refuses"], ["none:", "no model refuses"],
        ...models.map(([model]) => [`model:${model}`, `${model} refuses`])]);
      fill(this.find("first"), models);
      fill(this.find("second"), models);
      this.find("second").selectedIndex = this.models.length - 1;
      this.find("comparison").hidden = this.models.length < 2;
      for (const [place, model] of this.models.entries()) this.find("models").append(this.modelBox(model, place));
      this.find("models").hidden = this.models.length < 2;
    }

    modelBox(model, place) {
      const label = element("label");
      const box = element("input");
      box.type = "checkbox";
      box.value = model;
      box.checked = place < MODELS_AT_FIRST || place === this.models.length - 1;
      label.append(box, model);
      return label;
    }

    listen() {
      const form = this.find("filters");
      form.addEventListener("submit", (event) => event.preventDefault());
      form.addEventListener("input", () => { this.page = 0; this.apply(); });
      form.addEventListener("reset", () => setTimeout(() => {
        this.find("second").selectedIndex = this.models.length - 1;
        this.page = 0;
        this.apply();
      }));
      for (const button of this.root.querySelectorAll("[data-turn]")) {
        button.addEventListener("click", () => this.turn(Number(button.dataset.turn), button));
      }
    }

    turn(pages, button) {
      this.page += pages;
      this.show();
      if (button.closest("nav").dataset.role === "below") this.find("status").scrollIntoView();
      if (button.disabled) button.closest("nav").querySelector("button:not(:disabled)")?.focus();
    }

    apply() {
      const wanted = {};
      for (const name of ["section", "mode", "family", "subject"]) wanted[name] = this.find(name).value;
      const chosen = {
        wanted,
        refused: this.find("refused").value,
        changed: this.find("changed").checked ? [this.find("first").value, this.find("second").value] : null,
        words: this.find("text").value.toLowerCase().trim(),
      };
      this.shown = this.data.probes.map((_, probe) => probe).filter((probe) => this.fits(probe, chosen));
      this.show();
    }

    fits(probe, { wanted, refused, changed, words }) {
      for (const [name, value] of Object.entries(wanted)) {
        if (value !== "" && this.field(probe, name) !== value) return false;
      }
      if (refused && !this.refusalFits(probe, refused)) return false;
      if (changed && this.answer(changed[0], probe) === this.answer(changed[1], probe)) return false;
      return !words || this.haystack(probe).includes(words);
    }

    refusalFits(probe, choice) {
      const refuses = (model) => this.data.answers[model][probe][1] === 1;
      if (choice === "any:") return this.models.some(refuses);
      if (choice === "none:") return !this.models.some(refuses);
      return refuses(choice.slice("model:".length));
    }

    answer(model, probe) {
      return this.data.answers[model][probe][0].trim();
    }

    haystack(probe) {
      if (this.haystacks[probe] === undefined) {
        const texts = [this.field(probe, "prompt"), this.field(probe, "subject"), ...this.field(probe, "golds"),
          ...this.models.map((model) => this.data.answers[model][probe][0])];
        this.haystacks[probe] = texts.join("\n").toLowerCase();
      }
      return this.haystacks[probe];
    }

    show() {
      const pages = Math.max(1, Math.ceil(this.shown.length / PAGE));
      this.page = Math.min(Math.max(0, this.page), pages - 1);
      const first = this.page * PAGE;
      const visible = this.shown.slice(first, first + PAGE);
      const models = [...this.find("models").querySelectorAll("input:checked")].map((box) => box.value);
      this.find("probes").replaceChildren(...visible.map((probe) => this.item(probe, models)));
      this.find("status").textContent =
        `${this.shown.length.toLocaleString("en")} of ${this.data.probes.length.toLocaleString("en")} probes`;
      for (const pager of this.root.querySelectorAll("nav")) {
        pager.querySelector("[data-role=where]").textContent = `page ${this.page + 1} of ${pages}`;
        pager.querySelector("[data-turn='-1']").disabled = this.page === 0;
        pager.querySelector("[data-turn='1']").disabled = this.page === pages - 1;
      }
    }

    item(probe, models) {
      const item = element("li");
      const where = ["section", "mode", "family", "subject"].map((name) => this.field(probe, name)).filter(Boolean);
      item.append(element("p", `${where.join(" · ")} · #${this.field(probe, "index")}`, "where"));
      item.append(element("p", this.field(probe, "prompt"), "prompt"));
      item.append(element("p", `gold: ${this.field(probe, "golds").join(" | ")}`, "gold"));
      const answers = element("dl", undefined, "answers");
      answers.append(...models.map((model) => this.answerBox(model, probe)));
      item.append(answers);
      return item;
    }

    answerBox(model, probe) {
      const [text, refused, ...numbers] = this.data.answers[model][probe];
      const box = element("div", undefined, refused ? "refused" : "");
      const notes = this.data.scores.map((score, place) => [score, numbers[place]])
        .filter(([, number]) => number !== null).map(([score, number]) => `${score} ${number}`);
      if (refused) notes.unshift("refuses");
      const answer = element("dd", text.trim() || "(empty)");
      if (notes.length) answer.append(element("span", notes.join(" · "), "score"));
      box.append(element("dt", model), answer);
      return box;
    }
  }

  async function start() {
    for (const root of document.querySelectorAll(".browser")) {
      const message = root.previousElementSibling;
      if (!("DecompressionStream" in window)) {
        message.textContent = "This browser is too old to unpack the probes; the page needs one of 2023 or later.";
        continue;
      }
      new Browser(root, await unpack(document.getElementById(`${root.id}-data`).textContent));
      message.hidden = true;
    }
    document.documentElement.dataset.ready = "true";
  }

  start();
})();
