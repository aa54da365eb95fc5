/** Public hash functions of a report: bucket and sign of a key. Beside it in Python: hubbub/model/hashing.py. */
import type { Keys } from "./keys.js";
import { derive, parity, ROW, remainder, shiftRight, siphashWord, type Word } from "./siphash.js";
import { bitsFor } from "./wire.js";

export type Family = "walsh" | "prf";

/** A record as hashed randomizers see it; `bucket` and `sign` by seeds, then entries, then sides. */
export interface HashedRecord {
  values: number[];
  bucket: number[];
  sign: number[];
}

/** popcount(code & row) mod 2. */
function character(code: Word, row: Word): number {
  return parity((code[0] & row[0]) ^ (code[1] & row[1]));
}

/** Bucket and sign of every id (both sides of it, where keys have two) under each seed. */
export function hashEntries(
  family: Family,
  keys: Keys,
  seeds: readonly Word[],
  ids: readonly Word[],
  sided: boolean,
  buckets: number,
): { bucket: number[]; sign: number[] } {
  const both = sided ? ids.flatMap((id) => [id, keys.otherSide(id)]) : ids;
  const bucket: number[] = [];
  const sign: number[] = [];
  if (family === "prf") {
    for (const seed of seeds) {
      for (const id of both) {
        const [high, low] = siphashWord(keys.salt[0], seed, id);
        bucket.push(Math.floor((low * buckets) / 2 ** 32));
        sign.push(high >>> 31 ? -1 : 1);
      }
    }
    return { bucket, sign };
  }
  const { bits, cohorts } = keys.universe;
  const signs = both.map((id) => keys.sign(id));
  const derived = Array.from({ length: bitsFor(BigInt(buckets)) + 1 }, (_, row) =>
    derive(keys.salt[1], ROW + row),
  );
  for (const seed of seeds) {
    const rows = derived.map((row) => shiftRight(row(seed), 64 - bits));
    const cohort = remainder(seed, cohorts);
    both.forEach((id, entry) => {
      const code = keys.code(id, cohort);
      let place = 0;
      for (let row = 1; row < rows.length; row++) place |= character(code, rows[row]) << (row - 1);
      bucket.push(place);
      sign.push(character(code, rows[0]) ? -signs[entry] : signs[entry]);
    });
  }
  return { bucket, sign };
}
