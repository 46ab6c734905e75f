// Live updates for pages that work without them: the server renders fragments again, this swaps those that changed.
"use strict";

(() => {
  const page = document.body;
  const source = page.dataset.live;
  const said = document.getElementById("live-said");
  const state = document.getElementById("live-state");
  let ahead = Number(page.dataset.now) - Date.now() / 1000; // the server's clock against ours
  let stream = null;
  let over = false;

  // --- time, in the words of words.span ---
  const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

  function span(seconds) {
    let left = Math.floor(seconds);
    const words = [];
    for (const [unit, size] of UNITS) {
      if (left >= size || (unit === "s" && !words.length)) {
        words.push(`${Math.floor(left / size)} ${unit}`);
        left %= size;
      } else if (words.length) break;
      if (words.length === 2) break;
    }
    return words.join(" ");
  }

  function tick() {
    const now = Date.now() / 1000 + ahead;
    for (const time of document.querySelectorAll("time[data-time]")) {
      const at = Date.parse(time.dateTime) / 1000;
      const text = span(Math.abs(at - now));
      const whole = time.dataset.time === "bare" ? text : at > now ? `in ${text}` : `${text} ago`;
      if (time.textContent !== whole) time.textContent = whole;
    }
    for (const clock of document.querySelectorAll("svg.clock")) {
      const since = Number(clock.dataset.since), until = Number(clock.dataset.until);
      const part = Math.min(1, Math.max(0, (now - since) / Math.max(0.001, until - since)));
      clock.querySelector(".gone").setAttribute("width", (100 * part).toFixed(1));
    }
  }

  // --- fragments ---
  function swap(name, html) {
    const part = document.querySelector(`[data-part="${name}"]`);
    if (!part) return;
    const held = part.contains(document.activeElement) ? document.activeElement.id : "";
    const open = [...part.querySelectorAll("details[open][id]")].map((one) => one.id);
    const sideways = [...part.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
    part.innerHTML = html;
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    part.querySelectorAll(".scroll").forEach((one, index) => { one.scrollLeft = sideways[index] || 0; });
    if (held) {
      // What had the focus may be gone: then the page keeps it, not the start of the document.
      const again = document.getElementById(held) || document.getElementById("main");
      again.focus({ preventScroll: true });
    }
  }

  // --- the stream ---
  function tell(kind, text) {
    state.hidden = false;
    state.dataset.kind = kind;
    if (state.textContent !== text) state.textContent = text;
  }

  function listen() {
    if (stream || over || document.hidden) return;
    stream = new EventSource(source);
    stream.addEventListener("open", () => tell("live", "Live"));
    stream.addEventListener("part", (event) => {
      const part = JSON.parse(event.data);
      swap(part.name, part.html);
      page.dataset.updates = Number(page.dataset.updates || 0) + 1;
    });
    stream.addEventListener("say", (event) => { said.textContent = JSON.parse(event.data).text; });
    stream.addEventListener("now", (event) => { ahead = JSON.parse(event.data).now - Date.now() / 1000; tick(); });
    stream.addEventListener("end", (event) => {
      over = true;
      hush();
      const text = JSON.parse(event.data).why;
      tell("over", text);
      said.textContent = text;
    });
    stream.addEventListener("error", () => {
      if (over) return;
      tell("paused", "Updates are paused; trying again");
      if (stream && stream.readyState === EventSource.CLOSED) { // refused: the browser gives up, we do not yet
        hush();
        setTimeout(listen, 15000);
      }
    });
  }

  function hush() {
    if (stream) stream.close();
    stream = null;
  }

  setInterval(tick, 1000);
  tick();
  if (!source || !window.EventSource) return;
  // A page that nobody sees holds no connection: a browser has few for one server.
  document.addEventListener("visibilitychange", () => (document.hidden ? hush() : listen()));
  window.addEventListener("pagehide", hush);
  window.addEventListener("pageshow", listen);
  listen();
})();
