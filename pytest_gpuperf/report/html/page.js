/* Draws the figures of the page with ECharts from the JSON in it. Everything that is text goes in
   as text: nothing is ever made of a string of HTML. */
(function () {
  "use strict";

  const drawings = JSON.parse(document.getElementById("drawings").textContent);
  const drawn = [];

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

  const BAR = 16, GAP = 10;

  /* Bars lie, so that names are read without turning the head. Long names stand above their bar. */
  function bars(drawing, panel, looks, width) {
    const stacked = drawing.shape === "stack";
    const lanes = stacked ? 1 : panel.series.length;
    const longest = Math.max(...panel.names.map((name) => name.length));
    const above = longest > (width < 360 ? 10 : width < 500 ? 18 : 26);
    const lane = stacked ? 30 : BAR;
    const slot = lanes * lane + GAP + (above ? 18 : 0);
    const totals = panel.names.map((_, at) => {
      let sum = 0;
      for (const one of panel.series) for (const item of one.items) if (item.at === at) sum += item.value;
      return sum;
    });
    return {
      height: panel.names.length * slot + 30,
      option: {
        grid: { left: 2, right: stacked ? 18 : 66, top: 4, bottom: 2, containLabel: true },
        xAxis: {
          type: "value", max: drawing.most === null ? undefined : drawing.most,
          interval: drawing.most === null ? undefined : drawing.most / 4, splitNumber: 3,
          axisLabel: { color: looks.of("soft"), formatter: (value) => tick(value, panel.unit), hideOverlap: true },
          splitLine: { lineStyle: { color: looks.of("line") } },
        },
        yAxis: {
          type: "category", inverse: true, data: panel.names, axisTick: { show: false },
          axisLine: { show: !above, lineStyle: { color: looks.of("soft") } },
          axisLabel: above
            ? { color: looks.of("ink"), inside: true, interval: 0, align: "left", verticalAlign: "bottom", padding: [0, 0, (lanes * lane) / 2 + 2, 0], margin: 2, width: width - 20, overflow: "truncate" }
            : { color: looks.of("ink"), interval: 0 },
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

  function axis(side, wanted, looks) {
    const unit = ["ns", "ms", "%", "instructions/cycle", "FLOP/byte", "FLOP/s", ""].includes(wanted.unit) ? "" : " (" + wanted.unit + ")";
    return {
      type: wanted.logarithmic ? "log" : "value", name: wanted.title + unit, nameLocation: "middle",
      nameGap: side === "x" ? 30 : 52, nameTextStyle: { color: looks.of("soft") },
      boundaryGap: wanted.logarithmic ? undefined : [0, "8%"],
      axisLabel: { color: looks.of("soft"), formatter: (value) => tick(value, wanted.unit), hideOverlap: true },
      axisLine: { show: true, lineStyle: { color: looks.of("soft") } },
      splitLine: { lineStyle: { color: looks.of("line") } }, splitNumber: 4,
    };
  }

  function points(drawing, panel, looks, width) {
    const items = panel.series.flatMap((one) => one.items);
    const largest = Math.max(...items.map((item) => item.size), 0);
    const area = (item) => (largest ? 6 + 34 * Math.sqrt(item.size / largest) : 14);
    const named = items.length <= 12;
    const xs = items.map((item) => item.x), ys = items.map((item) => item.value);
    const series = panel.series.map((one) => ({
      type: "scatter", name: one.name, cursor: "default",
      symbolSize: (_, at) => area(at.data.item),
      label: { show: named, formatter: (at) => at.data.item.name, position: width < 500 ? "top" : "right", color: looks.of("ink"), fontFamily: looks.font },
      labelLayout: { hideOverlap: true, moveOverlap: "shiftY" },
      emphasis: { scale: 1.2 },
      data: one.items.map((item) => ({
        value: [item.x, item.value], item,
        itemStyle: { ...painted(item, looks), opacity: named ? 1 : 0.75, borderColor: looks.of("paper"), borderWidth: 1 },
      })),
    }));
    for (const roof of drawing.roofs) series.push(line(roof, xs, ys, looks));
    return {
      height: 380,
      option: {
        grid: { left: 64, right: named && width >= 500 ? 110 : 30, top: 22, bottom: 50 },
        xAxis: axis("x", drawing.axes[0], looks),
        yAxis: axis("y", drawing.axes[1], looks),
        series,
      },
    };
  }

  /* A roof: up to its ridge, and flat to the right end of what is drawn. */
  function line(roof, xs, ys, looks) {
    const ridge = roof.top / roof.slope;
    const left = Math.min(...xs, ridge) / 2, right = Math.max(...xs, ridge) * 4;
    return {
      type: "line", name: roof.name, symbol: "none", silent: true, lineStyle: { color: looks.of("soft"), width: 1.5 },
      endLabel: { show: true, formatter: () => roof.name, color: looks.of("soft"), fontFamily: looks.font, offset: [-6, -10], align: "right", backgroundColor: looks.of("paper"), padding: [1, 3] }, z: 4,
      data: [[left, left * roof.slope], [ridge, roof.top], [right, roof.top]],
    };
  }

  const HEADER = 20, TITLE = 22, LANE = 56, NARROWEST = 40, LEFT = 50, SPILL = 16, FEW = 12;

  /* Lines under each other, each on its own scale: four that cross each other are read by nobody. */
  function lanes(drawing, panel, looks, width) {
    const left = LEFT, right = 28;
    const top = panel.bands.length ? HEADER : 0;
    const end = panel.x[panel.x.length - 1];
    const last = panel.series.length - 1;
    const grid = panel.series.map((_, at) => ({ left, right, top: top + TITLE + at * (TITLE + LANE), height: LANE, outerBoundsMode: "none" }));
    const xAxis = panel.series.map((_, at) => ({
      type: "value", gridIndex: at, min: 0, max: end, splitNumber: 4,
      name: at === last ? "time since the step began" : "", nameLocation: "middle", nameGap: 26, nameTextStyle: { color: looks.of("soft") },
      axisLabel: { show: at === last, color: looks.of("soft"), formatter: (value) => tick(value, drawing.axes[0].unit), hideOverlap: true },
      axisTick: { show: at === last }, axisLine: { lineStyle: { color: looks.of("soft") } }, splitLine: { show: false },
      axisPointer: { show: true, triggerTooltip: true, label: { show: false }, lineStyle: { color: looks.of("ink"), type: "solid" } },
    }));
    const yAxis = panel.series.map((one, at) => {
      const most = highest(one, drawing.most);
      return {
        type: "value", gridIndex: at, min: 0, max: most, interval: (drawing.most || most) / 2,
        name: one.name, nameLocation: "end", nameGap: 5, nameTextStyle: { color: looks.of("ink"), align: "left", padding: [0, 0, 0, 4] },
        axisLabel: { color: looks.of("soft"), formatter: (value) => tick(value, one.unit), fontSize: 11, showMaxLabel: most === (drawing.most || most) },
        splitLine: { lineStyle: { color: looks.of("line") } }, axisPointer: { show: false },
      };
    });
    return {
      height: top + (last + 1) * (TITLE + LANE) + 44,
      option: {
        grid, xAxis, yAxis, axisPointer: { link: [{ xAxisIndex: "all" }] },
        tooltip: {
          ...tooltip(drawing, looks), trigger: "axis",
          formatter: (hovered) => (hovered.length ? moment(drawing, panel, hovered[0].dataIndex) : ""),
        },
        series: panel.series.flatMap((one, at) => lane(panel, one, at, looks, width - left - right)),
      },
    };
  }

  /* Where a lane ends: hardware says a little more than 100 % at times. */
  function highest(one, most) {
    const found = Math.max(...one.means, ...one.highest);
    return most !== null && found <= most ? most : Math.ceil(found / 10) * 10 || 1;
  }

  /* The mean as a line; what is under the lowest value filled, and up to the highest lightly. */
  function lane(panel, one, at, looks, width) {
    const colour = looks.of(one.colour);
    const common = { type: "line", xAxisIndex: at, yAxisIndex: at, silent: true, symbol: "none", cursor: "default" };
    const lowest = one.lowest.length ? one.lowest : one.means;
    const spread = one.highest.map((value, place) => (value === null ? null : value - lowest[place]));
    const filled = (values, opacity) => ({
      ...common, stack: "range" + at, lineStyle: { width: 0 }, areaStyle: { color: colour, opacity },
      data: values.map((value, place) => [panel.x[place], value]),
    });
    const alone = (place) => one.means[place] !== null && (one.means[place - 1] ?? null) === null && (one.means[place + 1] ?? null) === null;
    return [
      filled(lowest, 0.45), ...(spread.length ? [filled(spread, 0.25)] : []),
      {
        ...common, name: one.name, lineStyle: { color: colour, width: 1.2 }, itemStyle: { color: colour },
        data: one.means.map((value, place) => ({ value: [panel.x[place], value], ...(alone(place) ? { symbol: "circle", symbolSize: 3 } : {}) })),
        markArea: { silent: true, data: marked(panel, at === 0, looks, width) },
      },
    ];
  }

  /* Bands behind a lane. Over the first they are named, where there is room for the name: above the
     band, or beside it with an arrow. */
  function marked(panel, named, looks, width) {
    const end = panel.x[panel.x.length - 1];
    const pen = document.createElement("canvas").getContext("2d");
    pen.font = "12px " + looks.font;
    let free = -LEFT;
    return panel.bands.map((band, at) => {
      const [from, to] = [band.begin, band.end].map((x) => (Math.min(Math.max(x / end, 0), 1) || 0) * width);
      const wide = pen.measureText(band.name).width + 4;
      const label = { show: false, position: "top", distance: TITLE + 2, color: looks.of("soft"), fontFamily: looks.font, fontSize: 12 };
      const place = (text, begin, long, align) => {
        if (!named || begin < free || begin + long > width + 8) return false;
        free = begin + long;
        Object.assign(label, { show: true, formatter: () => text, align, offset: align === "center" ? [0, 0] : [align === "right" ? (to - from) / 2 : (from - to) / 2, 0] });
        return true;
      };
      if (wide <= to - from + SPILL && to - from >= NARROWEST) place(band.name, (from + to - wide) / 2, wide, "center");
      else if (to - from >= NARROWEST) {
        if (place(band.name, from, to - from, "center")) Object.assign(label, { width: to - from - 8, overflow: "truncate" });
      } else if (panel.bands.length <= FEW) place(band.name + " \u25b8", from - wide - 12, wide + 12, "right") || place("\u25c2 " + band.name, to, wide + 12, "left");
      const shade = { color: looks.of("soft"), opacity: at % 2 ? 0.14 : 0.06 };
      return [{ xAxis: band.begin, itemStyle: shade, label }, { xAxis: band.end }];
    });
  }

  /* What the lines say of one moment. */
  function moment(drawing, panel, at) {
    const box = element("div", "tip");
    const list = element("dl");
    const x = panel.x[at];
    list.append(element("dt", "", drawing.axes[0].title), element("dd", "", precise(x) + " " + drawing.axes[0].unit));
    for (const band of panel.bands) if (band.begin <= x && x < band.end) list.append(element("dt", "", "phase"), element("dd", "", band.name));
    for (const one of panel.series) {
      const [value, low, high] = [one.means[at], one.lowest[at], one.highest[at]];
      if (value === null) continue;
      const range = high > low ? " (" + brief(low) + " to " + brief(high) + ")" : "";
      list.append(element("dt", "", one.name), element("dd", "now", tick(brief(value), one.unit) + range));
    }
    box.append(list);
    return box;
  }

  function precise(value) {
    return String(Number(value.toPrecision(5)));
  }

  /* Three digits, and two decimals at most. */
  function brief(value) {
    return Number(Number(value.toPrecision(3)).toFixed(2));
  }

  const SHAPES = { points, lines: lanes, bars, stack: bars };

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
    if (drawing.shape === "lines") panels.classList.add("wide");
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

  function redraw(only) {
    for (const one of drawn) {
      if (only && !only(one)) continue;
      if (one.plot) one.plot.dispose();
      Object.assign(one, chart(one.box, one.drawing, one.panel));
    }
  }

  /* Long CSV files are packed in the page. Where they cannot be unpacked they are saved as they are. */
  async function unpack(link) {
    const packed = Uint8Array.from(atob(link.href.split(",")[1]), (character) => character.charCodeAt(0));
    const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const file = await new Response(unpacked, { headers: { "Content-Type": "text/csv;charset=utf-8" } }).blob();
    const save = element("a");
    save.href = URL.createObjectURL(file);
    save.download = link.download.replace(/\.gz$/, "");
    save.click();
    setTimeout(() => URL.revokeObjectURL(save.href), 60000);
  }

  for (const link of "DecompressionStream" in window ? document.querySelectorAll('a[download$=".csv.gz"]') : []) {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      unpack(link);
    });
  }

  drawings.forEach(place);
  redraw();
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
