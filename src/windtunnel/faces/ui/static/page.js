"use strict";
// What the page does beyond htmx: errors beside their fields, defaults as placeholders, sliders, files, links that carry.
(() => {
  const form = document.getElementById("question");
  const query = () => {
    const words = new URLSearchParams();
    for (const [name, value] of new FormData(form)) if (value) words.set(name, value);
    return words.toString();
  };

  // A field that is wrong says so itself; the last answer stays, dimmed.
  function clearWrong() {
    for (const one of document.querySelectorAll(".wrong")) one.textContent = "";
    for (const one of document.querySelectorAll("[aria-invalid]")) one.removeAttribute("aria-invalid");
  }
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (!form || event.detail.requestConfig.elt !== form) return;
    clearWrong();
    const box = document.createElement("template");
    box.innerHTML = event.detail.xhr.responseText;
    const mistake = box.content.querySelector(".mistake");
    const target = event.detail.target;
    target.classList.toggle("stale", Boolean(mistake));
    target.setAttribute("aria-busy", "false");
    for (const old of target.querySelectorAll(":scope > .mistake")) old.remove();
    if (!mistake) return;
    event.detail.shouldSwap = false;
    const place = document.getElementById(`e-${mistake.dataset.field}`);
    const input = document.getElementById(`f-${mistake.dataset.field}`);
    if (place && input) {
      place.textContent = mistake.textContent;
      input.setAttribute("aria-invalid", "true");
      input.closest("details")?.setAttribute("open", "");
    } else target.prepend(mistake);
    for (const hint of target.querySelectorAll(":scope > .hint")) hint.textContent = place ? "No answer until the field in red is right." : "";
  });
  document.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target.id === "points" && document.getElementById("resolved")) placeholders();
    if (event.detail.target.id === "rows") window.windtunnel.start(event.detail.target);
    if (event.detail.target.id === "answer" && document.getElementById("data")) {
      window.windtunnel.start(event.detail.target);
      placeholders();
    }
  });
  document.addEventListener("htmx:afterRequest", (event) => {
    if (form && event.detail.elt === form && event.detail.successful) history.replaceState(null, "", `?${query()}`);
  });

  function placeholders() {
    const resolved = JSON.parse(document.getElementById("resolved").textContent);
    for (const [name, value] of Object.entries(resolved)) {
      const input = document.getElementById(`f-${name}`);
      if (!input) continue;
      if (input.tagName === "SELECT") { if (input.options[0].value === "") input.options[0].textContent = `${value} (auto)`; }
      else input.placeholder = value;
    }
    sliders();
  }

  // Sliders over powers of two stand beside the number that they set.
  function sliders() {
    for (const slider of document.querySelectorAll("input[type=range]")) {
      const input = document.getElementById(slider.dataset.for);
      slider.value = Math.round(Math.log2(Number(input.value || input.placeholder) || 1));
      slider.setAttribute("aria-valuetext", input.value || input.placeholder || "1");
    }
  }
  document.addEventListener("input", (event) => {
    if (event.target.type === "range") document.getElementById(event.target.dataset.for).value = 2 ** Number(event.target.value);
    else sliders();
  }, true);
  sliders();

  document.addEventListener("click", (event) => {
    const carry = event.target.closest("[data-carry]");
    if (carry && form) { event.preventDefault(); location.href = `${carry.getAttribute("href")}?${query()}`; }
  });

  // Files that are dropped go to the server; the field that takes such a file names it.
  for (const zone of document.querySelectorAll("[data-drop]")) {
    zone.addEventListener("dragover", (event) => { event.preventDefault(); zone.classList.add("dropping"); });
    zone.addEventListener("dragleave", () => zone.classList.remove("dropping"));
    zone.addEventListener("drop", async (event) => {
      event.preventDefault();
      zone.classList.remove("dropping");
      for (const file of event.dataTransfer.files) await take(file, zone, event.target);
    });
  }
  async function take(file, zone, at) {
    const said = document.getElementById("said");
    const answer = await fetch(`/uploads?name=${encodeURIComponent(file.name)}`, { method: "POST", body: file });
    const text = await answer.text();
    if (!answer.ok) { said.textContent = text; return; }
    const words = document.getElementById("words");
    if (zone.dataset.drop === "explain") return begin(text);
    const on = at?.closest(".field")?.querySelector("input:not([type=range]), textarea");
    if (words && words.value.trim()) words.value = `${words.value.trim()} ${text}`;
    else if (words) { // the field on which it was dropped, or one that takes such files, or the first that is free
      const free = [...document.querySelectorAll("#study fieldset :is(input, textarea):not([disabled])")].filter((one) => !one.value);
      const suffix = text.slice(text.lastIndexOf(".") + 1).toLowerCase(), takes = free.filter((one) => one.dataset.takes);
      const field = on || takes.find((one) => one.dataset.takes.split(" ").includes(suffix)) || takes[0] || free[0];
      if (field) field.value = text;
    }
    else {
      const field = answer.headers.get("x-field"), input = document.getElementById(`f-${field}`);
      if (!input) { said.textContent = `${text}: the form has no use for such a file`; return; }
      if (field === "plan_file") { // the file speaks, not what the form said before
        for (const one of document.querySelectorAll("[data-plan] input, [data-plan] select")) if (one.name) one.value = "";
        if (/\.(toml|sh|args|txt)$/.test(text)) document.getElementById("f-model").value = "";
      }
      input.closest("details")?.setAttribute("open", "");
      input.value = text;
      input.dispatchEvent(new Event("input", { bubbles: true }));
    }
    said.textContent = `${text} is here`;
  }

  // A trace is explained by a study of its own.
  async function begin(name) {
    const body = new URLSearchParams({ verb: "explain", words: `"${name}"` });
    const answer = await fetch("/studies/start", { method: "POST", body, headers: { "HX-Request": "true" } });
    const where = answer.headers.get("HX-Redirect");
    if (where) location.href = where;
    else document.getElementById("said").textContent = new DOMParser().parseFromString(await answer.text(), "text/html").body.textContent;
  }
  for (const picker of document.querySelectorAll("input[type=file][data-take]")) {
    picker.addEventListener("change", async () => { for (const file of picker.files) await take(file, picker.closest("[data-drop]")); });
  }

  const chosen = document.getElementById("delete");
  if (chosen) chosen.addEventListener("click", () => {
    const runs = [...document.querySelectorAll("#chosen input:checked")].map((box) => box.value);
    if (!runs.length || !confirm(`Delete ${runs.length} run${runs.length > 1 ? "s" : ""} for good?`)) return;
    const words = new URLSearchParams(runs.map((run) => ["run", run]));
    fetch(`/runs/delete?${words}`, { method: "POST" }).then(() => location.reload());
  });

  // How many runs are chosen, beside what can be done with them.
  const count = document.getElementById("count");
  if (count) document.getElementById("chosen").addEventListener("change", () => {
    const chosen = document.querySelectorAll("#chosen input:checked").length;
    count.textContent = chosen ? `${chosen} chosen${chosen < 2 ? "; choose one more to compare" : ""}` : "Choose two to eight runs to compare them.";
  });
  const elapsed = document.getElementById("elapsed");
  if (elapsed) {
    const began = Date.now() - 1000 * Number(elapsed.dataset.began);
    const tell = () => { elapsed.textContent = `for ${Math.round((Date.now() - began) / 1000)} s`; };
    tell();
    const timer = setInterval(() => (elapsed.isConnected ? tell() : clearInterval(timer)), 1000);
  }

  const verb = document.getElementById("verb");
  if (verb) verb.addEventListener("change", () => { location.href = `/studies?verb=${encodeURIComponent(verb.value)}`; });

  // Of a union only the fields of the member that is chosen are shown, and sent.
  function choose() {
    for (const one of document.querySelectorAll("[data-chooser]")) {
      const chosen = document.getElementById(one.dataset.chooser)?.value;
      one.hidden = !one.dataset.when.split(" ").includes(chosen);
      for (const input of one.querySelectorAll("input, select, textarea")) input.disabled = one.hidden;
    }
  }
  document.getElementById("study")?.addEventListener("change", choose);
  choose();

  // A study that runs: its state as it comes, its answer when it is there.
  const windtunnelCloud = window.windtunnelCloud;
  const state = document.getElementById("state");
  if (state && state.querySelector("[data-running=yes]")) {
    const events = new EventSource(state.dataset.watch);
    events.addEventListener("points", (event) => windtunnelCloud?.add(JSON.parse(event.data)));
    events.onopen = () => windtunnelCloud?.clear(); // a new connection tells all points again
    events.onmessage = (event) => {
      const news = JSON.parse(event.data), progress = document.getElementById("progress");
      if (progress && news.said) { progress.hidden = false; progress.textContent = news.said; progress.scrollTop = progress.scrollHeight; }
      if (news.state !== "running") { events.close(); windtunnelCloud?.load(); htmx.ajax("GET", state.dataset.state, { target: "#state" }); }
    };
  }

  else if (state && windtunnelCloud) windtunnelCloud.load();

  // A report in a frame says how high it is.
  addEventListener("message", (event) => {
    const frame = document.querySelector("iframe.drawn"), height = Number(event.data?.height);
    if (event.source === frame?.contentWindow && height > 0) frame.style.height = `${Math.min(height + 4, 60000)}px`;
  });

  // Keys: / to search or to the first field, 1 to 4 for the pages.
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select, canvas")) return;
    const tabs = [...document.querySelectorAll("nav [data-tab]")];
    if (event.key === "/") { (document.getElementById("search") || document.querySelector("form input"))?.focus(); event.preventDefault(); }
    else if (tabs[Number(event.key) - 1]) tabs[Number(event.key) - 1].click();
  });
})();
