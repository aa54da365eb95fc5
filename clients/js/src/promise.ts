/**
 * Whether what was worked out for a randomizer keeps what its task promises, whoever worked it out.
 *
 * The digest is of the task alone: a document may have the right digest and parameters of its own. A randomizer that
 * favours outcomes keeps epsilon if its weights are in the right ratio, and if all that an entry can lead to is among
 * the outcomes that it draws from otherwise; one that is not would prove the entry. Noise keeps it if its scale is at
 * least the sensitivity over epsilon. The proofs, and the sensitivities, are in hubbub/mechanisms.
 */
import { Refused } from "./errors.js";
import type { Family } from "./hashing.js";
import { placesOf, type Universe } from "./keys.js";
import type { Shape } from "./mechanisms/shape.js";
import { GRID } from "./samplers.js";

/** A randomizer as the document has it. */
export interface Randomizer {
  name: string;
  code: number;
  family: Family | null;
  buckets: number;
  seeds: number;
  sided: boolean;
  in_two_steps: boolean;
  shape: unknown;
}

/** What is read of the mechanism in the task's canonical form. */
export interface Promised {
  name: string;
  epsilon: number;
  max_entries: number;
  unit: "record" | "entry" | "l1";
  distance?: number;
  delta: number;
  as_published?: boolean;
}

/** Quotients of whole numbers may be off by the last digits of a double. */
const SLACK = 1 + 1e-12;
/** What a seed of 64 bits is below. */
const ALL_SEEDS = String(1n << 64n);

export function keepsPromise(
  given: Randomizer,
  shape: Shape,
  told: Promised,
  keys: Universe,
  signed: boolean,
  seed: unknown,
): boolean {
  if (!isConsistent(given, shape, keys)) return false;
  if (given.name === "sparse_sum" && !noiseIsEnough(given, shape, told, signed, seed)) return false;
  if (!shape.has("favoured")) return given.name === "sparse_sum";
  const [favoured, other] = shape.weights();
  // PCKV-GRR may favour one of max_entries different outcomes so much more; for all others that is 1.
  const among = given.name === "pckv_grr" ? shape.count("limit") : 1;
  const epsilon = given.in_two_steps ? told.epsilon / 2 : told.epsilon;
  return Number(favoured) / Number(other) <= (among * Math.expm1(epsilon) + 1) * SLACK;
}

/** Whether buckets and keys are all among the outcomes. */
function isConsistent(given: Randomizer, shape: Shape, keys: Universe): boolean {
  const { name, family, buckets, seeds, sided } = given;
  const says = (field: string, value: number): boolean => !shape.has(field) || shape.count(field) === value;
  const sides = !shape.has("sided") || shape.flag("sided") === sided;
  if (!says("buckets", buckets) || !says("seeds", seeds) || !sides) return false;
  if (!isCount(buckets) || !isCount(seeds)) return false;
  if (family === "walsh" ? !isPower(buckets) : family !== "prf" && keys.kind !== "closed") return false;
  const places = placesOf(keys);
  switch (name) {
    case "sampled": {
      const kind = shape.count("kind", 0);
      const outcomes = kind === 2 ? 2 * buckets : buckets;
      return kind <= 2 && sided === (kind === 1) && shape.count("outcomes") === outcomes;
    }
    case "sketch_response":
      return shape.count("favoured_count") <= seeds * buckets * (shape.flag("signed") ? 2 : 1);
    case "pckv_grr":
      return shape.count("size") >= places;
    case "hadamard": {
      const [blocks, size] = [shape.count("blocks"), shape.count("size", 2)];
      return isPower(size) && blocks * (size - 1) >= places && blocks * size <= 2 ** 31;
    }
    case "sparse_sum":
    case "privkv":
      return true;
    default:
      return shape.count("limit") <= buckets;
  }
}

/** Whether the noise on sums is as large as the change that it hides, over epsilon. */
function noiseIsEnough(
  given: Randomizer,
  shape: Shape,
  told: Promised,
  signed: boolean,
  seed: unknown,
): boolean {
  const [numerator, denominator] = [shape.big("numerator"), shape.big("denominator")];
  if (denominator <= 0n || numerator <= 0n || numerator >= 1n << 55n) return false;
  const reported = (Number(numerator) / Number(denominator)) * told.epsilon * SLACK;
  const clipped = Number(shape.big("clip"));
  if (told.unit === "record") {
    if (shape.has("reach") ? clipped < 1 || told.as_published : clipped < 0 || !told.as_published)
      return false;
    return reported >= 2 * clipped * given.buckets;
  }
  const shrink = shape.big("shrink");
  if (shape.has("reach") || shrink <= 0n || BigInt(GRID) % shrink) return false;
  const steps = GRID / Number(shrink);
  const largest = signed ? 2 : 1;
  if (told.unit === "entry") return reported >= largest * steps;
  const { distance = Number.NaN, delta, max_entries } = told;
  const sums = shape.flag("sums_first");
  const before = signed && !sums ? 2 * max_entries : 0;
  const after = signed && sums ? given.buckets : 0;
  if (reported >= Math.ceil(distance * steps) + before + after) return true;
  // With a delta, less will do, because signs are random: of hash functions that no record can be fitted to.
  if (!delta || given.family !== "prf" || String(seed) !== ALL_SEEDS) return false;
  const length = distance + before / steps;
  const signs = told.as_published
    ? 9 * Math.log((2 * given.buckets) / delta) * given.buckets
    : 2 * largest * (given.buckets * Math.LN2 - Math.log(delta));
  return reported >= Math.sqrt(length * signs) * steps + after;
}

function isCount(number: number): boolean {
  if (number > 2 ** 21) {
    // Times 32 bits of a hash, more are no exact double.
    throw new Refused(`This client does not take ${number} buckets or seeds: 2,097,152 at most.`);
  }
  return Number.isInteger(number) && number >= 1;
}

function isPower(number: number): boolean {
  return Number.isInteger(Math.log2(number));
}
