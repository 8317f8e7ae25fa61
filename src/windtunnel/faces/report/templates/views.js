"use strict";
(() => {
  const tip = document.getElementById("tip");

  function significant(value) {
    if (value === 0) return "0";
    const decimals = Math.max(0, 3 - Math.floor(Math.log10(Math.abs(value))));
    return value.toLocaleString("en-US", { minimumFractionDigits: Math.min(decimals, 9), maximumFractionDigits: Math.min(decimals, 9) });
  }
  const TIMES = [[86400, "d", 172800], [3600, "h", 7200], [60, "min", 120], [1, "s", 1], [1e-3, "ms", 1e-3], [1e-6, "us", 1e-6], [1e-9, "ns", 0]];
  const unitOf = (s) => TIMES.find(([, , least]) => Math.abs(s) * 1.00005 >= least); // as four digits have it
  const timeText = (s) => `${significant(s / unitOf(s)[0])} ${unitOf(s)[1]}`;
  const scaled = (value, base, names) => {
    const at = Math.max(0, Math.min(names.length - 1, Math.floor(Math.log(Math.abs(value) || 1) / Math.log(base) + 1e-9)));
    return `${significant(value / base ** at)} ${names[at]}`;
  };
  const WRITE = {
    s: timeText,
    B: (value) => scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]),
    share: (value) => `${(100 * value).toFixed(1)} %`,
    change: (value) => `${value > 0 ? "+" : ""}${(100 * value).toFixed(1)} %`,
    $: (value) => `$${significant(value)}`,
    count: (value) => value.toLocaleString("en-US", { maximumFractionDigits: 2 }),
    "": (value) => significant(value),
  };
  const textOf = (value, unit) => (WRITE[unit] ? WRITE[unit](value) : `${significant(value)} ${unit}`);

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

  // Draws the document that stands in the page; a page that shows one after another calls it for each.
  function start(root = document) {
    for (const holder of root.querySelectorAll("script.views-data")) {
      const data = JSON.parse(holder.textContent);
      const box = holder.parentElement || root;
      for (const [id, own] of Object.entries(data)) {
        const section = box.querySelector(`#${CSS.escape(id)}`);
        if (!section) continue;
        setTimeout(() => { // a task each: the page answers between them
          if (own.plots) section.querySelectorAll(".plot").forEach((plot, at) => curve(plot, own.plots[at]));
          else if (own.runs) heatmap(section, own);
          else if (own.start && own.start.length) timeline(section, section.querySelector("canvas"), own);
        });
      }
    }
    for (const table of root.querySelectorAll("table.rows")) sortable(table);
  }

  // A canvas of this height, empty, as sharp as the screen; a pen that counts in pixels of the page.
  function cleared(canvas, height) {
    const ratio = devicePixelRatio || 1, pen = canvas.getContext("2d");
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(canvas.clientWidth * ratio);
    canvas.height = Math.round(height * ratio);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    return pen;
  }
  // Drawn now, when its room changes, and when the colours do.
  function keepDrawn(canvas, repaint) {
    let width = canvas.clientWidth;
    repaint();
    new ResizeObserver(() => { if (canvas.clientWidth !== width) { width = canvas.clientWidth; repaint(); } }).observe(canvas);
    for (const change of ["(prefers-color-scheme: dark)", "print"]) matchMedia(change).addEventListener("change", repaint);
  }
  const colourOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  function timeline(section, canvas, ops) {
    const pen = canvas.getContext("2d");
    const groups = [];
    let first = 0;
    for (const lane of ops.lanes) {
      lane.first = first;
      first += lane.count;
      const last = groups[groups.length - 1];
      if (last && last.name === lane.group) last.lanes.push(lane);
      else groups.push({ name: lane.group, lanes: [lane] });
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
    const gutter = Math.max(canvas.clientWidth < 500 ? 76 : 124, 20 + widest(groups.map((group) => group.name), "12px system-ui, sans-serif") +
      widest(ops.lanes.map((lane) => lane.name.slice(0, 10)), "11px system-ui, sans-serif"));
    const top = 24, groupGap = 8;
    const laneHeight = Math.max(5, Math.min(15, Math.floor(690 / Math.max(1, ops.lanes.length)) - 1));
    let y = top + 4;
    for (const group of groups) {
      group.y = y;
      for (const lane of group.lanes) { lane.y = y; y += laneHeight + 1; }
      y += groupGap;
    }
    const height = y;
    const span = Math.max(1, ops.span), hit = new Set(ops.marked);
    let from = 0, to = span, width = 0, selecting = null, colours = {}, dragged = null;

    const px = (t) => gutter + (t - from) / (to - from) * (width - gutter - 8);
    const at = (x) => from + (x - gutter) / (width - gutter - 8) * (to - from);

    function readColours() {
      colours = Object.fromEntries(["ink", "quiet", "rule", "soft", "accent", "mark"].map((name) => [name, colourOf(name)]));
      colours.of = ops.categories.map((category) => colourOf(category.slot));
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
      width = canvas.clientWidth;
      cleared(canvas, height);
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
        if (hit.has(i)) { pen.strokeStyle = colours.mark; pen.lineWidth = 2; pen.strokeRect(left + 1, lane.y + 1, Math.max(1, wide - 2), laneHeight - 2); }
        if (wide > 34 && laneHeight >= 11) label(ops.labels[ops.label[i]], Math.max(left, gutter), right, lane.y, category);
      }
      return drawn;
    }
    function label(text, left, right, y, category) {
      const room = right - left - 8;
      if (room < 22) return;
      pen.fillStyle = colours.on[category];
      const fits = Math.floor(room / (pen.measureText(text).width / text.length));
      if (fits < Math.min(4, text.length)) return;
      const shown = fits < text.length ? `${text.slice(0, fits - 1)}…` : text;
      pen.fillText(shown, left + 4, y + laneHeight / 2 + 0.5);
    }
    function axis() {
      const [seconds, unit] = unitOf((ops.first + to) / 1e9), size = seconds * 1e9;
      const rough = (to - from) / size / Math.max(2, (width - gutter) / 110);  // round in the unit that is said
      const power = 10 ** Math.floor(Math.log10(rough));
      const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough) * size;
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
        for (const lane of group.lanes) pen.fillText(lane.name.slice(0, 10), gutter - 8, lane.y + laneHeight / 2);
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
      showTip(`${ops.labels[ops.label[i]]}\n${timeText(ops.length[i] / 1e9)} · ${ops.categories[ops.category[i]].label}\n` +
        `${lane.group} ${lane.name}, from ${timeText((ops.first + ops.start[i]) / 1e9)}`, event);
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
    for (const button of section.querySelectorAll("[data-zoom]")) {
      button.addEventListener("click", () => {
        if (button.dataset.zoom === "all") view(0, span);
        else zoom(button.dataset.zoom === "in" ? 0.5 : 2, (from + to) / 2);
      });
    }
    keepDrawn(canvas, () => { readColours(); draw(); });
  }

  // A heat map: columns of fields, wrapped into lines that fill the width. Values travel as runs of the few there are.
  function heatmap(section, heat) {
    const canvas = section.querySelector("canvas.map"), scale = section.querySelector("canvas.scale"), SHADES = 96;
    const values = new Int32Array(heat.columns * heat.rows), tips = new Map();
    for (let i = 0, at = 0; i < heat.runs.length; i += 2) { values.fill(heat.runs[i], at, at + heat.runs[i + 1]); at += heat.runs[i + 1]; }
    for (let i = 0; i < heat.marked.length; i += 2) tips.set(heat.marked[i], [...(tips.get(heat.marked[i]) || []), heat.texts[heat.marked[i + 1]]]);
    let palette = [], mark = "";
    function readColours() {
      const stops = [0, 1, 2, 3, 4].map((i) => colourOf(`heat-${i}`));
      palette = Array.from({ length: SHADES }, (_, shade) => {
        const place = shade / (SHADES - 1) * (stops.length - 1), low = Math.min(Math.floor(place), stops.length - 2);
        pen.fillStyle = `color-mix(in srgb, ${stops[low + 1]} ${100 * (place - low)}%, ${stops[low]})`;
        return pen.fillStyle;
      });
      mark = colourOf("mark");
    }
    const shadeOf = (value) => Math.max(0, Math.min(SHADES - 1, Math.round((value - heat.low) / (heat.high - heat.low) * (SHADES - 1))));
    const pen = canvas.getContext("2d"), edge = 2;  // room for an outline
    let size = 0, wide = 0, across = 0, lineHeight = 0, width = 0;
    const gap = () => Math.max(3, Math.min(8, size));
    function draw() {
      width = canvas.clientWidth;
      const room = heat.rows > 24 ? 640 : 440;
      for (size = 22; size >= 1; size--) {
        across = Math.max(1, Math.floor((width - 2 * edge) / size));
        lineHeight = heat.rows * size + gap();
        if (size === 1 || Math.ceil(heat.columns / across) * lineHeight <= room) break;
      }
      wide = heat.columns <= across ? Math.min(3 * size, Math.floor((width - 2 * edge) / heat.columns)) : size;  // one line stretches
      cleared(canvas, Math.ceil(heat.columns / across) * lineHeight - gap() + 2 * edge);
      const inset = size >= 5 ? 1 : 0;
      const place = (at) => {
        const column = Math.floor(at / heat.rows);
        return [edge + column % across * wide, edge + Math.floor(column / across) * lineHeight + at % heat.rows * size];
      };
      let drawn = 0;
      for (let at = 0; at < values.length; at++) {
        if (values[at] < 0) continue;
        const [x, y] = place(at);
        pen.fillStyle = palette[shadeOf(heat.values[values[at]])];
        pen.fillRect(x, y, wide - inset, size - inset);
        drawn++;
      }
      const line = size >= 10 ? 2 : 1;
      for (const at of tips.keys()) {
        const [x, y] = place(at);
        pen.fillStyle = mark;
        pen.fillRect(x - line, y - line, wide - inset + 2 * line, size - inset + 2 * line);
        if (size < 3) continue;
        pen.fillStyle = palette[shadeOf(heat.values[values[at]])];
        pen.fillRect(x, y, wide - inset, size - inset);
      }
      canvas.dataset.drawn = drawn;
      canvas.dataset.marked = tips.size;
    }
    canvas.addEventListener("pointermove", (event) => {
      const x = event.offsetX - edge, y = event.offsetY - edge, line = Math.floor(y / lineHeight);
      const row = Math.floor((y - line * lineHeight) / size), place = Math.floor(x / wide), column = line * across + place;
      const at = column * heat.rows + row;
      if (x < 0 || y < 0 || place >= across || row >= heat.rows || column >= heat.columns || values[at] < 0) return hideTip();
      const name = (labels, what, i) => labels[i] || (what ? `${what} ${i}` : "");
      const where = [name(heat.column_labels, heat.column, column), name(heat.row_labels, heat.row, row)].filter(Boolean).join(", ");
      showTip([where, `${heat.number} ${textOf(heat.values[values[at]], heat.unit)}`, ...(tips.get(at) || [])].join("\n"), event);
    });
    canvas.addEventListener("pointerleave", hideTip);
    keepDrawn(canvas, () => {
      readColours();
      draw();
      scale.width = SHADES;
      scale.height = 1;
      const strip = scale.getContext("2d");
      palette.forEach((colour, i) => { strip.fillStyle = colour; strip.fillRect(i, 0, 1, 1); });
    });
  }

  // What is under the pointer, or beside the last point that the arrow keys chose; and a limit that can be moved.
  function curve(plot, data) {
    const cross = plot.querySelector(".cross"), place = (axis, value) => (axis.log
      ? Math.log(value / axis.low) / Math.log(axis.high / axis.low) : (value - axis.low) / (axis.high - axis.low));
    const all = data.series.flatMap((series) => series.x.map((x, i) => ({ series, i, x: place(data.x, x), y: place(data.y, series.y[i]) })));
    all.sort((a, b) => a.x - b.x);
    const words = (point) => {
      const label = point.series.labels[point.i];
      return [label || point.series.name, `${data.x.name} ${textOf(point.series.x[point.i], data.x.unit)}`,
        `${data.y.name} ${textOf(point.series.y[point.i], data.y.unit)}`].filter(Boolean).join("\n");
    };
    function tell(point, event) {
      cross.style.display = "block";
      cross.style.left = `${100 * point.x}%`;
      const beside = data.series.filter((series) => series !== point.series && series.form !== "points" && series.x.length).map((series) => {
        let i = series.x.findIndex((x) => place(data.x, x) > point.x + 1e-9);
        i = i < 0 ? series.x.length - 1 : Math.max(0, i - 1);
        return `${series.name} ${textOf(series.y[i], data.y.unit)}`;
      });
      showTip([words(point), ...beside.slice(0, 8)].join("\n"), event);
    }
    const leave = () => { cross.style.display = "none"; hideTip(); };
    plot.addEventListener("pointermove", (event) => {
      const area = plot.getBoundingClientRect(), x = (event.clientX - area.left) / area.width, y = 1 - (event.clientY - area.top) / area.height;
      let best = null, least = Infinity;
      for (const point of all) {
        const far = ((point.x - x) * area.width) ** 2 + ((point.y - y) * area.height) ** 2 * (point.series.form === "points" ? 1 : 0.05);
        if (far < least) { best = point; least = far; }
      }
      if (best) tell(best, event);
    });
    plot.addEventListener("pointerleave", leave);
    plot.addEventListener("blur", leave);
    let at = -1;
    plot.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step || !all.length) return;
      at = Math.max(0, Math.min(all.length - 1, at + step));
      const area = plot.getBoundingClientRect();
      tell(all[at], { clientX: area.left + all[at].x * area.width, clientY: area.top + (1 - all[at].y) * area.height });
      plot.setAttribute("aria-label", words(all[at]));
      event.preventDefault();
    });
    const figure = plot.closest("figure"), range = figure.querySelector(".slider input");
    if (!range) return;
    const line = plot.querySelector(".limit"), told = figure.querySelector(".told"), key = plot.closest("section").querySelector(".limit-text");
    // Highest x up to which every point keeps the limit, between two points on a straight line.
    function most(series, limit) {
      const points = series.x.map((x, i) => [x, series.y[i]]).sort((a, b) => a[0] - b[0]);
      const over = points.findIndex((point) => point[1] > limit);
      const say = (x) => textOf(x, data.x.unit);
      if (over < 0) return `${say(points.at(-1)[0])} or more`;
      if (over === 0) return `less than ${say(points[0][0])}`;
      const [[x0, y0], [x1, y1]] = [points[over - 1], points[over]];
      return say(x0 + (x1 - x0) * (limit - y0) / (y1 - y0));
    }
    function show() {
      const share = Number(range.value), limit = data.y.log ? data.y.low * (data.y.high / data.y.low) ** share : data.y.low + share * (data.y.high - data.y.low);
      line.style.bottom = `${100 * share}%`;
      const text = textOf(limit, data.y.unit);
      range.setAttribute("aria-valuetext", text);
      if (key) key.textContent = text;
      told.textContent = `${text} is kept up to ` + data.series.filter((series) => series.x.length).map((series) => `${most(series, limit)} (${series.name})`).join(", ");
    }
    const drag = (event) => {
      if (event.type === "pointermove" && !(event.buttons & 1)) return;
      const area = plot.getBoundingClientRect();
      range.value = Math.max(0, Math.min(1, 1 - (event.clientY - area.top) / area.height));
      event.preventDefault();
      show();
    };
    plot.addEventListener("pointerdown", drag);
    plot.addEventListener("pointermove", drag);
    range.addEventListener("input", show);
    show();
  }

  // A column's name sorts by it; a second time, the other way round.
  function sortable(table) {
    const body = table.tBodies[0];
    if (table.tBodies.length !== 1 || body.rows.length < 4 || !table.tHead) return;
    const amount = (text) => {
      const found = /^([+\u2212-]?)\$?([\d,.]+)\s*(\S*)/.exec(text);
      if (!found || /^\d+-\d\d-\d\d/.test(text)) return null;  // a date sorts as text
      const units = { ...Object.fromEntries(TIMES.map(([size, name]) => [name, size])), KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40 };
      return (found[1] && found[1] !== "+" ? -1 : 1) * Number(found[2].replaceAll(",", "")) * (units[found[3]] || 1);
    };
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      if (head.tagName !== "TH") return;
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const key = (row) => row.cells[column].textContent.trim();
        const rows = [...body.rows].map((row) => [amount(key(row)), key(row), row]);
        rows.sort((a, b) => (a[0] !== null && b[0] !== null ? a[0] - b[0] : a[1].localeCompare(b[1])) * (down ? -1 : 1));
        body.append(...rows.map((row) => row[2]));
      });
    });
  }

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const source = document.getElementById(button.dataset.copy), before = button.textContent;
    try { await navigator.clipboard.writeText(source.textContent); button.textContent = "Copied"; }
    catch { source.hidden = false; getSelection().selectAllChildren(source); button.textContent = "Selected"; }
    setTimeout(() => { button.textContent = before; }, 1500);
  });

  window.windtunnel = { textOf, start, cleared, keepDrawn, colourOf };  // for the scripts behind this one
  if (document.querySelector("script.views-data")) start();
  if (parent !== window) new ResizeObserver(() => parent.postMessage({ height: document.body.offsetHeight }, "*")).observe(document.body);
})();
