/** From what the user calls a key to its public code. Beside it in Python: hubbub/model/keys.py. */
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
const ENCODER = new TextEncoder();
const LONE_SURROGATE = /\p{Surrogate}/u;
const WHOLE = /^(0|[1-9][0-9]*)$/;

export type Kind = "closed" | "folded" | "wide";

/** The universe of keys of a task and the public map from key to code. */
export class Keys {
  /** The salt as the two words of a SipHash key. */
  readonly salt: readonly [Word, Word];
  readonly #places: Map<string, number> | undefined;
  readonly #codes: ((id: Word) => Word)[];
  readonly #sign: (id: Word) => Word;

  constructor(
    readonly kind: Kind,
    readonly count: number,
    readonly bits: number,
    readonly cohorts: number,
    readonly countLengths: boolean,
    salt: string,
    vocabulary: readonly string[] | undefined,
  ) {
    const half = (at: number): number =>
      Number.parseInt(salt.slice(at, at + 8).replace(/(..)(..)(..)(..)/, "$4$3$2$1"), 16);
    this.salt = [
      [half(8), half(0)],
      [half(24), half(16)],
    ];
    this.#places = vocabulary && new Map(vocabulary.map((key, place) => [key, place]));
    this.#codes = Array.from({ length: cohorts }, (_, cohort) => this.#codeMap(wordOf(cohort)));
    this.#sign = derive(this.salt[0], SIGN);
  }

  /** The 64-bit id of a key: its place in a closed vocabulary, or its hash; none if it is unknown or no text. */
  idOf(key: string): Word | undefined {
    if (this.kind !== "closed") {
      return LONE_SURROGATE.test(key) ? undefined : siphash(this.salt[0], this.salt[1], ENCODER.encode(key));
    }
    const place = this.#places
      ? this.#places.get(key)
      : WHOLE.test(key) && key.length <= 10
        ? Number(key)
        : undefined;
    return place !== undefined && place < this.count ? wordOf(place) : undefined;
  }

  /** Ids of the keys that count records which were sampled down: the entry asked about was kept, or lost. */
  lengthIds(): [Word, Word] {
    if (this.kind === "closed") return [wordOf(this.count), wordOf(this.count + 1)];
    const id = (name: string): Word =>
      siphash(this.salt[0], this.salt[1], Uint8Array.of(0xff, ...ENCODER.encode(name)));
    return [id("kept"), id("lost")];
  }

  /** The id under which the same key stands for negative values. */
  otherSide(id: Word): Word {
    return this.kind === "closed" ? add(id, wordOf(this.count + (this.countLengths ? 2 : 0))) : xor(id, SIDE);
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
    if (this.kind === "closed") return this.#permutation(cohort);
    const own = derive(this.salt[0], COHORT)(cohort);
    if (this.kind === "folded") return (id) => wordOf(remainder(mix(xor(id, own)), 2 ** this.bits - 1) + 1);
    return (id) => {
      const code = mix(xor(id, own));
      return code[0] || code[1] ? code : [0, 1];
    };
  }

  /** A salted permutation P of the code space, except that P^-1(0) is sent to P(2^bits - 1). */
  #permutation(cohort: Word): (id: Word) => Word {
    const mask = 2 ** this.bits - 1;
    const shift = (this.bits + 1) >>> 1;
    const rounds = [0, 1, 2, 3].map((round) => derive(this.salt[1], ROUND + round)(cohort));
    const scramble = (place: number): number => {
      let code = place;
      for (const [high, low] of rounds) code = (Math.imul(code ^ (code >>> shift), low | 1) + high) & mask;
      return code ^ (code >>> shift);
    };
    return (id) => [0, scramble(id[1]) || scramble(mask)];
  }
}
