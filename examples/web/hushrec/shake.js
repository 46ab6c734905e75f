/** SHAKE128 (FIPS 202), which WebCrypto lacks. Lanes are bigints. */

const MASK = (1n << 64n) - 1n;
const RATE = 168;
const rotate = (lane, by) => (by ? ((lane << BigInt(by)) | (lane >> BigInt(64 - by))) & MASK : lane);

const CONSTANTS = (() => {
  const found = [];
  let register = 1;
  for (let round = 0; round < 24; round++) {
    let constant = 0n;
    for (let j = 0; j < 7; j++) {
      if (register & 1) constant |= 1n << BigInt(2 ** j - 1);
      register = (register << 1) ^ (register & 0x80 ? 0x171 : 0);
    }
    found.push(constant);
  }
  return found;
})();

function permute(lanes) {
  for (const constant of CONSTANTS) {
    const columns = [0, 1, 2, 3, 4].map((x) => lanes[x] ^ lanes[x + 5] ^ lanes[x + 10] ^ lanes[x + 15] ^ lanes[x + 20]);
    for (let x = 0; x < 5; x++) {
      const mixed = columns[(x + 4) % 5] ^ rotate(columns[(x + 1) % 5], 1);
      for (let y = 0; y < 25; y += 5) lanes[x + y] ^= mixed;
    }
    let [x, y] = [1, 0];
    let moved = lanes[1];
    for (let t = 0; t < 24; t++) {
      [x, y] = [y, (2 * x + 3 * y) % 5];
      const next = lanes[x + 5 * y];
      lanes[x + 5 * y] = rotate(moved, (((t + 1) * (t + 2)) / 2) % 64);
      moved = next;
    }
    for (let row = 0; row < 25; row += 5) {
      const old = lanes.slice(row, row + 5);
      for (let i = 0; i < 5; i++) lanes[row + i] = old[i] ^ (~old[(i + 1) % 5] & MASK & old[(i + 2) % 5]);
    }
    lanes[0] ^= constant;
  }
}

function absorb(lanes, block) {
  const view = new DataView(block.buffer, block.byteOffset, RATE);
  for (let i = 0; i < RATE / 8; i++) lanes[i] ^= view.getBigUint64(8 * i, true);
  permute(lanes);
}

/** The first `length` bytes of SHAKE128(message). */
export function shake128(message, length) {
  const padded = new Uint8Array(Math.ceil((message.length + 1) / RATE) * RATE);
  padded.set(message);
  padded[message.length] ^= 0x1f;
  padded[padded.length - 1] ^= 0x80;
  const lanes = new Array(25).fill(0n);
  for (let at = 0; at < padded.length; at += RATE) absorb(lanes, padded.subarray(at, at + RATE));
  const blocks = Math.ceil(length / RATE);
  const view = new DataView(new ArrayBuffer(blocks * RATE));
  for (let block = 0; block < blocks; block++) {
    if (block) permute(lanes);
    for (let i = 0; i < RATE / 8; i++) view.setBigUint64(block * RATE + 8 * i, lanes[i], true);
  }
  return new Uint8Array(view.buffer, 0, length);
}
