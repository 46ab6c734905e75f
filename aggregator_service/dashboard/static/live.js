// Live updates. The server renders the fragments that changed; this script replaces them. Pages also work without it.
"use strict";

(() => {
  const page = document.body;
  const source = page.dataset.live;
  const said = document.getElementById("live-said");
  const state = document.getElementById("live-state");
  let clockOffset = Number(page.dataset.now) - Date.now() / 1000; // offset of the server's clock from the browser's, seconds
  let stream = null;
  let over = false;
  let absolute = false; // whether times are shown as dates: titles cannot be seen on touch screens

  // --- times, in the format of words.span ---
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
    const now = Date.now() / 1000 + clockOffset;
    for (const time of document.querySelectorAll("time[data-time]")) {
      const at = Date.parse(time.dateTime) / 1000;
      const text = span(Math.abs(at - now));
      const whole = absolute && time.dataset.time !== "bare" ? time.title : time.dataset.time === "bare" ? text : at > now ? `in ${text}` : `${text} ago`;
      if (time.textContent !== whole) time.textContent = whole;
    }
    for (const clock of document.querySelectorAll("svg.clock")) {
      const since = Number(clock.dataset.since), until = Number(clock.dataset.until);
      const part = Math.min(1, Math.max(0, (now - since) / Math.max(0.001, until - since)));
      clock.querySelector(".gone").setAttribute("width", (100 * part).toFixed(1));
    }
  }

  // --- dates instead of ages ---
  const dates = document.getElementById("show-dates");
  function toggleDates() {
    absolute = !absolute;
    page.dataset.dates = absolute ? "absolute" : "relative";
    dates.textContent = absolute ? "Show ages" : "Show dates";
    tick();
  }
  if (dates) {
    dates.hidden = false;
    dates.addEventListener("click", toggleDates);
  }

  // --- fragments ---
  let pressed = false; // an element that is replaced between press and release gets no click
  const waiting = new Map(); // name of a fragment -> the newest HTML of it
  addEventListener("pointerdown", () => { pressed = true; }, true);
  for (const released of ["pointerup", "pointercancel"]) {
    addEventListener(released, () => {
      pressed = false;
      setTimeout(() => { // after the click
        for (const [name, html] of waiting) swap(name, html);
        waiting.clear();
      });
    }, true);
  }

  function swap(name, html) {
    const part = document.querySelector(`[data-part="${name}"]`);
    if (!part) return;
    if (pressed) {
      waiting.set(name, html);
      return;
    }
    const held = part.contains(document.activeElement) ? document.activeElement.id : "";
    const open = [...part.querySelectorAll("details[open][id]")].map((one) => one.id);
    const sideways = [...part.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
    part.innerHTML = html;
    if (absolute) tick();
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    part.querySelectorAll(".scroll").forEach((one, index) => { one.scrollLeft = sideways[index] || 0; });
    if (held) {
      // If the focused element is gone, focus the main element instead of the start of the document.
      const again = document.getElementById(held) || document.getElementById("main");
      again.focus({ preventScroll: true });
    }
  }

  // --- the stream ---
  function showState(kind, text) {
    state.hidden = false;
    state.dataset.kind = kind;
    if (state.textContent !== text) state.textContent = text;
  }

  function listen() {
    if (stream || over || document.hidden) return;
    stream = new EventSource(source);
    stream.addEventListener("open", () => showState("live", "Live"));
    stream.addEventListener("part", (event) => {
      const part = JSON.parse(event.data);
      swap(part.name, part.html);
      page.dataset.updates = Number(page.dataset.updates || 0) + 1;
    });
    stream.addEventListener("say", (event) => { said.textContent = JSON.parse(event.data).text; });
    stream.addEventListener("now", (event) => { clockOffset = JSON.parse(event.data).now - Date.now() / 1000; tick(); });
    stream.addEventListener("end", (event) => {
      over = true;
      closeStream();
      const text = JSON.parse(event.data).why;
      showState("over", text);
      said.textContent = text;
    });
    stream.addEventListener("error", () => {
      if (over) return;
      showState("paused", "Updates are paused; reconnecting");
      if (stream && stream.readyState === EventSource.CLOSED) { // refused: the browser does not retry, so the script does
        closeStream();
        setTimeout(listen, 15000);
      }
    });
  }

  function closeStream() {
    if (stream) stream.close();
    stream = null;
  }

  setInterval(tick, 1000);
  tick();
  if (!source || !window.EventSource) return;
  // A hidden page keeps no connection open: browsers allow few per server.
  document.addEventListener("visibilitychange", () => (document.hidden ? closeStream() : listen()));
  window.addEventListener("pagehide", closeStream);
  window.addEventListener("pageshow", listen);
  listen();
})();
