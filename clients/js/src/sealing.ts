/**
 * Sealed reports: only the collector can open them, so that a shuffler can mix what it cannot read.
 *
 * HPKE in base mode (RFC 9180: X25519, HKDF-SHA256, AES-128-GCM) by WebCrypto, byte for byte what
 * `hubbub.protocol.sealing` opens: the stratum, the encapsulated key, the ciphertext, the key's name.
 * A report is sealed once, by the ledger that made it, and the same item is sent however often it is sent.
 */

import { blake2b } from "./blake2b.js";
import { fromHex, joined } from "./bytes.js";
import { Refused } from "./errors.js";
import { prefixBytes, prefixOf } from "./strata.js";
import type { Task } from "./task.js";

/** Bytes that sealing adds to a report: encapsulated key, tag and the name of the key. */
const OVERHEAD = 32 + 16 + 4;
const KEM = "KEM\0\x20";
const SUITE = "HPKE\0\x20\0\x01\0\x01";
/** To HMAC the same as a salt of no bytes, which WebCrypto does not take as a key. */
const NO_SALT = new Uint8Array(32);

/** Bytes in memory of their own: WebCrypto takes no others. */
type Owned = Uint8Array<ArrayBuffer>;

/** Bytes of one sealed item of a task. */
export function sealedBytes(task: Task): number {
  return prefixBytes(task) + OVERHEAD + task.reportBytes;
}

/** Refuse a task that is for no shuffler, because its reports can be told apart however they are mixed. */
export function checkSealable(task: Task): void {
  if (task.memoizeCap || task.needsNonce) {
    const why = task.memoizeCap ? "memoizes, and the same bytes in several crowds" : "has nonces, which";
    throw new Refused(`Task "${task.name}" ${why} link a person: it is for no shuffler.`);
  }
}

/** One report of a period and of labels (in the order of their names), for the holder of the private key alone. */
export async function seal(
  report: Uint8Array,
  publicKey: Uint8Array,
  task: Task,
  period: string,
  labels: readonly string[],
): Promise<Uint8Array> {
  checkSealable(task);
  const prefix = prefixOf(task, period, labels);
  const name = blake2b(publicKey, 4, "hubbub key id");
  return joined(prefix, await encrypt(report, publicKey, binding(task, prefix, name)), name);
}

/** What ties an item to its purpose, its task, its stratum and its key. */
export function binding(task: Task, prefix: Uint8Array, key: Uint8Array): Uint8Array {
  return joined("hubbub sealed report v2", fromHex(task.digest)!, prefix, key);
}

/** HPKE in base mode, for one message without additional data. */
async function encrypt(text: Uint8Array, publicKey: Uint8Array, info: Uint8Array): Promise<Uint8Array> {
  const [encapsulated, shared] = await agree(publicKey);
  const context = joined(
    [0],
    await extract(SUITE, NO_SALT, "psk_id_hash", ""),
    await extract(SUITE, NO_SALT, "info_hash", info),
  );
  const secret = await extract(SUITE, shared, "secret", "");
  const key = await expand(SUITE, secret, "key", context, 16);
  const iv = await expand(SUITE, secret, "base_nonce", context, 12);
  const cipher = await crypto.subtle.importKey("raw", key, "AES-GCM", false, ["encrypt"]);
  const sealed = await crypto.subtle.encrypt({ name: "AES-GCM", iv }, cipher, joined(text));
  return joined(encapsulated, new Uint8Array(sealed));
}

/** A fresh public key, and what its private half shares with the collector's key (the DHKEM of RFC 9180). */
async function agree(publicKey: Uint8Array): Promise<[Uint8Array, Owned]> {
  const curve = { name: "X25519" };
  let pair: CryptoKeyPair;
  try {
    pair = (await crypto.subtle.generateKey(curve, false, ["deriveBits"])) as CryptoKeyPair;
  } catch {
    throw new Refused("This browser cannot seal reports: it has no X25519.");
  }
  let dh: Uint8Array;
  try {
    const theirs = await crypto.subtle.importKey("raw", joined(publicKey), curve, false, []);
    const bits = await crypto.subtle.deriveBits({ ...curve, public: theirs }, pair.privateKey, 256);
    dh = new Uint8Array(bits);
    if (dh.every((byte) => byte === 0)) throw new Error(); // a point that every private key maps to 0
  } catch {
    throw new Refused("This is not a collector's public key; ask the collector for it again.");
  }
  const encapsulated = new Uint8Array(await crypto.subtle.exportKey("raw", pair.publicKey));
  const inner = await extract(KEM, NO_SALT, "eae_prk", dh);
  return [encapsulated, await expand(KEM, inner, "shared_secret", joined(encapsulated, publicKey), 32)];
}

/** LabeledExtract. */
function extract(suite: string, salt: Owned, label: string, input: Uint8Array | string): Promise<Owned> {
  return hmac(salt, "HPKE-v1", suite, label, input);
}

/** LabeledExpand to at most 32 bytes, which is one block. */
async function expand(
  suite: string,
  secret: Owned,
  label: string,
  info: Uint8Array,
  size: number,
): Promise<Owned> {
  return (await hmac(secret, [0, size], "HPKE-v1", suite, label, info, [1])).slice(0, size);
}

async function hmac(secret: Owned, ...data: Parameters<typeof joined>): Promise<Owned> {
  const kind = { name: "HMAC", hash: "SHA-256" };
  const key = await crypto.subtle.importKey("raw", secret, kind, false, ["sign"]);
  return new Uint8Array(await crypto.subtle.sign("HMAC", key, joined(...data)));
}
