/** Reports as bytes: fixed width, bit-packed. Beside it in Python: hubbub/primitives/wire.py. */
import type { Word } from "./siphash.js";

/** The number of bits of the numbers 0 .. limit - 1. */
export function bitsFor(limit: bigint): number {
  return limit <= 1n ? 0 : (limit - 1n).toString(2).length;
}

/** The fields of a report in the order they are packed; the first is the public seed. */
export class Layout {
  readonly bits: readonly number[];
  readonly width: number;

  constructor(limits: readonly bigint[]) {
    this.bits = limits.map(bitsFor);
    this.width = Math.ceil(this.bits.reduce((sum, bits) => sum + bits, 0) / 8);
  }

  /** Little-endian bit by bit; the last byte is filled with zero bits. */
  pack(seed: Word, numbers: readonly number[]): Uint8Array<ArrayBuffer> {
    const bytes = new Uint8Array(this.width);
    let at = 0;
    const put = (number: number, bits: number): void => {
      for (let left = number, bit = 0; bit < bits; bit++, at++, left = Math.floor(left / 2)) {
        if (left % 2) bytes[at >>> 3] |= 1 << (at & 7);
      }
    };
    put(seed[1], Math.min(32, this.bits[0]));
    put(seed[0], Math.max(0, this.bits[0] - 32));
    numbers.forEach((number, column) => {
      put(number, this.bits[column + 1]);
    });
    return bytes;
  }
}
