/** Neighbours k and threshold t of a masked round (docs/wire/masked.md). */

import { ParameterError } from "./errors.js";

const MOST = 1024;

/** floor(share * clients) with the share as the decimal that it is written as. */
function share(decimal, clients) {
  const [whole, fraction = ""] = decimal.toFixed(20).replace(/0+$/, "").split(".");
  const text = String(decimal).includes("e") ? [whole, fraction] : [...String(decimal).split("."), ""];
  return Number((BigInt(text[0] + (text[1] ?? "")) * BigInt(clients)) / 10n ** BigInt((text[1] ?? "").length));
}

export const corruptClients = (corrupt, clients) => (corrupt ? Math.max(1, share(corrupt, clients)) : 0);

function logBinomials(size, most) {
  const logs = [0];
  for (let x = 0; x < most; x++) logs.push(x < size ? logs[x] + Math.log(size - x) - Math.log(x + 1) : -Infinity);
  return logs;
}

/** log2 of Pr[X = x] for X hypergeometric with `marked` of `clients`, k drawn; x from 0 to k. */
const weights = (logs, k) => Array.from({ length: k + 1 }, (_, x) => logs.marked[x] + logs.rest[k - x] - logs.all[k]);

function tails(logs, k, log2Clients) {
  const parts = weights(logs, k).map(Math.exp);
  const [below, above] = [[], []];
  parts.reduce((sum, part, x) => (below[x] = sum + part), 0);
  parts.reduceRight((sum, part, x) => (above[x] = sum + part), 0);
  const log = (sum) => Math.min(Math.log2(sum), 0) + log2Clients;
  return { below: below.map(log), above: above.map(log) };
}

/** log2 of Pr[both halves of the k places hold `least` of the marked or more]. */
function inBothHalves(logs, k, least) {
  const [half, among] = [logBinomials(k / 2, k / 2), logBinomials(k, k)];
  const total = weights(logs, k);
  let sum = 0;
  for (let x = least; x <= k / 2; x++)
    for (let y = least; y <= k / 2; y++) sum += Math.exp(total[x + y] + half[x] + half[y] - among[x + y]);
  return Math.log2(sum);
}

/** How many of the `marked` are in any of the equal groups of `clients`, but with probability 2^-(bits + 1). */
function inAGroup(clients, marked, groups, bits) {
  const size = clients / groups;
  const logs = { marked: logBinomials(marked, size), rest: logBinomials(clients - marked, size), all: logBinomials(clients, size) };
  const { above } = tails(logs, size, Math.log2(groups));
  const least = above.findIndex((log) => log <= -(bits + 1));
  return (least < 0 ? above.length : least) - 1;
}

/** Signatures that a client needs, its own included, of its group's members. */
export function quorum(corrupt, members, groups = 1) {
  return Math.floor((members / groups + corruptClients(corrupt, members)) / 2) + 1;
}

/** {degree, threshold} of `clients`, with groups within one of these; `ParameterError` if no values fit. */
export function chooseNeighbourhood(clients, corrupt, dropout, mode, sigma, eta, groups = 1) {
  const [n, more] = [clients / groups, Math.ceil(Math.log2(groups)) + 1];
  if (!Number.isInteger(n) || n < 3) throw new ParameterError("a masked sum has at least 3 clients, and groups are equal");
  if (groups === 1) return choose(n, corruptClients(corrupt, n), share(dropout, n), mode, sigma, eta);
  const bad = corruptClients(corrupt, clients);
  const gone = inAGroup(clients, share(dropout, clients), groups, eta);
  if (Math.max(bad, gone) >= n) throw new ParameterError("all of a group may collude or drop out");
  return choose(n, bad, gone, mode, Math.min(sigma + more, 128), Math.min(eta + more, 128));
}

function choose(n, bad, gone, mode, sigma, eta) {
  const most = Math.min(n - 2, MOST);
  const logsOf = (marked) => ({
    marked: logBinomials(marked, most),
    rest: logBinomials(n - marked, most),
    all: logBinomials(n, most),
  });
  const [corrupted, surviving] = [logsOf(bad), logsOf(n - gone)];
  const secret = -(sigma + 1);
  let product = 0;
  for (let k = 1; k <= most; k++) {
    product += Math.log2(Math.max(bad + gone - k + 1, 0)) - Math.log2(n - k + 1);
    if (k % 2) continue;
    const pairs = Math.log2((n * (n - k - 1)) / 2);
    const { above } = tails(corrupted, k, Math.log2(n));
    const { below } = tails(surviving, k, Math.log2(n));
    const worst = above.findLastIndex((log) => log > secret);
    const enough = below.findIndex((log) => log > -eta);
    for (let t = Math.max(mode === "curious" ? worst + 1 : Math.floor((k + worst) / 2) + 1, 2); t <= enough; t++) {
      const apart = mode === "curious" ? product : inBothHalves(corrupted, k, t - k / 2);
      if (pairs + apart <= secret) return { degree: k, threshold: t };
    }
  }
  const t = Math.max(mode === "curious" ? bad + 1 : Math.floor((n - 1 + bad) / 2) + 1, 2);
  if (n - 1 <= MOST && t <= n - gone - 1) return { degree: n - 1, threshold: t };
  throw new ParameterError("no neighbourhood fits these parameters");
}
