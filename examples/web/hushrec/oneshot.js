/** One-shot sums: committee, upload of a client, summed share of a member (docs/wire/oneshot.md). */

import { concat, littleEndian, Reader, utf8 } from "./codec.js";
import { digest, sha256, tag } from "./domain.js";
import { CodecError, RefusalError } from "./errors.js";
import { hasDistinctSubjects } from "./identities.js";
import { publicOf, sign, verify } from "./keys.js";
import { coefficientsOf, multiply, publicPolynomials } from "./ring.js";
import { SEALING_KEY_BYTES, seal, unseal } from "./sealing.js";

/** context: {task, round, step, modelDigest, cohort, length, bits, committee, corrupt, degree, primes, per}. */
export const binding = (c) =>
  digest(
    ...["oneshot round", c.task, c.round, c.step, c.modelDigest, c.cohort, c.length, c.bits, c.committee, c.corrupt],
    ...[c.degree, c.primes.length, c.per],
  );

/** A member's key: {id, identityKey, mailboxKey, certificate, roundKey, signature, body}. */
export function decodeKey(body) {
  const reader = new Reader(body);
  const length = reader.number(1);
  if (length < 1 || length > 64) throw new CodecError("an id has 1 to 64 bytes");
  const key = {
    id: new TextDecoder("utf-8", { fatal: true }).decode(reader.fixed(length)),
    identityKey: reader.fixed(32),
    mailboxKey: reader.fixed(32),
    certificate: reader.fixed(81),
    roundKey: reader.fixed(SEALING_KEY_BYTES),
    signature: reader.fixed(64),
    body,
  };
  reader.finish();
  return key;
}

/** The keys of a committee, each behind its length: what `committee_keys` of a round stands for. */
export function decodeKeys(body) {
  const reader = new Reader(body);
  const keys = [];
  while (reader.left) keys.push(decodeKey(reader.fixed(reader.number(2))));
  return keys;
}

export async function checkKey(task, round, key) {
  const signed = tag("oneshot committee key", task, round, key.id, key.roundKey);
  if (!(await verify(key.identityKey, key.signature, signed))) throw new CodecError("a committee key is not signed by its member");
}

/** {members, digest}; isMember(key) says whether an identity key is accepted. `RefusalError` for any other committee. */
export async function makeCommittee(context, bound, keys, isMember) {
  const members = [...keys].sort((a, b) => (a.id < b.id ? -1 : 1));
  if (members.length !== context.committee) throw new RefusalError("the committee has another size");
  for (const part of ["id", "identityKey", "roundKey"]) {
    if (new Set(members.map((key) => String(key[part]))).size < members.length) throw new RefusalError(`${part} occurs twice`);
  }
  if (!hasDistinctSubjects(members)) throw new RefusalError("a subject occurs twice");
  for (const key of members) {
    if (!(await isMember(key))) throw new RefusalError("a member of the committee has no valid proof of membership");
    await checkKey(context.task, context.round, key).catch((error) => {
      throw new RefusalError(error.message);
    });
  }
  const whole = concat(...members.map((key) => key.body));
  return { members, digest: await digest("oneshot committee", bound, members.length, whole) };
}

/** Samples of the discrete Gaussian; table: bigints of oneshot_ring.json, which every word is compared with. */
export async function gaussian(count, random, table) {
  const reader = new Reader(await random(8 * count));
  return Array.from({ length: count }, () => {
    const word = reader.big(8);
    const size = table.reduce((sum, entry) => sum + Number(word >> 1n >= entry), 0);
    return word & 1n ? -size : size;
  });
}

async function uniformResidues(count, prime, random) {
  const draw = async (length) => {
    const bytes = await random(4 * length);
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
    return Array.from({ length }, (_, i) => view.getUint32(4 * i, true));
  };
  const words = await draw(count);
  for (;;) {
    const beyond = words.flatMap((word, index) => (word >= prime ? [index] : []));
    if (!beyond.length) return words;
    const again = await draw(beyond.length);
    beyond.forEach((index, i) => (words[index] = again[i]));
  }
}

/** A share (residues) of a secret polynomial for each of the points. */
export async function splitSecret(secret, threshold, points, prime, random) {
  const n = secret.length;
  const drawn = await uniformResidues((threshold - 1) * n, prime, random);
  return points.map((point) =>
    secret.map((constant, i) => {
      let value = 0;
      for (let row = 0; row < threshold - 1; row++) value = ((value + drawn[row * n + i]) * point) % prime;
      return (((value + constant) % prime) + prime) % prime;
    }),
  );
}

