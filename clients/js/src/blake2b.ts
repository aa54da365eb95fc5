/**
 * BLAKE2b (RFC 7693), without a key and with an optional personal name. WebCrypto does not have it.
 *
 * It makes checksums of batches, names of keys, and the names of records that a ledger keeps (memo.ts).
 */

import { joined, littleEndian, utf8 } from "./bytes.js";

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
].map((digits) => Array.from(digits, (digit) => Number.parseInt(digit, 16)));
const BLOCK = 128;

/** The digest of `size` bytes. */
export function blake2b(data: Uint8Array, size: number, person = ""): Uint8Array {
  const parameters = new Uint8Array(64);
  parameters.set([size, 0, 1, 1]);
  parameters.set(utf8(person), 48);
  const state = words(parameters).map((word, place) => word ^ IV[place]);
  const padded = new Uint8Array(Math.max(1, Math.ceil(data.length / BLOCK)) * BLOCK);
  padded.set(data);
  for (let start = 0; start < padded.length; start += BLOCK) {
    const end = start + BLOCK;
    compress(state, words(padded.subarray(start, end)), Math.min(data.length, end), end === padded.length);
  }
  return joined(...Array.from(state, (word) => littleEndian(word, 8))).slice(0, size);
}

/** Bytes as little-endian words. */
function words(bytes: Uint8Array): BigUint64Array {
  const view = new DataView(bytes.buffer, bytes.byteOffset);
  return BigUint64Array.from({ length: bytes.length / 8 }, (_, place) => view.getBigUint64(8 * place, true));
}

/** Arrays of 64-bit words drop what is beyond 64 bits, so sums and shifts need no mask. */
function compress(state: BigUint64Array, block: BigUint64Array, length: number, last: boolean): void {
  const v = BigUint64Array.from([...state, ...IV]);
  v[12] ^= BigInt(length);
  if (last) v[14] = ~v[14];
  /** v[to] = rotate(v[to] ^ v[by], bits), to the right. */
  const turn = (to: number, by: number, bits: bigint): void => {
    const word = v[to] ^ v[by];
    v[to] = (word >> bits) | (word << (64n - bits));
  };
  for (let round = 0; round < 12; round++) {
    const word = (place: number): bigint => block[ORDERS[round % 10][place]];
    for (let i = 0; i < 8; i++) {
      const aside = i < 4 ? 0 : 1; // four columns of the square v, then its four diagonals
      const [a, b] = [i % 4, 4 + ((i + aside) % 4)];
      const [c, d] = [8 + ((i + 2 * aside) % 4), 12 + ((i + 3 * aside) % 4)];
      v[a] += v[b] + word(2 * i);
      turn(d, a, 32n);
      v[c] += v[d];
      turn(b, c, 24n);
      v[a] += v[b] + word(2 * i + 1);
      turn(d, a, 16n);
      v[c] += v[d];
      turn(b, c, 63n);
    }
  }
  for (let i = 0; i < 8; i++) state[i] ^= v[i] ^ v[i + 8];
}
