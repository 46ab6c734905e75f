/**
 * The page: films, status, recommendations, and what left the device. A worker computes and sends.
 *
 * After each contribution the document gets a "hushrec:contribution" event; its detail has round, bytes, times and
 * steps, the values before they were masked.
 */

import { forgetLikes, LEAST, showFilms, titled } from "./films.js";
import { SentPanel } from "./sent.js";

const find = (id) => document.getElementById(id);
const worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
const panel = new SentPanel();
const read = async (name) => {
  const answer = await fetch(name, { cache: "no-store" });
  if (!answer.ok) throw new Error(`${name}: ${answer.status}`);
  return answer.json();
};

const STARTED = "hushrec-films-takes-part";
let running = false;
let over = false;
let liked = [];
let films = [];
let settings = null;

function say(text, tone = "") {
  find("status").textContent = text;
  find("status").dataset.tone = tone;
}

function buttons() {
  find("start").textContent = running ? "Pause" : "Take part";
  find("start").disabled = over || !settings || (!running && liked.length < LEAST);
}

function stage(name) {
  let state = name ? "done" : "";
  for (const step of find("steps").children) {
    if (step.dataset.stage === name) state = "now";
    step.dataset.state = name === "all" ? "done" : state;
    if (step.dataset.state === "now") step.setAttribute("aria-current", "step");
    else step.removeAttribute("aria-current");
    if (state === "now") state = "";
  }
}

function stopped(text, tone) {
  running = false;
  localStorage.removeItem(STARTED);
  stage("");
  say(text, tone);
  buttons();
}

const EVENTS = {
  joined: ({ task }) => {
    panel.terms(task);
    say("Joined. Waiting for a round.");
  },
  waiting: ({ reason }) => say(`Waiting: ${reason}.`),
  round: ({ round }) => {
    if (round.state === "collecting" && round.contributed) say(`Round ${round.number}: waiting for the other ${round.cohort - 1} clients.`);
    if (["confirming", "unmasking"].includes(round.state)) say(`Round ${round.number}: the sum is being opened.`);
    if (round.state === "complete") say(`Round ${round.number} is complete: the sum of ${round.survivors} clients.`);
    if (round.state === "failed") say(`Round ${round.number} failed: ${round.failure}.`, "warn");
  },
  stage: ({ stage: name, round }) => {
    const isLast = ["sent", "confirming", "unmasking"].includes(name); // of masked rounds
    stage(isLast ? "all" : name);
    say(isLast ? `Round ${round}: sent. Keep this page open until the sum is open.` : `Round ${round}.`);
  },
  contributed: (report) => {
    stage("all");
    panel.contributed(report);
    document.dispatchEvent(new CustomEvent("hushrec:contribution", { detail: report }));
    say(`Round ${report.round}: sent. Waiting for the others.`);
  },
  picks: ({ picks }) => {
    find("picks-hint").hidden = picks.length > 0;
    find("picks").replaceChildren(
      ...picks.map(({ item }) => {
        const row = document.createElement("li");
        row.append(...titled(films[item] ?? { title: `Film ${item}`, genre: "" }));
        return row;
      }),
    );
  },
  abstained: ({ round, reason }) => say(`Round ${round} without this device: ${reason}.`),
  "training-failed": ({ round, reason }) => say(`Round ${round}: training failed, zeros were sent: ${reason}.`, "warn"),
  missed: ({ round, reason }) => say(`Round ${round} without this device: ${reason}.`, "warn"),
  unreachable: ({ reason, seconds }) => say(`The server does not answer (${reason}). Trying again in ${Math.ceil(seconds)} s.`, "warn"),
  traffic: (request) => panel.count(request),
  elsewhere: () => stopped("Another tab of this browser takes part already.", "warn"),
  paused: () => stopped("Paused. Your likes still give recommendations from the last model."),
  ended: () => {
    over = true;
    stopped("The task has ended. The model stays on this device and recommends on.");
  },
  failed: ({ reason }) => stopped(`Stopped: ${reason}.`, "warn"),
  forgotten: () => location.reload(),
};

worker.onmessage = ({ data: event }) => EVENTS[event.kind]?.(event);
worker.onerror = (event) => stopped(`Stopped: ${event.message}.`, "warn");

function start() {
  running = true;
  localStorage.setItem(STARTED, "1");
  say("Joining…");
  worker.postMessage(["start"]);
  buttons();
}

find("start").addEventListener("click", () => {
  if (running) worker.postMessage(["pause"]);
  else start();
});

find("forget").addEventListener("click", () => {
  if (!confirm("Delete likes, keys and model from this device? Contributions that are in a sum stay there.")) return;
  forgetLikes();
  SentPanel.forget();
  localStorage.removeItem(STARTED);
  worker.postMessage(["forget"]);
});

try {
  films = await read("films.json");
  showFilms(films, (items) => {
    liked = items;
    worker.postMessage(["likes", items]);
    buttons();
  });
  settings = await read("settings.json");
  panel.open(settings.task);
  worker.postMessage(["open", settings]);
  say("Your device takes part when you say so.");
  buttons();
  if (localStorage.getItem(STARTED) && liked.length >= LEAST) start();
} catch (error) {
  say(`The page cannot be loaded: ${error.message}.`, "warn");
}
