/** Seeds that follow from what the collector hands out (`seed_from`). In Python: hubbub/protocol/nonces.py. */
import { blake2b } from "./blake2b.js";
import { utf8 } from "./bytes.js";
import type { Seeds } from "./coins.js";
import { shiftRight } from "./siphash.js";

/** The seeds of a batch, report by report: a public hash of the nonce and of a number that counts up. */
export function nonceSeeds(nonce: string): Seeds {
  let next = 0;
  return {
    draw: (bits, count) =>
      Array.from({ length: count }, () => {
        const { buffer } = blake2b(utf8(`${nonce} ${next++}`), 8, "hubbub seed");
        const view = new DataView(buffer);
        const [low, high] = [view.getUint32(0, true), view.getUint32(4, true)];
        return shiftRight([high, low], 64 - bits);
      }),
  };
}
