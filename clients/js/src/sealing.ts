/**
 * Sealed reports: only the collector can open them, so that a shuffler can mix what it cannot read.
 *
 * HPKE in base mode (RFC 9180: X25519, HKDF-SHA256, AES-128-GCM) by WebCrypto, byte for byte what
 * `hubbub.protocol.sealing` opens: the stratum, the encapsulated key, the ciphertext, the key's name.
 * A report is sealed once, by the ledger that made it, and the same item is sent however often it is sent.
 */

import { blake2b } from "./blake2b.js";
import { fromHex, joined, utf8 } from "./bytes.js";
import { Refused } from "./errors.js";
import { prefixBytes, prefixOf } from "./strata.js";
import type { Task } from "./task.js";

/** Bytes that sealing adds to a report: encapsulated key, tag and the name of the key. */
const OVERHEAD = 32 + 16 + 4;
const KEM = joined(utf8("KEM"), Uint8Array.of(0, 0x20));
const SUITE = joined(utf8("HPKE"), Uint8Array.of(0, 0x20, 0, 1, 0, 1));
const NONE = new Uint8Array();

/** Bytes of one sealed item of a task. */
export function sealedBytes(task: Task): number {
  return prefixBytes(task) + OVERHEAD + task.reportBytes;
}

/** A shuffler and reports that are sent again in later periods exclude each other. */
export function refuseMemoized(task: Task): void {
  if (task.memoizeCap) {
    throw new Refused(
      `Task "${task.name}" memoizes: its reports are sent again in later periods, and the same bytes in several crowds ` +
        "link a person. It is for a collector without a shuffler.",
    );
  }
}

/** One report of a period and of labels (in the order of their names), for the holder of the private key alone. */
export async function seal(
  report: Uint8Array,
  publicKey: Uint8Array,
  task: Task,
  period: string,
  labels: readonly string[] = [],
): Promise<Uint8Array> {
  refuseMemoized(task);
  if (report.length !== task.reportBytes) {
    throw new Refused(
      `One report of ${task.reportBytes} bytes is sealed at a time, not ${report.length} bytes.`,
    );
  }
  const prefix = prefixOf(task, period, labels);
  const name = blake2b(publicKey, 4, "hubbub key id");
  return joined(prefix, await encrypt(report, publicKey, binding(task, prefix, name)), name);
}

/** What ties an item to its purpose, its task, its stratum and its key. */
export function binding(task: Task, prefix: Uint8Array, key: Uint8Array): Uint8Array {
  return joined(utf8("hubbub sealed report v2"), fromHex(task.digest)!, prefix, key);
}

/** HPKE in base mode, for one message without additional data. */
async function encrypt(text: Uint8Array, publicKey: Uint8Array, info: Uint8Array): Promise<Uint8Array> {
  const { encapsulated, secret: shared } = await agree(publicKey);
  const context = joined(
    Uint8Array.of(0),
    await extract(SUITE, NONE, "psk_id_hash", NONE),
    await extract(SUITE, NONE, "info_hash", info),
  );
  const secret = await extract(SUITE, shared, "secret", NONE);
  const key = await expand(SUITE, secret, "key", context, 16);
  const iv = await expand(SUITE, secret, "base_nonce", context, 12);
  const cipher = await crypto.subtle.importKey("raw", owned(key), "AES-GCM", false, ["encrypt"]);
  const sealed = await crypto.subtle.encrypt({ name: "AES-GCM", iv: owned(iv) }, cipher, owned(text));
  return joined(encapsulated, new Uint8Array(sealed));
}

/** A fresh key pair, and what it shares with the holder of the private key (the DHKEM of RFC 9180). */
async function agree(publicKey: Uint8Array): Promise<{ encapsulated: Uint8Array; secret: Uint8Array }> {
  if (!globalThis.crypto?.subtle) {
    throw new Refused("Reports can be sealed on pages that came over https only.");
  }
  const curve = { name: "X25519" };
  let pair: CryptoKeyPair;
  try {
    pair = (await crypto.subtle.generateKey(curve, false, ["deriveBits"])) as CryptoKeyPair;
  } catch {
    throw new Refused("This browser cannot seal reports: it does not have X25519.");
  }
  let dh: Uint8Array;
  try {
    const theirs = await crypto.subtle.importKey("raw", owned(publicKey), curve, false, []);
    const bits = await crypto.subtle.deriveBits({ ...curve, public: theirs }, pair.privateKey, 256);
    dh = new Uint8Array(bits);
    if (dh.every((byte) => byte === 0)) throw new Error("a point that every private key maps to 0");
  } catch {
    throw new Refused("This is not a collector's public key; ask the collector for it again.");
  }
  const encapsulated = new Uint8Array(await crypto.subtle.exportKey("raw", pair.publicKey));
  const inner = await extract(KEM, NONE, "eae_prk", dh);
  const secret = await expand(KEM, inner, "shared_secret", joined(encapsulated, publicKey), 32);
  return { encapsulated, secret };
}

/** LabeledExtract. A salt of no bytes is the same to HMAC as one of zeros, and WebCrypto takes no empty key. */
function extract(suite: Uint8Array, salt: Uint8Array, label: string, input: Uint8Array): Promise<Uint8Array> {
  return hmac(salt.length ? salt : new Uint8Array(32), joined(utf8("HPKE-v1"), suite, utf8(label), input));
}

/** LabeledExpand to at most 32 bytes, which is one block. */
async function expand(
  suite: Uint8Array,
  secret: Uint8Array,
  label: string,
  info: Uint8Array,
  size: number,
): Promise<Uint8Array> {
  const labeled = joined(Uint8Array.of(0, size), utf8("HPKE-v1"), suite, utf8(label), info);
  return (await hmac(secret, joined(labeled, Uint8Array.of(1)))).slice(0, size);
}

async function hmac(secret: Uint8Array, data: Uint8Array): Promise<Uint8Array> {
  const kind = { name: "HMAC", hash: "SHA-256" };
  const key = await crypto.subtle.importKey("raw", owned(secret), kind, false, ["sign"]);
  return new Uint8Array(await crypto.subtle.sign("HMAC", key, owned(data)));
}

/** WebCrypto takes bytes that are in memory of their own. */
function owned(bytes: Uint8Array): Uint8Array<ArrayBuffer> {
  return joined(bytes);
}
