/* Draws the figures of the page with ECharts from the JSON in it. Everything that is text goes in
   as text: nothing is ever made of a string of HTML. */
(function () {
  "use strict";

  const drawings = JSON.parse(document.getElementById("drawings").textContent);
  const drawn = [];
  const rows = [];

  function element(tag, className, text) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  /* The colours of the scheme that is on, from the style sheet. */
  function theme() {
    const style = getComputedStyle(document.documentElement);
    return { of: (name) => style.getPropertyValue("--" + name).trim(), font: getComputedStyle(document.body).fontFamily };
  }

  const SIZES = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

  function short(value) {
    return String(Number(value.toPrecision(3)));
  }

  /* A number at an axis: shorter than in the table. */
  function tick(value, unit) {
    if (unit === "ns") {
      if (value === 0) return "0";
      return value >= 1e9 ? short(value / 1e9) + " s" : value >= 1e6 ? short(value / 1e6) + " ms" : short(value / 1e3) + " us";
    }
    if (unit === "ms") return value >= 1000 ? short(value / 1000) + " s" : short(value) + " ms";
    if (unit === "bytes") {
      const power = value < 1024 ? 0 : Math.floor(Math.log2(value) / 10);
      return short(value / 1024 ** power) + " " + ["B", "KiB", "MiB", "GiB", "TiB"][power];
    }
    if (unit === "%") return short(value) + " %";
    if (unit === "ratio") return "x" + short(value);
    for (const [size, prefix] of SIZES) if (Math.abs(value) >= size) return short(value / size) + " " + prefix;
    return short(value);
  }

  /* What the pointer is over: the whole row, with the value that is drawn in bold. */
  function tip(drawing, item) {
    const box = element("div", "tip");
    const list = element("dl");
    const row = drawing.rows[item.row];
    drawing.columns.forEach((title, at) => {
      if (row[at] === "-" || row[at] === "") return;
      list.append(element("dt", "", title), element("dd", row[at] === item.text ? "now" : "", row[at]));
    });
    box.append(list);
    return box;
  }

  function tooltip(drawing, looks) {
    return {
      trigger: "item", confine: true, renderMode: "html", enterable: false, transitionDuration: 0,
      backgroundColor: "transparent", borderWidth: 0, padding: 0, extraCssText: "box-shadow:none",
      textStyle: { fontFamily: looks.font },
      formatter: (hovered) => (hovered.data && hovered.data.item ? tip(drawing, hovered.data.item) : ""),
    };
  }

  function painted(item, looks) {
    const colour = looks.of(item.colour);
    return item.hollow
      ? { color: looks.of("paper"), borderColor: colour, borderWidth: 1.5, borderType: [4, 3] }
      : { color: colour };
  }

  const BAR = 16, GAP = 10, ABOVE = 19, NAMES = 0.46;

  /* What is measured in the page's font. */
  function pen(looks, size) {
    const made = document.createElement("canvas").getContext("2d");
    made.font = size + "px " + looks.font;
    return (text) => made.measureText(text).width;
  }

  /* The next round number: an axis ends there. */
  function round(value, unit) {
    if (!(value > 0)) return 1;
    const binary = unit === "bytes" ? 1024 ** Math.floor(Math.log2(value) / 10) : 1;
    const size = binary * 10 ** Math.floor(Math.log10(value / binary));
    return [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].find((step) => step * size >= value * 0.999) * size;
  }

  /* Everything in the charts that share their axes: those of a figure whose charts are alike. */
  function together(drawing, panel) {
    return (drawing.shared ? drawing.panels : [panel]).flatMap((one) => one.series.flatMap((series) => series.items));
  }

  /* Bars lie, so that names are read without turning the head. Long names stand above their bar. */
  function bars(drawing, panel, looks, width) {
    const stacked = drawing.shape === "stack";
    const lanes = stacked ? 1 : panel.series.length;
    const wide = pen(looks, 12);
    const longest = Math.max(...(drawing.shared ? drawing.panels : [panel]).flatMap((one) => one.names.map(wide)));
    // Where there is room for most of it a name is shortened: where the pointer is it is whole.
    const above = longest > NAMES * width && width < 560;
    const lane = stacked ? 26 : BAR;
    const slot = lanes * lane + GAP + (above ? ABOVE : 0);
    const totals = panel.names.map((_, at) => {
      let sum = 0;
      for (const one of panel.series) for (const item of one.items) if (item.at === at) sum += item.value;
      return sum;
    });
    const own = drawing.most === null && !stacked && (drawing.shared || panel.unit === "bytes");
    const most = own ? round(Math.max(...together(drawing, panel).map((item) => item.value)), panel.unit) : drawing.most;
    return {
      height: panel.names.length * slot + 30,
      option: {
        grid: { left: 2, right: stacked ? 18 : 66, top: 4, bottom: 2, containLabel: true },
        xAxis: {
          type: "value", max: most === null ? undefined : most,
          interval: most === null ? undefined : most / (own && width < 440 ? 2 : 4), splitNumber: 3,
          axisLabel: { color: looks.of("soft"), formatter: (value) => tick(value, panel.unit), hideOverlap: true },
          splitLine: { lineStyle: { color: looks.of("line") } },
        },
        yAxis: {
          type: "category", inverse: true, data: panel.names, axisTick: { show: false },
          axisLine: { show: !above, lineStyle: { color: looks.of("soft") } },
          axisLabel: above
            ? { color: looks.of("ink"), inside: true, interval: 0, align: "left", verticalAlign: "bottom", padding: [0, 0, (lanes * lane) / 2 + 3, 0], margin: 2, width: width - 20, overflow: "truncate" }
            : { color: looks.of("ink"), interval: 0, width: Math.min(longest + 2, NAMES * width), overflow: "truncate" },
          z: above ? 3 : 0,
        },
        series: panel.series.map((one) => ({
          type: "bar", name: one.name, stack: stacked ? "all" : undefined,
          barWidth: stacked ? 26 : BAR - 3, barGap: "25%", barCategoryGap: GAP, cursor: "default",
          emphasis: { focus: "none", itemStyle: { opacity: 0.85 } },
          label: {
            show: true, color: stacked ? looks.of("paper") : looks.of("ink"), position: stacked ? "inside" : "right",
            fontFamily: looks.font, fontSize: 12, distance: 4,
            formatter: (at) => {
              const item = at.data && at.data.item;
              if (!item) return "";
              if (!stacked) return item.text;
              // Of its bar, and of the longest bar: what is short has no room for its share.
              const room = width < 500 ? 0.16 : 0.08;
              return item.value / totals[item.at] >= room && item.value / Math.max(...totals) >= room / 2 ? Math.round((100 * item.value) / totals[item.at]) + " %" : "";
            },
          },
          data: slots(panel.names.length, one.items).map((item) => (item ? { value: item.value, item, itemStyle: painted(item, looks) } : { value: null })),
        })),
      },
    };
  }

  /* Items by the position of their name; a gap where a series has none. */
  function slots(count, items) {
    const found = new Array(count).fill(null);
    for (const item of items) found[item.at] = item;
    return found;
  }

  const UNITS = ["ns", "ms", "%", "instructions/cycle", "FLOP/byte", "FLOP/s", ""];

  /* An axis of points, from just below the least of these values to just above the greatest. */
  function axis(side, wanted, values, looks) {
    const unit = UNITS.includes(wanted.unit) ? "" : " (" + wanted.unit + ")";
    const [least, most] = [Math.min(...values), Math.max(...values)];
    const ends = wanted.logarithmic ? { type: "log", min: least / 1.4, max: most * 1.4 } : { type: "value", ...linear(least, most) };
    const marks = wanted.logarithmic ? { customValues: decades(ends.min, ends.max) } : {};
    return {
      ...ends, name: wanted.title + unit, nameLocation: "middle",
      nameGap: side === "x" ? 28 : 48, nameTextStyle: { color: looks.of("soft") },
      axisLabel: { color: looks.of("soft"), formatter: (value) => tick(value, wanted.unit), hideOverlap: true, ...marks },
      axisLine: { show: true, lineStyle: { color: looks.of("soft") }, onZero: false }, axisTick: marks,
      splitLine: { lineStyle: { color: looks.of("line") }, ...marks },
    };
  }

  /* From zero, unless that would leave most of the chart empty. */
  function linear(least, most) {
    const from = least > most / 4 ? least - (most - least) * 0.15 : 0;
    const interval = round((most - from || most || 1) / 5);
    return { min: Math.max(0, Math.floor(from / interval) * interval), max: Math.ceil((most * 1.02) / interval) * interval, interval };
  }

  /* Marks of a logarithmic axis: 1, 2 and 5 of each decade, or its beginning where there are many. */
  function decades(least, most) {
    const count = Math.log10(most / least);
    const marks = [];
    const every = Math.max(1, Math.ceil(count / 7));
    for (let power = Math.floor(Math.log10(least)); power <= Math.log10(most); power += every) {
      for (const step of count < 1 ? [1, 1.5, 2, 3, 5, 7] : count < 3 ? [1, 2, 5] : [1]) marks.push(step * 10 ** power);
    }
    return marks.filter((mark) => mark >= least && mark <= most);
  }

  const NAMED = 40, LARGEST = 5, DOT = 14;

  function points(drawing, panel, looks, width) {
    const every = together(drawing, panel);
    const items = panel.series.flatMap((one) => one.items);
    const largest = Math.max(...every.map((item) => item.size), 0);
    const area = (item) => (largest ? 6 + 34 * Math.sqrt(item.size / largest) : items.length > NAMED ? 8 : DOT);
    const reach = drawing.roofs.flatMap((roof) => [[roof.top / roof.slope, roof.top]]);
    const x = axis("x", drawing.axes[0], [...every.map((item) => item.x), ...reach.map((at) => at[0] * 4)], looks);
    const y = axis("y", drawing.axes[1], [...every.map((item) => item.value), ...reach.map((at) => at[1] * 1.3)], looks);
    const grid = { left: 62, right: 24, top: 14, bottom: 48 };
    const height = drawing.panels.length > 1 ? 380 : Math.min(420, 260 + 8 * items.length);
    const to = (along, value, from, long) => {
      const at = along.type === "log" ? Math.log(value / along.min) / Math.log(along.max / along.min) : (value - along.min) / (along.max - along.min);
      return from + at * long;
    };
    const spots = items.map((item) => ({
      item, r: area(item) / 2,
      x: to(x, item.x, grid.left, width - grid.left - grid.right),
      y: to(y, item.value, height - grid.bottom, grid.top + grid.bottom - height),
    }));
    const labels = named(drawing, spots, { left: grid.left, right: width - 4, top: grid.top - 10, bottom: height - grid.bottom }, looks);
    const series = panel.series.map((one) => ({
      type: "scatter", name: one.name, cursor: "default", clip: false,
      symbolSize: (_, at) => area(at.data.item),
      emphasis: { scale: 1.2 },
      data: one.items.map((item) => ({
        value: [item.x, item.value], item,
        itemStyle: { ...painted(item, looks), opacity: items.length > 12 ? 0.75 : 1, borderColor: looks.of("paper"), borderWidth: 1 },
      })),
    }));
    const heights = drawing.roofs.map((roof) => to(y, roof.top, height - grid.bottom, grid.top + grid.bottom - height));
    // Of two that are close, the lower one has its name below it.
    drawing.roofs.forEach((roof, at) => series.push(line(roof, x, heights.some((other) => other < heights[at] && heights[at] - other < 20), looks)));
    return { height, option: { grid, xAxis: x, yAxis: y, series, graphic: labels } };
  }

  /* The names of points, each where nothing else stands; with a line to its point where that is not
     beside it. Where there are many, only the largest have names. */
  function named(drawing, spots, inside, looks) {
    const weight = (spot) => spot.item.size || spot.item.x;
    const few = spots.length <= NAMED && !drawing.shared;
    const wanted = few ? spots : [...spots].sort((a, b) => weight(b) - weight(a)).slice(0, LARGEST);
    const wide = pen(looks, 12);
    const taken = spots.map((spot) => [spot.x - spot.r, spot.y - spot.r, spot.x + spot.r, spot.y + spot.r]);
    const free = (box) => box[0] >= inside.left && box[2] <= inside.right && box[1] >= inside.top && box[3] <= inside.bottom &&
      taken.every((other) => box[2] <= other[0] || box[0] >= other[2] || box[3] <= other[1] || box[1] >= other[3]);
    const made = [];
    for (const spot of [...wanted].sort((a, b) => a.y - b.y)) {
      const text = spot.item.name, long = wide(text) + 4, tall = 14;
      const places = [[spot.r + 2, -tall / 2], [-spot.r - 2 - long, -tall / 2], [-long / 2, -spot.r - tall], [-long / 2, spot.r]];
      for (let away = 18; away <= 102; away += 12) {
        for (const side of [1, -1]) for (const up of [-1, 1]) places.push([side > 0 ? spot.r + 10 : -spot.r - 10 - long, up * away - tall / 2]);
      }
      const at = places.findIndex(([dx, dy]) => free([spot.x + dx, spot.y + dy, spot.x + dx + long, spot.y + dy + tall]));
      if (at < 0) continue;
      const [dx, dy] = places[at];
      const [left, top] = [spot.x + dx, spot.y + dy];
      taken.push([left, top, left + long, top + tall]);
      made.push({ type: "text", silent: true, z: 5, x: left + 2, y: top + tall / 2, style: { text, fill: looks.of("ink"), font: "12px " + looks.font, verticalAlign: "middle", backgroundColor: looks.of("paper"), padding: [0, 1] } });
      if (at > 3) {
        const end = dx > 0 ? left : left + long;
        made.push({ type: "line", silent: true, z: 1, shape: { x1: spot.x, y1: spot.y, x2: end, y2: top + tall / 2 }, style: { stroke: looks.of("soft"), lineWidth: 0.75 } });
      }
    }
    return made;
  }

  /* A roof: up to its ridge, and flat to the right end of what is drawn. */
  function line(roof, x, below, looks) {
    const ridge = roof.top / roof.slope;
    const left = x.min, right = x.max;
    return {
      type: "line", name: roof.name, symbol: "none", silent: true, lineStyle: { color: looks.of("soft"), width: 1.5 },
      endLabel: { show: true, formatter: () => roof.name, color: looks.of("soft"), fontFamily: looks.font, offset: [-6, below ? 10 : -10], align: "right", backgroundColor: looks.of("paper"), padding: [1, 3] }, z: 4,
      data: [[left, left * roof.slope], [ridge, roof.top], [right, roof.top]],
    };
  }

  const SHAPES = { points, bars, stack: bars };

  function chart(box, drawing, panel) {
    const looks = theme();
    const width = box.clientWidth;
    const made = SHAPES[drawing.shape](drawing, panel, looks, width);
    box.style.height = made.height + "px";
    const plot = echarts.init(box, null, { renderer: "svg" });
    plot.setOption({
      animation: false, textStyle: { fontFamily: looks.font }, tooltip: tooltip(drawing, looks),
      aria: { enabled: false }, ...made.option,
    });
    return { plot, width };
  }

  function legend(drawing) {
    const list = element("ul", "legend");
    for (const entry of drawing.legend) {
      const item = element("li");
      const swatch = element("span", "swatch");
      swatch.dataset.colour = entry.colour;
      if (entry.hollow) {
        swatch.style.border = "1.5px dashed var(--" + entry.colour + ")";
      } else {
        swatch.style.background = "var(--" + entry.colour + ")";
      }
      item.append(swatch, document.createTextNode(entry.name));
      list.append(item);
    }
    return list;
  }

  function place(drawing) {
    const target = document.querySelector('[data-figure="' + CSS.escape(drawing.key) + '"]');
    if (drawing.legend.length) target.append(legend(drawing));
    const panels = element("div", drawing.panels.length > 3 ? "panels swipe" : "panels");
    rows.push({ panels, count: drawing.panels.length, least: drawing.shared ? 400 : 320 });
    if (drawing.panels.length > 3) {
      panels.tabIndex = 0;
      panels.setAttribute("role", "group");
      panels.setAttribute("aria-label", "Charts: " + drawing.title);
    }
    target.append(panels);
    for (const panel of drawing.panels) {
      const frame = element("div", "panel");
      if (panel.title) frame.append(element("h3", "", panel.title));
      const box = element("div", "plot");
      box.setAttribute("role", "img");
      box.setAttribute("aria-label", "Chart: " + drawing.title + (panel.title ? ", " + panel.title : "") + ". The table below has its values.");
      frame.append(box);
      panels.append(frame);
      drawn.push({ box, drawing, panel, plot: null, width: 0 });
    }
  }

  /* So many charts beside each other that none stands alone in its row. */
  function columns(count, width, least) {
    const most = Math.max(1, Math.floor((width + 20) / (least + 20)));
    const fewest = Math.ceil(count / most);
    const tried = [Math.ceil(count / fewest)];
    for (let other = most + (width / (most + 1) >= 290 ? 1 : 0); other > 1; other -= 1) tried.push(other);
    return tried.find((one) => one === 1 || count <= one || count % one !== 1) || tried[0];
  }

  function redraw(only) {
    for (const row of rows) row.panels.style.setProperty("--columns", columns(row.count, row.panels.clientWidth, row.least));
    for (const one of drawn) {
      // A folded figure has no width. It is drawn when it opens.
      if (one.box.closest("details:not([open])") || (only && !only(one))) continue;
      if (one.plot) one.plot.dispose();
      Object.assign(one, chart(one.box, one.drawing, one.panel));
    }
  }

  /* A button beside each command and each test's name that copies it. */
  function copies() {
    for (const code of document.querySelectorAll(".copied")) {
      const button = element("button", "copy", "copy");
      button.type = "button";
      const text = code.textContent.trim();
      button.setAttribute("aria-label", "copy " + text);
      button.addEventListener("click", async () => {
        button.textContent = (await copy(text, code)) ? "copied" : "press Ctrl+C";
        setTimeout(() => (button.textContent = "copy"), 2000);
      });
      if (code.parentElement.tagName === "PRE") code.before(button);
      else code.after(button);
    }
  }

  async function copy(text, code) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      getSelection().selectAllChildren(code);
      return document.execCommand("copy");
    }
  }

  /* What a link leads to is unfolded. */
  function unfold() {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    if (target) target.scrollIntoView();
  }

  copies();
  addEventListener("hashchange", unfold);
  drawings.forEach(place);
  redraw();
  addEventListener("toggle", () => redraw((one) => one.box.clientWidth !== one.width), true);
  unfold();
  document.documentElement.dataset.drawn = "yes";

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw());
  let waiting = 0;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => redraw((one) => one.box.clientWidth !== one.width), 100);
  });
  /* On paper: its width, and the colours of the light scheme. */
  matchMedia("print").addEventListener("change", () => redraw());
})();
