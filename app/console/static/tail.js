// The events page while it follows the log: new events are put above the others as they are recorded.
"use strict";
(() => {
  const MOST_ROWS = 200; // in the page, and waiting for it
  const MOST_KEY = 120; // characters of a key
  const FLUSH = 500; // ms between two changes of the table
  const SAY = 5000; // ms between two changes of the text that is read out
  const FAST = 20; // new events in that time; more of them are shown, but not read out
  const RETRY = 5000; // ms until the server is asked again after it has refused a stream
  const PATIENCE = 3000; // ms in which a stream that has ended may be there again before it is worth a word
  const CHECK = 5000; // ms between two questions whether the server and its database answer
  const PATIENT = 10000; // ms until such a question counts as not answered
  const LOOK = 2000; // ms until it is asked what became of the events, and twice as long each time that nothing did
  const MOST_LOOK = 30000; // ms
  const RECENT = 60000; // ms; an event of longer ago is no place to resume at

  const FOLLOWING = "Following.";
  const LOST = "The connection is lost; trying again.";

  // As `visible` of formats.py: what cannot be seen, or changes the order of what is beside it, is written out.
  function visible(text, most = 0) {
    let characters = [...text];
    if (most && characters.length > most) {
      characters = [...characters.slice(0, Math.floor((most * 2) / 3)), "…", ...characters.slice(-Math.ceil(most / 3))];
    }
    const key = document.createElement("bdi");
    key.className = "key";
    for (const character of characters) {
      if (character !== " " && /[\p{C}\p{Z}]/u.test(character)) {
        const odd = document.createElement("span");
        odd.className = "odd";
        odd.textContent = `\\u${character.codePointAt(0).toString(16).padStart(4, "0")}`;
        key.append(odd);
      } else {
        key.append(character);
        if (/[/._:,;=&?@%+~|#)\]}>-]/.test(character)) key.append(document.createElement("wbr"));
      }
    }
    return key;
  }

  function link(address, ...content) {
    const anchor = document.createElement("a");
    anchor.href = address;
    anchor.append(...content);
    return anchor;
  }

  function cell(kind, className, label, ...content) {
    const made = document.createElement(kind);
    if (className) made.className = className;
    if (label) made.dataset.label = label;
    made.append(...content);
    return made;
  }

  function dim(text) {
    return cell("span", "dim", "", text);
  }

  // One event as the server writes a row of the table: only texts and addresses are made of what it holds.
  function row(events, { id, at, name, bucket, key }) {
    const time = document.createElement("time");
    time.dateTime = at.toISOString();
    time.title = `arrived in this browser at ${time.dateTime.slice(0, 23).replace("T", " ")} UTC`;
    time.textContent = `${time.dateTime.slice(0, 19).replace("T", " ")} UTC`;
    const where = new URLSearchParams({ bucket });
    const object = cell("th", "object name", "");
    object.scope = "row";
    const folder = link(`${events}?${where}`, visible(bucket));
    folder.className = "bucket";
    where.set("key", key);
    object.append(folder, dim("/"), link(`${events}?${where}`, visible(key, MOST_KEY)));
    const made = document.createElement("tr");
    made.dataset.id = id;
    made.dataset.moving = "1";
    made.append(
      cell("td", "fix half", "Recorded", time),
      cell("td", "fix half", "Event", link(`${events}/${encodeURIComponent(id)}`, visible(name, 60))),
      object,
      cell("td", "wide", "Delivery", dim("recorded just now")),
    );
    return made;
  }

  function follow(tail) {
    const body = document.getElementById("events-found");
    const button = document.getElementById("freeze");
    const status = document.getElementById("tail-status");
    const { stream, events, search, key, prefix } = tail.dataset;
    const shown = new Set([...body.rows].map((each) => each.dataset.id));
    let source = null;
    let last = { id: tail.dataset.after, at: Date.now() };
    let state = "Connecting…";
    let frozen = false;
    let waiting = []; // the oldest first
    let dropped = 0; // of those that wait, because there are too many
    let fresh = 0; // since the text was changed
    let gap = "";
    let pause = LOOK;
    let looked = 0; // when it was asked what became of the events

    function say() {
      const counted = waiting.length + dropped;
      const held = counted ? `Frozen, ${counted} new.` : "Frozen.";
      const arrived = fresh ? ` ${fresh} new ${fresh === 1 ? "event" : "events"}.` : "";
      status.setAttribute("aria-live", fresh > FAST ? "off" : "polite");
      const text = `${frozen ? held : `${state}${arrived}`}${gap}`;
      if (status.textContent !== text) status.textContent = text;
      fresh = 0;
    }

    // The table stands still while somebody is on a link in it, or selects a text of it.
    function isUsed() {
      const chosen = getSelection();
      const selecting = chosen && !chosen.isCollapsed && body.contains(chosen.anchorNode);
      return selecting || body.contains(document.activeElement);
    }

    function flush() {
      if (frozen || !waiting.length || isUsed()) return;
      if (dropped) gap = ` ${dropped} more were not shown; a search finds them.`;
      const made = document.createDocumentFragment();
      for (const each of waiting.reverse()) made.append(row(events, each));
      body.prepend(made);
      pause = LOOK;
      while (body.rows.length > MOST_ROWS) body.rows[body.rows.length - 1].remove();
      [waiting, dropped] = [[], 0];
    }

    // What became of the events: the page of the search says so of the newest ones.
    async function look() {
      const moving = [...body.rows].filter((each) => each.dataset.moving);
      if (frozen || document.hidden || !moving.length || Date.now() - looked < pause) return;
      looked = Date.now();
      pause = Math.min(2 * pause, MOST_LOOK);
      try {
        const answer = await fetch(search, { signal: AbortSignal.timeout(PATIENT) });
        if (!answer.ok || answer.redirected) return;
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        const found = new Map([...page.querySelectorAll("#events-found tr")].map((each) => [each.dataset.id, each]));
        for (const each of moving) {
          const newer = found.get(each.dataset.id);
          if (!newer || frozen || isUsed()) continue;
          if (newer.cells[3].textContent !== each.cells[3].textContent) pause = LOOK;
          if (!newer.dataset.moving) delete each.dataset.moving;
          each.cells[3].replaceWith(document.adoptNode(newer.cells[3]));
        }
      } catch {
        // Whether anything answers is what `check` finds out.
      }
    }

    function take(message) {
      const id = message.lastEventId;
      last = { id, at: Date.now() };
      const record = JSON.parse(message.data).Records[0];
      const object = record.s3.object ? record.s3.object.key : "";
      // The page may have it already. A stream takes a prefix for a pattern, and the beginning for the key.
      if (shown.has(id) || (key ? object !== key : !object.startsWith(prefix))) return;
      if (shown.size > 10 * MOST_ROWS) shown.clear();
      shown.add(id);
      fresh += 1;
      waiting.push({ id, at: new Date(), name: record.eventName, bucket: record.s3.bucket.name, key: object });
      if (waiting.length > MOST_ROWS) {
        waiting.shift();
        dropped += 1;
      }
    }

    function change(text) {
      state = text;
      say();
    }

    function lose() {
      if (state !== LOST) change(LOST);
      document.dispatchEvent(new Event("bucketwire:no-answer"));
    }

    // A stream stays open, and says nothing, while the database is away.
    async function check() {
      if (document.hidden) return;
      try {
        const answer = await fetch(stream, { method: "HEAD", signal: AbortSignal.timeout(PATIENT) });
        if (answer.status >= 500) throw new Error("no answer");
        document.dispatchEvent(new Event("bucketwire:answer"));
        if (source.readyState === EventSource.OPEN && state !== FOLLOWING) change(FOLLOWING);
      } catch {
        lose();
      }
    }

    function connect() {
      const resumable = last.id && Date.now() - last.at < RECENT;
      const after = resumable ? `${stream.includes("?") ? "&" : "?"}after=${encodeURIComponent(last.id)}` : "";
      const lost = last.id && !resumable ? " Events may be missing here; a search finds them." : "";
      let worry = 0;
      source = new EventSource(stream + after);
      source.addEventListener("open", () => {
        clearTimeout(worry);
        gap = lost;
        worry = 0;
        change(FOLLOWING);
      });
      source.addEventListener("message", take);
      source.addEventListener("gap", (message) => {
        const { Dropped: missed } = JSON.parse(message.data);
        gap = ` Up to ${missed.atMost} ${missed.atMost === 1 ? "event was" : "events were"} missed, because this browser was too slow.`;
      });
      source.addEventListener("error", () => {
        if (source.readyState === EventSource.CLOSED) {
          clearTimeout(worry);
          lose();
          setTimeout(reconnect, RETRY);
        } else if (!worry) {
          // The browser connects again by itself, and resumes: each stream ends after some minutes.
          worry = setTimeout(lose, PATIENCE);
        }
      });
    }

    // A refused stream has no reason that a script can read: the page itself has, such as that the session has ended.
    async function reconnect() {
      try {
        const answer = await fetch(stream, { method: "HEAD" });
        if (answer.redirected || (answer.status >= 400 && answer.status < 500)) {
          location.reload();
          return;
        }
      } catch {
        // The server is away.
      }
      connect();
    }

    button.hidden = false;
    button.addEventListener("click", () => {
      frozen = !frozen;
      button.textContent = frozen ? "Resume" : "Freeze";
      flush();
      say();
    });
    addEventListener("pagehide", () => source.close());
    setInterval(flush, FLUSH);
    setInterval(say, SAY);
    setInterval(look, LOOK / 2);
    setInterval(check, CHECK);
    connect();
  }

  document.addEventListener("DOMContentLoaded", () => {
    const tail = document.getElementById("tail");
    if (tail && typeof EventSource !== "undefined") follow(tail);
  });
})();
