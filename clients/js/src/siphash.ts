/**
 * Public pseudo-random words: SipHash-2-4 for whatever must look random, a scrambler for whatever must only be
 * spread. Nothing here is secret. Beside it in Python: hubbub/primitives/siphash.py.
 *
 * A word has 64 bits and is held as two unsigned halves: a report takes thousands of operations on words, and
 * those of BigInt take twenty times as long.
 */

/** 64 bits: the high half, the low half, each in 0 .. 2^32 - 1. */
export type Word = readonly [high: number, low: number];

const TWO32 = 0x1_0000_0000;

/** A whole number in 0 .. 2^53 as a word. */
export function wordOf(value: number): Word {
  return [Math.floor(value / TWO32), value >>> 0];
}

export function bigOf(word: Word): bigint {
  return (BigInt(word[0]) << 32n) | BigInt(word[1]);
}

export function xor(one: Word, two: Word): Word {
  return [(one[0] ^ two[0]) >>> 0, (one[1] ^ two[1]) >>> 0];
}

/** The sum modulo 2^64. */
export function add(one: Word, two: Word): Word {
  const low = one[1] + two[1];
  return [(one[0] + two[0] + (low >= TWO32 ? 1 : 0)) >>> 0, low >>> 0];
}

/** The product modulo 2^64. */
export function times(one: Word, two: Word): Word {
  const a = one[1] & 0xffff;
  const b = one[1] >>> 16;
  const c = two[1] & 0xffff;
  const d = two[1] >>> 16;
  const middle = a * d + b * c;
  const low = a * c + (middle % 0x10000) * 0x10000;
  const carried = b * d + Math.floor(middle / 0x10000) + Math.floor(low / TWO32);
  return [(carried + Math.imul(one[0], two[1]) + Math.imul(one[1], two[0])) >>> 0, low >>> 0];
}

/** The word moved right by 0 .. 64 bits. */
export function shiftRight(word: Word, bits: number): Word {
  if (bits >= 32) return [0, bits >= 64 ? 0 : word[0] >>> (bits - 32)];
  return bits === 0 ? word : [word[0] >>> bits, ((word[1] >>> bits) | (word[0] << (32 - bits))) >>> 0];
}

/** The remainder of a word by a number below 2^30. */
export function remainder(word: Word, divisor: number): number {
  const carried = ((word[0] % divisor) * 0x10000 + (word[1] >>> 16)) % divisor;
  return (carried * 0x10000 + (word[1] & 0xffff)) % divisor;
}

/** The word rotated left by 1 .. 31 bits. */
function rotate([high, low]: Word, bits: number): Word {
  const back = 32 - bits;
  return [((high << bits) | (low >>> back)) >>> 0, ((low << bits) | (high >>> back)) >>> 0];
}

/** SipHash-2-4 (Aumasson and Bernstein 2012) of 64-bit words given as pairs (low, high), the last with the length. */
function sip(key0: Word, key1: Word, words: Uint32Array): Word {
  let v0 = xor(key0, [0x736f6d65, 0x70736575]);
  let v1 = xor(key1, [0x646f7261, 0x6e646f6d]);
  let v2 = xor(key0, [0x6c796765, 0x6e657261]);
  let v3 = xor(key1, [0x74656462, 0x79746573]);
  const rounds = (count: number): void => {
    for (let round = 0; round < count; round++) {
      v0 = add(v0, v1);
      v1 = xor(rotate(v1, 13), v0);
      v0 = [v0[1], v0[0]]; // rotated by 32 bits
      v2 = add(v2, v3);
      v3 = xor(rotate(v3, 16), v2);
      v0 = add(v0, v3);
      v3 = xor(rotate(v3, 21), v0);
      v2 = add(v2, v1);
      v1 = xor(rotate(v1, 17), v2);
      v2 = [v2[1], v2[0]];
    }
  };
  for (let at = 0; at < words.length; at += 2) {
    const word: Word = [words[at + 1], words[at]];
    v3 = xor(v3, word);
    rounds(2);
    v0 = xor(v0, word);
  }
  v2 = xor(v2, [0, 0xff]);
  rounds(4);
  return xor(xor(v0, v1), xor(v2, v3));
}

/** SipHash-2-4 of one 8-byte little-endian word. */
export function siphashWord(key0: Word, key1: Word, word: Word): Word {
  return sip(key0, key1, Uint32Array.of(word[1], word[0], 0, 8 << 24));
}

/** SipHash-2-4 of a byte string. */
export function siphash(key0: Word, key1: Word, message: Uint8Array): Word {
  const words = new Uint32Array(2 * (message.length >>> 3) + 2);
  for (let at = 0; at < message.length; at++) words[at >>> 2] |= message[at] << (8 * (at & 3));
  words[words.length - 1] |= message.length << 24;
  return sip(key0, key1, words);
}

/** popcount(x) mod 2 of 32 bits, the exponent of a Walsh character. */
export function parity(x: number): number {
  let bits = x ^ (x >>> 16);
  bits ^= bits >>> 8;
  bits ^= bits >>> 4;
  bits ^= bits >>> 2;
  return (bits ^ (bits >>> 1)) & 1;
}

const MIX1: Word = [0xbf58476d, 0x1ce4e5b9];
const MIX2: Word = [0x94d049bb, 0x133111eb];
const STEP: Word = [0x9e3779b9, 0x7f4a7c15];

/** A bijective scrambler of words (the finalizer of splitmix64). */
export function mix(word: Word): Word {
  let mixed = times(xor(word, shiftRight(word, 30)), MIX1);
  mixed = times(xor(mixed, shiftRight(mixed, 27)), MIX2);
  return xor(mixed, shiftRight(mixed, 31));
}

/** Public pseudo-random words, separate for every salt and purpose: a function from items to words. */
export function derive(salt: Word, purpose: number): (item: Word) => Word {
  const start = add(salt, times(wordOf(purpose), STEP));
  const scrambled = mix(start);
  return (item) => mix(add(mix(add(item, scrambled)), start));
}

/** Purposes of derived words. Rows of a seed use ROW + 0, ROW + 1, ... */
export const SIGN = 1;
export const COHORT = 2;
export const ROUND = 3;
export const ROW = 1024;
