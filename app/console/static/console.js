// What the pages do besides, where scripts run: every page works without this file, except that it does not move.
"use strict";
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];

  // Times: the page has UTC, the browser knows its own zone.
  function localTimes(within) {
    const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
    for (const time of all("time[datetime]:not([data-local])", within)) {
      const at = new Date(time.dateTime);
      if (Number.isNaN(at.getTime())) continue;
      time.dataset.local = "1";
      time.title = `${time.title}\n${at.toLocaleString("sv-SE")} ${zone}`;
    }
  }

  // Commands: a button that copies.
  function copyButtons(within) {
    for (const code of all(".cli:not([data-copy])", within)) {
      code.dataset.copy = "1";
      const button = document.createElement("button");
      button.type = "button";
      button.className = "copy";
      button.textContent = "copy";
      button.setAttribute("aria-label", "Copy the text");
      button.addEventListener("click", async () => {
        try {
          await navigator.clipboard.writeText(code.querySelector(".copied").textContent);
          button.textContent = "copied";
        } catch {
          const range = document.createRange();
          range.selectNodeContents(code.querySelector(".copied"));
          getSelection().removeAllRanges();
          getSelection().addRange(range);
          button.textContent = "selected";
        }
        setTimeout(() => { button.textContent = "copy"; }, 2000);
      });
      code.append(button);
    }
  }

  // Lists with boxes: select all of the page, and how many are selected.
  function selections(within) {
    for (const form of all("form.bulk", within)) {
      const boxes = all("input[name=ids]", form);
      const whole = form.querySelector(".select-all");
      const count = form.querySelector(".selected-count");
      if (!whole) continue;
      const show = () => {
        const ticked = boxes.filter((box) => box.checked).length;
        count.textContent = `(${ticked})`;
        whole.checked = ticked === boxes.length;
        whole.indeterminate = ticked > 0 && ticked < boxes.length;
        for (const box of boxes) box.closest("tr").classList.toggle("ticked", box.checked);
      };
      whole.addEventListener("change", () => {
        for (const box of boxes) box.checked = whole.checked;
      });
      // Who ticks a box means the ticked ones, where there is another choice; who chooses the other one ticks none.
      const selected = form.querySelector("input[name=scope][value=selected]");
      form.addEventListener("change", (event) => {
        if (selected && event.target.type === "checkbox") selected.checked = true;
        if (event.target.name === "scope" && !selected.checked) for (const box of boxes) box.checked = false;
        show();
      });
      show();
    }
  }

  // Curves: drawn from the table beside them, which is what there is without a script.
  const charts = [];
  const whole = [...Array(13).keys()].flatMap((power) => [1, 2, 5].map((digit) => digit * 10 ** power));
  function draw() {
    for (const chart of charts.splice(0)) chart.destroy();
    if (typeof uPlot === "undefined") return;
    const style = getComputedStyle(document.documentElement);
    const ink = (name) => style.getPropertyValue(name).trim();
    const colours = [ink("--curve-1"), ink("--curve-2"), ink("--curve-3"), ink("--curve-4")];
    for (const place of all(".chart")) {
      const table = document.getElementById(place.dataset.source);
      if (!table || !place.clientWidth) continue;
      const columns = place.dataset.columns.split(" ").map(Number);
      const heads = all("thead th", table).map((cell) => cell.textContent);
      const rows = all("tbody tr", table);
      const number = (text) => (text === "" ? null : Number(text));
      const data = [
        rows.map((row) => Number(row.dataset.at)),
        ...columns.map((column) => rows.map((row) => number(row.cells[column].textContent))),
      ];
      const axis = { stroke: ink("--dim"), grid: { stroke: ink("--line"), width: 1 }, ticks: { stroke: ink("--line"), width: 1 }, font: "11px system-ui, sans-serif" };
      const short = (value) => Math.abs(value) >= 1e6 ? `${value / 1e6}M` : Math.abs(value) >= 1e4 ? `${value / 1e3}k` : String(value);
      // UTC, as everywhere, and as fine as the ticks are: the date, date and time, or the time, with seconds.
      const days = data[0].at(-1) - data[0][0] > 86400;
      const moment = (at, step) => {
        const text = new Date(at * 1000).toISOString().replace("T", " ");
        if (step >= 86400) return text.slice(5, 10);
        return text.slice(days ? 5 : 11, step < 60 ? 19 : 16);
      };
      // A value without neighbours is no line, so it is drawn as a point.
      const alone = (values) => values.flatMap((value, index) =>
        value !== null && (values[index - 1] ?? null) === null && (values[index + 1] ?? null) === null ? [index] : []);
      const isolated = data.slice(1).map(alone);
      const last = (index) => data[index].findLast((value) => value !== null) ?? null;
      place.replaceChildren();
      charts.push(new uPlot({
        width: place.clientWidth,
        height: 170,
        tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
        cursor: { sync: { key: "target" }, drag: { x: false, y: false } },
        scales: { y: { range: (_chart, _least, most) => [0, most > 0 ? most * 1.1 : 1] } },
        axes: [{ ...axis, space: days ? 96 : 72, values: (_chart, ticks, _axis, _space, step) => ticks.map((tick) => moment(tick, step)), label: "UTC", labelSize: 14, labelFont: "10px system-ui, sans-serif" }, { ...axis, size: 52, ...(place.dataset.whole ? { incrs: whole } : {}), values: (_chart, ticks) => ticks.map((tick) => short(tick)) }],
        series: [
          { label: "UTC", value: (_chart, at) => new Date((at ?? data[0].at(-1)) * 1000).toISOString().slice(0, 19).replace("T", " ") },
          ...columns.map((column, index) => ({
            label: heads[column],
            stroke: colours[index],
            width: 1.5,
            dash: [[], [6, 3], [2, 3], [8, 3, 2, 3]][index],
            fill: columns.length === 1 ? ink("--curve-ground") : undefined,
            points: { show: true, size: 5, fill: colours[index], filter: (_chart, at) => isolated[at - 1] },
            // Where the pointer is, else the newest one.
            value: (_chart, value, at, where) => {
              const shown = where === null || where === undefined ? last(at) : value;
              return shown === null ? "–" : `${shown}${place.dataset.unit}`;
            },
          })),
        ],
      }, data, place));
    }
  }

  // The theme: that of the system, until somebody chooses.
  function themeSwitch() {
    const button = document.getElementById("theme");
    button.addEventListener("click", () => {
      const root = document.documentElement;
      const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = dark ? "light" : "dark";
      try {
        localStorage.setItem("bucketwire-theme", root.dataset.theme);
      } catch {
        // It lasts for this page then.
      }
      draw();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  }

  // In a narrow window the pages' names are one line that scrolls: to the one of this page.
  function showPlace() {
    const nav = document.querySelector(".nav");
    const here = nav && nav.querySelector("[aria-current]");
    if (!here || nav.scrollWidth <= nav.clientWidth) return;
    const [inner, outer] = [here.getBoundingClientRect(), nav.getBoundingClientRect()];
    nav.scrollLeft += inner.left - outer.left - (nav.clientWidth - inner.width) / 2;
  }

  // In a narrow window the filters are folded, unless one of them is wrong or in use.
  function foldFilters() {
    const narrow = matchMedia("(max-width: 860px)").matches;
    for (const fold of all("details.fold:not(.always)")) {
      if (!fold.querySelector("[aria-invalid], :focus")) fold.open = !narrow;
    }
  }

  // Searches: the address has only what is filled in, so that it can be kept as a link.
  function shortAddresses() {
    for (const form of all("form.filters[method=get]")) {
      form.addEventListener("submit", () => {
        const blank = all("input, select", form).filter((each) => each.value === "" && !each.disabled);
        for (const each of blank) each.disabled = true;
        setTimeout(() => { for (const each of blank) each.disabled = false; });
      });
    }
  }

  function prepare(within) {
    for (const hidden of all(".needs-script", within)) hidden.hidden = false;
    localTimes(within);
    copyButtons(within);
    selections(within);
  }

  // Live parts: they stand still while nobody looks, and while somebody selects a text or is on a button in them.
  document.addEventListener("htmx:beforeRequest", (event) => {
    const chosen = getSelection();
    const selecting = chosen && !chosen.isCollapsed && event.target.contains(chosen.anchorNode);
    const focused = event.target.contains(document.activeElement) && !document.activeElement.id; // it would be lost
    if (document.hidden || selecting || focused) event.preventDefault();
  });

  // While nothing answers, what the page shows is as old as the last answer: it says so, and is grey.
  let answered = Date.now();
  function hear() {
    answered = Date.now();
    document.getElementById("no-answer")?.remove();
    document.body.classList.remove("stale");
  }
  function missAnswer() {
    if (document.getElementById("no-answer")) return;
    const message = document.createElement("p");
    message.id = "no-answer";
    message.className = "notice bad";
    message.setAttribute("role", "alert");
    const since = new Date(answered).toISOString().slice(11, 19);
    message.textContent = `No answer since ${since} UTC. What this page shows may be old; it asks again every few seconds.`;
    document.getElementById("main").prepend(message);
    document.body.classList.add("stale");
  }
  document.addEventListener("htmx:afterRequest", (event) => {
    const status = event.detail.xhr ? event.detail.xhr.status : 0;
    if (event.detail.successful) hear();
    else if (!status || status >= 500) missAnswer(); // the others are answers, such as that a target was removed
  });
  document.addEventListener("bucketwire:answer", hear); // of what another script asks
  document.addEventListener("bucketwire:no-answer", missAnswer);

  // What somebody has opened in a live part stays open.
  let opened = [];
  document.addEventListener("htmx:beforeSwap", (event) => {
    opened = all("details[id][open]", event.detail.target).map((each) => each.id);
  });
  document.addEventListener("htmx:afterSettle", () => {
    const live = document.getElementById("live");
    for (const id of opened.splice(0)) document.getElementById(id)?.setAttribute("open", "");
    prepare(live || document);
  });

  document.addEventListener("DOMContentLoaded", () => {
    themeSwitch();
    prepare(document);
    shortAddresses();
    foldFilters();
    showPlace();
    draw();
    const here = new URL(location.href);
    if (here.searchParams.has("notice")) {
      here.searchParams.delete("notice");
      history.replaceState(null, "", here);
    }
    let width = innerWidth;
    addEventListener("resize", () => {
      if (width !== innerWidth) {
        draw();
        foldFilters();
        showPlace();
      }
      width = innerWidth;
    });
  });
})();
