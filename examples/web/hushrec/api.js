/** Requests to a server of HushRec: signed, repeated after failures, and counted (docs/http-api.md). */

import { ANY, shaped } from "./answers.js";
import { equal, fromBase64, utf8 } from "./codec.js";
import { sha256 } from "./domain.js";
import { ApiError, CodecError, UnreachableError } from "./errors.js";
import { contentDigest, signRequest } from "./http_signature.js";

const LONGEST_JSON = 1 << 20;
const TIMEOUT_SECONDS = 60;
const REPEATED = new Set([408, 429, 500, 502, 503, 504]);
const FIRST_PAUSE = 0.25;
const LONGEST_PAUSE = 20;
const LONGEST_REST = 600;

/** Resolves after so many seconds; rejects with the signal's reason when it is aborted. */
export function pause(seconds, signal) {
  signal?.throwIfAborted();
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, 1000 * seconds);
    signal?.addEventListener("abort", stop, { once: true });
  });
}

/** https, or http to this machine; without a slash at the end. */
export function baseUrl(text) {
  const { protocol, hostname, origin, pathname } = new URL(text);
  const here = ["localhost", "127.0.0.1", "[::1]"].includes(hostname);
  if (protocol !== "https:" && !(protocol === "http:" && here)) {
    throw new CodecError("a server that is not on this machine needs an https address");
  }
  return origin + pathname.replace(/\/+$/, "");
}

async function readBody(response, most) {
  const parts = [];
  let length = 0;
  for (const reader = response.body?.getReader(); reader; ) {
    const { done, value } = await reader.read();
    if (done) break;
    length += value.length;
    if (length > most) {
      await reader.cancel();
      throw new CodecError(`an answer has more than ${most} bytes`);
    }
    parts.push(value);
  }
  const whole = new Uint8Array(length);
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

const parsed = (body) => JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(body));

/** The JSON of an answer, in this form; `CodecError` otherwise. */
function read(body, form, what) {
  let json;
  try {
    json = parsed(body);
  } catch {
    throw new CodecError(`${what}: the server's answer is not JSON`);
  }
  return shaped(json, form, what);
}

function problemOf(response, body) {
  try {
    if (response.headers.get("content-type")?.includes("problem+json")) return parsed(body);
  } catch {
    // an error page that calls itself a problem document is treated like any other error page
  }
  return { title: response.statusText };
}

/** Whether something else than the server answered, such as a proxy: what it says is no word of the server's. */
function isForeign(response, body) {
  if (response.status < 400) return Boolean(response.headers.get("content-type")?.startsWith("text/html"));
  return !/^(urn:hushrec:problem:|https:\/\/iana\.org\/)/.test(problemOf(response, body).type);
}

/** Bytes of the request line and of the fields that the client itself sets. */
const headBytes = (method, target, headers) =>
  Object.entries(headers).reduce((sum, [name, value]) => sum + name.length + value.length + 4, method.length + target.length + 12);

/**
 * The requests of one client. url: of the server. token: null before enrolment. sign: {clientId, signing}, the Ed25519
 * key, or null. report({what, method, path, sent, received, status, milliseconds}): called after each answer; sent and
 * received count bodies and, for sent, the request line and fields too. unreachable(error, seconds): called before a
 * pause. Every call throws `ApiError` for a problem document that repeating does not help. The page of
 * a proxy or a filter is repeated like no answer, unless it says that a body is too long (413).
 */
export class Api {
  #skew = 0;

  constructor(url, { token = null, sign = null, report = () => {}, unreachable = () => {} } = {}) {
    Object.assign(this, { url: baseUrl(url), token, sign, report, unreachable });
  }

  enrolled(clientId, signing, token) {
    const { report, unreachable } = this;
    return new Api(this.url, { token, sign: { clientId, signing }, report, unreachable });
  }

  /** The parsed answer of GET, and its ETag; json is null for 204 and 304. form: see answers.js. */
  async get(path, what, { form = ANY, signal, wait, etag = null, token, most } = {}) {
    const headers = etag ? { "if-none-match": etag } : {};
    const target = wait ? `${path}${path.includes("?") ? "&" : "?"}wait=${wait}` : path;
    const { response, body } = await this.#repeated("GET", target, what, { headers, signal, wait, token, most });
    const json = [204, 304].includes(response.status) ? null : read(body, form, what);
    return { json, status: response.status, etag: response.headers.get("etag") };
  }

  /** The parsed answer, or null for 404. */
  async getOrNull(path, what, options) {
    try {
      return (await this.get(path, what, options)).json;
    } catch (error) {
      if (error instanceof ApiError && error.status === 404) return null;
      throw error;
    }
  }