export function residueBytes(residues) {
  const view = new DataView(new ArrayBuffer(4 * residues.length));
  residues.forEach((residue, i) => view.setUint32(4 * i, residue, true));
  return new Uint8Array(view.buffer);
}

/** M + T e + A s modulo each prime, as bytes. steps: whole numbers (numbers), one for each value of the sum. */
export function contributionOf({ length, bits, degree, primes, per }, bound, steps, secret, errors) {
  const coefficients = coefficientsOf(length, bits, per);
  const rows = Math.ceil(length / per);
  const messages = Array.from({ length: coefficients }, (_, j) => {
    let message = BigInt(errors[j]) << BigInt(bits * per);
    for (let i = 0; i < per && j < rows; i++) message += BigInt(steps[i * rows + j] ?? 0) << BigInt(bits * i);
    return message;
  });
  const polynomials = Math.ceil(coefficients / degree);
  return concat(
    ...primes.map((prime, number) => {
      const drawn = publicPolynomials(bound, degree, prime, number, polynomials);
      const masks = Array.from({ length: polynomials }, (_, k) =>
        multiply(drawn.slice(k * degree, (k + 1) * degree), secret, prime),
      ).flat();
      const modulus = BigInt(prime);
      return residueBytes(messages.map((message, j) => Number((((message + BigInt(masks[j])) % modulus) + modulus) % modulus)));
    }),
  );
}

const shareParts = (committee, member, client) => ["oneshot share", committee, member, client];

/** A client's upload: {ticket, contribution, body}. random(n) returns n secret random bytes, or a promise of them. */
export async function contribute({ context, bound, committee, client, identity, steps, table, random, coins }) {
  const { degree, primes, bits, per, length, threshold } = context;
  const ephemeral = await random(32);
  const ephemeralKey = await publicOf("X25519", ephemeral);
  const secret = await gaussian(degree, random, table);
  const errors = await gaussian(coefficientsOf(length, bits, per), random, table);
  const points = committee.members.map((_, place) => place + 1);
  const shares = await splitSecret(secret, threshold, points, primes[0], random);
  const sealed = await Promise.all(
    committee.members.map(async ({ id, roundKey }, place) => {
      const sender = { secret: ephemeral, key: ephemeralKey };
      return seal(sender, roundKey, residueBytes(shares[place]), coins, ...shareParts(committee.digest, id, client));
    }),
  );
  const contribution = contributionOf(context, bound, steps, secret, errors);
  const digests = await Promise.all(sealed.map(sha256));
  const parts = [committee.digest, client, ephemeralKey, await sha256(contribution), ...digests];
  const signature = await sign(identity, tag("oneshot upload", ...parts));
  const ticket = concat(ephemeralKey, signature, ...sealed);
  return { ephemeralKey, signature, sealed, contribution, body: concat(ticket, contribution) };
}

/** The residues of a sealed share, or null if it does not open for this member and client. secret: a sealing key. */
export async function openShare(sealed, secret, committee, member, client, ephemeralKey, degree, prime) {
  const opened = await unseal(secret, ephemeralKey, sealed, ...shareParts(committee.digest, member, client));
  if (!opened || opened.length !== 4 * degree) return null;
  const view = new DataView(opened.buffer, opened.byteOffset, opened.length);
  const share = Array.from({ length: degree }, (_, i) => view.getUint32(4 * i, true));
  return share.every((residue) => residue < prime) ? share : null;
}

/** What the members sign to confirm survivors. statements: encoded, in ascending order of the clients' ids. */
export async function survivorsDigest(statements) {
  const digests = await Promise.all(statements.map((statement) => digest("oneshot statement", statement)));
  return digest("oneshot survivors", statements.length, concat(...digests));
}

/** A statement: what a client signed, with its keys and certificate. */
export const encodeStatement = (client, identityKey, mailboxKey, certificate, upload, digests) => {
  const id = utf8(client);
  const keys = [identityKey, mailboxKey, certificate, upload.ephemeralKey];
  return concat(littleEndian(id.length, 1), id, ...keys, ...digests, upload.signature);
};

export const signSurvivors = (identity, committee, survivors) =>
  sign(identity, tag("oneshot survivors", committee.digest, survivors));
