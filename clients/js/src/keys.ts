/** From what the user calls a key to its public code. Beside it in Python: hubbub/model/keys.py. */
import { fromHex, joined, utf8 } from "./bytes.js";
import {
  add,
  COHORT,
  derive,
  mix,
  ROUND,
  remainder,
  SIGN,
  siphash,
  type Word,
  wordOf,
  xor,
} from "./siphash.js";

const SIDE: Word = [0x5deece66, 0xd1ce4e5b];
const LONE_SURROGATE = /\p{Surrogate}/u;
const PLACE = /^(?:0|[1-9]\d{0,9})$/;

export type Kind = "closed" | "folded" | "wide";

/** Which keys there are, as the document has it. */
export interface Universe {
  kind: Kind;
  count: number;
  bits: number;
  cohorts: number;
  count_lengths: boolean;
  salt: string;
}

/** Keys of a closed universe, with those that count records which were sampled down. */
export function placesOf({ count, count_lengths }: Universe): number {
  return count + (count_lengths ? 2 : 0);
}

/** The universe of keys of a task and the public map from key to code. */
export class Keys {
  /** The salt as the two words of a SipHash key. */
  readonly salt: readonly [Word, Word];
  readonly #places: Map<string, number> | undefined;
  readonly #codes: ((id: Word) => Word)[];
  readonly #sign: (id: Word) => Word;

  constructor(
    readonly universe: Universe,
    vocabulary: readonly string[] | undefined,
  ) {
    const bytes = new DataView(fromHex(universe.salt)!.buffer);
    const word = (at: number): Word => [bytes.getUint32(at + 4, true), bytes.getUint32(at, true)];
    this.salt = [word(0), word(8)];
    this.#places = vocabulary && new Map(vocabulary.map((key, place) => [key, place]));
    this.#codes = Array.from({ length: universe.cohorts }, (_, cohort) => this.#codeMap(wordOf(cohort)));
    this.#sign = derive(this.salt[0], SIGN);
  }

  /** The 64-bit id of a key: its place in a closed vocabulary, or its hash; none if it is unknown or no text. */
  idOf(key: string): Word | undefined {
    const { kind, count } = this.universe;
    if (kind !== "closed") return LONE_SURROGATE.test(key) ? undefined : this.#hash(utf8(key));
    const place = Number(this.#places ? this.#places.get(key) : PLACE.exec(key)?.[0]);
    return place < count ? wordOf(place) : undefined; // of no place it is NaN, below nothing
  }

  /** Ids of the keys that count records which were sampled down: the entry asked about was kept, or lost. */
  lengthIds(): [Word, Word] {
    const { kind, count } = this.universe;
    if (kind === "closed") return [wordOf(count), wordOf(count + 1)];
    return [this.#hash(joined([0xff], "kept")), this.#hash(joined([0xff], "lost"))];
  }

  #hash(bytes: Uint8Array): Word {
    return siphash(this.salt[0], this.salt[1], bytes);
  }

  /** The id under which the same key stands for negative values. */
  otherSide(id: Word): Word {
    return this.universe.kind === "closed" ? add(id, wordOf(placesOf(this.universe))) : xor(id, SIDE);
  }

  /** The public sign of a key, +1 or -1. */
  sign(id: Word): number {
    return this.#sign(id)[0] >>> 31 ? -1 : 1;
  }

  /** The non-zero Walsh code of a key in a cohort. */
  code(id: Word, cohort: number): Word {
    return this.#codes[cohort](id);
  }

  #codeMap(cohort: Word): (id: Word) => Word {
    const { kind, bits } = this.universe;
    if (kind === "closed") return this.#permutation(cohort);
    const own = derive(this.salt[0], COHORT)(cohort);
    if (kind === "folded") return (id) => wordOf(remainder(mix(xor(id, own)), 2 ** bits - 1) + 1);
    return (id) => {
      const code = mix(xor(id, own));
      return code[0] || code[1] ? code : [0, 1];
    };
  }

  /** A salted permutation P of the code space, except that P^-1(0) is sent to P(2^bits - 1). */
  #permutation(cohort: Word): (id: Word) => Word {
    const { bits } = this.universe;
    const mask = 2 ** bits - 1;
    const shift = (bits + 1) >>> 1;
    const rounds = [0, 1, 2, 3].map((round) => derive(this.salt[1], ROUND + round)(cohort));
    const scramble = (place: number): number => {
      let code = place;
      for (const [high, low] of rounds) code = (Math.imul(code ^ (code >>> shift), low | 1) + high) & mask;
      return code ^ (code >>> shift);
    };
    return (id) => [0, scramble(id[1]) || scramble(mask)];
  }
}
