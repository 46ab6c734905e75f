/** Arithmetic of one-shot sums: rings, public polynomials, products with small secrets (docs/wire/oneshot.md). */

import { tag } from "./domain.js";
import { shake128 } from "./noble.js";

export const SIGMA = 6.4;
const CAPS = [
  [2048, 53],
  [4096, 106],
  [8192, 214],
];

const isPrime = (number) => {
  for (let divisor = 3; divisor * divisor <= number; divisor += 2) if (number % divisor === 0) return false;
  return true;
};

/** The `count` largest primes p = 1 mod 2 * degree below 2^32. */
export function primesBelow(degree, count) {
  const found = [];
  for (let p = Math.floor((2 ** 32 - 1) / (2 * degree)) * 2 * degree + 1; found.length < count; p -= 2 * degree) {
    if (p < 2 ** 32 && isPrime(p)) found.push(p);
  }
  return found;
}

/** The rings that there are: of each degree, all primes that keep 128 bits of security. */
const RINGS = CAPS.map(([degree, cap]) => ({ degree, all: primesBelow(degree, Math.floor(cap / 32)) }));

export const boundOfSum = (contributions) => Math.ceil(10 * SIGMA * Math.sqrt(contributions));

/** Coefficients of a contribution of `values` values. */
export const coefficientsOf = (values, bits, per) => Math.ceil(values / per) + Math.ceil(64 / (bits * per));

/** {degree, primes, per, bits}: the ring with the smallest upload. */
export function chooseRing(bits, values, contributions, committee) {
  let best = null;
  for (const { degree, all } of RINGS) {
    for (let count = 1; count <= all.length; count++) {
      const primes = all.slice(0, count);
      const q = primes.reduce((whole, p) => whole * BigInt(p), 1n);
      let per = Math.floor((32 * count) / bits);
      while (per && (q >> BigInt(bits * per)) / 2n - 1n < BigInt(boundOfSum(contributions))) per--;
      if (!per) continue;
      const bytes = 4 * count * coefficientsOf(values, bits, per) + committee * 4 * degree;
      if (!best || bytes < best.bytes) best = { degree, primes, per, bits, bytes };
    }
  }
  return best;
}

/** Public polynomials for prime number `number`: polynomials * degree residues. */
export function publicPolynomials(binding, degree, prime, number, polynomials) {
  const count = polynomials * degree;
  const seed = tag("oneshot polynomials", binding, number);
  for (let spare = 64; ; spare *= 2) {
    const bytes = shake128(seed, { dkLen: 4 * (count + spare) });
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
    const kept = Array.from({ length: count + spare }, (_, i) => view.getUint32(4 * i, true)).filter((word) => word < prime);
    if (kept.length >= count) return kept.slice(0, count);
  }
}

/** In-place FFT of (re, im), a power of two long; inverse without the division by the length. */
function fft(re, im, inverse) {
  const n = re.length;
  for (let i = 1, j = 0; i < n; i++) {
    let bit = n >> 1;
    for (; j & bit; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i < j) {
      [re[i], re[j]] = [re[j], re[i]];
      [im[i], im[j]] = [im[j], im[i]];
    }
  }
  for (let half = 1; half < n; half *= 2) {
    for (let k = 0; k < half; k++) {
      const angle = ((inverse ? 1 : -1) * Math.PI * k) / half;
      const [c, s] = [Math.cos(angle), Math.sin(angle)];
      for (let i = k; i < n; i += 2 * half) {
        const [x, y] = [re[i + half] * c - im[i + half] * s, re[i + half] * s + im[i + half] * c];
        [re[i + half], im[i + half]] = [re[i] - x, im[i] - y];
        [re[i], im[i]] = [re[i] + x, im[i] + y];
      }
    }
  }
}

/** A polynomial modulo X^N + 1 as a twisted transform of length N / 2: its halves are real and imaginary parts. */
function transform(values) {
  const half = values.length / 2;
  const [re, im] = [new Float64Array(half), new Float64Array(half)];
  for (let k = 0; k < half; k++) {
    const angle = (Math.PI * k) / values.length;
    const [c, s] = [Math.cos(angle), Math.sin(angle)];
    re[k] = values[k] * c - values[half + k] * s;
    im[k] = values[k] * s + values[half + k] * c;
  }
  fft(re, im, false);
  return [re, im];
}

function multiplied([re, im], [x, y]) {
  const half = re.length;
  const [u, v] = [new Float64Array(half), new Float64Array(half)];
  for (let k = 0; k < half; k++) {
    u[k] = re[k] * x[k] - im[k] * y[k];
    v[k] = re[k] * y[k] + im[k] * x[k];
  }
  fft(u, v, true);
  const whole = new Float64Array(2 * half);
  for (let k = 0; k < half; k++) {
    const angle = (-Math.PI * k) / (2 * half);
    const [c, s] = [Math.cos(angle) / half, Math.sin(angle) / half];
    whole[k] = Math.round(u[k] * c - v[k] * s);
    whole[half + k] = Math.round(u[k] * s + v[k] * c);
  }
  return whole;
}

/**
 * polynomial * secret modulo X^N + 1 and the prime, residues from 0 on. secret: whole numbers of size below 2^11, as
 * Gaussian secrets are. Exact: the factors are split so that rounding errors stay far below 1/2.
 */
export function multiply(polynomial, secret, prime) {
  const high = polynomial.map((value) => Math.round((value > prime / 2 ? value - prime : value) / 65536));
  const low = polynomial.map((value, i) => (value > prime / 2 ? value - prime : value) - high[i] * 65536);
  const own = transform(Float64Array.from(secret));
  const [above, below] = [multiplied(transform(high), own), multiplied(transform(low), own)];
  return Array.from(above, (value, i) => {
    const rest = ((value % prime) * 65536 + below[i]) % prime;
    return rest < 0 ? rest + prime : rest;
  });
}
