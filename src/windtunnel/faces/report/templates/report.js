"use strict";
(() => {
  let data = {};
  const tip = document.getElementById("tip");

  function significant(value) {
    if (value === 0) return "0";
    const decimals = Math.max(0, 3 - Math.floor(Math.log10(Math.abs(value))));
    return value.toLocaleString("en-US", { minimumFractionDigits: Math.min(decimals, 9), maximumFractionDigits: Math.min(decimals, 9) });
  }
  const UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "us"], [1, "ns"]];
  function duration(ns) {
    const [size, unit] = UNITS.find(([size]) => Math.abs(ns) >= size) || UNITS[3];
    return `${significant(ns / size)} ${unit}`;
  }
  const gib = (bytes) => `${(bytes / 2 ** 30).toFixed(1)} GiB`;

  // Tooltips: one box, filled as text, never as markup.
  function showTip(text, event) {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const x = Math.min(event.clientX + 14, innerWidth - box.width - 8);
    const below = event.clientY + 18;
    const y = below + box.height > innerHeight - 8 ? event.clientY - box.height - 12 : below;
    tip.style.transform = `translate(${Math.max(8, x)}px, ${Math.max(8, y)}px)`;
  }
  const hideTip = () => { tip.hidden = true; };
  document.addEventListener("pointermove", (event) => {
    const target = event.target.closest ? event.target.closest("[data-tip]") : null;
    if (target) showTip(target.dataset.tip, event);
    else if (!event.target.matches || !event.target.matches("canvas")) hideTip();
  });
  document.addEventListener("pointerleave", hideTip);
  document.addEventListener("scroll", hideTip, { passive: true, capture: true });

  // Draws the report that stands in the page; a page that shows one report after another calls it for each.
  function start() {
    data = JSON.parse(document.getElementById("data").textContent);
    const canvas = document.querySelector("#timeline canvas");
    if (canvas) timeline(canvas, data.timeline);
    const curves = document.querySelector(".curves");
    if (curves) memoryCurves(curves, data.curves);
    const copy = document.getElementById("copy");
    if (copy) copy.addEventListener("click", () => copyCommand(copy));
  }

  window.windtunnel = { showTip, hideTip, duration, start };  // for the scripts behind this one
  if (document.getElementById("data")) start();

  function timeline(canvas, ops) {
    const pen = canvas.getContext("2d");
    const groups = [];
    let first = 0;
    for (const lane of ops.lanes) {
      lane.first = first;
      first += lane.count;
      const last = groups[groups.length - 1];
      if (last && last.stage === lane.stage) last.lanes.push(lane);
      else groups.push({ stage: lane.stage, name: lane.name, lanes: [lane] });
    }
    // Longest op per lane: how far left of the view an op that reaches into it can begin.
    for (const lane of ops.lanes) {
      lane.longest = 0;
      for (let i = lane.first; i < lane.first + lane.count; i++) lane.longest = Math.max(lane.longest, ops.length[i]);
    }
    const widest = (texts, font) => {
      pen.font = font;
      return Math.max(...texts.map((text) => pen.measureText(text).width));
    };
    const gutter = Math.max(124, 20 + widest(groups.map((group) => group.name), "12px system-ui, sans-serif") +
      widest(ops.lanes.map((lane) => lane.stream.slice(0, 10)), "11px system-ui, sans-serif"));
    const top = 24, groupGap = 8;
    const laneHeight = Math.max(5, Math.min(15, Math.floor(690 / Math.max(1, ops.lanes.length)) - 1));
    let y = top + 4;
    for (const group of groups) {
      group.y = y;
      for (const lane of group.lanes) { lane.y = y; y += laneHeight + 1; }
      y += groupGap;
    }
    const height = y;
    const span = Math.max(1, ops.span);
    let from = 0, to = span, width = 0, selecting = null, colours = {}, dragged = null;

    const px = (t) => gutter + (t - from) / (to - from) * (width - gutter - 8);
    const at = (x) => from + (x - gutter) / (width - gutter - 8) * (to - from);

    function readColours() {
      const style = getComputedStyle(document.documentElement);
      const get = (name) => style.getPropertyValue(`--${name}`).trim();
      colours = { ink: get("ink"), quiet: get("quiet"), rule: get("rule"), soft: get("soft"), accent: get("accent"), card: get("card") };
      colours.of = ops.categories.map((category) => get(category.slot));
      colours.on = colours.of.map(readable);
    }
    function readable(hex) {
      const [r, g, b] = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
      return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#16181c" : "#fff";
    }
    function view(newFrom, newTo) {
      const size = Math.min(span, Math.max(newTo - newFrom, Math.min(span, 200)));
      from = Math.max(0, Math.min(newFrom, span - size));
      to = from + size;
      draw();
    }
    const zoom = (factor, middle) => view(middle - (middle - from) * factor, middle + (to - middle) * factor);

    function firstIn(lane, time) {
      let low = lane.first, high = lane.first + lane.count;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (ops.start[middle] < time) low = middle + 1; else high = middle;
      }
      return low;
    }
    function draw() {
      const ratio = devicePixelRatio || 1;
      width = canvas.clientWidth;
      canvas.style.height = `${height}px`;
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      pen.clearRect(0, 0, width, height);
      axis();
      let drawn = 0;
      for (const group of groups) {
        for (const lane of group.lanes) {
          pen.fillStyle = colours.soft;
          pen.fillRect(gutter, lane.y, width - gutter - 8, laneHeight);
        }
      }
      pen.save();
      pen.beginPath();
      pen.rect(gutter, 0, width - gutter - 8, height);
      pen.clip();
      for (const lane of ops.lanes) drawn += drawLane(lane);
      if (selecting) {
        const [a, b] = [px(selecting[0]), px(selecting[1])];
        pen.globalAlpha = 0.18;
        pen.fillStyle = colours.accent;
        pen.fillRect(Math.min(a, b), top, Math.abs(b - a), height - top);
        pen.globalAlpha = 1;
      }
      pen.restore();
      names();
      canvas.dataset.bars = ops.start.length;
      canvas.dataset.drawn = drawn;
    }
    function drawLane(lane) {
      let drawn = 0, lastEdge = -1, lastCategory = -1;
      pen.font = `${Math.min(11, laneHeight - 3)}px system-ui, sans-serif`;
      pen.textBaseline = "middle";
      for (let i = firstIn(lane, from - lane.longest); i < lane.first + lane.count && ops.start[i] <= to; i++) {
        if (ops.start[i] + ops.length[i] < from) continue;
        drawn++;
        const left = px(ops.start[i]), right = px(ops.start[i] + ops.length[i]), category = ops.category[i];
        // Ops below half a pixel that would paint the same pixel again in the same colour.
        if (right < lastEdge + 0.5 && category === lastCategory) continue;
        const wide = right - left;
        pen.fillStyle = colours.of[category];
        pen.fillRect(left, lane.y, Math.max(0.7, wide > 3 ? wide - 0.75 : wide), laneHeight);
        lastEdge = right; lastCategory = category;
        if (wide > 34 && laneHeight >= 11) label(ops.labels[ops.label[i]], Math.max(left, gutter), right, lane.y, category);
      }
      return drawn;
    }
    function label(text, left, right, y, category) {
      const room = right - left - 8;
      if (room < 22) return;
      pen.fillStyle = colours.on[category];
      let shown = text;
      if (pen.measureText(shown).width > room) {
        const fits = Math.floor(room / (pen.measureText(text).width / text.length)) - 1;
        if (fits < 3) return;
        shown = `${text.slice(0, fits)}…`;
      }
      pen.fillText(shown, left + 4, y + laneHeight / 2 + 0.5);
    }
    function axis() {
      const rough = (to - from) / Math.max(2, (width - gutter) / 110);
      const power = 10 ** Math.floor(Math.log10(rough));
      const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
      const [size, unit] = UNITS.find(([size]) => ops.first + to >= size) || UNITS[3];
      const decimals = Math.max(0, Math.ceil(-Math.log10(step / size) - 1e-9));
      pen.font = "12px system-ui, sans-serif";
      pen.textBaseline = "alphabetic";
      pen.textAlign = "center";
      for (let t = Math.ceil((ops.first + from) / step) * step; t <= ops.first + to; t += step) {
        const x = px(t - ops.first);
        pen.fillStyle = colours.rule;
        pen.fillRect(Math.round(x), top - 4, 1, height - top - groupGap + 4);
        pen.fillStyle = colours.quiet;
        if (x > gutter + 12 && x < width - 30) pen.fillText(`${(t / size).toFixed(decimals)} ${unit}`, x, 13);
      }
      pen.textAlign = "left";
    }
    function names() {
      pen.textBaseline = "middle";
      const size = Math.min(12, laneHeight);
      for (const group of groups) {
        pen.fillStyle = colours.ink;
        pen.font = `${Math.max(9, size)}px system-ui, sans-serif`;
        pen.fillText(group.name, 0, group.y + laneHeight / 2);
        if (laneHeight < 9) continue;
        pen.fillStyle = colours.quiet;
        pen.font = `${Math.min(11, size)}px system-ui, sans-serif`;
        pen.textAlign = "right";
        for (const lane of group.lanes) pen.fillText(lane.stream.slice(0, 10), gutter - 8, lane.y + laneHeight / 2);
        pen.textAlign = "left";
      }
    }
    function opAt(x, y) {
      if (x < gutter) return -1;
      const lane = ops.lanes.find((lane) => y >= lane.y && y < lane.y + laneHeight + 1);
      if (!lane) return -1;
      // Within a pixel or two: the nearest op, so that slivers can be read as well.
      const time = at(x), reach = 2 * (to - from) / width;
      let best = -1, distance = Infinity;
      for (let i = firstIn(lane, time - lane.longest - reach); i < lane.first + lane.count && ops.start[i] <= time + reach; i++) {
        const gap = Math.max(ops.start[i] - time, time - ops.start[i] - ops.length[i], 0);
        if (gap <= reach && gap <= distance) { best = i; distance = gap; }
      }
      return best < 0 ? -1 : { i: best, lane };
    }
    function hover(event) {
      const found = opAt(event.offsetX, event.offsetY);
      if (found === -1) return hideTip();
      const { i, lane } = found;
      showTip(`${ops.labels[ops.label[i]]}\n${duration(ops.length[i])} · ${ops.categories[ops.category[i]].label}\n` +
        `${lane.name}, stream ${lane.stream}, from ${duration(ops.first + ops.start[i])}`, event);
    }

    canvas.addEventListener("pointermove", (event) => {
      if (dragged === null) return hover(event);
      selecting = [dragged, at(event.offsetX)];
      hideTip();
      draw();
    });
    canvas.addEventListener("pointerleave", () => { if (dragged === null) hideTip(); });
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || event.offsetX < gutter) return;
      dragged = at(event.offsetX);
      canvas.setPointerCapture(event.pointerId);
    });
    const release = (event) => {
      const chosen = selecting;
      dragged = selecting = null;
      if (chosen && event.type === "pointerup" && Math.abs(px(chosen[0]) - px(chosen[1])) > 4) view(Math.min(...chosen), Math.max(...chosen));
      else if (chosen) draw();
    };
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", release);
    canvas.addEventListener("dblclick", () => view(0, span));
    canvas.addEventListener("wheel", (event) => {
      const step = event.deltaY || event.deltaX;
      if (event.ctrlKey || event.metaKey) zoom(Math.exp(step * 0.003), at(event.offsetX));
      else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        const move = (event.deltaX || event.deltaY) / width * (to - from);
        view(from + move, to + move);
      } else return;
      event.preventDefault();
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const middle = (from + to) / 2, move = (to - from) / 5;
      const act = {
        "+": () => zoom(0.6, middle), "=": () => zoom(0.6, middle), "-": () => zoom(1 / 0.6, middle), "0": () => view(0, span),
        ArrowLeft: () => view(from - move, to - move), ArrowRight: () => view(from + move, to + move),
      }[event.key];
      if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
      act();
      event.preventDefault();
    });
    for (const button of document.querySelectorAll("[data-zoom]")) {
      button.addEventListener("click", () => {
        if (button.dataset.zoom === "all") view(0, span);
        else zoom(button.dataset.zoom === "in" ? 0.5 : 2, (from + to) / 2);
      });
    }
    const repaint = () => { readColours(); draw(); };
    repaint();
    new ResizeObserver(() => { if (canvas.clientWidth !== width) draw(); }).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
    matchMedia("print").addEventListener("change", repaint);
  }

  // One pointer, all stages: a line at the same moment in every picture, and each stage's memory at that moment.
  function memoryCurves(box, curves) {
    const figures = [...box.querySelectorAll("figure")];
    const outputs = figures.map((figure) => figure.querySelector("output"));
    const clock = document.getElementById("curve-time");
    const leave = () => {
      box.classList.remove("live");
      clock.textContent = "";
      for (const output of outputs) output.textContent = output.dataset.peak;
    };
    box.addEventListener("pointermove", (event) => {
      const plot = event.target.closest(".plot");
      if (!plot) return leave();
      const area = plot.getBoundingClientRect();
      const share = Math.min(1, Math.max(0, (event.clientX - area.left) / area.width));
      box.classList.add("live");
      box.style.setProperty("--at", `${share * 100}%`);
      clock.textContent = `At ${duration(share * curves.end)}:`;
      outputs.forEach((output, stage) => {
        const times = curves.times[stage];
        let i = times.length - 1;
        while (i > 0 && times[i] > share * curves.end) i--;
        output.textContent = gib(curves.bytes[stage][i]);
      });
    });
    box.addEventListener("pointerleave", leave);
  }

  async function copyCommand(button) {
    const command = document.getElementById("command");
    try {
      await navigator.clipboard.writeText(command.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(command);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  }
})();