  /** Bytes, checked against the answer's Content-Digest and, if given, against a digest. */
  async bytes(path, what, { signal, most, digest = null }) {
    const { response, body } = await this.#repeated("GET", path, what, { signal, most });
    const found = await sha256(body);
    const stated = /^sha-256=:([^:]*):$/.exec(response.headers.get("content-digest") ?? "");
    if (!stated && !digest) throw new CodecError(`${what}: the answer has no digest`);
    if (stated && !equal(found, fromBase64(stated[1]))) throw new CodecError(`${what}: altered on the way`);
    if (digest && !equal(found, digest)) throw new CodecError(`${what}: not the bytes that were announced`);
    return body;
  }

  async post(path, what, value, { form = ANY, signal } = {}) {
    const body = utf8(JSON.stringify(value));
    const headers = { "content-type": "application/json" };
    return read((await this.#repeated("POST", path, what, { headers, body, signal })).body, form, what);
  }

  /** statements: more header fields, by lower case name. */
  async put(path, what, body, mediaType, { form = ANY, signal, statements = {} } = {}) {
    const headers = { "content-type": mediaType, ...statements };
    return read((await this.#repeated("PUT", path, what, { headers, body, signal })).body, form, what);
  }

  /** Repeats until there is an answer that says that repeating cannot help, or the signal is aborted. */
  async #repeated(method, target, what, options) {
    for (let attempt = 0; ; attempt++) {
      let failure;
      let floor = 0;
      try {
        const { response, body } = await this.#signed(method, target, what, options);
        if (isForeign(response, body) && response.status !== 413) {
          floor = Number(response.headers.get("retry-after")) || 0;
          const type = response.headers.get("content-type");
          throw new UnreachableError(`${method} ${target}: answered by something else than the server (${response.status}, ${type})`);
        }
        if (options.wait !== undefined && (response.status < 400 || response.status === 404)) {
          // it has no room to let a poll wait, or the client's window in a large round begins later
          const seconds = Number(response.headers.get("retry-after")) || 0;
          if (seconds) await pause(Math.min(seconds, LONGEST_REST), options.signal);
        }
        if (response.status < 400) return { response, body };
        failure = new ApiError(method, target, response.status, problemOf(response, body));
        if (!REPEATED.has(response.status)) throw failure;
        floor = Number(response.headers.get("retry-after")) || 0;
      } catch (error) {
        options.signal?.throwIfAborted();
        if (!(error instanceof UnreachableError)) throw error;
        failure = error;
      }
      const seconds = floor + Math.random() * Math.min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** attempt);
      this.unreachable(failure, seconds);
      await pause(seconds, options.signal);
    }
  }

  /** Sends once; a second time with the server's clock when the signature's time was refused. */
  async #signed(method, target, what, options) {
    const answer = await this.#send(method, target, what, options);
    if (answer.response.status !== 401 || !this.sign) return answer;
    const problem = problemOf(answer.response, answer.body);
    if (!String(problem.type).endsWith(":stale-signature") || !Number.isInteger(problem.server_time)) return answer;
    this.#skew = problem.server_time - Date.now() / 1000;
    return this.#send(method, target, what, options);
  }

  async #send(method, target, what, { headers = {}, body, signal, wait = 0, most = LONGEST_JSON, token = this.token }) {
    const url = new URL(this.url + target);
    const fields = { ...headers };
    if (token) fields.authorization = `Bearer ${token}`;
    if (body) fields["content-digest"] = await contentDigest(body);
    if (this.sign) {
      const request = { method, authority: url.host, path: url.pathname, query: url.search.slice(1), fields };
      const created = Math.floor(Date.now() / 1000 + this.#skew);
      Object.assign(fields, await signRequest(this.sign.signing, this.sign.clientId, request, created));
    }
    const limit = AbortSignal.timeout(1000 * (wait + TIMEOUT_SECONDS));
    const init = { method, headers: fields, body, signal: signal ? AbortSignal.any([signal, limit]) : limit };
    const started = performance.now();
    let response;
    let received;
    try {
      response = await fetch(url, { ...init, cache: "no-store", credentials: "omit", redirect: "error", referrerPolicy: "no-referrer" });
      received = await readBody(response, most);
    } catch (error) {
      if (error instanceof CodecError) throw error;
      throw new UnreachableError(`${url.host}: ${error.message}`);
    }
    this.report({
      what,
      method,
      path: target,
      status: response.status,
      sent: headBytes(method, target, fields) + (body?.length ?? 0),
      received: received.length,
      milliseconds: performance.now() - started,
    });
    return { response, body: received };
  }
}
