/** What a randomizer needs of a task's parameters, as the task's document has it. */
import type { Coins } from "../coins.js";
import { Refused } from "../errors.js";
import type { HashedRecord } from "../hashing.js";

export class Shape {
  readonly #given: { readonly [name: string]: unknown };

  constructor(given: unknown) {
    this.#given = Object(given);
  }

  has(name: string): boolean {
    return name in this.#given;
  }

  /** A whole number. */
  big(name: string): bigint {
    const value = this.#given[name];
    if (Number.isSafeInteger(value) || (typeof value === "string" && /^-?\d{1,20}$/.test(value))) {
      return BigInt(value as number | string);
    }
    throw new Refused(`The task document has no whole number ${name}: export it again with this version.`);
  }

  /** A whole number that is counted with: at most 2^31, and at least 1 unless said otherwise. */
  count(name: string, least = 1): number {
    const value = this.big(name);
    if (value >= BigInt(least) && value <= 1n << 31n) return Number(value);
    throw new Refused(`The task document says ${name} = ${value}, which is out of range.`);
  }

  flag(name: string): boolean {
    const value = this.#given[name];
    if (typeof value === "boolean") return value;
    throw new Refused(`The task document does not say whether ${name}: export it again with this version.`);
  }

  /** The weights of a favoured and of any other outcome. */
  weights(): [bigint, bigint] {
    const [favoured, other] = [this.big("favoured"), this.big("other")];
    if (other > 0n && favoured >= other) return [favoured, other];
    throw new Refused("The task document's weights are wrong: export it again with this version.");
  }
}

/** Makes one report, the numbers after the seed, of a record that is hashed. `row`: its seed, if not the first. */
export type HashedKernel = (coins: Coins, record: HashedRecord) => { row?: number; numbers: number[] };

/** Makes one report of a record over a list of keys: which places of the list it has, with which values. */
export type ListedKernel = (coins: Coins, places: number[], values: number[]) => number[];
