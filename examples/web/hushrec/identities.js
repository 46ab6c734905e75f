/** Enrolment, certificates, envelopes, keyrings and the chain of aggregates (docs/wire/requests.md). */

import { concat, equal, exact, fromHex, pack, Reader, toHex, utf8 } from "./codec.js";
import { deriveKey, digest, open, tag } from "./domain.js";
import { CertificateError, CodecError, EnvelopeError, KeyringError, SignatureError } from "./errors.js";
import { verifyRequest } from "./http_signature.js";
import { sign, verify } from "./keys.js";
import { unseal } from "./sealing.js";

export const CERTIFICATE_BYTES = 81;
const ROLES = ["member", "holder", "committee"];
const KEYRING_MAGIC = utf8("hushrec keyring 3\n");

/** What a client signs to enrol. group, certificate: null where the request states none. */
export function enrolmentMessage(invitation, identityKey, mailboxKey, group, certificate, renewal = 0) {
  const stated = [...(group === null ? [] : [group]), ...(certificate === null ? [] : [certificate])];
  const parts = [invitation, identityKey, mailboxKey, ...stated];
  return renewal ? tag("enrolment renewal", renewal, ...parts) : tag("enrolment", ...parts);
}

export const signEnrolment = (secret, ...parts) => sign(secret, enrolmentMessage(...parts));

/** {role, serial (bigint), notAfter, signature}. */
export function decodeCertificate(body) {
  const reader = new Reader(exact(body, CERTIFICATE_BYTES, "a membership certificate"));
  const role = ROLES[reader.number(1)];
  if (!role) throw new CodecError("a membership certificate has an unknown role");
  return { role, serial: reader.big(8), notAfter: reader.big(8), signature: reader.fixed(64) };
}

/** Whether the certificates of a list of members are all of different subjects, which their serials stand for. */
export function hasDistinctSubjects(members) {
  const certified = members.map(({ certificate }) => certificate).filter((certificate) => certificate.some((byte) => byte));
  return new Set(certified.map((certificate) => String(certificate.slice(1, 9)))).size === certified.length;
}

/** The decoded certificate of a client's keys; `CertificateError` unless the organiser made it and it is valid at `now`. */
export async function checkCertificate(organiserKey, scope, identityKey, mailboxKey, body, now) {
  const { role, serial, notAfter, signature } = decodeCertificate(body);
  const signed = tag("membership certificate", scope, role, identityKey, mailboxKey, serial, notAfter);
  if (!(await verify(organiserKey, signature, signed))) throw new CertificateError("the organiser did not sign this");
  if (BigInt(Math.floor(now)) > notAfter) throw new CertificateError("the certificate has expired");
  return { role, serial, notAfter };
}

/** {issuedAt, serials} of an organiser's revocation list. */
export async function checkRevocations(organiserKey, scope, body) {
  const reader = new Reader(body);
  const issuedAt = reader.big(8);
  const count = reader.number(4);
  if (reader.left !== 8 * count + 64) throw new CodecError("a revocation list of another length");
  const bytes = reader.fixed(8 * count);
  const serials = Array.from({ length: count }, (_, i) => new Reader(bytes.subarray(8 * i)).big(8));
  if (serials.some((serial, i) => i && serial <= serials[i - 1])) throw new CodecError("serials are not ascending");
  const signed = tag("revoked certificates", scope, issuedAt, bytes);
  if (!(await verify(organiserKey, reader.fixed(64), signed))) throw new CertificateError("the organiser did not sign this");
  return { issuedAt, serials };
}

function head(reader) {
  const keys = reader.fixed(32 + 32 + CERTIFICATE_BYTES);
  return { keys, identityKey: keys.slice(0, 32), signature: reader.fixed(64) };
}

/** The keyring bytes in an envelope, and its sender's head, whose certificate the caller checks. mailbox: a sealing key. */
export async function openEnvelope(body, mailbox, task) {
  let parts;
  try {
    const reader = new Reader(body);
    parts = { ...head(reader), sealed: reader.fixed(reader.left) };
  } catch (error) {
    throw new EnvelopeError(error.message);
  }
  const { keys, identityKey, signature, sealed } = parts;
  if (!(await verify(identityKey, signature, tag("signed keyring envelope", task, mailbox.name, keys, sealed)))) {
    throw new EnvelopeError("the envelope was sealed for another client or task, or altered");
  }
  const opened = await unseal(mailbox, sealed.slice(0, 32), sealed.slice(32), "keyring envelope", task);
  if (!opened) throw new EnvelopeError("the envelope does not open");
  return { body: opened, sender: keys };
}

/** {state, chain} of a sealed snapshot. */
export async function openSnapshot(sealed, stateKey, task, round) {
  const key = await deriveKey(stateKey, 32, "snapshot key", task);
  const opened = await open(key, sealed.slice(0, 12), sealed.slice(12), tag("snapshot", task, round));
  if (!opened) throw new EnvelopeError("the snapshot was not sealed by a member of this task");
  return { state: opened.slice(64), chain: opened.slice(0, 64) };
}

export const encodeKeyring = ({ mechanism, parameterId, publicKey, secretKey, stateKey }) =>
  concat(KEYRING_MAGIC, pack(utf8(mechanism), parameterId, publicKey, secretKey, stateKey));

export function decodeKeyring(body) {
  if (!equal(body.slice(0, KEYRING_MAGIC.length), KEYRING_MAGIC)) throw new CodecError("not a keyring");
  const reader = new Reader(body.subarray(KEYRING_MAGIC.length));
  const [name, parameterId, publicKey, secretKey, stateKey] = Array.from({ length: 5 }, () => reader.chunk(2 ** 24));
  reader.finish();
  if (stateKey.length !== 32) throw new KeyringError("a key's length is wrong");
  return { mechanism: new TextDecoder().decode(name), parameterId, publicKey, secretKey, stateKey };
}

export async function fingerprint({ mechanism, parameterId, publicKey, secretKey, stateKey }) {
  const [secret, state] = [await digest("keyring secret key", secretKey), await digest("keyring state key", stateKey)];
  return toHex(await digest("keyring fingerprint", mechanism, parameterId, publicKey, secret, state)).slice(0, 32);
}

export const firstChain = (task) => digest("aggregate chain", task);

/** stateDigest: SHA-256 of the encoded state after the round; empty where only members can open the sums. */
export const nextChain = (before, round, aggregateDigest, stateDigest = new Uint8Array(0)) =>
  digest("aggregate chain link", before, round, aggregateDigest, stateDigest);

/** {chain, created} that a client stated with its contribution to a round. */
export async function statedChain(stated, identityKey, task, round) {
  const path = `/v1/tasks/${task}/rounds/${round}/contributions/${stated.client_id}`;
  if (!["PUT", "PATCH"].includes(stated.method)) throw new SignatureError("a contribution is sent with PUT or PATCH");
  const request = { method: stated.method, authority: stated.authority, path, query: "", fields: stated.fields };
  const { client_id, signature_input, signature } = stated;
  const created = await verifyRequest(identityKey, client_id, request, signature_input, signature);
  const chain = stated.fields["aggregate-chain"] ?? "";
  if (!/^[0-9a-f]{64}$/.test(chain)) throw new SignatureError("the contribution states no aggregate chain");
  return { chain: fromHex(chain), created };
}
