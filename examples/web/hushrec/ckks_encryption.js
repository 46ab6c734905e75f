/** CKKS encryption in plain JavaScript: seeds, encoding, keys, ciphertexts (docs/wire/encrypted.md). Residues are bigints. */

import { concat, littleEndian, Reader } from "./codec.js";
import { addResidues, decodePlanes, encodePlanes, firstOutOfRange, residueBytes, SETS } from "./ckks.js";
import { CodecError, ContributionError, KeyringError } from "./errors.js";

const MASK = (1n << 64n) - 1n;
const SEED_BYTES = 64;
const BLOCK = 4096;
const IV = [
  ...[0x6a09e667f3bcc908n, 0xbb67ae8584caa73bn, 0x3c6ef372fe94f82bn, 0xa54ff53a5f1d36f1n],
  ...[0x510e527fade682d1n, 0x9b05688c2b3e6c1fn, 0x1f83d9abfb41bd6bn, 0x5be0cd19137e2179n],
];
const ORDERS = [
  "0123456789abcdef", "ea489fd61c02b753", "b8c052fdae367194", "7931dcbe265a40f8", "905724afe1bc683d",
  "2c6a0b834d75fe19", "c51fed4a0763928b", "db7ec13950f4862a", "6fe9b308c2d714a5", "a2847615fb9e3cd0",
].map((order) => [...order].map((digit) => parseInt(digit, 16)));
const QUARTERS = [
  ...[[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]],
  ...[[0, 5, 10, 15], [1, 6, 11, 12], [2, 7, 8, 13], [3, 4, 9, 14]],
];
const turn = (x, bits) => ((x >> bits) | (x << (64n - bits))) & MASK;

/** BLAKE2b's compression (RFC 7693). block: 128 bytes, padded. length: of the message up to its end. */
function compress(state, block, length, last) {
  const reader = new Reader(block);
  const message = Array.from({ length: 16 }, () => reader.big(8));
  const v = [...state, ...IV];
  v[12] ^= BigInt(length);
  if (last) v[14] ^= MASK;
  for (let round = 0; round < 12; round++) {
    const order = ORDERS[round % 10];
    QUARTERS.forEach(([a, b, c, d], place) => {
      v[a] = (v[a] + v[b] + message[order[2 * place]]) & MASK;
      v[d] = turn(v[d] ^ v[a], 32n);
      v[c] = (v[c] + v[d]) & MASK;
      v[b] = turn(v[b] ^ v[c], 24n);
      v[a] = (v[a] + v[b] + message[order[2 * place + 1]]) & MASK;
      v[d] = turn(v[d] ^ v[a], 16n);
      v[c] = (v[c] + v[d]) & MASK;
      v[b] = turn(v[b] ^ v[c], 63n);
    });
  }
  return state.map((word, i) => word ^ v[i] ^ v[i + 8]);
}

const padded = (bytes) => concat(bytes, new Uint8Array(128 - bytes.length));
const started = (...words) => IV.map((word, i) => word ^ (words[i] ?? 0n));
const bytesOf = (state) => concat(...state.map((word) => littleEndian(word, 8)));

/** Block `number` of a seed: 4096 bytes of BLAKE2Xb. */
export function seedBlock(seed, number) {
  const whole = BigInt(BLOCK) << 32n;
  const keyed = compress(started(0x01014040n, whole), padded(seed), 128, false);
  const root = padded(bytesOf(compress(keyed, padded(littleEndian(number, 8)), 136, true)));
  const leaf = (i) => bytesOf(compress(started(64n | (64n << 32n), BigInt(i) | whole, 64n << 8n), root, 64, true));
  return concat(...Array.from({ length: BLOCK / 64 }, (_, i) => leaf(i)));
}

/** The residues that a seed stands for. */
export function expandSeed(seed, set, degree) {
  const q = SETS[set].modulus;
  const limit = MASK - (MASK % q) - 1n;
  let reader = new Reader(new Uint8Array());
  let number = 0;
  const next = () => {
    if (!reader.left) reader = new Reader(seedBlock(seed, number++));
    return reader.big(8);
  };
  return Array.from({ length: degree }, next).map((drawn) => {
    let word = drawn;
    while (word >= limit) word = next();
    return word % q;
  });
}

function power(base, exponent, q) {
  let [result, square] = [1n, base];
  for (let rest = exponent; rest; rest >>= 1n, square = (square * square) % q) if (rest & 1n) result = (result * square) % q;
  return result;
}

/** The smallest primitive root of unity of order 2 degree. */
export function smallestRoot(set, degree) {
  const q = SETS[set].modulus;
  let root = 0n;
  for (let base = 2n; power(root, BigInt(degree), q) !== q - 1n; base++) root = power(base, (q - 1n) / BigInt(2 * degree), q);
  const square = (root * root) % q;
  let least = root;
  for (let odd = 1; odd < degree; odd++) {
    root = (root * square) % q;
    if (root < least) least = root;
  }
  return least;
}

/** Powers of the root (or of its inverse) at the reversed bits of 0 to degree - 1. */
function turnedPowers(set, degree, root) {
  const q = SETS[set].modulus;
  const powers = [1n];
  for (let i = 1; i < degree; i++) powers.push((powers[i - 1] * root) % q);
  const bits = Math.log2(degree);
  return powers.map((_, i) => powers[parseInt(i.toString(2).padStart(bits, "0").split("").reverse().join(""), 2)]);
}

const tables = new Map();
function tablesOf(set, degree) {
  const key = `${set} ${degree}`;
  if (!tables.has(key)) {
    const root = smallestRoot(set, degree);
    const inverse = power(root, SETS[set].modulus - 2n, SETS[set].modulus);
    tables.set(key, { forward: turnedPowers(set, degree, root), backward: turnedPowers(set, degree, inverse) });
  }
  return tables.get(key);
}

