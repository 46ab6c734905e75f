/** A client of one task until the task ends: it follows the rounds, takes part in them, and recommends on the device. */

import { ROUND, TASK } from "./answers.js";
import { Api, pause } from "./api.js";
import { AbstainedError, AlreadySummedError, ApiError, CertificateError, CodecError, FalseModelError, NotAttestedError, PolicyError, RefusalError, RoundLostError, ThresholdError } from "./errors.js";
import { following, join, preview, refreshRevocations } from "./enrolment.js";
import { fetchModel, keptModel } from "./model.js";
import { takeMaskedPart } from "./masked_round.js";
import { takeOneshotPart } from "./oneshot_round.js";
import { POLICY, readTask } from "./terms.js";
import { fitUser, randomUser, secureUniform, settingsOf, topItems } from "./training.js";

const LONG_POLL = 20;
/** Of a round's view with the signatures of 190,000 members, in bytes. */
const LONGEST_ROUND = 1 << 24;
const OPENING = { oneshot: "collecting", masked: "advertising" };
const REFUSED = [PolicyError, RefusalError, CertificateError, CodecError];
const LOST = [RoundLostError, ThresholdError, FalseModelError];
const MISSED = new Set(["aggregate-mismatch", "round-closed", "not-in-cohort", "contribution-conflict", "not-found", "conflict"]);

const isOver = ({ state }) => ["complete", "failed"].includes(state);

const apiOf = (url, on) =>
  new Api(url, {
    report: (request) => on({ kind: "traffic", ...request }),
    unreachable: (error, seconds) => on({ kind: "unreachable", reason: error.message, seconds }),
  });

/**
 * One client. store: MemoryStore, IndexedStore, or any object with their methods. on(event): called with
 * {kind: "stage" | "contributed" | "abstained" | "missed" | "training-failed" | "round" | "model" | "waiting" | "unreachable" | "not-followed" | "traffic" | "ended", ...}.
 */
export class Participant {
  #client;
  #on;
  #etag = null;

  constructor(client, on) {
    this.#client = client;
    this.#on = on;
  }

  /**
   * Joins with an invitation, or goes on with the stored membership. organiser: {key, scope} that came with the app.
   * issue(request): obtains a certificate for the request's keys. policy: see POLICY in terms.js; with its `follow` a
   * stored task that is over is replaced by the one that follows it, or, if that is not possible, kept: `on` is told why.
   * after: id of the stored task, to join the last one that follows it in its place. shown: what `following` or
   * `preview` returned and the user agreed to; `RefusalError`, before it enrols, if the server names another task then,
   * or other terms. A store has one task at a time, and does not go back to one that it has left.
   */
  static async join({ url, on = () => {}, store, ...how }) {
    const notFollowed = (reason) => on({ kind: "not-followed", reason });
    const joined = await join(apiOf(url, on), store, { ...how, notFollowed });
    const { signal } = how;
    const revoked = await refreshRevocations(joined.api, store, joined.terms, signal);
    return new Participant({ ...joined, store, uniform: secureUniform(), revoked }, on);
  }

  /** The JSON of the task that an invitation is for, checked against the policy, without using the invitation. */
  static async preview({ url, on = () => {}, invitation, organiser, policy, signal }) {
    return preview(apiOf(url, on), { invitation, organiser, policy, signal });
  }

  /** The JSON of the task that follows the stored one, checked against the policy, without enrolling; null if none does. */
  static async following({ url, on = () => {}, store, organiser, policy, signal }) {
    return following(apiOf(url, on), store, { organiser, policy, signal });
  }

  get task() {
    return this.#client.terms.task;
  }

  get clientId() {
    return this.#client.membership.client;
  }

  /** Takes part in every round that asks this client. liked(): the current item numbers. Returns when the task ends. */
  async takePart(liked, signal) {
    const { api, terms } = this.#client;
    const path = `/v1/tasks/${terms.id}`;
    let handled = 0;
    this.#etag = null;
    for (let wait = 0; ; wait = LONG_POLL) {
      const view = await this.#newestRound(wait, signal);
      if (view) {
        this.#on({ kind: "round", round: view });
        if (view.number > handled && this.#isAsked(view)) {
          handled = view.number;
          await this.#attempt(view, liked(), signal);
        }
        if (!isOver(view)) continue;
        if (view.state === "complete") await this.#update(view.number, signal);
      }
      const { json: task } = await api.get(path, "task", { form: TASK, signal });
      if (task.state !== "open") return this.#on({ kind: "ended", state: task.state });
      if (!view && task.waiting_for) this.#on({ kind: "waiting", reason: task.waiting_for });
      if (!view) await pause(0.2, signal);
    }
  }

