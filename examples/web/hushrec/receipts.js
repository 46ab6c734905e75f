/** Receipts (docs/wire/receipts.md): what a server signed of a contribution, checked without it. */

import { CERTIFICATE_BYTES, checkCertificate } from "./identities.js";
import { canonicalJson } from "./canonical.js";
import { concat, equal, exact, fromBase64Url, fromHex, toHex, utf8 } from "./codec.js";
import { digest, sha256, tag } from "./domain.js";
import { ReceiptError } from "./errors.js";
import { verify } from "./keys.js";

const FORMAT = "hushrec receipt 1";
const LONGEST_PATH = 64;
const FIELDS = {
  receipt: "acknowledged audience certificate format identity_key mailbox_key organiser round server_key signature",
  acknowledged: "bytes digest round signature task_id",
  organiser: "key scope",
  round: "places release",
  release: "aggregate_digest round signature sum_index survivors survivors_digest task_id",
  place: "index leaf path",
};

function require(holds, text) {
  if (!holds) throw new ReceiptError(text);
}

function shape(value, name) {
  require(value !== null && typeof value === "object", `${name} is missing`);
  require(Object.keys(value).sort().join(" ") === FIELDS[name], `${name} has other fields than it should`);
  return value;
}

function bytes(text, length) {
  require(typeof text === "string", "a key or a signature is missing");
  return exact(fromBase64Url(text), length, "a key or a signature");
}

const hash = (text) => exact(fromHex(text), 32, "a digest");

/** The number of a round, a length or a place, which is whole. */
function number(value) {
  require(Number.isSafeInteger(value) && value >= 0, "a number in the receipt is not whole");
  return value;
}

/** leaf: SHA-256 of it and a zero byte before it (RFC 9162, section 2.1.1). */
const ofLeaf = (leaf) => sha256(concat(new Uint8Array([0]), leaf));
const ofNode = (left, right) => sha256(concat(new Uint8Array([1]), left, right));

/** The root of the tree over leaves in this order. */
export async function treeRoot(leaves) {
  if (!leaves.length) return sha256(new Uint8Array(0));
  if (leaves.length === 1) return ofLeaf(leaves[0]);
  const middle = 2 ** (31 - Math.clz32(leaves.length - 1));
  return ofNode(await treeRoot(leaves.slice(0, middle)), await treeRoot(leaves.slice(middle)));
}

/** Whether a leaf is leaf `index` of the tree of `size` leaves with this root (RFC 9162, section 2.1.3.2). */
export async function isLeaf(leaf, index, size, path, root) {
  if (index >= size) return false;
  let [first, last, found] = [index, size - 1, await ofLeaf(leaf)];
  for (const step of path) {
    if (last === 0) return false;
    if (first & 1 || first === last) {
      found = await ofNode(step, found);
      while (first && !(first & 1)) [first, last] = [first >>> 1, last >>> 1];
    } else found = await ofNode(found, step);
    [first, last] = [first >>> 1, last >>> 1];
  }
  return last === 0 && equal(found, root);
}

const released = (one) => {
  const { task_id, round, sum_index, survivors, survivors_digest, aggregate_digest } = one;
  const numbers = [round, sum_index, survivors].map(number);
  const aggregate = aggregate_digest === null ? new Uint8Array(0) : hash(aggregate_digest);
  return tag("release", task_id, ...numbers, hash(survivors_digest), aggregate);
};

const less = (a, b) => toHex(a) < toHex(b);

async function verdict({ release, places }, leaf) {
  const root = hash(release.survivors_digest);
  if (release.aggregate_digest === null || release.survivors === 0) {
    const none = release.aggregate_digest === null && release.survivors === 0 && equal(root, await treeRoot([]));
    require(none && !places.length, "a round with survivors has an aggregate, and one without has none");
    return "failed";
  }
  const leaves = places.map((place) => hash(shape(place, "place").leaf));
  for (const [at, { index, path }] of places.entries()) {
    require(Array.isArray(path) && path.length <= LONGEST_PATH, "a path is too long");
    const holds = await isLeaf(leaves[at], number(index), release.survivors, path.map(hash), root);
    require(holds, "a place in the receipt is not one in the set that the server signed");
  }
  if (leaves.length === 1 && equal(leaves[0], leaf)) return "counted";
  const [first, second] = places.map(({ index }) => index);
  const between = leaves.length === 2 && less(leaves[0], leaf) && less(leaf, leaves[1]) && second === first + 1;
  const before = leaves.length === 1 && less(leaf, leaves[0]) && first === 0;
  const after = leaves.length === 1 && less(leaves[0], leaf) && first === release.survivors - 1;
  require(between || before || after, "the receipt shows neither that the member is among the survivors, nor that it is not");
  return "omitted";
}

async function check(receipt) {
  const { acknowledged, organiser, round } = shape(receipt, "receipt");
  require(receipt.format === FORMAT, "not a receipt, or one of another version");
  const [server, member] = [bytes(receipt.server_key, 32), bytes(receipt.identity_key, 32)];
  const { signature, ...rest } = receipt;
  const shown = tag("receipt", await sha256(utf8(canonicalJson(rest))));
  require(await verify(member, bytes(signature, 64), shown), "the member that it names did not sign the receipt");
  const mailbox = bytes(receipt.mailbox_key, 32);
  if (organiser) shape(organiser, "organiser");
  const certified = Boolean(organiser && receipt.certificate);
  if (certified) {
    const certificate = exact(fromBase64Url(receipt.certificate), CERTIFICATE_BYTES, "a certificate");
    await checkCertificate(bytes(organiser.key, 32), organiser.scope, member, mailbox, certificate, 0);
  }
  const { task_id, round: at, digest: sent, bytes: length } = shape(acknowledged, "acknowledged");
  const stored = tag("acknowledgement", task_id, number(at), member, hash(sent), number(length));
  require(await verify(server, bytes(acknowledged.signature, 64), stored), "the server did not sign the acknowledgement");
  if (round === null) return { verdict: "acknowledged", certified };
  const { release, places } = shape(round, "round");
  shape(release, "release");
  require(Array.isArray(places) && places.length <= 2, "at most two places");
  require(await verify(server, bytes(release.signature, 64), released(release)), "the server did not sign the end of the round");
  require(release.task_id === task_id && release.round === at, "the parts of the receipt are of different rounds");
  return { verdict: await verdict(round, await digest("person", member)), certified };
}

/**
 * What a receipt (its JSON, parsed) says of a contribution: {verdict, certified}. verdict: "counted", "omitted", "failed"
 * (the round) or "acknowledged" (the server has said no more). Compare `server_key`, and `organiser.key` if `certified`,
 * with keys that you know from elsewhere. Throws `ReceiptError`.
 */
export async function checkReceipt(receipt) {
  try {
    return await check(receipt);
  } catch (error) {
    if (error instanceof ReceiptError) throw error;
    throw new ReceiptError(`this is not a valid receipt: ${error.message}`);
  }
}

/** Whether two checked receipts prove that their server lied: two ends of a round, or two contributions of a member. */
export function contradict(one, other) {
  const [a, b] = [one.acknowledged, other.acknowledged];
  if (one.server_key !== other.server_key || a.task_id !== b.task_id || a.round !== b.round) return false;
  if (one.identity_key === other.identity_key && (a.digest !== b.digest || a.bytes !== b.bytes)) return true;
  return Boolean(one.round && other.round) && !equal(released(one.round.release), released(other.round.release));
}