/** Coefficients (bigints of either sign) -> residues. */
export function toResidues(coefficients, set) {
  const [q, degree] = [SETS[set].modulus, coefficients.length];
  const { forward } = tablesOf(set, degree);
  const a = coefficients.map((c) => ((c % q) + q) % q);
  for (let groups = 1, gap = degree / 2; groups < degree; groups *= 2, gap /= 2) {
    for (let group = 0; group < groups; group++) {
      for (let i = 2 * group * gap; i < (2 * group + 1) * gap; i++) {
        const [low, high] = [a[i], (a[i + gap] * forward[groups + group]) % q];
        [a[i], a[i + gap]] = [(low + high) % q, (low - high + q) % q];
      }
    }
  }
  return a;
}

/** Residues -> coefficients from -q / 2 to q / 2. */
export function toCoefficients(residues, set) {
  const [q, degree] = [SETS[set].modulus, residues.length];
  const { backward } = tablesOf(set, degree);
  const a = [...residues];
  for (let groups = degree / 2, gap = 1; groups >= 1; groups /= 2, gap *= 2) {
    for (let group = 0; group < groups; group++) {
      for (let i = 2 * group * gap; i < (2 * group + 1) * gap; i++) {
        const [low, high] = [a[i], a[i + gap]];
        [a[i], a[i + gap]] = [(low + high) % q, ((low - high + q) * backward[groups + group]) % q];
      }
    }
  }
  const share = power(BigInt(degree), q - 2n, q);
  return a.map((x) => (x * share) % q).map((x) => (x > q / 2n ? x - q : x));
}

/** Angles of z^(3^j k), j below `slots`. */
function* slotPowers(degree, slots) {
  for (let j = 0, at = 1; j < slots; j++, at = (3 * at) % (2 * degree)) yield at;
}

/** At most `degree` values divided by their clips -> coefficients of the plaintext, bigints. */
export function encode(values, scale, degree) {
  const sums = new Array(degree).fill(0);
  let j = 0;
  for (const at of slotPowers(degree, Math.ceil(values.length / 2))) {
    const [real, imaginary] = [values[2 * j], values[2 * j + 1] ?? 0];
    j++;
    if (!real && !imaginary) continue;
    for (let k = 0; k < degree; k++) {
      const angle = (Math.PI * ((at * k) % (2 * degree))) / degree;
      sums[k] += real * Math.cos(angle) + imaginary * Math.sin(angle);
    }
  }
  return sums.map((x) => BigInt(Math.round((2 * scale * x) / degree)));
}

/** The first `count` values of a plaintext's coefficients. */
export function decode(coefficients, scale, count) {
  const degree = coefficients.length;
  const numbers = coefficients.map((c) => Number(c) / scale);
  const values = [];
  for (const at of slotPowers(degree, Math.ceil(count / 2))) {
    let [real, imaginary] = [0, 0];
    numbers.forEach((x, k) => {
      const angle = (Math.PI * ((at * k) % (2 * degree))) / degree;
      real += x * Math.cos(angle);
      imaginary += x * Math.sin(angle);
    });
    values.push(real, imaginary);
  }
  return values.slice(0, count);
}

const combined = (base, left, right, sign, q) =>
  base.map((b, i) => ((((b + sign * left[i] * right[i]) % q) + q) % q));

/** Residues of the keyring's secret key. */
export function readKey(body, set, degree) {
  if (body.length !== degree * residueBytes(set)) throw new KeyringError("a key of another length");
  const residues = decodePlanes(body, set);
  if (firstOutOfRange(residues, set, degree) !== null) throw new KeyringError("a key has residues that are not below q");
  return residues;
}

/** A seeded ciphertext: c0 and the seed of c1. message: residues of plaintext + error. */
export function encryptSeeded(message, secret, seed, set) {
  const c1 = expandSeed(seed, set, message.length);
  return { c0: combined(message, c1, secret, -1n, SETS[set].modulus), seed };
}

export const decrypt = ([c0, c1], secret, set) => {
  if (c1.every((x) => x === 0n)) throw new CodecError("a ciphertext is transparent: it is not a sum of ciphertexts");
  return toCoefficients(combined(c0, c1, secret, 1n, SETS[set].modulus), set);
};

/** Body of a seeded contribution. */
export const encodeSeeded = (ciphertexts, set) =>
  concat(encodePlanes(ciphertexts.flatMap(({ c0 }) => c0), set), ...ciphertexts.map(({ seed }) => seed));

/** Ciphertexts [c0, c1] of a seeded body; its planes and its seeds are checked as the server does. */
export function readSeeded(body, set, degree, count) {
  const planes = count * degree * residueBytes(set);
  if (body.length !== planes + count * SEED_BYTES) throw new ContributionError("a contribution of another length");
  const residues = decodePlanes(body.slice(0, planes), set);
  if (firstOutOfRange(residues, set, degree) !== null) throw new ContributionError("a residue is not below q");
  return Array.from({ length: count }, (_, i) => {
    const seed = body.slice(planes + i * SEED_BYTES, planes + (i + 1) * SEED_BYTES);
    return [residues.slice(i * degree, (i + 1) * degree), expandSeed(seed, set, degree)];
  });
}

/** The sum of ciphertexts [c0, c1]. */
export function addCiphertexts(ciphertexts, set) {
  const total = ciphertexts[0].map((polynomial) => [...polynomial]);
  for (const next of ciphertexts.slice(1)) total.forEach((polynomial, i) => addResidues(polynomial, next[i], set));
  return total;
}
