/**
 * BLAKE2b (RFC 7693), without a key and with an optional personal name. WebCrypto does not have it.
 *
 * It makes checksums of batches, names of keys, and the names of records that a ledger keeps (memo.ts).
 */

const IV = [
  0x6a09e667f3bcc908n,
  0xbb67ae8584caa73bn,
  0x3c6ef372fe94f82bn,
  0xa54ff53a5f1d36f1n,
  0x510e527fade682d1n,
  0x9b05688c2b3e6c1fn,
  0x1f83d9abfb41bd6bn,
  0x5be0cd19137e2179n,
];
/** The order in which a round reads the words of a block, as hexadecimal digits. */
const ORDERS = [
  "0123456789abcdef",
  "ea489fd61c02b753",
  "b8c052fdae367194",
  "7931dcbe265a40f8",
  "905724afe1bc683d",
  "2c6a0b834d75fe19",
  "c51fed4a0763928b",
  "db7ec13950f4862a",
  "6fe9b308c2d714a5",
  "a2847615fb9e3cd0",
].map((digits) => [...digits].map((digit) => Number.parseInt(digit, 16)));
const BLOCK = 128;

/** The digest of `size` bytes. */
export function blake2b(data: Uint8Array, size: number, person = ""): Uint8Array {
  const state = BigUint64Array.from(IV);
  const name = new Uint8Array(16);
  name.set(new TextEncoder().encode(person));
  const named = new DataView(name.buffer);
  state[0] ^= 0x01010000n ^ BigInt(size);
  state[6] ^= named.getBigUint64(0, true);
  state[7] ^= named.getBigUint64(8, true);
  const padded = new Uint8Array(Math.max(1, Math.ceil(data.length / BLOCK)) * BLOCK);
  padded.set(data);
  for (let start = 0; start < padded.length; start += BLOCK) {
    const last = start + BLOCK === padded.length;
    compress(state, new DataView(padded.buffer, start, BLOCK), last ? data.length : start + BLOCK, last);
  }
  const bytes = new DataView(new ArrayBuffer(64));
  for (let i = 0; i < 8; i++) bytes.setBigUint64(8 * i, state[i], true);
  return new Uint8Array(bytes.buffer, 0, size).slice();
}

/** Arrays of 64-bit words drop what is beyond 64 bits, so sums and shifts need no mask. */
function compress(state: BigUint64Array, block: DataView, length: number, last: boolean): void {
  const v = BigUint64Array.from([...state, ...IV]);
  v[12] ^= BigInt(length);
  if (last) v[14] = ~v[14];
  const mix = (a: number, b: number, c: number, d: number, x: bigint, y: bigint): void => {
    const turn = (to: number, by: number, bits: bigint): void => {
      const word = v[to] ^ v[by];
      v[to] = (word >> bits) | (word << (64n - bits));
    };
    v[a] = v[a] + v[b] + x;
    turn(d, a, 32n);
    v[c] += v[d];
    turn(b, c, 24n);
    v[a] = v[a] + v[b] + y;
    turn(d, a, 16n);
    v[c] += v[d];
    turn(b, c, 63n);
  };
  for (let round = 0; round < 12; round++) {
    const order = ORDERS[round % 10];
    const word = (place: number): bigint => block.getBigUint64(8 * order[place], true);
    for (let i = 0; i < 4; i++) mix(i, i + 4, i + 8, i + 12, word(2 * i), word(2 * i + 1));
    for (let i = 0; i < 4; i++) {
      mix(i, 4 + ((i + 1) % 4), 8 + ((i + 2) % 4), 12 + ((i + 3) % 4), word(8 + 2 * i), word(9 + 2 * i));
    }
  }
  for (let i = 0; i < 8; i++) state[i] ^= v[i] ^ v[i + 8];
}