  /** Whether the round awaits this client's first message; an earlier page may have sent it already. */
  #isAsked(view) {
    return view.state === OPENING[this.#client.terms.mechanism] && view.in_cohort && !view.contributed && !view.delivered;
  }

  async #attempt(view, liked, signal) {
    const tell = (stage) => this.#on({ kind: "stage", stage, round: view.number });
    const take = this.#client.terms.mechanism === "masked" ? takeMaskedPart : takeOneshotPart;
    try {
      const report = await take(this.#client, view, liked, tell, signal, (seen) => this.#nextState(seen, signal));
      this.#on({ kind: "contributed", ...report });
      if (report.failure) this.#on({ kind: "training-failed", round: view.number, reason: report.failure });
    } catch (error) {
      signal?.throwIfAborted();
      const isOne = (kinds) => kinds.some((kind) => error instanceof kind);
      if (error instanceof AbstainedError) {
        await this.#tellRefusal(view, "no-data", signal);
        return this.#on({ kind: "abstained", round: view.number, reason: error.message });
      }
      if (!isOne(REFUSED) && !isOne(LOST) && !(error instanceof ApiError && MISSED.has(error.slug))) throw error;
      const reason = error instanceof AlreadySummedError ? "survivors" : error instanceof NotAttestedError ? "attestations" : "policy";
      if (isOne(REFUSED)) await this.#tellRefusal(view, reason, signal);
      this.#on({ kind: "missed", round: view.number, reason: error.message });
    }
  }

  /** The newest round once it, or its state, is another one than `seen`. */
  async #nextState(seen, signal) {
    for (;;) {
      const before = this.#etag;
      const view = await this.#newestRound(LONG_POLL, signal);
      if (!view || (view.number === seen.number && view.state === seen.state)) continue;
      if (view.number !== seen.number || isOver(view)) this.#etag = before; // takePart is to be shown it, too
      return view;
    }
  }

  /** The newest round once it is another one than this client was shown last; null if it is the same after `wait` seconds. */
  async #newestRound(wait, signal) {
    const path = `/v1/tasks/${this.#client.terms.id}/rounds/current`;
    const options = { form: ROUND, signal, wait, etag: this.#etag, most: LONGEST_ROUND };
    const { json: view, etag } = await this.#client.api.get(path, "question for a round", options);
    if (view) this.#etag = etag;
    return view;
  }

  /** Tells the server that this client leaves a round, so that it does not wait for it. */
  async #tellRefusal({ number }, reason, signal) {
    const { api, terms } = this.#client;
    const path = `/v1/tasks/${terms.id}/rounds/${number}/refusals`;
    await api.post(path, "refusal of a round", { reason }, { signal }).catch((error) => {
      if (!(error instanceof ApiError)) throw error; // an ApiError: the round has ended meanwhile
    });
  }

  async #update(number, signal) {
    try {
      const { round } = await fetchModel(this.#client, number + 1, signal);
      this.#on({ kind: "model", round });
    } catch (error) {
      signal?.throwIfAborted();
      const isOurs = [RefusalError, CodecError, FalseModelError, ApiError].some((kind) => error instanceof kind);
      if (!isOurs) throw error; // an ApiError: the server has newer rounds, and keeps this model no longer
      this.#on({ kind: "missed", round: number, reason: error.message });
    }
  }

  /** See `recommend`. */
  recommend(count, liked, labels) {
    const { organiser, policy } = this.#client.terms;
    return recommend(this.#client.store, organiser, count, liked, policy, labels);
  }
}

/**
 * [{item, score}] of the best items that are not liked, from the model in the store and without a request; [] before
 * the first round. organiser, policy: as for `Participant.join`. labels: of each item, from `decodeCatalogue`, for the
 * scores of new and rare items.
 */
export async function recommend(store, organiser, count, liked, policy = POLICY, labels = null) {
  const task = await store.get("task");
  if (!task || !liked.length) return [];
  const terms = readTask(task, { organiser, policy });
  const model = await keptModel(store, terms);
  if (!model) return [];
  const [settings, uniform] = [settingsOf(terms.parameters), secureUniform()];
  const user = (await store.get("own"))?.user ?? randomUser(terms.parameters.dim, uniform);
  return topItems(model.state, fitUser({ state: model.state, user, liked, settings, uniform }), liked, count, labels);
}
